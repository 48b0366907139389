"""The JSON workloads of the 2020 paper."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.model.errors import FormatError
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import read_bytes
from dnnp.formats.workloads.msr import read_workload
from support.run import dnnp

NODE = {
    "id": 0, "name": "n", "supportedOnFpga": 1, "cpuLatency": 10.5, "fpgaLatency": 2,
    "isBackwardNode": 0, "size": 7.0,
}  # fmt: skip


def workload() -> dict[str, Any]:
    """0 -> 1, 0 -> 2, 1 -> 3, 2 -> 3; node 1 feeds 3 only; node 2 does not run on accelerators."""
    nodes = [{**NODE, "id": 10 + i, "name": f"n{i}"} for i in range(4)]
    nodes[2] |= {"supportedOnFpga": False, "colorClass": 3, "layerId": 4}
    nodes[3] |= {"isBackwardNode": True, "colorClass": 3, "layerId": "l.5"}
    pairs = [(10, 11), (10, 12), (11, 13), (12, 13)]
    return {
        "maxFPGAs": 2,
        "maxCPUs": 1.0,
        "maxSizePerFPGA": 1e9,
        "nodes": nodes,
        "edges": [{"sourceId": a, "destId": b, "cost": 1.5, "size": 64} for a, b in pairs],
    }


def read(document: Any):
    return read_workload(json.dumps(document).encode(), "w.json")


def test_every_field():
    stream = read(workload())
    assert stream.header["model"] == "w"
    assert stream.header["units"] == {"time": "unknown"}
    assert stream.header["training"] is True
    assert stream.header["source"]["kind"] == "msr-json"
    assert stream.get("device") == [
        {"type": "device", "class": "fpga", "kind": "accelerator", "count": 2, "memory_bytes": 1e9},
        {"type": "device", "class": "cpu", "kind": "cpu", "count": 1},
    ]
    first, _, third, last = stream.get("node")
    assert first == {
        "type": "node",
        "id": 10,
        "name": "n0",
        "op": "",
        "inputs": [],
        "outputs": [0],
        "time_s": {"fpga": 2, "cpu": 10.5},
        "memory_bytes": 7.0,
    }
    assert third["time_s"] == {"cpu": 10.5}
    assert (third["color"], third["layer"]) == (3, "4")
    assert (last["color"], last["layer"], last["backward"]) == (3, "l.5", True)
    assert (last["inputs"], last["outputs"]) == ([1, 2], [])
    assert stream.get("tensor")[0] == {
        "type": "tensor",
        "id": 0,
        "name": "n0",
        "kind": "activation",
        "size_bytes": 64,
        "transfer_s": 1.5,
    }


def test_no_backward_node_is_no_training():
    document = workload()
    document["nodes"][3]["isBackwardNode"] = 0
    assert "training" not in read(document).header


def test_edges_that_differ_in_cost_are_tensors_of_their_own():
    document = workload()
    document["edges"][1]["cost"] = 9
    stream = read(document)
    outputs = [n["outputs"] for n in stream.get("node")]
    assert outputs == [[0, 1], [2], [3], []]
    assert [(t["name"], t["transfer_s"]) for t in stream.get("tensor")] == [
        ("n0 to n1", 1.5),
        ("n0 to n2", 9),
        ("n1", 1.5),
        ("n2", 1.5),
    ]


def test_equal_parallel_edges_are_one_and_others_are_not():
    document = workload()
    document["edges"].append(dict(document["edges"][2], size=80))
    (tensor,) = [t for t in read(document).get("tensor") if t["name"] == "n1"]
    assert tensor["size_bytes"] == 80
    document["edges"][-1]["cost"] = 2.5
    stream = read(document)
    assert stream.get("node")[1]["outputs"] == [1, 2]
    assert stream.get("node")[3]["inputs"] == [1, 2, 3]


BAD = [
    (("nodes", 2, "fpgaLatency"), float("nan"), "nodes[2].fpgaLatency"),
    (("nodes", 2, "fpgaLatency"), float("inf"), "nodes[2].fpgaLatency"),
    (("nodes", 0, "cpuLatency"), -1, "nodes[0].cpuLatency"),
    (("nodes", 0, "cpuLatency"), "3", "nodes[0].cpuLatency"),
    (("nodes", 0, "cpuLatency"), True, "nodes[0].cpuLatency"),
    (("nodes", 0, "cpuLatency"), None, "nodes[0].cpuLatency"),
    (("nodes", 0, "fpgaLatency"), ..., "nodes[0].fpgaLatency"),
    (("nodes", 0, "supportedOnFpga"), 2, "nodes[0].supportedOnFpga"),
    (("nodes", 0, "isBackwardNode"), "no", "nodes[0].isBackwardNode"),
    (("nodes", 1, "size"), 1e101, "nodes[1].size"),
    (("nodes", 1, "size"), ..., "nodes[1].size"),
    (("nodes", 1, "id"), 10, "nodes[1].id"),
    (("nodes", 1, "id"), 1.0, "nodes[1].id"),
    (("nodes", 1, "id"), -1, "nodes[1].id"),
    (("nodes", 1, "id"), 2**60, "nodes[1].id"),
    (("nodes", 1, "name"), 3, "nodes[1].name"),
    (("nodes", 1, "name"), "\ud800", "nodes[1].name"),
    (("nodes", 1, "colorClass"), -1, "nodes[1].colorClass"),
    (("nodes", 1, "layerId"), [1], "nodes[1].layerId"),
    (("nodes", 1), 7, "nodes[1]"),
    (("nodes",), {}, "nodes"),
    (("nodes",), [], "nodes"),
    (("nodes",), ..., "nodes"),
    (("edges", 1, "cost"), -2.5, "edges[1].cost"),
    (("edges", 1, "cost"), ..., "edges[1].cost"),
    (("edges", 1, "size"), "x", "edges[1].size"),
    (("edges", 1, "sourceId"), 99, "edges[1].sourceId"),
    (("edges", 1, "destId"), 10, "edges[1].destId"),
    (("edges", 1, "destId"), ..., "edges[1].destId"),
    (("edges",), ..., "edges"),
    (("maxFPGAs",), -1, "maxFPGAs"),
    (("maxFPGAs",), 1.5, "maxFPGAs"),
    (("maxCPUs",), ..., "maxCPUs"),
    (("maxSizePerFPGA",), "big", "maxSizePerFPGA"),
]


@pytest.mark.parametrize(("path", "value", "field"), BAD)
def test_faults_name_their_field(path, value, field):
    document = workload()
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(FormatError) as caught:
        read(document)
    assert str(caught.value).startswith(f"w.json: field '{field}': ")


@pytest.mark.parametrize(
    "data",
    [b"", b"[1]", b"3", b"null", b'{"nodes": [}', b"\xff\xfe{", b"[" * 100_000, b"1" * 5000],
)
def test_other_documents(data):
    with pytest.raises(FormatError, match=r"not JSON|is not an object"):
        read_workload(data, "w.json")


def test_cycles_name_their_nodes():
    document = workload()
    document["edges"].append({"sourceId": 13, "destId": 11, "cost": 0})
    with pytest.raises(FormatError, match="cycle: 11 'n1' -> 13 'n3' -> 11 'n1'"):
        read(document)


@given(st.data())
def test_any_change_is_read_or_refused(data):
    """Replace or remove one value anywhere; what is accepted makes a valid graph."""
    document = workload()
    place, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
    odd = st.sampled_from([None, -1, 2**70, 1e300, "", [], {}, float("nan"), 11, True])
    place[key] = data.draw(odd | st.integers(9, 14))
    try:
        stream = read(document)
    except FormatError:
        return
    graph_of(stream)


def test_the_command_and_standard_input(tmp_path: Path):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload()))
    by_name = dnnp("import", path)
    by_pipe = dnnp("import", "-", "--from", "msr-json", stdin=path.read_bytes())
    assert by_name.status == by_pipe.status == 0
    assert by_name.records("node") == by_pipe.records("node")
    assert by_pipe.one("header")["model"] == "stdin"
    assert dnnp("import", path, "--name", "x").one("header")["model"] == "x"
    bad = dnnp("import", "-", "--from", "msr-json", stdin=b"{}")
    assert bad.status == 3
    assert bad.err == "dnnp-import: <stdin>: field 'maxFPGAs': is missing\n"


COUNTS = {
    "throughput/op_bert_l-3_inference": (235, 250), "throughput/op_bert_l-3_training": (600, 817),
    "throughput/op_bert_l-6_inference": (418, 448),
    "throughput/op_resnet50_inference": (604, 619),
    "throughput/op_resnet50_training": (1243, 1806),
    "throughput/layer_bert24_inference": (32, 55), "throughput/layer_bert24_training": (64, 110),
    "throughput/layer_gnmt_inference": (96, 122), "throughput/layer_gnmt_training": (192, 244),
    "latency/layer_bert24_inference": (32, 55), "latency/layer_gnmt_inference": (96, 122),
    "latency/op_bert_l-3_inference": (235, 250),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_published_workloads(shared_workloads: Path, name):
    path = shared_workloads / f"{name}.json"
    source = json.loads(path.read_text())
    result = dnnp("import", path)
    assert (result.status, result.err) == (0, "")
    stream = read_bytes(result.out)
    graph = graph_of(stream)
    assert (graph.n, len(graph.edges[0])) == COUNTS[name]
    assert stream.header.get("training", False) == ("training" in name)
    nodes = {n["id"]: n for n in stream.get("node")}
    for entry in source["nodes"]:
        times = {"fpga": entry["fpgaLatency"], "cpu": entry["cpuLatency"]}
        assert nodes[entry["id"]]["time_s"] == times
        assert nodes[entry["id"]].get("color") == entry.get("colorClass")
    assert stream.get("device")[0]["count"] == source["maxFPGAs"]


def test_reading_changes_nothing():
    document = workload()
    before = copy.deepcopy(document)
    read(document)
    assert document == before
