"""Annealing of splits into blocks: starts, rounds, and the way from labels to splits and back.

Rounds go through sets of moves, from greedy and random starts and from the best split so far.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import by_first, components
from dnnp.core.cost.latency import POOL, Invocations, LatencyProblem
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.latency.blocks.items import (
    BlockItems,
    HeldTensors,
    block_items,
    check_feasible,
    held_tensors,
)
from dnnp.core.latency.blocks.search import BlockAnnealing, anneal_held, anneal_step, new_annealing
from dnnp.core.latency.blocks.state import devices_of, excess, latency, new_state
from dnnp.core.latency.depth_first import valid_latency
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Ints, distinct, place_of
from dnnp.core.model.search_context import PLAIN, SearchContext

WAVE = 2
"""Rounds that run at the same time, from what was best before them; for any number of threads."""

MOST_ROUNDS = 1 << 20

STEPS = 80
"""Temperatures of a round."""

MOVES_PER_ITEM, LEAST_MOVES, MOST_MOVES = 250, 3000, 300_000
"""Moves of one of the first rounds; a quarter where items are tied, so that more follow each."""

GROWTH = 1.6
"""Moves of a round over those of the cycle before, up to 4 * MOST_MOVES."""

DEARER, CHEAPER, MOST_PRICE = 1.2, 0.95, 1000.0
"""Factors of the price of memory at each temperature, and its limit."""

ROUNDS = 16
"""Rounds at effort 1."""

HELD = 2000
"""Nodes beyond which there are fewer moves where live tensors count: each looks at all of them."""

MOST_COUNTS = 100_000_000
"""Flows times slots; 8 bytes each."""

#         BORDER SINGLE JUMP OPEN MERGE PASS SWAP TWICE
PUSHES = (0, 250, 60, 60, 20, 40, 6, 300)
OPENS = (0, 250, 120, 150, 50, 40, 6, 300)
SINGLES = (0, 550, 30, 20, 5, 40, 3, 500)


class Labels(NamedTuple):
    """A split as in `state`."""

    at: Ints
    """i64[c], label of each item."""
    slot: Ints
    """i64[S], slot at each position."""
    device: Ints
    """i64[S], accelerator of each slot."""


def split_of(items: BlockItems, labels: Labels) -> Invocations:
    """The blocks of labels, in the order of their positions."""
    odd = labels.at % 2 == 1
    used = distinct(labels.at[odd] // 2)
    number = np.full(len(labels.slot) + 1, POOL, dtype=np.int64)
    number[used] = np.arange(len(used))
    block = np.where(odd, number[labels.at // 2], POOL)
    return Invocations(items.devices[labels.device[labels.slot[used]]], block[items.label])


def labels_of(items: BlockItems, split: Invocations) -> Labels | None:
    """Labels of a split; None if it parts items, has a cycle, or too many blocks for a pass."""
    block = split.block[items.member_idx[items.member_ptr[:-1]]] if items.size else split.block
    if (block[items.label] != split.block).any():
        return None
    order = _line_up(items, split, block)
    if order is None:
        return None
    accelerator = place_of(items.devices, int(items.devices.max(initial=-1)) + 1)
    device = np.zeros(len(items.slot_late), dtype=np.int64)
    slot: list[int] = []
    position = np.zeros(len(split.device), dtype=np.int64)
    free = {late: np.flatnonzero(items.slot_late == late).tolist() for late in (0, 1)}
    for p, b in enumerate(order):
        held = items.late[block == b]
        if not len(held) or not free[int(held[0])]:
            return None
        s = free[int(held[0])].pop(0)
        slot.append(s)
        device[s] = accelerator[split.device[b]]
        position[b] = p
    rest = [s for s in range(len(device)) if s not in slot]
    for late in (0, 1):
        mine = items.slot_late == late
        most = int(mine.sum()) // max(len(items.devices), 1)
        taken = np.bincount(device[[s for s in slot if mine[s]]], minlength=len(items.devices))
        if (taken > most).any():
            return None
        left = np.repeat(np.arange(len(items.devices)), np.maximum(most - taken, 0))
        device[[s for s in rest if mine[s]]] = left[: sum(bool(mine[s]) for s in rest)]
    at = np.where(block >= 0, 2 * position[block] + 1 if len(position) else 0, 0)
    for i in range(items.size):
        if block[i] < 0:
            earlier = items.before_idx[items.before_ptr[i] : items.before_ptr[i + 1]]
            low = int(at[earlier].max(initial=0))
            at[i] = low + low % 2
    return Labels(at, np.array(slot + rest, dtype=np.int64), device)


def pooled_start(items: BlockItems) -> list[Labels]:
    """All in the pool, if the CPU supports everything."""
    slots = len(items.slot_late)
    if not items.pooled.all():
        return []
    return [Labels(np.zeros(items.size, dtype=np.int64), np.arange(slots), devices_of(items))]


def sliced_start(items: BlockItems, rng: np.random.Generator | None) -> Labels:
    """Greedy (2020 paper, Section 7): each accelerator takes what fits, in topological order.

    With `rng` slices of a random order, about equal in memory or time, on any accelerators.
    """
    line = line_of(items)
    return _sliced(items, line, _order(line, rng), rng)


class Line(NamedTuple):
    """Groups of items, to be ordered for both passes."""

    along: bool
    """The backward pass runs through the accelerators in the order of the forward pass."""
    part: Ints
    """i64[g], strongly connected component of each group."""
    after: list[list[int]]
    """Components directly after each."""


def line_of(items: BlockItems) -> Line:
    """Groups by the edges of both passes, in the direction that joins fewer of them."""
    groups = int(items.group.max(initial=-1)) + 1
    tail = np.repeat(np.arange(items.size), np.diff(items.after_ptr))
    head = items.after_idx
    inner = items.late[tail] == items.late[head]
    tail, head = tail[inner], head[inner]
    late = items.late[tail]
    best: Line | None = None
    for along in (False, True):
        a = items.group[np.where(late & (not along), head, tail)]
        b = items.group[np.where(late & (not along), tail, head)]
        part = components(np.arange(groups), a, b)
        first = by_first(part[items.group])
        part = first[part]
        if best is None or len(first) > len(best.after):
            after: list[list[int]] = [[] for _ in first]
            pairs = distinct(part[a] * max(len(first), 1) + part[b])
            for pair in pairs.tolist():
                x, y = divmod(pair, len(first))
                if x != y:
                    after[x].append(y)
            best = Line(along, part, after)
    return best or Line(False, np.zeros(0, dtype=np.int64), [])


def _order(line: Line, rng: np.random.Generator | None) -> Ints:
    """Groups in a topological order: the first ready one, or a random one, or the last ready."""
    count = len(line.after)
    waits = [0] * count
    for later in line.after:
        for y in later:
            waits[y] += 1
    ready = [x for x in range(count) if not waits[x]]
    deep = rng is not None and rng.integers(2) == 0
    place = np.zeros(count, dtype=np.int64)
    draws = rng.random(count).tolist() if rng is not None else None
    for done in range(count):
        if draws is None:
            k = ready.index(min(ready))
        else:
            k = int(draws[done] * len(ready))
            k = max(k, len(ready) - 2) if deep else k
        x = ready.pop(k)
        place[x] = done
        for y in line.after[x]:
            waits[y] -= 1
            if not waits[y]:
                ready.append(y)
    return np.argsort(place[line.part], kind="stable")


def _sliced(items: BlockItems, line: Line, order: Ints, rng: np.random.Generator | None) -> Labels:
    """Slots one after the other, until each is full, or (`rng`) has its share of a weight."""
    slots = len(items.slot_late)
    forward = int((items.slot_late == 0).sum())
    device = devices_of(items, along=line.along)
    groups = len(order)
    load = np.bincount(items.group, items.memory, groups)
    weight, cut = load, np.full(forward, np.inf)
    if rng is not None and forward:
        device = rng.permutation(len(items.devices))[device]
        if rng.integers(2) or not weight.any():
            quick = items.time.min(axis=0)
            weight = np.bincount(items.group, np.where(np.isfinite(quick), quick, 0.0), groups)
        finite = items.capacity[np.isfinite(items.capacity)]
        capacity = max(float(finite.mean()), 1e-300) if len(finite) else np.inf
        least = min(max(int(np.ceil(float(load.sum()) / capacity)), 1), forward)
        used = int(rng.integers(least, forward + 1))
        cut[:used] = float(weight.sum()) * np.arange(1, used + 1) / used
        cut[used - 1] = np.inf
    held = np.zeros(len(items.devices))
    turn = np.zeros(groups, dtype=np.int64)
    p, passed = 0, 0.0
    for g in order.tolist():
        while p < forward:
            full = rng is None and held[device[p]] + load[g] > items.capacity[device[p]]
            if not full and passed + 0.5 * weight[g] <= cut[p]:
                break
            p += 1
        turn[g] = p
        passed += weight[g]
        if p < forward:
            held[device[p]] += load[g]
    at = np.zeros(items.size, dtype=np.int64)
    for i in range(items.size):
        earlier = items.before_idx[items.before_ptr[i] : items.before_ptr[i + 1]]
        low = int(at[earlier].max(initial=0))
        p = int(turn[items.group[i]])
        wanted = 2 * p + int(p < forward)
        if items.late[i]:
            wanted = 2 * forward + (wanted if line.along else 2 * forward - wanted)
        at[i] = _fit(items, device, i, max(low, wanted))
    return Labels(at, np.arange(slots), device)


def _fit(items: BlockItems, device: Ints, i: int, label: int) -> int:
    """The first label from `label` on that an item may have; else the pool after it."""
    for found in range(label, 2 * len(device) + 1):
        if found % 2 == 0:
            if items.pooled[i]:
                return found
            continue
        s = found // 2
        if items.slot_late[s] == items.late[i] and np.isfinite(items.time[device[s], i]):
            return found
    return label + label % 2


def _line_up(items: BlockItems, split: Invocations, block: Ints) -> list[int] | None:
    """The blocks in an order in which they can run; None if they wait for each other."""
    blocks = len(split.device)
    vertex = np.where(block >= 0, block, blocks + np.arange(items.size))
    after: list[set[int]] = [set() for _ in range(blocks + items.size)]
    for i in range(items.size):
        for j in items.after_idx[items.after_ptr[i] : items.after_ptr[i + 1]].tolist():
            if vertex[i] != vertex[j]:
                after[int(vertex[i])].add(int(vertex[j]))
    last: dict[int, int] = {}
    for b, d in enumerate(split.device.tolist()):
        if d in last:
            after[last[d]].add(b)
        last[d] = b
    waits = [0] * len(after)
    for later in after:
        for v in later:
            waits[v] += 1
    ready = [v for v in range(len(after)) if not waits[v]]
    for v in ready:
        for w in sorted(after[v]):
            waits[w] -= 1
            if not waits[w]:
                ready.append(w)
    return [v for v in ready if v < blocks] if len(ready) == len(after) else None


class Round(NamedTuple):
    """A round of annealing; temperatures are relative to the latency of the start."""

    again: bool
    """From the best split, not from a fresh one."""
    hot: float
    cold: float
    mix: tuple[int, ...]
    """`BlockMemory.mix`."""
    price: float
    """Of memory, relative to the latency of the start, for a full capacity of excess."""


CYCLE = (
    Round(False, 0.03, 0.003, OPENS, 0.5),
    Round(False, 0.05, 0.0003, PUSHES, 1.0),
    Round(True, 0.01, 0.0002, PUSHES, 2.0),
    Round(False, 0.05, 0.0003, SINGLES, 1.0),
    Round(True, 0.02, 0.0002, SINGLES, 1.0),
    Round(False, 0.3, 0.001, OPENS, 1.0),
    Round(True, 0.03, 0.0003, OPENS, 1.0),
    Round(False, 0.05, 0.0003, PUSHES, 0.5),
)


def anneal_blocks(
    problem: LatencyProblem,
    *,
    start: Invocations | None = None,
    endless: bool = False,
    run: SearchContext = PLAIN,
) -> Invocations:
    """Search for a split into blocks with a small latency.

    Parameters
    ----------
    start
        A valid split never to fall behind.
    endless
        Search until `run` stops, from as many starts as that allows.
    run
        The result depends on nothing but seed, effort and start, unless it stops the search
        early.

    Raises
    ------
    InfeasibleError
        There is no split that fits.
    LimitError
        None was found, or there are too many flows and blocks.
    """
    items = block_items(problem)
    check_feasible(items)
    slots = len(items.devices) * problem.options.invocations * 2
    if slots * max(len(items.maker), slots) > MOST_COUNTS:
        raise LimitError(
            f"{len(items.maker)} flows and {slots} blocks are too many for annealing; coarsen "
            "first, or offer fewer devices"
        )
    best = _search(items, problem, start, endless, run)
    if best is None:
        raise LimitError("annealing found no split into blocks that fits; offer more memory")
    return best


def _search(
    items: BlockItems,
    problem: LatencyProblem,
    start: Invocations | None,
    endless: bool,
    run: SearchContext,
) -> Invocations | None:
    """Run the rounds; the best valid split, if any."""
    best: Invocations | None = None
    value = np.inf
    labels: Labels | None = None

    def offer(split: Invocations | None, found: Labels | None) -> None:
        nonlocal best, value, labels
        if split is not None:
            judged = valid_latency(problem, split)
            if judged < value * (1 - ROUNDING):
                best, value, labels = split, judged, found or labels_of(items, split)
                run.report_incumbent(split, value, "anneal")
                run.report_progress(value=value)

    offer(start, None)
    greedy = [sliced_start(items, None), *pooled_start(items)]
    for given in greedy:
        offer(split_of(items, given), given)
    ease = 4 if items.tied else 1
    moves = min(max(MOVES_PER_ITEM * items.size // ease, LEAST_MOVES), MOST_MOVES // ease)
    held = held_tensors(problem, items)
    fewer = 1.0 if held is None else min(HELD / len(held.node_item), 1.0)
    moves = max(int(moves * min(run.effort, fewer, 1.0)), 1)
    most = 4 * MOST_MOVES // ease
    rounds = MOST_ROUNDS if endless else max(int(np.ceil(ROUNDS * run.effort)), WAVE)
    rng = np.random.default_rng(run.seed)
    with ThreadPoolExecutor(WAVE) as pool:
        for first in range(0, rounds, WAVE):
            if run.stop():
                break
            run.report_progress(share=None if endless else first / rounds)
            tasks = []
            for number in range(first, min(first + WAVE, rounds)):
                how = CYCLE[number % len(CYCLE)]
                given = sliced_start(items, rng) if number else greedy[0]
                if how.again and labels is not None:
                    given = labels
                length = min(int(moves * GROWTH ** (number // len(CYCLE))), most)
                tasks.append((number, how, given, length))
            for found in pool.map(
                lambda t: _round(items, held, t[0], t[1], t[2], t[3], run), tasks
            ):
                if found is not None:
                    offer(split_of(items, found), found)
    return best


def _round(
    items: BlockItems,
    held: HeldTensors | None,
    number: int,
    how: Round,
    given: Labels,
    moves: int,
    run: SearchContext,
) -> Labels | None:
    """Anneal once; the labels of the best valid split that was seen, if any."""
    state = new_state(items, given.at, given.slot, given.device)
    search: BlockAnnealing = new_annealing(items, run.seed * MOST_ROUNDS + number, how.mix)
    scale = max(latency(items, state), 1e-300)
    price, over = how.price, excess(items, state)
    if held is not None:  # other rounds run beside
        held = held._replace(change=held.change.copy(), marked=held.marked.copy())
    for step in range(STEPS):
        if step % (STEPS // 4) == 0 and np.isfinite(search.value[0]):
            scale = search.value[0]
        # Excess memory gets dearer while there is some, so that it goes in the end.
        price = min(max(price * (DEARER if over > 0.0 else CHEAPER), 0.2 * how.price), MOST_PRICE)
        search.price[:] = (price * scale, 0.01 * price * scale, 0.2 * scale)
        temperature = scale * how.hot * (how.cold / how.hot) ** ((step + 0.5) / STEPS)
        share = moves * (step + 1) // STEPS - moves * step // STEPS
        if held is None:
            anneal_step(items, state, search, temperature, share)
            over = excess(items, state)
        else:
            over = anneal_held(items, state, search, held, temperature, share)
        if run.stop():
            break
    if not np.isfinite(search.value[0]):
        return None
    return Labels(search.best_at, search.best_slot, search.best_device)
