"""Runnable sample models: valid, deterministic, and sensitive to each of their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from dnnp.samples.build import CATALOG, make, make_sample

Feed = dict[str, NDArray[Any]]

SMALL = [name for name, entry in CATALOG.items() if entry.size == "small"]
FULL = [name for name, entry in CATALOG.items() if entry.size == "full"]


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def random_feed(model: onnx.ModelProto, seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    ranges = {item.key: item.value for item in model.metadata_props}
    feed: Feed = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if kind.kind == "f":
            feed[value.name] = rng.standard_normal(shape).astype(kind)
        else:
            low, high = map(int, ranges[f"dnnp.input_range.{value.name}"].split(","))
            feed[value.name] = np.asarray(rng.integers(low, high + 1, size=shape)).astype(kind)
    return feed


@pytest.mark.parametrize("name", SMALL)
def test_model_is_valid_and_small(name: str) -> None:
    model = make(name)
    onnx.checker.check_model(model, full_check=True)
    assert model.ByteSize() < 10e6
    assert model.ir_version <= 10
    assert not model.graph.value_info
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


@pytest.mark.parametrize("name", SMALL)
def test_each_input_changes_each_output(name: str) -> None:
    model = make(name)
    runner = session(model)
    first, second = random_feed(model, 1), random_feed(model, 2)
    names = [output.name for output in model.graph.output]
    reference = dict(zip(names, runner.run(names, first), strict=True))
    for key, content in first.items():
        other = np.asarray(~content) if content.dtype == bool else second[key]
        changed = dict(zip(names, runner.run(names, first | {key: other}), strict=True))
        for output, array in reference.items():
            assert np.isfinite(array).all()
            scale = np.abs(array).max()
            assert 0.01 < scale < 1000
            assert np.abs(array - changed[output]).max() > 0.01 * scale, (key, output)


@pytest.mark.parametrize("name", SMALL)
def test_bytes_depend_on_the_seed_only(name: str) -> None:
    def content(seed: int) -> bytes:
        return make(name, seed).SerializeToString(deterministic=True)

    assert content(0) == content(0)
    assert content(0) != content(1)


@pytest.mark.parametrize("name", [*SMALL, *FULL])
def test_catalog_states_the_right_counts(name: str) -> None:
    entry, sample = CATALOG[name], make_sample(name)
    assert (sample.nodes, sample.parameters) == (entry.nodes, entry.parameters)
    properties = {item.key: item.value for item in sample.proto.metadata_props}
    assert properties["dnnp.parameters"] == str(entry.parameters)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert-full", 109.5),
        ("gpt-full", 124.4),
        ("resnet50-full", 25.56),
        ("inception-v3-full", 23.83),
        ("mobilenet-v2-full", 3.50),
        ("raft-full", 5.26),
    ],
)
def test_full_models_have_the_published_parameter_counts(name: str, millions: float) -> None:
    assert CATALOG[name].parameters / 1e6 == pytest.approx(millions, rel=2e-3)


def test_opsets_vary() -> None:
    versions = {make_sample(name).proto.opset_import[0].version for name in SMALL}
    assert versions == {13, 17, 21}


def test_models_have_the_structures_they_are_there_for() -> None:
    def operators(name: str) -> list[str]:
        return [node.op_type for node in make_sample(name).proto.graph.node]

    assert operators("resnet50-small").count("Conv") == 53
    assert operators("inception-v3-small").count("Conv") == 94
    assert operators("gnmt-small").count("LSTM") == 8
    assert {"If", "Loop"} <= set(operators("raft-small"))
    assert "Constant" in operators("bert-small")
    assert operators("moe-small").count("TopK") == 2
    assert operators("moe-small").count("ScatterND") == 16
    assert operators("dlrm-small").count("Gather") == 25
    assert operators("shufflenet-v2-small").count("Transpose") == 16
    groups = [
        attribute.i
        for node in make_sample("mobilenet-v2-small").proto.graph.node
        for attribute in node.attribute
        if attribute.name == "group"
    ]
    assert sum(group > 1 for group in groups) == 17


def test_control_flow_reads_outer_tensors() -> None:
    graph = make_sample("raft-small").proto.graph
    outer = {name for node in graph.node for name in node.output}
    counted = 0
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type != onnx.AttributeProto.GRAPH:
                continue
            read = {name for inner in attribute.g.node for name in inner.input}
            assert read & outer, f"{node.name}: {attribute.name}"
            counted += 1
    assert counted >= 3


def test_gpt_ties_its_output_projection_to_the_embedding() -> None:
    graph = make_sample("gpt-small").proto.graph
    readers = [node.op_type for node in graph.node if "transformer.wte.weight" in node.input]
    assert readers == ["Gather", "Transpose"]
