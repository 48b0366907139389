"""A small ONNX graph builder that tracks types and shapes by itself.

Names follow the PyTorch exporter: nodes ``/encoder/layer.3/attention/MatMul``, their results
with ``_output_0``, weights ``encoder.layer.3.attention.query.weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx.helper import (
    make_attribute,
    make_tensor_value_info,
    np_dtype_to_tensor_dtype,
    tensor_dtype_to_np_dtype,
)

from dnnp.formats.onnx.scope import leave_only
from dnnp.samples.shapes import ABSENT, BOOL, FLOAT, INT64, Shape, Value, results
from dnnp.samples.weights import Fill, Sample, Weight, normal

Operand = Value | float
"""A tensor, or a number that becomes a constant of the other operand's type."""

Body = Callable[[Sequence[Value]], Sequence[Value]]


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for side in (node.input, node.output):
            for position, name in enumerate(side):
                if name in names:
                    side[position] = names[name]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, names)


class Builder:
    """Builds one model, node by node.

    Parameters
    ----------
    name
        Name of the graph.
    opset, ir_version
        Versions to declare; operators are written in the form of that opset (13 to 21).
    seed
        Seed of the weights.
    dtype
        ``TensorProto`` type of weights.
    planning
        Weights are declared only, and ``value_info`` gives the shape of every tensor.
    constant_nodes
        Write constants as ``Constant`` nodes, as PyTorch does, instead of initializers.
    """

    def __init__(
        self,
        name: str,
        *,
        opset: int = 17,
        ir_version: int = 8,
        seed: int = 0,
        dtype: int = FLOAT,
        planning: bool = False,
        constant_nodes: bool = False,
    ) -> None:
        self.opset, self.dtype, self.seed = opset, dtype, seed
        self.planning, self.constant_nodes = planning, constant_nodes
        self.values: dict[str, Value] = {}
        self.properties: dict[str, str] = {}
        self._model = onnx.ModelProto(ir_version=ir_version, producer_name="dnnp.samples")
        self._model.opset_import.add(domain="", version=opset)
        self._model.graph.name = name
        self._graphs: list[onnx.GraphProto] = [self._model.graph]
        self._scopes: list[str] = []
        self._path = ""
        self._counts: dict[str, int] = {}
        self._weights: dict[str, Weight] = {}
        self._constants: dict[tuple[int, Shape, bytes], Value] = {}
        self._outputs: dict[str, str] = {}

    # ---- names -----------------------------------------------------------------------------

    @contextmanager
    def scope(self, *names: str) -> Iterator[None]:
        """Put the nodes and weights of the block under the module `names`."""
        self._scopes.extend(names)
        self._path = "".join(f"/{name}" for name in self._scopes)
        yield
        del self._scopes[-len(names) :]
        self._path = "".join(f"/{name}" for name in self._scopes)

    def _node_name(self, op: str) -> str:
        name = f"{self._path}/{op}"
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return f"{name}_{count}" if count else name

    def _remember(self, value: Value) -> Value:
        self.values[value.name] = value
        return value

    # ---- tensors that no node computes -----------------------------------------------------

    def input(
        self, name: str, shape: Shape, dtype: int = FLOAT, span: tuple[int, int] | None = None
    ) -> Value:
        """Add a model input; `span` is the inclusive range of valid integers."""
        self._model.graph.input.append(make_tensor_value_info(name, dtype, shape))
        if span is not None:
            self.properties[f"dnnp.input_range.{name}"] = f"{span[0]},{span[1]}"
        return self._remember(Value(name, dtype, shape))

    def weight(
        self, name: str, shape: Shape, fill: Fill | None = None, *, trained: bool = True
    ) -> Value:
        """Add a weight of the current module, or return it when it exists already."""
        full = ".".join([*self._scopes, name])
        if full not in self._weights:
            fill = normal(0.02) if fill is None else fill
            self._weights[full] = Weight(full, self.dtype, shape, fill, trained)
        return self._remember(Value(full, self.dtype, shape))

    def const(self, content: ArrayLike, dtype: int | None = None) -> Value:
        """Add a small constant; `dtype` is that of the data unless given."""
        array = np.asarray(content)
        if dtype is not None:
            array = array.astype(tensor_dtype_to_np_dtype(dtype))
        kind = np_dtype_to_tensor_dtype(array.dtype)
        key = (kind, array.shape, array.tobytes())
        if self.constant_nodes and len(self._graphs) == 1:
            tensor = onnx.TensorProto(data_type=kind, dims=array.shape, raw_data=key[2])
            (made,) = self._add("Constant", (), [(kind, array.shape)], {"value": tensor})
            return self._remember(made._replace(const=array))
        if key not in self._constants:
            value = Value(f"constant_{len(self._constants)}", kind, array.shape, array)
            self._model.graph.initializer.add(
                name=value.name, data_type=kind, dims=array.shape, raw_data=key[2]
            )
            self._constants[key] = self._remember(value)
        return self._constants[key]

    def ints(self, content: Sequence[int]) -> Value:
        """Add a constant vector of int64."""
        return self.const(np.array(content, dtype=np.int64))

    def output(self, name: str, value: Value) -> None:
        """Make `value`, the result of a node, a model output called `name`."""
        self._model.graph.output.append(make_tensor_value_info(name, value.dtype, value.shape))
        self._outputs[value.name] = name

    # ---- nodes -----------------------------------------------------------------------------

    def op_n(self, op: str, *inputs: Value, outputs: int, **attributes: Any) -> list[Value]:
        """Add a node and return its first `outputs` results."""
        return self._add(
            op, inputs, results(op, self.opset, inputs, attributes, outputs), attributes
        )

    def op(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        """Add a node and return its first result; further results are left out."""
        return self.op_n(op, *inputs, outputs=1, **attributes)[0]

    def _add(
        self,
        op: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[int, Shape]],
        attributes: dict[str, Any],
    ) -> list[Value]:
        name = self._node_name(op)
        graph = self._graphs[-1]
        node = graph.node.add(op_type=op, name=name, input=[value.name for value in inputs])
        for key, attribute in attributes.items():
            node.attribute.append(make_attribute(key, attribute))
        values = []
        for position, (dtype, shape) in enumerate(results):
            value = Value(f"{name}_output_{position}", dtype, shape)
            node.output.append(value.name)
            if self.planning:
                graph.value_info.append(make_tensor_value_info(value.name, dtype, shape))
            values.append(self._remember(value))
        return values

    def _operands(self, left: Operand, right: Operand) -> tuple[Value, Value]:
        if not isinstance(left, Value):
            if not isinstance(right, Value):
                raise TypeError("one operand must be a tensor")
            return self.const(left, right.dtype), right
        return left, right if isinstance(right, Value) else self.const(right, left.dtype)

    def add(self, left: Operand, right: Operand) -> Value:
        """Add the node ``left + right``."""
        return self.op("Add", *self._operands(left, right))

    def sub(self, left: Operand, right: Operand) -> Value:
        """Add the node ``left - right``."""
        return self.op("Sub", *self._operands(left, right))

    def mul(self, left: Operand, right: Operand) -> Value:
        """Add the node ``left * right``."""
        return self.op("Mul", *self._operands(left, right))

    def div(self, left: Operand, right: Operand) -> Value:
        """Add the node ``left / right``."""
        return self.op("Div", *self._operands(left, right))

    def matmul(self, left: Value, right: Value) -> Value:
        """Add a matrix product."""
        return self.op("MatMul", left, right)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Add a Reshape to a fixed shape, one -1 allowed."""
        return self.op("Reshape", value, self.ints(shape))

    def transpose(self, value: Value, *perm: int) -> Value:
        """Add a Transpose."""
        return self.op("Transpose", value, perm=perm)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Add a Concat."""
        return self.op("Concat", *values, axis=axis)

    def split(self, value: Value, parts: int, axis: int) -> list[Value]:
        """Add a Split into equal parts."""
        sizes = [value.shape[axis] // parts] * parts
        return self.op_n("Split", value, self.ints(sizes), outputs=parts, axis=axis)

    def slice(self, value: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
        """Add a Slice along one axis."""
        bounds = [self.ints([item]) for item in (start, end, axis, step)]
        return self.op("Slice", value, *bounds)

    def gather(self, value: Value, indices: Value, axis: int = 0) -> Value:
        """Add a Gather."""
        return self.op("Gather", value, indices, axis=axis)

    def unsqueeze(self, value: Value, *axes: int) -> Value:
        """Add an Unsqueeze."""
        return self.op("Unsqueeze", value, self.ints(axes))

    def softmax(self, value: Value) -> Value:
        """Add a Softmax over the last axis."""
        return self.op("Softmax", value, axis=-1)

    def reduce(self, op: str, value: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """Add a reduction; the axes are an attribute before opset 18, then an input."""
        if self.opset < 18 and op != "ReduceSum":
            return self.op(op, value, axes=list(axes), keepdims=int(keepdims))
        return self.op(op, value, self.ints(axes), keepdims=int(keepdims))

    # ---- control flow ----------------------------------------------------------------------

    def _subgraph(self, name: str, inputs: Sequence[Value], body: Body) -> onnx.GraphProto:
        graph = onnx.GraphProto(name=name)
        for value in inputs:
            graph.input.append(make_tensor_value_info(value.name, value.dtype, value.shape))
            self._remember(value)
        self._graphs.append(graph)
        with self.scope(name):
            results = body(inputs)
        self._graphs.pop()
        for value in results:
            graph.output.append(make_tensor_value_info(value.name, value.dtype, value.shape))
        return graph

    def if_(self, condition: Value, then: Body, otherwise: Body) -> list[Value]:
        """Add an If. Both bodies may use any outer tensor and return the same types."""
        branches = {
            "then_branch": self._subgraph("then_branch", [], then),
            "else_branch": self._subgraph("else_branch", [], otherwise),
        }
        results = [
            (output.type.tensor_type.elem_type, self.values[output.name].shape)
            for output in branches["then_branch"].output
        ]
        return self._add("If", [condition], results, branches)

    def loop(self, trips: Value, state: Sequence[Value], body: Body) -> list[Value]:
        """Add a Loop. `body` gets the iteration number and the state, returns go-on and state."""
        prefix = f"{self._path}/body"
        number = Value(f"{prefix}/iteration", INT64, ())
        go_on = Value(f"{prefix}/condition", BOOL, ())
        carried = [
            Value(f"{prefix}/state_{position}", value.dtype, value.shape)
            for position, value in enumerate(state)
        ]
        graph = self._subgraph(
            "body", [number, go_on, *carried], lambda values: body([values[0], *values[2:]])
        )
        results = [(value.dtype, value.shape) for value in state]
        return self._add("Loop", [trips, ABSENT, *state], results, {"body": graph})

    # ---- the end ---------------------------------------------------------------------------

    def build(self) -> Sample:
        """Return the finished model."""
        _rename(self._model.graph, self._outputs)
        for old, new in self._outputs.items():
            self.values[new] = self.values.pop(old)._replace(name=new)
        if self.planning:
            leave_only(self._model.graph.value_info, lambda info: info.name not in self._outputs)
        weights = tuple(self._weights.values())
        sample = Sample(self._model, weights, self.values, self.seed, self.planning)
        self.properties["dnnp.parameters"] = str(sample.parameters)
        if not self.planning:
            self.properties["dnnp.seed"] = str(self.seed)
        for key in sorted(self.properties):
            self._model.metadata_props.add(key=key, value=self.properties[key])
        return sample
