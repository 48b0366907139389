"""`--to subgraph`: parts of models compute what the whole model computes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.formats.onnx import fixed_inputs
from dnnp.formats.onnx.scope import reads, writes
from dnnp.formats.onnx.value_types import describe, find_types
from support.run import dnnp
from support.split_models import MODELS, array, graph, make, node, value

RNG = np.random.default_rng(3)


def layers(batch: int | str = 4) -> onnx.ModelProto:
    """Layers with names as exporters write them; a skip goes over all but the first."""
    nodes, stored, last = [], [], "x"
    for i in range(5):
        stored.append(array(f"w{i}", RNG.standard_normal((8, 8)) / 3))
        name = f"/layers.{i}/mlp"
        nodes.append(node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"{name}/MatMul"))
        nodes.append(node("Tanh", [f"m{i}"], [f"t{i}"], name=f"{name}/Tanh"))
        last = f"t{i}"
    nodes.append(node("Sum", [last, "t0"], ["y"], name="/head/Sum"))
    ends = [value("x", [batch, 8])], [value("y", [batch, 8])]
    return make(graph(nodes, "layers", *ends, stored))


def imported(folder: Path, model: onnx.ModelProto, *options: str) -> bytes:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    done = dnnp("import", path, *options)
    assert done.status == 0, done.err
    return done.out


def tensors(model: onnx.ModelProto, feeds: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Values of tensors of a model, without optimisation."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    known = {output.name for output in seen.graph.output}
    known |= {v.name for v in seen.graph.input} | {t.name for t in seen.graph.initializer}
    seen.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(seen.SerializeToString(), options)
    wanted = [output.name for output in session.get_outputs()]
    return dict(zip(wanted, session.run(wanted, feeds), strict=True))


def check(part: onnx.ModelProto, model: onnx.ModelProto) -> int:
    """Compare the outputs of a part with the whole model's tensors; how many there are."""
    stored = {tensor.name for tensor in part.graph.initializer}
    stored |= {tensor.values.name for tensor in part.graph.sparse_initializer}
    inputs = [v.name for v in part.graph.input if v.name not in stored]
    outputs = [v.name for v in part.graph.output]
    sample = dict(random_inputs(model, 5))
    whole = {**sample, **tensors(model, sample, [*inputs, *outputs])}
    got = tensors(part, {name: whole[name] for name in inputs}, [])
    for name in outputs:
        np.testing.assert_allclose(got[name], whole[name], rtol=1e-5, atol=1e-6)
    return len(outputs)


CASES = [
    (["--from", "t1", "--upto", "t3"], ["t1"], ["t3"], 4),
    (["--upto", "m2"], ["x"], ["m2"], 5),
    (["--from", "t2"], ["t2", "x"], ["y"], 7),
    (["--from", "t2", "--from", "t0"], ["t0", "t2"], ["y"], 5),
    (["--from", "t1", "--upto", "m2", "--upto", "t3"], ["t1"], ["m2", "t3"], 4),
]

CASES += [
    (["--part", "layers.2"], ["t1"], ["t2"], 2),
    (["--part", "layers.0"], ["x"], ["t0"], 2),
    (["--part", "layers.1", "--part", "layers.3"], ["t0", "t2"], ["t1", "t3"], 4),
    (["--part", "/layers.4/mlp/Tanh", "--part", "head"], ["m4", "t0"], ["y"], 2),
    (["--part", "layers.*", "--from", "t1", "--upto", "t2"], ["t1"], ["t2"], 2),
    (["--part", "w3"], ["t2"], ["m3"], 1),
]


@pytest.mark.parametrize(("options", "inputs", "outputs", "count"), CASES)
def test_parts(
    options: list[str], inputs: list[str], outputs: list[str], count: int, tmp_path: Path
) -> None:
    model, path = layers(), tmp_path / "part.onnx"
    done = dnnp("export", "--to", "subgraph", *options, "-o", path, stdin=imported(tmp_path, model))
    assert done.status == 0, done.err
    part = onnx.load(path)
    onnx.checker.check_model(part, full_check=True)
    assert sorted(v.name for v in part.graph.input) == inputs
    assert [v.name for v in part.graph.output] == outputs
    assert len(part.graph.node) == count
    assert check(part, model) == len(outputs)
    assert ": verified" in done.err


