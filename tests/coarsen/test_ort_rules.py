"""The bundled ONNX Runtime rules against what ONNX Runtime itself writes after optimising."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from dnnp.formats.inputs.rules import load_rules
from support.fusion_cases import CASES, IMAGE, SEQUENCE, Model, conv, norm, write_case
from support.run import dnnp

pytestmark = pytest.mark.skipif(
    onnxruntime.__version__.rpartition(".")[0] not in load_rules("ort-cpu").versions,
    reason="the rules do not say that they hold for this version of ONNX Runtime",
)

Regions = list[tuple[str, frozenset[str]]]


def optimised(path: Path, level: str) -> onnx.ModelProto:
    """The model as ONNX Runtime rewrites it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
    )
    target = path.with_suffix(f".{level}.onnx")
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(target)


def regions(original: onnx.ModelProto, fused: onnx.ModelProto) -> Regions:
    """Original nodes that each fused node stands for: back from its outputs to its inputs."""
    maker = {o: n for n in original.graph.node for o in n.output}
    kept = {o for n in fused.graph.node for o in n.output}
    found = []
    for node in fused.graph.node:
        inside: set[str] = set()
        todo = [o for o in node.output if o in maker]
        while todo:
            made_by = maker[todo.pop()]
            inside.add(made_by.name)
            todo += [
                i
                for i in made_by.input
                if i in maker
                and i not in kept
                and i not in node.input
                and maker[i].name not in inside
            ]
        found.append((node.op_type, frozenset(inside)))
    return found


def predicted(path: Path, rules: str = "ort-cpu") -> set[frozenset[str]]:
    """Groups of dnnp-coarsen --rules, as names of nodes."""
    stream = dnnp("import", path)
    assert stream.status == 0, stream.err
    result = dnnp("coarsen", "--rules", rules, stdin=stream.out)
    assert result.status == 0, result.err
    name = {r["id"]: r["name"] for r in result.records("node")}
    return {frozenset(name[v] for v in r["nodes"]) for r in result.records("group")}


def several(groups: set[frozenset[str]]) -> set[frozenset[str]]:
    return {g for g in groups if len(g) > 1}


# ONNX Runtime copies a DequantizeLinear to each reader, a shared one can be in no group.
COPIED = {"q_shared"}

# The transpose optimiser, a layout pass, joins these; --rules ort leaves such passes out.
BY_LAYOUT = {"transposes"}

# ONNX Runtime makes no FastGelu of an output of the graph: its only reader joins the group.
WITH_READER = {"fast_gelu", "fast_gelu_other", "bias_fast_gelu"}


@pytest.mark.parametrize("rules", ["ort-cpu", "ort"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_groups_are_what_onnx_runtime_fuses(name, rules, tmp_path):
    path = tmp_path / "m.onnx"
    proto = write_case(name, path)
    real = {inside for _, inside in regions(proto, optimised(path, "EXTENDED"))}
    found = several(predicted(path, rules))
    if rules == "ort" and name in BY_LAYOUT:
        real = set()
    if name in COPIED:
        assert found <= {group & region for region in real for group in found}
        assert found
    elif name in WITH_READER:
        (region,), (group,) = several(real), found
        assert region < group
        assert [n.split("_")[0] for n in group - region] == ["Sin"]
    else:
        assert found == several(real)


@pytest.mark.parametrize("op", ["", "Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish"])
@pytest.mark.parametrize("add", ["Add", "Sum"])
def test_residual_convolutions(add, op, tmp_path):
    """At the last level, a convolution also takes in the sum behind it."""
    model = Model(17)
    x = conv(model, model.input("x", *IMAGE))
    y = model(add, norm(model, conv(model, x)), x)
    y = model(op, y) if op else y
    proto = model.build(model("GlobalAveragePool", y))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    left = [n.op_type for n in optimised(path, "ALL").graph.node]
    assert not {add, op, "BatchNormalization"} & set(left)
    (group,) = several(predicted(path))
    assert sorted(n.split("_")[0] for n in group) == sorted(
        ["Conv", "BatchNormalization", add, *([op] if op else [])]
    )


@pytest.mark.parametrize("op", ["LeakyRelu", "Elu"])
def test_residual_convolutions_with_other_activations(op, tmp_path):
    model = Model(17)
    x = conv(model, model.input("x", *IMAGE))
    proto = model.build(model("GlobalAveragePool", model(op, model("Add", conv(model, x), x))))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    left = [n.op_type for n in optimised(path, "ALL").graph.node]
    assert (op in left, "Add" in left) == (True, False)
    assert several(predicted(path)) == {frozenset({"Conv_1", "Add_2"})}


def test_what_is_known_in_advance(tmp_path):
    """ONNX Runtime computes these when it loads the model; the group goes to their readers."""
    model = Model(17)
    x = model("Sin", model.input("x", *SEQUENCE))
    rows = model("Gather", model("Shape", x), model.constant([0]))
    target = model("Concat", rows, model.constant([-1]), axis=0)
    turned = model("Transpose", model.weight(16, 128), perm=[1, 0])
    y = model("MatMul", model("Reshape", x, target), turned)
    proto = model.build(model("Sin", y))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    left = [n.op_type for n in optimised(path, "EXTENDED").graph.node]
    assert left == ["Sin", "Reshape", "MatMul", "Sin"]
    assert several(predicted(path)) == {
        frozenset({"Shape_1", "Gather_2", "Concat_3", "Reshape_5"}),
        frozenset({"Transpose_4", "MatMul_6"}),
    }


# What ONNX Runtime moves about or makes of shapes is not a fusion.
LIGHT = {"Transpose", "Reshape", "Shape", "Cast", "Expand", "Where"}


@pytest.mark.parametrize(("name", "least"), [("bert6", 60), ("resnet50_narrow", 33), ("gnmt8", 12)])
def test_real_models(name, least, shared_models, tmp_path):
    """No fusion of an operator with work to do is missed."""
    path = tmp_path / "m.onnx"
    path.write_bytes((shared_models / f"{name}.onnx").read_bytes())
    original = onnx.load(path, load_external_data=False)
    ops = {n.name: n.op_type for n in original.graph.node}
    groups = predicted(path)
    fused, missed = 0, []
    for _, inside in regions(original, optimised(path, "EXTENDED")):
        nodes = frozenset(n for n in inside if ops[n] not in ("Constant", "ConstantOfShape"))
        kinds = {ops[n] for n in nodes}
        if len(nodes) < 2 or "Transpose" in kinds or kinds & {"Where", "And"} or kinds <= LIGHT:
            continue
        if any(nodes <= group for group in groups):
            fused += 1
        else:
            missed.append(sorted(ops[n] for n in nodes))
    assert fused >= least
    assert all("Shape" in kinds for kinds in missed)
    assert len(missed) <= 1
