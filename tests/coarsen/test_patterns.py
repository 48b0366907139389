"""Pattern, absorb and fold rules, and the bundled rules of ONNX Runtime."""

from __future__ import annotations

import orjson
import pytest

from dnnp.core.model.rules import RuleSet
from dnnp.formats.inputs.rules import load_rules, parse_rules
from support.op_graphs import groups_by, op_stream

ORT = load_rules("ort-cpu")


def rules(*entries: dict) -> RuleSet:
    """A rule set of rules written as in a file; without a name they are called `r`."""
    table = {"name": "test", "rules": [{"name": "r", **e} for e in entries]}
    return parse_rules(orjson.dumps(table), "test.json")


def pattern(*lines: str, where: tuple[str, ...] = (), **fields: str) -> RuleSet:
    return rules({"pattern": list(lines), "where": list(where), **fields})


def test_a_fork_inside_is_fused():
    silu = pattern("s = Sigmoid(x)", "Mul(x, s)")
    assert groups_by(op_stream("a = A(x)", "s = Sigmoid(a)", "m = Mul(s, a)"), silu) == {"s m": "r"}


def test_a_tensor_must_be_the_same_everywhere():
    silu = pattern("s = Sigmoid(x)", "Mul(x, s)")
    assert groups_by(op_stream("s = Sigmoid(x)", "m = Mul(y, s)"), silu) == {}


def test_what_others_read_is_not_fused():
    silu = pattern("s = Sigmoid(x)", "Mul(x, s)")
    assert groups_by(op_stream("s = Sigmoid(x)", "m = Mul(x, s)", "n = N(s)"), silu) == {}
    assert groups_by(op_stream("s = Sigmoid(x)", "m = Mul(x, s)", outputs="s"), silu) == {}


def test_one_tensor_read_twice():
    square = pattern("a = A(x)", "Mul(a, a)")
    assert groups_by(op_stream("a = A(x)", "m = Mul(a, a)"), square) == {"a m": "r"}
    assert groups_by(op_stream("a = A(x)", "m = Mul(a, y)"), square) == {}


def test_only_some_operators_take_inputs_in_any_order():
    for op, fused in (("Add", True), ("Mul", True), ("Sub", False), ("Div", False)):
        found = groups_by(
            op_stream("a = A(x)", f"b = {op}(y, a)"), pattern("a = A(x)", f"{op}(a, y)")
        )
        assert bool(found) == fused


def test_operand_orders_are_searched():
    # Only one of the four combinations of orders fits.
    lines = ("p = Mul(x, y)", "q = Add(z, p)", "r = R(q, y, z)")
    rule = pattern("p = Mul(b, a)", "q = Add(p, c)", "R(q, b, c)")
    assert groups_by(op_stream(*lines), rule) == {"p q r": "r"}


@pytest.mark.parametrize(
    ("argument", "shape", "fused"),
    [
        ("@weight", None, True),
        ("@weight", (3, 4), True),
        ("@vector", (4,), True),
        ("@vector", (1, 4, 1), True),
        ("@vector", (3, 4), False),
        ("@vector", (1,), False),
        ("@vector", None, False),
        ("@scalar", (), True),
        ("@scalar", (1, 1), True),
        ("@scalar", (2,), False),
        ("@scalar", None, False),
    ],
)
def test_constants(argument, shape, fused):
    rule = pattern("a = A(x)", f"Add(a, {argument})")
    stream = op_stream("a = A(x)", "b = Add(a, w)", shapes={} if shape is None else {"w": shape})
    assert bool(groups_by(stream, rule)) == fused
    assert groups_by(op_stream("a = A(x)", "b = Add(a, y)", shapes={"y": (4,)}), rule) == {}


def test_number_of_inputs():
    lines = ("a = A(x)", "b = B(a, y)")
    assert groups_by(op_stream(*lines), pattern("a = A(x)", "B(a, z)"))
    assert groups_by(op_stream(*lines), pattern("a = A(...)", "B(a, ...)"))
    assert not groups_by(op_stream(*lines), pattern("a = A(x)", "B(a)"))
    assert not groups_by(op_stream(*lines), pattern("a = A(x)", "B(a, z, z)"))


def test_any_operator():
    assert groups_by(op_stream("a = A(x)", "b = B(a)"), pattern("a = *(...)", "B(a)")) == {
        "a b": "r"
    }
    assert groups_by(op_stream("a = A(x)", "b = B(a)"), pattern("a = A(...)", "*(a)")) == {
        "a b": "r"
    }


def test_shared_operators_stay_outside():
    lines = ("d = D(x)", "e = E(y)", "a = A(d, e)", "b = A(d, z)")
    rule = pattern("shared p = D(...)", "shared q = E(...)", "A(p, q)")
    assert groups_by(op_stream(*lines), rule) == {"e a": "r"}
    assert groups_by(op_stream(*lines[:3]), rule) == {"d e a": "r"}


def test_repeated_inputs():
    rule = pattern("d = D(...)", "c = C(d*)", "Q(c)")
    lines = ("d1 = D(x)", "d2 = D(y)", "d3 = D(z)", "c = C(d1, d2, d3)", "q = Q(c)")
    assert groups_by(op_stream(*lines), rule) == {"d1 d2 d3 c q": "r"}
    other = ("d1 = D(x)", "d2 = E(y)", "c = C(d1, d2)", "q = Q(c)")
    assert groups_by(op_stream(*other), rule) == {}


