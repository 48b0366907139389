"""Operator-level placement by annealing of list schedules (`operators`).

The best of several list schedules is annealed in rounds, two at a time: each round goes from hot
to cold from the best schedule that was known before its wave. At the end transfers and tasks
of the best schedule are sorted by start and shifted left. The result depends on the seed and the
effort, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, Placement, simulate
from dnnp.core.cost.live import Live
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.kernels.kernel import expect
from dnnp.core.latency.lists.net import FlowNet, falling, net_of, upward_rank
from dnnp.core.latency.lists.schedule import by_first, by_start, inserted, memory_limits, packed
from dnnp.core.latency.operators.moves import new_annealing, new_state, replay, start_state, sweep
from dnnp.core.model.errors import LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints, distinct, place_of, totals
from dnnp.core.model.search_context import PLAIN, SearchContext

WORK, MOST_WORK = 1.5e7, 4e8
"""Positions that replays visit at effort 1: per square root of the number of tasks; at most."""

FEW = 100
"""Tasks below which there is less work."""

WAVE = 2
"""Rounds at the same time, from the best schedule before them; for any number of threads."""

FIRST = 0.125
"""Work of the first of endless cycles, of that at effort 1; every later one takes twice as much."""

STRICT = (4.0, 32.0)
"""Penalty of a device above its capacity in the rounds of a wave, in mean times of a task."""

STEPS = 60
"""Temperatures of a round."""

MOST_CHUNK = 400_000
"""Positions after which a sweep recomputes its energy."""

LOOK = 2
"""Chunks of that size between two looks at the clock."""

CHECKED = 500
"""Tasks up to which live tensors are evaluated after each temperature, where they count."""

POLISHINGS = 3
"""Insertions into gaps, at the end."""

AHEAD = (0.0, 0.5, 1.0)
"""Shares of `tail` that the list schedules count."""


class Round(NamedTuple):
    """A round of annealing; temperatures are in mean times of a task."""

    share: float
    """Of the work."""
    hot: float
    cold: float
    mix: tuple[int, ...]
    """`ListMemory.mix`."""
    guided: int
    """`ListMemory.guided`."""


ROUNDS = (
    Round(0.3, 3.0, 0.03, (20, 20, 20, 10, 5, 5), 50),
    Round(0.3, 3.0, 0.03, (15, 20, 20, 25, 5, 5), 20),
    Round(0.2, 0.5, 0.02, (20, 20, 20, 10, 5, 5), 50),
    Round(0.2, 0.5, 0.02, (15, 20, 20, 25, 5, 5), 20),
)


class Listed(NamedTuple):
    """A list schedule: `order` and `device` of `ListState`."""

    order: Ints
    device: Ints


def anneal_operators(
    problem: LatencyProblem,
    *,
    start: Placement | None = None,
    endless: bool = False,
    run: SearchContext = PLAIN,
) -> Placement:
    """Place tasks by annealing; see the module.

    Parameters
    ----------
    start
        A valid placement: the start if it is better than list schedules; the result is no worse.
    endless
        Go on until `run` stops, in cycles of rounds that get longer.

    Raises
    ------
    InfeasibleError
        It is proven that no placement fits.
    LimitError
        No placement that fits was found.
    UsageError
        Inputs of the model cost transfers.
    """
    tasks = problem.tasks
    if (tasks.maker < 0).any():
        raise UsageError("transfers of model inputs have no sender where every task is placed")
    if tasks.n == 0:
        return Placement(np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64))
    net = net_of(problem, tails=True)
    memory_limits(problem)  # refuses what no placement can fit
    best, value = start, np.inf
    if start is not None:
        value = problem.value(start)
    origin, least = None, np.inf
    for listed, placement in _starts(problem, net, start, run):
        energy, fits = _judged(problem, net, placement)
        if origin is None or energy < least:
            origin, least = listed, energy
        if fits and energy < value:
            best, value = placement, energy
            run.report_incumbent(best, value, "anneal")
            run.report_progress(value=value)
    found = None
    if origin is not None and not run.stop():
        found = _search(problem, net, origin, endless, run)
    if found is not None:
        for placement in _polished(problem, net, found):
            latency, fits = _judged(problem, net, placement)
            if fits and latency < value:
                best, value = placement, latency
    if best is None:
        raise LimitError("annealing found no placement that fits the memory of the devices")
    return best


def placed(net: FlowNet, listed: Listed) -> Placement:
    """Placement of a list schedule: its events by start."""
    state = new_state(net, *listed)
    replay(net, state, 0, len(listed.order), np.inf)
    count = net.time.shape[1]
    device = listed.device
    flow = np.repeat(np.arange(len(net.maker)), np.diff(net.use_ptr))
    target = device[net.use_idx]
    crosses = target != device[net.maker[flow]]
    pairs = distinct(flow[crosses] * count + target[crosses])
    flow, target = pairs // count, pairs % count
    return by_start(
        net,
        state.place,
        device,
        (state.start, state.end),
        flow,
        target,
        (state.begun[flow, target], state.arrive[flow, target]),
    )


def _starts(
    problem: LatencyProblem, net: FlowNet, start: Placement | None, run: SearchContext
) -> Iterator[tuple[Listed, Placement]]:
    """List schedules and their placements, quick ones first; one that does not fit only if no
    other does."""
    tasks, machine = problem.tasks, problem.machine
    usable = np.isfinite(tasks.time)
    speed = np.where(usable, tasks.time, 0.0).sum(axis=1) / np.maximum(usable.sum(axis=1), 1)
    fast = np.argsort(speed, kind="stable")
    orders = [falling(net, rank) for rank in (best_rank(net), upward_rank(net))]
    fits = False
    if start is not None:
        fits = True
        yield listed_of(start), start
    if usable.all():
        for d in fast[:2].tolist():
            if tasks.memory.sum() <= machine.capacity[d] * ROOM:
                fits = True
                yield _both(net, tasks.order, np.full(tasks.n, d))
    for order in (tasks.order, orders[0]):
        device = filled(net, order, fast)
        if device is not None:
            fits = True
            yield _both(net, order, device)
    for order in orders:
        for ahead in AHEAD:
            if run.stop() and fits:
                return
            found = inserted(net, order, np.full(tasks.n, -1), ahead)
            if found is not None:
                fits = True
                task_order, placement = found
                yield _both(net, task_order, placement.device)[0], placement
    if not fits:
        try:
            home = packed(memory_limits(problem), run)
        except LimitError:
            home = np.argmax(net.allowed, axis=1)
        yield _both(net, orders[0], home[tasks.together])


def best_rank(net: FlowNet) -> Floats:
    """Least time on any device, with the best that can follow; f64[n].

    Like an upward rank it falls along every edge.
    """
    allowed = net.allowed[net.together]
    rank: Floats = np.where(allowed, net.time + net.tail, np.inf).min(axis=1)
    return rank


def filled(net: FlowNet, order: Ints, devices: Ints) -> Ints | None:
    """Colours in the order of their first tasks, on one device after the other as far as each
    holds them; i64[n], or None if they do not fit that way."""
    count = net.time.shape[1]
    used, home = np.zeros(count), np.full(len(net.bytes), -1, dtype=np.int64)
    at = 0
    for c in by_first(net.together[order]).tolist():
        tried = at
        while tried < len(devices):
            d = devices[tried]
            if net.allowed[c, d] and used[d] + net.bytes[c] <= net.capacity[d]:
                break
            tried += 1
        if tried == len(devices):
            return None
        d = devices[tried]
        if net.allowed[c, devices[at]]:
            at = tried
        home[c] = d
        used[d] += net.bytes[c]
    return home[net.together]


def _both(net: FlowNet, order: Ints, device: Ints) -> tuple[Listed, Placement]:
    """A list schedule and its placement."""
    listed = Listed(order, device.astype(np.int64))
    return listed, placed(net, listed)


def listed_of(placement: Placement) -> Listed:
    """The list schedule of a placement: its tasks in the order of their events."""
    events = placement.events
    order = events[events[:, 0] == TASK, 1]
    return Listed(order, placement.device)


def _judged(problem: LatencyProblem, net: FlowNet, placement: Placement) -> tuple[float, bool]:
    """Latency of a placement, larger if it does not fit; and True if it fits."""
    used = totals(placement.device, problem.tasks.memory, problem.machine.count)
    if problem.live is not None and problem.live.binds:
        used = problem.held(placement)
    over, value = float(np.maximum(used - net.capacity, 0.0).sum()), problem.time(placement)
    return (value * (2 + over / float(used.sum())), False) if over > 0 else (value, True)


def _weighed(live: Live, net: FlowNet) -> FlowNet:
    """The net with colours as large as the parameters and outputs of their tasks."""
    made = live.maker >= 0
    made_bytes = totals(live.maker[made], live.size[made], len(live.scratch)) + live.scratch
    extra = totals(net.together, made_bytes, len(net.bytes))
    return net._replace(bytes=net.bytes + extra, capacity=np.full(len(net.capacity), np.inf))


def _fitting(
    problem: LatencyProblem,
    net: FlowNet,
    room: Floats,
    seen: list[Listed],
    known: tuple[float, Listed],
) -> tuple[float, Listed]:
    """Evaluate the live tensors of schedules: the best that fits, if better than a known one.

    `net.capacity` is changed: a device, of `room` bytes, is as full by the bytes of the net as it
    is by live tensors where the search stands, which is the first schedule.
    """
    net.capacity[:] = np.inf
    for listed in seen:
        placement = placed(net, listed)
        held = problem.held(placement)
        used = totals(listed.device[net.member_idx[net.member_ptr[:-1]]], net.bytes, len(room))
        full = (held > 0) & ((held > room) | (listed is seen[0])) & np.isfinite(room)
        net.capacity[full] = np.minimum(net.capacity[full], used[full] * room[full] / held[full])
        value = problem.time(placement)
        if (held <= room).all() and value < known[0]:
            known = value, listed
    return known


def _search(
    problem: LatencyProblem,
    net: FlowNet,
    origin: Listed,
    endless: bool,
    run: SearchContext,
) -> Listed | None:
    """Run the rounds; the best schedule that fits, if any."""
    n = problem.tasks.n
    total = min(WORK * n**0.5 * min(n / FEW, 1.0), MOST_WORK) * run.effort
    times = np.where(np.isfinite(net.time), net.time, np.inf).min(axis=1)
    scale = float(times.mean()) or 1.0
    best, value = origin, np.inf
    number = 0
    # Without an end the first cycle is short, so that something has got cold early.
    length = total * FIRST if endless else total

    live = problem.live if problem.live is not None and problem.live.binds else None
    expect(length * sum(how.share for how in ROUNDS), sweep)

    def anneal_round(number: int, how: Round, work: float) -> tuple[float, Listed]:
        own = net if live is None else _weighed(live, net)
        search = new_annealing(own, run.seed * 4096 + number, how.mix, how.guided)
        known = np.inf, Listed(search.best_order, search.best_device)
        bytes_ = float(own.bytes.sum())
        strict = scale * STRICT[number % WAVE]
        search.strict[0] = strict
        search.strict[1] = len(own.bytes) * strict / bytes_ if bytes_ > 0 else 0.0
        state = start_state(own, search, best.order, best.device)
        ratio = how.cold / how.hot
        cooling = [scale * how.hot * ratio ** ((step + 0.5) / STEPS) for step in range(STEPS)]
        length = int(work / STEPS) + 1
        together = max(LOOK * MOST_CHUNK // length, 1) if live is None else 1
        for step in range(0, STEPS, together):
            if number % WAVE == 0 and not endless:
                run.report_progress(share=(number + WAVE * step / STEPS) / len(ROUNDS))
            some = cooling[step : step + together]
            for first in range(0, length, LOOK * MOST_CHUNK):
                if run.stop():
                    break
                last = min(first + LOOK * MOST_CHUNK, length)
                part = [min(MOST_CHUNK, last - done) for done in range(first, last, MOST_CHUNK)]
                temperatures, works = np.repeat(some, len(part)), np.tile(part, len(some))
                sweep(own, state, search, temperatures, works)
            over = step + together >= STEPS or run.stop()
            if live is not None and (over or step % max(n // CHECKED, 1) == 0):
                seen = [Listed(state.order.copy(), state.device.copy())]
                if search.value[0] < known[0]:
                    seen.append(Listed(search.best_order.copy(), search.best_device.copy()))
                known = _fitting(problem, own, live.capacity * ROOM, seen, known)
                search.value[0] = known[0]
            if over:
                break
        return float(search.value[0]), known[1]

    with ThreadPoolExecutor(WAVE) as pool:
        while True:
            for first in range(0, len(ROUNDS), WAVE):
                wave = [
                    (number + i, ROUNDS[first + i], length * ROUNDS[first + i].share)
                    for i in range(WAVE)
                ]
                number += WAVE
                results = list(pool.map(lambda task: anneal_round(*task), wave))
                before = value
                for latency, listed in results:
                    if latency < value:
                        best, value = listed, latency
                if value < before:
                    kept = placed(net, best)
                    latency, fits = _judged(problem, net, kept)
                    run.report_incumbent(kept, latency if fits else np.inf, "anneal")
                run.report_progress(
                    value=value, share=None if endless else (first + WAVE) / len(ROUNDS)
                )
                if run.stop():
                    break
            length *= 2
            if run.stop() or not endless:
                break
    return best if value < np.inf else None


def _polished(problem: LatencyProblem, net: FlowNet, listed: Listed) -> Iterator[Placement]:
    """The placement of a schedule, and those by repeated insertion into gaps."""
    placement = placed(net, listed)
    yield placement
    for _ in range(POLISHINGS):
        times = simulate(problem.tasks, problem.machine, placement, problem.options.congestion)
        rank = place_of(placement.events[placement.events[:, 0] == TASK, 1])
        order = np.lexsort((rank, times.start_s))
        found = inserted(net, order, listed.device)
        if found is None:
            return
        placement = found[1]
        yield placement
