"""Causes of small differences: what a message says of a split is what made it differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline.prepare import prepare
from dnnp.core.runtime.pipeline.sources import Traffic
from dnnp.core.runtime.report.verify import Verdict, tolerance_for
from dnnp.formats.onnx.value_types import TensorType
from support.fused_models import normalised
from support.run import dnnp
from support.running import planned, stage_of
from support.split_models import array, graph, make, node, value

RNG = np.random.default_rng(5)
FLOAT16 = TensorProto.FLOAT16


def halves() -> onnx.ModelProto:
    size, nodes, last = 256, [], "x"
    for i in range(3):
        nodes += [node("MatMul", [last, f"w{i}"], [f"m{i}"]), node("Relu", [f"m{i}"], [f"r{i}"])]
        last = f"r{i}"
    stored = [array(f"w{i}", RNG.standard_normal((size, size)) / 16, np.float16) for i in range(3)]
    ends = [value("x", [4, size], FLOAT16)], [value(last, [4, size], FLOAT16)]
    return make(graph(nodes, "h", *ends, stored))


def wide() -> onnx.ModelProto:
    """A product and a sum, which ONNX Runtime makes one operator of."""
    size = 1024
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "bias"], ["y"])]
    stored = [array("w", RNG.standard_normal((size, size))), array("bias", RNG.random(size))]
    shape = [2, 8, size]
    return make(graph(nodes, "w", [value("x", shape)], [value("y", shape)], stored))


def sized(batch: int | str) -> onnx.ModelProto:
    """ONNX Runtime infers the shape of `t` only if `batch` is known."""
    size = 1024
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        node("Mul", ["sizes", "scale"], ["scaled"]),
        node("Cast", ["scaled"], ["first"], to=TensorProto.INT64),
        node("Concat", ["first", "last"], ["to"], axis=0),
        node("Reshape", ["a", "to"], ["t"]),
        node("MatMul", ["t", "w"], ["m"]),
        node("Add", ["m", "bias"], ["y"]),
    ]
    stored = [array("w", RNG.standard_normal((size, size))), array("bias", RNG.random(size))]
    stored += [array("scale", [1.0, 1 / size]), array("last", [size], np.int64)]
    return make(graph(nodes, "z", [value("x", [batch, 8 * size])], [value("y", None)], stored))


def verdict_of(
    model: onnx.ModelProto, stages: list[list[int]], **known: tuple[int, ...]
) -> Verdict:
    types = {name: TensorType("float32", shape) for name, shape in known.items()}
    parts = [stage_of(nodes, i) for i, nodes in enumerate(stages)]
    pipeline = prepare(model, Path(), parts, SessionConfig(), known=types)
    samples = [random_inputs(model, i, shapes={"x": [2, 8 * 1024]}) for i in range(2)]
    traffic = Traffic(samples, 2, 1)
    trace = pipeline.run(traffic, lambda s: True)
    return pipeline.verify(trace, traffic, tolerance_for(model))


SUM = "a cut at the sum before LayerNormalization, which if fused adds in another order ('s')"
HALF = (
    "rounding to 16 bits where tensors cross stages, within which CPUs compute in 32 ('r0', 'r1')"
)
SIZES = "sizes that only stages, or only the whole model, know: they decide what becomes Gemm"
FUSED = "cuts through what ONNX Runtime fuses in the whole model ('m')"


@pytest.mark.parametrize(
    ("model", "stages", "words"),
    [
        (normalised, [[0, 1, 2], [3, 4]], SUM),
        (halves, [[0, 1], [2, 3], [4, 5]], HALF),
        (wide, [[0], [1]], FUSED),
    ],
)
def test_a_known_cause_is_named(model: Callable, stages: list, words: str, tmp_path: Path) -> None:
    done = dnnp("run", "-n", "3", "--verify", stdin=planned(model(), tmp_path, stages))
    assert done.status == 0, done.err
    assert f"\ndiffers     {words}\n" in done.err


def test_sizes_that_only_the_whole_model_knows() -> None:
    parts = [[*range(7)], [7, 8]]
    verdict = verdict_of(sized(2), parts)
    assert (verdict.ok, verdict.max_abs > 0, verdict.cause) == (True, True, SIZES)
    # Where both know them, or neither does, nothing differs.
    assert verdict_of(sized(2), parts, t=(2, 8, 1024)).max_abs == 0
    assert verdict_of(sized("b"), parts).max_abs == 0


def test_sizes_that_only_stages_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(*arguments: Any) -> Any:
        parts = split(*arguments)
        for part in parts:
            for entry in part.model.graph.input:
                if entry.name == "t":
                    entry.CopyFrom(value("t", [2, 8, 1024]))
        return parts

    from dnnp.formats.onnx import stages as onnx_stages

    split = onnx_stages.split_model
    monkeypatch.setattr(onnx_stages, "split_model", fixed)
    verdict = verdict_of(sized("b"), [[*range(7)], [7, 8]])
    assert (verdict.ok, verdict.max_abs > 0, verdict.cause) == (True, True, SIZES)


def test_what_is_equal_has_no_cause(tmp_path: Path) -> None:
    done = dnnp("run", "-n", "3", "--verify", stdin=planned(wide(), tmp_path, [[0, 1]]))
    assert "largest error 0, " in done.err
    assert "differs" not in done.err


def test_a_difference_that_nothing_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage computes a little something else than the model."""
    from dnnp.formats.onnx import stages as onnx_stages

    split = onnx_stages.split_model

    def wrong(*arguments: Any) -> Any:
        parts = split(*arguments)
        stored = parts[1].model.graph.initializer[0]
        changed = onnx.numpy_helper.to_array(stored) * np.float32(1 + 1e-6)
        stored.CopyFrom(onnx.numpy_helper.from_array(changed, stored.name))
        return parts

    monkeypatch.setattr(onnx_stages, "split_model", wrong)
    done = dnnp("run", "-n", "3", "--verify", stdin=planned(wide(), tmp_path, [[0], [1]]))
    assert done.status == 0, done.err
    assert "\ndiffers     for no cause that is known\n" in done.err
