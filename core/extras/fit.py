"""Fit rates of families of operators, and of links, to measurements.

All parameters are fitted together, as logarithms, to logarithms of the times of blocks (the
difference of two chains of operators), by least squares with a loss that grows linearly for
outliers. A weak prior fixes parameters without measurements: typical shares of peak and bandwidth
of products and of other operators, half lengths of 1 or 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from dnnp.core.model.device_rates import RATES, DeviceRates, OperatorSpec
from dnnp.core.model.graph import Floats
from dnnp.core.profile.families import ANCHORS, FAMILIES
from dnnp.core.profile.kernels import Kernels, joined, times_by_table

_ERROR = 0.05
"""Error, of the logarithm of a time, above which a measurement begins to count as an outlier."""
_SOFT, _MEDIUM, _STIFF = 0.1, 0.3, 1.0
"""Penalty of a parameter a factor of e from its prior, in such errors."""
_COMPUTE = (0.9, 0.1)
"""Priors of `compute`: of what products are made of, and of others."""
_HALF = (1.0, 10.0)
"""Priors of `half_length`, of the same two."""
_EFFICIENCY = {"matrix": 0.75, "vector": 0.25}
"""Of what has no family."""
_RANGE = (7.0, 1.1, 7.0, 3.0)
"""The most by which the logarithms of a family's rates may differ from those of their priors."""
_SHARED_RANGE = 3.0
_AS_SINGLE = 0.2
"""Rates this near to that of float32 are taken for it."""
_LEAST_S = 1e-9
_STEP = 1e-6
_STEPS = 300
_KINDS = 4
"""Rates of a family."""
_FLOAT32 = RATES.index("float32")


@dataclass(frozen=True, eq=False)
class Block:
    """A measured block: the kernels of two chains, of which the times were subtracted."""

    long: Kernels
    short: Kernels
    count: int
    """Blocks by which the chains differ."""
    seconds: float
    """Of one block."""
    weight: float = 1.0
    """Weight of its error."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A machine, and how well it fits."""

    machine: DeviceRates
    predicted_s: Floats
    """Of each block."""


def fit(blocks: Sequence[Block], start: DeviceRates) -> Fit:
    """Fit launch, bandwidths and the rates of all families that the blocks have.

    Parameters
    ----------
    start
        Sizes of caches, block of channels; its launch and bandwidths are where the search starts.
        Its peaks are replaced by the highest rates of products and convolutions in the blocks.
    """
    from scipy.optimize import least_squares

    start = replace(start, peak_flop_per_s=_peaks(blocks, start), efficiency=_EFFICIENCY)
    problem = _Problem(blocks, start)
    measured = np.log([block.seconds for block in blocks])
    weight = np.array([block.weight for block in blocks]) / _ERROR

    def residuals(shift: Floats) -> Floats:
        off = (np.log(problem.seconds(shift)) - measured) * weight
        return np.concatenate([off, shift * problem.stiffness])

    def jacobian(shift: Floats) -> Floats:
        return np.vstack([problem.slopes(shift) * weight[:, None], np.diag(problem.stiffness)])

    found = least_squares(
        residuals,
        np.zeros(problem.size),
        jacobian,
        bounds=(-problem.range, problem.range),
        loss="soft_l1",
        max_nfev=_STEPS,
        ftol=1e-4,
    )
    return Fit(problem.machine(found.x), problem.seconds(found.x))


def _peaks(blocks: Sequence[Block], start: DeviceRates) -> dict[str, float]:
    """The highest rate of products by element type; without measurements that of float32."""
    peaks: dict[str, float] = {}
    for block in blocks:
        rate = block.long.rate[block.long.product]
        if not len(rate):
            continue
        name = RATES[int(np.bincount(rate).argmax())]
        flop = float(block.long.flop.sum() - block.short.flop.sum()) / block.count
        peaks[name] = max(peaks.get(name, 0.0), flop / block.seconds)
    single = peaks.setdefault("float32", start.peak_flop_per_s["float32"])
    # Types that run as float32 are best left to it.
    near = [n for n in peaks if n != "float32" and abs(peaks[n] / single - 1) < _AS_SINGLE]
    return {name: rate for name, rate in peaks.items() if name not in near}


