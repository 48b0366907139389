"""Random weights in place of constant ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.runtime.model import weights as module
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import CpuStage, make_session
from dnnp.core.runtime.model.weights import random_weights, use_weights
from support.split_models import array, graph, make, node, value


def shape(name: str, *dims: int) -> TensorProto:
    return array(name, dims, np.int64)


def network() -> onnx.ModelProto:
    """Convolution, normalisation, residual branch and classifier with constant weights."""
    made = {
        "w1": (8, 3, 3, 3),
        "b1": (8,),
        "w2": (8, 8, 3, 3),
        "gamma": (8,),
        "beta": (8,),
        "mean": (8,),
        "var": (8,),
        "fc": (10, 8),
        "counts": (8,),
    }
    nodes = [
        node("ConstantOfShape", [f"{n}_shape"], [n], value=array("", [0.02]))
        for n in list(made)[:-1]
    ]
    nodes += [
        node("ConstantOfShape", ["counts_shape"], ["counts"], value=array("", [3], np.int64)),
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4),
        node("BatchNormalization", ["c2", "gamma", "beta", "mean", "var"], ["n2"]),
        node("Sum", ["n2", "r1"], ["s"]),
        node("GlobalAveragePool", ["s"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "fc"], ["g"], transB=1),
        node("Softmax", ["g"], ["y"]),
        node("Identity", ["counts"], ["z"]),
    ]
    stored = [shape(f"{n}_shape", *dims) for n, dims in made.items()]
    outputs = [value("y", [1, 10]), value("z", [8], TensorProto.INT64)]
    return make(graph(nodes, "net", [value("x", [1, 3, 16, 16])], outputs, stored))


def test_roles_decide_what_is_drawn() -> None:
    model = network()
    drawn = random_weights(model, 1)
    assert sorted(drawn) == ["b1", "beta", "fc", "gamma", "mean", "var", "w1", "w2"]
    assert all(w.dtype == np.float32 for w in drawn.values())
    assert drawn["w1"].std() == pytest.approx((1 / 27) ** 0.5, rel=0.1)
    assert drawn["w2"].std() == pytest.approx(0.25 * (2 / 72) ** 0.5, rel=0.1)
    assert drawn["var"].min() >= 0.5
    assert drawn["gamma"].min() >= 0.8


def test_seed_and_name_decide() -> None:
    first, again, other = (random_weights(network(), seed) for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert not np.array_equal(first["gamma"], first["var"])


def test_the_model_computes_with_them() -> None:
    model = network()
    drawn = random_weights(model, 1)
    used = use_weights(model, drawn)
    assert [n.op_type for n in used.graph.node].count("ConstantOfShape") == 1
    assert [n.op_type for n in model.graph.node].count("ConstantOfShape") == 9
    session = make_session(used, Path(), SessionConfig(), weights=drawn)
    stage = CpuStage(session, ("y", "z"))
    rng = np.random.default_rng(0)
    a, b = (stage({"x": rng.standard_normal((1, 3, 16, 16), np.float32)}) for _ in range(2))
    assert np.isfinite(a["y"]).all()
    assert 0.1 < a["y"].max() < 0.9
    assert np.abs(a["y"] - b["y"]).max() > 1e-3
    assert set(a["z"]) == {3}


def test_normalisations_behind_drawn_weights_are_drawn_too() -> None:
    model = network()
    kept = [n for n in model.graph.node if n.output[0] != "var"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.graph.initializer.append(array("var", [1e-9] * 8))
    drawn = random_weights(model, 1)
    assert drawn["var"].min() >= 0.5
    assert random_weights(model, 1).keys() == drawn.keys()


def absent() -> onnx.ModelProto:
    tensor = TensorProto(name="W", data_type=1, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="gone.bin")
    shapes = ([4], [4])
    nodes = [node("MatMul", ["x", "W"], ["y"])]
    return make(graph(nodes, "m", [value("x", shapes[0])], [value("y", shapes[1])], [tensor]))


def test_absent_weights_are_drawn(tmp_path: Path) -> None:
    model = absent()
    drawn = random_weights(model, 1, str(tmp_path))
    session = make_session(use_weights(model, drawn), tmp_path, SessionConfig(), weights=drawn)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(CpuStage(session, ("y",))({"x": x})["y"], x @ drawn["W"], rtol=1e-5)
    (tmp_path / "gone.bin").write_bytes(bytes(64))
    assert random_weights(model, 1, str(tmp_path)) == {}


def test_too_large_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sysconf", lambda name: 8)
    with pytest.raises(InputFileError, match="random weights would take"):
        random_weights(absent(), 1)


def test_nodes_that_lack_inputs_or_outputs() -> None:
    kinds = ("ConstantOfShape", "BatchNormalization", "MatMul", "Reshape", "Relu", "Identity")
    nodes = [node(op, inputs, []) for op in kinds for inputs in ([], ["x"], ["W"])]
    nodes += [node("Constant", [], [], value=shape("", 2)), node("ConstantOfShape", [], ["c"])]
    model = make(graph(nodes, "m", [value("x")], [value("c")], [array("W", np.ones((3, 3)))]))
    use_weights(model, random_weights(model, 1))


def test_a_place_of_data_that_is_not_text() -> None:
    data = absent().SerializeToString().replace(b"gone.bin", b"\xff" * 8)
    with pytest.raises(FormatError, match="'W' is not UTF-8"):
        random_weights(onnx.ModelProto.FromString(data), 1)
