"""The blocks of a pipeline schedule as arrays: what they wait for, overlap and hold.

Tessel, section III: a unit runs one block at a time, a block starts after what it waits for, and
memory counts from the start of a block on; blocks that start together count together (Eq. 1).

Times are compared as they stand after the first start: where a schedule begins says nothing about
how exact it is. A block may start a billionth of what it waits for too early, and by what is lost
beside the whole (`DUST`), but all that is lost is not a billionth of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.check.violation import ROUNDING, TOLERANCE, Violation

DUST = 2.0**-38
"""Times this short, relative to all of a schedule, are lost beside it."""

MOST_AT_ONCE = 1 << 22
"""Waits of micro-batches that are looked at in one go."""

Record = Mapping[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PassCase(NamedTuple):
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
    span: float
    """First start to last end."""
    period: float | None = None
    """With a period all of it repeats."""
    where: str = ""
    """What messages begin with."""

    @property
    def room(self) -> float:
        """Time that each unit has."""
        return self.span if self.period is None else self.period

    @property
    def dust(self) -> float:
        """What starts may be early by."""
        return min(DUST * max(self.span, self.room), TOLERANCE * self.room)

    @property
    def tick(self) -> float:
        """How far apart starts of what repeats may be that are the same time."""
        return min(ROUNDING * max(self.span, self.room), self.dust)


class Entries(NamedTuple):
    """One entry for each block and unit that it runs on; times in seconds."""

    unit: Ints
    batch: Ints
    number: Ints
    """Position of its pass."""
    start: Floats


def case_of(schedule: Record) -> PassCase:
    """The arrays of a schedule record whose numbers all name something."""
    passes, units = schedule["passes"], schedule["units"]
    waits = [
        (wait["pass"], number, wait.get("delay_s", 0.0))
        for number, row in enumerate(passes)
        for wait in row["after"]
    ]
    return PassCase(
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


def times_of(case: PassCase, start: Floats, period: float | None = None, where: str = "") -> Times:
    """Times of blocks that start at `start`, f64[micro-batches, P]."""
    first = float(start.min())
    since = start - first
    return Times(since, first, float((since + case.time).max()), period, where)


def entries_of(case: PassCase, times: Times) -> Entries:
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


def label(case: PassCase, batch: int, number: int) -> str:
    """A block, for messages."""
    return f"{case.names[number]} of micro-batch {batch}"


def _by_unit(unit: Ints) -> list[tuple[int, Ints]]:
    """Units that occur, and the positions where they do."""
    order = np.argsort(unit, kind="stable")
    cuts = np.flatnonzero(np.diff(unit[order])) + 1
    return [(int(unit[part[0]]), part) for part in np.split(order, cuts) if len(part)]


def steps(case: PassCase, count: int) -> range:
    """First ones of so many micro-batches that are looked at together, for all waits."""
    return range(0, count, max(MOST_AT_ONCE // max(len(case.tail), 1), 1))


def late(case: PassCase, times: Times) -> list[Violation]:
    """Every block starts after what it waits for."""
    found, lost = [], 0.0
    lasting = (case.time[case.tail] + case.delay) * (1 - TOLERANCE)
    for top in (some := steps(case, len(times.start))):
        start = times.start[top : top + some.step]
        head = start[:, case.head]
        early = start[:, case.tail] + lasting - head
        for row, wait in np.argwhere(early > times.dust).tolist():
            number, tail = int(case.head[wait]), int(case.tail[wait])
            got = times.first + float(head[row, wait])
            length = float(case.time[tail]) + float(case.delay[wait])
            expected = times.first + float(start[row, tail]) + length
            message = f"starts at {got!r}, before {expected!r}, when {case.names[tail]} allows"
            subject = times.where + label(case, top + row, number)
            found.append(Violation("wait", subject, message, expected, got))
        lost += float(early[early > 0].sum())
    if not found and lost > TOLERANCE * times.span:
        message = f"blocks start {lost!r} too early in all"
        found.append(Violation("wait", f"{times.where}schedule", message, 0.0, lost))
    return found


def overlaps(case: PassCase, times: Times, entries: Entries) -> list[Violation]:
    """No unit runs two blocks at a time; no time, no harm."""
    found = []
    for unit, part in _by_unit(entries.unit):
        time = case.time[entries.number[part]]
        busy = time > times.dust
        lost = math.fsum(time[~busy].tolist())
        wrong, over = _one_at_a_time(case, times, entries, part[busy])
        found += wrong
        lost += over
        if not wrong and lost > TOLERANCE * times.room:
            message = f"blocks overlap by {lost!r} in all"
            found.append(Violation("overlap", f"{times.where}unit {case.units[unit]}", message))
    return found


def _one_at_a_time(
    case: PassCase, times: Times, entries: Entries, mine: Ints
) -> tuple[list[Violation], float]:
    """Blocks of a unit that overlap, and by how much all of them do."""
    if not len(mine):
        return [], 0.0
    found, period = [], times.period
    at = entries.start[mine]
    if period is not None:
        at = _phase(at, period, times.dust)[0]
    order = np.argsort(at, kind="stable")
    mine, at = mine[order], at[order]
    time = case.time[entries.number[mine]]
    until = np.maximum.accumulate(at + time * (1 - TOLERANCE))
    following = np.append(at[1:], math.inf if period is None else at[0] + period)
    over = until - following
    for i in np.flatnonzero(over > times.dust).tolist():
        batch, number = int(entries.batch[mine[i]]), int(entries.number[mine[i]])
        after = int(mine[(i + 1) % len(mine)])
        other = label(case, int(entries.batch[after]), int(entries.number[after]))
        free = times.first + float((at + time)[: i + 1].max())
        message = f"{other} starts at {times.first + float(following[i])!r}, before {free!r}, "
        message += f"when {case.units[int(entries.unit[mine[i]])]} is free"
        found.append(Violation("overlap", times.where + label(case, batch, number), message))
    return found, float(over[over > 0].sum())


def _phase(start: Floats, period: float, slack: float) -> tuple[Floats, Floats]:
    """Start modulo the period, and how often the period fits before it."""
    phase = np.fmod(start, period)
    phase = np.where(phase > period - slack, 0.0, phase)
    return phase, np.rint((start - phase) / period)


def _highest(at: Floats, memory: Floats, times: Times) -> float:
    """Largest sum of what was added up to some time; what is added at one time goes together."""
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(memory[order])
    tick = ROUNDING * at[1:] if times.period is None else times.tick
    last = np.append(np.diff(at) > tick, True)
    return float(level[last].max())


def peaks_of(case: PassCase, times: Times, entries: Entries) -> Floats:
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
            at, lag = _phase(at, times.period, times.tick)
            before = -float((memory[mine] * lag).sum())
        peaks[unit] += max(before + _highest(at, memory[mine], times), 0.0)
    return peaks
