"""--rules ort: groups that ONNX Runtime itself makes of a model, and what splits keep of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnp.core.coarsen.layers import Given, given_labels
from dnnp.core.model.errors import InputFileError, UnavailableError
from dnnp.core.runtime.model.fusions import fused_groups, mapped_back, optimised_model, title
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.rules import load_rules
from dnnp.samples.build import write
from support.fusion import LIGHT, heavy, optimised, regions, stage_operators
from support.op_graphs import op_stream
from support.run import Result, dnnp

pytestmark = pytest.mark.skipif(
    onnxruntime.__version__.rpartition(".")[0] not in load_rules("ort-cpu").versions,
    reason="the rules do not say that they hold for this version of ONNX Runtime",
)

SMALL = (
    "bert-small", "gpt-small", "gnmt-small", "resnet50-small", "mobilenet-v2-small",
    "two-tower-small", "raft-small", "inception-v3-small",
)  # fmt: skip
GROWN = {"gpt-small": "FastGelu", "gpt3_1p3b": "FastGelu", "gnmt-small": "FusedMatMul"}
"""Fusions that ONNX Runtime makes of nothing that is an output of the graph: their groups hold
what reads them too."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write(name, folder) for name in SMALL}


def grouped(path: Path, *arguments: str) -> Result:
    stream = dnnp("import", "-q", path)
    assert stream.status == 0, stream.err
    return dnnp("coarsen", "--rules", "ort", *arguments, stdin=stream.out)


def compare(path: Path) -> None:
    """Groups of several nodes against ONNX Runtime's own nodes, read independently."""
    result = grouped(path)
    assert result.status == 0, result.err
    model = onnx.load(path, load_external_data=False)
    groups = {frozenset(r["nodes"]): r["rule"] for r in result.records("group") if "rule" in r}
    real = regions(model, optimised(model, path.parent))
    held = Counter(v for region in real for v in region)
    units = {r["id"] for r in result.records("node")}
    fused = {frozenset(v for v in region & units if held[v] == 1) for region in real}
    fused = {region for region in fused if len(region) > 1}
    grown = GROWN.get(path.stem, "nothing")
    for region in fused:
        owners = [g for g in groups if region & g]
        assert len(owners) == 1
        assert region <= owners[0]
    for group, rule in groups.items():
        inside = [region for region in fused if region <= group]
        if rule != "ort" and grown not in rule:
            # What is computed in advance for several readers is in no region of its own.
            rest = group - inside[0] if inside else group
            assert len(inside) == 1
            assert {model.graph.node[v].op_type for v in rest} <= LIGHT
    kept = sum(rule != "ort" and grown not in rule for rule in groups.values())
    assert kept <= len(fused)


@pytest.mark.parametrize("name", SMALL)
def test_groups_equal_fused_nodes(name, models):
    compare(models[name])


@pytest.mark.parametrize("name", ["bert6", "resnet50_narrow", "gnmt8"])
def test_groups_equal_fused_nodes_of_real_models(name, shared_models):
    compare(shared_models / f"{name}.onnx")


@pytest.mark.parametrize(
    ("name", "operator", "count", "size"),
    [
        ("bert-small", "SkipLayerNormalization", 9, 10),
        ("gpt-small", "FastGelu+Gemm", 6, 10),
        ("mobilenet-v2-small", "FusedConv", 35, 3),
        ("resnet50-small", "Conv", 20, 2),
        ("two-tower-small", "QuickGelu", 8, 3),
    ],
)
def test_some_groups_by_hand(name, operator, count, size, models):
    records = grouped(models[name]).records("group")
    found = [len(r["nodes"]) for r in records if r.get("rule") == f"ort:{operator}"]
    assert len(found) == count
    assert min(found) == size


