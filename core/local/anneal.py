"""Splits without order by annealing: what the `free` integer program finds, without a solver.

Rounds of annealing (`dnnp.core.local.sweep`), each from hot to cold: the first from the split that
is given, warm enough to leave it only for better ones nearby; then in turn from random splits and,
less hot, from the best one. The best split of all rounds that fits is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dnnp.core.cost.items import Items, free_items_of
from dnnp.core.cost.line import Line, make_line
from dnnp.core.local.peak import live_of
from dnnp.core.local.state import make_problem, new_state
from dnnp.core.local.sweep import new_search, record, refer, sweep
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import Block, CostOptions

ROUNDS = 64
"""Rounds at effort 1."""

WORK_PER_PIN = 15_000
LEAST_WORK, MOST_WORK = 20_000, 30_000_000
"""Pins that one round visits: per pin of the problem, at least, at most."""

STEPS = 100
"""Temperatures of a round."""

RANDOM = (1.0, 0.003, (20, 40, 10))
AGAIN = (0.1, 0.01, (20, 40, 10))
"""First and last temperature and mix of moves of a round from a random and from a good split."""


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

    Parameters
    ----------
    start
        A split to start from and never to fall behind.
    effort
        Scales the number of rounds. The result depends on nothing else but the seed, unless
        `stop` ends the search early.

    Raises
    ------
    UsageError
        Devices in clusters.
    InfeasibleError
        No split that fits was found.
    """
    if any(d.cluster_size for d in devices):
        raise UsageError("annealing knows no clusters of devices; --method auto does")
    items = free_items_of(graph, units)
    line = make_line(graph, units, items, np.arange(items.count), devices, options)
    slots = np.repeat(np.arange(len(line.devices)), [d.count for d in line.devices])
    problem = make_problem(line, options)
    if options.memory_model == "peak":
        # Scaled to the true peak by `measure`, which nothing can scale from zero.
        problem = problem._replace(memory=problem.memory + 1.0)
    live = live_of(graph, items, len(slots), options)
    allowed = np.isfinite(line.work)[slots].T
    rng = np.random.default_rng(seed)
    search = new_search(problem, seed, RANDOM[2])
    given = None if start is None else _placed(items, line, slots, start)
    work = min(max(WORK_PER_PIN * len(line.pins), LEAST_WORK), MOST_WORK)
    rounds = max(1, round(ROUNDS * effort))
    best, value = None, np.inf
    for number in range(rounds):
        again = best is not None and number % 4 == 3
        hot, cold, mix = RANDOM
        if number == 0 and given is not None:
            place, (hot, cold, mix) = given, AGAIN
        elif again and best is not None:
            place, (hot, cold, mix) = best, AGAIN
        else:
            place = _random(rng, allowed, line, slots)
        search.mix[:] = mix
        search.value[0] = np.inf
        state = new_state(problem, place)
        record(problem, state, live, search)
        refer(problem, state, search)
        for step in range(STEPS):
            if stop():
                break
            progress((number + step / STEPS) / rounds)
            temperature = hot * (cold / hot) ** ((step + 0.5) / STEPS)
            sweep(problem, state, live, search, temperature, work // STEPS)
        if search.value[0] < value:
            best, value = search.best.copy(), float(search.value[0])
        if stop():
            break
    if best is None:
        raise InfeasibleError("infeasible: annealing found no split that fits the devices")
    used = [np.flatnonzero(best[items.label] == d) for d in range(len(slots))]
    names = {d.name: d for d in devices}
    return [
        Block(nodes[np.argsort(graph.rank[nodes])], names[line.devices[slots[d]].name])
        for d, nodes in enumerate(used)
        if len(nodes)
    ]


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


def _random(rng: np.random.Generator, allowed: np.ndarray, line: Line, slots: Ints) -> Ints:
    """A device for each item among those that can run it; accelerators where there are any."""
    fast = np.array([not line.devices[c].is_cpu for c in slots.tolist()])
    choice = np.where((allowed & fast).any(axis=1)[:, None], allowed & fast, allowed)
    draw = rng.random(choice.shape) * choice
    place: Ints = draw.argmax(axis=1).astype(np.int64)
    return place
