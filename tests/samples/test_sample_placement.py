"""The tables of dnnp.samples.papers.placement say what dnnp-partition answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dnnp.samples.papers.moirai import Answer
from dnnp.samples.papers.placement import PARTS, as_printed, main
from dnnp.samples.papers.placement_runs import Workloads, published_order
from dnnp.samples.papers.placement_values import LABELS, TABLE_1, TABLE_4, label
from support.project import ROOT
from support.run import dnnp

BERT, TRAINING = "layer_bert24_inference", "layer_bert24_training"


def in_process(words: Sequence[str], _: bytes) -> Answer:
    """Run a command without a process of its own."""
    done = dnnp(words[0].removeprefix("dnnp-"), *words[1:])
    return Answer(done.status, done.out, done.err)


def workload(nodes: int = 4, **fields: object) -> dict[str, object]:
    """A chain whose accelerators hold one node each."""
    return {
        "maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 10.0,
        "nodes": [
            {"id": v, "supportedOnFpga": 1, "cpuLatency": 50.0, "fpgaLatency": v + 1.0, "size": 5.0}
            for v in range(nodes)
        ],
        "edges": [{"sourceId": v, "destId": v + 1, "cost": 1.0} for v in range(nodes - 1)],
        **fields,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder laid out as the authors' repository is, with one workload in every place."""
    layers = (
        tmp_path / "throughput-inputs" / "LayerGraphs",
        tmp_path / "latency-inputs" / "LayerGraphs",
    )
    for place in layers:
        place.mkdir(parents=True)
        (place / "bert24_inference.json").write_text(json.dumps(workload()))
    experts = tmp_path / "human-experts"
    experts.mkdir()
    split = {"fpgas": [{"nodes": [0]}, {"nodes": [1, 2, 3]}, {"nodes": []}], "cpus": []}
    (experts / "bert24_inference_expert.json").write_text(json.dumps(split))
    return tmp_path


