"""Times of fused kernels by the efficiencies of families of operators, as a device file has them.

    time = launch overhead * launch + hypot(arithmetic, traffic)
    arithmetic = flop / (peak * compute) * (1 + half_length / length)
    traffic = (activations / bandwidth + weights / bandwidth) / memory

`compute`, `memory`, `half_length` and `launch` belong to the family and element type of the
operator. `length` is that of its rows: the last dimension of what it writes; of narrow
convolutions, whose input has few channels, the weights of one output; of recurrent operators the
batch. The bandwidth is that of the nearest cache which holds what is read again: for activations
all that the kernel moves, for weights those of the whole model, as every run reads them all.
Arithmetic and traffic overlap, but not wholly: hence the hypotenuse between the greater of them
and their sum.

Convolutions lay out images in blocks of channels, padded to whole ones. Where such an image is read
by what knows no blocks, or a convolution reads another, it is copied, at the rate of a transpose.

Fused into a product or a convolution, other operators cost no arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np

from dnnp.core.model.device_rates import RATES, DeviceRates
from dnnp.core.model.graph import Bools, Floats, Graph, Ints, forward_type
from dnnp.core.profile.families import (
    ANCHORS,
    FAMILIES,
    FREE,
    FUSED,
    QUANTISED,
    VIEW,
    Shape,
    family_of,
    kernel_of,
)
from dnnp.core.profile.work import Work, boundary_traffic

NO_FAMILY = len(FAMILIES)
"""Code of operators without a family."""
_CODE = {name: code for code, name in enumerate(FAMILIES)}
_ANCHOR = np.array([*(name in ANCHORS for name in FAMILIES), False])
_INT8 = RATES.index("int8")
_NARROW = "conv-narrow"
_BLOCKED = ("conv", "conv-pointwise", "conv-depthwise", _NARROW)
"""Families that write images in blocks of channels."""
_KEEPS_BLOCKS = ("pool", "reduce", "arithmetic", "sigmoid", "tanh", "copy")
"""Families that do so if all that they read is in blocks."""
_TRANSPOSE = _CODE["transpose"]


@dataclass(frozen=True, eq=False)
class Kernels:
    """Kernels that run, without any rates: nodes of length n, kernels of length q."""

    flop: Floats
    """f64[n], arithmetic that counts."""
    channels: Floats
    """f64[n, 2], channels read and written by convolutions in blocks; 0: not in blocks."""
    family: Ints
    """i64[n], position in `FAMILIES`, or `NO_FAMILY`."""
    rate: Ints
    """i64[n], position in `RATES`."""
    product: Bools
    """bool[n], whether the work is products."""
    length: Floats
    """f64[n], length of rows."""
    label: Ints
    """i64[n], kernel of each node."""
    moved: Floats
    """f64[q], bytes of activations."""
    weights: Floats
    """f64[q], bytes of weights."""
    copied: Floats
    """f64[q], bytes moved to lay out images otherwise."""
    first: Ints
    """i64[q], the node whose family stands for the kernel's traffic."""
    starts: Bools
    """bool[q], whether there is anything to start."""
    model_weights: Floats
    """f64[q], bytes of all weights of the model that a kernel is in."""


_OF_NODES = frozenset(("flop", "channels", "family", "rate", "product", "length", "label"))
"""Columns of kernels that have an entry a node, not a kernel."""


def kernels_of(
    graph: Graph,
    work: Work,
    tensors: Sequence[Mapping[str, Any]],
    label: Ints,
    rules: Sequence[str],
    constant: Bools,
) -> Kernels:
    """Kernels of a graph.

    `tensors`: records, for their shapes; `label`: kernel of each node, 0..q-1; `rules`: fusion rule
    of each kernel, empty for none; `constant`: bool[m], known before the model runs.
    """
    shapes: list[Shape] = [r.get("shape") for r in tensors]
    known = constant.tolist()
    q = len(rules)
    family = np.full(graph.n, NO_FAMILY, dtype=np.int64)
    length, again = np.full(graph.n, np.inf), np.zeros(graph.n)
    channels = np.zeros((graph.n, 2))
    for v in range(graph.n):
        reads, writes = graph.reads(v).tolist(), graph.writes(v).tolist()
        sizes, fixed = [shapes[t] for t in reads], [known[t] for t in reads]
        out = shapes[writes[0]] if writes else None
        name = family_of(forward_type(graph.ops[v]), sizes, fixed, out)
        family[v] = _CODE.get(name, NO_FAMILY)
        if out:
            length[v] = max(out[-1], 1)
        if name in _BLOCKED:
            channels[v] = _channels(name, sizes, fixed, out)
        if name == _NARROW:
            length[v] = prod((kernel_of(sizes, fixed) or (1,))[1:])
        if name == "recurrent" and sizes and sizes[0] is not None:
            length[v] = max((*sizes[0], 1, 1)[1], 1)
            again[v] = _read_again(sizes[0], [graph.tensor_bytes[t] for t in reads[1:]])
    gone = _foregone(graph, constant) | (family == _CODE[FREE])
    flop, rate = np.where(gone, 0.0, work.flop), work.rate.copy()
    anchored = np.zeros(q, dtype=np.bool_)
    anchored[label[_ANCHOR[family]]] = True
    flop[anchored[label] & ~_ANCHOR[family]] = 0.0
    first = _representatives(family, flop, label, q)
    for kernel in np.flatnonzero([rule in FUSED for rule in rules]).tolist():
        if not anchored[kernel]:
            name, weight = FUSED[rules[kernel]]
            members = label == kernel
            flop[members], family[members] = 0.0, _CODE[name]
            flop[first[kernel]] = weight * _elements(graph, shapes, members)
    rate[np.array([rule.startswith(QUANTISED) for rule in rules], dtype=np.bool_)[label]] = _INT8
    moved, weights = _traffic(
        graph, replace(work, bytes=np.where(gone, 0.0, work.bytes)), label, q, constant
    )
    weights += np.bincount(label, weights=again, minlength=q)
    view = (family == _CODE[VIEW]) & ~gone
    starts = (np.bincount(label, weights=flop + view, minlength=q) > 0) | (moved + weights > 0)
    return Kernels(
        flop, channels, family, rate, work.product, length, label, moved, weights,
        _layouts(graph, family, label, first, constant), first, starts,
        np.full(q, float(graph.tensor_bytes[constant].sum())),
    )  # fmt: skip


