"""The checker of pipeline schedules: what holds is accepted, every corruption is found."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from dnnp.core.check.schedule import ScheduleReport, check_schedule
from dnnp.core.check.stream import check_stream
from dnnp.core.check.violation import KINDS
from dnnp.core.model.schedule import Placement
from dnnp.core.schedule.problem import problem_of
from dnnp.core.schedule.starts import left_shift
from dnnp.formats.plan import plan_digest
from dnnp.formats.records import covered
from support import seeds
from support.placements import random_placement
from support.run import Result, dnnp
from support.scheduled import passes_of

Record = dict[str, Any]
Records = list[Record]


def pass_of(name: str, unit: int, time_s: float, memory: float, *after: int) -> Record:
    """A pass on one unit."""
    kind = {"F": "forward", "B": "backward", "T": "transfer"}[name[0]]
    waits = [{"pass": p} for p in after]
    record = {"name": name, "kind": kind, "homes": [[unit]], "time_s": time_s, "after": waits}
    return record | ({"memory_bytes": memory} if memory else {})


def block(number: int, batch: int, unit: int, start: float, end: float) -> Record:
    """A block record."""
    return {
        "type": "block",
        "pass": number,
        "micro_batch": batch,
        "units": [unit],
        "start_s": start,
        "end_s": end,
    }


def two_devices() -> Records:
    """Two stages and two micro-batches; forward takes 1 and holds 1 byte, backward takes 2.

        device/0  F0 F0 .  .  B0 B0 .  B0 B0
        device/1  .  F1 B1 B1 F1 B1 B1 .  .

    Both are busy for 6 of 9. The repetend runs one micro-batch after the other.
    """
    schedule = {
        "type": "schedule",
        "method": "sequential",
        "micro_batches": 2,
        "makespan_s": 9.0,
        "bound_s": 9.0,
        "status": "optimal",
        "bubble": 1 / 3,
        "rate_bound_s": 3.0,
        "units": [
            {
                "name": "device/0",
                "memory_bytes": 12,
                "fixed_bytes": 10,
                "peak_bytes": 12.0,
                "busy_s": 6.0,
            },
            {"name": "device/1", "peak_bytes": 1.0, "busy_s": 6.0},
        ],
        "passes": [
            pass_of("F0", 0, 1.0, 1.0),
            pass_of("F1", 1, 1.0, 1.0, 0),
            pass_of("B1", 1, 2.0, -1.0, 1),
            pass_of("B0", 0, 2.0, -1.0, 2),
        ],
        "repetend": {
            "unroll": 1,
            "period_s": 6.0,
            "period_bound_s": 3.0,
            "memory_bytes": 11.0,
            "memory_bound_bytes": 11.0,
            "span_s": 6.0,
            "span_bound_s": 6.0,
            "status": "feasible",
            "starts_s": [[0.0, 1.0, 2.0, 4.0]],
        },
        "pareto": [
            {"memory_bytes": 11.0, "unroll": 1, "period_s": 6.0, "period_bound_s": 5.0},
            {"memory_bytes": 12.0, "unroll": 1, "period_s": 3.0, "period_bound_s": 3.0},
        ],
    }
    starts = [(0, 1, 2, 4), (1, 4, 5, 7)]
    rows = []
    for batch, row in enumerate(starts):
        for number, start in enumerate(row):
            taken = schedule["passes"][number]
            rows.append(block(number, batch, taken["homes"][0][0], start, start + taken["time_s"]))
    return [schedule, *rows]


def checked(records: Records) -> ScheduleReport:
    return check_schedule(records[0], records[1:])


def stream_of(records: Records) -> bytes:
    """A stream that holds nothing but a schedule."""
    return seeds.encode([seeds.header(), *records])


def check(data: bytes) -> tuple[Result, Record]:
    result = dnnp("check", "--json", stdin=data)
    return result, orjson.loads(result.out)


def kinds(report: ScheduleReport) -> set[str]:
    assert all(v.kind in KINDS for v in report.violations)
    return {violation.kind for violation in report.violations}


def test_hand_made_schedule_holds() -> None:
    report = checked(two_devices())
    assert report.violations == ()
    assert (report.makespan, report.peaks) == (9.0, (12.0, 1.0))
    assert report.bubble == pytest.approx(1 / 3)


def test_stream_without_a_graph() -> None:
    result, summary = check(stream_of(two_devices()))
    assert result.status == 0, result.err
    assert summary["ok"]
    assert (summary["makespan"], summary["value"]) == (9.0, None)
    assert summary["bubble"] == pytest.approx(1 / 3)
    assert result.err == "dnnp-check: ok: schedule of 2 micro-batches, makespan 9 s, bubble 0.333\n"


def test_stream_without_a_schedule_has_no_makespan() -> None:
    _, summary = check(seeds.encode(seeds.planned()))
    assert (summary["makespan"], summary["bubble"]) == (None, None)


def test_only_capacity_exceeded_is_infeasible() -> None:
    records = two_devices()
    records[0]["units"][0]["memory_bytes"] = 11.5
    result, summary = check(stream_of(records))
    assert (result.status, [v["kind"] for v in summary["violations"]]) == (4, ["capacity"])
    assert "unit device/0: holds 12.0 bytes, more than 11.5" in result.err


Change = Callable[[Records], None]


def put(*path: Any, value: Any) -> Change:
    """Set a field of the record at a position of the list."""

    def change(records: Records) -> None:
        place: Any = records
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def several(*changes: Change) -> Change:
    def change(records: Records) -> None:
        for one in changes:
            one(records)

    return change


def moved(position: int, start: float, end: float) -> Change:
    return several(put(position, "start_s", value=start), put(position, "end_s", value=end))


def add_wait(number: int, **wait: Any) -> Change:
    return lambda records: records[0]["passes"][number]["after"].append(wait)


LATER = moved(8, 8.0, 10.0)
REPETEND = (0, "repetend")

CORRUPTIONS: dict[str, tuple[Change, str, str]] = {
    "a block is missing": (
        lambda records: records.pop(6), "block",
        "schedule: 1 of 8 blocks are missing: the first is F1 of micro-batch 1",
    ),
    "all are": (lambda records: records.__delitem__(slice(1, None)), "block", "8 of 8 blocks"),
    "absurdly many": (
        put(0, "micro_batches", value=2**53 - 1), "block", "36028797018963956 of 36028797018963964"
    ),
    "twice": (
        lambda records: records.append(copy.deepcopy(records[3])), "block",
        "B1 of micro-batch 0: runs twice",
    ),
    "no such pass": (put(4, "pass", value=7), "block", "block 3: pass 7 of micro-batch 0"),
    "no such micro-batch": (put(5, "micro_batch", value=2), "block", "pass 0 of micro-batch 2"),
    "other unit": (put(1, "units", value=[1]), "block", "runs on units [1], expected [0]"),
    "too long": (put(1, "end_s", value=1.5), "block", "runs from 0.0 to 1.5; its pass takes 1.0"),
    "two units of a name": (put(0, "units", 1, "name", value="device/0"), "block", "has two units"),
    "two passes of a name": (put(0, "passes", 1, "name", value="F0"), "block", "has two passes"),
    "no passes": (
        several(put(0, "passes", value=[]), lambda records: records.__delitem__(slice(1, None))),
        "block", "has no passes",
    ),
    "no unit": (put(0, "passes", 2, "homes", value=[[]]), "block", "pass B1: has no unit"),
    "no home": (put(0, "passes", 2, "homes", value=[]), "block", "pass B1: has no unit"),
    "far unit": (put(0, "passes", 2, "homes", value=[[2]]), "block", "distinct positions below 2"),
    "unit twice": (put(0, "passes", 2, "homes", value=[[1, 1]]), "block", "distinct positions"),
    "far wait": (add_wait(1, **{"pass": 9}), "wait", "pass F1: waits for pass 9; there are 4"),
    "circle": (add_wait(0, **{"pass": 3}), "wait", "passes wait for each other: F0 -> "),
    "itself": (add_wait(0, **{"pass": 0}), "wait", "passes wait for each other: F0 -> F0"),
    "too early": (
        moved(8, 6.0, 8.0), "wait",
        "B0 of micro-batch 1: starts at 6.0, before 7.0, when B1 allows",
    ),
    "order of the records": (
        lambda records: records.insert(1, records.pop(2)), "wait",
        "F1 of micro-batch 0: its record stands before that of F0, which it waits for",
    ),
    "delay": (
        lambda records: records[0]["passes"][1]["after"][0].update(delay_s=0.5), "wait",
        "F1 of micro-batch 0: starts at 1.0, before 1.5, when F0 allows",
    ),
    "overlap": (
        moved(5, 0.5, 1.5), "overlap",
        "F0 of micro-batch 0: F0 of micro-batch 1 starts at 0.5, before 1.0, when device/0 is free",
    ),
    "capacity": (put(0, "units", 1, "memory_bytes", value=0.5), "capacity", "more than 0.5"),
    "peak": (put(0, "units", 0, "peak_bytes", value=11.0), "load", "is 11.0, recomputed 12.0"),
    "busy": (put(0, "units", 1, "busy_s", value=5.0), "load", "busy_s is 5.0, recomputed 6.0"),
    "makespan": (LATER, "value", "makespan_s is 9.0, recomputed 10.0"),
    "bubble": (put(0, "bubble", value=0.3), "value", "the bubble is 0.3, recomputed 0.33"),
    "bound": (put(0, "bound_s", value=9.5), "bound", "bound_s is 9.5, above the value 9.0"),
    "status": (put(0, "bound_s", value=8.0), "status", "bound_s is 8.0 and the value 9.0"),
    "rate": (put(0, "rate_bound_s", value=4.6), "bound", "4.6, above the value 4.5"),
    "repetend rate": (
        several(put(0, "rate_bound_s", value=6.5), put(0, "passes", 0, "memory_bytes", value=2.0)),
        "bound", "rate_bound_s is 6.5, above the value 6.0",
    ),
    "repetend shape": (put(*REPETEND, "starts_s", value=[[0.0] * 3]), "block", "not 1 lists of 4"),
    "repetend unroll": (put(*REPETEND, "unroll", value=2**53 - 1), "block", "lists of 4 starts"),
    "repetend overlap": (
        put(*REPETEND, "period_s", value=4.0), "overlap",
        "repetend: F0 of micro-batch 0: B0 of micro-batch 0 starts at 0.0, before 1.0",
    ),
    "longer than the period": (put(*REPETEND, "period_s", value=1.5), "overlap", "repetend: "),
    "no period": (put(*REPETEND, "period_s", value=0.0), "overlap", "its period is 0"),
    "repetend wait": (
        put(*REPETEND, "starts_s", 0, 3, value=3.5), "wait",
        "repetend: B0 of micro-batch 0: starts at 3.5, before 4.0",
    ),
    "repetend memory": (put(*REPETEND, "memory_bytes", value=12.0), "value", "memory_bytes is 12"),
    "repetend capacity": (
        several(put(*REPETEND, "starts_s", value=[[0.0, 1.0, 12.0, 20.0]])),
        "capacity", "repetend: unit device/0: holds 14.0 bytes, more than 12.0",
    ),
    "repetend grows": (
        put(0, "passes", 3, "memory_bytes", value=-0.5), "capacity", "holds inf bytes"
    ),
    "span": (put(*REPETEND, "span_s", value=7.0), "value", "span_s is 7.0, recomputed 6.0"),
    "period bound": (put(*REPETEND, "period_bound_s", value=7.0), "bound", "period_bound_s is 7.0"),
    "memory bound": (put(*REPETEND, "memory_bound_bytes", value=99), "bound", "memory_bound_bytes"),
    "stated rate": (put(0, "rate_s", value=9.0), "value", "rate_s is 9.0, its repetend takes"),
    "span bound": (put(*REPETEND, "span_bound_s", value=6.5), "bound", "span_bound_s is 6.5"),
    "repetend status": (put(*REPETEND, "status", value="optimal"), "status", "bound_s is 3.0"),
    "point bound": (put(0, "pareto", 1, "period_bound_s", value=4.0), "bound", "pareto 1: "),
    "point period": (put(0, "pareto", 1, "period_s", value=7.0), "value", "the period rises"),
    "point memory": (put(0, "pareto", 1, "memory_bytes", value=9.0), "value", "memory falls"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_are_found(name: str) -> None:
    change, kind, message = CORRUPTIONS[name]
    records = two_devices()
    change(records)
    report = checked(records)
    assert kind in kinds(report)
    assert message in "\n".join(map(str, report.violations)), report.violations
    result, summary = check(stream_of(records))
    assert result.status == (4 if kinds(report) == {"capacity"} else 3)
    assert "Traceback" not in result.err
    assert len(summary["violations"]) == len(report.violations)


def test_links_are_no_devices() -> None:
    records = two_devices()
    name, unit = "device/0>device/1", {"link": True, "peak_bytes": 0, "busy_s": 2.0}
    records[0]["units"].append({"name": name, **unit})
    records[0]["passes"].append(pass_of("T", 2, 1.0, 0.0, 0))
    for row in records[0]["repetend"]["starts_s"]:
        row.append(1.0)
    records += [block(4, 0, 2, 1.0, 2.0), block(4, 1, 2, 2.0, 3.0)]
    report = checked(records)
    assert report.violations == ()
    assert report.bubble == pytest.approx(1 / 3)
    records[0]["units"][2]["link"] = False
    assert checked(records).bubble == pytest.approx(1 - 14 / 27)


def test_blocks_without_time_block_nobody() -> None:
    records = two_devices()
    records[0]["passes"].append(pass_of("Fz", 0, 0.0, 0.0))
    records[0]["repetend"]["starts_s"][0].append(0.5)
    records += [block(4, 0, 0, 0.5, 0.5), block(4, 1, 0, 8.0, 8.0)]
    assert checked(records).violations == ()


def test_blocks_that_start_together_count_together() -> None:
    """A block that releases and one that takes memory, neither of which takes time."""
    records = two_devices()
    for name, memory in (("Fa", 5.0), ("Fb", -5.0)):
        records[0]["passes"].append(pass_of(name, 1, 0.0, memory))
        records[0]["repetend"]["starts_s"][0].append(4.0)
        number = len(records[0]["passes"]) - 1
        records += [block(number, batch, 1, 4.0, 4.0) for batch in (0, 1)]
    assert checked(records).violations == ()
    moved(-3, 3.0, 3.0)(records)
    assert "peak_bytes is 1.0, recomputed 5.0" in str(checked(records).violations[0])


def shifted(records: Records, offset: float) -> Records:
    """The same a while later, as far as numbers can say so."""
    for row in records[1:]:
        row |= {"start_s": row["start_s"] + offset, "end_s": row["end_s"] + offset}
    rows = records[0]["repetend"]["starts_s"]
    rows[:] = [[start + offset for start in row] for row in rows]
    return records


@pytest.mark.parametrize("offset", [0.25, 1e9, 1e11])
def test_an_offset_hides_nothing(offset: float) -> None:
    """Whole numbers stay apart; what is wrong is as wrong as before."""
    assert checked(shifted(two_devices(), offset)).violations == ()
    for name in ("too early", "overlap", "delay", "repetend wait", "repetend overlap", "makespan"):
        change, kind, _ = CORRUPTIONS[name]
        records = two_devices()
        change(records)
        expected = len(checked(records).violations)
        report = checked(shifted(records, offset))
        assert (len(report.violations), kind in kinds(report)) == (expected, True), name
    small = shifted(two_devices(), 1e20)
    assert {"block", "overlap", "wait", "value"} <= kinds(checked(small))


def test_a_huge_block_hides_little() -> None:
    """Small blocks at the end of all others overlap: by more than is lost beside the whole."""
    long = 1e11
    records = two_devices()
    del records[0]["repetend"], records[0]["pareto"]
    for number in (0, 3):
        records[0]["passes"][number] |= {"time_s": long}
        moved(number + 1, *((0.0, long) if not number else (long + 3.0, 2 * long + 3.0)))(records)
    rows = records[1:5]
    records[0] |= {"micro_batches": 1, "makespan_s": 2 * long + 3.0, "bound_s": 0.0}
    records[0] |= {"status": "feasible", "rate_bound_s": 0.0, "bubble": 0.5 - 1.5 / (2 * long + 3)}
    for unit, busy, peak in zip(records[0]["units"], (2 * long, 3.0), (11.0, 1.0), strict=True):
        unit |= {"busy_s": busy, "peak_bytes": peak}
    records[1:] = rows
    moved(2, long, long + 1.0)(records)
    moved(3, long + 1.0, long + 3.0)(records)
    assert checked(records).violations == ()
    moved(3, long + 0.1, long + 2.1)(records)
    assert kinds(checked(records)) == {"wait", "overlap"}


def test_little_at_a_time_is_not_overlooked() -> None:
    """Every block a little too early: lost beside the whole, but not all of them."""
    count = 2000
    schedule = two_devices()[0]
    del schedule["repetend"], schedule["pareto"]
    schedule |= {"micro_batches": 1, "status": "feasible", "rate_bound_s": 0.0, "bound_s": 0.0}
    schedule["passes"] = [pass_of(f"F{n}", 0, 1e-3, 0.0) for n in range(count)]
    schedule["passes"].append(pass_of("F", 0, 1.0, 0.0))
    step = 1e-3 - 4e-12
    rows = [block(n, 0, 0, n * step, n * step + 1e-3) for n in range(count)]
    rows.append(block(count, 0, 0, 2.0, 3.0))
    schedule |= {"makespan_s": 3.0, "bubble": 0.0}
    schedule["units"] = [{"name": "device/0", "peak_bytes": 0.0, "busy_s": 3.0}]
    (found,) = check_schedule(schedule, rows).violations  # 4e-12 each, less a billionth of 1e-3
    assert found.message.startswith("blocks overlap by 5.99")


def test_many_blocks_take_linear_time() -> None:
    """A pass for each of many blocks; none has to look at all others."""
    count = 30_000
    schedule = two_devices()[0]
    del schedule["repetend"], schedule["pareto"]
    schedule |= {"micro_batches": 1, "status": "feasible", "rate_bound_s": 0.0, "bound_s": 0.0}
    schedule |= {"makespan_s": float(count), "bubble": 0.0}
    schedule["passes"] = [pass_of(f"F{n}", 0, 1.0, 0.0, *[n - 1] * (n > 0)) for n in range(count)]
    schedule["units"] = [{"name": "device/0", "peak_bytes": 0.0, "busy_s": float(count)}]
    rows = [block(n, 0, 0, float(n), n + 1.0) for n in range(count)]
    schedule["passes"][-1]["name"] = "F0"
    assert list(map(str, check_schedule(schedule, rows).violations)) == [
        "schedule: has two passes named 'F0'"
    ]
    schedule["passes"][-1]["name"] = "F"
    assert check_schedule(schedule, rows).violations == ()


Start = dict[tuple[int, int], float]
"""Pass and micro-batch -> start."""


def home_of(row: Record, batch: int) -> list[int]:
    return row["homes"][batch % len(row["homes"])]


def faults_of(passes: Records, start: Start) -> set[str]:
    """Violations by start times, pair by pair."""
    found = set()
    for (number, batch), at in start.items():
        for wait in passes[number]["after"]:
            before = start[wait["pass"], batch] + passes[wait["pass"]]["time_s"]
            if at < before + wait.get("delay_s", 0.0) - 1e-6:
                found.add("wait")
    for one, other in itertools.combinations(start, 2):
        if set(home_of(passes[one[0]], one[1])) & set(home_of(passes[other[0]], other[1])):
            ends = [start[x] + passes[x[0]]["time_s"] for x in (one, other)]
            lengths = [passes[x[0]]["time_s"] for x in (one, other)]
            if min(ends) - max(start[one], start[other]) > 1e-6 and min(lengths) > 0:
                found.add("overlap")
    return found


def held_by(passes: Records, start: Start, unit: int, until: float) -> float:
    """Memory of a unit over time."""
    return sum(
        passes[number].get("memory_bytes", 0.0)
        for (number, batch), at in start.items()
        if at <= until + 1e-6 and unit in home_of(passes[number], batch)
    )


def records_of(placement: Placement, start: Start, count: int) -> Records:
    """Schedule and blocks, all figures worked out block by block."""
    passes = passes_of(placement)
    for row, b in zip(passes, placement.blocks, strict=True):
        row["memory_bytes"] = b.memory_bytes
        row["after"] = [{"pass": w.block, "delay_s": w.delay_s} for w in b.after]
    rows = [
        {
            "type": "block",
            "pass": number,
            "micro_batch": batch,
            "units": home_of(passes[number], batch),
            "start_s": at,
            "end_s": at + passes[number]["time_s"],
        }
        for (number, batch), at in start.items()
    ]
    units = []
    for d, unit in enumerate(placement.units):
        peak = max(0.0, *(held_by(passes, start, d, at) for at in start.values()))
        busy = sum(r["end_s"] - r["start_s"] for r in rows if d in r["units"])
        units.append({"name": unit.name, "peak_bytes": peak, "busy_s": busy})
    makespan = max(r["end_s"] for r in rows)
    used = {d for row in passes for home in row["homes"] for d in home}
    busy = sum(units[d]["busy_s"] for d in used)
    schedule = {
        "type": "schedule",
        "method": "sequential",
        "micro_batches": count,
        "makespan_s": makespan,
        "bound_s": 0.0,
        "status": "feasible",
        "rate_bound_s": 0.0,
        "units": units,
        "bubble": 1 - busy / (makespan * len(used)) if makespan else 0.0,
        "passes": passes,
    }
    return [schedule, *rows]


def random_schedule(seed: int) -> tuple[Placement, Start, int]:
    """A random placement, and some of its micro-batches in a random order, shifted left."""
    rng = np.random.default_rng([seed, 1])
    placement, count = random_placement(seed, whole=bool(seed % 2)), int(rng.integers(1, 5))
    problem = problem_of(placement, count)
    before: list[set[int]] = [set() for _ in range(problem.b)]
    for tail, head in zip(problem.tail.tolist(), problem.head.tolist(), strict=True):
        before[head].add(tail)
    sequence: list[int] = []
    while len(sequence) < problem.b:
        done = set(sequence)
        ready = [i for i in range(problem.b) if i not in done and before[i] <= done]
        sequence.append(int(rng.choice(ready)))
    start = left_shift(problem, np.array(sequence)).tolist()
    return placement, {(i % problem.k, i // problem.k): at for i, at in enumerate(start)}, count


@pytest.mark.parametrize("seed", range(40))
def test_random_schedules(seed: int) -> None:
    """Valid ones are accepted; what a moved block breaks is what is found."""
    placement, start, count = random_schedule(seed)
    records = records_of(placement, start, count)
    assert checked(records).violations == ()
    assert faults_of(records[0]["passes"], start) == set()
    rng = np.random.default_rng(seed)
    for _ in range(4):
        changed = dict(start)
        place = list(changed)[int(rng.integers(len(changed)))]
        changed[place] = max(0.0, changed[place] + float(rng.choice([-2, -1, -0.5, 0.5, 1, 3])))
        records = records_of(placement, changed, count)
        first = min(changed.values())
        for unit in records[0]["units"]:
            unit["memory_bytes"] = max(unit["peak_bytes"] - 0.5, 0.0)
        records[0]["makespan_s"] -= first
        expected = faults_of(records[0]["passes"], changed)
        if any(unit["peak_bytes"] > 0 for unit in records[0]["units"]):
            expected.add("capacity")
        assert kinds(checked(records)) - {"value"} == expected


@pytest.mark.parametrize("seed", range(40))
def test_random_repetends(seed: int) -> None:
    """A repeated part is judged like many copies; its memory is that in the middle."""
    placement, start, count = random_schedule(seed)
    rng = np.random.default_rng([seed, 2])
    records = records_of(placement, start, count)
    passes, makespan = records[0]["passes"], records[0]["makespan_s"]
    period = float(rng.integers(1, 4)) * max(u["busy_s"] for u in records[0]["units"]) or 1.0
    copies = int(makespan / period) + 4
    after = [k * period for k in range(copies)]
    repeated = {
        (number, batch + k * count): at + after[k]
        for (number, batch), at in start.items()
        for k in range(copies)
    }
    last = max(start.values())
    full = [at for at in repeated.values() if last <= at < last + period + 1e-6]
    peak = max(held_by(passes, repeated, d, at) for d in range(len(placement.units)) for at in full)
    rows = [[start[p, n] for p in range(len(passes))] for n in range(count)]
    records[0]["repetend"] = {
        "unroll": count,
        "period_s": period,
        "period_bound_s": 0.0,
        "memory_bytes": max(peak, 0.0),
        "memory_bound_bytes": 0.0,
        "span_s": makespan,
        "span_bound_s": 0.0,
        "status": "feasible",
        "starts_s": rows,
    }
    report = checked(records)
    assert kinds(report) == faults_of(passes, repeated), report.violations


def test_replicas_take_turns() -> None:
    """Micro-batches 0 and 2 run on one device, 1 on another."""
    records = two_devices()
    schedule = records[0]
    del schedule["repetend"], schedule["pareto"], schedule["units"][0]["memory_bytes"]
    schedule["passes"] = [pass_of("F0", 0, 2.0, 0.0)]
    schedule["passes"][0]["homes"] = [[0], [1]]
    schedule |= {"micro_batches": 3, "makespan_s": 4.0, "bubble": 0.25, "rate_bound_s": 1.0}
    schedule |= {"bound_s": 4.0}
    for unit, busy, peak in zip(schedule["units"], (4.0, 2.0), (10, 0), strict=True):
        unit |= {"busy_s": busy, "peak_bytes": peak}
    records = [schedule, block(0, 0, 0, 0, 2), block(0, 1, 1, 0, 2), block(0, 2, 0, 2, 4)]
    assert checked(records).violations == ()
    records[3] = block(0, 2, 1, 2, 4)
    assert "micro-batch 2: runs on units [1], expected [0]" in str(checked(records).violations[0])
    records[3] = block(0, 2, 0, 1, 3)
    assert "overlap" in kinds(checked(records))
    schedule["repetend"] = {
        "unroll": 1,
        "period_s": 2.0,
        "period_bound_s": 0,
        "memory_bytes": 10,
        "memory_bound_bytes": 0,
        "span_s": 2.0,
        "span_bound_s": 0,
        "status": "feasible",
        "starts_s": [[0.0]],
    }
    assert "the units of F0 repeat every 2" in str(checked(records).violations[-1])


def planned() -> Records:
    """The hand-made plan of three stages, and a schedule of one sample."""
    records = seeds.sealed(seeds.planned())
    digest = plan_digest(
        next(r for r in records if r["type"] == "plan"),
        [r for r in records if r["type"] == "stage"],
    )
    passes, rows, at = [], [], 0.0
    for s, load in enumerate((15.0, 17.0, 19.0)):
        passes.append(pass_of(f"F{s}", s, load, 0.0, *([s - 1] if s else [])) | {"stage": s})
        rows.append(block(s, 0, s, at, at + load))
        at += load
    schedule = {
        "type": "schedule",
        "method": "sequential",
        "micro_batches": 1,
        "makespan_s": at,
        "bound_s": at,
        "status": "optimal",
        "bubble": 2 / 3,
        "rate_bound_s": 19.0,
        "units": [
            {"name": f"acc/{s}", "peak_bytes": held, "fixed_bytes": held, "busy_s": p["time_s"]}
            for s, (p, held) in enumerate(zip(passes, (196, 200, 112), strict=True))
        ],
        "passes": passes,
        "digest": digest,
    }
    return [*records, schedule, *rows]


def the(records: Records, kind: str, index: int = 0) -> Record:
    return [r for r in records if r["type"] == kind][index]


def set_pass(number: int, **fields: Any) -> Change:
    return lambda records: the(records, "schedule")["passes"][number].update(fields)


def provenance(*tools: str) -> Change:
    entries = [{"tool": f"dnnp-{tool}", "version": "1", "arguments": []} for tool in tools]
    return lambda records: the(records, "header").update(provenance=entries)


def drop(*types: str) -> Change:
    def change(records: Records) -> None:
        records[:] = [r for r in records if r["type"] not in types]

    return change


def other_name(records: Records) -> None:
    the(records, "schedule")["units"][1]["name"] = "acc/7"


def halves(first: list[int], second: list[int]) -> Change:
    """Split the pass of stage 1 in two that hold these nodes."""

    def change(records: Records) -> None:
        schedule = the(records, "schedule")
        schedule["passes"][1] |= {"nodes": first, "time_s": 10.0}
        half = copy.deepcopy(schedule["passes"][1]) | {"name": "F1.1", "nodes": second}
        schedule["passes"].append(half | {"time_s": 7.0, "after": [{"pass": 1}]})
        schedule["passes"][2]["after"] = [{"pass": 3}]
        rows = [r for r in records if r["type"] == "block"]
        rows[1]["end_s"] = 25.0
        records.insert(len(records) - 1, block(3, 0, 1, 25.0, 32.0))

    return change


AGAINST: dict[str, tuple[Change, str, str]] = {
    "other plan": (
        lambda records: the(records, "schedule").update(digest="0" * 64), "digest",
        "schedule: was made for another plan",
    ),
    "no digest": (
        lambda records: the(records, "schedule").pop("digest"), "digest", "for which plan it is"
    ),
    "no plan": (drop("plan", "stage"), "records", "there are schedule records but no plan record"),
    "no schedule": (drop("schedule"), "records", "there are block records but no schedule"),
    "no such stage": (set_pass(2, stage=3), "stages", "pass F2: there is no stage 3"),
    "no stage": (
        lambda records: the(records, "schedule")["passes"][0].pop("stage"), "stages",
        "pass F0: is of no stage of the plan",
    ),
    "a stage does not run": (set_pass(2, stage=1), "stages", "stage 2: has no forward pass"),
    "twice the same nodes": (set_pass(2, stage=1), "node", "in several forward passes"),
    "other device": (other_name, "device", "pass F1: runs on acc/7, but stage 1 is on acc/1"),
    "does not wait": (
        set_pass(2, after=[{"pass": 0}]), "wait",
        "pass F2: does not wait for pass F1, but its node 5 reads what node 4 makes",
    ),
    "too short": (
        set_pass(1, time_s=11.5), "load", "stage 1: its passes take 11.5, less than its compute_s"
    ),
    "too long": (
        set_pass(1, time_s=17.5), "load", "passes take 17.5, more than all parts of its load, 17.0"
    ),
    "memory left": (
        set_pass(1, memory_bytes=5.0), "load", "stage 1: its passes leave 5.0 bytes behind"
    ),
    "less memory": (
        lambda records: the(records, "schedule")["units"][1].update(fixed_bytes=150), "load",
        "unit acc/1: fixed_bytes is 150.0, its stages always hold 200.0",
    ),
    "more than the device has": (
        lambda records: the(records, "schedule")["units"][1].update(peak_bytes=1001), "capacity",
        "unit acc/1: holds 1001 bytes, the device has 1000.0",
    ),
    "a link": (
        lambda records: the(records, "schedule")["units"][1].update(link=True), "block",
        "pass F1: is no transfer, but runs on a link",
    ),
    "strange nodes": (set_pass(1, nodes=[2, 3, 4, 5]), "node", "pass F1: runs nodes 5, which are"),
    "nodes left out": (set_pass(1, nodes=[2, 3]), "node", "stage 1: nodes 4 are in no forward"),
    "halves that lack a node": (halves([2], [4]), "node", "stage 1: nodes 3 are in no forward"),
    "halves the wrong way round": (
        halves([4], [2, 3]), "wait", "pass F1: does not wait for pass F1.1"
    ),
    "older than the plan": (
        provenance("import", "schedule", "partition"), "provenance",
        "dnnp-partition ran after dnnp-schedule, yet the schedule records are still there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAINST)
def test_passes_against_the_plan(name: str) -> None:
    change, kind, message = AGAINST[name]
    records = planned()
    change(records)
    result, summary = check(seeds.encode(records))
    assert result.status == 3, result.err
    assert kind in {v["kind"] for v in summary["violations"]}
    said = "\n".join(f"{v['subject']}: {v['message']}" for v in summary["violations"])
    assert message in said


def test_a_stream_holds_one_schedule() -> None:
    found = [*check_stream({"provenance": []}, {"schedule": [{}, {}]}, None, None, covered, False)]
    assert list(map(str, found)) == ["schedule: there are 2 schedule records, a stream holds one"]


@pytest.mark.parametrize("change", [lambda records: None, halves([2], [3, 4])])
def test_schedules_of_a_plan_hold(change: Change) -> None:
    records = planned()
    provenance("import", "partition", "schedule")(records)
    change(records)
    result, summary = check(seeds.encode(records))
    assert (result.status, summary["violations"]) == (0, [])
    assert summary["makespan"] == 51.0
    gap = "gap 0.684 (bound stated, not checked)"
    assert f"{gap}, schedule of 1 micro-batch, makespan 51 s, bubble 0.667" in result.err


def test_a_run_is_younger_than_the_schedule() -> None:
    records = planned()
    run = {"type": "run", "mode": "pipeline", "provider": "cpu", "samples": 1}
    records.append(run | {"digest": the(records, "schedule")["digest"]})
    provenance("import", "partition", "schedule", "run")(records)
    assert dnnp("check", stdin=seeds.encode(records)).status == 0
    provenance("import", "partition", "run", "schedule")(records)
    result = dnnp("check", stdin=seeds.encode(records))
    assert "dnnp-schedule ran after dnnp-run, yet the run records" in result.err


@pytest.mark.parametrize("batches", [2**53 - 1, 10**15])
def test_absurd_numbers(batches: int) -> None:
    records = two_devices()
    records[0]["micro_batches"] = batches
    records[0]["passes"][1]["homes"] = [[1]] * 1000 + [[0]]
    records[0]["repetend"]["unroll"] = batches
    records[1]["micro_batch"] = batches - 1
    assert kinds(checked(records)) == {"block"}
    tiny = two_devices()
    tiny[0]["repetend"]["period_s"] = 5e-324
    moved(8, 1e100, 1e100)(tiny)
    assert "value" in kinds(checked(tiny))
