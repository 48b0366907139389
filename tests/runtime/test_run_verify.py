"""Verification: tolerances, what counts as equal, weak outputs, and finding the culprit."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline import threads as pipelines
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.sources import Traffic
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.core.runtime.report.verify import (
    Case,
    Examiner,
    Tolerance,
    compare_values,
    tolerance_for,
    verify_cases,
    weak_points,
)
from support.fused_models import int4
from support.run import dnnp
from support.running import planned, stage_of, swap
from support.split_models import array, graph, make, node, value

TOLERANCE = Tolerance(1e-4, 1e-5)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ([1.0, 1000.0], [1.005, 1000.05]),
        ([NAN, INF, -INF], [NAN, INF, -INF]),
        ([0.0, 0.0], [0.0, 1e-6]),
        ([1 + 1j], [1 + 1j]),
        (["a"], ["a"]),
        ([], []),
        ([True], [True]),
    ],
)
def test_equal(expected: list, got: list) -> None:
    assert compare_values(np.array(expected), np.array(got), TOLERANCE).mismatch == ""


@pytest.mark.parametrize(
    ("expected", "got", "fault"),
    [
        ([1.0, 1000.0], [1.02, 1000.0], "1 of 2 values differ by more"),
        ([NAN, 1.0], [1.0, 1.0], "NaN or infinity at 1 places"),
        ([INF], [-INF], "NaN or infinity at 1 places"),
        ([1, 2], [1, 3], "1 of 2 values differ"),
        ([True], [False], "1 of 1 values differ"),
        (["a", "b"], ["a", "c"], "1 strings differ"),
        ([1.0], [1], "dtype int64, expected float64"),
        ([1.0], [1.0, 2.0], r"shape \[2\], expected \[1\]"),
        ([1 + 1j], [1 + 2j], "1 of 1 values differ"),
    ],
)
def test_different(expected: list, got: list, fault: str) -> None:
    found = compare_values(np.array(expected), np.array(got), TOLERANCE)
    assert re.search(fault, found.mismatch)
    assert np.isfinite([found.max_abs, found.max_rel]).all()


def test_lists_are_compared_item_by_item() -> None:
    a, b = np.array([1.0]), np.array([2.0])
    assert compare_values([a, b], [a, b], TOLERANCE).mismatch == ""
    assert "1 of 1" in compare_values([a, b], [a, a], TOLERANCE).mismatch
    assert "length" in compare_values([a, b], [a], TOLERANCE).mismatch
    assert "length" in compare_values([a], a, TOLERANCE).mismatch
    assert compare_values(None, None, TOLERANCE).mismatch == ""
    assert compare_values(None, a, TOLERANCE).mismatch


def test_samples_are_matched_with_their_inputs() -> None:
    reference = [{"y": np.array([1.0, 2.0])}, {"y": np.array([3.0, 4.0])}]
    got = {0: reference[0], 1: reference[1], 6: reference[0]}

    def verify(got: dict[int, Any]) -> Any:
        def case_of(s: int) -> Case:
            return Case(f"sample {s}", {}, reference[s % len(reference)], got[s])

        return verify_cases(got, case_of, TOLERANCE)

    verdict = verify(got)
    assert verdict.ok
    assert verdict.samples == 3
    verdict = verify({**got, 7: reference[0]})
    assert verdict.parted == {7: 0.5}
    assert verdict.mismatch.startswith("output 'y' of sample 7: 2 of 2 values differ")
    assert verdict.max_abs == 2.0


def test_weak_outputs_are_pointed_out() -> None:
    same, other = np.array([1.0, 2.0]), np.array([2.0, 1.0])
    cases = {
        "is all NaN": [np.full(3, NAN)] * 2,
        "is one constant": [np.ones(3), np.zeros(3)],
        "is the same for all samples": [same, same * (1 + 1e-7)],
        "is empty": [np.zeros((0, 3))] * 2,
    }
    for reason, values in cases.items():
        reference = [{"good": same, "y": values[0]}, {"good": other, "y": values[1]}]
        messages = [*weak_points(reference, TOLERANCE)]
        assert messages == [f"output 'y' {reason}: its agreement proves little"]
    assert not [*weak_points([{"y": same}, {"y": other}], TOLERANCE)]
    assert not [*weak_points([{"y": same}], TOLERANCE)]


def test_the_tolerance_follows_the_precision() -> None:
    def of(kind: int, op: str = "Identity") -> float:
        nodes = [node(op, ["x"], ["y"])]
        return tolerance_for(make(graph(nodes, "m", [value("x", [1], kind)], []))).rtol

    half, single = of(TensorProto.FLOAT16), of(TensorProto.FLOAT)
    assert of(TensorProto.DOUBLE) < single < half < of(TensorProto.BFLOAT16)
    quantized = of(TensorProto.FLOAT, "QuantizeLinear")
    assert single < quantized < of(TensorProto.FLOAT, "MatMulNBits")
    assert of(TensorProto.FLOAT, "DequantizeLinear") == single
    assert tolerance_for(int4()).rtol == of(TensorProto.FLOAT, "MatMulNBits")
    model = make(graph([], "m", [value("x")], []))
    assert tolerance_for(model, 0.5, 0.25) == Tolerance(0.5, 0.25)


def two_inputs() -> onnx.ModelProto:
    """Stage 1 reads two tensors of equal shape from stage 0."""
    nodes = [
        node("Mul", ["x", "W"], ["a"]),
        node("Exp", ["x"], ["b"]),
        node("Sub", ["a", "b"], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    return make(graph(nodes, "two", [value("x")], [value("y")], [array("W", [1, 2, -3, 4])]))


def ready(parts: list[list[int]], model: onnx.ModelProto | None = None) -> tuple[Pipeline, Traffic]:
    model = two_inputs() if model is None else model
    stages = [stage_of(p, i) for i, p in enumerate(parts)]
    pipeline = prepare(model, Path(), stages, SessionConfig())
    return pipeline, Traffic([random_inputs(model, i) for i in range(3)], 9, 1)


def verdict_of(pipeline: Pipeline, load: Traffic) -> Any:
    return pipeline.verify(pipeline.run(load, lambda s: True), load, TOLERANCE)


SPLITS = [[[0, 1], [2, 3]], [[0], [1], [2, 3]], [[0, 1], [2], [3]]]


@pytest.mark.parametrize("parts", SPLITS)
def test_the_split_model_is_right(parts: list[list[int]]) -> None:
    verdict = verdict_of(*ready(parts))
    assert verdict.ok
    assert verdict.samples == 10
    assert verdict.warnings == []


@pytest.mark.parametrize("parts", SPLITS)
def test_tensors_swapped_on_their_way_are_caught(
    parts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swap names of tensors where stages 0 and 1 both feed a stage."""
    swap(monkeypatch)
    verdict = verdict_of(*ready(parts))
    assert not verdict.ok
    assert "output 'y' of sample" in verdict.mismatch
    assert "tensors were mixed up between the stages" in verdict.mismatch


