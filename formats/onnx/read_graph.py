"""The operators of an ONNX main graph: what each reads, stored tensors, a topological order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import kahn
from dnnp.core.model.text import called
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.onnx.scope import captures, domain_of
from dnnp.formats.onnx.value_types import UNKNOWN, ValueType, dtype_name, tensor_type

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_LONGEST_SHAPE = 64
"""Elements of the longest shape tensor that is read."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A node that computes something."""

    index: int
    """Position in `nodes`."""
    nodes: Sequence[onnx.NodeProto]
    """All nodes of the main graph. What Python holds of a message that is kept, and of fields
    that were looked at, takes more memory than the message."""
    reads: tuple[str, ...]
    """Names of its inputs, then of its captures; no empty names, no repeats."""
    captures: tuple[str, ...]
    """Those of `reads` that only bodies of the node read."""
    writes: tuple[str, ...]
    """Names of its outputs, without empty ones."""
    has_bodies: bool = False
    """True if it holds subgraphs, as `If`, `Loop` and `Scan` do."""

    @property
    def proto(self) -> onnx.NodeProto:
        """The node of the model."""
        return self.nodes[self.index]

    def __str__(self) -> str:
        op, name = self.proto.op_type, self.proto.name
        return f"node {self.index} '{called(op, name, self.writes)}'" + f" ({op})" * bool(name)


@dataclass
class OnnxGraph:
    """The parts of a main graph."""

    inputs: list[str] = field(default_factory=list)
    """Graph inputs that are no initializers."""
    outputs: list[str] = field(default_factory=list)
    parameters: dict[str, ValueType] = field(default_factory=dict)
    """Initializers, and what `ConstantOfShape` makes of a static shape."""
    constants: dict[str, ValueType] = field(default_factory=dict)
    """Types of the values of `Constant` nodes."""
    weight_nodes: list[onnx.NodeProto] = field(default_factory=list)
    """The nodes that make such parameters and constants."""
    operators: list[Operator] = field(default_factory=list)
    """All other nodes, in a topological order: the file's, if it is one."""
    sorted: bool = True
    """True if the file's order is topological."""


def read_graph(model: onnx.ModelProto) -> OnnxGraph:
    """Take a main graph apart.

    `Constant` nodes, and `ConstantOfShape` nodes of a static shape, are weights and not
    operators.

    Raises
    ------
    FormatError
        A name defined twice or nowhere, a cycle, no operators, text that is not UTF-8.
    """
    graph = model.graph
    found = OnnxGraph()
    local = {(domain_of(f.domain), f.name) for f in model.functions}
    shapes = _initializers(graph, found)
    declared = [value.name for value in graph.input]
    _refuse_repeats(declared, "input")
    found.inputs = [name for name in declared if name not in found.parameters]
    defined: dict[str, int] = dict.fromkeys(found.inputs, -1)
    defined.update(dict.fromkeys(found.parameters, -1))
    names: dict[str, str] = {}
    for index, node in enumerate(graph.node):
        operator = _operator(index, graph.node, node, names)
        makes_weight = node.op_type in ("Constant", "ConstantOfShape") and (
            domain_of(node.domain) == "" and ("", node.op_type) not in local
        )
        if makes_weight and _take_weight(node, found, shapes):
            position = -1
            found.weight_nodes.append(node)
        else:
            position = len(found.operators)
            found.operators.append(operator)
        for name in operator.writes:
            if name in defined:
                raise FormatError(f"{operator} writes '{name}', which is already defined")
            defined[name] = position
    if not found.operators:
        raise FormatError("the graph holds no operators")
    found.outputs = list(dict.fromkeys(value.name for value in graph.output))
    for name in found.outputs:
        if name not in defined:
            raise FormatError(f"output '{name}' of the graph is produced by nothing")
    _order(found, defined)
    return found


def int64s(tensor: onnx.TensorProto) -> tuple[int, ...] | None:
    """Values of a short integer tensor that the file holds; None for any other."""
    if tensor.data_type != onnx.TensorProto.INT64 or (
        tensor.data_location == onnx.TensorProto.EXTERNAL
    ):
        return None
    if tensor.int64_data:
        return tuple(tensor.int64_data) if len(tensor.int64_data) <= _LONGEST_SHAPE else None
    raw = tensor.raw_data
    if len(raw) % 8 or len(raw) > 8 * _LONGEST_SHAPE:
        return None
    return tuple(
        int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, len(raw), 8)
    )


