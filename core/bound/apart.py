"""Pairs of units that a split better than a known one cannot put into one stage.

The stage that holds both holds all between them (`dnnp.core.bound.between`), and costs at least
the minimum cut around these (`dnnp.core.bound.pairs`). Integer programs fix such pairs.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isfinite

import numpy as np

from dnnp.core.bound.between import between_of
from dnnp.core.bound.claim import Claim
from dnnp.core.bound.known import Known
from dnnp.core.bound.pairs import pair_costs
from dnnp.core.bound.quantised import one_class
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.run import PLAIN, Run

MOST_ITEMS = 250
"""Items up to which all pairs are looked at."""


def pairs_apart(problem: SplitProblem, known: Known, run: Run = PLAIN) -> list[tuple[int, int]]:
    """Pairs of units, one of each item, that cost a stage the known value or more; ascending.

    Empty where the argument does not hold: other than one class of accelerators under `sum`,
    without replicas, for throughput; or where there are too many items.
    """
    units = problem.units
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS)
    if isinstance(whole, Claim) or not isfinite(known.value):
        return []
    enough = ceil(Fraction(known.value) / Fraction(whole.quantum))
    between = between_of(problem.graph, whole.items, known.validity)
    costs = pair_costs(whole.work[0], whole.nets(0), between, enough=float(enough), run=run)
    unit = np.full(whole.items.count, units.g, dtype=np.int64)
    of_unit = whole.items.label[units.member_idx[units.member_ptr[:-1]]]
    np.minimum.at(unit, of_unit, np.arange(units.g))
    u, v = np.nonzero(np.triu(costs >= enough, 1))
    return [(int(unit[a]), int(unit[b])) for a, b in zip(u, v, strict=True)]