def test_weights_in_blocks_may_be_fused_at_other_places() -> None:
    """ONNX Runtime fuses the second product of the whole model alone."""
    model = int4()
    pipeline, load = ready([[0, 1, 2], [3, 4, 5]], model)
    trace = pipeline.run(load, lambda s: True)
    assert pipeline.verify(trace, load, tolerance_for(model)).ok
    # By the tolerance of float32 it is the whole model that differs from itself by as much.
    verdict = pipeline.verify(trace, load, TOLERANCE)
    assert verdict.ok
    assert 1e-3 < verdict.self_error < 0.05
    assert verdict.max_rel <= verdict.self_error * 1.01


DRAWS = {
    "RandomNormalLike": [node("RandomNormalLike", ["a"], ["n"], name="noise", seed=3.0)],
    "Bernoulli": [node("Sigmoid", ["a"], ["p"]), node("Bernoulli", ["p"], ["n"])],
    "RandomUniform": [node("RandomUniform", [], ["n"], shape=[64])],
    "Dropout": [node("Dropout", ["a", "ratio", "yes"], ["n"], name="drop")],
}


@pytest.mark.parametrize("op", DRAWS)
def test_operators_that_draw_are_named(op: str) -> None:
    """Nothing was mixed up, and no stage is wrong; an output that draws nothing is compared."""
    nodes = [
        node("Exp", ["x"], ["a"]),
        *DRAWS[op],
        node("Add", ["a", "n"], ["b"]),
        node("Dropout", ["a", "ratio", "no"], ["c"], name="idle"),
        node("Neg", ["c"], ["z"]),
        node("Relu", ["b"], ["y"]),
    ]
    stored = [array("ratio", 0.5), array("yes", True, bool), array("no", False, bool)]
    ends = [value("x", [64])], [value("y", [64]), value("z", [64])]
    model = make(graph(nodes, "draws", *ends, stored))
    count = len(nodes)
    # Dropout alone draws where its output is that of a stage: elsewhere it is taken out.
    parts = [[*range(count - 4)], [*range(count - 4, count - 1)], [count - 1]]
    verdict = verdict_of(*ready(parts, model))
    assert not verdict.ok
    assert "cannot be verified: the whole model draws other numbers each time (" in verdict.mismatch
    if op == "Dropout":  # it is taken out of the whole model, but not at the begin of a stage
        verdict = verdict_of(*ready([[0], [*range(1, count - 1)], [count - 1]], model))
        assert "cannot be verified: stage 1 draws other numbers each time (" in verdict.mismatch
    assert f"({op} '" in verdict.mismatch
    assert "idle" not in verdict.mismatch
    assert "output 'y'" in verdict.mismatch