def test_tables(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "csv"
    words = [str(folder), "--only", BERT, TRAINING, "--time-limit", "1", "--csv", str(out)]
    bounded = "table-1-free", "table-1-convex"
    main(in_process, [*words, "--part", "table-1", *bounded, "table-2", "table-4"])
    shown = capsys.readouterr().out
    assert "left out, no file in" in shown
    assert "throughput, layer_bert24_training" in shown
    tables = {path.stem: list(csv.reader(path.open())) for path in out.iterdir()}
    parts = {"table-1", "table-1-agreement", *bounded, "table-2", "table-4"}
    assert set(tables) == parts
    free = dict(zip(*tables["table-1-free"], strict=True))
    assert free["any split"] == "7.00 (17.71)"
    assert (free["bound"], free["gap"]) == ("7.00", "0.00 %")
    convex = dict(zip(*tables["table-1-convex"], strict=True))
    assert (convex["convex"], convex["bound"]) == ("8.00 (17.79)", "7.00")
    (row,) = tables["table-1"][1:]
    found = dict(zip(tables["table-1"][0], row, strict=True))
    # 1 + 2 + 1 | 1 + 3 + 1 on an accelerator that holds two nodes, and 4 on the CPU: 50; so
    # memory decides: {0, 1}, {2, 3}.
    assert found["DP"] == "8.00 (17.79)"
    assert found["nodes"] == "32"
    assert found["expert"] == "10.00† (20.08)"  # 2 + 3 + 4 + 1, in the memory for two
    assert found["PipeDream"] == "8.00 (17.79)"
    latency = dict(zip(*tables["table-4"], strict=True))
    assert latency["ours (IP)"].startswith("12.00 (100.22)")  # 1 + 2 + 1, then 1 + 3 + 4
    assert latency["expert"].startswith("12.00† (111.94)")
    assert latency["greedy"] == "12.00 (100.22)"
    throughput = dict(zip(*tables["table-2"], strict=True))
    assert throughput["expert"] == "0.80x (0.89)"


def test_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder / "throughput-inputs"
    back = [
        {"id": 9 - v, "supportedOnFpga": 1, "cpuLatency": 1.0, "fpgaLatency": 10.0 * (v + 1),
         "size": 0.0, "isBackwardNode": 1, "colorClass": v}
        for v in range(4)
    ]  # fmt: skip
    graph = workload()
    graph["nodes"] = [{**node, "colorClass": v} for v, node in enumerate(graph["nodes"])] + back  # type: ignore[arg-type]
    (place / "LayerGraphs" / "resnet50_training.json").write_text(json.dumps(graph))
    (place / "OperatorGraphs").mkdir()
    (place / "OperatorGraphs" / "bert_L-3_inference.json").write_text(json.dumps(workload()))
    main(in_process, [str(folder), "--part", "figure-10", "figure-9", "figure-8", "--only",
                      "op_bert_l-3_inference", "layer_resnet50_training", BERT])  # fmt: skip
    shown = capsys.readouterr().out
    ten = [line.split()[:3] for line in shown.split("Figure 10")[1].splitlines()[2:6]]
    assert ten == [["1", "1.00", "10.00"], ["2", "3.00", "30.00"], ["3", "6.00", "60.00"],
                   ["4", "10.00", "100.00"]]  # fmt: skip
    assert "AABB" in shown.split("The device of each node")[1]
    assert "1.00  ########################" in shown.split("Figure 8")[1]


def test_the_published_order_takes_what_became_ready_last(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    edges = [(0, 3), (0, 1), (0, 2), (1, 4), (3, 4)]
    graph = workload(5, edges=[{"sourceId": a, "destId": b, "cost": 1.0} for a, b in edges])
    file.write_text(json.dumps(graph))
    assert published_order(file) == [0, 2, 1, 3, 4]
    nodes = graph["nodes"]
    for v in (1, 3):
        nodes[v]["colorClass"] = 7  # type: ignore[index]
    file.write_text(json.dumps(graph))
    assert published_order(file) == [0, 2, 1, 3, 4]
    nodes[2]["colorClass"] = nodes[4]["colorClass"] = 8  # type: ignore[index]
    file.write_text(json.dumps(graph))
    assert published_order(file) == [0, 1, 3, 2, 4]


def test_the_order_of_colours_and_of_backward_nodes(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    edges = [(0, 2), (0, 1), (1, 3), (2, 3), (3, 4), (4, 5)]
    graph = workload(6, edges=[{"sourceId": a, "destId": b, "cost": 1.0} for a, b in edges])
    nodes: list[dict[str, object]] = graph["nodes"]  # type: ignore[assignment]
    nodes[1]["colorClass"], nodes[2]["colorClass"] = 6, 5
    for v in (4, 5):
        nodes[v] |= {"isBackwardNode": 1, "colorClass": 10 - v}
    file.write_text(json.dumps(graph))
    assert published_order(file) == [0, 1, 2, 3, 4, 5]
    assert published_order(file, by_color=True) == [0, 1, 2, 3, 4, 5]
    nodes[1]["colorClass"], nodes[2]["colorClass"] = 5, 6
    nodes[4]["colorClass"], nodes[5]["colorClass"] = 5, 6
    file.write_text(json.dumps(graph))
    assert published_order(file, by_color=True) == [0, 2, 1, 3, 4, 5]


def test_what_the_paper_prints_is_consistent() -> None:
    assert {name for name in TABLE_1 if name.endswith("_inference")} == set(TABLE_4)
    assert len(TABLE_1) == 16
    for name, row in TABLE_1.items():
        assert label(name).startswith(LABELS[name.rpartition("_")[0]])
        assert (row.expert is None) == (row.pipedream is None) == name.startswith("op_")
        assert row.free <= row.dp <= row.linearised


def test_printed_digits() -> None:
    assert as_printed(197.848, 197.84)
    assert as_printed(494.135, 494.13)
    assert as_printed(416.9655, 416.97)
    assert not as_printed(39.398, 39.38)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([str(tmp_path), "--part", "table-3"], [str(tmp_path), "--only", "bert"],
                  [str(tmp_path / "none")]):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            main(in_process, words)
    main(in_process, [str(tmp_path), "--part", "table-1"])
    assert capsys.readouterr().out.count("left out") == 16
    (tmp_path / "latency").mkdir()
    (tmp_path / "latency" / f"{BERT}.json").write_text("{")
    with pytest.raises(SystemExit, match=f"{BERT}.json"):
        main(in_process, [str(tmp_path), "--part", "table-4"])


def test_interrupted(folder: Path) -> None:
    def stop(words: Sequence[str], _: bytes) -> Answer:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="130"):
        main(stop, [str(folder)])


def test_the_smallest_workload_has_the_printed_values(
    shared_workloads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(shared_workloads), "--only", BERT, "--time-limit", "2", "--part"]
    main(in_process, [*words, "table-1", "table-4"])
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("BERT-24 inference"))
    for value in ("17.79 (17.79)", "20.08 (20.08)"):
        assert value in row
    for value in ("100.22 (100.22)", "108.03 (108.03)", "111.94* (111.94)", "equal"):
        assert value in shown.split("Table 4")[1]


def test_both_layouts_are_found(shared_workloads: Path) -> None:
    files = Workloads(shared_workloads)
    assert files.graph("throughput", BERT) is not None
    assert files.expert(TRAINING) == files.expert(BERT) is not None
    assert files.expert("op_bert_l-3_inference") is None
    assert not files.missing


def test_every_part_has_its_target() -> None:
    makefile = (ROOT / "samples" / "Makefile").read_text()
    assert all(part in makefile for part in PARTS)
