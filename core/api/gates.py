"""Gates for scripts: what a plan, its schedule or a run of it must keep to, and whether it does.

What is judged is what the checker recomputed, or for a run what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dnnp.core.check.plan import PlanReport
from dnnp.core.check.schedule import ScheduleReport
from dnnp.core.model.errors import FormatError
from dnnp.core.model.plan import Plan
from dnnp.core.model.text import shown_bytes, shown_seconds
from dnnp.formats.spread import has_costs
from dnnp.formats.stream import Record, Stream
from dnnp.options.run import CheckOptions

MEASURES = ("throughput_per_s", "latency_p99_s")
"""Fields of a run that gates judge."""


class Gate(NamedTuple):
    """A limit, and what came of it."""

    name: str
    """Option that sets it, without dashes in front."""
    limit: float
    value: float | None
    """The value that is judged; None: it is not known, since something does not hold."""
    subject: str
    """Subject of the value: `plan`, `schedule`, `run`, `stage 2 on v100/0`."""
    holds: bool
    words: str
    """The value against its limit."""
    unjudged: tuple[str, ...] = ()
    """Devices without a capacity that a share could be of."""

    def summary(self) -> dict[str, Any]:
        """The object that `dnnp-check --json` has of it."""
        found = self._asdict()
        del found["words"]
        return {"gate": found.pop("name"), **found, "unjudged": list(self.unjudged)}


class Recomputed(NamedTuple):
    """Findings of the checker that gates judge."""

    plan: Plan | None
    report: PlanReport | None
    schedule: ScheduleReport | None
    gap: float | None


class _Need(NamedTuple):
    """Memory that something needs on a device, bytes."""

    subject: str
    device: str
    needed: float
    capacity: float


def require(stream: Stream, options: CheckOptions) -> None:
    """Refuse a stream that holds nothing to judge a gate by.

    Raises
    ------
    FormatError
        A plan, a schedule or a run is missing, or its times have no unit.
    """
    planned, scheduled = bool(stream.get("plan")), bool(stream.get("schedule"))
    if options.max_gap is not None and not planned:
        raise FormatError("there is no plan record, so no gap", stream.name)
    if options.max_memory is not None and options.measured:
        run = _run(stream) or {}
        rows = run.get("stages", ()) if "workers" in run else ()
        if not rows or not all("resident_bytes" in row for row in rows):
            missing = "no run in processes with resident_bytes (dnnp-run --workers process)"
            raise FormatError(f"there is {missing} to judge by --max-memory", stream.name)
    elif options.max_memory is not None and not (planned or scheduled):
        raise FormatError("there is no plan record, so no memory for --max-memory", stream.name)
    gates = {"throughput": options.min_throughput, "latency": options.max_latency}
    for (what, limit), field in zip(gates.items(), MEASURES, strict=True):
        fault = None if limit is None else _missing(stream, what, field if options.measured else "")
        if fault:
            raise FormatError(f"{fault} is known", stream.name)


def _missing(stream: Stream, what: str, field: str) -> str:
    """Say why throughput or latency is not known; empty: it is. `field` of a run, or empty."""
    scheduled = bool(stream.get("schedule"))
    if field:
        run = _run(stream)
        if run is None:
            return f"there is no record of a run of the plan, so no {what}"
        return "" if field in run else f"the run record has no {field}, so no {what}"
    if not (scheduled or stream.get("plan")):
        return f"there is no plan record and no schedule, so no {what}"
    if not stream.in_seconds:
        return f"units.time is '{stream.header['units']['time']}', so no {what} in seconds"
    if what == "throughput" and not scheduled and stream.get("plan")[0]["objective"] == "latency":
        return "the plan is for the latency of one sample, so no throughput"
    return ""


def gates_of(stream: Stream, found: Recomputed, options: CheckOptions) -> tuple[Gate, ...]:
    """All gates that are asked for; see `require`.

    Raises
    ------
    FormatError
        A share of the memory is asked for, but no device states how much it has.
    """
    gates = []
    busy = (any(unit["busy_s"] for unit in one["units"]) for one in stream.get("schedule"))
    costs = all(map(has_costs, stream.get("plan"))) and all(busy)
    blind, why = not costs and not options.measured, "" if costs else ": no costs are known"
    if options.max_gap is not None:
        gap, most = found.gap, options.max_gap
        words = f"no gap is known{why}" if gap is None else f"the gap is {gap:.3g}, above {most:g}"
        gates.append(Gate("max-gap", most, gap, "plan", gap is not None and gap <= most, words))
    if options.max_memory is not None:
        needs = _held(stream, found) if options.measured else _needs(stream, found)
        gates.append(_memory(stream, needs, float(options.max_memory)))
    if options.min_throughput is not None:
        least = float(options.min_throughput)
        subject, rate = _throughput(stream, found, measured=options.measured)
        rate = None if blind else rate
        holds = rate is not None and rate >= least
        words = f"the throughput of the {subject} is "
        words += f"not known{why}" if rate is None else f"{rate:.6g} samples/s, below {least:g}"
        gates.append(Gate("min-throughput", least, rate, subject, holds, words))
    if options.max_latency is not None:
        most = float(options.max_latency)
        subject, time = _latency(stream, found, measured=options.measured)
        time = None if blind else time
        holds = time is not None and time <= most
        words = f"the latency of the {subject} is "
        words += (
            f"not known{why}"
            if time is None
            else f"{shown_seconds(time, 6)}, above {shown_seconds(most, 6)}"
        )
        gates.append(Gate("max-latency", most, time, subject, holds, words))
    return tuple(gates)


def in_words(gates: Sequence[Gate]) -> str:
    """Name the gates that do not hold, on one line; empty: all do."""
    return "; ".join(f"{gate.words} (--{gate.name})" for gate in gates if not gate.holds)


def _memory(stream: Stream, needs: Sequence[_Need], most: float) -> Gate:
    """The memory that a device needs, against a share of its own or against a number of bytes."""
    share = most <= 1
    limited = [need for need in needs if math.isfinite(need.capacity)] if share else needs
    unjudged = tuple(dict.fromkeys(n.device for n in needs if share and math.isinf(n.capacity)))
    if unjudged and not limited:
        reason = f"{unjudged[0]} states no memory, nor does another device: give --max-memory "
        raise FormatError(f"{reason}bytes, such as 14Gi", stream.name)
    if not needs:
        return Gate("max-memory", most, None, "plan", False, "no memory is known")
    worst = max(limited, key=_share if share else lambda need: need.needed)
    value, what, limit = worst.needed, shown_bytes(worst.needed, 6), shown_bytes(most, 6)
    if share:
        value, limit = _share(worst), f"{most:g}"
        what = f"{value:.4g} of its memory ({what} of {shown_bytes(worst.capacity, 6)})"
    subject = f"{worst.subject} on {worst.device}"
    words = f"{subject} needs {what}, above {limit}"
    return Gate("max-memory", most, value, subject, value <= most, words, unjudged)


def _share(need: _Need) -> float:
    if not need.capacity:
        return math.inf if need.needed else 0.0
    return need.needed / need.capacity


def _needs(stream: Stream, found: Recomputed) -> list[_Need]:
    """List what stages need, those of one device together, and what devices hold in a schedule."""
    needs: list[_Need] = []
    if found.plan is not None and found.report is not None:
        room = {d.name: math.inf if d.is_cpu else d.memory_bytes for d in found.plan.devices}
        held: dict[str, list[tuple[int, float]]] = {}
        stages = [*zip(found.plan.stages, found.report.costs, strict=True)]
        shared = [(n, c.memory_bytes) for n, (s, c) in enumerate(stages) if s.shared]
        for number, (stage, cost) in enumerate(stages):
            if not stage.shared:
                mine = held.setdefault(stage.device, [*shared])
                mine.append((number, cost.memory_bytes))
        if shared and not held:
            held[found.plan.stages[shared[0][0]].device] = shared
        for device, rows in held.items():
            first = rows[0][0]
            capacity = room.get(found.plan.stages[first].device_class, math.inf)
            subject = f"stage {' and '.join(str(number) for number, _ in rows)}"
            needs.append(_Need(subject, device, math.fsum(need for _, need in rows), capacity))
    if found.schedule is not None and found.schedule.peaks:
        units = stream.get("schedule")[0]["units"]
        for unit, peak in zip(units, found.schedule.peaks, strict=True):
            if not unit.get("link", False):
                capacity = unit.get("memory_bytes", math.inf)
                needs.append(_Need("the schedule", unit["name"], peak, capacity))
    return needs


def _held(stream: Stream, found: Recomputed) -> list[_Need]:
    """List what stages held in the last run, with what their devices have in all."""
    devices = () if found.plan is None else found.plan.devices
    room = {d.name: d.memory_bytes + d.overhead_bytes for d in devices if not d.is_cpu}
    return [
        _Need(
            f"stage {row['stage']}", row["device"], row["resident_bytes"], room.get(name, math.inf)
        )
        for row in (_run(stream) or {}).get("stages", ())
        for name in [row["device"].rpartition("/")[0]]
    ]


def _throughput(stream: Stream, found: Recomputed, *, measured: bool) -> tuple[str, float | None]:
    """Samples a second, and what says so."""
    if measured:
        return "run", _measured(stream, MEASURES[0])
    if found.schedule is not None:
        makespan, count = found.schedule.makespan, stream.get("schedule")[0]["micro_batches"]
        return "schedule", None if makespan is None else _rate(count, makespan)
    value = None if found.report is None else found.report.value
    return "plan", None if value is None else _rate(1, value)


def _rate(count: int, time: float) -> float:
    return count / time if time else math.inf


def _latency(stream: Stream, found: Recomputed, *, measured: bool) -> tuple[str, float | None]:
    """Seconds of one sample, and what says so.

    Of a pipeline, all that its stages do for a sample, one after the other.
    """
    if measured:
        return "run", _measured(stream, MEASURES[1])
    if found.schedule is not None:
        return "schedule", found.schedule.longest
    plan, report = found.plan, found.report
    if plan is None or report is None:
        return "plan", None
    if plan.objective == "latency":
        return "plan", report.value
    return "plan", math.fsum(c.in_s + c.compute_s + c.overflow_s + c.out_s for c in report.costs)


def _run(stream: Stream) -> Record | None:
    """The last run of the plan's stages."""
    return next((run for run in reversed(stream.get("run")) if run["mode"] == "pipeline"), None)


def _measured(stream: Stream, field: str) -> float | None:
    run = _run(stream)
    return None if run is None or field not in run else float(run[field])
