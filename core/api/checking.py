"""Validate a graph, recompute what its results promise, and judge them by gates.

Gates judge values that the checker recomputed, or, of a run, values that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnp.callbacks import Bar
from dnnp.core.check.graph import check_clustering, check_graph
from dnnp.core.check.layouts import check_layouts
from dnnp.core.check.load import fastest_links
from dnnp.core.check.phases import as_planned
from dnnp.core.check.plan import INFEASIBLE, PlanReport, check_choices, check_plan
from dnnp.core.check.schedule import ScheduleReport, check_schedule
from dnnp.core.check.stream import check_stream as check_records
from dnnp.core.check.violation import Violation
from dnnp.core.model.device import own_times
from dnnp.core.model.errors import (
    FormatError,
    GateError,
    InfeasibleError,
    UncheckableError,
    VerificationError,
)
from dnnp.core.model.graph import Clustering, singletons, with_own_times
from dnnp.core.model.graph import Graph as NodeGraph
from dnnp.core.model.plan import CLOSED, OBJECTIVES, Plan, contiguous_words, generation_words
from dnnp.core.model.search_context import Progress
from dnnp.core.model.text import counted, shown_bytes, shown_seconds, shown_time
from dnnp.formats.graph import clustering_of, digest_of, graph_of, shapes_of
from dnnp.formats.plan import plan_digest, plan_of
from dnnp.formats.records import covered
from dnnp.formats.rows import has
from dnnp.formats.spread import NO_COSTS, has_costs, is_blind, unknown_words
from dnnp.formats.stream import Record, Stream
from dnnp.graph import Graph
from dnnp.options.run import CheckOptions
from dnnp.options.table import function

if TYPE_CHECKING:
    from dnnp.core.certificates.certificate import CertificateReport


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


class _Need(NamedTuple):
    """Memory that something needs on a device, bytes."""

    subject: str
    device: str
    needed: float
    capacity: float


def require(stream: Stream, options: CheckOptions) -> None:
    """Refuse a stream that holds nothing to judge a gate by.

    Raises FormatError: A plan, a schedule or a run is missing, or its times have no unit.
    """
    planned, scheduled = bool(stream.get("plan")), bool(stream.get("schedule"))
    if options.max_gap is not None and not planned:
        raise FormatError("there is no plan record, so no gap", stream.name)
    if options.max_memory is not None and options.measured:
        run = _run(stream)
        rows = run.get("stages", ()) if "workers" in run else ()
        if not rows or not all("resident_bytes" in row for row in rows):
            missing = "no run in processes with resident_bytes (dnnp-run --workers process)"
            raise FormatError(f"there is {missing} to judge by --max-memory", stream.name)
    elif options.max_memory is not None and not (planned or scheduled):
        raise FormatError("there is no plan record, so no memory for --max-memory", stream.name)
    for name in ("min_tokens_per_s", "max_ttft", "max_tpot"):
        if getattr(options, name) is None:
            continue
        if not any("workload" in plan for plan in stream.get("plan")):
            flag = f"--{name.replace('_', '-')}"
            reason = f"there is no plan for prompts and tokens to judge by {flag}"
            raise FormatError(reason, stream.name)
        ran = stream.get("generation")
        if options.measured and (not ran or ran[-1].get("interrupted")):
            lacks = "the generation was interrupted" if ran else "there is no generation to judge"
            raise FormatError(f"{lacks} (dnnp-run --generate)", stream.name)
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
        if not run:
            return f"there is no record of a run of the plan, so no {what}"
        if run.get("interrupted"):
            return f"the run was interrupted, so no {what}"
        return "" if field in run else f"the run record has no {field}, so no {what}"
    if not (scheduled or stream.get("plan")):
        return f"there is no plan record and no schedule, so no {what}"
    if not stream.in_seconds:
        return f"units.time is '{stream.header['units']['time']}', so no {what} in seconds"
    if what == "throughput" and not scheduled and stream.get("plan")[0]["objective"] == "latency":
        return "the plan is for the latency of one sample, so no throughput"
    return ""


def gates_of(stream: Stream, found: Findings, options: CheckOptions) -> tuple[Gate, ...]:
    """All gates that are asked for; see `require`.

    Raises FormatError: A share of the memory is asked for, but no device states how much it has.
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
    figures: dict[str, tuple[Callable[..., tuple[str, float | None]], str, str]] = {
        "min-throughput": (_throughput, "the throughput of the {} is", "samples/s"),
        "max-latency": (_latency, "the latency of the {} is", ""),
        "min-tokens-per-s": (partial(_of_tokens, "tokens_per_s"), "its rate is", "tokens/s"),
        "max-ttft": (partial(_of_tokens, "ttft_s"), "its TTFT is", ""),
        "max-tpot": (partial(_of_tokens, "tpot_s"), "its TPOT is", ""),
    }
    for name, (figure, of, unit) in figures.items():
        if (limit := getattr(options, name.replace("-", "_"))) is not None:
            subject, value = figure(stream, found, measured=options.measured)
            value, of = None if blind else value, of.format(subject)
            gates.append(_judged(name, float(limit), value, subject, of, why, unit))
    return tuple(gates)


