"""A bound from single items: the device that runs an item pays at least the cheapest set with it.

The load of a set S of items on an accelerator under `sum` is

    f(S) = work(S) + cost of the nets with pins both inside and outside of S,

so an item v costs its device at least min f(S) over all sets S that hold v, whether or not they
could be stages: a minimum cut (`dnnp.core.split.cuts`). With several classes it costs the least
over those that can run it. A CPU moves nothing: there the set of v alone is the cheapest. Memory
only adds to a load, or forbids it.

r replicas divide a load by r and add what their weights cost: it is at least f(S) over the most
replicas that there may be. For `gpipe` the largest forward and the largest backward load add up to
at least both loads of the stage with v, which under `sum` are f(S) together.

Where transfers overlap with compute, the load is at least any mean of its parts: at least
(a * work(S) + b * cut(S)) / d with a + b = d for `overlap`, and a + 2b = d for `duplex`, where the
cut is what comes in plus what goes out. That is the same cut with other capacities.

No split, whatever its validity, is better than the largest of these costs. For many devices, which
leave little but transfers around large items, it is often the optimum.

Beside L CPUs, items that cost B or more on every accelerator run on a CPU in each split with loads
below B. So they are in no set on an accelerator, which makes others cost more there, until those
may have to follow. If their times on CPUs add up to L * B, no split is better than B (`cpu-cut`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dnnp.core.bounds.lower_bound import (
    LIMIT,
    REFUSED,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    flows_of,
    mixes_passes,
    refused,
    whole_of,
)
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Floats, totals
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.cuts import Network, flow_from, network_of, pin_flows

MOST_PINS = 20_000
"""Pins of nets up to which the bound is computed."""

MOST_CUTS = 200
"""Items whose cut is computed, the most expensive ones first."""

FORBIDDEN = 2.0**50
"""Work of an item on a class that cannot run it."""

MOST = 2**62
"""Quanta that no load exceeds."""

NEAR = 1e-6
"""Relative precision of the bound by what CPUs must take, where no proof hits it exactly."""

LITTLE = 1e-9
"""Relative growth of a bound that is not worth giving up its certificate."""


def node_cut_bound(
    problem: SplitProblem, *, above: float = 0.0, run: SearchContext = PLAIN
) -> float:
    """Lower bound of the largest load of any ordered split; 0 where it is no use.

    Looks only for bounds `above` what is known. For one class of accelerators under `sum`
    without clusters and replicas.
    """
    options = problem.options
    offered = [d for d in problem.devices if d.count > 0]
    simple = options.comm == "sum" and options.max_replicas == 1
    if len(offered) != 1 or not simple or options.objective != "throughput" or not problem.graph.n:
        return 0.0
    if offered[0].is_cpu or offered[0].cluster_size or problem.units.g > MOST_PINS:
        return 0.0
    wholes = [whole_of(problem, "ordered", items=items) for items in problem.item_choices]
    known = BoundTask("ordered", floor=above)
    return min(_claim(problem, whole, known, run).value for whole in wholes)


MIXES = {"sum": ((1, 1, 1),), "overlap": ((1, 1, 2), (2, 1, 3), (1, 2, 3)), "duplex": ((1, 1, 3),)}
"""Weights (a, b, d) of work and cut that are tried for each way to combine them."""


def node_cut_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor.

    Any classes and replicas; the validity says what items are kept whole. With a backward pass
    `ordered` splits keep more whole than a certificate says; the bound of that, if it is larger,
    cannot be checked.
    """
    claim = _claim(problem, whole_of(problem, known.validity), known, run)
    mixed = not problem.graph.backward.any() or mixes_passes(problem)
    if claim.status == REFUSED or known.validity != "ordered" or mixed:
        return claim
    value = node_cut_bound(problem, above=max(known.floor, claim.value) * (1 + LITTLE))
    if not value:
        return claim
    return LowerBound(value, claim.status, certificate={"argument": "node-cut", "checkable": False})


def _claim(problem: SplitProblem, whole: Whole, known: BoundTask, run: SearchContext) -> LowerBound:
    """Cut around one item after the other; 0 if nothing above the floor is found."""
    if len(whole.nets.pins) > MOST_PINS:
        return refused(f"more than {MOST_PINS} uses of tensors")
    if not np.isfinite(whole.work.min(axis=0)).all():
        return refused("a unit runs on no device that is offered")
    search = _CutSearch(whole, problem.options)
    units, best, status = int(known.floor / whole.quantum), None, SOLVED
    for number, v in enumerate(np.argsort(-search.alone, kind="stable")[:MOST_CUTS].tolist()):
        run.report_progress(share=number / MOST_CUTS)
        if search.alone[v] <= units:
            break
        if run.stop():
            status = LIMIT
            break
        found, proof = search.around(v, range(len(whole.devices)), units)
        if found > units:
            units, best = found, proof
    if best is None:
        return LowerBound(0.0, status)
    return whole.claim("node-cut", units, best, status)


