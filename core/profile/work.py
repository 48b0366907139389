"""What the nodes of a stream have to do, as arrays: work, traffic, element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.graph import PARAMETER, Bools, Floats, Graph, Ints, distinct, forward_type
from dnnp.core.profile.families import FAMILY, PRODUCTS

RATES = ("float64", "float32", "float16", "bfloat16", "float8", "int8")
"""Classes of element type with rates of their own; a position here is a rate code."""
_FLOAT32, _INT8 = RATES.index("float32"), RATES.index("int8")
_RATE = {name: code for code, name in enumerate(RATES)} | {"uint8": _INT8}

_INTEGER_PRODUCTS = (
    "QLinear", "ConvInteger", "MatMulInteger", "QGemm", "QAttention", "QOrdered",
    "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
)  # fmt: skip
"""Operators that compute in 8-bit integers, whatever they return."""


@dataclass(frozen=True, eq=False)
class Work:
    """What each node does; arrays of length n, by node position."""

    flop: Floats
    """Operations; 0 where no formula knew."""
    bytes: Floats
    """Bytes moved to and from memory."""
    rate: Ints
    """Position in `RATES` of the element type computed in."""
    product: Bools
    """Whether the work is matrix products or convolutions."""
    known: Bools
    """Whether the work is known; if not, the traffic prices the node, with what work is known."""


def work_of(
    graph: Graph, nodes: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Any]]
) -> Work:
    """Gather the work of the nodes of a stream.

    Parameters
    ----------
    graph
        Graph of the stream; `nodes` and `tensors` are its records, in the same order.

    Notes
    -----
    Nodes of weights alone (`weight_only`) have no work: they run before the first sample.
    A node computes in the type of its first floating-point output, else of its first
    floating-point input, else float32; products of quantised operands in int8. A node
    without `bytes` moves each of its tensors once.
    """
    flop = np.array([r.get("flop", np.nan) for r in nodes], dtype=np.float64)
    moved = np.array([r.get("bytes", np.nan) for r in nodes], dtype=np.float64)
    told = ~np.isnan(flop)
    known = told & ~np.array([bool(r.get("partial")) for r in nodes], dtype=np.bool_)
    absent = np.isnan(moved)
    if absent.any():
        moved[absent] = tensor_traffic(graph)[absent]
    kinds = [_float_rate(r.get("dtype", "")) for r in tensors]
    gone = weight_only(graph)
    return Work(
        flop=np.where(told & ~gone, flop, 0.0),
        bytes=np.where(gone, 0.0, moved),
        rate=_rates(graph, np.array(kinds, dtype=np.int64)),
        product=np.array([FAMILY.get(forward_type(o)) in PRODUCTS for o in graph.ops], dtype=bool),
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
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    open_ = np.bincount(reader[graph.tensor_kind[graph.in_idx] < PARAMETER], minlength=graph.n)
    open_[np.diff(graph.in_ptr) == 0] = -1
    ready = [] if graph.backward.any() else np.flatnonzero(open_ == 0).tolist()
    while ready:
        v = ready.pop()
        readers = [r for t in graph.writes(v).tolist() for r in graph.readers(t).tolist()]
        known = graph.ops[v] not in _STAYS
        if graph.ops[v] == "DequantizeLinear":
            known = all(graph.ops[r] == "MatMul" for r in readers)
        if not known or graph.is_output[graph.writes(v)].any():
            continue
        found[v] = True
        for r in readers:
            open_[r] -= 1
            if open_[r] == 0:
                ready.append(r)
    return found


def _float_rate(dtype: str) -> int:
    """Rate code of a floating-point type, -1 of any other."""
    if dtype.startswith("float8"):
        return RATES.index("float8")
    return _RATE.get(dtype, -1) if dtype not in ("int8", "uint8") else -1


def _rates(graph: Graph, kinds: Ints) -> Ints:
    """Rate code of each node, from the codes of its tensors."""
    rate = np.full(graph.n, -1, dtype=np.int64)
    for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
        node = np.repeat(np.arange(graph.n, dtype=np.int64), np.diff(ptr))
        code = kinds[idx] if len(kinds) else np.zeros(0, dtype=np.int64)
        floating = np.flatnonzero(code >= 0)[::-1]
        # Assigned backwards, the first one of a node is the one that stays.
        rate[node[floating]] = code[floating]
    rate[rate < 0] = _FLOAT32
    quantized = [op.startswith(_INTEGER_PRODUCTS) for op in graph.ops]
    rate[np.array(quantized, dtype=np.bool_)] = _INT8
    return rate


def tensor_traffic(graph: Graph) -> Floats:
    """Bytes of all tensors that each node reads and writes, each once; f64[n]."""
    total = np.zeros(graph.n)
    for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
        node = np.repeat(np.arange(graph.n, dtype=np.int64), np.diff(ptr))
        total += np.bincount(node, weights=graph.tensor_bytes[idx], minlength=graph.n)
    return total


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
    leaves = graph.is_output.copy()
    leaves[use[crossing]] = True
    written = np.flatnonzero(leaves & (maker >= 0))
    np.add.at(traffic, maker[written], graph.tensor_bytes[written])
    return traffic
