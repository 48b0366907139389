"""Least latency of a split into blocks, by annealing labels (`state`), in a portfolio.

Rounds go through sets of moves, from greedy and random starts and from the best split so far.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import Invocations, LatencyProblem
from dnnp.core.cost.load_formula import MARGIN, ROUNDING
from dnnp.core.latency.blocks.items import BlockItems, block_items
from dnnp.core.latency.blocks.search import BlockMemory, anneal_step, new_search
from dnnp.core.latency.blocks.starts import (
    Labels,
    filled_start,
    labels_of,
    pooled_start,
    random_start,
    split_of,
)
from dnnp.core.latency.blocks.state import Fixed, fixed_of, new_state
from dnnp.core.latency.blocks.update import excess, latency
from dnnp.core.model.errors import DnnpError, InfeasibleError, LimitError
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.model.text import shown_bytes

WAVE = 2
"""Rounds that run at the same time, from what was best before them; for any number of threads."""

MOST_ROUNDS = 1 << 20

STEPS = 80
"""Temperatures of a round."""

MOVES_PER_ITEM, LEAST_MOVES, MOST_MOVES = 250, 3000, 300_000
"""Moves of one of the first rounds; a quarter where items are tied, so that more follow each."""

GROWTH = 1.6
"""How much longer a round is than that of the cycle before, up to 4 * MOST_MOVES."""

DEARER, CHEAPER, MOST_PRICE = 1.2, 0.95, 1000.0
"""What the price of memory is multiplied with at each temperature, and where it ends."""

ROUNDS = 16
"""Rounds at effort 1."""


MOST_COUNTS = 100_000_000
"""Flows times slots; 8 bytes each."""


class Round(NamedTuple):
    """How one round goes; temperatures are relative to the latency of the start."""

    again: bool
    """From the best split, not from a fresh one."""
    hot: float
    cold: float
    mix: tuple[int, ...]
    """`BlockMemory.mix`."""
    price: float
    """Of memory, relative to the latency of the start, for a full capacity of excess."""


#         BORDER SINGLE JUMP OPEN MERGE PASS SWAP TWICE
PUSHES = (0, 250, 60, 60, 20, 40, 6, 300)
OPENS = (0, 250, 120, 150, 50, 40, 6, 300)
SINGLES = (0, 550, 30, 20, 5, 40, 3, 500)

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
    run: Run = PLAIN,
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
    check_feasible(problem, items)
    slots = len(items.devices) * problem.options.invocations * 2
    if slots * max(len(items.maker), slots) > MOST_COUNTS:
        raise LimitError(
            f"{len(items.maker)} flows and {slots} blocks are too many for annealing; coarsen "
            "first, or offer fewer devices"
        )
    fixed = fixed_of(items, problem.options.invocations)
    best = _search(items, fixed, problem, start, endless, run)
    if best is None:
        raise LimitError("annealing found no split into blocks that fits; offer more memory")
    return best


def check_feasible(problem: LatencyProblem, items: BlockItems) -> None:
    """Raise InfeasibleError where an item fits nowhere, or all together do not fit."""
    count, devices = items.count, len(items.devices)
    groups = int(items.group.max(initial=-1)) + 1
    size = np.bincount(items.group, items.memory, groups)
    runs = np.ones((devices, groups), dtype=np.bool_)
    pooled = np.ones(groups, dtype=np.bool_)
    for d in range(devices):
        np.logical_and.at(runs[d], items.group, np.isfinite(items.time[d]))
        runs[d] &= size <= items.capacity[d]
    np.logical_and.at(pooled, items.group, items.pooled)
    for i in range(count):
        g = int(items.group[i])
        if not pooled[g] and not runs[:, g].any():
            raise InfeasibleError(
                f"infeasible: no device can run what belongs together with task "
                f"{items.member_idx[items.member_ptr[i]]} ({shown_bytes(size[g], 6)})"
            )
    bound = float(size[~pooled].sum())
    room = float(items.capacity.sum())
    if bound > room * (1 + MARGIN):
        raise InfeasibleError(
            f"infeasible: the tasks that no CPU runs need {shown_bytes(bound, 6)}, the "
            f"accelerators have {shown_bytes(room, 6)} together"
        )


def judge(problem: LatencyProblem, split: Invocations) -> float:
    """Latency of a split; inf if it is not valid."""
    try:
        return problem.value(split)
    except DnnpError:
        return np.inf


def _search(
    items: BlockItems,
    fixed: Fixed,
    problem: LatencyProblem,
    start: Invocations | None,
    endless: bool,
    run: Run,
) -> Invocations | None:
    """Run the rounds; the best valid split, if any."""
    best: Invocations | None = None
    value = np.inf
    labels: Labels | None = None

    def offer(split: Invocations | None, found: Labels | None) -> None:
        nonlocal best, value, labels
        if split is not None:
            judged = judge(problem, split)
            if judged < value * (1 - ROUNDING):
                best, value, labels = split, judged, found or labels_of(items, fixed, split)
                run.keep(split, value, "anneal")
                run.stands(value=value)

    offer(start, None)
    greedy = [filled_start(items, fixed), *pooled_start(items, fixed)]
    for given in greedy:
        offer(split_of(items, given), given)
    ease = 4 if items.tied else 1
    moves = min(max(MOVES_PER_ITEM * items.count // ease, LEAST_MOVES), MOST_MOVES // ease)
    moves = max(int(moves * min(run.effort, 1.0)), 1)
    most = 4 * MOST_MOVES // ease
    rounds = MOST_ROUNDS if endless else max(int(np.ceil(ROUNDS * run.effort)), WAVE)
    rng = np.random.default_rng(run.seed)
    with ThreadPoolExecutor(WAVE) as pool:
        for first in range(0, rounds, WAVE):
            if run.stop():
                break
            run.stands(share=None if endless else first / rounds)
            tasks = []
            for number in range(first, min(first + WAVE, rounds)):
                how = CYCLE[number % len(CYCLE)]
                given = random_start(items, fixed, rng) if number else greedy[0]
                if how.again and labels is not None:
                    given = labels
                length = min(int(moves * GROWTH ** (number // len(CYCLE))), most)
                tasks.append((number, how, given, length))
            for found in pool.map(
                lambda t: _round(items, fixed, t[0], t[1], t[2], t[3], run), tasks
            ):
                if found is not None:
                    offer(split_of(items, found), found)
    return best


def _round(
    items: BlockItems,
    fixed: Fixed,
    number: int,
    how: Round,
    given: Labels,
    moves: int,
    run: Run,
) -> Labels | None:
    """Anneal once; the labels of the best valid split that was seen, if any."""
    state = new_state(fixed, given.at, given.slot, given.device)
    search: BlockMemory = new_search(
        fixed, run.seed * MOST_ROUNDS + number, how.mix, tied=items.tied
    )
    scale = max(latency(fixed, state), 1e-300)
    price = how.price
    for step in range(STEPS):
        if step % (STEPS // 4) == 0 and np.isfinite(search.value[0]):
            scale = search.value[0]
        # Excess memory gets dearer while there is some, so that it goes in the end.
        over = excess(fixed, state) > 0.0
        price = min(max(price * (DEARER if over else CHEAPER), 0.2 * how.price), MOST_PRICE)
        search.price[:] = (price * scale, 0.01 * price * scale, 0.2 * scale)
        temperature = scale * how.hot * (how.cold / how.hot) ** ((step + 0.5) / STEPS)
        share = moves * (step + 1) // STEPS - moves * step // STEPS
        anneal_step(fixed, state, search, temperature, share)
        if run.stop():
            break
    if not np.isfinite(search.value[0]):
        return None
    return Labels(search.best_at, search.best_slot, search.best_device)
