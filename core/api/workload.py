"""The workload that a stream holds: graph, groups, costs and plan, each made once per command."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

from dnnp.callbacks import Callbacks
from dnnp.core.model.device import DeviceClass, Link, own_times
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Clustering, Graph, with_own_times
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.core.model.text import counted, shown_bytes
from dnnp.formats.edited_costs import reprice_groups
from dnnp.formats.graph import clustering_of, digest_of, graph_of, units_of
from dnnp.formats.plan import plan_of
from dnnp.formats.rows import has
from dnnp.formats.stream import Stream
from dnnp.options.table import DEFAULT_DEVICE

if TYPE_CHECKING:
    from dnnp.core.cost.problem import SplitProblem

FIELDS = ("value", "bound", "gap", "status")
"""Kinds of violation that are named after the field of the plan that they are about."""


class Workload:
    """A stream, and what a command derives from it: graph, units, digest, plan and problems.

    Each is made when it is first asked for, and checked against the stream then. Pricing a stream
    makes another workload.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._first: dict[tuple[object, ...], SplitProblem] = {}
        """By what costs follow from: sequences under way, their length, the workload."""

    @cached_property
    def graph(self) -> Graph:
        """The graph; FormatError: it is malformed."""
        return graph_of(self.stream)

    @cached_property
    def units(self) -> Clustering:
        """Groups, or single nodes, that a split keeps whole; FormatError: costs were edited."""
        return units_of(self.stream, self.graph)

    @cached_property
    def digest(self) -> str:
        """Digest of graph, costs and groups, by which a plan knows what it was made from."""
        return digest_of(self.graph, self.units)

    @cached_property
    def plan(self) -> Plan | None:
        """The plan, or None if there is none.

        FormatError: it was made from something else, or its numbers do not fit each other.
        """
        if not self.stream.get("plan"):
            return plan_of(self.stream, self.graph)
        plan = plan_of(self.stream, self.graph, self.units)
        if plan is not None:
            refuse_contradictions(self.stream, plan)
        return plan

    def at(self, stream: Stream) -> Workload:
        """The same graph and units in a stream that differs in its results only."""
        _ = self.digest  # made once for all of them
        other = copy(self)
        other.stream = stream
        return other

    def problem(
        self, devices: tuple[DeviceClass, ...], options: CostOptions,
        links: tuple[Link, ...] = (), rules: tuple[Rule, ...] = (),
    ) -> SplitProblem:  # fmt: skip
        """A problem of the graph; those with equal states share what follows from the graph."""
        from dnnp.core.cost.placing import with_rules
        from dnnp.core.cost.problem import SplitProblem
        from dnnp.core.cost.rates import planned

        own, single = tuple(own_times(devices).items()), options.objective != "latency"
        key = options.in_flight, options.max_length, options.workload, own, rules
        first = self._first.get(key)
        graph, units = (
            with_rules(*planned(*self.priced_on(devices), options), devices, rules, by_stage=single)
            if first is None
            else (first.graph, first.units)
        )
        made = SplitProblem(graph, units, devices, options, links, rules)
        return self._first.setdefault(key, made).sharing(made)

    def priced_on(self, devices: Sequence[DeviceClass]) -> tuple[Graph, Clustering]:
        """Graph and units with the times of all classes that devices have."""
        return with_own_times(self.graph, self.units, own_times(devices))

    def problem_of_plan(self, plan: Plan) -> SplitProblem:
        """The problem that a plan of it solves."""
        return self.problem(plan.devices, plan.options, plan.links)


def priced(stream: Stream, caller: Callbacks, *, reprice: bool = False) -> Workload:
    """The workload of a stream; one without costs is priced as dnnp-profile does by default.

    With `reprice`, groups whose cost no longer follows from their nodes cost the sum of these.
    """
    if reprice and stream.rows("group"):
        clustering_of(stream, graph_of(stream), priced=False)
        changed = reprice_groups(stream)
        if changed:
            caller.note(f"{counted(changed, 'group')} priced again, as the sum of their nodes")
    nodes = stream.rows("node")
    if nodes and not has(nodes, "time_s"):
        from dnnp.formats.inputs.devices import load_device
        from dnnp.pricing import price_analytic, price_phases

        devices = [load_device(DEFAULT_DEVICE)]
        caller.note(f"no costs in the stream: priced as by dnnp-profile --device {DEFAULT_DEVICE}")
        price_phases(stream, lambda part, told: price_analytic(part, devices, told), caller)
    return Workload(stream)


def refuse_infeasible(stream: Stream, plan: Plan) -> None:
    """Raise an InfeasibleError if a device lacks memory for its part of the plan of a stream."""
    if plan.status == "infeasible":
        raise InfeasibleError(
            f"{stream.name}: the plan is infeasible: a device needs "
            f"{shown_bytes(plan.excess_bytes)} more than it has (--memory-mode ignore)"
        )


def has_shards(plan: Plan) -> bool:
    """True if a plan has stages that several devices hold together."""
    return any(stage.shards > 1 for stage in plan.stages)


def refuse_shards(stream: Stream, plan: Plan, reason: str) -> None:
    """Raise a UsageError if a plan has stages that several devices hold together."""
    if has_shards(plan):
        raise UsageError(
            f"{stream.name}: stages of the plan are held by several devices together, {reason}"
        )


def refuse_contradictions(stream: Stream, plan: Plan) -> None:
    """Raise a FormatError if the numbers of the plan of a stream do not fit each other."""
    from dnnp.core.check.claims import check_claims
    from dnnp.core.check.stream import check_gap, check_made, check_unknown

    record = stream.get("plan")[0]
    found = [*check_claims(plan), *check_gap(record)]
    found += check_made(stream.header, record, stream.get("device"))
    found += check_unknown(stream.header, stream.records, record)
    for violation in found:
        field = violation.kind if violation.kind in FIELDS else None
        raise stream.fault_at(
            "plan", 0, field, f"the plan contradicts itself: {violation}; dnnp-check says more"
        )
