"""Work of every operator, by a table that lies outside this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import NamedTuple, Protocol

import onnx

from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.guard import guarded
from dnnp.formats.onnx_dims import MAX_DIMENSION, Dimensions
from dnnp.formats.onnx_graph import OnnxGraph
from dnnp.formats.onnx_scope import domain_of
from dnnp.formats.onnx_shapes import MOST_INLINED, inlined_size, light_model
from dnnp.formats.onnx_sizes import UNKNOWN, ValueType
from dnnp.formats.onnx_types import element_type


class Work(NamedTuple):
    """What one execution of an operator takes, as the stream holds it."""

    flop: float | None
    """None: unknown."""
    bytes: float
    partial: bool = False
    """Whether work is left out: operators of unknown work in bodies, trips of unknown number."""


class NodeCost(Protocol):
    """What pricing a node tells."""

    @property
    def flop(self) -> float:
        """Floating-point operations."""

    @property
    def bytes(self) -> float:
        """Bytes read and written."""

    @property
    def known(self) -> bool:
        """Whether `flop` means anything."""


ShapeOf = Callable[[str], "tuple[int, ...] | None"]
Price = Callable[[onnx.NodeProto, ShapeOf, Callable[[str], float], Callable[[str], int]], NodeCost]
"""(node, shape of a name, bytes of a name, element type of a name) -> cost."""
Pricer = Callable[[onnx.ModelProto], Price]
"""Defined by a module, since it is called in another process too."""


def price_operators(
    model: onnx.ModelProto,
    graph: OnnxGraph,
    dimensions: Dimensions,
    types: Mapping[str, ValueType],
    pricer: Pricer,
) -> dict[int, Work]:
    """Work by node index.

    Operators with bodies and local functions need shape inference for what is inside, which
    may crash; so they are priced in another process, all at once. If that fails they have
    unknown work.
    """
    functions = {(domain_of(f.domain), f.name) for f in model.functions}
    composite = {
        operator.index
        for operator in graph.operators
        if operator.has_bodies
        or (functions and (domain_of(operator.proto.domain), operator.proto.op_type) in functions)
    }
    plain = [operator for operator in graph.operators if operator.index not in composite]
    found = dict(
        zip(
            [operator.index for operator in plain],
            _price_all(pricer(model), [operator.proto for operator in plain], types),
            strict=True,
        )
    )
    if composite and inlined_size(model) <= MOST_INLINED:
        others = [operator for operator in graph.operators if operator.index in composite]
        light = light_model(model, replace(graph, operators=others), dimensions)
        used = {name for operator in others for name in (*operator.reads, *operator.writes)}
        near = {name: kind for name, kind in types.items() if name in used}
        priced = guarded(price_apart, pricer, light.SerializeToString(), len(others), near)
        for operator, work in zip(others, priced or [], strict=False):
            found[operator.index] = work
    return found


def price_apart(
    pricer: Pricer, data: bytes, count: int, types: Mapping[str, ValueType]
) -> list[Work]:
    """Price the last `count` nodes of a serialised model."""
    model = onnx.ModelProto.FromString(data)
    return _price_all(pricer(model), model.graph.node[-count:], types)


def _price_all(
    price: Price, nodes: Sequence[onnx.NodeProto], types: Mapping[str, ValueType]
) -> list[Work]:
    shapes = {name: kind.shape for name, kind in types.items()}
    sizes = {name: kind.size_bytes or 0 for name, kind in types.items()}

    def bytes_of(name: str) -> float:
        return sizes.get(name, 0)

    def dtype_of(name: str) -> int:
        return element_type(types.get(name, UNKNOWN).dtype)

    work: list[Work] = []
    for node in nodes:
        cost = price(node, shapes.get, bytes_of, dtype_of)
        told = cost.known or cost.flop > 0
        flop = _number(cost.flop) if told else None
        work.append(Work(flop, _number(cost.bytes), told and not cost.known))
    return work


def _number(value: float) -> float:
    """A count as the stream holds it: an integer where it is exact, never above its limit."""
    if not isfinite(value) or value > MAX_NUMBER:
        return MAX_NUMBER
    return int(value) if value <= MAX_DIMENSION and value == int(value) else float(value)
