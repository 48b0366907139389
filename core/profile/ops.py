"""Work and traffic of one operator, what it holds (bodies and functions) included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from dnnp.core.profile.call import BytesOf, Call, Cost, Shape, ShapeOf, ShapeUnknownError
from dnnp.core.profile.table import CONTROL_FLOW, RULES

DtypeOf = Callable[[str], int]
ConstantOf = Callable[[str], "int | None"]

# Bytes an element, by TensorProto.DataType from FLOAT = 1; small types are packed.
_ITEM_BYTES = (4, 1, 1, 2, 2, 4, 8, 16, 1, 2, 8, 4, 8, 8, 16, 2, 1, 1, 1, 1, 0.5, 0.5, 0.5, 1)
ITEM_BYTES: dict[int, float] = dict(enumerate((*_ITEM_BYTES, 0.25, 0.25), 1))
_FLOAT, _INT64 = 1, 7
_LONGEST_VECTOR = 10_000
_GUESS = {4.0: _FLOAT, 8.0: _INT64, 2.0: 10, 1.0: 9, 0.5: 22, 16.0: 8}


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model around a node."""

    functions: Mapping[tuple[str, str, str], Any] = field(default_factory=dict)
    """(domain, name, overload) -> `FunctionProto`."""
    opset_import: Sequence[Any] = ()
    """`ModelProto.opset_import`."""
    constant_of: ConstantOf | None = None
    """Name -> value of an integer scalar that is an initializer or a `Constant`."""
    memo: dict[Any, Any] = field(default_factory=dict, compare=False)
    """Costs of functions already priced, by signature."""

    @classmethod
    def of(cls, model: Any, constant_of: ConstantOf | None = None) -> ModelFacts:
        """Facts of a `ModelProto`; constants are read from its main graph unless given."""
        functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
        if constant_of is None:
            constant_of = scalar_constants(model.graph.initializer, model.graph.node).get
        return cls(functions, list(model.opset_import), constant_of)


@dataclass(frozen=True)
class Scope:
    """Name lookups valid at one place of a model."""

    shape_of: ShapeOf
    bytes_of: BytesOf
    dtype_of: DtypeOf | None = None
    constant_of: ConstantOf | None = None

    def dtype(self, name: str) -> int:
        """Element type of a tensor: as told, or else guessed from its bytes an element."""
        if self.dtype_of is not None:
            return self.dtype_of(name)
        shape = self.shape_of(name)
        size = prod(shape) if shape else 1
        return _GUESS.get(self.bytes_of(name) / size, _FLOAT) if size else _FLOAT


_NOWHERE = Scope(lambda _: None, lambda _: 0.0)
"""Scope of a function, which sees nothing of its caller."""


def scalar_constants(initializers: Iterable[Any], nodes: Iterable[Any]) -> dict[str, int]:
    """Integer scalars among initializers and `Constant` nodes: name -> value."""
    found: dict[str, int] = {}
    for tensor in initializers:
        value = _scalar(tensor)
        if value is not None:
            found[tensor.name] = value
    for node in nodes:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    value = _scalar(attribute.t)
                elif attribute.name == "value_int":
                    value = int(attribute.i)
                else:
                    continue
                if value is not None:
                    found[node.output[0]] = value
    return found


def _scalar(tensor: Any) -> int | None:
    if tensor.data_type != _INT64 or prod(tensor.dims) != 1:
        return None
    if tensor.int64_data:
        return int(tensor.int64_data[0])
    if len(tensor.raw_data) == 8:
        return int.from_bytes(tensor.raw_data, "little", signed=True)
    return None


def tensor_type(type_proto: Any) -> tuple[int, Shape | None] | None:
    """(element type, shape or None) of a `TypeProto` that is a tensor; None otherwise."""
    if not type_proto.HasField("tensor_type"):
        return None
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dims = tensor.shape.dim
    if any(not d.HasField("dim_value") or d.dim_value < 0 for d in dims):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(d.dim_value for d in dims)