def joined(parts: Sequence[Kernels]) -> Kernels:
    """The kernels of several models as those of one."""
    nodes = np.cumsum([0, *(len(p.flop) for p in parts)])
    counts = np.cumsum([0, *(len(p.moved) for p in parts)])
    columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Kernels)}
    columns["label"] += np.repeat(counts[:-1], np.diff(nodes))
    columns["first"] += np.repeat(nodes[:-1], np.diff(counts))
    return Kernels(**columns)


def subset(kernels: Kernels, chosen: Bools) -> Kernels:
    """The kernels that a mask, bool[q], names, and their nodes."""
    members = chosen[kernels.label]
    number, node = np.cumsum(chosen) - 1, np.cumsum(members) - 1
    columns = {
        f.name: getattr(kernels, f.name)[members if f.name in _OF_NODES else chosen]
        for f in fields(Kernels)
    }
    columns["label"] = number[kernels.label[members]]
    columns["first"] = node[kernels.first[chosen]]
    return Kernels(**columns)


def _layouts(graph: Graph, family: Ints, label: Ints, first: Ints, constant: Bools) -> Floats:
    """Bytes read and written where images change between blocks of channels and none; f64[q].

    A copy is its maker's, and where a convolution reads what has no blocks, the convolution's.
    """
    copied = np.zeros(len(first))
    kinds = [(*FAMILIES, "")[f] for f in family[first].tolist()]
    if not any(kind in _BLOCKED for kind in kinds):
        return copied
    blocked = np.zeros(graph.m, dtype=np.bool_)
    for v in graph.order.tolist():
        kind, reads = kinds[label[v]], graph.reads(v)
        open_ = reads[~constant[reads]]
        inside = bool(len(open_)) and bool(blocked[open_].all())
        if kind in _BLOCKED or (kind in _KEEPS_BLOCKS and inside):
            blocked[graph.writes(v)] = True
        if kind in _BLOCKED and kind != _NARROW:
            makers = graph.producer[open_]
            inner = (makers >= 0) & (label[np.maximum(makers, 0)] == label[v])
            outside = open_[~blocked[open_] & ~inner]
            copied[label[v]] += 2 * graph.tensor_bytes[outside].sum()
    for t in np.flatnonzero(blocked).tolist():
        readers = graph.readers(t)
        elsewhere = readers[label[readers] != label[graph.producer[t]]]
        plain = any(
            kinds[label[r]] == _NARROW or not blocked[graph.writes(r)].all()
            for r in elsewhere.tolist()
        )
        if plain or graph.survives[t]:
            copied[label[graph.producer[t]]] += 2 * graph.tensor_bytes[t]
    return copied


def _channels(
    name: str, sizes: Sequence[Shape], fixed: Sequence[bool], out: Shape
) -> tuple[float, float]:
    """Channels that a convolution reads in blocks, and those that it writes; 0: none."""
    weights = kernel_of(sizes, fixed)
    if weights is None or out is None or len(out) < 2:
        return 0.0, 0.0
    dense = name not in (_NARROW, "conv-depthwise")
    return (float(weights[1]) if dense else 0.0), float(out[1])


def _read_again(source: Sequence[int], operands: Sequence[float]) -> float:
    """Bytes that a recurrent operator reads again in each step but the first: recurrent weights."""
    steps = source[0] if source else 1
    recurrent = operands[1] if len(operands) > 1 else 0.0
    return max(steps - 1, 0) * recurrent


