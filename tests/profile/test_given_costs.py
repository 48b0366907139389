"""Costs from elsewhere: tables, profiles of ONNX Runtime, and layers of trtexec."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.formats.inputs.cost_files import (
    Charge,
    CostFile,
    layer_names,
    node_events,
    read_costs,
    spent_by,
    where_it_ran,
)
from dnnp.samples.build import write
from support.run import Result, dnnp
from support.seeds import encode, graph_records, group, planned
from support.split_models import make, node, value

KERNEL = "_kernel_time"


def profile(path: Path, *words: str | Path, stdin: bytes) -> Result:
    return dnnp("profile", "--costs", path, *words, stdin=stdin)


def bare(*more: dict) -> bytes:
    """The seed graph without devices and prices."""
    plain = [{k: v for k, v in r.items() if k != "time_s"} for r in graph_records()]
    return encode([*(r for r in plain if r["type"] != "device"), *more])


def times(result: Result, name: str) -> list[float]:
    assert result.status == 0, result.err
    return [record["time_s"][name] for record in result.records("node")]


def table(folder: Path, text: str) -> Path:
    path = folder / "costs.csv"
    path.write_text(text)
    return path


def events(*runs: list[tuple[str, float]], gap: float = 0, **fields: object) -> list[dict]:
    """Output of ONNX Runtime's profiler about runs of (node, microseconds), `gap` apart."""
    found: list[dict] = [{"cat": "Session", "name": "session_initialization", "ts": 1, "dur": 2}]
    now = 100
    for run in runs:
        begin = now
        for name, length in run:
            args = {"op_name": "Op", "provider": "CPUExecutionProvider", **fields}
            event = {"cat": "Node", "tid": 1, "ts": now, "dur": length, "args": args}
            found.append({**event, "name": name + KERNEL})
            now += int(length + gap)
        found.append({"cat": "Session", "name": "model_run", "ts": begin, "dur": now - begin})
    return found


def layers(*rows: tuple[str, float]) -> list[dict]:
    """Output of trtexec about layers of (name, milliseconds)."""
    named = [
        {"name": name, "timeMs": 50 * ms, "averageMs": 2 * ms, "medianMs": ms, "percentage": 1}
        for name, ms in rows
    ]
    return [{"count": 25}, *named]


def read(rows: list) -> CostFile:
    return read_costs(json.dumps(rows).encode(), "file")


# Tables


def test_a_table_prices_a_class(tmp_path: Path) -> None:
    rows = "\n".join(f"n{i},{(i + 1) / 8}" for i in range(6))
    path = table(tmp_path, f"name,seconds\n{rows}\n")
    groups = [group(0, [0, 1]), group(1, [2, 3, 4, 5])]
    result = profile(path, "--device", "t4", stdin=bare(*groups))
    assert times(result, "t4") == [0.125, 0.25, 0.375, 0.5, 0.625, 0.75]
    assert [(g["time_s"], g["cost"]) for g in result.records("group")] == [
        ({"t4": 0.375}, "summed"), ({"t4": 2.25}, "summed"),
    ]  # fmt: skip
    assert result.one("device")["memory_bytes"] == 17179869184.0
    assert result.one("header")["costs"] == [
        {"file": str(path), "kind": "csv", "class": "t4", "nodes": 6, "idle": 0, "kept": 0,
         "unknown": 0},
    ]  # fmt: skip
    assert result.err.splitlines()[0] == f"dnnp-profile: {path}: 6 of 6 nodes priced on 't4'"
    assert dnnp("partition", "-q", "-k", "2", stdin=result.out).status == 0
    # Whatever prices everything anew leaves none of it.
    assert "costs" not in dnnp("profile", "-q", stdin=result.out).one("header")