def body_scope(
    graph: Any, outer: Scope, facts: ModelFacts, bound: Mapping[str, tuple[int, Shape | None]]
) -> Scope:
    """Scope inside a body: its own names first, then the outer ones.

    `bound` gives (element type, shape) of inputs as known from outside; it fills in what
    the body does not declare. Where the body lacks shapes of its own tensors, ONNX shape
    inference is run on it.
    """
    types: dict[str, tuple[int, Shape | None]] = dict(bound)
    for tensor in graph.initializer:
        types[tensor.name] = (tensor.data_type, tuple(tensor.dims))
    for info in (*graph.input, *graph.value_info, *graph.output):
        declared = tensor_type(info.type)
        if declared is not None and (declared[1] is not None or info.name not in types):
            types[info.name] = declared
    if any(_unshaped(name, types) for node in graph.node for name in node.output):
        for name, inferred in infer(graph.node, types, outer, facts).items():
            if inferred[1] is not None:
                types[name] = inferred
    constants = scalar_constants(graph.initializer, graph.node)
    return _layered(types, constants, outer)


def _unshaped(name: str, types: Mapping[str, tuple[int, Shape | None]]) -> bool:
    return bool(name) and (name not in types or types[name][1] is None)


def _layered(
    types: Mapping[str, tuple[int, Shape | None]], constants: Mapping[str, int], outer: Scope
) -> Scope:
    def shape_of(name: str) -> Shape | None:
        return types[name][1] if name in types else outer.shape_of(name)

    def bytes_of(name: str) -> float:
        if name in types:
            dtype, shape = types[name]
            return prod(shape) * ITEM_BYTES.get(dtype, 4) if shape is not None else 0.0
        return outer.bytes_of(name)

    def dtype_of(name: str) -> int:
        return types[name][0] if name in types else outer.dtype(name)

    def constant_of(name: str) -> int | None:
        if name in constants:
            return constants[name]
        return outer.constant_of(name) if outer.constant_of is not None else None

    return Scope(shape_of, bytes_of, dtype_of, constant_of)


def function_scope(
    function: Any,
    nodes: Sequence[Any],
    inputs: Sequence[tuple[int, Shape | None]],
    facts: ModelFacts,
) -> Scope:
    """Scope inside a local function called with inputs of the given types."""
    types = dict(zip(function.input, inputs, strict=False))
    for info in getattr(function, "value_info", ()):
        declared = tensor_type(info.type)
        if declared is not None and _unshaped(info.name, types):
            types[info.name] = declared
    inner = ModelFacts(facts.functions, [*function.opset_import, *facts.opset_import])
    for name, inferred in infer(nodes, types, _NOWHERE, inner).items():
        if _unshaped(name, types):
            types[name] = inferred
    return _layered(types, scalar_constants((), nodes), _NOWHERE)


def infer(
    nodes: Sequence[Any],
    types: Mapping[str, tuple[int, Shape | None]],
    outer: Scope,
    facts: ModelFacts,
) -> dict[str, tuple[int, Shape | None]]:
    """Types of everything that `nodes` write, by ONNX shape inference; {} if it fails."""
    import onnx
    from google.protobuf.message import Error as ProtobufError

    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in _reads(node))
    graph = onnx.GraphProto(name="body")
    graph.node.extend(nodes)
    for name in read:
        if not name or name in made:
            continue
        if name in types:
            dtype, shape = types[name]
        elif outer.shape_of(name) is not None:
            dtype, shape = outer.dtype(name), outer.shape_of(name)
        else:
            continue
        graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, shape))
    opsets = {o.domain: o for o in reversed(facts.opset_import)}
    if not opsets:
        opsets = {"": onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())}
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, graph=graph)
    model.opset_import.extend(opsets.values())
    model.functions.extend(facts.functions.values())
    # With values, ONNX follows each element of a vector by itself.
    long = any(
        len(dims := info.type.tensor_type.shape.dim) == 1 and dims[0].dim_value > _LONGEST_VECTOR
        for info in graph.input
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=not long)
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        ProtobufError,
        RuntimeError,
        ValueError,
    ):
        return {}
    found: dict[str, tuple[int, Shape | None]] = {}
    for info in inferred.graph.value_info:
        declared = tensor_type(info.type)
        if declared is not None and info.name in made:
            found[info.name] = declared
    return found


