"""Inputs and results of bounding methods, and the problem in whole numbers.

A problem in whole numbers makes a bound exact, and one that can be checked exactly.
Times and transfers are divided by a quantum, a power of two, and rounded down. Loads only shrink,
so a bound of the rounded problem, times the quantum, is a bound. The quantum is so small that what
is lost is near the rounding of floating-point numbers, and so large that sums of everything
stay below 2^53, where they are exact in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from dnnp.core.cost.items import Items, nets_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats, Graph, Ints, totals
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.model.plan import Block


@dataclass(frozen=True)
class BoundTask:
    """Input of an argument besides the problem."""

    validity: str
    """`ordered`, `convex` or `free`: the splits that the bound must hold for."""
    blocks: Sequence[Block] | None = None
    """The best split known; None: none is."""
    value: float = inf
    """Its objective, seconds: the bound is at most that."""
    floor: float = 0.0
    """The best bound so far, seconds: no smaller one is of use."""
    solver: str = "cbc"
    """Of linear and integer programs: `cbc` or `highs`."""


SOLVED, LIMIT, REFUSED, FAILED = "solved", "limit", "refused", "failed"


@dataclass(frozen=True)
class LowerBound:
    """A lower bound of the objective of all splits of a validity, and what proves it."""

    value: float
    """No such split has a smaller objective; 0: nothing is proven."""
    status: str = SOLVED
    """`solved`: the argument gave all it can; `limit`: it was stopped before, and the value still
    holds; `refused`: it does not hold for this cost model; `failed`: the solver did."""
    reason: str = ""
    """The reason why it was refused, or failed."""
    certificate: Mapping[str, Any] | None = None
    """With what another program verifies it (`dnnp-graph(5)`)."""
    blocks: list[Block] | None = None
    """A split better than the one known, if one was found on the way."""
    long: bool = False
    """True: verifying it may take more steps than `dnnp-check` takes."""

    @property
    def checkable(self) -> bool:
        """True if another program is likely to verify it."""
        return bool(self.certificate and self.certificate.get("checkable", True)) and not self.long


BITS = 48
"""The times and transfers of a class add up to less than 2^BITS quanta."""

SMALLEST = -1022
"""Exponent of the smallest quantum."""


def mixes_passes(problem: SplitProblem) -> bool:
    """True if some unit holds nodes of both passes; then its edges say little about order."""
    units = problem.units
    late = totals(units.label, problem.graph.backward, units.g)
    size = np.diff(units.member_ptr)
    return bool(((late > 0) & (late < size)).any())


def items_for(problem: SplitProblem, validity: str) -> Items:
    """Items that every split of this validity keeps whole.

    With a backward pass there is more than one way to order items; then only colours count.
    """
    if validity == "ordered" and not problem.graph.backward.any():
        return problem.items
    return problem.free_items


def refused(reason: str) -> LowerBound:
    """The argument does not hold here."""
    return LowerBound(0.0, REFUSED, reason)


@dataclass(frozen=True, eq=False)
class Whole:
    """Items and nets with whole loads, for `C` device classes that are offered."""

    items: Items
    names: Ints
    """i64[n], id of the first unit of each item."""
    devices: tuple[DeviceClass, ...]
    quantum: float
    unit_work: Floats
    """f64[C, g], whole numbers; inf: unsupported."""
    work: Floats
    """f64[C, n], the same of items."""
    nets: Hypergraph
    tensors: Ints
    """i64[p], id of the tensor of each net."""
    cost: Floats
    """f64[C, p], whole numbers; 0 on a CPU."""

    @property
    def stages(self) -> int:
        """Most stages over devices of the first class."""
        return min(self.devices[0].count, self.items.count)

    def claim(
        self, argument: str, units: int, proof: Mapping[str, Any], status: str = SOLVED, **more: Any
    ) -> LowerBound:
        """Claim `units` quanta; `more`: other fields of the claim."""
        certificate = {"argument": argument, "quantum": self.quantum, "units": units, **proof}
        return LowerBound(units * self.quantum, status, certificate=certificate, **more)


def one_class(
    problem: SplitProblem,
    validity: str,
    *,
    most_items: int,
    comms: Sequence[str] = ("sum",),
    objectives: Sequence[str] = ("throughput",),
    bits: int = BITS,
) -> Whole | LowerBound:
    """The rounded problem for an argument about accelerators of one class without replicas.

    Where it is about something else, or has more than `most_items`, the claim that says so.
    """
    options = problem.options
    offered = [d for d in problem.devices if d.count > 0]
    if len(offered) != 1 or offered[0].is_cpu:
        return refused("only for one class of accelerators")
    if options.objective not in objectives:
        return refused(f"not for the objective {options.objective}")
    if options.max_replicas != 1:
        return refused("only without replicas")
    if options.comm not in comms:
        return refused("only where transfers add to compute")
    if not problem.graph.n:
        return LowerBound(0.0)
    if items_for(problem, validity).count > most_items:
        return refused(f"more than {most_items} items")
    whole = whole_of(problem, validity, bits)
    if not np.isfinite(whole.work).all():
        return refused("a unit runs on no device that is offered")
    return whole


def whole_of(
    problem: SplitProblem, validity: str, bits: int = BITS, items: Items | None = None
) -> Whole:
    """Round a problem down to whole numbers; those of a class add up to less than 2^bits.

    `items`: other items than those of `items_for`, such as of one direction of a backward pass.
    Inside a cluster a transfer costs what it does on the faster one of both links: at most what
    it costs anywhere.
    """
    graph, units = problem.graph, problem.units
    offered = tuple(d for d in problem.devices if d.count > 0)
    items = items_for(problem, validity) if items is None else items
    nets, tensor = nets_of(graph, items.label, items.count, problem.options)
    values, where = _transfers(graph, tensor, offered)
    times = units.times_on(*(d.name for d in offered))
    finite = np.where(np.isfinite(times), times, 0.0)
    most = max(
        math.fsum(row.tolist()) + math.fsum(np.array([*map(float, exact)])[where].tolist())
        for row, exact in zip(finite, values, strict=True)
    )
    exponent = math.frexp(most)[1] - bits if most > 0 else 0
    quantum = math.ldexp(1.0, max(exponent, SMALLEST))
    unit_work = np.floor(times / quantum)
    of_unit = items.label[units.first]
    work = np.stack([totals(of_unit, row, items.count) for row in unit_work])
    ratio = Fraction(quantum)
    cost = np.array([[float(t // ratio) for t in exact] for exact in values])
    cost = cost.reshape(len(offered), -1)[:, where]
    first = np.full(items.count, units.g, dtype=np.int64)
    np.minimum.at(first, of_unit, np.arange(units.g))
    return Whole(
        items=items,
        names=units.group_ids[first],
        devices=offered,
        quantum=quantum,
        unit_work=unit_work,
        work=work,
        nets=nets,
        tensors=graph.tensor_ids[tensor],
        cost=cost,
    )


def _transfers(
    graph: Graph, tensors: Ints, devices: Sequence[DeviceClass]
) -> tuple[list[list[Fraction]], Ints]:
    """Least times to move a tensor once, exactly: all by device, and which is whose."""
    absent = np.isnan(graph.transfer_s[tensors])
    given_s = np.where(absent, -1.0, graph.transfer_s[tensors])
    size_bytes = np.where(absent, graph.tensor_bytes[tensors], 0.0)
    both = np.stack([given_s, size_bytes], axis=1).view(np.complex128)
    kinds, where = np.unique(both, return_inverse=True)
    times = [[_transfer(one.real, one.imag, d) for one in kinds.tolist()] for d in devices]
    return times, where.reshape(-1)


def _transfer(given_s: float, size_bytes: float, device: DeviceClass) -> Fraction:
    """Least time to move a tensor of a size, exactly; or what is given, from 0 on."""
    if device.is_cpu:
        return Fraction(0)
    link = device.bandwidth_bytes_per_s
    if given_s >= 0.0:
        time = Fraction(given_s)
    elif math.isinf(link):
        return Fraction(0)
    else:
        time = Fraction(size_bytes) / Fraction(link)
    inner = max((level.bandwidth_bytes_per_s for level in device.levels), default=link)
    if inner > link:
        time = Fraction(0) if math.isinf(inner) else time * Fraction(link) / Fraction(inner)
    return time


def flows_of(whole: Whole, pushed: Floats) -> list[Any]:
    """Flows in a certificate: [tensor id, [[item id, amount pushed into the net], ...]].

    `pushed` is f64[pins].
    """
    rows = []
    names, ends = whole.names[whole.nets.pins].tolist(), whole.nets.net_ptr.tolist()
    for tensor, (a, b) in zip(whole.tensors.tolist(), pairwise(ends), strict=True):
        row = [[names[q], int(pushed[q])] for q in range(a, b) if pushed[q]]
        if row:
            rows.append([tensor, row])
    return rows
