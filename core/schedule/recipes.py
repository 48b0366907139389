"""Schedules with a name: recipes for the order of blocks on every device, and their rates.

    sequential        one micro-batch after the other
    gpipe             all forward passes, then all backward passes (Huang et al. 2019)
    1f1b              some forward passes to warm up, then forward and backward in turn
                      (PipeDream-flush, Narayanan et al. 2021; DAPPLE, Fan et al. 2021)
    1f1b+             1f1b where stages on several devices are put next to the stage beside them
                      (Tessel, section VI.A)
    interleaved-1f1b  1f1b with several stages on each device (Megatron-LM, Narayanan et al. 2021)
    chimera           two chains in opposite directions, groups of micro-batches one after
                      another (Chimera with direct concatenation, Li and Hoefler 2021)
    zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipev
                      split backward passes, see `core.schedule.zero_bubble`
    inference         forward passes alone: micro-batches in order, the latest stage first

A recipe gives every block of every micro-batch a *rank*; each device runs its blocks by rank, as
early as that allows. Ranks do not depend on times or limits of memory. Chains of stages are derived
from the waits of blocks.
Placements without backward blocks run as `inference` under every name but those of `SPLIT`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.methods.schedules import RECIPES
from dnnp.core.model.errors import LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints, connected, place_of
from dnnp.core.model.schedule import Placement
from dnnp.core.schedule.problem import ScheduleProblem, problem_of, span_of
from dnnp.core.schedule.starts import Arcs, left_shift, max_cycle_ratio, merged
from dnnp.core.schedule.transfers import without_transfers


class Stage(NamedTuple):
    """A position in a chain of stages: blocks on the same units; weight -1 if there is none."""

    forward: int
    backward: int
    weight: int = -1


def block_order(placement: Placement) -> list[int]:
    """Blocks, each after all that it waits for."""
    waits = {i: [w.block for w in block.after] for i, block in enumerate(placement.blocks)}
    return list(TopologicalSorter(waits).static_order())


def levels(placement: Placement) -> Ints:
    """Most blocks that come one after another before each block; i64[k]."""
    level = np.zeros(len(placement.blocks), dtype=np.int64)
    for i in block_order(placement):
        before = [level[w.block] for w in placement.blocks[i].after]
        level[i] = max(before) + 1 if before else 0
    return level


def only_chain(placement: Placement, name: str) -> list[Stage]:
    """The stages of a placement that is one chain; see `chain_of`."""
    return chain_of(placement, range(len(placement.blocks)), name)


def chain_of(placement: Placement, part: Iterable[int], name: str) -> list[Stage]:
    """The stages that blocks form, first stage first.

    Forward blocks wait for each other one by one, backward blocks do so the other way round on
    the same units; a weight block waits for the backward block of its stage.

    Raises UsageError: they do not; the reason names the schedule that needs it.
    """
    blocks = placement.blocks
    of_kind: dict[str, list[int]] = {"forward": [], "backward": [], "weight": []}
    members = set(part)
    for i in block_order(placement):
        if i in members:
            of_kind[blocks[i].kind].append(i)
    for kind in ("forward", "backward"):
        for a, b in pairwise(of_kind[kind]):
            if all(w.block != a for w in blocks[b].after):
                raise UsageError(
                    f"{name} needs stages in a chain, but {kind} block '{blocks[b].name}' does "
                    f"not wait for '{blocks[a].name}'"
                )
    forward, backward = of_kind["forward"], of_kind["backward"][::-1]
    if len(forward) != len(backward):
        raise UsageError(
            f"{name} needs a backward block for each forward block: there are {len(backward)} "
            f"for {len(forward)}"
        )
    for f, b in zip(forward, backward, strict=True):
        if blocks[f].homes != blocks[b].homes:
            raise UsageError(
                f"{name} needs backward block '{blocks[b].name}' on the devices of forward "
                f"block '{blocks[f].name}'"
            )
    if any(blocks[w.block].kind != "forward" for f in forward for w in blocks[f].after):
        raise UsageError(f"{name} needs forward blocks that wait for forward blocks only")
    weight = _weights(placement, of_kind["weight"], name)
    return [Stage(f, b, weight.get(b, -1)) for f, b in zip(forward, backward, strict=True)]


def _weights(placement: Placement, found: list[int], name: str) -> dict[int, int]:
    """The weight block of each backward block that has one."""
    blocks = placement.blocks
    weight: dict[int, int] = {}
    for i in found:
        before = {w.block for w in blocks[i].after if blocks[w.block].kind == "backward"}
        same = [b for b in before if blocks[b].homes == blocks[i].homes]
        if len(before) != 1 or not same or same[0] in weight:
            raise UsageError(
                f"{name} needs weight blocks that each wait for the backward block of their "
                f"stage; '{blocks[i].name}' does not"
            )
        weight[same[0]] = i
    if any(blocks[w.block].kind == "weight" for block in blocks for w in block.after):
        raise UsageError(f"{name} needs weight blocks that nothing waits for")
    return weight


def parts(placement: Placement) -> list[list[int]]:
    """Blocks that wait for each other, however far apart; parts by their first block."""
    waits = [(i, wait.block) for i, block in enumerate(placement.blocks) for wait in block.after]
    tail, head = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    label = connected(len(placement.blocks), tail, head)
    return [
        np.flatnonzero(label == part).tolist() for part in range(int(label.max(initial=-1)) + 1)
    ]


def one_stage_each(placement: Placement, chain: Sequence[Stage], name: str) -> None:
    """Refuse a chain where a device has several stages."""
    user: dict[int, int] = {}
    for stage in chain:
        for home in placement.blocks[stage.forward].homes:
            for d in home:
                if d in user:
                    a, b = (placement.blocks[i].name for i in (user[d], stage.forward))
                    raise UsageError(
                        f"{name} needs each stage on devices of its own; {placement.units[d].name} "
                        f"runs '{a}' and '{b}'"
                    )
                user[d] = stage.forward


def shared_stages(placement: Placement, chain: Sequence[Stage]) -> tuple[list[int], list[int]]:
    """Positions of stages on devices of their own, one or a group, and of shared ones.

    A stage is shared if its devices are a proper superset of those of another stage.
    """
    homes = [
        frozenset(d for part in placement.blocks[stage.forward].homes for d in part)
        for stage in chain
    ]
    shared = [s for s, home in enumerate(homes) if any(other < home for other in set(homes))]
    return [s for s in range(len(chain)) if s not in set(shared)], shared


def opposite_chains(placement: Placement, name: str) -> list[list[Stage]]:
    """The two chains; the devices of one are those of the other backwards."""
    found = [chain_of(placement, part, name) for part in parts(placement)]
    homes = [[placement.blocks[stage.forward].homes for stage in chain] for chain in found]
    if len(found) != 2 or homes[0] != homes[1][::-1] or any(len(h) > 1 for h in homes[0]):
        raise UsageError(f"{name} needs two chains of stages in opposite directions")
    if len(found[0]) % 2:
        raise UsageError(f"{name} needs an even number of stages, not {len(found[0])}")
    one_stage_each(placement, found[0], name)
    return found


def fill(rank: Ints, stage: Stage, turn: Ints, warm: int, lag: int) -> None:
    """`warm` forwards, then backward, weight (`lag` later) and forward in turn."""
    set_ranks(rank, stage, 3 * (turn - warm) + 2, 3 * turn, 3 * lag + 1)


def set_ranks(rank: Ints, stage: Stage, forward: Ints, backward: Ints, lag: int = 1) -> None:
    """Ranks of the blocks of a stage; that of the weight block is `lag` after the backward's."""
    rank[:, stage.forward] = forward
    rank[:, stage.backward] = backward
    if stage.weight >= 0:
        rank[:, stage.weight] = backward + lag