def _reads(node: Any) -> list[str]:
    """Names a node reads, those inside its bodies included."""
    names = list(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                names.extend(_reads(inner))
    return names


_NO_FACTS = ModelFacts()
_DEEPEST = 32
"""Nesting of bodies and functions that is followed; a recursive function ends here."""

ENDLESS = 2**31 - 1
"""A trip count from which on a loop ends by its condition alone."""

_MOST = 1e60
"""More work than any model has: shapes that make a formula say so are wrong."""

# What a formula meets in a model whose shapes contradict the operator's definition.
_MISFIT = (ShapeUnknownError, IndexError, ValueError, ZeroDivisionError, OverflowError)


def node_cost(
    node: Any,
    shape_of: ShapeOf,
    bytes_of: BytesOf,
    dtype_of: DtypeOf | None = None,
    facts: ModelFacts = _NO_FACTS,
) -> Cost:
    """Price one node of a model.

    Parameters
    ----------
    node
        The `NodeProto`.
    shape_of
        Tensor name to shape (a tuple of ints), None where it is unknown.
    bytes_of
        Tensor name to bytes, 0 where unknown.
    dtype_of
        Tensor name to `TensorProto.DataType`; only bodies and functions need it, and guess
        from the bytes an element without it.
    facts
        Local functions, opsets and integer constants of the model.

    Returns
    -------
    Cost
        `If` costs the most of any branch, `Loop` and `Scan` their body times the trip count (1,
        and not known, where it is not static), a local function the sum of its body. Operators
        without a rule, and nodes without the shapes that their rule needs, have `known=False`
        and the bytes of all their tensors.
    """
    cost = _by_rule(node, shape_of, bytes_of, facts.constant_of)
    if cost is None:
        scope = Scope(shape_of, bytes_of, dtype_of, facts.constant_of)
        cost = _composite(node, scope, facts, 0)
    return cost


def _by_rule(
    node: Any, shape_of: ShapeOf, bytes_of: BytesOf, constant_of: ConstantOf | None
) -> Cost | None:
    """Price a node by the table; None where it has no entry."""
    domain = node.domain
    rule = RULES.get(
        node.op_type if not domain or domain == "ai.onnx" else f"{domain}:{node.op_type}"
    )
    if rule is None:
        return None
    call = Call(node, shape_of, bytes_of, constant_of)
    try:
        flop, moved = float(rule.flop(call)), rule.bytes(call)
    except _MISFIT:
        return Cost(0.0, call.bytes_all(), False)
    if not 0.0 <= flop <= _MOST or moved < 0:
        return Cost(0.0, call.bytes_all(), False)
    return Cost(flop, moved, True)


def _composite(node: Any, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """Price control flow, local functions, and what nothing is known about."""
    call = Call(node, scope.shape_of, scope.bytes_of, scope.constant_of)
    if depth < _DEEPEST:
        try:
            if node.domain in ("", "ai.onnx") and node.op_type in CONTROL_FLOW:
                return _CONTROL[node.op_type](call, scope, facts, depth + 1)
            function = _function(node, facts)
            if function is not None:
                return _call_function(function, call, scope, facts, depth + 1)
        except _MISFIT:
            pass
    return Cost(0.0, call.bytes_all(), False)


def _function(node: Any, facts: ModelFacts) -> Any:
    key = (node.domain, node.op_type, getattr(node, "overload", ""))
    return facts.functions.get(key)


def _cost_in(node: Any, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """Price a node of a body."""
    cost = _by_rule(node, scope.shape_of, scope.bytes_of, scope.constant_of)
    return _composite(node, scope, facts, depth) if cost is None else cost


def _body_cost(graph: Any, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    return _sum([_cost_in(node, scope, facts, depth) for node in graph.node])


def _sum(costs: Sequence[Cost], times: int = 1) -> Cost:
    return Cost(
        times * sum(cost.flop for cost in costs),
        times * sum(cost.bytes for cost in costs),
        all(cost.known for cost in costs),
    )


def _branches(call: Call, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """If: the most work and the most traffic of any branch."""
    costs = []
    for attribute in call.node.attribute:
        if attribute.HasField("g"):
            inner = body_scope(attribute.g, scope, facts, {})
            costs.append(_body_cost(attribute.g, inner, facts, depth))
    if not costs:
        raise ShapeUnknownError
    return Cost(
        max(cost.flop for cost in costs),
        max(cost.bytes for cost in costs),
        all(cost.known for cost in costs),
    )


def _body(call: Call) -> Any:
    """The subgraph of a node that must have one."""
    found = call.attribute("body")
    if found is None:
        raise ShapeUnknownError
    return found.g


def _loop(call: Call, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """Loop: trip count times the body; results written once.

    The count is a constant at input 0. One that is none, or without end, as a `while` has, is not
    known: then one trip is priced, and the cost is not known either.
    """
    body = _body(call)
    trips = call.scalar(0)
    if trips is not None and trips >= ENDLESS:
        trips = None
    bound: dict[str, tuple[int, Shape | None]] = {}
    for info, name in zip(body.input[2:], call.inputs[2:], strict=False):
        if name:
            bound[info.name] = (scope.dtype(name), scope.shape_of(name))
    inner = body_scope(body, scope, facts, bound)
    cost = _sum([_body_cost(body, inner, facts, depth)], 1 if trips is None else max(trips, 0))
    return Cost(cost.flop, cost.bytes + call.bytes_out(), cost.known and trips is not None)


def _scan(call: Call, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """Scan: length of the scanned axis times the body; results written once."""
    body = _body(call)
    scanned = call.integer("num_scan_inputs", 1)
    states = len(body.input) - scanned
    first = len(call.inputs) - len(body.input)  # opset 8 puts sequence_lens before the states
    axes = call.integers("scan_input_axes")
    trips = 1
    bound: dict[str, tuple[int, Shape | None]] = {}
    for i, info in enumerate(body.input):
        name = call.inputs[first + i]
        shape = scope.shape_of(name)
        if i >= states and shape is not None:
            axis = axes[i - states] if axes else first
            trips = shape[axis]
            axis %= len(shape)
            shape = shape[:axis] + shape[axis + 1 :]
        bound[info.name] = (scope.dtype(name), shape)
    inner = body_scope(body, scope, facts, bound)
    cost = _sum([_body_cost(body, inner, facts, depth)], trips)
    return Cost(cost.flop, cost.bytes + call.bytes_out(), cost.known)


def _map(call: Call, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """SequenceMap: the length of a sequence is not static; its body once."""
    body = _body(call)
    return _body_cost(body, body_scope(body, scope, facts, {}), facts, depth)


_CONTROL = {"If": _branches, "Loop": _loop, "Scan": _scan, "SequenceMap": _map}


def _call_function(function: Any, call: Call, scope: Scope, facts: ModelFacts, depth: int) -> Cost:
    """A local function: the sum of its body under the types of this call's inputs."""
    inputs = [
        (scope.dtype(name), scope.shape_of(name)) if name else (0, None) for name in call.inputs
    ]
    given = {attribute.name: attribute for attribute in function.attribute_proto}
    given.update({attribute.name: attribute for attribute in call.node.attribute})
    signature = (
        (function.domain, function.name, getattr(function, "overload", "")),
        tuple(inputs),
        tuple(given[name].SerializeToString(deterministic=True) for name in sorted(given)),
    )
    if signature not in facts.memo:
        facts.memo[signature] = Cost(0.0, 0.0, False)  # what a recursive call finds
        nodes = [_substituted(node, given) for node in function.node]
        inner = function_scope(function, nodes, inputs, facts)
        costs = [_cost_in(node, inner, facts, depth) for node in nodes]
        facts.memo[signature] = _sum(costs)
    cost: Cost = facts.memo[signature]
    return cost if cost.known else Cost(cost.flop, cost.bytes or call.bytes_all(), False)


def _substituted(node: Any, given: dict[str, Any]) -> Any:
    """A copy of a function's node with attribute references replaced by their values."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            added = copy.attribute.add()
            added.CopyFrom(given[attribute.ref_attr_name])
            added.name = attribute.name
    return copy
