"""What is known of a model whose nodes are to be cut: weights, and shapes that are certain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dnnp.core.model.shards import WHOLE, axis_of
from dnnp.formats.onnx_graph import int64s
from dnnp.formats.onnx_scope import UNREPEATABLE, domain_of, reads, subgraphs, writes
from dnnp.formats.onnx_shard_ops import Change, Shape, Sight, UnfitError, change_of
from dnnp.formats.onnx_types import TensorType, describe, find_types, without_weights
from dnnp.formats.onnx_weights import Slice, slice_tensor


class Layout(NamedTuple):
    """How a node runs on the devices of its stage."""

    inputs: Mapping[str, int]
    """Tensor -> its state: `WHOLE`, or the axis that it is cut along."""
    outputs: Mapping[str, int]
    reduced: bool

    @property
    def divided(self) -> bool:
        """Whether devices do different parts of the work."""
        states = (*self.inputs.values(), *self.outputs.values())
        return self.reduced or any(state != WHOLE for state in states)


class Facts:
    """A model at the sizes that layouts are for.

    Parameters
    ----------
    source
        The model.
    makers
        Nodes that make weights.
    known
        Types of its tensors at these sizes.
    """

    def __init__(
        self, source: onnx.ModelProto, makers: Iterable[int], known: Mapping[str, TensorType]
    ) -> None:
        self.model = _bound(source, known)
        """The model with sizes for its inputs, without its large weights."""
        graph = self.model.graph
        self._known = known
        self._functions = {(domain_of(f.domain), f.name) for f in source.functions}
        self.stored = {tensor.name: tensor for tensor in source.graph.initializer}
        """What the model holds, constants among it."""
        for v in makers:
            self.stored |= _constant(graph.node[v])
        opsets = [entry.version for entry in source.opset_import if not domain_of(entry.domain)]
        self.opset = opsets[0] if opsets else 1
        self.names = {name for node in graph.node for name in (*reads(node), *writes(node))}
        self._types = find_types(_undeclared(self.model), sorted(self.names), known)

    def shape(self, name: str) -> Shape | None:
        """Shape of a tensor, where the model itself confirms what is known of it."""
        if name in self.stored:
            return tuple(self.stored[name].dims)
        if name not in self._types:
            return None
        shape, known = describe(self._types[name]).shape, self._known.get(name)
        if shape is None or known is None or shape != known.shape:
            return None
        sizes = tuple(size for size in shape if isinstance(size, int))
        return sizes if len(sizes) == len(shape) else None

    def dtype(self, name: str) -> str | None:
        """Element type of a tensor, if it is known."""
        return describe(self._types[name]).dtype if name in self._types else None

    def is_alone(self, node: onnx.NodeProto) -> bool:
        """Whether one device has to run a node for all: it may give each something else, has
        bodies, or is about sequences."""
        # The first device runs what may give each something else, for all.
        if node.op_type in UNREPEATABLE or any(True for _ in subgraphs(node)):
            return True
        there = [name for name in (*reads(node), *writes(node)) if name in self._types]
        return any(not describe(self._types[name]).is_tensor for name in there)

    def change(self, node: onnx.NodeProto, layout: Layout, devices: int) -> Change:
        """How the node of each device differs by a layout; raises `UnfitError`."""
        change = change_of(self._sight(node, layout, devices))
        for name, state in layout.inputs.items():
            if state != WHOLE and name in self.stored:
                part = Slice(name, axis_of(state), ((0, 0),))
                if slice_tensor(self.stored[name], "", part) is None:
                    raise UnfitError(f"the elements of '{name}' share bytes")
        return change

    def _sight(self, node: onnx.NodeProto, layout: Layout, devices: int) -> Sight:
        if (domain_of(node.domain), node.op_type) in self._functions:
            raise UnfitError("it is a local function")
        shapes: list[Shape | None] = []
        for name in node.input:
            shapes.append(self.shape(name) if name else None)
            if name and shapes[-1] is None:
                raise UnfitError(f"the shape of '{name}' is not certain")
        outs = {self.shape(name) for name in node.output}
        states = {layout.outputs.get(name, WHOLE) for name in node.output}
        if len(outs) != 1 or len(states) != 1:
            raise UnfitError("its outputs are not alike")
        out = outs.pop()
        if out is None:
            raise UnfitError("the shape of its output is not certain")
        return Sight(
            node=node,
            shapes=tuple(shapes),
            states=tuple(layout.inputs.get(name, WHOLE) for name in node.input),
            out=out,
            axis=states.pop(),
            reduced=layout.reduced,
            devices=devices,
            opset=self.opset,
            values=lambda name: int64s(self.stored[name]) if name in self.stored else None,
        )


def _bound(model: onnx.ModelProto, known: Mapping[str, TensorType]) -> onnx.ModelProto:
    """The model with the known sizes of its inputs, without large weights.

    What it declares of other sizes goes where some were free.
    """
    bound = without_weights(model)
    stored = {tensor.name for tensor in bound.graph.initializer}
    free = False
    for value in bound.graph.input:
        kind, at = describe(value.type), known.get(value.name)
        if value.name in stored or kind.shape is None or at is None or at.shape is None:
            continue
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, at.shape, strict=False):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                dim.dim_value, free = size, True
    for value in bound.graph.value_info if free else ():
        value.type.tensor_type.ClearField("shape")
    return bound


def _undeclared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that declares no shapes of outputs."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for value in light.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    return light


def _constant(node: onnx.NodeProto) -> dict[str, onnx.TensorProto]:
    """What a node outside of all stages holds, by the name of its output."""
    if node.op_type != "Constant" or len(node.output) != 1:
        return {}
    for attribute in node.attribute:
        if attribute.name == "value":
            return {node.output[0]: attribute.t}
        if attribute.name in ("value_ints", "value_floats", "value_int", "value_float"):
            value = helper.get_attribute_value(attribute)
            kind = np.int64 if "int" in attribute.name else np.float32
            return {node.output[0]: numpy_helper.from_array(np.array(value, dtype=kind))}
    return {}
