"""Splits in the JSON of the 2020 paper: what is written, what is read, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from dnnp.core.model.errors import FormatError
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import read_bytes
from dnnp.formats.workloads.msr import SplitPart, read_split, split_of, write_split
from support import training
from support.run import dnnp
from support.seeds import encode, planned


def plan_with(**devices: str):
    """The plan of `seeds.plan_records`, with other devices for some stages (`s1="cpu/0"`)."""
    records = planned()
    for record in records:
        name = devices.get(f"s{record['id']}") if record["type"] == "stage" else None
        if name:
            record["device"], record["class"] = name, name.split("/")[0]
    stream = read_bytes(encode(records), "seed")
    return plan_of(stream, graph_of(stream))


def test_a_plan_as_split() -> None:
    assert split_of(plan_with()) == {
        "fpgas": [
            {"load": 15.0, "nodes": [0, 1]},
            {"load": 17.0, "nodes": [2, 3, 4]},
            {"load": 19.0, "nodes": [5]},
        ],
        "cpus": [],
        "maxLoad": 19.0,
    }


def test_cpus_and_devices_with_several_stages() -> None:
    assert split_of(plan_with(s1="cpu/0", s2="acc/0")) == {
        "fpgas": [{"load": 34.0, "nodes": [0, 1, 5]}],
        "cpus": [{"load": 17.0, "nodes": [2, 3, 4]}],
        "maxLoad": 34.0,
    }


def test_replicas_are_one_entry() -> None:
    records = planned()
    plan = next(r for r in records if r["type"] == "plan")
    plan["max_replicas"] = plan["devices"][0]["count"] = 4
    next(r for r in records if r["type"] == "stage" and r["id"] == 2)["replicas"] = 2
    stream = read_bytes(encode(records), "seed")
    split = split_of(plan_of(stream, graph_of(stream)))
    assert split["fpgas"][1:] == [
        {"load": 17.0, "nodes": [2, 3, 4]},
        {"load": 19.0, "nodes": [5], "replicas": 2},
    ]
    assert read_split(orjson.dumps(split), "f")[2] == SplitPart("accelerator", [5], 2)


def test_what_is_written_is_read_back() -> None:
    split = read_split(write_split(plan_with(s1="cpu/0")), "split.json")
    assert split == [
        SplitPart("accelerator", [0, 1]),
        SplitPart("accelerator", [5]),
        SplitPart("cpu", [2, 3, 4]),
    ]


def test_clusters_name_their_devices() -> None:
    stream = read_bytes(encode(training.planned()), "seed")
    plan = plan_of(stream, graph_of(stream))
    assert plan is not None
    assert [(e["device"], e.get("replicas", 1)) for e in split_of(plan)["fpgas"]] == [
        ("acc/0", 1),
        ("acc/2", 2),
        ("acc/1", 1),
    ]
    assert read_split(write_split(plan), "f") == [
        SplitPart("accelerator", [0, 5], 1, "acc", 0),
        SplitPart("accelerator", [1, 4], 2, "acc", 2),
        SplitPart("accelerator", [2, 3], 1, "acc", 1),
    ]


def test_command() -> None:
    done = dnnp("export", "--to", "msr-split", stdin=encode(planned()))
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out) == split_of(plan_with())


@pytest.mark.parametrize(("name", "nodes"), [("bert24", 32), ("gnmt", 96)])
def test_expert_splits(shared_workloads: Path, name: str, nodes: int) -> None:
    file = f"{name}_inference_expert.json"
    split = read_split((shared_workloads / "expert" / file).read_bytes(), file)
    assert [part.kind for part in split] == ["accelerator"] * 6
    workload = json.loads(
        (shared_workloads / "throughput" / f"layer_{name}_inference.json").read_bytes()
    )
    assert sorted(v for part in split for v in part.nodes) == sorted(
        node["id"] for node in workload["nodes"]
    )
    assert sum(len(part.nodes) for part in split) == nodes


READ = {
    b"[[3, 1], [], [2]]": [SplitPart("accelerator", [3, 1]), SplitPart("accelerator", [2])],
    b'\xef\xbb\xbf{"cpus": [{"nodes": [4]}]}': [SplitPart("cpu", [4])],
    b'{"stages": [{"nodes": [0]}, {"nodes": [1], "device": "cpu/0"}, '
    b'{"nodes": [2], "device": "cpu-core/12"}]}': [
        SplitPart("accelerator", [0]),
        SplitPart("cpu", [1], 1, "cpu", 0),
        SplitPart("accelerator", [2], 1, "cpu-core", 12),
    ],
    b'{"fpgas": [{"nodes": [0], "replicas": 3}, {"nodes": [1], "device": "v100"}], '
    b'"cpus": [{"nodes": [2], "device": "a/b/1"}, {"nodes": [3], "device": "a/"}]}': [
        SplitPart("accelerator", [0], 3),
        SplitPart("accelerator", [1], 1, "v100"),
        SplitPart("cpu", [2], 1, "a/b", 1),
        SplitPart("cpu", [3], 1, "a/"),
    ],
    b'{"fpgas": [], "other": null}': [],
    b"[]": [],
}


@pytest.mark.parametrize("text", READ)
def test_forms_that_are_read(text: bytes) -> None:
    assert read_split(text, "f") == READ[text]


REFUSED = {
    b"": "f:1: not JSON",
    b'{"fpgas": [\n{"nodes": [1,}]}': "f:2: not JSON",
    b"\xff": "f: not JSON",
    b"[" * 5000: "f:1: not JSON",
    b"[[NaN]]": "f: field '[0][0]': nan is not a node id",
    b"3": "f: expected 'fpgas' and 'cpus', 'stages', or a list of lists",
    b'{"nodes": []}': "f: expected 'fpgas' and 'cpus', 'stages', or a list of lists",
    b'{"fpgas": 3}': "f: field 'fpgas': 3 is not a list",
    b'{"fpgas": null}': "f: field 'fpgas': null (a NaN that",
    b'{"cpus": [[1]]}': "f: field 'cpus[0]': [1] is not an object",
    b'{"cpus": [{}]}': "f: field 'cpus[0].nodes': is missing",
    b'{"cpus": [{"nodes": 1}]}': "f: field 'cpus[0].nodes': expected a list of node ids",
    b'{"stages": [{"nodes": [], "device": 1}]}': "f: field 'stages[0].device': 1 is not a",
    b'{"fpgas": [{"nodes": [], "device": null}]}': "f: field 'fpgas[0].device': null (a NaN that",
    b'{"fpgas": [{"nodes": [], "replicas": 0}]}': "f: field 'fpgas[0].replicas': 0 is not an",
    b'{"fpgas": [{"nodes": [], "replicas": 2.5}]}': "f: field 'fpgas[0].replicas': 2.5 is not",
    b'{"fpgas": [{"nodes": [], "replicas": true}]}': "f: field 'fpgas[0].replicas': true is not",
    b'{"fpgas": [{"nodes": [], "device": "a/9%s"}]}' % (b"9" * 5000): (
        "f: field 'fpgas[0].device': 'a/999"
    ),
    b"[1]": "f: field '[0]': expected a list of node ids",
    b"[[1.0]]": "f: field '[0][0]': 1.0 is not a node id",
    b"[[0, true]]": "f: field '[0][1]': true is not a node id",
    b"[[-1]]": "f: field '[0][0]': -1 is not a node id",
    b'[["1"]]': "f: field '[0][0]': '1' is not a node id",
    b"[[12345678901234567890123]]": "f: field '[0][0]': 12345678901234567890123 is not a node id",
    b"[[1], [2, 1]]": "f: field '[1][1]': node 1 is also in [0]",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_refused(text: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        read_split(text, "f")
    assert str(caught.value).startswith(REFUSED[text])
