"""dnnp-view --as dot, graphml, trace, onnx: what other programs read."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import networkx
import numpy as np
import onnx
import pytest

from dnnp.samples import build
from support.graphs import random_stream, to_bytes
from support.run import dnnp, ended
from support.seeds import encode, planned
from support.split_models import MODELS, feeds_of, run_whole
from support.traces import parsed


def seen(form: str, stream: bytes, *options: str | Path) -> bytes:
    """Output of dnnp-view for a stream."""
    done = dnnp("view", "--as", form, *options, stdin=stream)
    assert (done.status, done.err) == (0, "")
    return done.out


def read(stream: bytes, path: Path) -> networkx.MultiDiGraph:
    """The GraphML of a stream, as networkx reads it."""
    path.write_bytes(seen("graphml", stream))
    return networkx.read_graphml(path, force_multigraph=True)


def test_graphml_by_hand(tmp_path: Path) -> None:
    graph = read(encode(planned()), tmp_path / "g.graphml")
    assert graph.is_directed()
    assert {name: data["name"] for name, data in graph.nodes.items()} == {
        f"n{i}": f"n{i}" for i in range(6)
    }
    assert graph.nodes["n3"] == {
        "name": "n3", "op": "Op", "stage": 1, "device": "acc/1", "time_s:acc": 4.0,
        "time_s:cpu": 40.0, "memory_bytes": 100.0,
    }  # fmt: skip
    assert "memory_bytes" not in graph.nodes["n2"]  # a constant is no parameter
    edges = {(a, b, data["tensor"], data["size_bytes"]) for a, b, data in graph.edges(data=True)}
    assert edges == {
        ("n0", "n1", "t1", 80), ("n0", "n5", "t1", 80), ("n1", "n2", "t2", 16),
        ("n1", "n3", "t2", 16), ("n2", "n4", "t3", 32), ("n3", "n4", "t4", 40),
        ("n4", "n5", "t5", 24),
    }  # fmt: skip


def test_graphml_of_random_graphs(tmp_path: Path) -> None:
    """Nodes, times and edges of the stream, and no others."""
    for seed in range(10):
        data = to_bytes(random_stream(seed, 12, params=True, classes=("other",)))
        graph = read(data, tmp_path / "g.graphml")
        records = [json.loads(line) for line in data.splitlines()]
        unit = "time_s" if records[0]["units"]["time"] == "s" else "time"
        nodes = {f"n{r['id']}": r for r in records if r["type"] == "node"}
        assert {*graph.nodes} == {*nodes}
        for name, record in nodes.items():
            for device, time in record["time_s"].items():
                assert graph.nodes[name][f"{unit}:{device}"] == time
        made = {t: name for name, r in nodes.items() for t in r["outputs"]}
        expected = {(made[t], n, t) for n, r in nodes.items() for t in r["inputs"] if t in made}
        assert graph.number_of_edges() == len(expected)
        assert {(a, b) for a, b, _ in graph.edges} == {(a, b) for a, b, _ in expected}


@pytest.mark.parametrize("form", ["dot", "graphml"])
def test_what_is_written_is_read_again(form: str, tmp_path: Path) -> None:
    """dnnp-import reads back the same times, sizes, memory and edges."""
    for seed in range(10):
        data = to_bytes(random_stream(seed, 12, classes=("other",), memory=True, colors=True))
        path = tmp_path / f"g.{form}"
        assert dnnp("view", "-o", path, stdin=data).status == 0
        again = dnnp("import", path)
        assert again.status == 0, again.err
        assert "mean nothing" not in again.err
        found = [summary(stream) for stream in (data, again.out)]
        assert found[0] == found[1]


def test_networkx_writes_what_it_has_read(tmp_path: Path) -> None:
    """From dnnp-view through networkx to dnnp-import, nothing is lost."""
    data = to_bytes(random_stream(4, 12, classes=("other",), memory=True, colors=True))
    networkx.write_graphml(read(data, tmp_path / "g.graphml"), tmp_path / "again.graphml")
    again = dnnp("import", tmp_path / "again.graphml")
    assert again.status == 0, again.err
    assert summary(again.out) == summary(data)


def summary(stream: bytes) -> tuple[object, ...]:
    """Nodes and edges by names, with what they cost; colours as sets of nodes."""
    records = [json.loads(line) for line in stream.splitlines()]
    nodes = [r for r in records if r["type"] == "node"]
    tensors = {r["id"]: r for r in records if r["type"] == "tensor"}
    maker = {t: node["name"] for node in nodes for t in node["outputs"]}
    colours: dict[int, set[str]] = {}
    for node in nodes:
        if "color" in node:
            colours.setdefault(node["color"], set()).add(node["name"])
    return (
        {n["name"]: (n["time_s"], n["memory_bytes"], n.get("backward", False)) for n in nodes},
        sorted(
            (maker[t], n["name"], tensors[t]["name"], tensors[t]["size_bytes"],
             tensors[t].get("transfer_s", -1))
            for n in nodes for t in n["inputs"] if t in maker
        ),
        sorted(sorted(names) for names in colours.values()),
        records[0]["units"],
    )  # fmt: skip


def test_names_of_any_kind(tmp_path: Path) -> None:
    records = planned()
    names = ['a "b" <c> & \\', "line\nbreak\x1b[31m", "ünï"]
    for record, name in zip((r for r in records if r["type"] == "node"), names, strict=False):
        record["name"] = name
    graph = read(encode(records), tmp_path / "g.graphml")
    found = [graph.nodes[f"n{i}"]["name"] for i in range(3)]
    assert found == ['a "b" <c> & \\', r"line\nbreak\x1b[31m", "ünï"]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_takes_the_graph(tmp_path: Path) -> None:
    records = planned()
    first = next(r for r in records if r["type"] == "node")
    first |= {"name": 'a "b" \\', "op": "Edge", "flop": 1.25e-7}
    path = tmp_path / "g.dot"
    path.write_bytes(seen("dot", encode(records)))
    done = ended(["dot", "-Tplain", path])
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[0] for line in done.stdout.splitlines()]
    assert (rows.count("node"), rows.count("edge")) == (6, 7)


def test_stages_are_boxes_of_their_nodes() -> None:
    text = seen("dot", encode(planned())).decode()
    boxes = text.split("subgraph cluster_")[1:]
    held = [[line.split()[0] for line in box.splitlines() if " [" in line] for box in boxes]
    assert [row[:3] for row in held[:2]] == [["n0", "n1"], ["n2", "n3", "n4"]]
    assert held[2][0] == "n5"
    assert [box.count("fillcolor") for box in boxes] == [2, 3, 1]
    assert "cluster" not in seen("dot", to_bytes(random_stream(0, 8))).decode()


def slices(data: bytes) -> list[tuple[str, str, float, float]]:
    """Device, name, start and end in microseconds of what ran, in order."""
    return sorted(
        (device, name, begin / 1000, end / 1000)
        for device, rows in parsed(data).slices.items()
        for name, _, (begin, end) in rows
    )


def test_a_schedule_is_a_trace() -> None:
    done = dnnp("schedule", "-q", "--shape", "M", "--devices", "3", "-n", "3")
    (record,), blocks = done.records("schedule"), done.records("block")
    expected = sorted(
        (
            record["units"][unit]["name"], record["passes"][block["pass"]]["name"],
            block["start_s"] * 1e6, block["end_s"] * 1e6,
        )
        for block in blocks
        for unit in block["units"]
    )  # fmt: skip
    assert len(expected) > len(blocks)  # shape M has blocks on several devices
    assert slices(seen("trace", done.out)) == expected


def test_a_plan_for_latency_is_a_trace() -> None:
    for execution in ("operators", "blocks"):
        done = dnnp(
            "partition", "-q", "-k", "2", "--objective", "latency", "--execution", execution,
            "--effort", "0.1", stdin=to_bytes(random_stream(3, 8)),
        )  # fmt: skip
        assert done.status == 0
        found = slices(seen("trace", done.out))
        (plan,) = done.records("plan")
        assert max(end for *_, end in found) <= plan["value"] * 1e6 * (1 + 1e-9)
        for device in {row[0] for row in found}:
            spans = [(start, end) for name, _, start, end in found if name == device]
            spans.sort()
            assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(spans))
        if execution == "operators":
            assert len(found) == len(done.records("node"))


def test_very_long_times_are_shown_shorter() -> None:
    """Nanoseconds of them would be more than numbers hold."""
    stream = random_stream(3, 8)
    for node in stream.get("node"):
        node["time_s"]["dev"] *= 1e11
    plan = dnnp("partition", "-q", "-k", "2", "--method", "greedy", stdin=to_bytes(stream)).out
    done = dnnp("schedule", "-q", "-n", "3", "--method", "gpipe", stdin=plan)
    assert done.status == 0, done.err
    data = seen("trace", done.out)
    found = [row[2:] for row in slices(data)]
    blocks = [(b["start_s"], b["end_s"]) for b in done.records("block")]
    ratio = max(end for _, end in found) / max(end for _, end in blocks)
    assert math.log(ratio, 1000) == pytest.approx(round(math.log(ratio, 1000)))
    wanted = sorted((start * ratio, end * ratio) for start, end in blocks)
    assert sorted(found) == [pytest.approx(span, rel=1e-9, abs=1e-3) for span in wanted]
    assert "is shown as" in parsed(data).about["times"]


def test_what_has_no_timeline_is_refused() -> None:
    done = dnnp("view", "--as", "trace", stdin=encode(planned()))
    assert (done.status, done.out) == (2, b"")
    assert done.err.startswith("dnnp-view: there is no timeline: ")
    assert len(done.err.splitlines()) == 1
    for form in ("dot", "graphml", "onnx"):
        blocks = dnnp("schedule", "-q", "--shape", "V", "--devices", "2", "-n", "2").out
        done = dnnp("view", "--as", form, stdin=blocks)
        assert (done.status, done.out) == (2, b"")
        assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("name", sorted(MODELS))
def test_annotated_models_compute_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = MODELS[name]()
    onnx.save(model, path)
    dims = ["--dim", "n=3"] if name == "stale_shapes" else []
    plan = dnnp("partition", "-q", "-k", "2", stdin=dnnp("import", "-q", path, *dims).out)
    out = tmp_path / "seen.onnx"
    assert dnnp("view", "-o", out, stdin=plan.out).status == 0
    annotated = onnx.load(out)
    onnx.checker.check_model(annotated)
    feeds = feeds_of(model)
    expected = run_whole(model, feeds)
    for key, value in run_whole(annotated, feeds).items():
        np.testing.assert_array_equal(value, expected[key])
    for stage in plan.records("stage"):
        for v in stage["nodes"]:
            node = annotated.graph.node[v]
            known = {entry.key: entry.value for entry in node.metadata_props}
            assert known["dnnp.stage"] == str(stage["id"])
            assert known["dnnp.device"] == stage["device"]
            assert float(known["dnnp.time_s:cpu-core"]) >= 0
            assert node.name.startswith(f"stage-{stage['id']}/")
            assert node.name.removeprefix(f"stage-{stage['id']}/")


def test_twice_annotated_is_annotated_once(tmp_path: Path) -> None:
    path = build.write("gnmt-small", tmp_path)
    plan = dnnp("partition", "-q", "-k", "2", stdin=dnnp("import", "-q", path).out).out
    once = onnx.load_from_string(seen("onnx", plan))
    other = tmp_path / "other.onnx"
    shutil.move(path, other)
    missing = dnnp("view", "--as", "onnx", stdin=plan)
    assert (missing.status, missing.out) == (1, b"")
    assert "--model" in missing.err
    assert onnx.load_from_string(seen("onnx", plan, "--model", other)) == once
    wrong = dnnp("view", "--as", "dot", "--model", other, stdin=plan)
    assert wrong.status == 2
