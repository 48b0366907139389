"""dnnp-coarsen as a user meets it."""

from __future__ import annotations

import orjson
import pytest

from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.stream import Stream, read_bytes
from support.graphs import random_stream, to_bytes
from support.op_graphs import op_stream
from support.run import dnnp

LINES = (
    "c = Conv(x, w1)",
    "b = BatchNormalization(c, w2)",
    "r = Relu(b)",
    "s = Sigmoid(r)",
    "m = Mul(r, s)",
    "f = Flatten(m)",
    "g = Gemm(f, w3)",
)
TIMES = {"c": 8.0, "b": 1.0, "r": 0.5, "s": 2.0, "m": 1.0, "f": 0.0, "g": 4.0}


def priced(**more: dict) -> Stream:
    """The lines above with costs for one class, and for a second one but for Gemm."""
    nodes = {
        name: {
            "time_s": {"cpu": t, **({} if name == "g" else {"gpu": t / 2})},
            "flop": 10 * i,
            "bytes": i + 0.5,
            **more.get(name, {}),
        }
        for i, (name, t) in enumerate(TIMES.items())
    }
    return op_stream(*LINES, outputs="g", nodes=nodes)


def coarsen(stream: Stream, *arguments: str):
    return dnnp("coarsen", *arguments, stdin=to_bytes(stream))


def members(result) -> list[list[int]]:
    return [r["nodes"] for r in result.records("group")]


def test_golden():
    result = coarsen(priced())
    assert result.status == 0
    assert result.err == "dnnp-coarsen: 7 nodes -> 3 groups (1 conv-activation, 1 chain)\n"
    assert result.records("group") == [
        {
            "type": "group",
            "id": 0,
            "name": "Conv+BatchNormalization+Relu",
            "nodes": [0, 1, 2],
            "rule": "conv-activation",
            "time_s": {"cpu": 9.5, "gpu": 4.75},
            "cost": "summed",
            "flop": 30,
            "bytes": 4.5,
        },
        {
            "type": "group",
            "id": 1,
            "name": "Sigmoid+Mul+Flatten",
            "nodes": [3, 4, 5],
            "rule": "chain",
            "time_s": {"cpu": 3.0, "gpu": 1.5},
            "cost": "summed",
            "flop": 120,
            "bytes": 13.5,
        },
        {
            "type": "group",
            "id": 2,
            "name": "g",
            "nodes": [6],
            "time_s": {"cpu": 4.0},
            "cost": "summed",
            "flop": 60,
            "bytes": 6.5,
        },
    ]
    assert result.one("header")["provenance"][-1]["tool"] == "dnnp-coarsen"


def test_without_options_small_models_stay_divisible():
    # Every part is above 2% of the work, so no chain is made of two of them.
    result = coarsen(op_stream(*LINES, outputs="g"))
    assert members(result) == [[0, 1, 2], [3, 4], [5], [6]]
    assert members(coarsen(priced())) == [[0, 1, 2], [3, 4, 5], [6]], "Flatten costs nothing"
    limited = coarsen(priced(), "--rules", "ort-cpu", "--chains", "--max-share", "0.02")
    assert limited.records("group") == coarsen(priced()).records("group")
    # Gemm does not run on the GPU.
    assert members(coarsen(priced(), "--rules", "ort-cpu", "--chains")) == [[0, 1, 2, 3, 4, 5], [6]]


def test_without_costs_there_are_none_in_the_groups():
    groups = coarsen(op_stream(*LINES)).records("group")
    assert groups
    for record in groups:
        assert not {"time_s", "cost", "flop", "bytes"} & record.keys()


def test_each_way_alone():
    stream = op_stream(*LINES, outputs="g")
    assert members(coarsen(stream, "--rules", "none")) == [[v] for v in range(7)]
    assert members(coarsen(stream, "--rules", "moirai")) == [[0, 1, 2], [3], [4], [5], [6]]
    assert members(coarsen(stream, "--chains")) == [[0, 1, 2], [3], [4, 5, 6]]
    for i, node in enumerate(stream.get("node")):
        node["name"] = f"/block.{i // 4}/{node['op']}"
    result = coarsen(stream, "--layers")
    assert members(result) == [[0, 1, 2, 3], [4, 5, 6]]
    assert [r["name"] for r in result.records("group")] == ["block.0", "block.1"]
    result = coarsen(stream, "--layers", "--depth", "1", "--rules", "ort-cpu")
    assert members(result) == [[0, 1, 2, 3, 4], [5, 6]], "a group goes to its first layer"


