"""Greedy placers: devices filled one after the other (2020 paper, Section 7), and HEFT."""

from __future__ import annotations

import heapq

import numpy as np

from dnnp.core.cost.items import Items, components
from dnnp.core.cost.items import by_first as numbers_by_first
from dnnp.core.cost.latency import (
    POOL,
    Invocations,
    LatencyProblem,
    LatencySolution,
    Split,
    Tasks,
    pool_times,
)
from dnnp.core.cost.load_formula import MARGIN, ROOM, SAFE_ROOM
from dnnp.core.latency.homes import split_of_homes
from dnnp.core.latency.lists.net import falling, net_of, upward_rank
from dnnp.core.latency.lists.schedule import (
    FULL,
    answer,
    attempts,
    by_first,
    inserted,
    list_schedule,
    memory_limits,
    repaired_answer,
    schedule_order,
)
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Bools, Floats, Ints, csr, distinct, place_of, totals
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.model.text import shown_bytes
from dnnp.core.split.slicing.decoder import kahn_with_priorities
from dnnp.core.split.slicing.orders import order_named


def greedy_blocks(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Contract colours and cycles, fix a topological order, fill accelerator after accelerator.

    An accelerator takes items as long as the next one fits; the CPU pool takes what is left.
    Items that no accelerator can take are put off; when nothing else is ready the pool takes
    one, and the block is closed: what follows is another invocation of the accelerator, or
    the next accelerator if it has none left. Where that places not all, for want of a CPU,
    accelerators also skip what does not fit, and then the large ones come first; the run is
    warned of that. In a training graph items carry the backward tasks of their colours, and each
    block is invoked once more for these.

    In an order that is asked for, items are taken strictly in that order, as published: the pool
    takes at once what the next accelerator cannot take, and that begins with what comes after.

    Raises
    ------
    InfeasibleError
        It is proven that the tasks do not fit.
    LimitError
        What no CPU runs finds no place on the accelerators.
    """
    tasks, machine = problem.tasks, problem.machine
    item, tail, head, mirrored = training_items(tasks)
    count = int(item.max(initial=-1)) + 1
    accelerators = np.flatnonzero(~machine.is_cpu)
    memory = totals(item, tasks.memory, count)
    limit, sizes = machine.capacity * SAFE_ROOM, memory.tolist()
    runs = np.array([totals(item, np.isinf(t), count) == 0 for t in tasks.time], dtype=np.bool_)
    able = (runs & (memory <= limit[:, None]))[accelerators]
    pool = totals(item, np.isinf(pool_times(tasks, machine)), count) == 0
    _refuse(problem, item, able, pool, memory)
    if asked.order != "best" or asked.sequence is not None:
        order = _strict_order(Items(item, count, tail, head), asked)
        block, devices = _fill_strictly(order, able, sizes, limit[accelerators].tolist(), pool)
        used = accelerators[devices].tolist()
        return LatencySolution(_split(tasks, block[item], used, mirrored))
    most = problem.options.invocations
    offered = np.arange(len(accelerators))
    large = np.lexsort((offered, -limit[accelerators]))
    for squeeze in (False, True):
        for order in (offered, large):
            room = limit[accelerators[order]].tolist()
            filled = _fill(tail, head, able[order], sizes, room, pool, most, squeeze=squeeze)
            if filled is not None:
                if squeeze:
                    run.warn("greedy: devices also skip what does not fit: else nothing fits")
                elif (order != offered).any():
                    run.warn("greedy: the largest devices are filled first: else nothing fits")
                used = accelerators[order][filled[1]].tolist()
                return LatencySolution(_split(tasks, filled[0][item], used, mirrored))
    raise LimitError("the accelerators are full before every task has a place")


def _strict_order(items: Items, asked: MethodOptions) -> Ints:
    """The order of a name, or the given one: there an item comes where its first task does."""
    if asked.sequence is None:
        return order_named(asked.order)(items)
    at = place_of(asked.sequence)
    place = np.full(items.count, len(at), dtype=np.int64)
    np.minimum.at(place, items.label, at)
    return kahn_with_priorities(items.tail, items.head, -place.astype(np.float64))


def _fill_strictly(
    order: Ints, able: Bools, memory: list[float], limit: list[float], pool: Bools
) -> tuple[Ints, list[int]]:
    """Block of each item, and the accelerator of each block; items are taken in this order.

    LimitError: no accelerator is left that holds an item, and no CPU runs it.
    """
    block = np.full(len(order), POOL, dtype=np.int64)
    devices: list[int] = []
    free, is_open = 0.0, False
    for v in order.tolist():
        if is_open and not (able[devices[-1], v] and memory[v] <= free):
            is_open = False
        following = len(devices)
        if not is_open and following < len(limit) and able[following, v]:
            devices.append(following)
            free, is_open = limit[following], True
        if is_open:
            block[v] = len(devices) - 1
            free -= memory[v]
        elif not pool[v]:
            raise LimitError("the accelerators are full before every task has a place")
    return block, devices


def _refuse(problem: LatencyProblem, item: Ints, able: Bools, pool: Bools, memory: Floats) -> None:
    """Raise if an item fits nowhere, or if all together do not."""
    tasks, machine = problem.tasks, problem.machine
    capacity = machine.capacity[~machine.is_cpu]
    bound = np.isinf(pool_times(tasks, machine))
    needed, there = float(tasks.memory[bound].sum()), float(capacity.sum())
    if needed > there * (1 + MARGIN):
        raise InfeasibleError(
            f"infeasible: tasks that no CPU runs need {shown_bytes(needed, 6)}, all accelerators "
            f"together have {shown_bytes(there, 6)}"
        )
    lost = np.flatnonzero(~able.any(axis=0) & ~pool)
    if not len(lost):
        return
    task, size = int(np.flatnonzero(item == lost[0])[0]), float(memory[lost[0]])
    reason = (
        f"no accelerator takes task {task} and all that has to be in a block with it "
        f"({shown_bytes(size, 6)}), and no CPU runs it"
    )
    # With a backward pass the items are larger than they have to be.
    unsure = (size > capacity) & (size <= capacity * (1 + MARGIN))
    if tasks.backward.any() or unsure.any():
        raise LimitError(reason)
    raise InfeasibleError(f"infeasible: {reason}")


def training_items(tasks: Tasks) -> tuple[Ints, Ints, Ints, bool]:
    """Item of each task, the edges between items, and whether backward edges are turned round.

    Items are the strongly connected components of the graph of colours. Edges of the backward
    pass count as they are or turned round, whichever leaves more items; edges between the passes
    order no items. Items are numbered by their first task in the topological order.
    """
    tail, head = tasks.edges
    same = tasks.backward[tail] == tasks.backward[head]
    late = tasks.backward[tail][same]
    tail, head = tasks.together[tail][same], tasks.together[head][same]
    colors = int(tasks.together.max(initial=-1)) + 1
    best: tuple[Ints, Ints, Ints, bool] | None = None
    for turned in (True, False) if late.any() else (False,):
        source = np.where(late & turned, head, tail)
        target = np.where(late & turned, tail, head)
        part = components(np.arange(colors), source, target)
        raw = part[tasks.together]
        number = numbers_by_first(raw[tasks.order])
        pairs = number[part[source]] * max(len(number), 1) + number[part[target]]
        pairs = distinct(pairs[part[source] != part[target]])
        if best is None or len(number) > best[0].max() + 1:
            size = max(len(number), 1)
            best = number[raw], pairs // size, pairs % size, turned
    return best if best is not None else (tasks.together, tail, head, False)


def _fill(
    tail: Ints,
    head: Ints,
    able: Bools,
    memory: list[float],
    limit: list[float],
    pool: Bools,
    most: int,
    *,
    squeeze: bool,
) -> tuple[Ints, list[int]] | None:
    """Block of each item, in the order in which blocks run, and the accelerator of each block.

    `squeeze`: an accelerator skips items that do not fit as long as others do. None: it cannot be.
    """
    count = len(memory)
    ptr, following = csr(tail, head, count)
    waits = np.bincount(head, minlength=count)
    block = np.full(count, POOL, dtype=np.int64)
    devices: list[int] = []
    # Where an item fits at all, the last accelerator counts: those before are gone.
    last = np.where(able.any(axis=0), len(able) - 1 - np.argmax(able[::-1], axis=0), -1)
    ready = [v for v in range(count) if not waits[v]]
    hopeless: list[int] = []
    skipped: list[int] = []
    d, free, used, is_open = 0, limit[0] if limit else 0.0, 0, False
    while ready or skipped or hopeless:
        v = ready[0] if ready else -1
        fits = v >= 0 and d < len(limit) and bool(able[d, v]) and memory[v] <= free
        if v >= 0 and not fits and last[v] <= d:
            heapq.heappush(hopeless, heapq.heappop(ready))
            continue
        if v >= 0 and not fits and squeeze:
            skipped.append(heapq.heappop(ready))
            continue
        over = bool(skipped) if v < 0 else not fits or (not is_open and used == most)
        if over:  # on to the next accelerator
            ready = sorted(ready + skipped)
            skipped, d, used, is_open = [], d + 1, 0, False
            free = limit[d] if d < len(limit) else 0.0
            continue
        if v >= 0:
            heapq.heappop(ready)
            if not is_open:
                devices.append(d)
                used, is_open = used + 1, True
            block[v] = len(devices) - 1
            free -= memory[v]
        else:
            v = heapq.heappop(hopeless)
            if not pool[v]:
                return None
            is_open = False
        for w in following[ptr[v] : ptr[v + 1]].tolist():
            waits[w] -= 1
            if not waits[w]:
                heapq.heappush(ready, w)
    return block, devices


def _split(tasks: Tasks, block: Ints, devices: list[int], mirrored: bool) -> Invocations:
    """Blocks of tasks as invocations: forward in order, then backward."""
    count = len(devices)
    again = list(range(count))[:: -1 if mirrored else 1]
    number = np.full(tasks.n, POOL, dtype=np.int64)
    used: list[int] = []
    for backward, b in [(False, b) for b in range(count)] + [(True, b) for b in again]:
        mine = (block == b) & (tasks.backward == backward)
        if mine.any():
            number[mine] = len(used)
            used.append(devices[b])
    return Invocations(np.array(used, dtype=np.int64), number)


def single(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """All tasks on the fastest device that runs and holds them.

    Raises InfeasibleError: there is none.
    """
    tasks, machine = problem.tasks, problem.machine
    total, needed = tasks.time.sum(axis=1), float(tasks.memory.sum())
    runs = np.isfinite(total)
    holds = needed <= machine.capacity * ROOM
    if not (runs & holds).any():
        if not runs.any():
            raise InfeasibleError("infeasible: no single device runs every task")
        raise InfeasibleError(
            f"infeasible: all tasks need {shown_bytes(needed, 6)}, a single device that runs them "
            f"has at most {shown_bytes(machine.capacity[runs].max(), 6)}"
        )
    device = int(np.argmin(np.where(runs & holds, total, np.inf)))
    return LatencySolution(schedule_order(net_of(problem), np.full(tasks.n, device), tasks.order))


def single_block(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Everything on one accelerator, or in the pool: whichever is fastest.

    Raises InfeasibleError: nothing holds it all.
    """
    best: tuple[float, Split] | None = None
    reason = InfeasibleError("infeasible: there is no device")
    for device in [POOL, *np.flatnonzero(~problem.machine.is_cpu).tolist()]:
        split = split_of_homes(problem, np.full(problem.tasks.n, device))
        try:
            value = problem.value(split)
        except InfeasibleError as error:
            reason = error
            continue
        if best is None or value < best[0]:
            best = value, split
    if best is None:
        raise reason
    return LatencySolution(best[1])


def greedy_operators(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Fill accelerator after accelerator in topological order; CPUs take what is left.

    The greedy algorithm of the 2020 paper, for single tasks: an accelerator takes tasks, with
    their colours, as long as the next one fits. What an accelerator cannot run waits for one that
    can. Neither times nor transfers count. Where something is left that way, its place is looked
    for anew, and the method is called `greedy-repaired`.

    Raises UsageError: an order is asked for, which greedy of blocks alone knows.
    """
    if asked.order != "best" or asked.sequence is not None:
        raise UsageError("--order and --sequence of method greedy are for --execution blocks")
    tasks, room = problem.tasks, memory_limits(problem)
    is_cpu = problem.machine.is_cpu
    devices = [*np.flatnonzero(~is_cpu).tolist(), *np.flatnonzero(is_cpu).tolist()]
    home = np.full(len(room.memory), -1, dtype=np.int64)
    left = by_first(tasks.together[tasks.order]).tolist()
    for d in devices:
        free, full = float(room.limit[d]), False
        for c in left:
            if full or not room.able[d, c]:
                continue
            full = bool(room.memory[c] > free)
            if not full:
                home[c] = d
                free -= room.memory[c]
        left = [c for c in left if home[c] < 0]
    return repaired_answer(problem, room, home, "greedy", run)


def heft(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Tasks by falling upward rank, each on the device where it ends first, gaps included.

    Devices are chosen, as published, as if transfers did not wait for each other; the schedule
    is then followed under the congestion rule. A device that is full is not chosen, and colours
    stay with their first task. Where that leaves no place for a task, large ones are packed
    beforehand, and the method is called `heft-packed`. O(n D (degree + gaps)).
    """
    net, room = net_of(problem), memory_limits(problem)
    order = falling(net, upward_rank(net))
    alone = room.applied_to(net).without_waiting()
    for home in attempts(room, run):
        found = inserted(alone, order, home[net.together])
        if found is not None:
            placement = schedule_order(net, found[1].device, found[0])
            return answer((placement, bool((home >= 0).any())), "heft", run)
    raise LimitError(FULL)


def heft_congested(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """HEFT where devices are chosen under the congestion rule, without insertion.

    Transfers occupy their channels while the schedule is built (Sinnen and Sousa 2005).
    """
    net = net_of(problem)
    found = list_schedule(net, memory_limits(problem), upward_rank(net), by_end=True, run=run)
    return answer(found, "heft-congested", run)