SPLIT = ("zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev")
"""Recipes for split backward passes."""

MOST_BLOCKS = 20_000_000
"""Blocks of all micro-batches; more would fill the memory."""


@dataclass(frozen=True)
class Classic:
    """A finite schedule of N micro-batches made by a recipe."""

    problem: ScheduleProblem
    """Of N micro-batches; its limits of memory may be exceeded."""
    orders: tuple[Ints, ...]
    """Blocks of the problem on each unit, in order."""
    sequence: Ints
    """i64[b], all blocks in an order that agrees with those of the units and with all waits."""
    start: Floats
    """f64[b]; the earliest that the orders allow, except for `sequential`."""


def classic(placement: Placement, name: str, micro_batches: int) -> Classic:
    """The schedule of a recipe.

    Transfer blocks come right after the blocks that make their results, by time (Tessel, IV-D): a
    device sends or receives before it starts its next block.

    Raises
    ------
    UsageError
        No such name, fewer than one micro-batch, or the recipe does not fit the placement.
    LimitError
        More blocks than memory holds.
    """
    if name not in RECIPES:
        raise UsageError(f"no schedule is called '{name}': {', '.join(RECIPES)}")
    if micro_batches < 1:
        raise UsageError(f"a schedule needs at least 1 micro-batch, not {micro_batches}")
    k = len(placement.blocks)
    if micro_batches * k > MOST_BLOCKS:
        raise LimitError(f"{micro_batches} micro-batches of {k} blocks are too many to schedule")
    kinds = {block.kind for block in placement.blocks}
    if name == "inference" and kinds & {"backward", "weight"}:
        raise UsageError("inference has forward blocks only; this placement has backward blocks")
    if name == "sequential":
        return sequential(placement, micro_batches)
    recipe = RECIPES[name].function()
    if "backward" not in kinds and name not in SPLIT:
        recipe = inference
    core, kept = without_transfers(placement)
    problem = problem_of(core, micro_batches)
    rank = recipe(core, micro_batches).ravel()
    orders = by_rank(problem, rank)
    sequence = merged(problem, orders)
    start = left_shift(problem, sequence)
    if len(core.blocks) < k:
        return _with_moves(placement, kept, sequence, start)
    return Classic(problem, orders, sequence, start)