class _Problem:
    """Parameters as a vector of logarithms, relative to where they start."""

    def __init__(self, blocks: Sequence[Block], start: DeviceRates) -> None:
        self.start = start
        parts = [k for block in blocks for k in (block.long, block.short)]
        self.kernels = joined(parts)
        sign = [s / b.count for b in blocks for s in (1, -1)]
        sizes = [len(k.moved) for k in parts]
        self.weight = np.repeat(sign, sizes)
        self.block = np.repeat(np.arange(len(parts)) // 2, sizes)
        self.count = len(blocks)
        live = self.kernels.starts[self.kernels.label] & (self.kernels.family < len(FAMILIES))
        pairs = {
            *zip(self.kernels.family[live].tolist(), self.kernels.rate[live].tolist(), strict=True)
        }
        base = {(family, _FLOAT32) for family, _ in pairs}
        self.pairs = sorted(pairs | base)
        number = {pair: i for i, pair in enumerate(self.pairs)}
        first = self.kernels.first
        own = zip(
            self.kernels.family[first].tolist(), self.kernels.rate[first].tolist(), strict=True
        )
        self.pair = np.array([number.get(pair, -1) for pair in own])
        """Pair of each kernel."""
        self.shared = 2 + len(start.caches)
        self.size = self.shared + _KINDS * len(self.pairs)
        anchors = np.array([FAMILIES[f] in ANCHORS for f, _ in self.pairs])
        self.base = np.stack(
            [
                np.where(anchors, *_COMPUTE),
                np.ones(len(anchors)),
                np.where(anchors, *_HALF),
                np.ones(len(anchors)),
            ]
        )
        spread = np.repeat(_RANGE, len(self.pairs))
        self.range = np.concatenate([np.full(self.shared, _SHARED_RANGE), spread])
        stiff = np.repeat([_SOFT, _STIFF, _MEDIUM, _STIFF], len(self.pairs))
        self.stiffness = np.concatenate([np.full(self.shared, _SOFT), stiff])

    def table(self, shift: Floats) -> Floats:
        """The `rate_table` of the parameters."""
        values = self.base * np.exp(shift[self.shared :].reshape(_KINDS, -1))
        table = np.empty((4, len(FAMILIES) + 1, len(RATES)))
        table[:] = np.array([_COMPUTE[1], 1.0, 0.0, 1.0])[:, None, None]
        for i, (family, rate) in enumerate(self.pairs):
            if rate == _FLOAT32:
                table[:, family, :] = values[:, i, None]
        for i, (family, rate) in enumerate(self.pairs):
            table[:, family, rate] = values[:, i]
        return table

    def general(self, shift: Floats) -> DeviceRates:
        """The machine without its operators."""
        factor = np.exp(shift[: self.shared])
        return replace(
            self.start,
            launch_overhead_s=self.start.launch_overhead_s * float(factor[0]),
            memory_bandwidth_bytes_per_s=self.start.memory_bandwidth_bytes_per_s * float(factor[1]),
            caches=[
                (s, r * float(f)) for (s, r), f in zip(self.start.caches, factor[2:], strict=True)
            ],
        )

    def times(self, shift: Floats) -> Floats:
        """Seconds of each kernel, as its block counts it."""
        return self.weight * times_by_table(self.kernels, self.general(shift), self.table(shift))

    def seconds(self, shift: Floats) -> Floats:
        """Seconds of each block."""
        total = np.bincount(self.block, weights=self.times(shift), minlength=self.count)
        return np.maximum(total, _LEAST_S)

    def slopes(self, shift: Floats) -> Floats:
        """Derivatives of the logarithms of `seconds`; f64[blocks, parameters].

        The rates of all families are moved at once, as a kernel depends on those of its own. One
        that is made of several families counts as of its first: for a search this will do.
        """
        before = self.times(shift)
        slopes = np.zeros((self.count, self.size))
        scale = _STEP * self.seconds(shift)
        for column in range(self.shared):
            moved = shift.copy()
            moved[column] += _STEP
            change = self.times(moved) - before
            slopes[:, column] = np.bincount(self.block, change, self.count) / scale
        pairs = len(self.pairs)
        own = np.flatnonzero(self.pair >= 0)
        for kind in range(_KINDS):
            start = self.shared + kind * pairs
            moved = shift.copy()
            moved[start : start + pairs] += _STEP
            change = (self.times(moved) - before)[own]
            np.add.at(
                slopes, (self.block[own], start + self.pair[own]), change / scale[self.block[own]]
            )
        return slopes

    def machine(self, shift: Floats) -> DeviceRates:
        """The machine with its operators."""
        table = self.table(shift)
        operators: dict[str, dict[str, OperatorSpec]] = {}
        for family, rate in self.pairs:
            values = (float(f"{v:.3g}") for v in table[:, family, rate])
            operators.setdefault(FAMILIES[family], {})[RATES[rate]] = OperatorSpec(*values)
        return replace(self.general(shift), operators=operators)


_NEAR = 3.0
"""Points that deviate by more than so many times the median are left out."""
_LEAST_ERROR = 0.01
"""Below this share of the latency no dependence on the size is seen."""


@dataclass(frozen=True)
class LinkFit:
    """Time of a transfer: `latency_s + size / bandwidth_bytes_per_s`."""

    latency_s: float
    bandwidth_bytes_per_s: float
    error: float
    """Median of the relative deviations of the points."""
    bounded: bool = True
    """False: time does not depend on the size; the bandwidth is the least that it may be."""


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Fit a line by relative deviations, so that small and large sizes weigh the same.

    First the line through two of the points with the smallest sum of absolute relative deviations,
    robust to single disturbed points; then least squares over the points near it.

    Parameters
    ----------
    sizes
        Bytes, f64[n]; at least two different ones.
    seconds
        Time of each, f64[n], above 0.
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
    """f64[n], relative to the measured time."""
    return np.abs(line[0] + line[1] * x - t) / t


def _least_squares(x: Floats, t: Floats) -> tuple[float, float]:
    """The line with the least squares of relative deviations."""
    rows = np.stack([1.0 / t, x / t], axis=1)
    latency, slope = np.linalg.lstsq(rows, np.ones(len(x)), rcond=None)[0].tolist()
    if latency < 0:
        return 0.0, float((x / t).sum() / (x * x / (t * t)).sum())
    return latency, max(slope, 0.0)
