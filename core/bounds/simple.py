"""The simple combinatorial bound (MTPP Lemma 4.2), for any mix of device classes.

A load is at least the compute time over the replicas, whatever transfers and memory add. So

mean
    Give a device of class c the weight y_c. If no load is above L, the weighed loads of all
    devices are at most L * sum y_c n_c, and at least the sum over units of the least weighed time.
item
    Units that a colour joins share a device: their time, by at most as many replicas as the class
    and the options allow, on the class where it is least.

Both hold for any sets of units (`free`), and for each pass by itself; `gpipe` adds the passes.
Without replicas loads of whole numbers are whole, so the mean is rounded up.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem, spread
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Bools, Clustering, Graph, distinct, totals
from dnnp.core.model.search_context import PLAIN, SearchContext

if TYPE_CHECKING:
    from dnnp.core.bounds.lower_bound import BoundTask, LowerBound, Whole


def simple_bound(problem: SplitProblem) -> float:
    """Lower bound of the objective of any split, whatever its validity, from compute alone.

    Every unit runs somewhere: the mean load of the devices, the largest unit, and the largest
    set of units that must share a device are bounds; a unit may be shared by replicas. For
    `gpipe` the bounds of the two passes add up.
    """
    graph, units, options = problem.graph, problem.units, problem.options
    offered = [d for d in problem.devices if d.count > 0]
    if options.objective == "sequence":  # all that is computed adds up
        least = units.times_on(*(d.name for d in offered)).min(axis=0, initial=np.inf)
        return float(least[np.isfinite(least)].sum()) * (1 - ROUNDING)
    if options.objective != "gpipe":
        everything = np.ones(units.g, dtype=np.bool_)
        return _compute_bound(graph, units, offered, options.max_replicas, everything)
    late = totals(units.label, ~graph.backward, units.g) == 0
    return sum(
        _compute_bound(graph, units, offered, options.max_replicas, part) for part in (~late, late)
    )


def _compute_bound(
    graph: Graph, units: Clustering, offered: list[DeviceClass], max_replicas: int, part: Bools
) -> float:
    """The bound for the units in `part` (bool[g])."""
    times = np.where(part, units.times_on(*(d.name for d in offered)), 0.0)
    counts = np.array([d.count for d in offered], dtype=np.float64)
    copies = np.minimum(counts, max_replicas)[:, None]
    largest = (times / copies).min(axis=0).max(initial=0.0)
    bounds = [spread(times, counts)[0], float(largest)]
    colored = np.flatnonzero(graph.color >= 0)
    if len(colored):
        colors, index = np.unique(graph.color[colored], return_inverse=True)
        pairs = distinct(index * units.g + units.label[colored])
        color, unit = pairs // units.g, pairs % units.g
        together = np.stack([totals(color, t[unit], len(colors)) for t in times]) / copies
        bounds.append(float(together.min(axis=0).max()))
    finite = [b for b in bounds if np.isfinite(b)]
    # Rounding in the sums must not lift the bound above a value that is exact.
    return max(finite, default=0.0) * (1 - ROUNDING)


SHARPNESS = 2**40
"""Steps of the weights of several classes."""


def simple_claim(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound with a certificate; it holds for every validity and every cost model."""
    from dnnp.core.bounds.lower_bound import refused, whole_of

    del run  # it takes no time
    units = problem.units
    whole = whole_of(problem, known.validity)
    late = totals(units.label, ~problem.graph.backward, units.g) == 0
    everything = np.ones(units.g, dtype=np.bool_)
    passes = {"all": everything}
    if problem.options.objective == "gpipe":
        passes = {"forward": ~late, "backward": late}
    parts = []
    for name, part in passes.items():
        proof = _whole_bound(whole, units, part, problem.options.max_replicas)
        if proof is None:
            return refused("a unit runs on no device that is offered")
        parts.append({"pass": name, **proof})
    return whole.claim("simple", sum(part["units"] for part in parts), {"parts": parts})


def _whole_bound(
    whole: Whole, units: Clustering, part: Bools, max_replicas: int
) -> dict[str, Any] | None:
    """The best bound of the units in `part`; None if one of them runs nowhere."""
    times = np.where(part, whole.unit_work, 0.0)
    if not np.isfinite(times.min(axis=0)).all():
        return None
    counts = [d.count for d in whole.devices]
    weights = spread(times, np.array(counts, dtype=np.float64))[1]
    shares = [round(w / float(weights.max()) * SHARPNESS) for w in weights.tolist()]
    if len(shares) == 1:
        shares = [1]
    work = 0
    for row in times.T.tolist():
        work += min(y * int(t) for y, t in zip(shares, row, strict=True) if isfinite(t))
    weight = sum(y * n for y, n in zip(shares, counts, strict=True))
    mean = -(-work // weight) if max_replicas == 1 else work // weight
    names = [d.name for d in whole.devices]
    best = {"kind": "mean", "weights": dict(zip(names, shares, strict=True)), "units": mean}
    of_unit = whole.items.label[units.first]
    together = np.stack([totals(of_unit, t, whole.items.count) for t in times])
    copies = [min(max_replicas, n) for n in counts]
    least = (together / np.array(copies)[:, None]).min(axis=0)
    v = int(np.argmax(least))
    if np.isfinite(least[v]):
        on = zip(together[:, v].tolist(), copies, strict=True)
        alone = min(int(t) // r for t, r in on if isfinite(t))
        if alone > mean:
            best = {"kind": "item", "item": int(whole.names[v]), "units": alone}
    return best