def _judged(
    name: str, limit: float, value: float | None, subject: str, of: str, why: str, unit: str
) -> Gate:
    """Judge a rate in a `unit`, at least the limit, or a time, at most; `why`: it is not known."""
    if value is None:
        words, holds = f"not known{why}", False
    elif unit:
        words, holds = f"{value:.6g} {unit}, below {limit:g}", value >= limit
    else:
        words = f"{shown_seconds(value, 6)}, above {shown_seconds(limit, 6)}"
        holds = value <= limit
    return Gate(name, limit, value, subject, holds, f"{of} {words}")


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


def _needs(stream: Stream, found: Findings) -> list[_Need]:
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


def _held(stream: Stream, found: Findings) -> list[_Need]:
    """List what stages held in the last run, with what their devices have in all."""
    devices = () if found.plan is None else found.plan.devices
    room = {d.name: d.memory_bytes + d.overhead_bytes for d in devices if not d.is_cpu}
    room |= {name: room[d.name] for d in devices if d.name in room for name in d.members}
    return [
        _Need(
            f"stage {row['stage']}",
            row["device"],
            row["resident_bytes"],
            room.get(row["device"], room.get(name, math.inf)),
        )
        for row in _run(stream).get("stages", ())
        for name in [row["device"].rpartition("/")[0]]
    ]


def _throughput(stream: Stream, found: Findings, *, measured: bool) -> tuple[str, float | None]:
    """Samples a second, and what says so."""
    if measured:
        return "run", _run(stream)[MEASURES[0]]
    if found.schedule is not None:
        makespan, count = found.schedule.makespan, stream.get("schedule")[0]["micro_batches"]
        return "schedule", None if makespan is None else _rate(count, makespan)
    plan = found.plan
    if plan and plan.tokens_per_s is not None and plan.options.workload:
        return "plan", plan.tokens_per_s / plan.options.workload.tokens
    value = None if found.report is None else found.report.value
    return "plan", None if value is None else _rate(1, value)


def _rate(count: int, time: float) -> float:
    return count / time if time else math.inf


def _latency(stream: Stream, found: Findings, *, measured: bool) -> tuple[str, float | None]:
    """Seconds of one sample, or sequence that is alone, and what says so.

    Of a pipeline, all that its stages do for it, one after the other.
    """
    if measured:
        return "run", _run(stream)[MEASURES[1]]
    if found.schedule is not None:
        return "schedule", found.schedule.longest
    plan, report = found.plan, found.report
    if plan is None or report is None:
        return "plan", None
    if plan.objective == "latency":
        return "plan", report.value
    if plan.options.workload and plan.ttft_s is not None and plan.tpot_s is not None:
        return "plan", plan.ttft_s + max(plan.options.workload.tokens - 1, 0) * plan.tpot_s
    return "plan", math.fsum(c.in_s + c.compute_s + c.overflow_s + c.out_s for c in report.costs)


def _of_tokens(
    field: str, stream: Stream, found: Findings, *, measured: bool
) -> tuple[str, float | None]:
    """Tokens per second, TTFT or TPOT: of a plan, or as measured (99th percentiles)."""
    if measured:
        ran = stream.get("generation")[-1]
        return "plan", ran.get(field, ran.get(f"{field.removesuffix('_s')}_p99_s"))
    return "plan", getattr(found.plan, field, None)


def _run(stream: Stream) -> Record:
    """The last run of the plan's stages; empty: there is none."""
    return next((run for run in reversed(stream.get("run")) if run["mode"] == "pipeline"), {})


COUNTED = ("node", "tensor", "group", "stage")
"""Kinds of record that a summary counts."""

GRAPH = ("node", "tensor", "group", "plan", "stage", "bound", "run")
"""Kinds of record that need a graph."""

SHOWN = 5
"""Devices without a capacity that are named."""


