"""Validate a pipeline schedule: recompute it, compare it with its plan, and return all violations.

Works on plain records, as decoded from JSON and already checked one by one. Tessel, section III: a
unit runs one block at a time, a block starts after what it waits for, and memory counts from the
start of a block on; blocks that start together count together (Eq. 1).

Times are compared relative to the first start: the origin of a schedule does not bear on how exact
it is. A block may start early by a billionth of its wait, and by a rounding error of the whole
schedule (`EARLINESS`); all early starts together may not reach a billionth of the whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.check.graph import on_a_cycle
from dnnp.core.check.violation import ROUNDING, TOLERANCE, Record, Violation, above, differs, same

EARLINESS = 2.0**-38
"""Largest early start that counts as rounding, relative to the whole schedule."""

MOST_AT_ONCE = 1 << 22
"""Waits of micro-batches that are checked at once."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PassCase(NamedTuple):
    """The passes as arrays, P of them; D units."""

    names: list[str]
    """Names of the passes."""
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

    def by_unit(self, values: Floats) -> Floats:
        """Sums of values of passes, f64[P], over a micro-batch on average; f64[D]."""
        found = [0.0] * len(self.fixed)
        for value, homes in zip(values.tolist(), self.homes, strict=True):
            for unit in chain.from_iterable(homes):
                found[unit] += value / len(homes)
        return np.array(found)


class Times(NamedTuple):
    """Starts of passes, and how exact they are."""

    start: Floats
    """f64[micro-batches, P], since the first start."""
    first: float
    """The first start as it is stated."""
    span: float
    """First start to last end."""
    period: float | None = None
    """With a period all of it repeats."""
    where: str = ""
    """Prefix of messages."""

    @property
    def window(self) -> float:
        """Time in which a unit does its passes once: the period, else the whole span."""
        return self.span if self.period is None else self.period

    @property
    def earliness(self) -> float:
        """Largest early start that counts as rounding, in seconds."""
        return min(EARLINESS * max(self.span, self.window), TOLERANCE * self.window)

    @property
    def tick(self) -> float:
        """Largest difference of two starts of a repeating pass that count as equal, in seconds."""
        return min(ROUNDING * max(self.span, self.window), self.earliness)


class Entries(NamedTuple):
    """One entry for each block and unit that it runs on; times in seconds."""

    unit: Ints
    batch: Ints
    number: Ints
    """Position of its pass."""
    start: Floats


