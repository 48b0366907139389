"""GCOF on the examples of the Moirai paper, and on what its rules must not fuse."""

from __future__ import annotations

import pytest

from dnnp.core.model.rules import RuleSet, SequenceRule
from dnnp.formats.inputs.rules import load_rules
from support.op_graphs import groups_by, op_stream

MOIRAI = load_rules("moirai")

# Figure 7: three add-relu pairs above, two conv-bn pairs below, joined in the last add.
FIGURE_7 = (
    "add1 = Add(x, y)",
    "relu1 = Relu(add1)",
    "add2 = Add(relu1, z)",
    "relu2 = Relu(add2)",
    "conv1 = Conv(add1, w1)",
    "bn1 = BatchNormalization(conv1, w2)",
    "conv2 = Conv(bn1, w3)",
    "bn2 = BatchNormalization(conv2, w4)",
    "add3 = Add(relu2, bn2)",
    "relu3 = Relu(add3)",
)


def rule_set(*rules: str) -> RuleSet:
    """Sequences written as `Conv Relu`."""
    parsed = [SequenceRule(text, tuple((op,) for op in text.split()), "") for text in rules]
    return RuleSet("test", tuple(parsed))


def test_figure_7():
    assert groups_by(op_stream(*FIGURE_7), MOIRAI) == {
        "conv1 bn1": "conv-bn",
        "conv2 bn2 add3 relu3": "conv-bn-add-relu",
    }


def test_figure_7_with_the_lower_branch_first():
    lines = (*FIGURE_7[4:8], *FIGURE_7[:4], *FIGURE_7[8:])
    assert groups_by(op_stream(*lines), MOIRAI) == {
        "conv1 bn1": "conv-bn",
        "conv2 bn2 add3 relu3": "conv-bn-add-relu",
    }


def test_direct_connection_is_fused():
    assert groups_by(op_stream("a = A(x)", "b = B(a)"), rule_set("A B")) == {"a b": "A B"}


def test_several_inputs_are_fused():
    lines = ("a = A(x)", "c = C(x)", "b = B(a, c)")
    assert groups_by(op_stream(*lines), rule_set("A B")) == {"a b": "A B"}


def test_several_consumers_are_not_fused():
    lines = ("a = A(x)", "b = B(a)", "c = C(a)")
    assert groups_by(op_stream(*lines), rule_set("A B", "A C")) == {}


def test_a_second_output_with_another_consumer_is_not_fused():
    lines = ("a, a2 = A(x)", "b = B(a)", "c = C(a2)")
    assert groups_by(op_stream(*lines), rule_set("A B")) == {}


def test_two_tensors_to_one_consumer_are_one_connection():
    lines = ("a, a2 = A(x)", "b = B(a, a2)")
    assert groups_by(op_stream(*lines), rule_set("A B")) == {"a b": "A B"}


def test_an_output_of_the_model_stays_visible():
    lines = ("a = A(x)", "b = B(a)", "c = C(b)")
    rules = rule_set("A B C", "A B")
    assert groups_by(op_stream(*lines, outputs="c"), rules) == {"a b c": "A B C"}
    assert groups_by(op_stream(*lines, outputs="b, c"), rules) == {"a b": "A B"}
    assert groups_by(op_stream(*lines, outputs="a, c"), rules) == {}


def test_the_longest_rule_wins():
    lines = ("a = A(x)", "b = B(a)", "c = C(b)")
    assert groups_by(op_stream(*lines), rule_set("A B", "A B C")) == {"a b c": "A B C"}


def test_what_was_bound_in_vain_is_released():
    # A B is the beginning of a rule that never completes; B C then still finds B free.
    lines = ("a = A(x)", "b = B(a)", "c = C(b)")
    assert groups_by(op_stream(*lines), rule_set("A B D", "B C")) == {"b c": "B C"}


def test_a_part_bound_early_does_not_block_a_complete_rule():
    # Depth first, `bn other add` would bind to the bn that no conv precedes.
    lines = (
        "bn0 = BatchNormalization(x, w1)",
        "conv = Conv(y, w2)",
        "bn = BatchNormalization(conv, w3)",
        "add = Add(bn0, bn)",
        "relu = Relu(add)",
    )
    assert groups_by(op_stream(*lines), MOIRAI) == {"conv bn add relu": "conv-bn-add-relu"}


def test_the_first_of_two_branches_takes_the_join():
    lines = (
        "c1 = Conv(x, w1)",
        "b1 = BatchNormalization(c1, w2)",
        "c2 = Conv(x, w3)",
        "b2 = BatchNormalization(c2, w4)",
        "add = Add(b1, b2)",
        "relu = Relu(add)",
    )
    assert groups_by(op_stream(*lines), MOIRAI) == {
        "c1 b1 add relu": "conv-bn-add-relu",
        "c2 b2": "conv-bn",
    }


def test_the_result_can_be_matched_again():
    rules = RuleSet("test", (SequenceRule("rr", (("Reshape",), ("Reshape",)), "Reshape"),))
    lines = [f"r{i} = Reshape({'x' if not i else f'r{i - 1}'}, w)" for i in range(5)]
    assert groups_by(op_stream(*lines), rules) == {"r0 r1 r2 r3 r4": "rr"}


@pytest.mark.parametrize(
    ("fields", "fused"),
    [
        ({"a": {"time_s": {"cpu": 1, "gpu": 1}}, "b": {"time_s": {"cpu": 1, "gpu": 2}}}, True),
        ({"a": {"time_s": {"cpu": 1, "gpu": 1}}, "b": {"time_s": {"cpu": 1}}}, False),
        ({"b": {"backward": True}}, False),
        ({"a": {"backward": True}, "b": {"backward": True}}, True),
        ({"a": {"color": 1}, "c": {"color": 1}}, True),
        ({"a": {"color": 1}, "b": {"color": 2}, "c": {"color": 1}, "d": {"color": 2}}, False),
        ({"a": {"color": 1}, "b": {"color": 2}}, True),
    ],
)
def test_what_cannot_run_together_is_not_fused(fields, fused):
    lines = ("a = A(x)", "b = B(a)", "c = C(x)", "d = D(x)")
    times = {"time_s": {"cpu": 1}} if "time_s" in fields.get("a", {}) else {}
    stream = op_stream(*lines, nodes={n: {**times, **fields.get(n, {})} for n in "abcd"})
    assert groups_by(stream, rule_set("A B")) == ({"a b": "A B"} if fused else {})
