"""The blocks of a pipeline schedule as arrays: what they wait for, overlap and hold.

Tessel, section III: a unit runs one block at a time, a block starts after what it waits for, and
memory counts from the start of a block on; blocks that start together count together (Eq. 1).

Times are compared as they stand after the first start: where a schedule begins says nothing about
how exact it is. What a block waits for may end a billionth of its own time too late, and later by
as much as doubles round at that distance; never by a share of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.check.violation import TOLERANCE, Violation, above

ROUNDING = 2.0**-48
"""What start times may be off by, relative to the time since the first start."""

DUST = 2.0**-38
"""The same of a repetend, whose times may be lost beside the others, relative to its span."""

MOST_AT_ONCE = 1 << 22
"""Waits of micro-batches that are looked at in one go."""

Record = Mapping[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Case(NamedTuple):
    """The passes as arrays, P of them; D units."""

    names: list[str]
    """Of the passes."""
    units: list[str]
    """Names of the units."""
    time: Floats
    """f64[P]."""
    memory: Floats
    """f64[P]."""
    homes: list[list[list[int]]]
    """Units of each pass, ascending, by micro-batch modulo their number."""
    tail: Ints
    """i64[e]; pass `head[i]` starts at least `delay[i]` after pass `tail[i]` has ended."""
    head: Ints
    delay: Floats
    fixed: Floats
    """f64[D]."""
    limit: Floats
    """f64[D], inf: none."""


class Times(NamedTuple):
    """When passes start, and how exact that is."""

    start: Floats
    """f64[micro-batches, P], since the first start."""
    first: float
    """The first start as it is stated."""
    relative: float
    """What a time may be off by: so much of itself, ..."""
    absolute: float
    """... and so much besides."""
    period: float | None = None
    """With a period all of it repeats."""

    def grain(self, at: Floats) -> Floats:
        """What times may be off by."""
        return self.relative * at + self.absolute

    @property
    def where(self) -> str:
        """What it is the start of messages about."""
        return "" if self.period is None else "repetend: "


class Entries(NamedTuple):
    """One entry for each block and unit that it runs on; times in seconds."""

    unit: Ints
    batch: Ints
    number: Ints
    """Position of its pass."""
    start: Floats


def case_of(schedule: Record) -> Case:
    """The arrays of a schedule record whose numbers all name something."""
    passes, units = schedule["passes"], schedule["units"]
    waits = [
        (wait["pass"], number, wait.get("delay_s", 0.0))
        for number, row in enumerate(passes)
        for wait in row["after"]
    ]
    return Case(
        names=[row["name"] for row in passes],
        units=[unit["name"] for unit in units],
        time=np.array([row["time_s"] for row in passes], dtype=np.float64),
        memory=np.array([row.get("memory_bytes", 0.0) for row in passes], dtype=np.float64),
        homes=[[sorted(home) for home in row["homes"]] for row in passes],
        tail=np.array([w[0] for w in waits], dtype=np.int64),
        head=np.array([w[1] for w in waits], dtype=np.int64),
        delay=np.array([w[2] for w in waits], dtype=np.float64),
        fixed=np.array([unit.get("fixed_bytes", 0.0) for unit in units], dtype=np.float64),
        limit=np.array([unit.get("memory_bytes", math.inf) for unit in units], dtype=np.float64),
    )


def times_of(start: Floats) -> Times:
    """Times of blocks that run once, f64[N, P]."""
    first = float(start.min())
    return Times(start - first, first, ROUNDING, 0.0)


def repeating(case: Case, start: Floats, period: float) -> Times:
    """Times of blocks that repeat, f64[u, P]."""
    first = float(start.min())
    since = start - first
    whole = max(float((since + case.time).max()), period)
    return Times(since, first, 0.0, min(DUST * whole, TOLERANCE * period), period)


def entries_of(case: Case, times: Times) -> Entries:
    """An entry of each block on each unit."""
    start = times.start
    columns: list[tuple[Ints, int, int]] = []
    every = np.arange(len(start), dtype=np.int64)
    for number, homes in enumerate(case.homes):
        for turn, home in enumerate(homes[: len(start)]):
            columns += [(every[turn :: len(homes)], number, unit) for unit in home]
    sizes = [len(batches) for batches, _, _ in columns]
    batch = np.concatenate([batches for batches, _, _ in columns])
    numbers = np.repeat(np.array([p for _, p, _ in columns], dtype=np.int64), sizes)
    unit = np.repeat(np.array([u for _, _, u in columns], dtype=np.int64), sizes)
    return Entries(unit, batch, numbers, start[batch, numbers])


def label(case: Case, batch: int, number: int) -> str:
    """A block, for messages."""
    return f"{case.names[number]} of micro-batch {batch}"


def _by_unit(unit: Ints) -> list[tuple[int, Ints]]:
    """Units that occur, and the positions where they do."""
    order = np.argsort(unit, kind="stable")
    cuts = np.flatnonzero(np.diff(unit[order])) + 1
    return [(int(unit[part[0]]), part) for part in np.split(order, cuts) if len(part)]


def late(case: Case, times: Times) -> list[Violation]:
    """Every block starts after what it waits for."""
    found = []
    lasting = (case.time[case.tail] + case.delay) * (1 - TOLERANCE)
    step = max(MOST_AT_ONCE // max(len(lasting), 1), 1)
    for top in range(0, len(times.start), step):
        start = times.start[top : top + step]
        head, ready = start[:, case.head], start[:, case.tail] + lasting
        for row, wait in np.argwhere(ready - head > times.grain(ready)).tolist():
            number, tail = int(case.head[wait]), int(case.tail[wait])
            got = times.first + float(head[row, wait])
            length = float(case.time[tail]) + float(case.delay[wait])
            expected = times.first + float(start[row, tail]) + length
            message = f"starts at {got!r}, before {expected!r}, when {case.names[tail]} allows"
            subject = times.where + label(case, top + row, number)
            found.append(Violation("wait", subject, message, expected, got))
    return found


def overlaps(case: Case, times: Times, entries: Entries, span: float) -> list[Violation]:
    """No unit runs two blocks at a time, nor more than its time; no time, no harm."""
    found = []
    time, period = case.time[entries.number], times.period
    busy = np.flatnonzero(time > times.grain(entries.start))
    room = span if period is None else period
    for unit, part in _by_unit(entries.unit[busy]):
        mine = busy[part]
        at = entries.start[mine] if period is None else _phase(entries.start[mine], times)[0]
        order = np.argsort(at, kind="stable")
        mine, at = mine[order], at[order]
        until = np.maximum.accumulate(at + time[mine] * (1 - TOLERANCE))
        following = np.append(at[1:], math.inf if period is None else at[0] + period)
        for i in np.flatnonzero(until - following > times.grain(until)).tolist():
            batch, number = int(entries.batch[mine[i]]), int(entries.number[mine[i]])
            after = int(mine[(i + 1) % len(mine)])
            other = label(case, int(entries.batch[after]), int(entries.number[after]))
            free = times.first + float((at + time[mine])[: i + 1].max())
            message = f"{other} starts at {times.first + float(following[i])!r}, before {free!r}, "
            message += f"when {case.units[unit]} is free"
            found.append(Violation("overlap", times.where + label(case, batch, number), message))
        total = math.fsum(time[mine].tolist())
        if above(total, room):
            message = f"is busy for {total!r} of {room!r}"
            subject = f"{times.where}unit {case.units[unit]}"
            found.append(Violation("overlap", subject, message, room, total))
    return found


def _phase(start: Floats, times: Times) -> tuple[Floats, Floats]:
    """Start modulo the period, exactly, and how often the period fits before it."""
    period = times.period or math.inf
    phase = np.fmod(start, period)
    phase = np.where(phase > period - times.absolute, 0.0, phase)
    return phase, np.rint((start - phase) / period)


def _highest(at: Floats, memory: Floats, times: Times) -> float:
    """Largest sum of what was added up to some time; what is added at one time goes together."""
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(memory[order])
    last = np.append(np.diff(at) > times.grain(at[1:]), True)
    return float(level[last].max())


def peaks_of(case: Case, times: Times, entries: Entries) -> Floats:
    """Most that each unit holds while every block runs once; f64[D].

    With a period, while they repeat: inf where that grows without end. Of a block that first
    starts at s, floor((t - s) / period) + 1 have started at time t. Where as much is released as
    is held, the sum over blocks is the same a period later.
    """
    peaks = case.fixed.copy()
    memory = case.memory[entries.number]
    holding = np.flatnonzero(memory)
    for unit, part in _by_unit(entries.unit[holding]):
        mine = holding[part]
        at, before = entries.start[mine], 0.0
        if times.period is not None:
            if memory[mine].sum() > TOLERANCE * np.abs(memory[mine]).sum():
                peaks[unit] = math.inf
                continue
            at, lag = _phase(at, times)
            before = -float((memory[mine] * lag).sum())
        peaks[unit] += max(before + _highest(at, memory[mine], times), 0.0)
    return peaks
