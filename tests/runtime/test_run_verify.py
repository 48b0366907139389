"""Verification: tolerances, what counts as equal, weak outputs, and finding the culprit."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dnnp.core.runtime import pipeline as pipelines
from dnnp.core.runtime.execute import Pipeline
from dnnp.core.runtime.inputs import random_inputs
from dnnp.core.runtime.load import Load
from dnnp.core.runtime.prepare import prepare
from dnnp.core.runtime.session import SessionConfig
from dnnp.core.runtime.verify import (
    Tolerance,
    compare_values,
    tolerance_for,
    verify_outputs,
    weak_points,
)
from support.running import stage_of
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
    assert compare_values(np.array(expected), np.array(got), TOLERANCE).fault == ""


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
    assert re.search(fault, found.fault)
    assert np.isfinite([found.max_abs, found.max_rel]).all()


def test_lists_are_compared_item_by_item() -> None:
    a, b = np.array([1.0]), np.array([2.0])
    assert compare_values([a, b], [a, b], TOLERANCE).fault == ""
    assert "1 of 1" in compare_values([a, b], [a, a], TOLERANCE).fault
    assert "length" in compare_values([a, b], [a], TOLERANCE).fault
    assert "length" in compare_values([a], a, TOLERANCE).fault
    assert compare_values(None, None, TOLERANCE).fault == ""
    assert compare_values(None, a, TOLERANCE).fault


def test_samples_are_matched_with_their_inputs() -> None:
    reference = [{"y": np.array([1.0, 2.0])}, {"y": np.array([3.0, 4.0])}]
    got = {0: reference[0], 1: reference[1], 6: reference[0]}
    verdict = verify_outputs(reference, got, TOLERANCE)
    assert verdict.ok
    assert verdict.samples == 3
    verdict = verify_outputs(reference, {**got, 7: reference[0]}, TOLERANCE)
    assert verdict.bad_sample == 1
    assert verdict.fault.startswith("output 'y' of sample 7: 2 of 2 values differ")
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
        messages = weak_points(reference, TOLERANCE)
        assert messages == [f"output 'y' {reason}: its agreement proves little"]
    assert weak_points([{"y": same}, {"y": other}], TOLERANCE) == []
    assert weak_points([{"y": same}], TOLERANCE) == []


def test_the_tolerance_follows_the_precision() -> None:
    def of(kind: int, op: str = "Identity") -> float:
        nodes = [node(op, ["x"], ["y"])]
        return tolerance_for(make(graph(nodes, "m", [value("x", [1], kind)], []))).rtol

    half, single = of(TensorProto.FLOAT16), of(TensorProto.FLOAT)
    assert of(TensorProto.DOUBLE) < single < half < of(TensorProto.BFLOAT16)
    assert of(TensorProto.FLOAT, "QuantizeLinear") > single
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


def ready(parts: list[list[int]]) -> tuple[Pipeline, Load]:
    model = two_inputs()
    stages = [stage_of(p, i) for i, p in enumerate(parts)]
    pipeline = prepare(model, Path(), stages, SessionConfig())
    return pipeline, Load([random_inputs(model, i) for i in range(3)], 9, 1)


def verdict_of(pipeline: Pipeline, load: Load) -> Any:
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
    """Where stages 0 and 1 both feed a stage, the names go with the wrong tensors."""
    work = pipelines._PipelineRun.work

    def replace_step(run: Any, i: int, step: Any) -> Any:
        changed = copy.copy(run)
        changed.steps = [*run.steps[:i], step, *run.steps[i + 1 :]]
        return changed

    def swapped(run: Any, i: int, replica: int) -> None:
        step = run.steps[i]
        (worker,) = step.workers
        right = worker.call
        if sorted(step.inputs) == ["a", "b"]:

            def call(values: dict[str, Any]) -> dict[str, Any]:
                return right({"a": values["b"], "b": values["a"]})

            step = replace(step, workers=(replace(worker, call=call),))
        work(replace_step(run, i, step), i, replica)

    monkeypatch.setattr(pipelines._PipelineRun, "work", swapped)
    verdict = verdict_of(*ready(parts))
    assert not verdict.ok
    assert "output 'y' of sample" in verdict.fault
    assert "tensors were mixed up between the stages" in verdict.fault


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
    from dnnp.formats import onnx_stages

    split = onnx_stages.split_model

    def wrong(*arguments: Any) -> Any:
        parts = split(*arguments)
        (target,) = (n for part in parts for n in part.model.graph.node if n.op_type == "Sub")
        target.input[:] = ["b", "a"]
        return parts

    monkeypatch.setattr(onnx_stages, "split_model", wrong)
    verdict = verdict_of(*ready(SPLITS[2]))
    assert "stage 1 is the first to differ, in tensor 'c'" in verdict.fault
    assert verdict.max_abs > 0