def test_what_a_table_does_not_name_stays(tmp_path: Path) -> None:
    path = table(tmp_path, '\ufeffClass, Seconds ,name\n,0.5,n1\ncpu,7,"n1"\n\nacc,3e-3,n9\n')
    stream = encode(planned(groups=True))
    result = profile(path, "--device", "acc", "-v", stdin=stream)
    assert result.status == 0, result.err
    found = [record["time_s"] for record in result.records("node")]
    expected = [{"acc": float(i + 1), "cpu": 10.0 * (i + 1)} for i in range(6)]
    expected[1] = {"acc": 0.5, "cpu": 7}
    assert found == expected
    assert [g["time_s"]["acc"] for g in result.records("group")] == [1.0, 0.5, 7.0, 5.0, 6.0]
    assert not result.records("plan")
    assert result.err.count("no node, or more than one, is called 'n9'") == 2
    assert f"{path}:5: no node, or more than one, is called 'n9'" in result.err
    assert "1 of 6 nodes priced on 'acc', 5 have no cost in it and stay priced" in result.err
    assert "node 0 ('n0', Op) has no cost" in result.err
    assert [entry["kept"] for entry in result.one("header")["costs"]] == [5, 5]
    quiet = profile(path, "--device", "acc", "-q", stdin=stream)
    assert "; 1 name of 3 known to no node" in quiet.err
    assert "n9" not in quiet.err


def test_nodes_without_any_price_are_an_error(tmp_path: Path) -> None:
    path = table(tmp_path, "name,seconds\nn1,1\nn2,1\n")
    result = profile(path, "--device", "t4", stdin=bare())
    assert (result.status, result.out) == (3, b"")
    last = result.err.splitlines()[-1]
    assert f"{path}: 4 of 6 nodes have no cost on 't4', here or in the stream: node 0 ('n0'" in last
    assert last.endswith("price them first, by dnnp-profile --device t4")
    priced = dnnp("profile", "-q", "--device", "t4", stdin=bare())
    assert times(profile(path, "--device", "t4", stdin=priced.out), "t4")[1:3] == [1.0, 1.0]
    # Two files may complete each other.
    other = tmp_path / "other.csv"
    other.write_text("name,seconds\nn0,2\nn1,2\nn3,2\nn4,2\nn5,2\n")
    both = profile(path, "--costs", other, "--device", "t4", stdin=bare())
    assert times(both, "t4") == [2, 2, 1, 2, 2, 2]


def test_unsupported_nodes_stay_unsupported(tmp_path: Path) -> None:
    records = graph_records()
    del records[-1]["time_s"]["acc"]
    path = table(tmp_path, "name,class,seconds\nn1,acc,1\n")
    result = profile(path, stdin=encode(records))
    assert "acc" not in result.records("node")[-1]["time_s"]


