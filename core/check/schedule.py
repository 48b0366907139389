"""Validate a pipeline schedule: recompute all it says, and return everything that does not hold.

Works on the `schedule` record and its `block` records, as decoded from JSON and already checked
one by one; what blocks do to the units they run on is in `core.check.blocks`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dnnp.core.check.blocks import (
    Entries,
    Floats,
    PassCase,
    Record,
    case_of,
    entries_of,
    label,
    late,
    overlaps,
    peaks_of,
    steps,
    times_of,
)
from dnnp.core.check.graph import on_a_cycle
from dnnp.core.check.violation import ROUNDING, TOLERANCE, Violation, above, same

FURTHEST = 2.0**22
"""Periods from the first start of a repetend to its last end after which doubles say nothing."""


@dataclass(frozen=True)
class ScheduleReport:
    """What a schedule is, recomputed, and what is wrong with it."""

    violations: tuple[Violation, ...]
    makespan: float | None
    """First start to last end, seconds; None where blocks are missing or name nothing."""
    bubble: float | None
    """Idle share of the devices that have blocks."""
    peaks: tuple[float, ...]
    """Bytes that each unit holds at most; empty where `makespan` is None."""
    longest: float | None = None
    """The most that a micro-batch takes, from its first start to its last end, seconds."""


@np.errstate(over="ignore", invalid="ignore")
def check_schedule(schedule: Record, blocks: Sequence[Record]) -> ScheduleReport:
    """Recompute a schedule from its blocks and compare.

    Parameters
    ----------
    schedule
        The schedule record; it may be wrong in any way that its types allow.
    blocks
        Its block records, each after those that it waits for.
    """
    found = _form(schedule)
    if found:
        return ScheduleReport(tuple(found), None, None, ())
    case = case_of(schedule)
    start, found = _grid(schedule, case, blocks)
    if start is None:
        return ScheduleReport((*found, *_pareto(schedule)), None, None, ())
    times = times_of(case, start)
    makespan = times.span
    entries = entries_of(case, times)
    found += late(case, times)
    found += overlaps(case, times, entries)
    peaks = peaks_of(case, times, entries)
    found += _memory(case, schedule, peaks)
    bubble, wrong = _totals(case, schedule, entries, makespan)
    found += wrong
    found += _rate(case, schedule, makespan)
    if "repetend" in schedule:
        found += _repetend(case, schedule)
    found += _points(case, schedule)
    longest = float(((times.start + case.time).max(axis=1) - times.start.min(axis=1)).max())
    violations = (*found, *_pareto(schedule))
    return ScheduleReport(violations, makespan, bubble, tuple(peaks.tolist()), longest)


def _form(schedule: Record) -> list[Violation]:
    """Names are unique, numbers name something, and passes do not wait in a circle."""
    found = []
    units, passes = schedule["units"], schedule["passes"]
    for what, rows in (("units", units), ("passes", passes)):
        twice = next((name for name, n in Counter(r["name"] for r in rows).items() if n > 1), None)
        if twice is not None:
            found.append(Violation("block", "schedule", f"has two {what} named '{twice}'"))
    if not passes:
        found.append(Violation("block", "schedule", "has no passes"))
    waits: dict[int, list[int]] = {}
    for number, row in enumerate(passes):
        subject = f"pass {row['name']}"
        if not row["homes"] or not all(row["homes"]):
            found.append(Violation("block", subject, "has no unit"))
        for home in row["homes"]:
            if len(set(home)) < len(home) or not all(0 <= d < len(units) for d in home):
                message = f"its units {home} are not distinct positions below {len(units)}"
                found.append(Violation("block", subject, message))
            elif row["kind"] != "transfer" and any(units[d].get("link", False) for d in home):
                found.append(Violation("block", subject, "is no transfer, but runs on a link"))
        waits[number] = [wait["pass"] for wait in row["after"]]
        unknown = [p for p in waits[number] if not 0 <= p < len(passes)]
        if unknown:
            message = f"waits for pass {unknown[0]}; there are {len(passes)}"
            found.append(Violation("wait", subject, message))
            waits[number] = []
    circle = on_a_cycle(waits)
    if circle:
        shown = " -> ".join(passes[p]["name"] for p in reversed(circle))
        found.append(Violation("wait", "schedule", f"passes wait for each other: {shown}"))
    return found


def _grid(
    schedule: Record, case: PassCase, blocks: Sequence[Record]
) -> tuple[Floats | None, list[Violation]]:
    """Start of each pass of each micro-batch, f64[N, P]; None unless there is one of each."""
    found = []
    count, width = schedule["micro_batches"], len(case.names)
    seen: dict[tuple[int, int], float] = {}
    first = min((float(block["start_s"]) for block in blocks), default=0.0)
    for position, block in enumerate(blocks):
        number, batch = block["pass"], block["micro_batch"]
        if not (0 <= number < width and 0 <= batch < count):
            message = f"pass {number} of micro-batch {batch}; there are {width} and {count}"
            found.append(Violation("block", f"block {position}", message))
            continue
        if (batch, number) in seen:
            found.append(Violation("block", label(case, batch, number), "runs twice"))
        start, end = float(block["start_s"]), float(block["end_s"])
        seen[batch, number] = start
        homes, time = case.homes[number], float(case.time[number])
        home = homes[batch % len(homes)]
        if sorted(block["units"]) != home:
            message = f"runs on units {block['units']}, expected {home}"
            found.append(Violation("block", label(case, batch, number), message))
        since = end - first
        if not abs(since - (start - first) - time) <= TOLERANCE * time + ROUNDING * since:
            message = f"runs from {start!r} to {end!r}; its pass takes {time!r}"
            found.append(Violation("block", label(case, batch, number), message, time))
    if len(seen) < count * width:
        places = ((batch, number) for batch in range(count) for number in range(width))
        batch, number = next(place for place in places if place not in seen)
        message = f"{count * width - len(seen)} of {count * width} blocks are missing: the first is"
        message += f" {label(case, batch, number)}"
        found.append(Violation("block", "schedule", message))
        return None, found
    keys = np.array(list(seen), dtype=np.int64)
    start_s, place = np.empty((count, width)), np.empty((count, width), dtype=np.int64)
    start_s[keys[:, 0], keys[:, 1]] = list(seen.values())
    place[keys[:, 0], keys[:, 1]] = np.arange(len(keys))
    for top in (some := steps(case, count)):
        rows = place[top : top + some.step]
        for row, wait in np.argwhere(rows[:, case.tail] > rows[:, case.head]).tolist():
            tail, head = int(case.tail[wait]), int(case.head[wait])
            message = f"its record stands before that of {case.names[tail]}, which it waits for"
            found.append(Violation("wait", label(case, top + row, head), message))
    return start_s, found


def _memory(case: PassCase, schedule: Record, peaks: Floats) -> list[Violation]:
    """Peaks are as stated, and within the limits."""
    found = _capacity(case, peaks, "")
    scales = _scales(case).tolist()
    for unit, peak, scale in zip(schedule["units"], peaks.tolist(), scales, strict=True):
        stated = float(unit["peak_bytes"])
        if not same(stated, peak, scale):
            message = f"peak_bytes is {stated!r}, recomputed {peak!r}"
            found.append(Violation("load", f"unit {unit['name']}", message, peak, stated))
    return found


def _scales(case: PassCase) -> Floats:
    """Size of the terms that make up what each unit holds; f64[D]."""
    scale = [0.0] * len(case.fixed)
    for memory, homes in zip(np.abs(case.memory).tolist(), case.homes, strict=True):
        for unit in chain.from_iterable(homes):
            scale[unit] = max(scale[unit], memory)
    return np.array(scale)


def _capacity(case: PassCase, peaks: Floats, where: str) -> list[Violation]:
    """Peaks are within the limits."""
    found = []
    scales = _scales(case)
    for unit in np.flatnonzero(peaks > case.limit).tolist():
        peak, limit = float(peaks[unit]), float(case.limit[unit])
        if not same(peak, limit, float(scales[unit])):
            message = f"holds {peak!r} bytes, more than {limit!r}"
            subject = f"{where}unit {case.units[unit]}"
            found.append(Violation("capacity", subject, message, limit, peak))
    return found


def _totals(
    case: PassCase, schedule: Record, entries: Entries, makespan: float
) -> tuple[float, list[Violation]]:
    """The bubble; busy times, makespan and bubble are as stated; the bound is one."""
    units = schedule["units"]
    busy = np.bincount(entries.unit, case.time[entries.number], minlength=len(units)).tolist()
    used = {unit for homes in case.homes for home in homes for unit in home}
    devices = [d for d, unit in enumerate(units) if d in used and not unit.get("link", False)]
    whole = makespan * len(devices)
    bubble = 1.0 - math.fsum(busy[d] for d in devices) / whole if whole > 0 else 0.0
    found = []
    for unit, time in zip(units, busy, strict=True):
        if not same(unit["busy_s"], time):
            message = f"busy_s is {unit['busy_s']!r}, recomputed {time!r}"
            found.append(Violation("load", f"unit {unit['name']}", message, time, unit["busy_s"]))
    stated = schedule["makespan_s"]
    if not same(stated, makespan):
        message = f"makespan_s is {stated!r}, recomputed {makespan!r}"
        found.append(Violation("value", "schedule", message, makespan, stated))
    if not same(schedule["bubble"], bubble, 1.0):
        message = f"the bubble is {schedule['bubble']!r}, recomputed {bubble!r}"
        found.append(Violation("value", "schedule", message, bubble, schedule["bubble"]))
    found += _bounds(schedule["status"], "schedule", [("bound_s", schedule["bound_s"], makespan)])
    return bubble, found


def _bounds(status: str, subject: str, rows: Sequence[tuple[str, float, float]]) -> list[Violation]:
    """No bound (name, bound, value) exceeds its value; `optimal` means that they are equal."""
    found = []
    for name, bound, value in rows:
        if above(bound, value):
            message = f"{name} is {bound!r}, above the value {value!r}"
            found.append(Violation("bound", subject, message, value, bound))
        elif status == "optimal" and not same(bound, value):
            message = f"says that it is optimal, but {name} is {bound!r} and the value {value!r}"
            found.append(Violation("status", subject, message, value, bound))
    return found


def _rate(case: PassCase, schedule: Record, makespan: float) -> list[Violation]:
    """The bound of the rate is none if the whole schedule, or its repetend, repeats faster."""
    bound = float(schedule["rate_bound_s"])
    count = schedule["micro_batches"]
    reached = []
    left = [0.0] * len(case.fixed)
    for memory, homes in zip(case.memory.tolist(), case.homes, strict=True):
        for unit in chain.from_iterable(homes):
            left[unit] += memory / len(homes)
    again = not any(count % len(homes) for homes in case.homes)
    if again and max(left) <= TOLERANCE * np.abs(case.memory).sum():
        reached.append(makespan / count)
    if "repetend" in schedule:
        reached.append(schedule["repetend"]["period_s"] / schedule["repetend"]["unroll"])
    found = []
    if "rate_s" in schedule:
        stated = float(schedule["rate_s"])
        if "repetend" in schedule and not same(stated, reached[-1]):
            message = f"rate_s is {stated!r}, its repetend takes {reached[-1]!r}"
            found.append(Violation("value", "schedule", message, reached[-1], stated))
        least = float(_load(case).max(initial=0.0))
        if above(least, stated):
            message = f"rate_s is {stated!r}, but a unit is busy for {least!r}"
            found.append(Violation("value", "schedule", message, least, stated))
        reached.append(stated)
    return found + _bounds("", "schedule", [("rate_bound_s", bound, value) for value in reached])


def _repeated(
    case: PassCase, unroll: int, period: float, rows: Sequence[Sequence[float]], subject: str
) -> tuple[list[Violation], float | None, float | None]:
    """What does not hold while micro-batches repeat; their span, and most that a unit holds.

    None for both where starts are missing.
    """
    if len(rows) != unroll or any(len(row) != len(case.names) for row in rows):
        message = f"starts_s is not {unroll} lists of {len(case.names)} starts"
        return [Violation("block", subject, message)], None, None
    for name, homes in zip(case.names, case.homes, strict=True):
        if unroll % len(homes):
            message = f"has {unroll} micro-batches, but the units of {name} repeat every "
            message += f"{len(homes)}"
            return [Violation("block", subject, message, None, unroll)], None, None
    times = times_of(case, np.array(rows, dtype=np.float64), period, f"{subject}: ")
    found = late(case, times)
    peaks = case.fixed
    if 0 < period * FURTHEST < times.span:
        message = f"spans {times.span!r}, which says nothing about a period of {period!r}"
        found.append(Violation("overlap", subject, message))
    elif period > 0:
        entries = entries_of(case, times)
        found += overlaps(case, times, entries)
        peaks = peaks_of(case, times, entries)
        found += _capacity(case, peaks, f"{subject}: ")
    elif case.time.any():
        found.append(Violation("overlap", subject, "its period is 0, but passes take time"))
    # What grows with every micro-batch has no peak; only units without a limit may do that.
    return found, times.span, float(peaks[np.isfinite(peaks)].max(initial=0.0))


def _repetend(case: PassCase, schedule: Record) -> list[Violation]:
    """What repeats: units, waits and memory for as long as it does, and its figures."""
    repetend = schedule["repetend"]
    unroll, period = repetend["unroll"], float(repetend["period_s"])
    found, span, memory = _repeated(case, unroll, period, repetend["starts_s"], "repetend")
    if span is None or memory is None:
        return found
    for name, expected in (("memory_bytes", memory), ("span_s", span)):
        scale = float(_scales(case).max()) if name == "memory_bytes" else 0.0
        if not same(repetend[name], expected, scale):
            message = f"{name} is {repetend[name]!r}, recomputed {expected!r}"
            found.append(Violation("value", "repetend", message, expected, repetend[name]))
    names = (("period_bound_s", period), ("memory_bound_bytes", memory), ("span_bound_s", span))
    bounds = [(name, float(repetend[name]), value) for name, value in names]
    return found + _bounds(repetend["status"], "repetend", bounds)


def _points(case: PassCase, schedule: Record) -> list[Violation]:
    """Points of the trade-off repeat as they say and hold what they say."""
    found = []
    least, scale = float(_load(case).max(initial=0.0)), float(_scales(case).max())
    for number, point in enumerate(schedule.get("pareto", ())):
        subject, period, unroll = f"pareto {number}", float(point["period_s"]), point["unroll"]
        if above(least, period):
            message = f"the period is {period!r}, but a unit is busy for {least!r}"
            found.append(Violation("value", subject, message, least, period))
        if "starts_s" in point:
            wrong, _, memory = _repeated(case, unroll, period * unroll, point["starts_s"], subject)
            found += wrong
            if memory is not None and not same(point["memory_bytes"], memory, scale):
                message = f"memory_bytes is {point['memory_bytes']!r}, recomputed {memory!r}"
                found.append(Violation("value", subject, message, memory, point["memory_bytes"]))
    return found


def _load(case: PassCase) -> Floats:
    """Time that each unit is busy for a micro-batch, on average; f64[D]."""
    load = [0.0] * len(case.fixed)
    for time, homes in zip(case.time.tolist(), case.homes, strict=True):
        for unit in chain.from_iterable(homes):
            load[unit] += time / len(homes)
    return np.array(load)


def _pareto(schedule: Record) -> list[Violation]:
    """More memory does not mean a longer period, and no bound exceeds its period."""
    found = []
    points = schedule.get("pareto", ())
    for number, point in enumerate(points):
        subject, period = f"pareto {number}", float(point["period_s"])
        rows = [("period_bound_s", float(point["period_bound_s"]), period)]
        found += _bounds("", subject, rows)
        if number:
            before = points[number - 1]
            if above(before["memory_bytes"], point["memory_bytes"]):
                message = f"memory falls from {before['memory_bytes']!r}"
                found.append(Violation("value", subject, message, None, point["memory_bytes"]))
            if above(period, before["period_s"]):
                message = f"the period rises from {before['period_s']!r}"
                found.append(Violation("value", subject, message, before["period_s"], period))
    return found
