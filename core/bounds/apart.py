"""A bound for contiguous clusters: items that no cluster holds both of, and what crosses then.

For one class of accelerators in clusters of one size, each with one contiguous segment of the
pipeline, and CPUs that may stand anywhere. A cluster that holds items u and v holds everything
between them but for what runs on CPUs. If that is more work than its devices do below B, u and v
are in different clusters. So the stage of v has none of the items that are apart from v, and pays
for what these send to it, and for what v sends to them, on the outer link; other tensors may take
the inner one. The least that such a stage costs is a minimum cut. If it is B or more for an item
that takes CPUs as long, no such split is better than B; the largest B is found by bisection.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.bounds.lower_bound import whole_of
from dnnp.core.bounds.pairs import between_of
from dnnp.core.bounds.pricing import carrier_of, cheapest
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.cuts import IN, OPEN, OUT

MOST_ITEMS, HEAVY, STEPS = 600, 4, 12
"""Items up to which it is tried, heaviest items that are looked at, and steps of the bisection."""


def apart_bound(problem: SplitProblem, low: float, high: float) -> float:
    """The largest load that is proven for contiguous clusters, from `low` on, below `high`."""
    options, device = problem.options, problem.devices[0]
    known = options.comm == "sum" and options.max_replicas == 1 and device.cluster_size > 1
    if not known or len(device.levels) > 1 or options.objective != "throughput":
        return low
    inner = whole_of(problem, "ordered")
    flat = replace(device, cluster_size=0, inner_bandwidth_bytes_per_s=np.inf)
    outer = whole_of(problem.with_devices(flat, *problem.devices[1:]), "ordered")
    items, n = inner.items, inner.items.count
    if n > MOST_ITEMS or not np.isfinite(inner.work[0]).all():
        return low
    work = inner.work[0] * inner.quantum
    on_cpu = inner.work[1] * inner.quantum if len(inner.work) > 1 else np.full(n, np.inf)
    cpus = sum(d.count for d in problem.devices[1:])
    nets, source = inner.nets, inner.nets.source
    near, far = inner.cost[0] * inner.quantum, outer.cost[0] * outer.quantum
    between = between_of(problem.graph, items, "ordered")
    heavy = np.argsort(-work, kind="stable")[:HEAVY].tolist()
    held = {v: [between.holds(u, v) for u in range(n)] for v in heavy}

    def least(v: int, below: float) -> float:
        """The least load of a stage with `v` where all loads are below a target."""
        apart = np.array(
            [
                work[some].sum() - _most(work[some], on_cpu[some], below, cpus)
                > device.cluster_size * below * (1 + MARGIN)
                for some in held[v]
            ]
        )
        reaches = np.bincount(nets.net_of_pin, weights=apart[nets.pins], minlength=len(near)) > 0
        dear = (source >= 0) & apart[source] | (source == v) & reaches
        cost = np.where(dear, np.maximum(near, far), near)
        carrier = carrier_of(work, nets, cost)
        state = np.where(apart, OUT, OPEN)
        state[v] = IN
        return float(cheapest(carrier, np.zeros(n), state, 1.0, 0.0)[1])

    high *= 1 - MARGIN
    target = high  # mostly the value itself, or nothing near it
    for _ in range(STEPS):
        if any(on_cpu[v] >= target and least(v, target) >= target for v in heavy):
            low = max(low, target)
        else:
            high = target
        if high - low <= MARGIN * high:
            break
        target = (low + high) / 2
    return low


def _most(work: Floats, on_cpu: Floats, below: float, cpus: int) -> float:
    """The most work that CPUs take off the accelerators, in fractions of items."""
    some: Ints = np.flatnonzero((on_cpu < below) & (work > 0))
    some = some[np.argsort(-work[some] / np.maximum(on_cpu[some], 1e-300), kind="stable")]
    room, taken = below * cpus, 0.0
    for v in some.tolist():
        share = 1.0 if on_cpu[v] <= room else room / on_cpu[v]
        taken, room = taken + share * float(work[v]), room - share * float(on_cpu[v])
        if share < 1:
            break
    return taken