class _CutSearch:
    """Cuts of items in a problem of whole numbers."""

    def __init__(self, whole: Whole, options: CostOptions) -> None:
        self.whole = whole
        self.copies = [min(options.max_replicas, d.count) for d in whole.devices]
        self.mixes = [((1, 0, 1),) if d.is_cpu else MIXES[options.comm] for d in whole.devices]
        self.outside = np.zeros(whole.items.count, dtype=np.bool_)
        """Items that are in no set on an accelerator."""
        self.networks: dict[tuple[int, int, int], Network] = {}
        net, pins = whole.nets.net_of_pin, whole.nets.pins
        # No bound of an item is above what it costs by itself.
        around = [totals(pins, cost[net], whole.items.count) for cost in whole.cost]
        self.loads = (whole.work + np.array(around)) / np.array(self.copies)[:, None]
        """f64[C, n], of each item alone."""
        self.alone = self.loads.min(axis=0)

    def around(self, v: int, classes: Iterable[int], known: int) -> tuple[int, dict[str, Any]]:
        """Bound of item `v` on some classes, and its proof; `known`, without one, if not above."""
        proofs = {}
        units = MOST
        for c in classes:
            if not np.isfinite(self.whole.work[c, v]):
                continue
            mixes = [self.cut(c, v, mix) for mix in self.mixes[c]]
            found, proof = max(mixes, key=lambda pair: pair[0])
            units = min(units, found)
            proofs[self.whole.devices[c].name] = proof
            if units <= known:
                return known, {}
        return units, {"item": int(self.whole.names[v]), "classes": proofs}

    def cut(self, c: int, v: int, mix: tuple[int, int, int]) -> tuple[int, dict[str, Any]]:
        """Bound of item `v` on class `c`, and its proof."""
        whole = self.whole
        a, b, d = mix
        if not b:
            return int(whole.work[c, v]) // self.copies[c], {"mix": list(mix), "flows": []}
        if (c, a, b) not in self.networks:
            # An item that cannot run here is in no set: its work is beyond all costs.
            able = np.isfinite(whole.work[c]) & ~self.outside
            work = np.where(able, whole.work[c], FORBIDDEN)
            self.networks[c, a, b] = network_of(a * work, whole.nets, b * whole.cost[c])
        network = self.networks[c, a, b]
        capacity = network.capacity.copy()
        flow = int(flow_from(network, capacity, np.array([v])))
        proof = {"mix": list(mix), "flows": flows_of(whole, pin_flows(network, capacity))}
        return flow // (d * self.copies[c]), proof


def cpu_cut_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound by what CPUs must take, with a certificate; 0 if it is not above the floor."""
    whole = whole_of(problem, known.validity)
    cpus = [c for c, d in enumerate(whole.devices) if d.is_cpu]
    if not cpus or len(cpus) == len(whole.devices):
        return refused("only for accelerators with CPUs beside them")
    if len(whole.nets.pins) > MOST_PINS:
        return refused(f"more than {MOST_PINS} uses of tensors")
    search = _CutSearch(whole, problem.options)
    accelerators = [c for c in range(len(whole.devices)) if c not in cpus]
    count, time = sum(whole.devices[c].count for c in cpus), whole.work[cpus].min(axis=0)
    if not np.isfinite(np.minimum(time, whole.work[accelerators].min(axis=0))).all():
        return refused("a unit runs on no device that is offered")
    lower, proofs = int(known.floor / whole.quantum), []
    upper = int(min(known.value / whole.quantum, MOST) * (1 - ROUNDING / 2)) + 1
    tried = upper - 1
    while upper - lower > 1 + NEAR * lower and not run.stop():
        found, items = _crowded(search, accelerators, count, time, tried)
        if items:
            lower, proofs = max(found, tried), items
            upper = max(upper, lower)
        else:
            upper = tried
        tried = (lower + upper) // 2
    status = LIMIT if run.stop() else SOLVED
    if not proofs:
        return LowerBound(0.0, status)
    return whole.claim("cpu-cut", lower, {"items": proofs}, status)


def _crowded(
    search: _CutSearch, accelerators: Sequence[int], count: int, time: Floats, units: int
) -> tuple[int, list[dict[str, Any]]]:
    """Find items that no accelerator takes for less than `units`, too many for `count` CPUs.

    Returns what is proven and their proofs, each of which leaves out the items before it; 0 and
    none if the CPUs have room for all there are. `time` is f64[n], on a CPU.
    """
    search.outside[:] = False
    proofs: list[dict[str, Any]] = []
    least, load, before = MOST, 0.0, -1
    dear = np.flatnonzero(search.loads[accelerators].min(axis=0) >= units)
    while len(proofs) > before:
        before = len(proofs)
        search.networks.clear()
        for v in dear[~search.outside[dear]].tolist():
            found, proof = search.around(v, accelerators, units - 1)
            if found < units:
                continue
            search.outside[v] = True
            proofs.append(proof)
            least, load = min(least, found), load + time[v]
            if load >= count * units:
                return least if load == np.inf else min(least, int(load) // count), proofs
    return 0, []
