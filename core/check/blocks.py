"""The blocks of a pipeline schedule as arrays: what they wait for, overlap and hold.

Tessel, section III: a unit runs one block at a time, a block starts after what it waits for, and
memory counts from the start of a block on; blocks that start together count together (Eq. 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.check.violation import TOLERANCE, Violation

Record = Mapping[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Case(NamedTuple):
    """The passes as arrays, P of them; D units."""

    names: list[str]
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
        time=np.array([row["time_s"] for row in passes], dtype=np.float64),
        memory=np.array([row.get("memory_bytes", 0.0) for row in passes], dtype=np.float64),
        homes=[[sorted(home) for home in row["homes"]] for row in passes],
        tail=np.array([w[0] for w in waits], dtype=np.int64),
        head=np.array([w[1] for w in waits], dtype=np.int64),
        delay=np.array([w[2] for w in waits], dtype=np.float64),
        fixed=np.array([unit.get("fixed_bytes", 0.0) for unit in units], dtype=np.float64),
        limit=np.array([unit.get("memory_bytes", math.inf) for unit in units], dtype=np.float64),
    )


def entries_of(case: Case, start: Floats) -> Entries:
    """Entries of blocks that start at `start`, f64[N, P]."""
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


def late(case: Case, start: Floats, slack: float, where: str) -> list[Violation]:
    """Every block starts after what it waits for; `start` is f64[micro-batches, P]."""
    earliest = start[:, case.tail] + case.time[case.tail] + case.delay
    found = []
    for batch, wait in np.argwhere(earliest - start[:, case.head] > slack).tolist():
        head, other = int(case.head[wait]), case.names[int(case.tail[wait])]
        got, expected = float(start[batch, head]), float(earliest[batch, wait])
        message = f"starts at {got!r}, before {expected!r}, when {other} allows"
        found.append(Violation("wait", where + label(case, batch, head), message, expected, got))
    return found


def overlaps(
    case: Case, schedule: Record, entries: Entries, slack: float, period: float | None
) -> list[Violation]:
    """No unit runs two blocks at a time; with a period all of them repeat. No time, no harm."""
    found = []
    time = case.time[entries.number]
    busy = np.flatnonzero(time > slack)
    where = "" if period is None else "repetend: "
    for unit, part in _by_unit(entries.unit[busy]):
        mine = busy[part]
        at = entries.start[mine]
        if period is not None:
            at = _phase(at, period, slack)[0]
        order = np.argsort(at, kind="stable")
        mine, at = mine[order], at[order]
        until = np.maximum.accumulate(at + time[mine])
        following = np.append(at[1:], math.inf if period is None else at[0] + period)
        for i in np.flatnonzero(until - following > slack).tolist():
            batch, number = int(entries.batch[mine[i]]), int(entries.number[mine[i]])
            after = int(mine[(i + 1) % len(mine)])
            other = label(case, int(entries.batch[after]), int(entries.number[after]))
            name = schedule["units"][unit]["name"]
            message = f"{other} starts at {float(following[i])!r}, before {float(until[i])!r}, "
            message += f"when {name} is free"
            subject = where + label(case, batch, number)
            found.append(Violation("overlap", subject, message))
    return found


def _phase(start: Floats, period: float, slack: float) -> tuple[Floats, Floats]:
    """Start modulo the period, and how often the period fits before it."""
    lag = np.floor((start + slack) / period)
    return np.maximum(start - lag * period, 0.0), lag


def _highest(at: Floats, memory: Floats, slack: float) -> float:
    """Largest sum of what was added up to some time; what is added at one time goes together."""
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(memory[order])
    last = np.append(np.diff(at) > slack, True)
    return float(level[last].max())


def peaks_of(case: Case, entries: Entries, slack: float) -> Floats:
    """Most that each unit holds while every block runs once; f64[D]."""
    peaks = case.fixed.copy()
    memory = case.memory[entries.number]
    holding = np.flatnonzero(memory)
    for unit, part in _by_unit(entries.unit[holding]):
        mine = holding[part]
        peaks[unit] += max(_highest(entries.start[mine], memory[mine], slack), 0.0)
    return peaks


def steady_peaks(case: Case, entries: Entries, period: float, slack: float) -> Floats:
    """Most that each unit holds while blocks repeat; f64[D], inf where it grows without end.

    Of a block that first starts at s, floor((t - s) / period) + 1 have started at time t. Where
    as much is released as is held, the sum over blocks is the same a period later.
    """
    peaks = case.fixed.copy()
    memory = case.memory[entries.number]
    holding = np.flatnonzero(memory)
    for unit, part in _by_unit(entries.unit[holding]):
        mine = holding[part]
        if memory[mine].sum() > TOLERANCE * np.abs(memory[mine]).sum():
            peaks[unit] = math.inf
            continue
        phase, lag = _phase(entries.start[mine], period, slack)
        before = -float((memory[mine] * lag).sum())
        peaks[unit] += max(before + _highest(phase, memory[mine], slack), 0.0)
    return peaks
