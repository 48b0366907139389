"""The simple combinatorial bound (MTPP Lemma 4.2), for any mix of device classes."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.spread import spread
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Bools, Graph, totals
from dnnp.core.model.plan import CostOptions


def simple_bound(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions = CostOptions(),  # noqa: B008  (frozen)
) -> float:
    """Lower bound of the objective of any split, whatever its validity, from compute alone.

    Every unit runs somewhere: the mean load of the devices, the largest unit, and the largest
    set of units that must share a device are bounds; a unit may be shared by replicas. For
    `gpipe` the bounds of the two passes add up.
    """
    offered = [d for d in devices if d.count > 0]
    if options.objective != "gpipe":
        everything = np.ones(units.g, dtype=np.bool_)
        return _compute_bound(graph, units, offered, options.max_replicas, everything)
    late = totals(units.label, ~graph.backward, units.g) == 0
    return sum(
        _compute_bound(graph, units, offered, options.max_replicas, part) for part in (~late, late)
    )


def _compute_bound(
    graph: Graph,
    units: Clustering,
    offered: list[DeviceClass],
    max_replicas: int,
    part: Bools,
) -> float:
    """The bound for the units in `part` (bool[g])."""
    nowhere = np.full(units.g, np.inf)
    times = np.stack([units.times.get(d.name, nowhere) for d in offered])
    times = np.where(part, times, 0.0)
    counts = np.array([d.count for d in offered], dtype=np.float64)
    copies = np.minimum(counts, max_replicas)[:, None]
    largest = (times / copies).min(axis=0).max(initial=0.0)
    bounds = [spread(times, counts)[0], float(largest)]
    colored = np.flatnonzero(graph.color >= 0)
    if len(colored):
        colors, index = np.unique(graph.color[colored], return_inverse=True)
        pairs = np.unique(index * units.g + units.label[colored])
        color, unit = pairs // units.g, pairs % units.g
        together = np.stack([totals(color, t[unit], len(colors)) for t in times]) / copies
        bounds.append(float(together.min(axis=0).max()))
    finite = [b for b in bounds if np.isfinite(b)]
    # Rounding in the sums must not lift the bound above a value that is exact.
    return max(finite, default=0.0) * (1 - 1e-12)
