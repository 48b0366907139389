"""Times carried from one device to another (Moirai, Section III.C, after Yu et al. 2021).

What was measured on one device holds more than its roofline knows: caches, kernels, their
overhead. Per operator, the measured time times the ratio of the two rooflines keeps that:

    time on target = measured on source * roofline of target / roofline of source
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.model.graph import Floats


def scaled_times(measured: Floats, source: Floats, target: Floats) -> Floats:
    """Carry times from a source to a target device.

    Parameters
    ----------
    measured
        f64[n], seconds on the source; inf: not supported there, nor here.
    source, target
        f64[n], seconds by the rooflines of both. Where the source's is 0, as for operators that
        neither compute nor move anything, the ratio of the totals counts.
    """
    whole = float(source.sum())
    overall = float(target.sum()) / whole if whole > 0 else 1.0
    known = source > 0
    ratio = np.where(known, target, overall) / np.where(known, source, 1.0)
    return measured * ratio


@dataclass(frozen=True)
class ScalingError:
    """How far predicted times are from measured ones."""

    count: int
    """Operators that both have."""
    predicted_s: float
    measured_s: float
    """Totals over them."""
    median: float
    """Median of |predicted - measured| / measured over those with a measured time above 0."""
    weighted: float
    """Sum of |predicted - measured| over the sum of measured times."""


def scaling_error(predicted: Floats, measured: Floats) -> ScalingError:
    """Compare predicted with measured times; f64[n] both."""
    both = np.isfinite(predicted) & np.isfinite(measured)
    predicted, measured = predicted[both], measured[both]
    off = np.abs(predicted - measured)
    timed = measured > 0
    total = float(measured.sum())
    return ScalingError(
        count=int(both.sum()),
        predicted_s=float(predicted.sum()),
        measured_s=total,
        median=float(np.median(off[timed] / measured[timed])) if timed.any() else 0.0,
        weighted=float(off.sum()) / total if total > 0 else 0.0,
    )