def test_classes(tmp_path: Path) -> None:
    path = table(tmp_path, "name,seconds\nn1,1\n")
    stream = encode(graph_records())
    result = profile(path, stdin=stream)
    assert result.status == 2
    assert "which class are its costs for? give one --device (there are acc, cpu)" in result.err
    only = dnnp("profile", "-q", "--device", "v100", stdin=bare())
    assert times(profile(path, stdin=only.out), "v100")[1] == 1.0
    unit = graph_records()
    unit[0]["units"] = {"time": "unknown"}
    assert "unknown unit of time" in profile(path, "--device", "acc", stdin=encode(unit)).err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "costs.csv: the file is empty"),
        ("name,class\n", "costs.csv:1: field 'seconds': the first row names no column seconds"),
        ("n0,1\n", "costs.csv:1: field 'name': the first row names no column name"),
        ("name,clas,seconds\n", "costs.csv:1: 'clas' is no column; did you mean 'class'?"),
        ("name,seconds,name\n", "costs.csv:1: field 'name': the column is there twice"),
        ("name,seconds\nn0,1\n\nn1\n", "costs.csv:4: 1 values for 2 columns"),
        ("name,seconds\nn0,1,2\n", "costs.csv:2: 3 values for 2 columns"),
        ("name,seconds\nn0,1ms\n", "costs.csv:2: field 'seconds': '1ms' is not a number from 0"),
        ("name,seconds\nn0,-1\n", "costs.csv:2: field 'seconds': '-1' is not a number"),
        ("name,seconds\nn0,nan\n", "costs.csv:2: field 'seconds': 'nan' is not a number"),
        ("name,seconds\nn0,inf\n", "costs.csv:2: field 'seconds': 'inf' is not a number"),
        ("name,seconds\n,1\n", "costs.csv:2: field 'name': is empty"),
        ("name,seconds\nn0,1\nn0,2\n", "costs.csv:3: field 'name': 'n0' has a cost in line 2"),
        ("name,seconds\nn9,1\n", "costs.csv: no node is called as any of its 1 name, such as 'n9'"),
        ("name,seconds\n", "costs.csv: no node is called as any of its 0 names"),
        (
            "name,class,seconds\nn0,ac,1\n",
            "costs.csv:2: field 'class': unknown class 'ac'; did you",
        ),
        ('name,seconds\n"n0"x,1\n', "costs.csv:2: not a table of comma-separated values"),
        ("version https://git-lfs\n", "a pointer of Git LFS; git lfs pull"),
        ("{}", "costs.csv: no file of costs: neither a profile"),
        ("[[1]]", "costs.csv: no file of costs: neither a profile"),
        ('[{"a": 1}', "costs.csv:1: not JSON"),
        ('[{"cat": "Node"}]', "costs.csv: field '[0].name': is missing"),
        ('[{"cat": "Session", "name": "a"}]', "a profile without a node: was anything run?"),
        ('[{"cat": "Node", "name": "n_kernel_time", "ts": 1}]', "field '[0].dur': is missing"),
        ('[{"cat": "Node", "name": "n_kernel_time", "ts": "1", "dur": 1}]', "'[0].ts': '1' is not"),
        ('[{"count": 2}, {"name": "n0", "medianMs": null}]', "field '[1].medianMs': null"),
        ('[{"name": "n0", "timeMs": 3}]', "field '[0].timeMs': no count of runs before it"),
        ('[{"count": 2}, {"name": "n0", "timeMs": 3}, {"name": "n1"}]', "'[2].timeMs': is missing"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    path = table(tmp_path, text)
    result = profile(path, "--device", "acc", stdin=encode(graph_records()))
    assert (result.status, result.out) == (3, b""), result.err
    assert result.err.count("\n") == 1, result.err
    assert message in result.err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--costs", "none.csv"], 1, "none.csv: No such file"),
        (["--costs", "a.csv", "--mode", "measure"], 2, "--costs takes the place of --mode measure"),
        (["--costs", "-"], 2, "--costs and the stream cannot both be standard input"),
    ],
)
def test_bad_options(words: list[str], status: int, message: str) -> None:
    result = dnnp("profile", *words, stdin=encode(graph_records()))
    assert (result.status, result.out) == (status, b"")
    assert message in result.err


# ONNX Runtime


def test_medians_over_runs() -> None:
    """An event for each time that a node runs; what is not in a run took no time in it."""
    runs = [[("a", 900), ("b", 10)], [("a", 5), ("b", 20), ("b", 20)], [("a", 7)]]
    found = read(events(*runs))
    assert (found.kind, found.whole, found.caveat) == ("onnxruntime", True, "")
    assert {c.name: round(c.seconds * 1e6, 3) for c in found.costs} == {"a": 7, "b": 10}


def test_bodies_are_part_of_their_node() -> None:
    rows = events([("loop", 50), ("next", 3)])
    begin = rows[1]["ts"]
    inner = [{**rows[1], "name": f"{name}{KERNEL}", "ts": begin + at, "dur": 20}
             for name, at in (("a", 1), ("b", 25), ("loop", 30))]  # fmt: skip
    found = read([rows[0], *inner, *rows[1:]])
    micro = {c.name: round(c.seconds * 1e6, 3) for c in found.costs}
    assert micro == {"a": 0, "b": 0, "loop": 50, "next": 3}


def test_kernels_count_instead_of_their_launch() -> None:
    rows = events([("a", 4), ("b", 6)], provider="CUDAExecutionProvider")
    assert "times of CUDAExecutionProvider are those of the host" in read(rows).caveat
    kernels = [{"cat": "Kernel", "name": "gemm", "ts": 1, "dur": dur} for dur in (30, 12)]
    found = read([*rows[:2], *kernels, *rows[2:]])
    assert {c.name: round(c.seconds * 1e6, 3) for c in found.costs} == {"a": 42, "b": 6}