def _initializers(graph: onnx.GraphProto, found: OnnxGraph) -> dict[str, onnx.TensorProto]:
    """Types of all initializers into `found`; returns the dense ones by name."""
    dense = {tensor.name: tensor for tensor in graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    names = [tensor.name for tensor in graph.initializer]
    names += [tensor.values.name for tensor in graph.sparse_initializer]
    _refuse_repeats(names, "initializer")
    for name, tensor in dense.items():
        found.parameters[name] = _stored_type(name, tensor.data_type, tensor.dims)
    for name, held in sparse.items():
        found.parameters[name] = _stored_type(name, held.values.data_type, held.dims)
    return dense


def _stored_type(name: str, elem_type: int, dims: Sequence[int] | None) -> ValueType:
    """Type of a weight; a number of bytes that is not known cannot be priced.

    FormatError: an element type that this version of onnx does not know, or a size beyond all
    bounds.
    """
    if dtype_name(elem_type) is None:
        raise FormatError(f"initializer '{name}': unknown element type {elem_type}")
    try:
        return tensor_type(elem_type, None if dims is None else tuple(dims))
    except FormatError as error:
        raise FormatError(f"initializer '{name}': {error.reason}") from None


def _refuse_repeats(names: list[str], what: str) -> None:
    _refuse_bytes(names, f"the name of an {what}")
    if len(set(names)) < len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise FormatError(f"{what} '{name}' is defined twice")
            seen.add(name)


def _refuse_bytes(texts: Iterable[object], what: str) -> None:
    """Protobuf hands over as bytes what is not UTF-8."""
    if not set(map(type, texts)) <= {str}:
        raise FormatError(f"{what} is not UTF-8")


def _operator(
    index: int, nodes: Sequence[onnx.NodeProto], node: onnx.NodeProto, names: dict[str, str]
) -> Operator:
    """An operator; `names` holds each name once, however many nodes read it."""
    written = tuple(filter(None, node.output))
    if bytes in map(type, (node.name, node.op_type, node.domain, *written)):
        raise FormatError(f"a name in node {index} is not UTF-8")
    reads = tuple(dict.fromkeys([names.setdefault(name, name) for name in node.input if name]))
    for attribute in node.attribute:
        if attribute.type in _GRAPHS or attribute.HasField("g"):
            captured = tuple(name for name in captures(node) if name not in reads)
            return Operator(index, nodes, reads + captured, captured, written, True)
    return Operator(index, nodes, reads, (), tuple(map(names.setdefault, written, written)))


def _take_weight(
    node: onnx.NodeProto, found: OnnxGraph, shapes: dict[str, onnx.TensorProto]
) -> bool:
    """Put the output of a weight-making node into `found`; False if it is an operator."""
    if len(node.output) != 1 or not node.output[0]:
        return False
    name = node.output[0]
    if node.op_type == "Constant":
        found.constants[name] = _constant_type(node)
        for attribute in node.attribute:
            if attribute.name == "value":
                shapes[name] = attribute.t
            elif attribute.name == "value_ints":
                shapes[name] = onnx.TensorProto(
                    data_type=onnx.TensorProto.INT64,
                    dims=[len(attribute.ints)],
                    int64_data=attribute.ints,
                )
        return True
    if len(node.input) != 1 or node.input[0] not in shapes:
        return False
    shape = int64s(shapes[node.input[0]])
    held = (attribute.t.data_type for attribute in node.attribute if attribute.name == "value")
    elem_type = next(held, int(onnx.TensorProto.FLOAT))
    found.parameters[name] = _stored_type(name, elem_type, shape)
    return True


def _constant_type(node: onnx.NodeProto) -> ValueType:
    """Type of what a `Constant` holds."""
    name = node.output[0]
    for attribute in node.attribute:
        match attribute.name:
            case "value":
                return _stored_type(name, attribute.t.data_type, attribute.t.dims)
            case "sparse_value":
                held = attribute.sparse_tensor
                return _stored_type(name, held.values.data_type, held.dims)
            case "value_int":
                return tensor_type(onnx.TensorProto.INT64, ())
            case "value_ints":
                return tensor_type(onnx.TensorProto.INT64, (len(attribute.ints),))
            case "value_float":
                return tensor_type(onnx.TensorProto.FLOAT, ())
            case "value_floats":
                return tensor_type(onnx.TensorProto.FLOAT, (len(attribute.floats),))
            case "value_string":
                return tensor_type(onnx.TensorProto.STRING, ())
            case "value_strings":
                return tensor_type(onnx.TensorProto.STRING, (len(attribute.strings),))
    return UNKNOWN


def _order(found: OnnxGraph, defined: dict[str, int]) -> None:
    """Check that every name read is defined, and sort the operators if the file did not."""
    for position, operator in enumerate(found.operators):
        for name in operator.reads:
            producer = defined.get(name)
            if producer is None:
                raise FormatError(f"{operator} reads {name!r}, which nothing produces")
            if producer >= position:
                found.sorted = False
    if found.sorted:
        return
    edges = [
        (defined[name], position)
        for position, operator in enumerate(found.operators)
        for name in operator.reads
        if defined[name] >= 0
    ]
    cycle = find_cycle(edges, len(found.operators))
    if cycle:
        shown = " -> ".join(str(found.operators[position]) for position in cycle[:8])
        raise FormatError(f"the graph has a cycle: {shown}")
    tail, head = np.array(edges).T
    order = kahn(tail, head, len(found.operators))[0]  # Of those ready, the first in the file.
    found.operators = [found.operators[position] for position in order.tolist()]
