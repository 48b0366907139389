"""Real architectures in several stages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnp.formats.onnx.stages import StageModel, split_model
from dnnp.formats.onnx.weights import spans_of
from support.split_models import feeds_of, run_split, run_whole, session, working_nodes

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))


def cut(model: onnx.ModelProto, k: int) -> list[StageModel]:
    nodes = np.array_split(working_nodes(model), k)
    return split_model(model, [part.tolist() for part in nodes])


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_load(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    for k in (2, 3, 4):
        stages = cut(model, k)
        assert sum(len(stage.nodes) for stage in stages) == len(working_nodes(model))
        for stage in stages:
            onnx.checker.check_model(stage.model)
            ours = session(stage.model)
            assert [item.name for item in ours.get_outputs()] == list(stage.outputs)


@pytest.mark.parametrize("name", ["bert6", "gnmt8", "resnet50_narrow"])
@pytest.mark.parametrize("optimized", [False, True], ids=["plain", "optimized"])
def test_shared_models_compute_the_same(shared_models: Path, name: str, optimized: bool) -> None:
    model = onnx.load(shared_models / f"{name}.onnx")
    feeds = feeds_of(model)
    whole = run_whole(model, feeds, optimized=optimized)
    for k in (2, 4):
        got = run_split(cut(model, k), model, feeds, optimized=optimized)
        for key, expected in whole.items():
            if optimized:
                scale = np.abs(expected).max()
                np.testing.assert_allclose(got[key], expected, rtol=1e-4, atol=1e-6 * scale)
            else:
                np.testing.assert_array_equal(got[key], expected)


def test_absent_weights_stay_referenced(shared_models: Path) -> None:
    model = onnx.load(shared_models / "gpt3_1p3b.onnx", load_external_data=False)
    stages = cut(model, 16)
    tensors = {t.name: t for t in model.graph.initializer}
    for stage in stages:
        for tensor in stage.model.graph.initializer:
            assert tensor == tensors[tensor.name]
    assert spans_of(s.model for s in stages) == spans_of([model])