def test_measuring_counts_kernels_too() -> None:
    rows = events([("a", 4), ("b", 6)], provider="CUDAExecutionProvider")
    kernels = [{"cat": "Kernel", "name": "gemm", "ts": 1, "dur": dur} for dur in (30, 12)]
    found, _ = spent_by(*node_events([*rows[:2], *kernels, *rows[2:]], "file"), Charge(1, 1))
    assert {name: one.times.tolist() for name, one in found.items()} == {"a": [42], "b": [6]}
    assert {name: one.added.tolist() for name, one in found.items()} == {"a": [0], "b": [1]}
    ran, caveat = where_it_ran(rows, "file")
    assert ran == {"CUDAExecutionProvider": {"a", "b"}}
    assert "those of the host" in caveat


def micro(found: CostFile) -> dict[str, float]:
    return {c.name: round(c.seconds * 1e6, 3) for c in found.costs}


def test_what_the_profiler_adds_is_taken_off() -> None:
    """The shortest nodes and the time between two tell it; a tenth of a short one remains."""
    run = [*((f"s{i}", 2) for i in range(396)), ("zero", 0), ("loud", 90), ("big", 1000), ("b", 3)]
    found = read(events(*[run] * 5, gap=3))
    costs = micro(found)
    assert {costs[f"s{i}"] for i in range(396)} == {0.2}
    assert (costs["zero"], costs["b"], costs["loud"], costs["big"]) == (0, 1, 88, 998)
    assert found.said == (
        "the profiler added 2.0 us to each node, 719 of 1885 us in a run; that is taken off"
    )


@pytest.mark.parametrize(
    ("gap", "length", "left"),
    [
        (0, 8, 8),  # no time between nodes: nothing tells that a profiler took any
        (2, 8, 6.5),  # three quarters of the time between two
        (100, 8, 4),  # more than 4 us were never seen
        (100, 3, 0.3),  # all of it, but for a tenth
        (2, 1000, 998.5),
    ],
)
def test_no_more_is_taken_off_than_is_likely(gap: int, length: int, left: float) -> None:
    run = [(name, length) for name in "abcd"]
    found = read(events(*[run] * 3, gap=gap))
    assert micro(found) == dict.fromkeys("abcd", pytest.approx(left))
    assert bool(found.said) == (gap > 0)
    without = [row for row in events(run, gap=gap) if row["name"] != "model_run"]
    assert micro(read(without)) == dict.fromkeys("abcd", pytest.approx(left))
    assert micro(read(events([("a", length)], gap=gap))) == {"a": length}


def test_what_it_adds_in_bodies_is_taken_off_their_node() -> None:
    rows = events([("loop", 50), ("next", 4), ("last", 4)], gap=4)
    inner = [
        {**rows[1], "name": f"i{at}{KERNEL}", "ts": rows[1]["ts"] + at, "dur": 4} for at in (2, 12)
    ]
    found = micro(read([rows[0], *inner, *rows[1:]]))
    # 3 us for each of three events, and 4 between those in the body.
    assert found == {"i2": 0, "i12": 0, "loop": 50 - 3 * 3 - 2 * 4, "next": 1, "last": 1}


def test_times_of_kernels_contain_nothing_of_it() -> None:
    rows = events([("a", 4), ("b", 6), ("c", 4)], gap=4, provider="CUDAExecutionProvider")
    kernel = {"cat": "Kernel", "name": "gemm", "ts": 1, "dur": 3}
    found = read([*rows[:2], kernel, rows[2], kernel, *rows[3:]])
    assert micro(found) == {"a": 3, "b": 3, "c": 1}


def test_runs_without_nodes_scale_those_with() -> None:
    rows = events(*[[("a", 30), ("b", 10), ("c", 2)]] * 3, gap=3)
    plain = [{"cat": "Session", "name": "model_run", "ts": 9000 + i, "dur": 19} for i in range(2)]
    found = read([*rows, *plain])
    own = {"a": 28, "b": 8, "c": 0.2}
    whole = sum(own.values())
    assert micro(found) == pytest.approx({n: us / whole * 19 for n, us in own.items()}, abs=1e-3)
    assert found.said.endswith("; scaled to 19 us of a run without nodes")


