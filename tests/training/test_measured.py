"""Graphs of training priced by timing: dnnp-profile --mode measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dnnp
from dnnp.callbacks import Callbacks
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.runtime import measure_in_situ

FLOAT = TensorProto.FLOAT


class Listening(Callbacks):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A convolution, a rectifier and a pool, whose gradient is none of the ordinary operators."""
    monkeypatch.setattr(measure_in_situ, "PATIENCE_S", 0.0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("Neg", ["p"], ["y"], name="neg"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [1, 4, 16, 16])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 8, 13, 13])],
        [numpy_helper.from_array(np.ones((8, 4, 3, 3), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def measured(graph, **options):
    heard = Listening()
    quick = {"repeats": 2, "warmup": 1, "beside": 0, "no_cache": True}
    return dnnp.profile(graph, mode="measure", caller=heard, **quick, **options), heard


def test_gradients_are_timed_and_the_rest_is_said(small: Path) -> None:
    graph, heard = measured(dnnp.load(small, training=True))
    times = {n["op"]: n["time_s"]["cpu-core"] for n in graph.nodes}
    assert set(times) == {
        "Conv", "Relu", "MaxPool", "Neg", "Loss", "NegGrad", "MaxPoolGrad", "ReluGrad", "ConvGrad",
    }  # fmt: skip
    assert all(seconds >= 0 for seconds in times.values())
    assert times["ConvGrad"] > 0
    assert times["MaxPoolGrad"] > 0
    assert any("4 of 5 nodes by ordinary operators" in note for note in heard.notes)
    (warning,) = [w for w in heard.warnings if "formulas" in w]
    assert "MaxPoolGrad (1)" in warning
    assert "1 backward node" in warning


def test_groups_of_both_passes_are_timed_apart(small: Path) -> None:
    grouped = dnnp.coarsen(dnnp.load(small, training=True))
    graph, _ = measured(grouped)
    node = {n["id"]: n for n in graph.nodes}
    assert any(node[group["nodes"][0]].get("backward") for group in graph.groups)
    for group in graph.groups:
        assert group["time_s"]["cpu-core"] >= 0
        if node[group["nodes"][0]].get("backward"):
            parts = sum(node[v]["time_s"]["cpu-core"] for v in group["nodes"])
            assert group["time_s"]["cpu-core"] == pytest.approx(parts, abs=1e-8)


def test_what_cannot_be_timed_is_refused(small: Path) -> None:
    with pytest.raises(UsageError, match="float16 what the model computes in float32"):
        measured(dnnp.load(small, training=True, mixed_precision=True))
    grouped = dnnp.coarsen(dnnp.load(small, training=True))
    stream = grouped.stream()
    ids = [n["id"] for n in stream.get("node")]
    stream.records["group"] = [{"type": "group", "id": 0, "name": "all", "nodes": ids}]
    with pytest.raises(FormatError, match="nodes of both passes"):
        measured(type(grouped)(stream))
