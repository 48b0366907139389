"""Follow the small integer values that models compute shapes with, node by node.

ONNX inference carries such values through few operators. Here every operator whose inputs are
known is evaluated, so that a shape computed from fixed inputs comes out exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference
from numpy.typing import NDArray

from dnnp.formats.onnx_infer import FAILURES
from dnnp.formats.onnx_scope import domain_of, reads, writes

Types = dict[str, onnx.TypeProto]

LIMIT = 1024
"""Elements of the largest value that is followed."""

_EVALUATED = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Concat",
        "ConstantOfShape", "CumSum", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather",
        "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less",
        "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range",
        "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round",
        "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
        "Tile", "Transpose", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip
"""Operators that shapes are computed with; none makes much of little, but see `_explodes`."""


def fold(light: onnx.ModelProto, types: Types) -> None:
    """Evaluate what can be, and infer what is still missing with the values at hand.

    Parameters
    ----------
    light
        Sorted model without large weights. Evaluated operators become initializers.
    types
        Types found so far; gets more.
    """
    walk = _Walk(light, types)
    kept = [node for node in light.graph.node if not walk.visit(node)]
    del light.graph.node[:]
    light.graph.node.extend(kept)
    light.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in walk.folded.items()
    )


def is_fixed(proto: onnx.TypeProto | None) -> bool:
    """Whether inference can add nothing to a type: no tensor, or one of fixed shape."""
    if proto is None or proto.WhichOneof("value") is None:
        return False
    if not proto.HasField("tensor_type"):
        return True
    tensor = proto.tensor_type
    return (
        bool(tensor.elem_type)
        and tensor.HasField("shape")
        and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    )


class _Walk:
    """Values and types known at one place of a model."""

    def __init__(self, light: onnx.ModelProto, types: Types) -> None:
        self._light = light
        self._types = types
        self._values: dict[str, NDArray[Any]] = {}
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._opsets = {domain_of(entry.domain): entry.version for entry in light.opset_import}
        self.folded: dict[str, NDArray[Any]] = {}
        for value in light.graph.input:
            types.setdefault(value.name, value.type)
        for tensor in light.graph.initializer:
            self._store(tensor.name, tensor)

    def _store(self, name: str, tensor: onnx.TensorProto) -> None:
        """Note a stored tensor: its type, and its value if it is small."""
        self._types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if tensor.data_location == tensor.EXTERNAL or prod(tensor.dims) > LIMIT:
            return
        try:
            value = onnx.numpy_helper.to_array(tensor)
        except FAILURES:
            return
        if value.dtype.kind in "biuf":
            self._values[name] = value

    def visit(self, node: onnx.NodeProto) -> bool:
        """Look at the next node; True if it was evaluated and can be replaced."""
        outputs = writes(node)
        if node.op_type == "Constant" and not domain_of(node.domain):
            for attribute in node.attribute:
                if attribute.name == "value" and outputs:
                    self._store(outputs[0], attribute.t)
                elif attribute.name in ("value_int", "value_ints") and outputs:
                    held = attribute.ints if attribute.name == "value_ints" else attribute.i
                    self._values[outputs[0]] = np.array(held, dtype=np.int64)
        elif not domain_of(node.domain):
            results = self._evaluate(node)
            if results is not None and len(results) == len(node.output):
                self._keep(node.output, results)
                return True
        if not all(is_fixed(self._types.get(name)) for name in outputs):
            self._infer(node, outputs)
        return False

    def _keep(self, names: Sequence[str], results: list[NDArray[Any]]) -> None:
        for name, value in zip(names, results, strict=True):
            if name:
                self._values[name] = self.folded[name] = value
                element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                self._types[name] = onnx.helper.make_tensor_type_proto(element, value.shape)

    def _evaluate(self, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
        """Outputs of a node whose inputs are known; None if they are not, or not small."""
        if node.op_type in ("Shape", "Size"):
            return self._measure(node)
        if node.op_type not in _EVALUATED or not node.input:
            return None
        feeds = {name: self._values[name] for name in node.input if name in self._values}
        if len(feeds) < len({name for name in node.input if name}):
            return None
        try:
            if _explodes(node, feeds):
                return None
            from onnx.reference import ReferenceEvaluator

            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(node, opsets=self._opsets).run(None, feeds)
        except FAILURES:
            return None
        if not isinstance(results, list):
            return None
        small = all(
            isinstance(v, np.ndarray | np.generic) and v.size <= LIMIT and v.dtype.kind in "biuf"
            for v in results
        )
        return [np.asarray(v) for v in results] if small else None

    def _measure(self, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
        """Shape and Size of a tensor of fixed shape."""
        proto = self._types.get(node.input[0]) if node.input else None
        if proto is None or not proto.HasField("tensor_type") or not is_fixed(proto):
            return None
        shape = [dim.dim_value for dim in proto.tensor_type.shape.dim]
        if node.op_type == "Size":
            size = prod(shape)
            return [np.array(size, dtype=np.int64)] if size < 2**63 else None
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        part = shape[ends.get("start", 0) : ends.get("end", len(shape))]
        return [np.array(part, dtype=np.int64)]

    def _infer(self, node: onnx.NodeProto, outputs: Sequence[str]) -> None:
        """Types of one node's outputs, by ONNX inference on it alone."""
        model = onnx.ModelProto(ir_version=self._light.ir_version)
        model.opset_import.extend(self._light.opset_import)
        model.functions.extend(self._light.functions)
        graph = model.graph
        graph.name = "node"
        graph.node.append(node)
        for name in reads(node):
            if name in self._values:
                graph.initializer.append(self._tensor(name))
            elif name in self._types:
                graph.input.add(name=name).type.CopyFrom(self._types[name])
        try:
            inferred = onnx.shape_inference.infer_shapes(model).graph
        except FAILURES:
            return
        for value in inferred.value_info:
            known = self._types.get(value.name)
            if value.name in outputs and (is_fixed(value.type) or not _has_rank(known)):
                self._types[value.name] = value.type

    def _tensor(self, name: str) -> onnx.TensorProto:
        if name not in self._tensors:
            self._tensors[name] = onnx.numpy_helper.from_array(self._values[name], name)
        return self._tensors[name]


def _has_rank(proto: onnx.TypeProto | None) -> bool:
    return proto is not None and proto.tensor_type.HasField("shape")


def _explodes(node: onnx.NodeProto, feeds: dict[str, NDArray[Any]]) -> bool:
    """Whether small inputs make a large output."""
    match node.op_type:
        case "ConstantOfShape":
            size = prod(int(n) for n in feeds[node.input[0]])
        case "Expand" | "Tile":
            size = feeds[node.input[0]].size * prod(int(n) for n in feeds[node.input[1]])
        case "Range":
            start, limit, delta = (float(feeds[name]) for name in node.input)
            size = int(abs((limit - start) / delta))
        case _:
            return False
    return not 0 <= size <= LIMIT