def test_a_profile_of_nodes_that_do_next_to_nothing(tmp_path: Path) -> None:
    """Most of what the profiler says of them is its own; all have a time, and it is said."""
    names = [f"t{i}" for i in range(201)]
    nodes = [node("Neg", [a], [b], name=f"n{b}") for a, b in pairwise(names)]
    ends = [value("t0", [64])], [value("t200", [64])]
    path = tmp_path / "m.onnx"
    path.write_bytes(make(onnx.helper.make_graph(nodes, "g", *ends)).SerializeToString())
    costs = profiled(path, tmp_path, "ORT_DISABLE_ALL")
    result = profile(costs, stdin=dnnp("import", "-q", path).out)
    found = times(result, "cpu-core")
    assert min(found) > 0
    told = [row["dur"] for row in json.loads(costs.read_bytes()) if row["cat"] == "Node"]
    assert sum(found) * 1e6 < 0.8 * sum(told) / 3
    assert re.search(r"profiler added [\d.]+ us to each node, \d+ of \d+ us in a run", result.err)


def test_a_profile_that_was_cut_off() -> None:
    rows = events([("a", 4), ("b", 6)])
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows)
    found = read_costs(text[: text.rindex('"model_run"')].encode(), "file")
    assert [c.name for c in found.costs] == ["a", "b"]