def test_free_sizes_stay_free(tmp_path: Path) -> None:
    stream = imported(tmp_path, layers("batch"), "--dim", "batch=3")
    done = dnnp("export", "--to", "subgraph", "--from", "t1", "--upto", "t2", stdin=stream)
    assert done.status == 0, done.err
    part = onnx.load_from_string(done.out)
    (entry,) = part.graph.input
    assert not entry.type.tensor_type.shape.dim[0].HasField("dim_value")
    assert entry.type.tensor_type.shape.dim[1].dim_value == 8
    for batch in (1, 6):
        session = ort.InferenceSession(done.out)
        assert session.run(None, {"t1": np.ones((batch, 8), np.float32)})[0].shape == (batch, 8)


def test_weights_beside_the_model_come_along(tmp_path: Path) -> None:
    model, path = layers(), tmp_path / "model.onnx"
    stream = imported(tmp_path, model)
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    stream = dnnp("import", path).out
    done = dnnp("export", "--to", "subgraph", "--from", "t1", "--upto", "t2", stdin=stream)
    assert done.status == 0, done.err
    part = onnx.load_from_string(done.out)
    assert [t.name for t in part.graph.initializer] == ["w2"]
    assert check(part, onnx.load(path)) == 1
    (tmp_path / "w.bin").unlink()
    done = dnnp("export", "--to", "subgraph", "--from", "t1", "--upto", "t2", stdin=stream)
    assert (done.status, done.out) == (1, b"")
    assert "w.bin: no such file" in done.err


PART = ["--to", "subgraph"]
MISTAKES = [
    ([*PART, "--upto", "tt3"], 2, "the model has no tensor 'tt3'; did you mean 't3'?"),
    ([*PART, "--from", "X"], 2, "the model has no tensor 'X'; did you mean 'x'?"),
    ([*PART, "--part", "layer.2"], 2, "no node, layer or weight is called 'layer.2'; nearest: "),
    (["--part", "layers.2", "-o", "new"], 2, "--part is for --to subgraph"),
    ([*PART, "--from", "t3", "--upto", "t1"], 2, "the part is on a way from or to 't3'"),
    ([*PART, "--from", "t1", "--upto", "t1"], 2, "from or to 't1'"),
    (["--upto", "t1", "-o", "new"], 2, "--upto is for --to subgraph"),
    ([*PART, "-o", "empty"], 1, "Is a directory"),
    ([*PART, "-o", "no/part.onnx"], 1, "No such file or directory"),
    ([*PART, "-o", "model.onnx"], 2, "would overwrite the model"),
]


@pytest.mark.parametrize(("options", "status", "words"), MISTAKES)
def test_mistakes(
    options: list[str], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = imported(tmp_path, layers())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    done = dnnp("export", *options, stdin=stream)
    assert (done.status, words in done.err) == (status, True), done.err
    assert done.out == b""


def test_a_part_that_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fixed_inputs.part_model

    def wrong(*arguments: Any) -> onnx.ModelProto:
        part = right(*arguments)
        part.graph.node[-1].op_type = "Sigmoid"
        return part

    monkeypatch.setattr(fixed_inputs, "part_model", wrong)
    path = tmp_path / "part.onnx"
    options = ("--to", "subgraph", "--from", "t1", "--upto", "t2", "-o", path)
    done = dnnp("export", *options, stdin=imported(tmp_path, layers()))
    assert done.status == 6
    assert "output 't2' of the part: 32 of 32 values differ" in done.err
    assert not path.exists()


def test_any_nodes_of_any_model() -> None:
    """Sets of nodes at random, of models with bodies, functions, constants and sparse weights."""
    compared = 0
    for number, build in enumerate(MODELS.values()):
        model = build()
        nodes, names = model.graph.node, {n for v in model.graph.node for n in writes(v)}
        types = find_types(model, names)
        plain = {name for name, kind in types.items() if describe(kind).is_tensor}
        for seed in range(6):
            rng = np.random.default_rng([number, seed])
            chosen = {v for v in range(len(nodes)) if rng.random() < 0.6}
            outside = {n for v, made in enumerate(nodes) if v not in chosen for n in reads(made)}
            outside |= {output.name for output in model.graph.output}
            ends = [n for v in sorted(chosen) for n in writes(nodes[v]) if n in outside & plain]
            made = {n for v, node in enumerate(nodes) if v not in chosen for n in writes(node)}
            crossing = {n for v in chosen for n in reads(nodes[v])} & made
            if ends and crossing <= plain:
                compared += check(fixed_inputs.part_model(model, chosen, ends, types), model)
    assert compared > 100
