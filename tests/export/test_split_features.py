"""A split model computes what the whole model computes, whatever the model is made of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from dnnp.core.model.errors import FormatError
from dnnp.formats.onnx.stages import split_model
from dnnp.formats.onnx.value_types import TensorType
from support.split_models import MODELS, feeds_of, run_split, run_whole, working_nodes

CUTS = [(name, at) for name in MODELS for at in range(1, len(working_nodes(MODELS[name]())))]


def same(model: onnx.ModelProto, parts: list[list[int]], *, optimized: bool = False) -> None:
    feeds = feeds_of(model)
    expected = run_whole(model, feeds, optimized=optimized)
    got = run_split(split_model(model, parts), model, feeds, optimized=optimized)
    assert list(got) == list(expected)
    for name, result in expected.items():
        assert got[name].dtype == result.dtype
        if optimized:
            np.testing.assert_allclose(got[name], result, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got[name], result)


@pytest.mark.parametrize("optimized", [False, True], ids=["plain", "optimized"])
@pytest.mark.parametrize(("name", "at"), CUTS)
def test_two_stages_at_every_cut(name: str, at: int, optimized: bool) -> None:
    model = MODELS[name]()
    nodes = working_nodes(model)
    if name == "contained" and at == 2:
        with pytest.raises(FormatError, match="'list' crosses stages, but a sequence"):
            split_model(model, [nodes[:at], nodes[at:]])
        return
    same(model, [nodes[:at], nodes[at:]], optimized=optimized)


@pytest.mark.parametrize("name", MODELS)
def test_one_stage(name: str) -> None:
    model = MODELS[name]()
    (stage,) = split_model(model, [working_nodes(model)])
    assert {*stage.sources.values()} == {-1}
    same(model, [working_nodes(model)])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "contained"])
def test_a_stage_for_every_node(name: str) -> None:
    model = MODELS[name]()
    same(model, [[v] for v in working_nodes(model)])


@pytest.mark.parametrize("name", MODELS)
def test_stages_pass_the_checker(name: str) -> None:
    model = MODELS[name]()
    nodes = working_nodes(model)
    middle = len(nodes) // 2 + (name == "contained")
    known = {"last": TensorType("float32", (4,))} if name == "loops" else None
    for stage in split_model(model, [nodes[:middle], nodes[middle:]], known):
        onnx.checker.check_model(stage.model)
        assert stage.model.ir_version == model.ir_version
        assert list(stage.model.opset_import) == list(model.opset_import)