def _foregone(graph: Graph, constant: Bools) -> Bools:
    """Nodes that write nothing but what is known before the model runs; bool[n]."""
    open_ = np.zeros(graph.n, dtype=np.bool_)
    open_[graph.writer[~constant[graph.out_idx]]] = True
    return ~open_


def _elements(graph: Graph, shapes: Sequence[Shape], members: Bools) -> float:
    """Elements of the largest tensor that a fused operator writes for others."""
    written = {t for v in np.flatnonzero(members).tolist() for t in graph.writes(v).tolist()}
    leaving = [t for t in written if graph.survives[t] or not members[graph.readers(t)].all()]
    return float(max((prod(shapes[t] or ()) for t in leaving), default=0))


def _representatives(family: Ints, flop: Floats, label: Ints, q: int) -> Ints:
    """A node of each kernel: an anchor if there is one, else that of the most work; i64[q]."""
    order = np.lexsort((flop, _ANCHOR[family]))
    first = np.zeros(q, dtype=np.int64)
    first[label[order]] = order
    return first


def _traffic(
    graph: Graph, work: Work, label: Ints, q: int, constant: Bools
) -> tuple[Floats, Floats]:
    """Bytes of activations and of weights that each kernel moves; f64[q] both."""
    alone = np.bincount(label, weights=work.bytes, minlength=q)
    total = np.where(
        np.bincount(label, minlength=q) > 1,
        np.minimum(boundary_traffic(graph, label, q), alone),
        alone,
    )
    fixed = np.where(constant[graph.in_idx], graph.tensor_bytes[graph.in_idx], 0.0)
    weights = np.minimum(np.bincount(label[graph.reader], weights=fixed, minlength=q), total)
    return total - weights, weights


def kernel_times(kernels: Kernels, device: DeviceRates) -> Floats:
    """Time of each kernel; f64[q], seconds."""
    return times_by_table(kernels, device, rate_table(device))


def rate_table(device: DeviceRates) -> Floats:
    """Compute, memory, half length and launch by family and element type; f64[4, f + 1, r].

    A type without an entry has that of float32; a family without one, the general efficiency.
    """
    table = np.empty((4, len(FAMILIES) + 1, len(RATES)))
    # Products and the rest differ where nothing is said about a family: nan stands for that.
    general = (np.nan, device.efficiency.get("memory", 1.0), 0.0, 1.0)
    table[:] = np.array(general)[:, None, None]
    for family, entries in device.operators.items():
        for dtype in sorted(entries, key=lambda name: name != "float32"):
            entry = entries[dtype]
            rates = entry.compute, entry.memory, entry.half_length, entry.launch
            columns = [*range(len(RATES))] if dtype == "float32" else [RATES.index(dtype)]
            table[:, _CODE[family], columns] = np.array(rates)[:, None]
    return table


def times_by_table(kernels: Kernels, device: DeviceRates, table: Floats) -> Floats:
    """`kernel_times` by a `rate_table`."""
    compute, memory, half, launch = table
    peaks = device.peak_flop_per_s
    peak = np.array([peaks.get(name, peaks["float32"]) for name in RATES])
    general = np.where(
        kernels.product, device.efficiency.get("matrix", 1.0), device.efficiency.get("vector", 1.0)
    )
    share = compute[kernels.family, kernels.rate]
    share = np.where(np.isnan(share), general, share)
    rows = 1 + half[kernels.family, kernels.rate] / kernels.length
    flop = kernels.flop * _padding(kernels.channels, device.channel_block)
    alone = flop / (peak[kernels.rate] * share) * rows
    q = len(kernels.moved)
    busy = np.bincount(kernels.label, weights=alone, minlength=q)
    levels = device.caches
    whole = np.array([size for size, _ in levels])
    speeds = np.array([*(rate for _, rate in levels), device.memory_bandwidth_bytes_per_s])
    near = speeds[np.searchsorted(whole, kernels.moved + kernels.weights)]
    far = speeds[np.searchsorted(whole, kernels.model_weights)]
    which = kernels.family[kernels.first], kernels.rate[kernels.first]
    traffic = (kernels.moved / near + kernels.weights / np.minimum(near, far)) / memory[which]
    if device.channel_block > 1:
        traffic = traffic + kernels.copied / near / memory[_TRANSPOSE, kernels.rate[kernels.first]]
    times = device.launch_overhead_s * launch[which] + np.hypot(busy, traffic)
    return np.where(kernels.starts, times, 0.0)


def _padding(channels: Floats, block: int) -> Floats:
    """Factor of arithmetic for whole blocks of channels; f64[n]."""
    if block <= 1:
        return np.ones(len(channels))
    wide = np.ceil(channels / block) * block
    return np.prod(np.where(channels > 0, wide / np.maximum(channels, 1), 1.0), axis=1)
