"""Loads that are all multiples of one number, so that a bound can be rounded up."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.mip.task import Task


def quantum_of(task: Task) -> float | None:
    """A number of which all loads are multiples, if the costs are short decimals."""
    line = task.line
    if task.options.max_replicas > 1 or task.options.memory_mode == "overflow":
        return None
    costs = np.concatenate([line.work[np.isfinite(line.work)], line.cost.ravel()])
    for digits in range(7):
        scale = 10.0**digits
        whole = np.rint(costs * scale)
        if whole.max(initial=0.0) < 2**50 and (whole / scale == costs).all():
            return 1.0 / scale
    return None


def snapped(bound: float, quantum: float | None) -> float:
    """The least multiple of the quantum that is not below a bound."""
    if quantum is None:
        return bound
    return float(np.ceil(bound / quantum - 1e-6) * quantum * (1 - ROUNDING))
