"""Splits by annealing: without order, or as a pipeline.

Rounds of annealing (`dnnp.core.split.annealing.sweep`), each from hot to cold, two at a time: the
first from the split that is given, then in turn from other splits and, less hot, from the best one.
The best split of all rounds that fits is returned. A pipeline keeps its order throughout: an item
moves between the last stage it reads from and the first one that reads it, or pushes what is in its
way along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import LinearizedItems, validity_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import offered
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Ints, csr
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.annealing.state import (
    AnnealArrays,
    Live,
    anneal_arrays,
    live_of,
    new_search,
    new_state,
    paths_of,
    set_reference,
)
from dnnp.core.split.annealing.sweep import exchange, sweep

LEAST_WORK, MOST_WORK = 20_000, 30_000_000
"""Pins that one round visits, at least and at most."""

WAVE = 2
"""Rounds that run at the same time, from what was best before them; for any number of threads."""

MOST_ROUNDS = 1 << 20

EXCHANGES = 4
"""Pairs of devices of different classes that may change places, at each temperature."""

LEAST_STEPS, MOST_STEPS = 20, 100
"""Temperatures of a round; each costs a look at the whole problem."""

MAX_COUNTS = 200_000_000
"""Nets times devices; 4 bytes each."""


class Round(NamedTuple):
    """Parameters of one round."""

    again: bool
    """From the best split, not from a random one."""
    hot: float
    cold: float
    mix: tuple[int, int, int, int]
    """`Search.mix`."""


@dataclass(frozen=True)
class Schedule:
    """The rounds, and their parameters."""

    rounds: int
    """Rounds at effort 1; fewer and longer ones where a round is cut to MOST_WORK."""
    least_rounds: int
    """Rounds at effort 1 in any case."""
    work_per_pin: int
    """Pins that a round visits, per pin of the problem."""
    given: Round
    """The first round, where a split is given."""
    cycle: tuple[Round, ...]


FREE = Schedule(
    64, 8, 15_000,
    Round(True, 0.3, 0.01, (20, 10, 10, 4)),
    (
        Round(False, 1.0, 0.003, (20, 10, 10, 4)),
        Round(True, 0.1, 0.01, (20, 40, 10, 5)),
        Round(False, 1.0, 0.003, (20, 40, 10, 5)),
        Round(True, 0.3, 0.01, (20, 10, 10, 4)),
    ),
)  # fmt: skip
WARM = Schedule(
    8, 4, 50_000,
    Round(True, 0.004, 0.0005, (5, 50, 0, 2)),
    (
        Round(True, 0.01, 0.0005, (5, 50, 0, 2)),
        Round(True, 0.004, 0.0005, (20, 50, 0, 2)),
    ),
)  # fmt: skip
ORDERED = Schedule(
    8, 4, 50_000,
    Round(True, 0.05, 0.001, (5, 50, 0, 2)),
    (
        Round(False, 0.2, 0.001, (20, 50, 0, 2)),
        Round(True, 0.02, 0.001, (5, 50, 0, 2)),
        Round(True, 0.05, 0.001, (20, 50, 0, 2)),
        Round(True, 0.03, 0.001, (5, 50, 0, 3)),
    ),
)  # fmt: skip


def anneal(
    problem: SplitProblem,
    *,
    ordered: bool = False,
    convex: bool = False,
    warm: bool = False,
    start: Sequence[Block] | None = None,
    run: SearchContext = PLAIN,
) -> list[Block]:
    """Split by annealing, as a pipeline or without regard to order.

    Blocks are not replicated. Nodes of a block run in the graph's order. The result depends on
    nothing else of `run` but its seed and effort, unless it is stopped early.

    Parameters
    ----------
    ordered
        Keep the order of a pipeline; else look at all splits.
    convex
        Let no path leave a stage and come back to it.
    warm
        Stay near the split to start from; for pipelines only.
    start
        A split to start from and, if it fits without replicas, never to fall behind. It must be
        in pipeline order if `ordered`, and convex if `convex`.

    Raises
    ------
    UsageError
        Devices in clusters.
    InfeasibleError
        No split that fits was found.
    LimitError
        Too many devices for so many tensors.
    """
    if any(d.cluster_size for d in problem.devices):
        raise UsageError("annealing knows no clusters of devices; --method auto does")
    items = problem.items if ordered else problem.free_items
    line = problem.line(items)
    options = problem.options
    label = np.argsort(items.order)[items.label]  # an item is named by its position
    slots = np.repeat(np.arange(len(line.devices)), [d.count for d in line.devices])
    if line.nets.net_count * len(slots) > MAX_COUNTS:
        raise LimitError(
            f"{line.nets.net_count} tensors and {len(slots)} devices are too many for annealing; "
            "coarsen first, or offer fewer devices"
        )
    paths = paths_of(problem.graph, label) if convex else None
    arrays = anneal_arrays(line, options, ordered=ordered, paths=paths)
    if not arrays.allowed.any(axis=0).all():
        raise _unfit(line)
    if not np.isfinite(arrays.costs.capacity).any():
        options = replace(options, memory_model="sum")  # spares looking at peaks
    given = None if start is None else _placed(label, line, slots, start, ordered=ordered)
    schedule = (WARM if warm else ORDERED) if ordered else FREE
    names = {d.name: d for d in problem.devices}

    def blocks_of(found: Placement) -> list[Block]:
        ptr, members = csr(found.place[label], np.arange(len(label)), len(slots))
        used = np.split(members, ptr[1:-1])
        return [
            Block(nodes[np.argsort(problem.graph.rank[nodes])], names[line.devices[kind].name])
            for nodes, kind in zip(used, found.kind.tolist(), strict=True)
            if len(nodes)
        ]

    def fresh(rng: np.random.Generator) -> Placement | None:
        if not (ordered or convex):
            return _random(rng, arrays)
        found = _even(rng, arrays)
        if found is None or ordered:
            return found
        kept = validity_of(problem.graph, found.place[label], len(slots)) != "free"
        return found if kept else None

    def keep(found: Placement) -> None:
        blocks = blocks_of(found)
        try:
            run.report_incumbent(blocks, problem.value(blocks), "anneal")
        except InfeasibleError:  # peaks depend on the order of a stage's nodes
            return

    best = _search(
        arrays,
        lambda: live_of(problem.graph, label, len(slots), options),
        schedule,
        given,
        fresh,
        keep,
        run,
    )
    if best is None:
        raise _unfit(line)
    return blocks_of(best)


class Placement(NamedTuple):
    """The device of each item, and the class of each device."""

    place: Ints
    """i64[n]."""
    kind: Ints
    """i64[D]."""


def _search(
    arrays: AnnealArrays,
    live: Callable[[], Live],
    schedule: Schedule,
    given: Placement | None,
    fresh: Callable[[np.random.Generator], Placement | None],
    keep: Callable[[Placement], None],
    run: SearchContext,
) -> Placement | None:
    """Run the rounds; the best placement that fits, if any."""
    wanted = max(schedule.work_per_pin * len(arrays.nets.pins), LEAST_WORK)
    total = max(int(schedule.rounds * run.effort * min(wanted, MOST_WORK)), 1)
    work = min(wanted, max(total // schedule.least_rounds, LEAST_WORK), total)
    rng = np.random.default_rng(run.seed)
    best: Placement | None = None
    value = np.inf
    start: Placement | None
    rounds = -(-total // work)
    held = live()
    whole = len(arrays.nets.pins) + len(held.reads)
    steps = min(max(work // max(whole, 1), LEAST_STEPS), MOST_STEPS)
    mixed = (arrays.ordered or len(arrays.labels) > 0) and len(arrays.costs.work) > 1

    def anneal_round(number: int, how: Round, start: Placement) -> tuple[float, Placement]:
        search = new_search(arrays, run.seed * MOST_ROUNDS + number)
        search.mix[:] = how.mix
        own = arrays._replace(kind=start.kind.copy())
        held, state = live(), new_state(own, start.place)
        set_reference(own, state, search)
        for step in range(steps):
            if number % WAVE == 0:
                run.report_progress(share=min((number + WAVE * step / steps) / rounds, 1.0))
            temperature = how.hot * (how.cold / how.hot) ** ((step + 0.5) / steps)
            sweep(own, state, held, search, temperature, work // steps)
            if mixed:
                exchange(own, state, held, search, temperature, EXCHANGES)
            if run.stop():
                break
        return float(search.value[0]), Placement(search.best, search.kind)

    with ThreadPoolExecutor(WAVE) as pool:
        for first in range(0, rounds, WAVE):
            tasks = []
            for number in range(first, min(first + WAVE, rounds)):
                how = schedule.cycle[number % len(schedule.cycle)]
                if number == 0 and given is not None:
                    how, start = schedule.given, given
                elif how.again and best is not None:
                    start = best
                else:
                    start = fresh(rng) or best or given
                if start is not None:
                    tasks.append((number, how, start))
            before = value
            for found, placement in pool.map(lambda task: anneal_round(*task), tasks):
                if found < value:
                    best, value = placement, found
            if best is not None and value < before:
                keep(best)
            if value <= 0.0 or run.stop():
                break
    return best


def _placed(
    label: Ints, line: LinearizedItems, slots: Ints, blocks: Sequence[Block], *, ordered: bool
) -> Placement | None:
    """Placement of a split; None if it needs other devices than there are.

    In a pipeline the blocks take the first places, whatever their classes.
    """
    place = np.zeros(line.n, dtype=np.int64)
    free: dict[str, list[int]] = {d.name: [] for d in line.devices}
    for slot in range(len(slots) - 1, -1, -1):
        free[line.devices[slots[slot]].name].append(slot)
    taken: list[int] = []
    for block in blocks:
        if not free.get(block.device.name):
            return None
        device = free[block.device.name].pop()
        place[label[block.nodes]] = len(taken) if ordered else device
        taken.append(device)
    if not ordered:
        return Placement(place, slots)
    rest = np.setdiff1d(np.arange(len(slots)), taken)
    return Placement(place, slots[np.append(taken, rest).astype(np.int64)])


def _random(rng: np.random.Generator, arrays: AnnealArrays) -> Placement:
    """A device for each item among those of the class that runs it fastest."""
    total = np.where(arrays.allowed, arrays.costs.work.sum(axis=1), np.inf)
    classes = total.argmin(axis=0)
    first = np.searchsorted(arrays.kind, np.arange(len(total) + 1))
    draw = rng.random(len(classes))
    counts = np.diff(first)[classes]
    return Placement(first[classes] + (draw * counts).astype(np.int64), arrays.kind)


def _even(rng: np.random.Generator, arrays: AnnealArrays) -> Placement | None:
    """The line in parts of about equal work on devices in any order; None if some cannot run it."""
    kind = rng.permutation(arrays.kind)
    work = arrays.costs.work.sum(axis=1).min(axis=0)
    share = np.cumsum(work) / max(float(work.sum()), 1e-300) * len(kind)
    place = np.minimum(share.astype(np.int64), len(kind) - 1)
    allowed = arrays.allowed[kind[place], np.arange(len(place))].all()
    return Placement(place, kind) if allowed else None


def _unfit(line: LinearizedItems) -> InfeasibleError:
    """No split is known that fits."""
    found = f"no split that fits {offered(line.devices)}"
    return InfeasibleError(f"infeasible: annealing found {found}")
