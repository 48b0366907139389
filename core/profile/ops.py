"""Work and traffic of one operator: the entry to the table, bodies and functions included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnp.core.profile.bodies import (
    ConstantOf,
    DtypeOf,
    ModelFacts,
    Scope,
    body_scope,
    function_scope,
)
from dnnp.core.profile.call import BytesOf, Call, Cost, Shape, ShapeOf, ShapeUnknownError
from dnnp.core.profile.table import CONTROL_FLOW, RULES

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
