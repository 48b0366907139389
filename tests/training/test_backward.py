"""The backward pass that dnnp-import --training adds: structure, work and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import dnnp
from dnnp.callbacks import Callbacks
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.training import Optimizer, train
from dnnp.samples import build
from support.run import dnnp as command

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


class Listening(Callbacks):
    """Keeps what it is warned of."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def warn(self, message: str) -> None:
        self.heard.append(message)


def save(path, nodes, inputs, outputs, weights):
    """A model of nodes (op, reads, writes[, attributes]); weights by name, of ones."""
    made = [
        helper.make_node(op, reads, writes, name=f"{op}{i}", **(rest[0] if rest else {}))
        for i, (op, reads, writes, *rest) in enumerate(nodes)
    ]
    graph = helper.make_graph(
        made,
        "m",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in outputs.items()],
        [onnx.numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    """Two layers: x[4, 8] w1[8, 16] + b1, relu, w2[16, 2]."""
    return save(
        tmp_path / "mlp.onnx",
        [
            ("MatMul", ["x", "w1"], ["h"]),
            ("Add", ["h", "b1"], ["a"]),
            ("Relu", ["a"], ["r"]),
            ("MatMul", ["r", "w2"], ["y"]),
        ],
        {"x": (FLOAT, [4, 8])},
        {"y": (FLOAT, [4, 2])},
        {"w1": (8, 16), "b1": (16,), "w2": (16, 2)},
    )


def by_op(graph):
    """Backward nodes by operator type, with the names of what they read and write."""
    name = {t["id"]: t["name"] for t in graph.tensors}
    return {
        n["op"]: ([name[t] for t in n["inputs"]], [name[t] for t in n["outputs"]], n)
        for n in graph.nodes
        if n.get("backward")
    }


def test_two_layers_by_hand(mlp: Path) -> None:
    graph = dnnp.load(mlp, training=True)
    late = [n for n in graph.nodes if n.get("backward")]
    assert [n["op"] for n in late] == ["Loss", "MatMulGrad", "ReluGrad", "AddGrad", "MatMulGrad"]
    name = {t["id"]: t["name"] for t in graph.tensors}
    read = [[name[t] for t in n["inputs"]] for n in late]
    made = [[name[t] for t in n["outputs"]] for n in late]
    # The last product makes a gradient of r, with w2, and of w2, with r; the first one that of w1
    # alone, as x has none. Relu looks at what it wrote; an addend needs nothing.
    assert read == [["y"], ["r", "w2", "y.grad"], ["r", "r.grad"], ["a.grad"], ["x", "h.grad"]]
    assert made == [["y.grad"], ["r.grad"], ["a.grad"], ["h.grad"], []]
    last, first = 2 * 4 * 16 * 2, 2 * 4 * 8 * 16
    assert [n["flop"] for n in late] == [8, 2 * last, 64, 64, first]
    forward = {n["name"]: n for n in graph.nodes if not n.get("backward")}
    assert forward["MatMul0"]["flop"] == first
    # Adam: weights, gradients, two numbers a weight; h and a are not kept, r is, and y by the loss.
    memory = {n["name"]: n["memory_bytes"] for n in graph.nodes}
    assert memory["MatMul0"] == 4 * 8 * 16
    assert memory["Add1"] == 4 * 16
    assert memory["Relu2"] == 4 * 4 * 16
    assert memory["MatMul3"] == 4 * 16 * 2 + 4 * 4 * 2
    assert memory["MatMul0.grad"] == 3 * 4 * 8 * 16
    assert memory["Add1.grad"] == 3 * 4 * 16
    assert sum(memory.values()) == 4 * (4 * (128 + 16 + 32) + 64 + 8)
    held = {n["name"]: n["held_bytes"] for n in graph.nodes if "held_bytes" in n}
    assert held == {"MatMul0": 0, "Add1": 0, "Relu2": 4 * 4 * 16, "MatMul3": 4 * 4 * 2}
    colors = {n["name"]: n["color"] for n in graph.nodes}
    for pair in ("MatMul0", "Add1", "Relu2", "MatMul3"):
        assert colors[pair] == colors[f"{pair}.grad"]
    assert colors["y.loss"] == colors["MatMul3"]
    assert len(set(colors.values())) == 4
    of = {n["id"]: n["name"] for n in graph.nodes}
    assert {n["name"]: of[n["of"]] for n in late if "of" in n} == {
        f"{pair}.grad": pair for pair in ("MatMul0", "Add1", "Relu2", "MatMul3")
    }


@pytest.mark.parametrize(("optimizer", "numbers"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
@pytest.mark.parametrize("mixed", [False, True])
def test_memory_of_optimizers(mlp: Path, optimizer: str, numbers: int, mixed: bool) -> None:
    graph = dnnp.load(mlp, training=True, optimizer=optimizer, mixed_precision=mixed)
    weights = 128 + 16 + 32
    each = (2 + 2 + 4 if mixed else 4 + 4) + 4 * numbers
    activations = (64 + 8) * (2 if mixed else 4)
    assert sum(n["memory_bytes"] for n in graph.nodes) == weights * each + activations
    # Only activations are there once for every micro-batch under way.
    assert sum(n.get("held_bytes", 0) for n in graph.nodes) == activations
    assert {t["dtype"] for t in graph.tensors} == {"float16" if mixed else "float32"}


def test_gradients_of_several_readers_are_added_up(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [
            ("MatMul", ["x", "w"], ["h"]),
            ("Tanh", ["h"], ["a"]),
            ("Sigmoid", ["h"], ["b"]),
            ("Mul", ["a", "b"], ["y"]),
        ],
        {"x": (FLOAT, [4, 8])},
        {"y": (FLOAT, [4, 8])},
        {"w": (8, 8)},
    )
    read, _, node = by_op(dnnp.load(path, training=True))["MatMulGrad"]
    assert read == ["x", "h.grad", "h.grad"]
    assert node["flop"] == 2 * 4 * 8 * 8 + 32


def test_shared_weights_share_a_color(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [
            ("MatMul", ["x", "w"], ["h"]),
            ("Relu", ["h"], ["r"]),
            ("MatMul", ["r", "w"], ["y"]),
        ],
        {"x": (FLOAT, [4, 8])},
        {"y": (FLOAT, [4, 8])},
        {"w": (8, 8)},
    )
    graph = dnnp.load(path, training=True)
    colors = [n["color"] for n in graph.nodes if n["op"].startswith("MatMul")]
    assert len(colors) == 4
    assert len(set(colors)) == 1
    assert sum(n["memory_bytes"] for n in graph.nodes) == 4 * (4 * 64 + 2 * 32)
    plan = dnnp.split(graph, k=2)
    assert plan.plan is not None


def test_what_has_no_gradient_ends_the_way(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [
            ("Gather", ["table", "ids"], ["e"], {"axis": 0}),
            ("MatMul", ["e", "w"], ["h"]),
            ("ArgMax", ["h"], ["best"], {"axis": 1}),
            ("Floor", ["h"], ["low"]),
            ("Add", ["low", "bias"], ["z"]),
            ("Softmax", ["h"], ["p"]),
        ],
        {"ids": (INT, [4])},
        {"p": (FLOAT, [4, 6]), "best": (INT, [4, 1]), "z": (FLOAT, [4, 6])},
        {"table": (100, 8), "w": (8, 6), "bias": (6,)},
    )
    graph = dnnp.load(path, training=True)
    late = by_op(graph)
    assert set(late) == {"Loss", "SoftmaxGrad", "MatMulGrad", "GatherGrad", "AddGrad"}
    assert late["GatherGrad"][0] == ["ids", "e.grad"]
    # Rows that were read are read and written again, not the whole table.
    rows = 4 * 4 * 8
    assert late["GatherGrad"][2]["bytes"] == 4 * 8 + 3 * rows
    one = dnnp.load(path, training=True, loss=["p"])
    assert set(by_op(one)) == {"Loss", "SoftmaxGrad", "MatMulGrad", "GatherGrad"}
    with pytest.raises(UsageError, match="--loss best: no gradient goes from there"):
        dnnp.load(path, training=True, loss=["best"])
    with pytest.raises(UsageError, match="--loss q: the model has no such output; it has best"):
        dnnp.load(path, training=True, loss=["q"])


def test_nothing_to_train(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [("Relu", ["x"], ["y"])],
        {"x": (FLOAT, [4])},
        {"y": (FLOAT, [4])},
        {},
    )
    done = command("import", "--training", path)
    assert done.status == 2
    assert done.err == (
        "dnnp-import: nothing to train: no gradient goes from an output to a parameter\n"
    )


def test_unknown_operators_are_said(tmp_path: Path, mlp: Path) -> None:
    model = onnx.load(mlp)
    model.graph.node[2].op_type, model.graph.node[2].domain = "Sparkle", "my.ops"
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("r", FLOAT, [4, 16]))
    onnx.save(model, tmp_path / "m.onnx")
    done = command("import", "--training", tmp_path / "m.onnx")
    assert done.status == 0
    assert "no rule for gradients of Sparkle (1): taken as twice the forward pass" in done.err


@pytest.mark.parametrize(
    "options", [["--optimizer", "sgd"], ["--mixed-precision"], ["--loss", "y"]]
)
def test_options_of_training_alone(mlp: Path, options: list[str]) -> None:
    done = command("import", mlp, *options)
    assert (done.status, done.err) == (2, f"dnnp-import: {options[0]} is for --training\n")


def test_only_models_are_trained() -> None:
    done = command("import", "--from", "msr-json", "--training", "-", stdin=b"{}")
    assert (done.status, done.err) == (
        2,
        "dnnp-import: --training is for ONNX models, not for msr-json\n",
    )


@st.composite
def records(draw):
    """Records of a random model of elementwise operators, products and dead ends."""
    count = draw(st.integers(1, 12))
    tensors = [{"type": "tensor", "id": 0, "name": "x", "kind": "input"}]
    nodes = []

    def tensor(kind: str) -> int:
        tensors.append(
            {"type": "tensor", "id": len(tensors), "name": f"t{len(tensors)}", "kind": kind}
        )
        return len(tensors) - 1

    made = [0]
    weights = [tensor("parameter") for _ in range(draw(st.integers(1, 3)))]
    for i in range(count):
        op = draw(st.sampled_from(["Add", "Mul", "MatMul", "Relu", "Floor", "Reshape", "Tanh"]))
        one = op in ("Relu", "Floor", "Reshape", "Tanh")
        reads = [draw(st.sampled_from(made + ([] if one else weights)))]
        if not one:
            reads.append(draw(st.sampled_from([*made, *weights])))
        out = tensor("activation")
        made.append(out)
        reads = list(dict.fromkeys(reads))
        nodes.append(
            {"type": "node", "id": i, "name": f"n{i}", "op": op, "inputs": reads, "outputs": [out],
             "flop": 10, "bytes": 100}
        )  # fmt: skip
    read = {t for node in nodes for t in node["inputs"]}
    for t in tensors:
        t |= {"size_bytes": 16, "dtype": "float32", "shape": [2, 2]}
        if t["kind"] == "activation" and t["id"] not in read:
            t["output"] = True
    return tensors, nodes


@settings(max_examples=150)
@given(records())
def test_gradients_reach_what_chains_of_derivatives_reach(drawn) -> None:
    """Against forward sensitivities: a parameter is trained if some path of operators that have a
    gradient leads from it to an output."""
    tensors, nodes = drawn
    reached: dict[int, set[int]] = {
        t["id"]: {t["id"]} if t["kind"] == "parameter" else set() for t in tensors
    }
    for node in nodes:
        if node["op"] != "Floor":
            for t in node["outputs"]:
                reached[t] = set().union(*(reached[u] for u in node["inputs"]))
    wanted = set().union(*(reached[t["id"]] for t in tensors if t.get("output")))
    if not wanted:
        with pytest.raises(UsageError, match="nothing to train"):
            train(tensors, nodes, Optimizer())
        return
    made = train(tensors, nodes, Optimizer())
    assert made.parameters == len(wanted)
    late = [node for node in made.nodes if node.get("backward")]
    # In an order that can run, every tensor made once, every gradient read.
    known = {t["id"] for t in tensors if t["kind"] != "activation"}
    for node in made.nodes:
        assert set(node["inputs"]) <= known
        assert not known & set(node["outputs"])
        known.update(node["outputs"])
    assert known == {t["id"] for t in made.tensors}
    gradients = {t["id"] for t in made.tensors} - {t["id"] for t in tensors}
    assert gradients == {t for node in late for t in node["outputs"]}
    assert gradients <= {t for node in late for t in node["inputs"]}
    # Weights, gradients and two numbers of Adam, each once; and what is kept.
    kept = {t for node in late for t in node["inputs"]} & {
        t["id"] for t in tensors if t["kind"] == "activation"
    }
    weights = {t for node in nodes for t in node["inputs"] if tensors[t]["kind"] == "parameter"}
    total = sum(node["memory_bytes"] for node in made.nodes)
    assert total == 16 * (len(weights) + 3 * len(wanted) + len(kept))
    # Who makes gradients of one parameter is on one device.
    color = {node["id"]: node.get("color") for node in made.nodes}
    for node in late:
        if "of" in node:
            assert color[node["id"]] == color[node["of"]]
    for t in wanted:
        readers = {
            color[n["of"]]
            for n in late
            if "of" in n and t in nodes[n["of"]]["inputs"]
            if n["op"] != "FloorGrad"
        }
        assert len(readers) == 1
    with pytest.raises(FormatError, match="a backward pass already"):
        train(made.tensors, made.nodes, Optimizer())


@pytest.mark.parametrize("name", ["bert", "mobilenet-v2", "moe", "gnmt", "dlrm"])
def test_models_from_import_to_schedule(name: str, tmp_path: Path) -> None:
    path = build.write(f"{name}-small", tmp_path)
    warned: list[str] = []
    graph = dnnp.load(path, training=True, caller=Listening(warned))
    assert not [text for text in warned if "no rule" in text]
    graph = dnnp.profile(dnnp.coarsen(graph))
    plain = dnnp.profile(dnnp.coarsen(dnnp.load(path)))
    forward = sum(g["time_s"]["cpu-core"] for g in plain.groups)
    whole = sum(g["time_s"]["cpu-core"] for g in graph.groups)
    # Products take twice as long backwards, and what lies between them once; and what is kept for
    # them is written, which fused kernels of inference do not.
    assert 2.0 < whole / forward < 3.3
    plan = dnnp.schedule(dnnp.split(graph, k=2, method="heuristic", effort=0.1), micro_batches=4)
    assert dnnp.check(plan).ok