@pytest.mark.parametrize("rules", ["ort", ""])
@pytest.mark.parametrize("name", ["gpt-small", "gnmt-small", "mobilenet-v2-small"])
def test_a_split_at_borders_loses_no_fusion(name, rules, models):
    stream = dnnp("import", "-q", models[name])
    coarse = dnnp("coarsen", "-q", *(("--rules", rules) if rules else ()), stdin=stream.out)
    for k in ("2", "4"):
        plan = dnnp("partition", "-q", "-k", k, "--effort", "0.1", stdin=coarse.out)
        assert plan.status == 0, plan.err
        whole, apart, stages = stage_operators(plan.out)
        assert stages > 1
        assert not heavy(whole - apart)
        assert not heavy(apart - whole)


def test_the_check_notices_a_lost_fusion(models):
    """Without groups, a cut in the middle of a fused node shows."""
    stream = dnnp("import", "-q", models["mobilenet-v2-small"])
    plan = dnnp("partition", "-q", "-k", "4", "--effort", "0.1", stdin=stream.out)
    whole, apart, _ = stage_operators(plan.out)
    assert heavy(whole - apart)


class Chain:
    """A model of operators in a row, with weights that need not exist."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def absent(self, name: str, *dims: int) -> str:
        tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        size = 4 * int(np.prod(dims))
        for key, value in (("location", "no.weights"), ("offset", 0), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return name

    def scalar(self, name: str, value: float) -> str:
        self.weights.append(numpy_helper.from_array(np.float32(value), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        made = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], made, **attributes))
        return made

    def save(self, path: Path, *outputs: str, shape: tuple[int, ...] = (4, 8)) -> Path:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "g",
            [value("x", TensorProto.FLOAT, shape)],
            [value(o, TensorProto.FLOAT, None) for o in outputs],
            self.weights,
        )
        opset = [helper.make_opsetid("", 17)]
        path.write_bytes(
            helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
        )
        return path


def groups_of(path: Path) -> dict[str, str]:
    result = grouped(path)
    assert result.status == 0, result.err
    names = {r["id"]: r["name"] for r in result.records("node")}
    return {
        " ".join(names[v] for v in r["nodes"]): r["rule"]
        for r in result.records("group")
        if "rule" in r
    }


def test_weights_may_be_absent(tmp_path):
    """Gigabytes of them: nothing that size is allocated or written."""
    m = Chain()
    big = 1 << 15
    h = m.add("Relu", m.add("Gemm", "x", m.absent("w", 8, big), m.absent("b", big)))
    path = m.save(tmp_path / "m.onnx", m.add("Gemm", h, m.absent("v", big, big)))
    assert groups_of(path) == {"gemm0 relu1": "ort:FusedGemm"}
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_common_subexpressions_stand_alone_and_are_listed(tmp_path):
    m = Chain()
    a, b = m.add("Sin", "x"), m.add("Sin", "x")
    path = m.save(tmp_path / "m.onnx", m.add("Mul", a, m.add("Cos", b)))
    result = grouped(path)
    assert "computes 1 node only once, with an equal one: sin1" in result.err
    assert not [r for r in result.records("group") if "rule" in r]


def test_a_no_op_with_several_readers_joins_its_maker(tmp_path):
    m = Chain()
    i = m.add("Identity", m.add("Sin", "x"))
    path = m.save(tmp_path / "m.onnx", m.add("Mul", m.add("Cos", i), m.add("Tan", i)))
    assert groups_of(path) == {"sin0 identity1": "ort"}


def test_constants_join_their_only_reader(tmp_path):
    m = Chain()
    w = m.add("Transpose", m.absent("w", 16, 8), perm=[1, 0])
    path = m.save(tmp_path / "m.onnx", m.add("Sin", m.add("MatMul", "x", w)))
    assert groups_of(path) == {"transpose0 matmul1": "ort"}


def test_a_fused_transpose_that_others_read_too_ties_its_readers(tmp_path):
    m = Chain()
    t = m.add("Transpose", m.add("Sin", "x"), perm=[1, 0])
    y = m.add("MatMul", m.add("Cos", "x"), t)
    path = m.save(tmp_path / "m.onnx", m.add("Exp", y), m.add("Tan", t))
    assert groups_of(path) == {"transpose1 matmul3 tan5": "ort:FusedMatMul+Tan"}


def test_a_group_holds_what_lies_between(tmp_path):
    """The fused product also reads what was made of the Transpose by another way."""
    m = Chain()
    t = m.add("Transpose", m.add("Sin", "x"), perm=[1, 0])
    s = m.add("Softmax", m.add("Transpose", m.add("Tan", t), perm=[1, 0]))
    path = m.save(tmp_path / "m.onnx", m.add("Exp", m.add("MatMul", s, t)))
    (names,) = groups_of(path)
    assert names == "transpose1 tan2 transpose3 softmax4 matmul5"


def test_given_groups_are_cut_where_they_must():
    stream = op_stream("a = A(x)", "b = B(a)", "c = C(b)", "d = D(c)")
    stream.get("node")[1]["backward"] = True
    graph = graph_of(stream)
    label = given_labels(graph, Given([[0, 1], [2, 3]], ["p", "q"])).tolist()
    assert label[0] != label[1]
    assert label[2] == label[3]
    # B lies between A and C, but runs in the other pass.
    label = given_labels(graph, Given([[0, 2]], ["p"])).tolist()
    assert len(set(label)) == 4


def test_composes_with_the_other_levels(models):
    path = models["bert-small"]
    fused = [frozenset(r["nodes"]) for r in grouped(path).records("group")]
    for more in (("--chains",), ("--layers",), ("--to", "6"), ("--chains", "--to", "5")):
        result = grouped(path, *more)
        assert result.status == 0, result.err
        coarse = [frozenset(r["nodes"]) for r in result.records("group")]
        assert all(any(f <= c for c in coarse) for f in fused)
        assert len(coarse) < len(fused)
        assert dnnp("check", stdin=result.out).status == 0
    assert len(coarse) == 5


def test_another_model_is_refused(models):
    stream = dnnp("import", "-q", models["bert-small"])
    other = dnnp("coarsen", "--rules", "ort", "--model", models["gpt-small"], stdin=stream.out)
    assert (other.status, other.out) == (3, b"")
    assert "not the model that was imported" in other.err
    assert other.err.count("\n") == 1


def test_a_moved_model_is_found(models, tmp_path):
    stream = dnnp("import", "-q", models["gnmt-small"])
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(models["gnmt-small"].read_bytes())
    direct = dnnp("coarsen", "--rules", "ort", stdin=stream.out)
    found = dnnp("coarsen", "--rules", "ort", "--model", moved, stdin=stream.out)
    assert found.records("group") == direct.records("group")


def test_a_model_that_cannot_be_loaded(tmp_path):
    m = Chain()
    path = m.save(tmp_path / "m.onnx", m.add("NoSuchOperator", "x"))
    result = grouped(path)
    assert (result.status, result.out) == (1, b"")
    assert "ONNX Runtime cannot load the model" in result.err
    assert result.err.count("\n") == 1


def test_a_missing_provider(models):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build has the CUDA provider")
    result = grouped(models["gnmt-small"], "--provider", "cuda")
    assert (result.status, result.out) == (7, b"")
    assert "provider 'cuda' is not in this build of onnxruntime" in result.err
    with pytest.raises(UnavailableError):
        optimised_model(onnx.load(models["gnmt-small"]), Path(), "cuda")


def test_errors_of_the_functions(tmp_path):
    m = Chain()
    model = onnx.load(m.save(tmp_path / "m.onnx", m.add("NoSuchOperator", "x")))
    with pytest.raises(InputFileError, match="ONNX Runtime cannot load the model"):
        fused_groups(model, tmp_path)


def test_a_model_that_stays_as_it_is(tmp_path):
    m = Chain()
    model = onnx.load(m.save(tmp_path / "m.onnx", m.add("Cos", m.add("Sin", "x"))))
    fusions = mapped_back(model, optimised_model(model, tmp_path))
    assert fusions.groups == fusions.operators == fusions.duplicates == fusions.folded == ()


def test_titles():
    assert title(("Cast", "Reshape")) == "Cast+Reshape"
    assert title(("A", "B", "C", "D", "A")) == "A+B+C+..."
