"""Latency where every task is placed by itself (Moirai, Section III.D; `operators`).

A device runs one task at a time. A flow moves once to every device that has readers of it and
is not its maker's. A task starts when its device is free and all it reads has arrived, a transfer
when its flow is made and its channel is free:

    device   a device sends one flow at a time, and receives one at a time (Moirai, Eq. 8)
    channel  from one device to one other, one flow at a time
    none     transfers never wait for each other

Who goes first is decided by one sequence of events, tasks and transfers: every event starts as
early as those before it allow. Every schedule without needless waiting is that of some sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.invocations import check_homes
from dnnp.core.cost.machine import Machine
from dnnp.core.cost.tasks import Tasks
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints

TASK = -1
"""Flow of an event that is a task."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Who runs what, and who goes first."""

    device: Ints
    """i64[n], device (number in the machine) of each task."""
    events: Ints
    """i64[e, 2]: (`TASK`, task), or (flow, device that receives it); each exactly once, after
    what it waits for."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """When everything happens."""

    value: float
    """Latency: the end of the last task."""
    start_s: Floats
    """f64[n], start of each task."""
    end_s: Floats
    moves: Ints
    """i64[m, 3], flow, sender and receiver of each transfer, in the order of the events."""
    move_start_s: Floats
    move_end_s: Floats
    """f64[m] each."""


def simulate(tasks: Tasks, machine: Machine, placement: Placement, congestion: str) -> Timeline:
    """Compute the times of a placement; the limits are `check_homes`' business.

    Raises
    ------
    FormatError
        An event comes before what it waits for, is missing, there twice, or needless.
    """
    device = placement.device.tolist()
    n, count = tasks.n, machine.count
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    busy = [0.0] * count
    sending, receiving = np.zeros((count, count)), np.zeros((count, count))
    arrival: dict[tuple[int, int], float] = {}
    moves, begins, ends = [], [], []
    for flow, what in placement.events.tolist():
        if flow == TASK:
            d = device[what]
            ready = busy[d]
            for f in tasks.in_idx[tasks.in_ptr[what] : tasks.in_ptr[what + 1]].tolist():
                maker = int(tasks.maker[f])
                here = device[maker] == d
                came = end[maker] if here else arrival.get((f, d), np.nan)
                if not came == came:
                    raise FormatError(f"task {what} comes before flow {f}, which it reads")
                ready = max(ready, came)
            if start[what] == start[what]:
                raise FormatError(f"task {what} is there twice")
            start[what] = ready
            end[what] = busy[d] = ready + tasks.time[d, what]
            continue
        maker = int(tasks.maker[flow])
        source = device[maker]
        readers = tasks.use_idx[tasks.use_ptr[flow] : tasks.use_ptr[flow + 1]]
        if what == source or (flow, what) in arrival or what not in placement.device[readers]:
            raise FormatError(f"flow {flow} needs no transfer to {machine.names[what]}")
        if not end[maker] == end[maker]:
            raise FormatError(f"flow {flow} moves before it is made")
        # With `device`, one lane of the sender and one of the receiver; with `channel`, their own.
        out = (source, source) if congestion == "device" else (source, what)
        come = (what, what) if congestion == "device" else (source, what)
        free = 0.0 if congestion == "none" else max(sending[out], receiving[come])
        begin = max(free, end[maker])
        length = (
            machine.latency[source, what]
            + tasks.size[flow] * machine.rate[source, what]
            + tasks.fixed[flow] * machine.charged[source, what]
        )
        sending[out] = receiving[come] = arrival[flow, what] = begin + length
        moves.append((flow, source, what))
        begins.append(begin)
        ends.append(begin + length)
    if np.isnan(end).any():
        raise FormatError(f"task {int(np.flatnonzero(np.isnan(end))[0])} is not among the events")
    return Timeline(
        value=float(end.max(initial=0.0)),
        start_s=start,
        end_s=end,
        moves=np.array(moves, dtype=np.int64).reshape(-1, 3),
        move_start_s=np.array(begins, dtype=np.float64),
        move_end_s=np.array(ends, dtype=np.float64),
    )


def check_placement(tasks: Tasks, machine: Machine, placement: Placement) -> None:
    """Check colours, memory and support; see `check_homes` for the errors."""
    check_homes(tasks, machine, placement.device)


def lazy_events(tasks: Tasks, device: Ints, order: Ints) -> Ints:
    """Events of tasks in `order` (i64[n]), every transfer just before the first task that reads it.

    Returns i64[e, 2], as in `Placement`.
    """
    moved: set[tuple[int, int]] = set()
    events: list[tuple[int, int]] = []
    for v in order.tolist():
        for f in tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist():
            move = (f, int(device[v]))
            if device[tasks.maker[f]] != device[v] and move not in moved:
                moved.add(move)
                events.append(move)
        events.append((TASK, v))
    return np.array(events, dtype=np.int64).reshape(-1, 2)