def profiled(path: Path, folder: Path, level: str, providers: tuple[str, ...] = ()) -> Path:
    """The profile of three runs of a model at an optimisation level."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / level)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(
        str(path), options, providers=[*providers, "CPUExecutionProvider"]
    )
    feeds = random_inputs(onnx.load(path), 0)
    for _ in range(3):
        session.run(None, {name: np.asarray(v) for name, v in feeds.items()})
    return Path(session.end_profiling())


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("bert")
    path = write("bert-small", folder)
    return path, dnnp("import", "-q", path).out


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_profiles_of_a_model(level: str, bert: tuple[Path, bytes], tmp_path: Path) -> None:
    """All that ran is found, and its time is the time of the nodes."""
    path, stream = bert
    costs = profiled(path, tmp_path, level)
    result = profile(costs, stdin=stream)
    (entry,) = result.one("header")["costs"]
    assert (entry["kind"], entry["unknown"], entry["kept"]) == ("onnxruntime", 0, 0), result.err
    assert entry["nodes"] + entry["idle"] == 226
    assert entry["nodes"] >= (226 if level == "ORT_DISABLE_ALL" else 200)
    total = sum(c.seconds for c in read_costs(costs.read_bytes(), "x").costs)
    assert sum(times(result, "cpu-core")) == pytest.approx(total, rel=1e-6)
    groups = dnnp("coarsen", "-q", stdin=result.out)
    planned_ = dnnp("partition", "-q", "-k", "2", stdin=groups.out)
    assert dnnp("check", "-q", stdin=planned_.out).status == 0


def test_fused_nodes_without_the_model(bert: tuple[Path, bytes], tmp_path: Path) -> None:
    """Only names tell: what is called anew is unknown, so that the others keep their price."""
    path, stream = bert
    costs = profiled(path, tmp_path, "ORT_ENABLE_ALL")
    moved = stream.replace(str(path).encode(), b"elsewhere.onnx")
    first = dnnp("profile", "-q", stdin=moved)
    result = profile(costs, stdin=first.out)
    assert "told by names alone, without the model: elsewhere.onnx: no such file" in result.err
    (entry,) = result.one("header")["costs"]
    assert entry["unknown"] > 0
    assert entry["kept"] > 0
    assert entry["idle"] == 0
    again = profile(costs, "--model", path, stdin=first.out)
    assert again.one("header")["costs"][0]["unknown"] == 0


def test_nodes_without_a_name(tmp_path: Path) -> None:
    """ONNX Runtime calls them by their operator and number."""
    chain = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    body = onnx.helper.make_graph(chain, "g", [value("x", [4])], [value("y", [4])])
    path = tmp_path / "m.onnx"
    path.write_bytes(make(body).SerializeToString())
    costs = tmp_path / "p.json"
    costs.write_text(json.dumps(events([("Relu_0", 1), ("Exp_1", 2), ("Relu_2", 3)])))
    result = profile(costs, stdin=dnnp("import", "-q", path).out)
    assert times(result, "cpu-core") == [1e-6, 2e-6, 3e-6]


# TensorRT


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("/a/Conv", ("/a/Conv",)),
        ("/a/Conv + /b/Relu", ("/a/Conv", "/b/Relu")),
        ("Conv_1 || Conv_2", ("Conv_1", "Conv_2")),
        ("PWN(/a/Sigmoid, /b/Mul)", ("/a/Sigmoid", "/b/Mul")),
        ("PWN(PWN(/a/Sigmoid), /b/Mul)", ("/a/Sigmoid", "/b/Mul")),
        ("/a/Conv + PWN(/b/Relu)", ("/a/Conv", "/b/Relu")),
        ("Reformatting CopyNode for Input Tensor 0 to /a/Conv + /b/Relu", ("/a/Conv", "/b/Relu")),
        ("Reformatting CopyNode for Output Tensor 1 to /a/Conv", ("/a/Conv",)),
        ("reshape_before_/fc/MatMul", ("/fc/MatMul",)),
        ("unsqueeze_node_after_/a/Gemm + /a/Gemm", ("/a/Gemm",)),
        ("node_of_gpu_0/conv1_1 + node_of_gpu_0/bn_1", ("gpu_0/conv1_1", "gpu_0/bn_1")),
        ("{ForeignNode[/a/Add]}", ("/a/Add",)),
        ("/in/proj/MatMul_myl0_2", ("/in/proj/MatMul",)),
        (
            "/a/Conv + PWN(PWN(PWN(/b/Sigmoid), /b/Mul), /b/Add)",
            ("/a/Conv", "/b/Sigmoid", "/b/Mul", "/b/Add"),
        ),
        (
            "Reformatting CopyNode for Input Tensor 0 to PWN(PWN(/a/Sigmoid), /a/Mul)",
            ("/a/Sigmoid", "/a/Mul"),
        ),
        ("/model.2/cv1/act/Mul_output_0 copy", ("/model.2/cv1/act/Mul_output_0",)),
        ("Conv_1 + Relu_2 || Conv_3 + Relu_4", ("Conv_1", "Relu_2", "Conv_3", "Relu_4")),
    ],
)
def test_names_of_layers(name: str, parts: tuple[str, ...]) -> None:
    assert layer_names(name) == (parts, None)


def test_layers_price_what_they_join(tmp_path: Path) -> None:
    """A time is shared by the prices before; ranges take what has no layer of its own."""
    path = tmp_path / "layers.json"
    rows = (
        ("n0 + PWN(n1)", 6.0),
        ("Reformatting CopyNode for Input Tensor 0 to n3", 1.0),
        ("n3", 4.0),
        ("{ForeignNode[n2...n5]}", 13.0),
        ("__mye123_myl", 0.5),
    )
    path.write_text(json.dumps(layers(*rows)))
    result = profile(path, "--device", "acc", stdin=encode(graph_records()))
    # n0 and n1 were priced 1 and 2; n2, n4 and n5: 3, 5 and 6.
    expected = [2.0, 4.0, 13 * 3 / 14, 5.0, 13 * 5 / 14, 13 * 6 / 14]
    assert times(result, "acc") == pytest.approx([t * 1e-3 for t in expected])
    (entry,) = result.one("header")["costs"]
    assert (entry["kind"], entry["nodes"], entry["unknown"]) == ("tensorrt", 6, 1)
    assert "1 name of 5 known to no node (2.0% of the time)" in result.err
    # A class that had no prices: the same for each.
    fresh = profile(path, "--device", "t4", stdin=bare())
    assert times(fresh, "t4")[:2] == pytest.approx([3e-3, 3e-3])


def test_what_layers_are_made_of_stands_in_another_file(tmp_path: Path) -> None:
    """As trtexec --exportLayerInfo writes it, in any order; layers that it does not name stay."""
    path, info = tmp_path / "layers.json", tmp_path / "info.json"
    rows = (("__myl_MulSum_myl0_1", 3.0), ("n2_myl0_2", 1.0), ("n3 + n4 + n5", 15.0))
    path.write_text(json.dumps(layers(*rows)))
    made_of = "[ONNX Layer: n0]\x1f[ONNX Layer: n1]\x1e[ONNX Layer: n0]"
    known = [
        {"Name": "__myl_MulSum_myl0_1", "LayerType": "kgen", "Metadata": made_of},
        {"Name": "n2_myl0_2", "LayerType": "gemm", "Metadata": ""},
    ]
    text = json.dumps({"Layers": known, "Bindings": ["in", "out"]})
    stream = encode(graph_records())
    for files in ((path, "--costs", info), (info, "--costs", path)):
        info.write_text(text)
        text = text.replace("\\u001f", "\x1f").replace("\\u001e", "\x1e")  # as it stands there
        result = profile(*files, "--device", "acc", stdin=stream)
        # n0 and n1 were priced 1 and 2; n3, n4 and n5: 4, 5 and 6.
        expected = [1e-3, 2e-3, 1e-3, 4e-3, 5e-3, 6e-3]
        assert times(result, "acc") == pytest.approx(expected)
        (entry,) = result.one("header")["costs"]
        assert (entry["kind"], entry["nodes"], entry["unknown"]) == ("tensorrt", 6, 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"Layers": ["/a/Conv"]}, "no layer says which nodes it is made of"),
        (
            {"Layers": [{"Name": "a", "Metadata": "[ONNX Layer: n0]"}]},
            "says what layers are made of, not what they take",
        ),
    ],
)
def test_layers_without_times(content: dict, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "info.json"
    path.write_text(json.dumps(content))
    words = ("profile", "--costs", path, "--device", "acc")
    result = dnnp(*words, stdin=encode(graph_records()))
    assert (result.status, result.out) == (3, b"")
    assert reason in result.err
    assert len(result.err.splitlines()) == 1


def test_what_has_no_layer_took_no_time_where_the_rest_is_known(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(layers(("n0 + n1 + n2", 3.0), ("n4", 1.0), ("what", 0.1))))
    stream = encode(graph_records())
    found = times(profile(path, "--device", "acc", stdin=stream), "acc")
    assert found == pytest.approx([0.5e-3, 1e-3, 1.5e-3, 0, 1e-3, 0])
    path.write_text(json.dumps(layers(("n0 + n1 + n2", 3.0), ("n4", 1.0), ("what", 1.0))))
    found = times(profile(path, "--device", "acc", stdin=stream), "acc")
    assert found == pytest.approx([0.5e-3, 1e-3, 1.5e-3, 4, 1e-3, 6])


def test_means_where_there_are_no_medians() -> None:
    found = read([{"count": 4}, {"name": "a", "averageMs": 2}, {"name": "b", "timeMs": 12}])
    assert [(c.name, c.seconds) for c in found.costs] == [("a", 2e-3), ("b", 3e-3)]


def test_layers_of_a_model(bert: tuple[Path, bytes], tmp_path: Path) -> None:
    """In trtexec's form, with its ways to join names: all of them are found."""
    _, stream = bert
    names = [r["name"] for r in dnnp("profile", "-q", stdin=stream).records("node")]
    rows = [
        (names[0], 0.25),
        (" + ".join(names[1:4]), 0.5),
        (f"PWN({names[4]}, {names[5]})", 0.25),
        (f"{{ForeignNode[{names[6]}...{names[-1]}]}}", 9.0),
    ]
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(layers(*rows)))
    result = profile(path, "--device", "t4", stdin=stream)
    assert sum(times(result, "t4")) == pytest.approx(0.01)
    assert result.one("header")["costs"][0]["nodes"] == len(names)