@dataclass(frozen=True)
class Findings:
    """Findings of a check; what the graph does not hold, or was not asked for, is None."""

    violations: Sequence[Violation]
    """Violations: whatever does not hold."""
    counts: dict[str, int]
    """Number of records, by type."""
    plan: Plan | None = None
    report: PlanReport | None = None
    proofs: Sequence[CertificateReport] | None = None
    schedule: ScheduleReport | None = None
    micro_batches: int = 0
    """Of the schedule."""
    in_seconds: bool = False
    """True where times are in seconds; else their unit is not known."""
    unknown: str = ""
    """Costs of the plan that are not known, in words."""
    blind: bool = False
    """True where no gap is known: no cost of the plan is, or not all sizes are."""
    gates: tuple[Gate, ...] = ()
    """Those that were asked for."""

    @property
    def ok(self) -> bool:
        """True where all holds, and all that was asked for is verified."""
        return not self.violations

    @property
    def status(self) -> int:
        """Of dnnp-check: 0 if all holds, 9 if all that can be checked; else 4 if but memory is
        wrong, 6 if only a proof is missing, 3."""
        kinds = {violation.kind for violation in self.violations} - {"unchecked"}
        if not kinds:
            return UncheckableError.exit_status if self.violations else 0
        if kinds <= {"certificate", "unverified"}:
            return VerificationError.exit_status
        return (InfeasibleError if kinds <= set(INFEASIBLE) else FormatError).exit_status

    @property
    def holds(self) -> bool:
        """True where nothing is wrong; something may not be verified, or not checkable."""
        return {violation.kind for violation in self.violations} <= {"unverified", "unchecked"}

    @property
    def bound(self) -> float | None:
        """The bound that is proven, where that was asked for; else what the plan states."""
        from dnnp.core.certificates.certificate import VERIFIED

        plan, proofs = self.plan, self.proofs
        if plan is None or any(proof.verdict != VERIFIED for proof in proofs or ()):
            return None
        return plan.bound if proofs is None else max(float(proof.proven) for proof in proofs)

    @property
    def gap(self) -> float | None:
        """The gap to that bound; 0 where a plan counts as optimal."""
        if self.plan is None or self.bound is None or self.blind:
            return None
        gap = replace(self.plan, bound=self.bound).gap
        return 0.0 if gap is not None and gap <= CLOSED else gap

    def judge(self) -> None:
        """Refuse what does not keep to its gates.

        Raises GateError: some do not hold; the message names all of these.
        """
        failed = in_words(self.gates)
        if failed:
            raise GateError(failed)

    def described(self) -> str:
        """One line about what holds."""
        parts = [counted(count, kind) for kind, count in self.counts.items() if count]
        plan, report, schedule = self.plan, self.report, self.schedule
        if plan is not None and report is not None:
            parts.append(f"{report.validity} split")
            if report.value is None:
                parts.append(f"{self._shown(plan, plan.value)} not recomputed")
            else:
                parts.append(self._shown(plan, report.value))
            if plan.status == "infeasible":
                parts.append(f"infeasible by {shown_bytes(plan.excess_bytes)}")
            gap = self.gap
            stated = " (bound stated, not checked)" if self.proofs is None else ""
            unknown = "gap unknown" if self.blind else "gap not verified"
            parts.append(unknown if gap is None else f"gap {gap:.3g}{stated}")
            parts[-1] += self.unknown
            if among := contiguous_words(plan, self.in_seconds):
                parts[-1] += f"{among} (stated, not checked)"
        parts += [f"bound {proof.verdict} ({proof.argument})" for proof in self.proofs or ()]
        if schedule is not None and schedule.makespan is not None and schedule.bubble is not None:
            number = self.micro_batches
            parts.append(
                f"schedule of {number} micro-batch{'es' * (number != 1)}, makespan "
                f"{shown_time(schedule.makespan, self.in_seconds)}, bubble {schedule.bubble:.3g}"
            )
        return ", ".join(parts)

    def _shown(self, plan: Plan, value: float) -> str:
        """The value of a plan, and how many samples a second that is."""
        if plan.tokens_per_s is not None:
            words = f"{OBJECTIVES[plan.objective]} {shown_time(value, self.in_seconds)} a sequence"
            return f"{words}, {generation_words(plan)}"
        rated = self.in_seconds and value > 0 and plan.objective != "latency"
        rate = f", {1 / value:.4g} samples/s" if rated else ""
        return f"{OBJECTIVES[plan.objective]} {shown_time(value, self.in_seconds)}{rate}"

    def summary(self) -> dict[str, Any]:
        """The object that `dnnp-check --json` prints; what the graph does not hold is None."""
        plan, report, proofs, schedule = self.plan, self.report, self.proofs, self.schedule
        summary: dict[str, Any] = {
            "ok": self.ok,
            "objective": None if plan is None else plan.objective,
            "value": None if report is None else _number(report.value),
            "bound": self.bound,
            "gap": self.gap,
            "status": None if plan is None else plan.status,
            "method": None if plan is None else plan.method,
            "validity": None if report is None else report.validity,
            "loads": None if report is None else [_number(cost.load_s) for cost in report.costs],
        }
        summary |= {f"{kind}s": self.counts.get(kind) for kind in COUNTED}
        summary["certificates"] = proofs and [
            {"argument": proof.argument, "verdict": proof.verdict, "detail": proof.detail}
            for proof in proofs
        ]
        summary["makespan"] = None if schedule is None else schedule.makespan
        summary["bubble"] = None if schedule is None else schedule.bubble
        summary["gates"] = [
            {name: _number(value) for name, value in gate.summary().items()} for gate in self.gates
        ]
        fields = ("kind", "subject", "message", "expected", "got")
        summary["violations"] = [
            {name: _number(getattr(violation, name)) for name in fields}
            for violation in self.violations
        ]
        return summary


