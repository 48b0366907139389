"""Schedules as records of the stream, and in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.model.plan import within_words
from dnnp.core.model.schedule import PlacedBlock, Placement, Point, Repetend, Schedule, Unit, Wait
from dnnp.core.model.text import shown_bytes, shown_time, table
from dnnp.formats.fields import Form
from dnnp.formats.header import bare_header
from dnnp.formats.records import RECORDS
from dnnp.formats.stream import Record, Stream


def placement_stream(name: str) -> Stream:
    """A stream without a graph, for the schedule of a placement that does not come from one."""
    return Stream(bare_header(name, "unknown"), {}, name=name)


def schedule_records(
    schedule: Schedule,
    peak_bytes: Sequence[float],
    order: Sequence[int],
    points: Sequence[Point] | None = None,
    digest: str | None = None,
) -> tuple[Record, list[Record]]:
    """The schedule record and its block records.

    Parameters
    ----------
    peak_bytes
        f64[units], most that each unit holds.
    order
        i64[micro-batches * blocks], block i of micro-batch n as n * blocks + i, in the order in
        which they are written.
    points
        The trade-off between period and memory, if that was asked for.
    digest
        Digest of the plan; None: there is none.
    """
    placement, start = schedule.placement, schedule.start_s
    count = len(start)
    time = np.array([b.time_s for b in placement.blocks])
    end = start + time
    makespan = float(end.max(initial=0.0))
    busy = busy_times(placement, count)
    devices = [
        d for d in placement.devices if any(d in h for b in placement.blocks for h in b.homes)
    ]
    total = sum(busy[d] for d in devices)
    record: Record = {
        "type": "schedule",
        "method": schedule.method,
        "micro_batches": count,
        "makespan_s": makespan,
        "bound_s": schedule.bound_s,
        "status": schedule.status,
        "bubble": max(1 - total / (makespan * len(devices)), 0.0) if makespan > 0 else 0.0,
        "rate_bound_s": schedule.rate_bound_s,
        "units": [
            {"name": unit.name, "peak_bytes": float(peak), "busy_s": time, **_UNIT.write(unit)}
            for unit, peak, time in zip(placement.units, peak_bytes, busy, strict=True)
        ],
        "passes": list(map(_PASS.write, placement.blocks)),
    }
    if schedule.rate_s is not None:
        record["rate_s"] = schedule.rate_s
    if schedule.repetend is not None:
        repetend = _REPETEND.write(schedule.repetend)
        record["repetend"] = {**repetend, "memory_bytes": schedule.repetend.held(placement.units)}
    if points is not None:
        record["pareto"] = list(map(_POINT.write, points))
    if digest is not None:
        record["digest"] = digest
    homes = [[list(home) for home in block.homes] for block in placement.blocks]
    starts, ends = start.ravel().tolist(), end.ravel().tolist()
    k = len(placement.blocks)
    blocks: list[Record] = []
    for at in order:
        n, i = divmod(at, k)
        blocks.append(
            {
                "type": "block",
                "pass": i,
                "micro_batch": n,
                "units": homes[i][n % len(homes[i])],
                "start_s": starts[at],
                "end_s": ends[at],
            }
        )
    return record, blocks


def busy_times(placement: Placement, count: int) -> list[float]:
    """Time that each unit runs blocks of `count` micro-batches."""
    busy = [0.0] * len(placement.units)
    for block in placement.blocks:
        turns = len(block.homes)
        for j, home in enumerate(block.homes):
            times = len(range(j, count, turns))
            for unit in home:
                busy[unit] += times * block.time_s
    return busy


_FIELDS = RECORDS["schedule"]
_UNIT = Form(Unit, _FIELDS["units"].inner)
_PASS = Form(
    PlacedBlock,
    _FIELDS["passes"].inner,
    after=Form(Wait, _FIELDS["passes"].inner["after"].inner),
)
_REPETEND = Form(Repetend, _FIELDS["repetend"].inner, ("method",))
_POINT = Form(Point, _FIELDS["pareto"].inner, ("method", "starts_s"))


def schedule_line(record: Record, asked: str, in_seconds: bool, max_gap: float = 0.0) -> str:
    """One line about a schedule record; `asked`: the method, and the gap that need not be closed.

    Where times are not `in_seconds`, their unit and that of memory are not known.
    """
    makespan, bound = (_shown(record, name, in_seconds) for name in ("makespan_s", "bound_s"))
    number = record["micro_batches"]
    proven = "optimal" if record["status"] == "optimal" else f"bound {bound}"
    near = record["bound_s"] >= record["makespan_s"] * (1 - max_gap)
    if max_gap > 0 and record["status"] != "optimal" and near:
        proven = f"{within_words(max_gap)}, {proven}"
    by = "" if record["method"] == asked else f" by {record['method']}"
    parts = [
        f"makespan {makespan} of {number} micro-batch{'es' * (number != 1)}{by}, {proven}, "
        f"bubble {100 * record['bubble']:.3g} %"
    ]
    repetend = record.get("repetend")
    if repetend is not None:
        unroll = repetend["unroll"]
        each = f" for {unroll} micro-batches" if unroll > 1 else ""
        period, memory, span = (
            _shown(repetend, name, in_seconds) for name in ("period_s", "memory_bytes", "span_s")
        )
        proof = _proof(repetend, in_seconds)
        parts.append(f"period {period}{each}, memory {memory}, span {span} ({proof})")
    elif "rate_s" in record:
        parts.append(f"{_shown(record, 'rate_s', in_seconds)} for each of many")
    interrupted = ", interrupted" if record["status"] == "interrupted" else ""
    return "; ".join(parts) + interrupted


def trade_off_lines(record: Record, in_seconds: bool) -> list[str]:
    """The trade-off between period and memory of a schedule record as a table; empty: none."""
    if "pareto" not in record:
        return []
    fields = ("memory_bytes", "period_s", "period_bound_s")
    rows = [[_shown(point, name, in_seconds) for name in fields] for point in record["pareto"]]
    return table(["memory", "period", "bound"], rows, left=())


def _shown(record: Record, name: str, in_seconds: bool) -> str:
    """A field of a schedule with its unit."""
    value = record[name]
    if in_seconds and name.endswith("_bytes"):
        return shown_bytes(value)
    return shown_time(value, in_seconds)


def _proof(repetend: Record, in_seconds: bool) -> str:
    """The proof about a repetend, in words."""
    if repetend["status"] == "optimal":
        return "all proven"
    pairs = (
        ("period", "period_s", "period_bound_s"),
        ("memory", "memory_bytes", "memory_bound_bytes"),
        ("span", "span_s", "span_bound_s"),
    )
    open_ = [
        f"{name} at least {_shown(repetend, bound, in_seconds)}"
        for name, value, bound in pairs
        if repetend[value] > repetend[bound] * (1 + 1e-9)
    ]
    return ", ".join(open_) or "not proven"
