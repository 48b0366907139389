"""Training graphs beside those of the 2020 paper: dnnp.samples.papers.training_graphs."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

import dnnp
from dnnp.samples.models import bert
from dnnp.samples.papers import training_graphs
from dnnp.samples.papers.training_graphs import Pair, by_rules, main

WORKLOAD = "layer_small_training"


def small() -> object:
    return bert.build(bert.Size(2, 16, 2, 32, length=8, inner=24, batch=3, masked=True))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload of two layers, of which the backward pass takes three times as long."""
    chain = [
        {
            "id": v, "name": f"node{min(v, 3 - v)}{'grad' * (v > 1)}", "supportedOnFpga": 1,
            "cpuLatency": 50.0, "fpgaLatency": 3.0 if v > 1 else 1.0, "size": 1.0,
            "isBackwardNode": v > 1, "colorClass": min(v, 3 - v),
        }
        for v in range(4)
    ]  # fmt: skip
    edges = [{"sourceId": v, "destId": v + 1, "cost": 0.1} for v in range(3)]
    limits = {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 10.0}
    (tmp_path / "throughput").mkdir()
    file = tmp_path / "throughput" / f"{WORKLOAD}.json"
    file.write_text(json.dumps({**limits, "nodes": chain, "edges": edges}))
    layer = training_graphs._named(r"layer\.(\d+)/")
    theirs = training_graphs._named(r"^node(\d+)$", (0, 1))
    pair = Pair(WORKLOAD, "small", small, theirs, lambda graph: layer, layers=True)  # type: ignore[arg-type]
    gone = Pair("op_none_training", "none", small, theirs, lambda graph: layer)  # type: ignore[arg-type]
    monkeypatch.setattr(training_graphs, "PAIRS", (pair, gone))
    monkeypatch.setattr(training_graphs, "COUNTS", (2,))
    return tmp_path


def test_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(folder), "--csv", str(folder / "csv"), "--part", "ratios", "borders"])
    out = capsys.readouterr().out
    assert "left out, no file in" in out
    ratios = list(csv.reader((folder / "csv" / "training-ratios.csv").open()))
    assert ratios[1][:3] == [WORKLOAD, "3.00", "small"]
    assert all(re.fullmatch(r"\d+\.\d\d \([-+]\d+ %\)", cell) for cell in ratios[1][3:])
    borders = list(csv.reader((folder / "csv" / "training-borders.csv").open()))
    assert borders[1] == [WORKLOAD, "2", "1", "1", "0", "yes"]


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    assert capsys.readouterr().out.count("left out") == 4
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none")])


def test_rules_by_hand(tmp_path: Path) -> None:
    """A convolution with strides and a rectifier that two others read."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", strides=[2, 2], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "r2"], ["y"], name="add"),
        helper.make_node("Neg", ["r"], ["r2"], name="neg"),
    ]
    graph = helper.make_graph(
        [nodes[0], nodes[1], nodes[3], nodes[2]],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [numpy_helper.from_array(np.ones((4, 2, 3, 3), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    trained = dnnp.load(tmp_path / "m.onnx", training=True)
    name = {n["id"]: n["name"] for n in trained.nodes}
    size = 4 * 4 * 4 * 4
    flop = 2 * 64 * 2 * 9
    second = training_graphs.BYTE_S
    for quirks, ahead, back in ((True, 4, 9), (False, 1, 1)):
        found = {(name[v], kind): s for v, kind, _, s in by_rules(trained, quirks)}
        rate = training_graphs.FLOP_PER_S
        assert found["conv", "Conv"] == pytest.approx(ahead * flop / rate + size * second)
        assert found["conv.grad", "Conv"] == pytest.approx(flop / back / rate)
        assert found["relu", "Relu"] == pytest.approx(3 * size * second)
        assert found["relu.grad", "Add"] == pytest.approx(2 * size * second)
        assert found["add.grad", "Add"] >= 0
