"""Operator-level placement by annealing of list schedules (`operators`).

The best of several list schedules is annealed in rounds, two at a time: each round goes from hot
to cold from the best schedule that was known before its wave. At the end transfers and tasks
of the best schedule are brought into the order of their starts and shifted to the left. The
result depends on the seed and the effort, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, Placement, simulate
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.latency.lists.net import falling, net_of, upward_rank
from dnnp.core.latency.lists.room import room_of
from dnnp.core.latency.operators.kernel import ListBoard, make_board, new_state, replay
from dnnp.core.latency.operators.moves import new_search, start_state, sweep
from dnnp.core.latency.operators.start import (
    best_rank,
    filled,
    insertion,
    packed,
)
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints, distinct
from dnnp.core.model.search_context import PLAIN, Run

WORK, MOST_WORK = 1.5e7, 4e8
"""Positions that replays visit at effort 1: per square root of the number of tasks; at most."""

FEW = 100
"""Tasks below which there is less work."""

WAVE = 2
"""Rounds that run at the same time, from what was best before them; for any number of threads."""

FIRST = 0.125
"""Work of the first of endless cycles, of that at effort 1; every later one takes twice as much."""

STRICT = (4.0, 32.0)
"""Price of a device above its capacity in the rounds of a wave, in mean times of a task."""

STEPS = 60
"""Temperatures of a round."""

MOST_CHUNK = 400_000
"""Positions between two looks at the clock."""

MOST_PACKED = 20_000
"""Colours that are placed in search of a way to fit the memory, where list schedules do not."""

POLISHINGS = 3
"""Insertions into gaps, at the end."""

AHEAD = (0.0, 0.5, 1.0)
"""How much the list schedules look ahead."""


class Round(NamedTuple):
    """How one round goes; temperatures are in mean times of a task."""

    share: float
    """Of the work."""
    hot: float
    cold: float
    mix: tuple[int, ...]
    """`Search.mix`."""
    guided: int
    """`Search.guided`."""


ROUNDS = (
    Round(0.3, 3.0, 0.03, (20, 20, 20, 10, 5, 5), 50),
    Round(0.3, 3.0, 0.03, (15, 20, 20, 25, 5, 5), 20),
    Round(0.2, 0.5, 0.02, (20, 20, 20, 10, 5, 5), 50),
    Round(0.2, 0.5, 0.02, (15, 20, 20, 25, 5, 5), 20),
)


class Listed(NamedTuple):
    """A list schedule: `State.order` and `State.device`."""

    order: Ints
    device: Ints


def anneal_operators(
    problem: LatencyProblem,
    *,
    start: Placement | None = None,
    endless: bool = False,
    run: Run = PLAIN,
) -> Placement:
    """Place tasks by annealing; see the module.

    Parameters
    ----------
    start
        A valid placement to start from if it is better than list schedules, and never to fall
        behind.
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
    board = make_board(problem)
    room_of(problem)  # refuses what no placement can fit
    best, value = start, np.inf
    if start is not None:
        value = problem.value(start)
    origin, least = None, np.inf
    for listed, placement in _starts(problem, board, start, run):
        energy, fits = _judged(problem, board, placement)
        if origin is None or energy < least:
            origin, least = listed, energy
        if fits and energy < value:
            best, value = placement, energy
            run.keep(best, value, "anneal")
            run.stands(value=value)
    found = None
    if origin is not None and not run.stop():
        found = _search(problem, board, origin, endless, run)
    if found is not None:
        for placement in _polished(problem, board, found):
            latency = problem.value(placement)
            if latency < value:
                best, value = placement, latency
    if best is None:
        raise LimitError("annealing found no placement that fits the memory of the devices")
    return best


