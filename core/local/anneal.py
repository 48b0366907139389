"""Splits without order by annealing: what the `free` integer program finds, without a solver.

Rounds of annealing (`dnnp.core.local.sweep`), each from hot to cold: the first from the split
that is given, then in turn from random splits and, less hot, from the best one. The best split
of all rounds that fits is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, free_items_of
from dnnp.core.cost.line import Line, make_line
from dnnp.core.local.peak import Live, live_of
from dnnp.core.local.state import Problem, make_problem, new_state
from dnnp.core.local.sweep import new_search, refer, sweep
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import Block, CostOptions

ROUNDS = 64
"""Rounds at effort 1; fewer and longer ones where a round is cut to MOST_WORK."""

LEAST_ROUNDS = 8
"""Rounds at effort 1 in any case."""

WORK_PER_PIN = 15_000
LEAST_WORK, MOST_WORK = 20_000, 30_000_000
"""Pins that one round visits: per pin of the problem, at least, at most."""

STEPS = 100
"""Temperatures of a round."""

MAX_COUNTS = 200_000_000
"""Nets times devices; 4 bytes each."""


class Round(NamedTuple):
    """How one round goes."""

    again: bool
    """From the best split, not from a random one."""
    hot: float
    cold: float
    mix: tuple[int, int, int, int]
    """`Search.mix`."""


GIVEN = Round(True, 0.3, 0.01, (20, 10, 10, 4))
CYCLE = (
    Round(False, 1.0, 0.003, (20, 10, 10, 4)),
    Round(True, 0.1, 0.01, (20, 40, 10, 5)),
    Round(False, 1.0, 0.003, (20, 40, 10, 5)),
    Round(True, 0.3, 0.01, (20, 10, 10, 4)),
)


def anneal(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
    *,
    start: Sequence[Block] | None = None,
    seed: int = 0,
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Block]:
    """Split without regard to order, by annealing.

    Blocks are not replicated. Nodes of a block run in the graph's order.

    Parameters
    ----------
    start
        A split to start from and, if it fits without replicas, never to fall behind.
    effort
        Scales the work. The result depends on nothing else but the seed, unless `stop` ends the
        search early.

    Raises
    ------
    UsageError
        Devices in clusters.
    InfeasibleError
        No split that fits was found.
    LimitError
        Too many devices for so many tensors.
    """
    if any(d.cluster_size for d in devices):
        raise UsageError("annealing knows no clusters of devices; --method auto does")
    items = free_items_of(graph, units)
    line = make_line(graph, units, items, np.arange(items.count), devices, options)
    slots = np.repeat(np.arange(len(line.devices)), [d.count for d in line.devices])
    if len(line.source) * len(slots) > MAX_COUNTS:
        raise LimitError(
            f"{len(line.source)} tensors and {len(slots)} devices are too many for annealing; "
            "coarsen first, or offer fewer devices"
        )
    problem = make_problem(line, options)
    if not problem.allowed.any(axis=0).all():
        raise _unfit(line)
    given = None if start is None else _placed(items, line, slots, start)
    live = live_of(graph, items, len(slots), options)
    best = _search(problem, live, given, seed, effort, stop, progress)
    if best is None:
        raise _unfit(line)
    used = [np.flatnonzero(best[items.label] == d) for d in range(len(slots))]
    names = {d.name: d for d in devices}
    return [
        Block(nodes[np.argsort(graph.rank[nodes])], names[line.devices[slots[d]].name])
        for d, nodes in enumerate(used)
        if len(nodes)
    ]


def _search(
    problem: Problem,
    live: Live,
    given: Ints | None,
    seed: int,
    effort: float,
    stop: Callable[[], bool],
    progress: Callable[[float], None],
) -> Ints | None:
    """Run the rounds; the best placement that fits, if any (i64[n])."""
    wanted = max(WORK_PER_PIN * len(problem.pins), LEAST_WORK)
    total = max(int(ROUNDS * effort * min(wanted, MOST_WORK)), 1)
    work = min(wanted, max(total // LEAST_ROUNDS, LEAST_WORK), total)
    rng = np.random.default_rng(seed)
    search = new_search(problem, seed)
    best, value = None, np.inf
    rounds = -(-total // work)
    for number in range(rounds):
        how = CYCLE[number % len(CYCLE)]
        if number == 0 and given is not None:
            how, place = GIVEN, given
        elif how.again and best is not None:
            place = best
        else:
            place = _random(rng, problem)
        search.mix[:] = how.mix
        search.value[0] = np.inf
        state = new_state(problem, place)
        refer(problem, state, search)
        for step in range(STEPS):
            progress((number + step / STEPS) / rounds)
            temperature = how.hot * (how.cold / how.hot) ** ((step + 0.5) / STEPS)
            sweep(problem, state, live, search, temperature, work // STEPS)
            if stop():
                break
        if search.value[0] < value:
            best, value = search.best.copy(), float(search.value[0])
        if value <= 0.0 or stop():
            break
    return best


def _placed(items: Items, line: Line, slots: Ints, blocks: Sequence[Block]) -> Ints | None:
    """Device of each item in a split; None if it needs other devices than there are."""
    place = np.zeros(items.count, dtype=np.int64)
    names = [line.devices[c].name for c in slots.tolist()]
    taken: set[int] = set()
    for block in blocks:
        device = next(
            (d for d, n in enumerate(names) if n == block.device.name and d not in taken), None
        )
        if device is None:
            return None
        taken.add(device)
        place[items.label[block.nodes]] = device
    return place


def _random(rng: np.random.Generator, problem: Problem) -> Ints:
    """A device for each item among those of the class that runs it fastest."""
    total = np.where(problem.allowed, problem.work.sum(axis=1), np.inf)
    classes = total.argmin(axis=0)
    first = np.searchsorted(problem.kind, np.arange(len(total) + 1))
    draw = rng.random(len(classes))
    counts = np.diff(first)[classes]
    return first[classes] + (draw * counts).astype(np.int64)


def _unfit(line: Line) -> InfeasibleError:
    """No split is known that fits."""
    offered = ", ".join(
        f"{d.count} x {d.name}"
        + (f" of {d.memory_bytes:.0f} bytes" if np.isfinite(d.memory_bytes) else "")
        for d in line.devices
    )
    return InfeasibleError(f"infeasible: annealing found no split that fits {offered}")
