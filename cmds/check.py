"""dnnp-check: validate a stream and recompute what its plan promises."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from dnnp.cmds.shell.arguments import share
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, counted
from dnnp.core.model.errors import FormatError, GapError, InfeasibleError, VerificationError

if TYPE_CHECKING:
    from dnnp.core.check.certificate import CertificateReport
    from dnnp.core.check.plan import PlanReport
    from dnnp.core.check.schedule import ScheduleReport
    from dnnp.core.check.violation import Violation
    from dnnp.core.model.cluster import Clustering
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import Plan
    from dnnp.formats.stream import Stream

COUNTED = ("node", "tensor", "group", "stage")
"""Kinds of record that a summary counts."""

GRAPH = ("node", "tensor", "group", "plan", "stage", "bound", "run")
"""Kinds of record that need a graph."""

SHOWN = 20
"""Violations that are printed without --verbose."""


class _Schema(argparse.Action):
    """`--schema`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        import json

        from dnnp.formats.records import json_schema

        parser.exit(0, json.dumps(json_schema(), indent=1) + "\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-check."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object that sums up the findings"
    )
    parser.add_argument(
        "--certificate",
        action="store_true",
        help="verify that the bound is one, exactly, from its certificate",
    )
    parser.add_argument(
        "--max-gap",
        type=share,
        metavar="X",
        help="end with status 8 where the gap of the plan is above X, such as 0.05 for 5 %%; with "
        "--certificate the gap that is proven",
    )
    parser.add_argument(
        "--schema", action=_Schema, nargs=0, help="print the JSON Schema of a record and exit"
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Check a stream: 0 if all holds, 4 if but memory, 6 if only a proof is missing, else 3."""
    from dnnp.core.check.budget import Budget
    from dnnp.core.check.certificate import check_certificate, check_proven
    from dnnp.core.check.graph import check_clustering, check_graph
    from dnnp.core.check.plan import INFEASIBLE, check_plan
    from dnnp.core.check.schedule import check_schedule
    from dnnp.core.check.stream import check_stream
    from dnnp.core.check.violation import Violation
    from dnnp.core.model.cluster import singletons
    from dnnp.formats.graph import digest_of, plan_digest

    try:
        stream = context.read(args.stream)
        graph, clustering, plan = _content(stream)
        if args.max_gap is not None and plan is None:
            raise FormatError("there is no plan record, so no gap", stream.name)
        bounds = stream.get("bound") if args.certificate else []
        if args.certificate and (plan is None or not bounds):
            missing = "plan" if plan is None else "bound"
            raise FormatError(f"there is no {missing} record, so no bound to verify", stream.name)
    except FormatError as error:
        if args.json:
            fault = Violation("format", "stream", str(error))
            _print(context, _summary([fault], {}, _Findings()))
        raise
    violations, digest, report = [], None, None
    if graph is not None:
        violations += check_graph(graph)
        if clustering is not None:
            violations += check_clustering(graph, clustering)
        digest = digest_of(graph, clustering or singletons(graph))
    plans = stream.get("plan")
    violations += check_stream(
        stream.header,
        stream.records,
        digest,
        plan_digest(plans[0], stream.get("stage")) if plans else None,
    )
    proofs = None
    if graph is not None and plan is not None:
        report = check_plan(graph, clustering, plan)
        violations += report.violations
        if args.certificate:
            budget = Budget()
            proofs = [
                check_certificate(graph, clustering, plan.devices, plan.options, record, budget)
                for record in bounds
            ]
            for proof in proofs:
                violations += [*proof.violations, *check_proven(plan, proof)]
    schedule = None
    for record in stream.get("schedule")[:1]:
        schedule = check_schedule(record, stream.get("block"))
        violations += schedule.violations
    findings = _Findings(plan, report, proofs, schedule)
    context.elapsed("checked the stream")
    counts = {kind: len(stream.get(kind)) for kind in COUNTED}
    if args.json:
        _print(context, _summary(violations, counts, findings))
    shown = violations if context.verbose else violations[:SHOWN]
    for violation in shown:
        context.warn(str(violation))
    if len(shown) < len(violations):
        context.warn(f"and {len(violations) - len(shown)} more; --verbose or --json show all")
    kinds = {violation.kind for violation in violations}
    if kinds <= {"unverified"}:
        verdict = "not verified, all else holds" if kinds else "ok"
        context.note(f"{verdict}: {_described(counts, findings, stream)}")
        return VerificationError.exit_status if kinds else _judged(args, context, findings)
    context.note(counted(len(violations), "violation"))
    if kinds <= {"certificate", "unverified"}:
        return VerificationError.exit_status
    fits = kinds <= set(INFEASIBLE)
    return InfeasibleError.exit_status if fits else FormatError.exit_status


class _Findings(NamedTuple):
    """What was found out; what the stream does not hold, or was not asked for, is None."""

    plan: Plan | None = None
    report: PlanReport | None = None
    proofs: Sequence[CertificateReport] | None = None
    schedule: ScheduleReport | None = None


def _judged(args: argparse.Namespace, context: Context, findings: _Findings) -> int:
    """Status of a stream that holds: whether its gap is small enough."""
    gap = _gap(findings)
    if args.max_gap is None or (gap is not None and gap <= args.max_gap):
        return 0
    context.warn(f"the gap is {gap:.3g}, above {args.max_gap:g} (--max-gap)")
    return GapError.exit_status


def _content(stream: Stream) -> tuple[Graph | None, Clustering | None, Plan | None]:
    """Graph, groups and plan; no graph where there is a schedule and nothing to have it from."""
    from dnnp.formats.graph import clustering_of, graph_of, plan_of

    if stream.get("schedule") and not any(map(stream.get, GRAPH)):
        return None, None, None
    graph = graph_of(stream)
    return graph, clustering_of(stream, graph), plan_of(stream, graph, check_digest=False)


def _described(counts: dict[str, int], findings: _Findings, stream: Stream) -> str:
    """One line about a stream that holds."""
    plan, report, proofs, schedule = findings
    parts = [counted(count, kind) for kind, count in counts.items() if count]
    if plan is not None and report is not None:
        parts.append(f"{report.validity} split")
        if report.value is None:
            parts.append(f"{plan.objective} {plan.value:.6g} not recomputed")
        else:
            parts.append(f"{plan.objective} value {report.value:.6g}")
        gap = _gap(findings)
        parts.append("gap not verified" if gap is None else f"gap {gap:.3g}")
    parts += [f"bound {proof.verdict} ({proof.argument})" for proof in proofs or ()]
    if schedule is not None and schedule.makespan is not None and schedule.bubble is not None:
        count = stream.get("schedule")[0]["micro_batches"]
        parts.append(
            f"schedule of {count} micro-batch{'es' * (count != 1)}, makespan "
            f"{schedule.makespan:.6g}, bubble {schedule.bubble:.3g}"
        )
    return ", ".join(parts)


def _bound(findings: _Findings) -> float | None:
    """The bound that is proven, where that was asked for; else what the plan states."""
    from dnnp.core.check.certificate import VERIFIED

    plan, _, proofs, _ = findings
    if plan is None or any(proof.verdict != VERIFIED for proof in proofs or ()):
        return None
    return plan.bound if proofs is None else max(float(proof.proven) for proof in proofs)


def _gap(findings: _Findings) -> float | None:
    """The gap to that bound."""
    bound = _bound(findings)
    if findings.plan is None or bound is None:
        return None
    return replace(findings.plan, bound=bound).gap


def _summary(
    violations: Sequence[Violation], counts: dict[str, int], findings: _Findings
) -> dict[str, Any]:
    """The object of --json; what the stream does not hold is null."""
    plan, report, proofs, schedule = findings
    summary: dict[str, Any] = {
        "ok": not violations,
        "objective": None if plan is None else plan.objective,
        "value": None if report is None else _number(report.value),
        "bound": _bound(findings),
        "gap": _gap(findings),
        "status": None if plan is None else plan.status,
        "method": None if plan is None else plan.method,
        "validity": None if report is None else report.validity,
        "loads": None if report is None else [_number(cost.load_s) for cost in report.costs],
    }
    summary |= {f"{kind}s": counts.get(kind) for kind in COUNTED}
    summary["certificates"] = proofs and [
        {"argument": proof.argument, "verdict": proof.verdict, "detail": proof.detail}
        for proof in proofs
    ]
    summary["makespan"] = None if schedule is None else schedule.makespan
    summary["bubble"] = None if schedule is None else schedule.bubble
    fields = ("kind", "subject", "message", "expected", "got")
    summary["violations"] = [
        {name: _number(getattr(violation, name)) for name in fields} for violation in violations
    ]
    return summary


def _number(value: Any) -> Any:
    """JSON has no infinity: show it as text."""
    return str(value) if value in (float("inf"), float("-inf")) else value


def _print(context: Context, summary: dict[str, Any]) -> None:
    import orjson

    with context.open_output() as file:
        file.write(orjson.dumps(summary) + b"\n")


COMMAND = Command(
    "dnnp-check", "validate a stream and recompute its plan", add_arguments, run,
    writes_stream=False,
)  # fmt: skip


def main() -> int:
    """Entry point."""
    return COMMAND.main()