@function(CheckOptions)
def check(graph: Graph, options: CheckOptions) -> Findings:
    """Validate a graph and recompute what its plan, its bounds and its schedule promise.

    Raises
    ------
    FormatError
        The graph is malformed, or lacks what is asked for.
    GateError
        All holds, but a gate does not.
    """
    findings = check_stream(graph.stream(), options)
    if findings.ok:
        findings.judge()
    return findings


def check_stream(stream: Stream, options: CheckOptions) -> Findings:
    """Check a stream; see `check`. Gates that fail are in what is returned."""
    with options.caller.progress("checking") as bar:
        found = _findings(stream, options, bar)
    unjudged = [name for gate in found.gates for name in gate.unjudged]
    if unjudged:
        listed = ", ".join(unjudged[:SHOWN]) + ", ..." * (len(unjudged) > SHOWN)
        options.caller.warn(f"no capacity is known, so --max-memory does not judge: {listed}")
    if found.gates and not all(map(has_costs, stream.get("plan"))):
        options.caller.warn(NO_COSTS)
    return found


def _findings(stream: Stream, options: CheckOptions, bar: Bar) -> Findings:
    graph, clustering, plan = _content(stream)
    require(stream, options)
    bounds = stream.get("bound") if options.certificate else []
    if not bounds and plan is not None and (plan.hybrid or plan.objective == "latency"):
        bounds = [{"value": plan.bound}]
    if options.certificate and (plan is None or not bounds):
        missing = "plan" if plan is None else "bound"
        raise FormatError(f"there is no {missing} record, so no bound to verify", stream.name)
    violations, digest, report = list[Violation](), None, None
    if graph is not None:
        violations += check_graph(graph)
        if has(stream.rows("node"), "shards"):
            violations += check_layouts(graph, shapes_of(stream))
        if clustering is not None:
            violations += check_clustering(graph, clustering)
        digest = digest_of(graph, clustering or singletons(graph))
    plans = stream.get("plan")
    violations += check_records(
        stream.header,
        stream.records,
        digest,
        plan_digest(plans[0], stream.get("stage")) if plans else None,
        covered,
        graph is not None and bool(graph.backward.any()),
    )
    proofs = None
    if graph is not None and plan is not None:
        report = check_plan(graph, clustering, plan)
        violations += report.violations
        violations += check_choices(graph, clustering, plan, stream.get("run"))
        if options.certificate:
            from dnnp.core.certificates.certificate import check_certificate, check_proven
            from dnnp.core.certificates.exact import Budget

            bar.update(Progress("verifying the bound"))
            budget, devices = Budget(), fastest_links(plan)
            graph, clustering = with_own_times(graph, clustering, own_times(plan.devices))
            graph, clustering = as_planned(graph, clustering, plan.options)
            proofs = [
                check_certificate(graph, clustering, devices, plan.options, record, budget, plan)
                for record in bounds
            ]
            for proof in proofs:
                violations += [*proof.violations, *check_proven(plan, proof)]
    schedule, number = None, 0
    for record in stream.get("schedule")[:1]:
        bar.update(Progress("checking the schedule"))
        schedule, number = check_schedule(record, stream.get("block")), record["micro_batches"]
        violations += schedule.violations
    counts = {kind: len(stream.rows(kind)) for kind in COUNTED}
    unknown = unknown_words(plans[0]) if plans else ""
    seconds = stream.in_seconds
    blind = any(map(is_blind, plans))
    found = Findings(
        violations, counts, plan, report, proofs, schedule, number, seconds, unknown, blind
    )
    return replace(found, gates=gates_of(stream, found, options))


def _content(stream: Stream) -> tuple[NodeGraph | None, Clustering | None, Plan | None]:
    """Graph, groups and plan; no graph where there is a schedule and nothing to have it from."""
    if stream.get("schedule") and not any(map(stream.rows, GRAPH)):
        return None, None, None
    graph = graph_of(stream)
    return graph, clustering_of(stream, graph), plan_of(stream, graph, check_digest=False)


def _number(value: Any) -> Any:
    """JSON has no infinity: show it as text."""
    return str(value) if value in (float("inf"), float("-inf")) else value