def by_rank(problem: ScheduleProblem, rank: Ints) -> tuple[Ints, ...]:
    """Blocks of each unit by rank; rank i64[b]."""
    return tuple(mine[np.argsort(rank[mine], kind="stable")] for mine in problem.by_unit())


# Recipes (`core.methods`): rank of block i of micro-batch n, i64[N, k]


def inference(placement: Placement, count: int) -> Ints:
    """In turn n + l micro-batch n runs its blocks of level l.

    Blocks of one turn do not wait for each other: those on most devices come first, so that fewest
    others wait, then those of the last level.
    """
    return _turns(placement, levels(placement), count)


def gpipe(placement: Placement, count: int) -> Ints:
    """Turns of forward blocks, as in `inference`, then turns of all others."""
    late = np.array([block.kind != "forward" for block in placement.blocks])
    for i, block in enumerate(placement.blocks):
        if not late[i] and any(late[w.block] for w in block.after):
            raise UsageError(f"gpipe: forward block '{block.name}' waits for a backward block")
    level = levels(placement)
    rank = _turns(placement, level, count)
    return rank + late * (int(rank.max(initial=0)) + 1)


def _turns(placement: Placement, level: Ints, count: int) -> Ints:
    """Ranks of turns; see `inference`."""
    k = len(level)
    wide = np.array([max(map(len, block.homes)) for block in placement.blocks])
    within = place_of(np.lexsort((np.arange(k), -level, -wide)))
    return (np.arange(count)[:, None] + level[None, :]) * k + within[None, :]


