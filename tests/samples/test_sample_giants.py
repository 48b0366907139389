"""Planning models: sizes near the paper's table, weights declared but absent, all shapes stated."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import prod
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

from dnnp.samples.build import CATALOG, make, make_sample
from dnnp.samples.models import evoformer, flava, gpt3, mt5, swin
from dnnp.samples.weights import Sample, with_external_weights, with_weights

GIANTS = [name for name, entry in CATALOG.items() if entry.paper_parameters is not None]
FIRST = ["gpt3-330m", "swin-1.8b", "evoformer-87m"]


@cache
def giant(name: str) -> Sample:
    return make_sample(name)


@pytest.mark.parametrize("name", GIANTS)
def test_counts_are_near_the_table(name: str) -> None:
    entry = CATALOG[name]
    assert entry.paper_parameters is not None
    assert entry.paper_operators is not None
    assert entry.parameters == pytest.approx(entry.paper_parameters, rel=0.1)
    assert 1 <= entry.nodes / entry.paper_operators < 3


def test_a_vocabulary_of_a_million_is_nearly_half_of_the_model() -> None:
    entry, sample = CATALOG["gpt-1m-vocab"], giant("gpt-1m-vocab")
    assert (entry.size, sample.planning) == ("giant", True)
    assert (sample.nodes, sample.parameters) == (entry.nodes, entry.parameters)
    assert 0.4 < 1_000_000 * 4096 / entry.parameters < 0.5


@pytest.mark.parametrize("name", ["gpt-1m-vocab-untied", "mt5-1m-vocab", "flava-4096"])
def test_catalog_states_the_right_counts_of_what_is_planned_with_shared_stages(name: str) -> None:
    entry, sample = CATALOG[name], giant(name)
    assert (entry.size, sample.planning) == ("giant", True)
    assert (sample.nodes, sample.parameters) == (entry.nodes, entry.parameters)


def test_there_are_models_of_20000_and_50000_nodes() -> None:
    nodes = [CATALOG[name].nodes for name in GIANTS]
    assert sum(20_000 <= count < 50_000 for count in nodes) >= 2
    assert sum(count >= 50_000 for count in nodes) >= 2


@pytest.mark.parametrize("name", [*FIRST, "gpt3-13b", "swin-6.6b", "evoformer-2.4b"])
def test_catalog_states_the_right_counts(name: str) -> None:
    entry, sample = CATALOG[name], giant(name)
    assert (sample.nodes, sample.parameters) == (entry.nodes, entry.parameters)
    properties = {item.key: item.value for item in sample.proto.metadata_props}
    assert properties["dnnp.parameters"] == str(entry.parameters)
    assert properties["dnnp.paper_operators"] == str(entry.paper_operators)
    assert int(properties["dnnp.paper_parameters"]) == entry.paper_parameters


@pytest.mark.parametrize("name", FIRST)
def test_every_shape_is_stated_once(name: str) -> None:
    graph = giant(name).proto.graph
    stated = [info.name for info in [*graph.value_info, *graph.output]]
    computed = [result for node in graph.node for result in node.output]
    assert sorted(stated) == sorted(computed)
    assert len(set(computed)) == len(computed)
    assert "Identity" not in {node.op_type for node in graph.node}


@pytest.mark.parametrize("name", FIRST)
def test_every_result_is_used(name: str) -> None:
    graph = giant(name).proto.graph
    used = {operand for node in graph.node for operand in node.input}
    used |= {output.name for output in graph.output}
    assert [node.name for node in graph.node if not used.intersection(node.output)] == []


def test_weights_are_declared_without_overlap() -> None:
    model = with_external_weights(giant("swin-1.8b"), "weights")
    places = []
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            assert len(tensor.raw_data) < 50_000
            continue
        fields = {item.key: item.value for item in tensor.external_data}
        assert fields["location"] == "weights"
        assert not tensor.raw_data
        length = prod(tensor.dims) * 2
        assert int(fields["length"]) == length
        places.append((int(fields["offset"]), length))
    assert all(start + length <= after for (start, length), (after, _) in pairwise(places))
    assert sum(length for _, length in places) > 3.5e9


def test_a_giant_has_no_content() -> None:
    with pytest.raises(ValueError, match="planning only"):
        make("gpt3-330m")


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (gpt3, gpt3.Transformer(2, 32, 2, vocabulary=64, length=16)),
        (swin, swin.Size((2, 2, 2, 2), 32, 4, image=124, classes=10)),
        (evoformer, evoformer.Size(2, 64, 2, 64, sequences=4, residues=6)),
        (mt5, mt5.Transformer(2, 32, 2, vocabulary=64, length=8)),
        (flava, flava.Size(2, 32, 2, vocabulary=64, length=8, joint=1, image=16, patch=8)),
    ],
    ids=["gpt3", "swin", "evoformer", "mt5", "flava"],
)
def test_the_same_graph_runs_when_it_is_tiny(module: ModuleType, size: object) -> None:
    sample = module.build(size)
    model = with_weights(sample)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    feed = {
        value.name: np.asarray(rng.uniform(0, 6, sample.values[value.name].shape)).astype(
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in model.graph.input
    }
    for output, array in zip(model.graph.output, session.run(None, feed), strict=True):
        assert array.shape == sample.values[output.name].shape
        assert np.isfinite(array).all()