def placed(board: ListBoard, listed: Listed) -> Placement:
    """The placement that a list schedule stands for: its events by start."""
    state = new_state(board, *listed)
    replay(board, state, 0, len(listed.order), np.inf)
    count = board.time.shape[1]
    device = listed.device
    flow = np.repeat(np.arange(len(board.maker)), np.diff(board.use_ptr))
    target = device[board.use_idx]
    crosses = target != device[board.maker[flow]]
    pairs = distinct(flow[crosses] * count + target[crosses])
    flow, target = pairs // count, pairs % count
    return by_start(
        board,
        state.place,
        device,
        (state.start, state.end),
        flow,
        target,
        (state.begun[flow, target], state.arrive[flow, target]),
    )


def by_start(
    board: ListBoard,
    rank: Ints,
    device: Ints,
    span: tuple[Floats, Floats],
    flow: Ints,
    target: Ints,
    moved: tuple[Floats, Floats],
) -> Placement:
    """Events by start: tasks, i64[n] by rank, and transfers of flows to targets, i64[m] each.

    Both with starts and ends. Of what starts at the same time, that comes first which ends
    first, and then that which others may wait for.
    """
    n = len(rank)
    keys = np.concatenate([2 * rank, 2 * rank[board.maker[flow]] + 1])
    events = np.concatenate(
        [np.stack([np.full(n, TASK), np.arange(n)], axis=1), np.stack([flow, target], axis=1)]
    )
    begin, end = (np.concatenate([own, sent]) for own, sent in zip(span, moved, strict=True))
    order = np.lexsort((keys, end, begin))
    return Placement(device, events[order].astype(np.int64))


def _starts(
    problem: LatencyProblem, board: ListBoard, start: Placement | None, run: Run
) -> Iterator[tuple[Listed, Placement]]:
    """List schedules and their placements, the cheap ones first; one that does not fit comes
    only if there is no other."""
    tasks, machine = problem.tasks, problem.machine
    usable = np.isfinite(tasks.time)
    speed = np.where(usable, tasks.time, 0.0).sum(axis=1) / np.maximum(usable.sum(axis=1), 1)
    fast = np.argsort(speed, kind="stable")
    net = net_of(problem)
    orders = [falling(net, rank) for rank in (best_rank(board), upward_rank(problem, net))]
    fits = False
    if start is not None:
        fits = True
        yield listed_of(start), start
    if usable.all():
        for d in fast[:2].tolist():
            if tasks.memory.sum() <= machine.capacity[d] * ROOM:
                fits = True
                yield _both(board, tasks.order, np.full(tasks.n, d))
    for order in (tasks.order, orders[0]):
        device = filled(board, order, fast)
        if device is not None:
            fits = True
            yield _both(board, order, device)
    for order in orders:
        for ahead in AHEAD:
            if run.stop() and fits:
                return
            found = inserted(board, order, ahead, np.full(tasks.n, -1))
            if found is not None:
                fits = True
                task_order, placement = found
                yield _both(board, task_order, placement.device)[0], placement
    if not fits:
        device, proven = packed(board, MOST_PACKED + 2 * len(board.bytes))
        if proven:
            raise InfeasibleError("infeasible: there is no way to fit the tasks into the memory")
        if device is None:
            device = np.argmax(board.allowed, axis=1)[tasks.together]
        yield _both(board, orders[0], device)


def _both(board: ListBoard, order: Ints, device: Ints) -> tuple[Listed, Placement]:
    """A list schedule and its placement."""
    listed = Listed(order, device.astype(np.int64))
    return listed, placed(board, listed)


def inserted(
    board: ListBoard, order: Ints, ahead: float, device: Ints
) -> tuple[Ints, Placement] | None:
    """Schedule by `insertion`: tasks by start, and the placement; None if they do not fit.

    Where `device` (i64[n]) is not -1, it is kept.
    """
    n, count = board.time.shape
    start, sent_at = np.zeros(n), np.zeros((len(board.maker), count))
    device = device.astype(np.int64)
    if not insertion(board, order, ahead, start, device, sent_at):
        return None
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    flow, target = np.nonzero(np.isfinite(sent_at))
    sent = sent_at[flow, target]
    source = device[board.maker[flow]]
    length = (
        board.latency[source, target]
        + board.size[flow] * board.rate[source, target]
        + board.fixed[flow] * board.charged[source, target]
    )
    placement = by_start(
        board,
        rank,
        device,
        (start, start + board.time[np.arange(n), device]),
        flow,
        target,
        (sent, sent + length),
    )
    return np.lexsort((rank, start)), placement


