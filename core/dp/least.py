"""The least objective that a target can be, for whoever decides single targets.

A feasible target gives a better value, one that is not gives the least load above it that was met;
between both the interval is halved. The objective gpipe has a target for each pass, and the front
of what both can be is walked.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.model.graph import Floats


class OutError(Exception):
    """The budget is spent, or somebody asked to stop."""


class Decider(Protocol):
    """Decides whether a target can be met."""

    value: float
    """The least objective known."""
    low: float
    """No objective is below."""
    passes: int

    def decide(self, target: Floats, vary: int) -> tuple[float | None, float]:
        """The largest load of pass `vary` in what meets the target (f64[P]), or None; and the
        least load of it above the target that was met.

        Raises
        ------
        OutError
            The budget is spent.
        """


def least(decider: Decider, low: float) -> float:
    """The least objective, of which `low` is a bound; inf: there is no split.

    Nothing is looked for above `decider.value`. On `OutError`, `decider.low` is proven.
    """
    decider.low = low
    if decider.passes == 1:
        found, _ = _least(decider, np.array([np.inf]), 0, low, decider.value)
        return min(found, decider.value)
    # Along the Pareto front: the least backward load for each limit of the forward load.
    ahead_s, _ = _least(decider, np.full(2, np.inf), 0, 0.0, np.inf)
    limit, behind_s = np.inf, 0.0
    while ahead_s < np.inf:
        decider.low = max(low, min(decider.value, ahead_s + behind_s))
        cutoff = (decider.value - ahead_s) * (1 - ROUNDING)
        if behind_s >= cutoff:
            break
        reached, _ = decider.decide(np.array([limit, cutoff]), 1)
        if reached is None:
            break
        _, behind_s = _least(decider, np.array([limit, np.inf]), 1, behind_s, reached)
        most = np.array([np.inf, behind_s * (1 + ROUNDING)])
        _, reached = _least(decider, most, 0, ahead_s, limit)
        decider.value = min(decider.value, reached + behind_s)
        limit = reached * (1 - ROUNDING)
        if limit < ahead_s * (1 - ROUNDING):
            break
    return max(decider.value, low)


def _least(
    decider: Decider, target: Floats, vary: int, low: float, high: float
) -> tuple[float, float]:
    """Least target of a pass between a bound and what is reached, the others as given.

    Returns (bound, what is reached).
    """
    target, goal = target.copy(), low
    while high - low > ROUNDING * high or (high == np.inf and low < np.inf):
        target[vary] = goal
        reached, above = decider.decide(target, vary)
        if reached is not None:
            high = min(goal, reached)
        else:
            low = max(above, float(np.nextafter(goal, np.inf)))
            if decider.passes == 1:
                decider.low = min(low, high)
        if high < np.inf:
            goal = low + (high - low) / 2
        else:
            goal = 2 * low if low > 0 and goal < np.inf else np.inf
    return low, high