def test_conditions_on_shapes():
    stream = op_stream(
        "a = A(x)", "b = B(a, y)", shapes={"x": (2, 3, 4), "a": (2, 4, 3), "y": (2, 4, 3)}
    )
    for condition, holds in (
        ("rank(a) = 3", True),
        ("rank(a) = 2", False),
        ("rank(x) = 3", True),
        ("shape(a) = shape(y)", True),
        ("shape(a) = shape(x)", False),
        ("swaps(a)", True),
        ("rank(b) = 3", False),
    ):
        rule = pattern("a = A(x)", "b = B(a, y)", where=(condition,))
        assert bool(groups_by(stream, rule)) == holds, condition


def test_results_feed_later_rules():
    two = rules(
        {"pattern": ["a = A(x)", "B(a)"], "as": "AB", "name": "first"},
        {"pattern": ["m = AB(x)", "C(m)"], "name": "second"},
    )
    assert groups_by(op_stream("a = A(x)", "b = B(a)", "c = C(b)"), two) == {"a b c": "second"}


def test_a_rule_can_match_its_own_result():
    stream = op_stream("c = Conv(x, w)", "b = Bn(c, w)", "d = Bn(b, w)", "e = Bn(d, w)")
    rule = pattern("c = Conv(...)", "Bn(c, ...)", **{"as": "Conv"})
    assert groups_by(stream, rule) == {"c b d e": "r"}


def test_absorb_joins_the_consumer_and_is_seen_through():
    both = rules({"absorb": ["Identity"], "name": "id"}, {"pattern": ["a = A(x)", "B(a, y)"]})
    stream = op_stream("a = A(x)", "i = Identity(a)", "j = Identity(i)", "b = B(j, y)")
    assert groups_by(stream, both) == {"a i j b": "r"}


def test_absorb_joins_the_producer_if_there_are_several_consumers():
    identity = rules({"absorb": ["Identity"]})
    stream = op_stream("a = A(x)", "i = Identity(a)", "b = B(i)", "c = C(i)")
    assert groups_by(stream, identity) == {"a i": "r"}
    stream = op_stream("a = A(x)", "i = Identity(a)", "b = B(i)", "c = C(i)", "d = D(a)")
    assert groups_by(stream, identity) == {}


FOLD = {"fold": {"shape": ["Shape"], "except": ["Random"]}, "name": "fold"}


def test_fold_follows_shapes_and_constants():
    lines = ("a = A(x)", "s = Shape(a)", "g = Gather(s, w)", "r = Reshape(a, g)", "b = B(r)")
    stream = op_stream(*lines, shapes={"a": (2, 3)})
    assert groups_by(stream, rules(FOLD)) == {"s g r": "fold"}
    assert groups_by(op_stream(*lines), rules(FOLD)) == {}, "the shape is not known"


def test_fold_leaves_what_is_drawn_anew():
    stream = op_stream("r = Random(w)", "a = A(r, x)")
    assert groups_by(stream, rules(FOLD)) == {}


def test_folded_operators_count_as_constants():
    both = rules(FOLD, {"pattern": ["m = MatMul(x, @weight)", "Add(m, @weight)"]})
    lines = ("t = Transpose(w1)", "m = MatMul(x, t)", "a = Add(m, w2)")
    assert groups_by(op_stream(*lines), both) == {"t m a": "r"}
    shared = (*lines, "b = B(t, x)")
    assert groups_by(op_stream(*shared), both) == {"m a": "r"}, "t has two consumers"


def test_a_search_that_explodes_is_given_up():
    # Every Add may take its inputs in two orders, and only the last line tells that none fits.
    depth = 40
    lines = [f"a{i} = Add({'x' if not i else f'a{i - 1}'}, y{i})" for i in range(depth)]
    rule = pattern(
        "a0 = Add(p, q0)",
        *(f"a{i} = Add(a{i - 1}, q{i})" for i in range(1, depth)),
        f"Last(a{depth - 1}, r, r)",
    )
    stream = op_stream(*lines, f"z = Last(a{depth - 1}, u, v)")
    assert groups_by(stream, rule) == {}


def test_quantised_operators_take_their_scales_along():
    lines = (
        "d1 = DequantizeLinear(q1, w1, w2)",
        "d2 = DequantizeLinear(wq, w3, w4)",
        "c = Conv(d1, d2)",
        "r = Relu(c)",
        "q = QuantizeLinear(r, w5, w6)",
        "d3 = DequantizeLinear(q, w5, w6)",
        "d4 = DequantizeLinear(wp, w3, w4)",
        "g = Gemm(d3, d4, w8)",
        "p = QuantizeLinear(g, w5, w6)",
    )
    assert groups_by(op_stream(*lines), ORT) == {
        "d1 d2 c r q": "quantised-conv",
        "d3 d4 g p": "quantised-gemm",
    }


def test_a_dequantised_tensor_with_two_readers_stays_outside():
    lines = (
        "d = DequantizeLinear(q1, w1, w2)",
        "d2 = DequantizeLinear(wq, w3, w4)",
        "c = Conv(d, d2)",
        "q = QuantizeLinear(c, w5, w6)",
        "s = Sigmoid(d)",
    )
    assert groups_by(op_stream(*lines), ORT) == {"d2 c q": "quantised-conv"}