def one_f_one_b(placement: Placement, count: int) -> Ints:
    """Warm-up of PipeDream: as many forward passes as the devices from here on need in flight."""
    chain = only_chain(placement, "1f1b")
    one_stage_each(placement, chain, "1f1b")
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    devices = 0
    for stage in reversed(chain):
        homes = len(placement.blocks[stage.forward].homes)
        devices += homes
        fill(rank, stage, np.arange(count) // homes, -(-devices // homes), 0)
    return rank


def interleaved(placement: Placement, count: int) -> Ints:
    """Megatron-LM: groups of D micro-batches run one chunk of stages after the other.

    A last group that is not full keeps the order of a full one.
    """
    devices, chunks = interleaved_devices(placement)
    chain = only_chain(placement, "interleaved-1f1b")
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    group, place = np.divmod(np.arange(count), devices)
    for s, stage in enumerate(chain):
        chunk, d = divmod(s, devices)
        forward = (group * chunks + chunk) * devices + place
        backward = (group * chunks + chunks - 1 - chunk) * devices + place
        # With one chunk this is 1f1b; else the first backward pass is further away.
        warm = devices - d if chunks == 1 else 2 * (devices - d - 1) + (chunks - 1) * devices + 1
        set_ranks(rank, stage, 3 * (forward - warm) + 2, 3 * backward)
    return rank


def interleaved_devices(placement: Placement) -> tuple[int, int]:
    """Number of devices, and of stages on each."""
    chain = only_chain(placement, "interleaved-1f1b")
    homes = [placement.blocks[stage.forward].homes for stage in chain]
    devices = next((s for s in range(1, len(homes)) if homes[s] == homes[0]), len(homes))
    one_stage_each(placement, chain[:devices], "interleaved-1f1b")
    regular = all(homes[s] == homes[s % devices] for s in range(len(homes)))
    if not regular or len(homes) % devices or any(len(home) > 1 for home in homes):
        raise UsageError(
            "interleaved-1f1b needs as many stages on each device, which the chain of stages "
            "visits in the same order again and again"
        )
    return devices, len(homes) // devices


def _slots(depth: int, d: int, turn: Ints) -> tuple[Ints, Ints]:
    """Slots of the passes of stage d of 1f1b of micro-batch `turn`."""
    return d + 2 * turn, 2 * depth - 1 - d + 2 * turn


def chimera(placement: Placement, count: int) -> Ints:
    """Groups of half as many pairs as stages; in a group both chains run 1f1b.

    Where all passes take one slot of time the two chains never meet, nor do groups that start 2
    slots for each stage apart (Chimera, direct concatenation). Devices run their blocks in the
    order of these slots.
    """
    chains = opposite_chains(placement, "chimera")
    depth = len(chains[0])
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    group, place = np.divmod(np.arange(count), depth // 2)
    for chain in chains:
        for d, stage in enumerate(chain):
            forward, backward = _slots(depth, d, place + depth * group)
            set_ranks(rank, stage, 2 * forward, 2 * backward)
    return rank


def one_f_one_b_plus(placement: Placement, count: int) -> Ints:
    """1f1b where every pass takes one slot, and shared stages run between two slots.

    The forward pass of a shared stage runs before the slot of the stage after it, its backward
    pass after that slot; at the end of the chain the stage before it counts.
    """
    chain = only_chain(placement, "1f1b+")
    own, shared = shared_stages(placement, chain)
    one_stage_each(placement, [chain[s] for s in own], "1f1b+")
    if not shared:
        return one_f_one_b(placement, count)
    if not own:
        raise UsageError("1f1b+ needs stages on devices of their own")
    if any(len(placement.blocks[stage.forward].homes) > 1 for stage in chain):
        raise UsageError("1f1b+ knows no stages whose devices take turns")
    rank = np.zeros((count, len(placement.blocks)), dtype=np.int64)
    width = 8 * len(chain)
    for s, stage in enumerate(chain):
        beside = s if s in own else min((t for t in own if t > s), default=own[-1])
        forward, backward = _slots(len(own), own.index(beside), np.arange(count))
        # Stages before their neighbour come before its slot on the way there, after it on the
        # way back, in chain order.
        away = 4 * (s - beside)
        set_ranks(rank, stage, width * forward + away, width * backward - away)
    return rank


def sequential(placement: Placement, count: int, *, compiled: bool = True) -> Classic:
    """One micro-batch after the other; `compiled` as in `left_shift`."""
    turns = min(placement.turns, count)
    level = levels(placement)
    k = len(placement.blocks)
    order = np.lexsort((np.arange(k), level))
    alone_start, spans = [], []
    for n in range(turns):
        blocks = (replace(b, homes=(b.homes[n % len(b.homes)],)) for b in placement.blocks)
        alone = problem_of(replace(placement, blocks=tuple(blocks)), 1)
        alone_start.append(left_shift(alone, order, compiled=compiled))
        spans.append(span_of(alone, alone_start[-1]))
    turn = np.arange(count) % turns
    begin = np.concatenate([[0.0], np.cumsum(np.array(spans)[turn])[:-1]])
    start = (np.array(alone_start)[turn] + begin[:, None]).ravel()
    problem = problem_of(placement, count)
    sequence = (np.arange(count)[:, None] * k + order[None, :]).ravel()
    rank = place_of(sequence)
    return Classic(problem, by_rank(problem, rank), sequence, start)


def _with_moves(placement: Placement, kept: Ints, sequence: Ints, start: Floats) -> Classic:
    """Insert transfers into a schedule: each at the end of the block that makes its result."""
    k = len(placement.blocks)
    count = len(start) // len(kept)
    problem = problem_of(placement, count)
    time, place = np.zeros((count, k)), np.zeros((count, k))
    time[:, kept] = start.reshape(count, -1)
    place[:, kept] = place_of(sequence).reshape(count, -1)
    for i in block_order(placement):
        if placement.blocks[i].kind == "transfer":
            place[:, i] = -1.0
            for w in placement.blocks[i].after:
                end = time[:, w.block] + placement.blocks[w.block].time_s + w.delay_s
                time[:, i] = np.maximum(time[:, i], end)
                place[:, i] = np.maximum(place[:, i], place[:, w.block] + 1 / (k + 1))
    order = np.lexsort((place.ravel(), time.ravel()))
    rank = place_of(order)
    return Classic(problem, by_rank(problem, rank), order, left_shift(problem, order))


GROUPS = 4
"""Groups of micro-batches with orders that must be equal to count as repeating."""

MOST_TURNS = 12
"""Groups after which orders with transfers, which depend on times, may repeat."""


def classic_rate(placement: Placement, name: str) -> float:
    """Time for each micro-batch in the limit; errors as `classic`.

    Where the orders of the units repeat, that is the largest ratio of time to micro-batches over
    all cycles of blocks that wait for each other (Reiter 1968; maximum cycle ratio). For `gpipe`,
    and where transfers have no repeating order, it is the difference of two makespans, of 2 N and
    of N micro-batches.
    """
    group = group_of(placement, name)
    if name == "sequential":
        made = classic(placement, name, group)
        return span_of(made.problem, made.start) / group
    kinds = {block.kind for block in placement.blocks}
    depth = int(levels(placement).max(initial=0))
    # No recipe works on micro-batches further apart than this: two for each device that a chain
    # visits, or one for each turn (`inference`).
    ahead = sum(len(b.homes) for b in placement.blocks) + 1
    if name == "gpipe" or "backward" not in kinds:
        ahead = depth + 1
    ahead = -(-ahead // group) * group
    if name != "gpipe" or "backward" not in kinds:
        most = MOST_TURNS if "transfer" in kinds else 1
        made = classic(placement, name, 2 * ahead + GROUPS * most * group)
        for turns in range(1, most + 1):
            steady = _steady(made, turns * group, ahead)
            if steady is not None:
                least = float(made.problem.load().max()) / made.problem.unroll
                size = turns * group
                eps = ROUNDING * max(float(steady.weight.sum()), least * size)
                period, _ = max_cycle_ratio(steady, size * made.problem.k, least * size, eps)
                return period / size
    spans = []
    for count in (2 * ahead, 4 * ahead):
        made = classic(placement, name, count)
        spans.append(span_of(made.problem, made.start))
    return (spans[1] - spans[0]) / (2 * ahead)


def group_of(placement: Placement, name: str) -> int:
    """Micro-batches after which the orders of a recipe repeat; errors as `classic`."""
    turns = placement.turns
    core, _ = without_transfers(placement)
    if all(block.kind != "backward" for block in core.blocks):
        return turns
    if name == "chimera":
        return math.lcm(turns, len(opposite_chains(core, "chimera")[0]) // 2)
    if name == "interleaved-1f1b":
        return math.lcm(turns, interleaved_devices(core)[0])
    return turns


def _steady(made: Classic, group: int, ahead: int) -> Arcs | None:
    """Waits between the blocks of groups in the middle; a lag is a group later.

    None if they differ from one group to the next.
    """
    problem = made.problem
    size = group * problem.k
    tail = np.concatenate([problem.tail, *(order[:-1] for order in made.orders)])
    head = np.concatenate([problem.head, *(order[1:] for order in made.orders)])
    time = problem.time[tail]
    time[: len(problem.delay)] += problem.delay
    found = []
    for first in range(ahead * problem.k, ahead * problem.k + GROUPS * size, size):
        mine = (tail >= first) & (tail < first + size)
        between = (head[mine] - first) // size
        rows = np.stack([(tail[mine] - first) % size, (head[mine] - first) % size, between])
        order = np.lexsort((time[mine], *rows))
        found.append((rows[:, order], time[mine][order]))
    rows, length = found[0]
    for other, times in found[1:]:
        if other.shape != rows.shape or (other != rows).any() or (times != length).any():
            return None
    return Arcs(rows[0], rows[1], length, -rows[2])
