"""The roofline: a kernel takes the longer of its arithmetic and its memory traffic.

    time = launch overhead + max(flop / peak, bytes / memory bandwidth)

after Williams, Waterman and Patterson 2009 ("Roofline: an insightful visual performance
model"), with the fixed cost of starting a kernel added. Nodes that neither compute nor move
anything (reshapes, views) take no time.

Times carried from one device to another (Moirai, Section III.C, after Yu et al. 2021). What was
measured on one device holds more than its roofline knows: caches, kernels, their overhead. Per
operator, the measured time times the ratio of the two rooflines keeps that:

    time on target = measured on source * roofline of target / roofline of source
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dnnp.core.model.graph import Floats, Graph, Ints
from dnnp.core.profile.work import RATES, Work, boundary_traffic


class Rates(Protocol):
    """What the roofline needs to know of a device; `DeviceSpec` of `dnnp.formats` has it."""

    @property
    def peak_flop_per_s(self) -> Mapping[str, float]:
        """Class of element type -> operations per second; float32 stands in for the others."""

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Bytes per second."""

    @property
    def launch_overhead_s(self) -> float:
        """Seconds a kernel."""

    @property
    def efficiency(self) -> Mapping[str, float]:
        """Factors for `matrix`, `vector` and `memory`; 1 where absent."""


def compute_times(work: Work, device: Rates) -> Floats:
    """Time of the arithmetic alone; f64[n], seconds."""
    peaks = device.peak_flop_per_s
    peak = np.array([peaks.get(name, peaks["float32"]) for name in RATES])
    matrix = device.efficiency.get("matrix", 1.0)
    vector = device.efficiency.get("vector", 1.0)
    return np.asarray(work.flop / (peak[work.rate] * np.where(work.product, matrix, vector)))


def roofline(compute_s: Floats, moved: Floats, device: Rates) -> Floats:
    """Times of kernels with `compute_s` of arithmetic and `moved` bytes; f64, seconds."""
    bandwidth = device.memory_bandwidth_bytes_per_s * device.efficiency.get("memory", 1.0)
    busy = np.maximum(compute_s, moved / bandwidth)
    return np.where(busy > 0, device.launch_overhead_s + busy, 0.0)


def node_times(work: Work, device: Rates) -> Floats:
    """Time of each node as a kernel of its own; f64[n], seconds."""
    return roofline(compute_times(work, device), work.bytes, device)


def group_traffic(graph: Graph, work: Work, label: Ints, n_groups: int) -> Floats:
    """Bytes each group moves as one kernel; f64[g].

    Only what crosses its boundary, and never more than its members move one by one: a group
    that gathers rows of a table does not read the table.
    """
    alone = np.bincount(label, weights=work.bytes, minlength=n_groups)
    size = np.bincount(label, minlength=n_groups)
    crossing = np.minimum(boundary_traffic(graph, label, n_groups), alone)
    return np.where(size > 1, crossing, alone)


def group_times(graph: Graph, work: Work, label: Ints, n_groups: int, device: Rates) -> Floats:
    """Time of each group as one kernel; f64[g], seconds.

    Work adds up over the members, traffic is `group_traffic`, and one launch is paid.
    """
    alone = compute_times(work, device)
    compute_s: Floats = np.bincount(label, weights=alone, minlength=n_groups).astype(np.float64)
    return roofline(compute_s, group_traffic(graph, work, label, n_groups), device)


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