def case_of(schedule: Record) -> PassCase:
    """Arrays of a schedule record with valid indices."""
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
    """First micro-batch of each group that is checked at once, for all waits."""
    return range(0, count, max(MOST_AT_ONCE // max(len(case.tail), 1), 1))


def late(case: PassCase, times: Times) -> list[Violation]:
    """Find blocks that start before their waits are over."""
    found, lost = [], 0.0
    lasting = (case.time[case.tail] + case.delay) * (1 - TOLERANCE)
    for top in (some := steps(case, len(times.start))):
        start = times.start[top : top + some.step]
        head = start[:, case.head]
        early = start[:, case.tail] + lasting - head
        for row, wait in np.argwhere(early > times.earliness).tolist():
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


def overlaps(case: PassCase, times: Times, entries: Entries) -> Iterator[Violation]:
    """Find blocks that overlap on a unit; those without duration cannot."""
    for unit, part in _by_unit(entries.unit):
        time = case.time[entries.number[part]]
        busy = time > times.earliness
        lost = math.fsum(time[~busy].tolist())
        wrong, over = _one_at_a_time(case, times, entries, part[busy])
        yield from wrong
        lost += over
        if not wrong and lost > TOLERANCE * times.window:
            message = f"blocks overlap by {lost!r} in all"
            yield Violation("overlap", f"{times.where}unit {case.units[unit]}", message)


def _one_at_a_time(
    case: PassCase, times: Times, entries: Entries, mine: Ints
) -> tuple[list[Violation], float]:
    """Blocks of a unit that overlap, and by how much all of them do."""
    if not len(mine):
        return [], 0.0
    found, period = [], times.period
    at = entries.start[mine]
    if period is not None:
        at = _phase(at, period, times.earliness)[0]
    order = np.argsort(at, kind="stable")
    mine, at = mine[order], at[order]
    time = case.time[entries.number[mine]]
    until = np.maximum.accumulate(at + time * (1 - TOLERANCE))
    following = np.append(at[1:], math.inf if period is None else at[0] + period)
    over = until - following
    for i in np.flatnonzero(over > times.earliness).tolist():
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


FURTHEST = 2.0**22
"""Largest span of a repetend, in periods, that doubles can resolve."""


@dataclass(frozen=True)
class ScheduleReport:
    """A schedule recomputed, and what is wrong with it."""

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
    """Recompute a schedule and compare; any values that its types allow are accepted."""
    found = list(_form(schedule))
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
    found += _timeless(case, schedule)
    if "repetend" in schedule:
        found += _repetend(case, schedule)
    found += _points(case, schedule)
    longest = float(((times.start + case.time).max(axis=1) - times.start.min(axis=1)).max())
    violations = (*found, *_pareto(schedule))
    return ScheduleReport(violations, makespan, bubble, tuple(peaks.tolist()), longest)


def _form(schedule: Record) -> Iterator[Violation]:
    """Check that names are unique, indices valid, and waits acyclic."""
    units, passes = schedule["units"], schedule["passes"]
    for what, rows in (("units", units), ("passes", passes)):
        twice = next((name for name, n in Counter(r["name"] for r in rows).items() if n > 1), None)
        if twice is not None:
            yield Violation("block", "schedule", f"has two {what} named '{twice}'")
    if not passes:
        yield Violation("block", "schedule", "has no passes")
    waits: dict[int, list[int]] = {}
    for number, row in enumerate(passes):
        subject = f"pass {row['name']}"
        if not row["homes"] or not all(row["homes"]):
            yield Violation("block", subject, "has no unit")
        for home in row["homes"]:
            if len(set(home)) < len(home) or not all(0 <= d < len(units) for d in home):
                message = f"its units {home} are not distinct positions below {len(units)}"
                yield Violation("block", subject, message)
            elif row["kind"] != "transfer" and any(units[d].get("link", False) for d in home):
                yield Violation("block", subject, "is no transfer, but runs on a link")
        waits[number] = [wait["pass"] for wait in row["after"]]
        unknown = [p for p in waits[number] if not 0 <= p < len(passes)]
        if unknown:
            message = f"waits for pass {unknown[0]}; there are {len(passes)}"
            yield Violation("wait", subject, message)
            waits[number] = []
    circle = on_a_cycle(waits, waits.__getitem__)
    if circle:
        shown = " -> ".join(passes[p]["name"] for p in reversed(circle))
        yield Violation("wait", "schedule", f"passes wait for each other: {shown}")


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


def _memory(case: PassCase, schedule: Record, peaks: Floats) -> Iterator[Violation]:
    """Check that peaks are as stated and within the limits."""
    yield from _capacity(case, peaks, "")
    scales = _scales(case).tolist()
    for unit, peak, scale in zip(schedule["units"], peaks.tolist(), scales, strict=True):
        stated, subject = float(unit["peak_bytes"]), f"unit {unit['name']}"
        yield from differs("load", subject, "peak_bytes", stated, peak, scale)


def _scales(case: PassCase) -> Floats:
    """Size of the terms that make up what each unit holds; f64[D]."""
    scale = [0.0] * len(case.fixed)
    for memory, homes in zip(np.abs(case.memory).tolist(), case.homes, strict=True):
        for unit in chain.from_iterable(homes):
            scale[unit] = max(scale[unit], memory)
    return np.array(scale)


def _capacity(case: PassCase, peaks: Floats, where: str) -> Iterator[Violation]:
    """Check that peaks are within the limits."""
    scales = _scales(case)
    for unit in np.flatnonzero(peaks > case.limit).tolist():
        peak, limit = float(peaks[unit]), float(case.limit[unit])
        if not same(peak, limit, float(scales[unit])):
            message = f"holds {peak!r} bytes, more than {limit!r}"
            subject = f"{where}unit {case.units[unit]}"
            yield Violation("capacity", subject, message, limit, peak)


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
    found: list[Violation] = []
    for unit, time in zip(units, busy, strict=True):
        found += differs("load", f"unit {unit['name']}", "busy_s", unit["busy_s"], time)
    found += differs("value", "schedule", "makespan_s", schedule["makespan_s"], makespan)
    found += differs("value", "schedule", "the bubble", schedule["bubble"], bubble, 1.0)
    found += _bound(schedule["status"], "schedule", "bound_s", schedule["bound_s"], makespan)
    return bubble, found


def _bound(status: str, subject: str, name: str, bound: float, value: float) -> Iterator[Violation]:
    """Check that no bound exceeds its value, and `optimal` ones equal it."""
    if above(bound, value):
        message = f"{name} is {bound!r}, above the value {value!r}"
        yield Violation("bound", subject, message, value, bound)
    elif status == "optimal" and not same(bound, value):
        message = f"says that it is optimal, but {name} is {bound!r} and the value {value!r}"
        yield Violation("status", subject, message, value, bound)


def _timeless(case: PassCase, schedule: Record) -> Iterator[Violation]:
    """Check that no schedule without compute claims to be optimal."""
    for subject, record in (("schedule", schedule), ("repetend", schedule.get("repetend", {}))):
        if record.get("status") == "optimal" and not case.time.any():
            message = "says that it is optimal, but no pass takes time"
            yield Violation("status", subject, message, "feasible", "optimal")


def _rate(case: PassCase, schedule: Record, makespan: float) -> Iterator[Violation]:
    """Check the bound of the rate against the schedule and its repetend."""
    bound = float(schedule["rate_bound_s"])
    count = schedule["micro_batches"]
    reached = []
    again = not any(count % len(homes) for homes in case.homes)
    if again and case.by_unit(case.memory).max() <= TOLERANCE * np.abs(case.memory).sum():
        reached.append(makespan / count)
    if "repetend" in schedule:
        reached.append(schedule["repetend"]["period_s"] / schedule["repetend"]["unroll"])
    if "rate_s" in schedule:
        stated = float(schedule["rate_s"])
        if "repetend" in schedule and not same(stated, reached[-1]):
            message = f"rate_s is {stated!r}, its repetend takes {reached[-1]!r}"
            yield Violation("value", "schedule", message, reached[-1], stated)
        least = float(case.by_unit(case.time).max(initial=0.0))
        if above(least, stated):
            message = f"rate_s is {stated!r}, but a unit is busy for {least!r}"
            yield Violation("value", "schedule", message, least, stated)
        reached.append(stated)
    for value in reached:
        yield from _bound("", "schedule", "rate_bound_s", bound, value)


def _repeated(
    case: PassCase, unroll: int, period: float, rows: Sequence[Sequence[float]], subject: str
) -> tuple[list[Violation], float | None, float | None]:
    """Check micro-batches that repeat; also their span, and most that a unit holds.

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
    # What grows with every micro-batch has no peak: only units without a limit may do that, and
    # count with what they always hold.
    most = float(np.where(np.isfinite(peaks), peaks, case.fixed).max(initial=0.0))
    return found, times.span, most


def _repetend(case: PassCase, schedule: Record) -> list[Violation]:
    """Check the repetend: units, waits and memory for as long as it repeats, and its figures."""
    repetend = schedule["repetend"]
    unroll, period = repetend["unroll"], float(repetend["period_s"])
    found, span, memory = _repeated(case, unroll, period, repetend["starts_s"], "repetend")
    if span is None or memory is None:
        return found
    for name, expected, scale in (
        ("memory_bytes", memory, float(_scales(case).max())),
        ("span_s", span, 0.0),
    ):
        found += differs("value", "repetend", name, repetend[name], expected, scale)
    for name, value in (
        ("period_bound_s", period),
        ("memory_bound_bytes", memory),
        ("span_bound_s", span),
    ):
        found += _bound(repetend["status"], "repetend", name, float(repetend[name]), value)
    return found


def _points(case: PassCase, schedule: Record) -> Iterator[Violation]:
    """Check the period and memory of the points of the trade-off."""
    least, scale = float(case.by_unit(case.time).max(initial=0.0)), float(_scales(case).max())
    for number, point in enumerate(schedule.get("pareto", ())):
        subject, period, unroll = f"pareto {number}", float(point["period_s"]), point["unroll"]
        if above(least, period):
            message = f"the period is {period!r}, but a unit is busy for {least!r}"
            yield Violation("value", subject, message, least, period)
        if "starts_s" in point:
            wrong, _, memory = _repeated(case, unroll, period * unroll, point["starts_s"], subject)
            yield from wrong
            if memory is not None:
                stated = point["memory_bytes"]
                yield from differs("value", subject, "memory_bytes", stated, memory, scale)


def _pareto(schedule: Record) -> Iterator[Violation]:
    """Check that the period falls with memory, and no bound exceeds its period."""
    points = schedule.get("pareto", ())
    for number, point in enumerate(points):
        subject, period = f"pareto {number}", float(point["period_s"])
        yield from _bound("", subject, "period_bound_s", float(point["period_bound_s"]), period)
        if number:
            before = points[number - 1]
            if above(before["memory_bytes"], point["memory_bytes"]):
                message = f"memory falls from {before['memory_bytes']!r}"
                yield Violation("value", subject, message, None, point["memory_bytes"])
            if above(period, before["period_s"]):
                message = f"the period rises from {before['period_s']!r}"
                yield Violation("value", subject, message, before["period_s"], period)