def listed_of(placement: Placement) -> Listed:
    """The list schedule of a placement: its tasks in the order of their events."""
    events = placement.events
    order = events[events[:, 0] == TASK, 1]
    return Listed(order, placement.device)


def _judged(problem: LatencyProblem, board: ListBoard, placement: Placement) -> tuple[float, bool]:
    """Latency of a placement, more where it does not fit; whether it fits."""
    used = np.bincount(
        placement.device, weights=problem.tasks.memory, minlength=problem.machine.count
    )
    over = float(np.maximum(used - board.capacity, 0.0).sum())
    value = simulate(problem.tasks, problem.machine, placement, problem.options.congestion).value
    if over > 0:
        return value * (2 + over / float(problem.tasks.memory.sum())), False
    return value, True


def _search(
    problem: LatencyProblem,
    board: ListBoard,
    origin: Listed,
    endless: bool,
    run: Run,
) -> Listed | None:
    """Run the rounds; the best schedule that fits, if any."""
    n = problem.tasks.n
    total = min(WORK * n**0.5 * min(n / FEW, 1.0), MOST_WORK) * run.effort
    times = np.where(np.isfinite(board.time), board.time, np.inf).min(axis=1)
    scale = float(times.mean()) or 1.0
    best, value = origin, np.inf
    number = 0
    # Without an end the first cycle is short, so that something has got cold early.
    length = total * FIRST if endless else total

    def anneal_round(number: int, how: Round, work: float) -> tuple[float, Listed]:
        search = new_search(board, run.seed * 4096 + number, how.mix, how.guided)
        bytes_ = float(board.bytes.sum())
        strict = scale * STRICT[number % WAVE]
        search.strict[0] = strict
        search.strict[1] = len(board.bytes) * strict / bytes_ if bytes_ > 0 else 0.0
        state = start_state(board, search, best.order, best.device)
        for step in range(STEPS):
            temperature = scale * how.hot * (how.cold / how.hot) ** ((step + 0.5) / STEPS)
            left = int(work / STEPS) + 1
            if number % WAVE == 0 and not endless:
                run.stands(share=(number + WAVE * step / STEPS) / len(ROUNDS))
            while left > 0 and not run.stop():
                sweep(board, state, search, temperature, min(left, MOST_CHUNK))
                left -= MOST_CHUNK
            if run.stop():
                break
        return float(search.value[0]), Listed(search.best_order, search.best_device)

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
                    kept = placed(board, best)
                    latency, fits = _judged(problem, board, kept)
                    run.keep(kept, latency if fits else np.inf, "anneal")
                run.stands(value=value, share=None if endless else (first + WAVE) / len(ROUNDS))
                if run.stop():
                    break
            length *= 2
            if run.stop() or not endless:
                break
    return best if value < np.inf else None


def _polished(problem: LatencyProblem, board: ListBoard, listed: Listed) -> Iterator[Placement]:
    """The placement of a schedule, and what comes of it by insertion into gaps, again and again."""
    placement = placed(board, listed)
    yield placement
    for _ in range(POLISHINGS):
        times = simulate(problem.tasks, problem.machine, placement, problem.options.congestion)
        rank = np.empty(problem.tasks.n, dtype=np.int64)
        rank[placement.events[placement.events[:, 0] == TASK, 1]] = np.arange(problem.tasks.n)
        order = np.lexsort((rank, times.start_s))
        found = inserted(board, order, 0.0, listed.device)
        if found is None:
            return
        placement = found[1]
        yield placement