def test_scope_and_layer_fields_come_before_names():
    stream = op_stream(*LINES)
    for i, node in enumerate(stream.get("node")):
        node["name"] = f"/wrong/{i}"
        node["scope"] = f"model.block.{i // 4}"
    names = [r["name"] for r in coarsen(stream, "--layers").records("group")]
    assert names == ["model/block.0", "model/block.1"]
    for i, node in enumerate(stream.get("node")):
        node["layer"] = str(i // 3)
    result = coarsen(stream, "--layers")
    assert [r["name"] for r in result.records("group")] == ["0", "1", "/wrong/6"]


def test_no_scopes_is_said():
    result = coarsen(op_stream(*LINES), "--layers")
    assert result.status == 0
    assert "no node has a name scope or a layer: --layers groups nothing" in result.err
    assert len(members(result)) == 7


def test_a_long_name_is_cut():
    lines = [f"n{i} = Op({f'n{i - 1}' if i else 'x'})" for i in range(9)]
    (group,) = coarsen(op_stream(*lines), "--chains").records("group")
    assert group["name"] == "Op+...+Op (9 nodes)"


def test_groups_are_replaced_and_what_follows_is_dropped():
    first = coarsen(priced())
    planned = dnnp("partition", "-k", "2", stdin=first.out)
    assert planned.status == 0, planned.err
    again = dnnp("coarsen", stdin=planned.out)
    assert again.status == 0
    assert "replacing 3 groups" in again.err
    assert "dropping what was made from the old groups: plan, stage" in again.err
    assert again.records("group") == first.records("group")
    assert again.records("plan") == again.records("stage") == []
    assert dnnp("coarsen", "-q", stdin=planned.out).err == ""


def test_other_records_pass_through():
    stream = priced()
    stream.other = [{"type": "remark", "text": "keep me", "list": [1, {"a": None}]}]
    result = coarsen(stream)
    assert result.one("remark") == stream.other[0]
    assert result.records("node") == stream.get("node")
    assert result.records("tensor") == stream.get("tensor")


@pytest.mark.parametrize("seed", range(20))
def test_every_result_maps_back(seed):
    stream = random_stream(seed, 5 + seed, classes=("gpu",), params=True, colors=seed % 2 == 0)
    result = coarsen(stream, "--chains", "--rules", "ort-cpu")
    assert result.status == 0
    read = read_bytes(result.out)
    graph = graph_of(read)
    clustering = clustering_of(read, graph)
    assert clustering is not None
    assert sorted(v for nodes in members(result) for v in nodes) == graph.node_ids.tolist()
    times = {r["id"]: r["time_s"] for r in result.records("node")}
    for group in result.records("group"):
        common = set.intersection(*(set(times[v]) for v in group["nodes"]))
        assert set(group["time_s"]) == common
        for c in common:
            assert group["time_s"][c] == pytest.approx(sum(times[v][c] for v in group["nodes"]))


def test_same_bytes_every_time():
    stream = random_stream(3, 40, params=True)
    assert coarsen(stream).out == coarsen(stream).out


def test_node_records_in_any_order():
    stream = priced()
    stream.get("node").reverse()
    assert members(coarsen(stream)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_sums_stay_readable():
    stream = priced(c={"time_s": {"cpu": 1e100, "gpu": 1}}, b={"time_s": {"cpu": 1e100, "gpu": 1}})
    result = coarsen(stream, "--chains")
    assert result.status == 0
    assert read_bytes(result.out).get("group")[0]["time_s"]["cpu"] == 1e100


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--rules", "nosuch"], 2, "no rules named 'nosuch'; known: cudnn, moirai, ort-cpu, "),
        (["--rules", "no/such.json"], 1, "no/such.json: No such file or directory"),
        (["--depth", "2"], 2, "--depth is for --layers"),
        (["--layers", "--depth", "0"], 2, "--depth: 0 is too small; at least 1"),
        (["--max-share", "0.1"], 2, "--max-share is for --chains or --to"),
        (["--to", "0"], 2, "--to: 0 is too small; at least 1"),
        (["--to", "2.5"], 2, "'2.5' is not a whole number"),
        (["--model", "m.onnx"], 2, "--model is for --rules ort"),
        (["--rules", "moirai", "--provider", "cpu"], 2, "--provider is for --rules ort"),
        (["--rules", "ort"], 3, "the stream names no source model; give one with --model"),
        (["--rules", "ort", "--model", "no.onnx"], 1, "no.onnx: No such file or directory"),
        (["--chains", "--max-share", "-1"], 2, "--max-share: '-1' is not a number from 0"),
        (["--chains", "--max-share", "nan"], 2, "--max-share: 'nan' is not a number from 0"),
    ],
)
def test_errors(arguments, status, message):
    result = coarsen(priced(), *arguments)
    assert (result.status, result.out) == (status, b"")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.err.startswith("dnnp-coarsen: ")


def test_a_bad_rule_file_is_named(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(orjson.dumps({"name": "bad", "rules": [{"name": "a", "pattern": ["A(x)"]}]}))
    result = coarsen(priced(), "--rules", str(path))
    assert result.status == 3
    assert f"{path}: field 'rules[0].pattern': expected 2 to 64 lines" in result.err


def test_a_cycle_is_refused():
    stream = op_stream("a = A(x)", "b = B(a)")
    stream.get("node")[0]["inputs"].append(stream.get("node")[1]["outputs"][0])
    result = coarsen(stream)
    assert result.status == 3
    assert "the graph has a cycle: node 0 -> 1 -> 0" in result.err


def test_one_group_is_not_several():
    first = coarsen(op_stream("a = Op(x)", "b = Op(a)"), "--chains")
    assert first.err == "dnnp-coarsen: 2 nodes -> 1 group (1 chain)\n"
    again = dnnp("coarsen", "--chains", stdin=first.out)
    assert again.err.startswith("dnnp-coarsen: replacing 1 group\n")
