"""Verify the certificate of a bound, in whole numbers, from nothing but the stream.

What each argument proves, and of what form its certificate is, stands in `dnnp-graph(5)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from dnnp.core.certificates.cover import cover_units
from dnnp.core.certificates.cut_trees import bisection_units, cover_cut_units
from dnnp.core.certificates.cuts import (
    cpu_cut_units,
    node_cut_units,
    pairs_units,
    same_block_units,
)
from dnnp.core.certificates.exact import (
    Budget,
    Exact,
    UncheckedError,
    UnprovenError,
    field,
    number,
    quantum_of,
    short,
    weights_of,
    whole,
)
from dnnp.core.certificates.ideals import ideal_units
from dnnp.core.certificates.latency import prove_latency
from dnnp.core.certificates.linked import linked_units
from dnnp.core.certificates.packing import packing_units
from dnnp.core.certificates.parallel import prove_parallel
from dnnp.core.certificates.zones import chain_units, zone_cut_units
from dnnp.core.check.declared import beyond_certificate
from dnnp.core.check.latency import LatencyCase
from dnnp.core.check.load import PlanCase
from dnnp.core.check.violation import STRENGTH, Violation, above, printable
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Clustering, Graph
from dnnp.core.model.plan import CostOptions, Plan

VERIFIED, REFUTED, NOT_CHECKABLE = "verified", "refuted", "not checkable"


@dataclass(frozen=True)
class CertificateReport:
    """The verdict on a certificate."""

    verdict: str
    """`verified`, `refuted`, or `not checkable`: it does not claim to be a proof by itself, or is
    too large to be looked at."""
    argument: str
    detail: str
    """Reason why it is not verified; its origin where it is not checkable."""
    violations: tuple[Violation, ...] = ()
    proven: float = 0.0
    """Value of the bound, where it is verified."""


def check_certificate(
    graph: Graph,
    clustering: Clustering | None,
    devices: Sequence[DeviceClass],
    options: CostOptions,
    record: Mapping[str, Any],
    budget: Budget | None = None,
    plan: Plan | None = None,
) -> CertificateReport:
    """Verify that no split of the validity of a bound record has a smaller objective than it says.

    The record may be wrong in any way; what is more work than the budget is not checkable. The plan
    states the links, for the argument `links`; `devices` are those at their best links. Bounds of
    latency and of parallel plans need no certificate.
    """
    certificate = record.get("certificate")
    if plan is not None and (plan.objective == "latency" or plan.hybrid is not None):
        return _check_anew(graph, clustering, plan, record, budget or Budget())
    if certificate is None:
        return CertificateReport(NOT_CHECKABLE, "none", "there is no certificate")
    try:
        argument = field(certificate, "argument", str)
    except UnprovenError as reason:
        return _refuted("unknown", str(reason))
    if certificate.get("checkable") is False:
        return CertificateReport(NOT_CHECKABLE, printable(argument, 40), _vouched(certificate))
    problem = graph, clustering, devices, options
    try:
        _verify(problem, record, certificate, plan, budget or Budget())
        for name, _ in beyond_certificate(certificate, [argument]):
            raise UncheckedError(f"no check covers its field '{printable(name, 80)}'")
    except UnprovenError as reason:
        return _refuted(argument, str(reason))
    except UncheckedError as reason:
        return CertificateReport(NOT_CHECKABLE, printable(argument, 40), str(reason))
    return CertificateReport(VERIFIED, argument, "", proven=float(record["value"]))


def _check_anew(
    graph: Graph,
    clustering: Clustering | None,
    plan: Plan,
    record: Mapping[str, Any],
    budget: Budget,
) -> CertificateReport:
    """Verify a bound of latency, or of parallel plans, from graph and devices alone."""
    certificate, value = record.get("certificate"), record.get("value")
    try:
        claim = float(number(value, "the value"))
        if certificate and certificate.get("checkable") is not False:
            raise UncheckedError("there are no certificates for such plans")
        if plan.hybrid is not None:
            case = PlanCase.of(graph, clustering, plan)
            argument = prove_parallel(case, claim, budget)
        else:
            argument = prove_latency(LatencyCase.of(graph, clustering, plan), claim, budget)
    except UnprovenError as reason:
        message = f"its value {printable(str(value), 40)} is no bound: {reason}"
        violation = Violation("certificate", "bound", message)
        return CertificateReport(REFUTED, "search", str(reason), (violation,))
    except UncheckedError as reason:
        return CertificateReport(NOT_CHECKABLE, "search", str(reason))
    return CertificateReport(VERIFIED, argument, "", proven=claim)


def check_proven(plan: Plan, proof: CertificateReport) -> Iterator[Violation]:
    """Find claims of a plan and its bound record beyond what the certificate proves."""
    if proof.verdict == NOT_CHECKABLE:
        message = f"the bound is not verified: its certificate ({proof.argument}) is not checkable"
        yield Violation("unchecked", "bound", f"{message}; {proof.detail}")
    if proof.verdict == VERIFIED and above(plan.contiguous_bound, proof.proven):
        message = f"contiguous_bound {plan.contiguous_bound!r} is not checkable: no certificate is "
        yield Violation("unchecked", "plan", f"{message}about contiguous clusters")
    if proof.verdict != VERIFIED or not above(plan.bound, proof.proven):
        return
    claim = "that it is optimal" if plan.status == "optimal" else f"its bound {plan.bound!r}"
    shows = f"the certificate ({proof.argument}) proves {proof.proven!r}"
    if plan.rules:  # a bound for plans without them is verified
        message = f"{claim} is not checkable: {shows}, of plans without its rules too"
        yield Violation("unchecked", "plan", message)
    else:
        message = f"{claim} is not verified: {shows}"
        yield Violation("unverified", "plan", message, proof.proven, plan.bound)


def _refuted(argument: str, reason: str) -> CertificateReport:
    name = printable(argument, 40)
    message = f"its certificate ({name}) does not prove it: {reason}"
    return CertificateReport(REFUTED, name, reason, (Violation("certificate", "bound", message),))


def _vouched(certificate: Mapping[str, Any]) -> str:
    """Origin that a certificate states which cannot be checked."""
    said = (
        f"{name} {short(value) if isinstance(value, int) else value}"[:80]
        for name, value in certificate.items()
        if name not in ("argument", "checkable") and isinstance(value, (str, int, float))
    )
    return printable(", ".join(said), 400) or "it gives no proof"


def _verify(
    problem: tuple[Graph, Clustering | None, Sequence[DeviceClass], CostOptions],
    record: Mapping[str, Any],
    certificate: Mapping[str, Any],
    plan: Plan | None,
    budget: Budget,
) -> None:
    """Raise `UnprovenError` unless the certificate proves the value of the record."""
    argument = certificate["argument"]
    value, validity = number(record.get("value"), "the value"), record.get("validity")
    if not isinstance(validity, str) or validity not in STRENGTH:
        raise UnprovenError("it does not say for which validity it holds")
    if argument not in ARGUMENTS and argument != LINKED:
        raise UnprovenError("there is no such argument")
    quantum = quantum_of(certificate)
    units = whole(certificate.get("units"), "the field 'units'")
    if value > units * quantum:
        raise UnprovenError(f"its value is more than the {short(units)} quanta that it proves")
    exact = Exact(*problem, validity, quantum, budget)
    if argument == LINKED:
        proven = linked_units(exact, plan, units)
    else:
        proven = ARGUMENTS[argument](exact, certificate, units)
    if proven < units:
        raise UnprovenError(f"it proves {short(proven)} quanta, not {short(units)}")


def _simple_units(exact: Exact, certificate: Mapping[str, Any], units: int) -> int:
    """The mean load, or the time of one item, of all units or of each pass."""
    del units
    wanted = {"throughput": ["all"], "gpipe": ["forward", "backward"]}
    parts = field(certificate, "parts", list)
    if [field(part, "pass", str) for part in parts] != wanted.get(exact.options.objective):
        raise UnprovenError("its parts are not those of the objective")
    proven = [_part_units(exact, part) for part in parts]
    for part, least in zip(parts, proven, strict=True):
        if whole(part.get("units", 0), "the units of a part") > least:
            raise UnprovenError(f"a part proves {short(least)} quanta, less than it says")
    return sum(proven)


def _part_units(exact: Exact, part: Mapping[str, Any]) -> int:
    """Quanta that a part proves: weighed work over weighed devices, or least over replicas."""
    chosen = [part["pass"] == "all" or late == (part["pass"] == "backward") for late in exact.late]
    replicas = exact.options.max_replicas
    if field(part, "kind", str) == "mean":
        weights = weights_of(exact, field(part, "weights", dict))
        work = 0
        for unit, is_in in enumerate(chosen):
            times = ((weights[name], exact.unit_work[name][unit]) for name in exact.devices)
            weighed = [y * t for y, t in times if t is not None]
            work += min(weighed, default=0) if is_in else 0
        mean = Fraction(work, sum(y * exact.devices[name].count for name, y in weights.items()))
        return ceil(mean) if replicas == 1 else int(mean)
    if part["kind"] != "item":
        raise UnprovenError("a part is neither a mean nor an item")
    item = exact.named(field(part, "item", int))
    held = [u for u, i in enumerate(exact.item_of) if i == item and chosen[u]]
    found = []
    for name, device in exact.devices.items():
        if all(exact.unit_work[name][u] is not None for u in held):
            time = sum(exact.unit_work[name][u] or 0 for u in held)
            found.append(time // min(replicas, device.count))
    if not found:
        raise UnprovenError("its item runs on no device that is offered")
    return min(found)


ARGUMENTS: dict[str, Callable[[Exact, Mapping[str, Any], int], int]] = {
    "simple": _simple_units,
    "node-cut": lambda exact, certificate, _: node_cut_units(exact, certificate),
    "cpu-cut": lambda exact, certificate, _: cpu_cut_units(exact, certificate),
    "pairs": pairs_units,
    "chain": chain_units,
    "zone-cut": zone_cut_units,
    "same-block": same_block_units,
    "cover": cover_units,
    "cover-cut": cover_cut_units,
    "halves": bisection_units,
    "ideal": lambda exact, _, units: ideal_units(exact, units),
    "packing": packing_units,
}
"""Argument -> what its certificate proves of the quanta that it claims; raises `UnprovenError`,
or `UncheckedError` where there is too much to look at."""

LINKED = "links"
"""The argument that knows the links of a plan."""
