"""Validate a graph, and recompute what its results promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dnnp.callbacks import Bar
from dnnp.core.check.graph import check_clustering, check_graph, check_layouts
from dnnp.core.check.plan import INFEASIBLE, PlanReport, check_choices, check_plan
from dnnp.core.check.schedule import ScheduleReport, check_schedule
from dnnp.core.check.stream import check_stream as check_records
from dnnp.core.check.violation import Violation
from dnnp.core.model.errors import (
    FormatError,
    GateError,
    InfeasibleError,
    UncheckableError,
    VerificationError,
)
from dnnp.core.model.graph import Clustering, singletons
from dnnp.core.model.graph import Graph as NodeGraph
from dnnp.core.model.plan import CLOSED, OBJECTIVES, Plan, contiguous_words
from dnnp.core.model.search_context import Progress
from dnnp.core.model.text import counted, shown_bytes, shown_time
from dnnp.formats.graph import clustering_of, digest_of, graph_of
from dnnp.formats.plan import plan_digest, plan_of
from dnnp.formats.records import covered
from dnnp.formats.spread import NO_COSTS, has_costs, is_blind, unknown_words
from dnnp.formats.stream import Stream
from dnnp.gates import Gate, Recomputed, gates_of, in_words, require
from dnnp.graph import Graph
from dnnp.options.run import CheckOptions
from dnnp.step import function

if TYPE_CHECKING:
    from dnnp.core.certificates.certificate import CertificateReport


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

        Raises
        ------
        GateError
            Some do not hold; the message names all of these.
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
    if options.certificate and (plan is None or not bounds):
        missing = "plan" if plan is None else "bound"
        raise FormatError(f"there is no {missing} record, so no bound to verify", stream.name)
    violations, digest, report = [], None, None
    if graph is not None:
        violations += check_graph(graph)
        violations += check_layouts(stream.get("node"), stream.get("tensor"))
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
    )
    proofs = None
    if graph is not None and plan is not None:
        report = check_plan(graph, clustering, plan)
        violations += report.violations
        violations += check_choices(graph, clustering, plan, stream.get("run"))
        if options.certificate:
            from dnnp.core.certificates.certificate import check_certificate, check_proven
            from dnnp.core.certificates.exact import Budget
            from dnnp.core.check.devices import fastest_links

            bar.update(Progress("verifying the bound"))
            budget, devices = Budget(), fastest_links(plan)
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
    counts = {kind: len(stream.get(kind)) for kind in COUNTED}
    unknown = unknown_words(plans[0]) if plans else ""
    seconds = stream.in_seconds
    blind = any(map(is_blind, plans))
    found = Findings(
        violations, counts, plan, report, proofs, schedule, number, seconds, unknown, blind
    )
    recomputed = Recomputed(plan, report, schedule, found.gap)
    return replace(found, gates=gates_of(stream, recomputed, options))


def _content(stream: Stream) -> tuple[NodeGraph | None, Clustering | None, Plan | None]:
    """Graph, groups and plan; no graph where there is a schedule and nothing to have it from."""
    if stream.get("schedule") and not any(map(stream.get, GRAPH)):
        return None, None, None
    graph = graph_of(stream)
    return graph, clustering_of(stream, graph), plan_of(stream, graph, check_digest=False)


def _number(value: Any) -> Any:
    """JSON has no infinity: show it as text."""
    return str(value) if value in (float("inf"), float("-inf")) else value
