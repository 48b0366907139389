"""Whether sizes given for free dimensions fit the operators of a model.

Shape inference leaves out what contradicts itself, and a model is never run on import; so the
contradictions that sizes lead to are looked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import onnx

from dnnp.formats.onnx_graph import OnnxGraph, Operator
from dnnp.formats.onnx_scope import domain_of
from dnnp.formats.onnx_sizes import UNKNOWN, ValueType

Shape = tuple[int, ...]
Found = Mapping[str, ValueType]

_BROADCAST = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Where", "Max", "Min", "Sum", "Mean",
)  # fmt: skip
_SAME_ELEMENTS = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators whose output holds no other values than their first input."""


def misfit(graph: OnnxGraph, types: Found) -> str | None:
    """Which operator cannot take the shapes that it is given, and why; None if none is known."""
    made = {name: operator for operator in graph.operators for name in operator.writes}
    for operator in graph.operators:
        proto = operator.proto
        if domain_of(proto.domain) != "":
            continue
        check = _CHECKS.get(proto.op_type)
        shapes = [types.get(name, UNKNOWN).shape for name in proto.input]
        reason = None if check is None else check(proto, shapes, types)
        if reason is None and proto.op_type == "Gather":
            reason = _gathered(operator, made, types)
        if reason is not None:
            return f"{operator} {reason}"
    return None


def _broadcast(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    known = [shape for shape in shapes if shape is not None]
    for axis in range(1, max(map(len, known), default=0) + 1):
        if len({s[-axis] for s in known if len(s) >= axis} - {1}) > 1:
            return "cannot join tensors of the shapes " + " and ".join(str(list(s)) for s in known)
    return None


def _matmul(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    a, b = shapes[:2]
    if a and b and a[-1] != b[max(len(b) - 2, 0)]:
        return f"cannot multiply matrices of the shapes {list(a)} and {list(b)}"
    return None


def _conv(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    x, w = shapes[:2]
    groups = next((a.i for a in proto.attribute if a.name == "group"), 1)
    if x and w and len(x) > 1 and len(w) > 1 and x[1] != w[1] * groups:
        return f"takes {w[1] * groups} channels, not the {x[1]} of the shape {list(x)}"
    return None


def _slice(proto: onnx.NodeProto, shapes: list[Shape | None], types: Found) -> str | None:
    # What is declared counts: by itself a slice takes what there is.
    whole, part = shapes[0], types.get(proto.output[0], UNKNOWN).shape
    if whole is not None and part is not None and len(whole) == len(part):
        for size, taken in zip(whole, part, strict=True):
            if taken > size:
                return f"cannot take {taken} of the {size} that the shape {list(whole)} holds"
    return None


def _gathered(operator: Operator, made: Mapping[str, Operator], types: Found) -> str | None:
    """A table that is read at consecutive positions, at more of them than it has rows."""
    table = types.get(operator.proto.input[0], UNKNOWN).shape
    axis = next((a.i for a in operator.proto.attribute if a.name == "axis"), 0)
    name = operator.proto.input[1]
    while name in made and made[name].proto.op_type in _SAME_ELEMENTS:
        name = made[name].proto.input[0]
    positions = types.get(name, UNKNOWN).shape
    if name not in made or made[name].proto.op_type != "Range" or not table or positions is None:
        return None
    if prod(positions) > table[axis]:
        return f"reads {prod(positions)} rows of a table that has {table[axis]}"
    return None


_CHECKS: dict[str, Callable[[onnx.NodeProto, list[Shape | None], Found], str | None]] = {
    **dict.fromkeys(_BROADCAST, _broadcast),
    "MatMul": _matmul,
    "Conv": _conv,
    "Slice": _slice,
}
"""Operator -> what its inputs and outputs must fulfil."""
