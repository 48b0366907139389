"""Work of the nodes of a stream, and the roofline: the time that a device takes for it.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.device_rates import RATES, DeviceRates
from dnnp.core.model.graph import (
    CONSTANT,
    PARAMETER,
    Bools,
    Floats,
    Graph,
    Ints,
    distinct,
    forward_type,
)
from dnnp.core.profile.families import FAMILY, PRODUCTS

_FLOAT32, _INT8 = RATES.index("float32"), RATES.index("int8")
_RATE = {name: code for code, name in enumerate(RATES)} | {"uint8": _INT8}

_INTEGER_PRODUCTS = (
    "QLinear", "ConvInteger", "MatMulInteger", "QGemm", "QAttention", "QOrdered",
    "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
)  # fmt: skip
"""Operators that compute in 8-bit integers, whatever they return."""


@dataclass(frozen=True, eq=False)
class Work:
    """Work of each node; arrays of length n, by node position."""

    flop: Floats
    """Operations; 0 where no formula knew."""
    bytes: Floats
    """Bytes moved to and from memory."""
    rate: Ints
    """Position in `RATES` of the element type computed in."""
    product: Bools
    """True if the work is matrix products or convolutions."""
    known: Bools
    """True if the work is known; if not, the traffic prices the node, with what work is known."""


def work_of(
    graph: Graph, nodes: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Any]]
) -> Work:
    """Gather the work of the nodes of records in the order of a graph; see `work_by_columns`."""
    rows = [(r.get("flop", np.nan), r.get("bytes", np.nan), r.get("partial", 0)) for r in nodes]
    flop, moved, partial = np.array(rows, dtype=np.float64).reshape(-1, 3).T.copy()
    return work_by_columns(graph, flop, moved, partial != 0, [r.get("dtype", "") for r in tensors])


def work_by_columns(
    graph: Graph, flop: Floats, moved: Floats, partial: Bools, dtypes: Sequence[str]
) -> Work:
    """Gather the work of nodes: their `flop` and `bytes` (nan: absent), and if it is partial.

    `dtypes` are those of tensors. Nodes of weights alone (`weight_only`) have no work: they run
    before the first sample. A node computes in the type of its first floating-point output, else of
    its first floating-point input, else float32; products of quantised operands in int8. A node
    without `bytes` moves each of its tensors once.
    """
    told = ~np.isnan(flop)
    known = told & ~partial
    absent = np.isnan(moved)
    if absent.any():
        moved = np.where(absent, graph.touched(graph.tensor_bytes), moved)
    kinds = [_float_rate(dtype) for dtype in dtypes]
    gone = weight_only(graph)
    return Work(
        flop=np.where(told & ~gone, flop, 0.0),
        bytes=np.where(gone, 0.0, moved),
        rate=_rates(graph, np.array(kinds, dtype=np.int64)),
        product=np.array([_is_product(op) for op in graph.ops], dtype=np.bool_),
        known=known | gone,
    )


_STAYS = (
    "If", "Loop", "Scan", "SequenceMap", "Dropout", "Bernoulli", "Multinomial", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike",
)  # fmt: skip
"""Operators that run with every sample, whatever they read."""


def weight_only(graph: Graph) -> Bools:
    """Nodes that read weights alone, at any remove: computed before the first sample; bool[n].

    Of those that dequantise, which stay where a kernel takes no quantised weights, the ones that
    matrix products alone read. Weights that are trained change.
    """
    found = np.zeros(graph.n, dtype=np.bool_)
    kind = graph.tensor_kind[graph.in_idx]
    open_ = np.bincount(graph.reader[(kind != PARAMETER) & (kind != CONSTANT)], minlength=graph.n)
    open_[np.diff(graph.in_ptr) == 0] = -1
    ready = [] if graph.backward.any() else np.flatnonzero(open_ == 0).tolist()
    while ready:
        v = ready.pop()
        readers = [r for t in graph.writes(v).tolist() for r in graph.readers(t).tolist()]
        known = graph.ops[v] not in _STAYS
        if graph.ops[v] == "DequantizeLinear":
            known = all(graph.ops[r] == "MatMul" for r in readers)
        if not known or graph.survives[graph.writes(v)].any():
            continue
        found[v] = True
        for r in readers:
            open_[r] -= 1
            if open_[r] == 0:
                ready.append(r)
    return found


@cache
def _is_product(op: str) -> bool:
    """True if an operator, or the one that it is the gradient of, is a product or convolution."""
    return FAMILY.get(forward_type(op)) in PRODUCTS


@cache
def _float_rate(dtype: str) -> int:
    """Rate code of a floating-point type, -1 of any other."""
    if dtype.startswith("float8"):
        return RATES.index("float8")
    return _RATE.get(dtype, -1) if dtype not in ("int8", "uint8") else -1


def _rates(graph: Graph, kinds: Ints) -> Ints:
    """Rate code of each node, from the codes of its tensors."""
    rate = np.full(graph.n, -1, dtype=np.int64)
    for node, idx in ((graph.reader, graph.in_idx), (graph.writer, graph.out_idx)):
        code = kinds[idx] if len(kinds) else np.zeros(0, dtype=np.int64)
        floating = np.flatnonzero(code >= 0)[::-1]
        # Assigned backwards, the first one of a node is the one that stays.
        rate[node[floating]] = code[floating]
    rate[rate < 0] = _FLOAT32
    quantized = [op.startswith(_INTEGER_PRODUCTS) for op in graph.ops]
    rate[np.array(quantized, dtype=np.bool_)] = _INT8
    return rate


def boundary_traffic(graph: Graph, label: Ints, n_groups: int) -> Floats:
    """Bytes that cross each group's boundary, each tensor once a group; f64[g].

    A group reads what it does not make itself (parameters included) and writes what
    others read or the model returns.
    """
    traffic = np.zeros(n_groups)
    use = np.repeat(np.arange(graph.m, dtype=np.int64), np.diff(graph.use_ptr))
    maker = np.where(graph.producer >= 0, label[np.maximum(graph.producer, 0)], -1)
    reader: NDArray[np.int64] = label[graph.use_idx]
    crossing = reader != maker[use]
    pairs = distinct(reader[crossing] * max(graph.m, 1) + use[crossing])
    np.add.at(traffic, pairs // max(graph.m, 1), graph.tensor_bytes[pairs % max(graph.m, 1)])
    leaves = graph.survives.copy()
    leaves[use[crossing]] = True
    written = np.flatnonzero(leaves & (maker >= 0))
    np.add.at(traffic, maker[written], graph.tensor_bytes[written])
    return traffic


def compute_times(work: Work, device: DeviceRates) -> Floats:
    """Time of the arithmetic alone; f64[n], seconds."""
    peaks = device.peak_flop_per_s
    peak = np.array([peaks.get(name, peaks["float32"]) for name in RATES])
    matrix = device.efficiency.get("matrix", 1.0)
    vector = device.efficiency.get("vector", 1.0)
    return np.asarray(work.flop / (peak[work.rate] * np.where(work.product, matrix, vector)))


def roofline(compute_s: Floats, moved: Floats, device: DeviceRates) -> Floats:
    """Times of kernels with `compute_s` of arithmetic and `moved` bytes; f64, seconds."""
    bandwidth = device.memory_bandwidth_bytes_per_s * device.efficiency.get("memory", 1.0)
    busy = np.maximum(compute_s, moved / bandwidth)
    return np.where(busy > 0, device.launch_overhead_s + busy, 0.0)


def node_times(work: Work, device: DeviceRates) -> Floats:
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


def group_times(
    graph: Graph, work: Work, label: Ints, n_groups: int, device: DeviceRates
) -> Floats:
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
    """Distance of predicted times from measured ones."""

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
