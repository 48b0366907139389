"""Every operator that occurs in reach has a rule."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from dnnp.core.profile.call import Cost
from dnnp.core.profile.families import FAMILY
from dnnp.core.profile.ops import ModelFacts, node_cost, tensor_type
from dnnp.core.profile.table import CONTROL_FLOW, RULES

# Generation loops, whose steps are not known; what selects at run time; what is fused for one
# model, or experimental; plug-ins of TensorRT; what only another layout has.
_BY_BYTES = """
    BeamSearch WhisperBeamSearch GreedySearch Sampling SpeculativePrefixCommit SparsePagedAttention
    DynamicSparseAttention SparseAttentionIndexer PackedSparseAttentionIndexer
    PackedSparseAttentionIndexerMerge MoEGroupRouter MoEPacked AttnLSTM GatedDeltaNet
    GatedDeltaNetStateReplay Mamba2Verify ConvStateReplay EngramGate VarlenCausalConvWithState
    HyperConnectionLowRankMix HyperConnectionPreMix HyperConnectionPostMix WordConvEmbedding
    BifurcationDetector DynamicTimeWarping NGramHashMapping VarlenNGramHashMapping SampleOp
    :EfficientNMS_TRT :MultilevelCropAndResize_TRT :PyramidROIAlign_TRT :DisentangledAttention_TRT
    com.ms.internal.nhwc:QLinearConvTranspose
"""
BY_BYTES = frozenset(
    name.lstrip(":") if ":" in name else f"com.microsoft:{name}" for name in _BY_BYTES.split()
)
"""Operators that are known to have no formula: their bytes alone price them, which is said."""

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def key(domain: str, op: str) -> str:
    return op if domain in ("", "ai.onnx") else f"{domain}:{op}"


def covered(name: str) -> bool:
    """True if the operator has a formula, or is listed as having none; and has a family."""
    listed = (name in RULES) + (name in CONTROL_FLOW) + (name in BY_BYTES)
    return listed == 1 and name.rpartition(":")[2] in FAMILY


def nodes_within(nodes: object) -> Iterator[onnx.NodeProto]:
    for node in nodes:  # type: ignore[attr-defined]
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_within(attribute.g.node)
            for graph in attribute.graphs:
                yield from nodes_within(graph.node)


def load(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def operators_of(model: onnx.ModelProto) -> set[str]:
    """Operators of a model and its functions, calls of these functions left out."""
    local = {(f.domain, f.name) for f in model.functions}
    bodies = [model.graph.node, *(f.node for f in model.functions)]
    found = (node for body in bodies for node in nodes_within(body))
    return {key(n.domain, n.op_type) for n in found if (n.domain, n.op_type) not in local}


def test_models_of_the_onnx_package() -> None:
    paths = sorted(DATA.rglob("*.onnx"))
    assert len(paths) > 100
    for path in paths:
        missing = {name for name in operators_of(load(path)) if not covered(name)}
        assert not missing, path


def test_every_operator_that_onnx_defines() -> None:
    defined = {key(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    assert {name for name in defined if not covered(name)} == set()


def test_operators_of_onnx_runtime() -> None:
    """Nothing falls through: what is not priced is listed as priced by its bytes."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    defined = {key(s.domain, s.name) for s in state.get_all_operator_schema()}
    assert len(defined) > 300
    assert {name for name in defined if not covered(name)} == set()


@pytest.mark.parametrize("name", ["bert6", "gnmt8", "gpt3_1p3b", "resnet50_narrow"])
def test_shared_models(shared_models: Path, name: str) -> None:
    assert all(map(covered, operators_of(load(shared_models / f"{name}.onnx"))))


@pytest.mark.parametrize(
    ("name", "gflop"),
    [
        # Published multiply-adds, doubled: 4.1 G, 19.6 G, 2.9 G (without pooling and the like).
        ("light_resnet50", (8.1, 8.3)),
        ("light_vgg19", (39.2, 39.4)),
        ("light_densenet121", (5.6, 5.9)),
    ],
)
def test_work_of_published_networks(name: str, gflop: tuple[float, float]) -> None:
    costs = [cost for _, cost in priced(load(DATA / "light" / f"{name}.onnx"))]
    assert all(c.known for c in costs)
    assert gflop[0] <= sum(c.flop for c in costs) * 1e-9 <= gflop[1]


def test_sample_models() -> None:
    from dnnp.samples.build import CATALOG, make_sample

    entries = [(name, entry) for name, entry in reversed(CATALOG.items()) if entry.size != "full"]
    chosen = {entry.family: name for name, entry in entries}
    assert len(chosen) > 8
    for name in chosen.values():
        assert all(map(covered, operators_of(make_sample(name).proto))), name


UNSHAPED = {"SequenceMap", "Loop"}
"""Bodies on sequences, which have no shapes, and loops of as many trips as an input says."""


def test_formulas_bear_the_shapes_of_onnx_node_tests() -> None:
    """Each operator's rule applies in all of the package's own single-node models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        cases = collect_testcases(None)
    unknown = set()
    for case in cases:
        if case.model is None or "expanded" in case.name:
            continue
        for node, cost in priced(case.model):
            if not cost.known and node.op_type not in UNSHAPED:
                unknown.add(case.name)
    assert not unknown


def priced(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, Cost]]:
    """Every node of a model with its cost, by shapes from ONNX inference."""
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for info in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = tensor_type(info.type)
        if kind is not None and kind[1] is not None:
            shapes[info.name] = kind[1]
    facts = ModelFacts.of(model)
    for node in model.graph.node:
        yield node, node_cost(node, shapes.get, lambda _: 0.0, None, facts)
