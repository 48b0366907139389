"""Latency and bandwidth of a link, from what transfers of several sizes took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dnnp.core.model.graph import Floats

_NEAR = 3.0
"""Points that deviate by more than so many times the median are left out."""
_LEAST_ERROR = 0.01
"""Below this share of the latency no dependence on the size is seen."""


@dataclass(frozen=True)
class LinkFit:
    """What a transfer takes: `latency_s + size / bandwidth_bytes_per_s`."""

    latency_s: float
    bandwidth_bytes_per_s: float
    error: float
    """Median of the relative deviations of the points."""
    bounded: bool = True
    """False: time does not depend on the size; the bandwidth is the least that it may be."""


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Fit a line, whose relative deviations count, so that small and large sizes weigh the same.

    Of all lines through two of the points the one with the smallest sum of absolute relative
    deviations is taken, which single disturbed points do not move; then least squares over what is
    near it.

    Parameters
    ----------
    sizes
        Bytes, f64[n]; at least two different ones.
    seconds
        What each took, f64[n], above 0.
    """
    x, t = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    lines = [_line(x[i], t[i], x[j], t[j]) for i, j in combinations(range(len(x)), 2)]
    lines.append((float(np.median(t)), 0.0))
    start = min(lines, key=lambda line: float(_deviations(x, t, line).sum()))
    off = _deviations(x, t, start)
    near = off <= max(_NEAR * float(np.median(off)), 1e-12)
    line = _least_squares(x[near], t[near]) if np.ptp(x[near]) > 0 else start
    latency, slope = max(line[0], 0.0), line[1]
    error = float(np.median(_deviations(x, t, (latency, slope))))
    largest = float(x.max())
    least_s = max(error, _LEAST_ERROR) * max(latency, float(t.min()))
    if slope * largest <= least_s:
        return LinkFit(float(np.median(t)), largest / least_s, error, bounded=False)
    return LinkFit(latency, 1.0 / slope, error)


def _line(x0: float, t0: float, x1: float, t1: float) -> tuple[float, float]:
    """Latency and seconds a byte of the line through two points; neither below 0."""
    if x0 == x1:
        return min(t0, t1), 0.0
    slope = max((t1 - t0) / (x1 - x0), 0.0)
    return max(t0 - slope * x0, 0.0), slope


def _deviations(x: Floats, t: Floats, line: tuple[float, float]) -> Floats:
    """f64[n], relative to what was measured."""
    return np.abs(line[0] + line[1] * x - t) / t


def _least_squares(x: Floats, t: Floats) -> tuple[float, float]:
    """The line with the least squares of relative deviations."""
    rows = np.stack([1.0 / t, x / t], axis=1)
    latency, slope = np.linalg.lstsq(rows, np.ones(len(x)), rcond=None)[0].tolist()
    if latency < 0:
        return 0.0, float((x / t).sum() / (x * x / (t * t)).sum())
    return latency, max(slope, 0.0)