def ill_conditioned() -> onnx.ModelProto:
    """Normalisation of small differences between large values; fused with the sum before it."""
    nodes = [
        node("Add", ["x", "z"], ["a"]),
        node("Neg", ["z"], ["b"]),
        node("LayerNormalization", ["a", "one", "one"], ["l"]),
        node("MatMul", ["l", "w"], ["m"]),
        node("MatMul", ["m", "w"], ["n"]),
        node("Add", ["a", "n"], ["s"]),
        node("Sub", ["b", "a"], ["v"]),
        node("LayerNormalization", ["s", "one", "one"], ["y"]),
    ]
    stored = [array("one", np.ones(64)), array("w", np.ones((64, 64)))]
    shape = [1, 4, 64]
    ends = [value("x", shape), value("z", shape)], [value("y", shape), value("v", shape)]
    return make(graph(nodes, "ill", *ends, stored), ir=9)


def test_a_model_may_differ_by_as_much_as_from_itself() -> None:
    verdict = verdict_of(*ready(STEPS, ill_conditioned()))
    assert verdict.ok
    assert 1e-5 < verdict.max_rel <= verdict.self_error + TOLERANCE.rtol
    assert verdict_of(*ready([[*range(8)]], ill_conditioned())).self_error == 0


STEPS = [[0, 1], [2], [3], [4], [5, 6], [7]]


def test_the_record_says_how_much_that_is(tmp_path: Path) -> None:
    done = dnnp("run", "-n", "4", "--verify", stdin=planned(ill_conditioned(), tmp_path, STEPS))
    assert done.status == 0, done.err
    (ran,) = (json.loads(line) for line in done.out.splitlines() if b'"type":"run"' in line)
    assert ran["verified"]
    assert ran["rtol"] + ran["atol"] < ran["max_rel_error"] <= ran["self_rel_error"] + ran["rtol"]
    assert ", or as the whole model from itself: " in done.err


def test_a_mix_up_is_seen_where_rounding_grows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    swap(monkeypatch)
    verdict = verdict_of(*ready(STEPS, ill_conditioned()))
    assert "tensors were mixed up between the stages" in verdict.mismatch


def test_a_tensor_of_another_sample_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    get, late = pipelines.Channel.get, []

    def stale(channel: Any, sample: int) -> Any:
        item = get(channel, sample)
        if "b" in item:
            late.append(item["b"])
            item = {**item, "b": late[max(len(late) - 2, 0)]}
        return item

    monkeypatch.setattr(pipelines.Channel, "get", stale)
    assert not verdict_of(*ready(SPLITS[0])).ok


def test_the_stage_that_computes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dnnp.formats.onnx import stages as onnx_stages

    split = onnx_stages.split_model

    def wrong(*arguments: Any) -> Any:
        parts = split(*arguments)
        (target,) = (n for part in parts for n in part.model.graph.node if n.op_type == "Sub")
        target.input[:] = ["b", "a"]
        return parts

    monkeypatch.setattr(onnx_stages, "split_model", wrong)
    verdict = verdict_of(*ready(SPLITS[2]))
    assert "stage 1 is the first to differ, in tensor 'c'" in verdict.mismatch
    assert verdict.max_abs > 0


@pytest.mark.parametrize(
    ("own", "shift", "fault"),
    [
        (1e-5, 0.0, ""),
        (0.0, 0.0, "differences of rounding grow from stage to stage"),
        (2e-5, 5e-6, "tensors were mixed up between the stages"),
    ],
)
def test_what_the_whole_model_differs_from_itself_by(own: float, shift: float, fault: str) -> None:
    """Stage 0 rounds otherwise, and little is left of what stage 1 subtracts from."""

    def last(a: Any) -> Any:
        return {"y": a - np.array([1.0 - 1e-5, 2.0 - 1e-5])}

    def whole(values: dict[str, Any], error: float = 0.0) -> dict[str, Any]:
        return {"a": values["x"] + error, **last(values["x"] + error)}

    calls = {"a": lambda v: {"a": v["x"] + 1e-5}, "y": lambda v: last(v["a"])}
    steps = [
        Step(f"stage {i}", (read,), (made,), (Worker(f"stage {i}", calls[made]),))
        for i, (read, made) in enumerate([("x", "a"), ("a", "y")])
    ]
    sample = {"x": np.array([1.0, 2.0])}
    plain = partial(whole, error=own)
    examiner = Examiner(steps, TOLERANCE, whole, plain, [], made=False)
    got = last(sample["x"] + 1e-5 + shift)
    found = examiner.mismatch(0, Case("sample 0", sample, last(sample["x"]), got))
    assert fault in found
    assert bool(fault) == bool(found)
    assert examiner.self_error == pytest.approx(0.0 if fault else 1.0)
