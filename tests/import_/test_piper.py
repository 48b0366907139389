"""The inputs of Piper."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fuzz.targets import PIPER

from dnnp.core.model.errors import FormatError
from dnnp.formats.workloads.piper import read_piper
from support.project import ROOT
from support.run import dnnp

INPUTS = ROOT.parent / "shared" / "piper"
LIMITS = (
    "--recompute", "auto", "--weight-sync", "server", "--bandwidth", "25GiB",
    "--data-parallel", "64",
)  # fmt: skip


def read(document: Any) -> Any:
    return read_piper(json.dumps(document).encode(), "p.json")


def test_every_field() -> None:
    stream = read(PIPER)
    assert stream.header["source"]["kind"] == "piper"
    assert stream.header["micro_batches"] == 4
    (device,) = stream.get("device")
    assert device["count"] == 3
    assert device["memory_bytes"] == 60.0
    assert device["bandwidth_bytes_per_s"] == 4.0
    first, second, *_ = stream.get("node")
    assert first["time_s"] == {"device": 6.0}
    assert (first["memory_bytes"], first["held_bytes"]) == (13.0, 8.0)
    one, two = second["shards"]
    assert (one["devices"], two["devices"]) == (1, 2)
    assert two == {
        "devices": 2,
        "time_s": {"device": 3.0},
        "memory_bytes": 13.0,
        "held_bytes": 8.0,
        "weight_bytes": 3.0,
        "recomputed": {"time_s": {"device": 4.0}, "memory_bytes": 9.0, "held_bytes": 4.0},
    }
    # There and back: twice what the edge states, and what is moved besides.
    tensor = stream.get("tensor")[0]
    assert tensor["size_bytes"] == 8.0
    assert tensor["shards"][1] == {"devices": 2, "in_bytes": 4.0, "out_bytes": 2.0}


def test_planned_and_checked() -> None:
    data = json.dumps(PIPER).encode()
    stream = dnnp("import", "--from", "piper", "-", stdin=data)
    plan = dnnp(
        "partition", "--tensor-parallel", "2", "--recompute", "auto", "--weight-sync", "server",
        stdin=stream.out,
    )  # fmt: skip
    assert plan.status == 0, plan.err
    assert dnnp("check", stdin=plan.out).status == 0


@pytest.mark.parametrize(
    ("at", "value", "field"),
    [
        (("maxDevices",), 0, "maxDevices"),
        (("bandwidth",), -1, "bandwidth"),
        (("nodes",), [], "nodes"),
        (("nodes", 1, "id"), 0, "nodes[1].id"),
        (("nodes", 0, "TMPCs"), {}, "nodes[0].TMPCs"),
        (("nodes", 0, "TMPCs"), {"x": []}, "nodes[0].TMPCs.x"),
        (("nodes", 0, "TMPCs", "1"), [], "nodes[0].TMPCs.1"),
        (("nodes", 0, "TMPCs", "1", 0, "timePerSample"), "a", "nodes[0].TMPCs.1[0].timePerSample"),
        (("nodes", 0, "TMPCs", "1", 1, "parameterSize"), 9, "nodes[0].TMPCs.1[1].parameterSize"),
        (("nodes", 1, "TMPCs", "1", 0, "syncTimeFw"), {}, "nodes[1].TMPCs.1[0].syncTimeFw.0"),
        (("nodes", 1, "TMPCs", "1", 1, "syncTimeBw", "2"), 7, "nodes[1].TMPCs.1[1].syncTimeBw.2"),
        (("edges", 0, "destId"), 9, "edges[0].destId"),
        (("edges", 0, "destId"), 0, "edges[0].destId"),
        (("edges", 1), {"sourceId": 0, "destId": 1, "communicationCost": 1}, "edges[1].destId"),
        (("edges", 1), {"sourceId": 1, "destId": 0, "communicationCost": 1}, "edges"),
    ],
)
def test_faults_name_their_place(at: tuple[Any, ...], value: Any, field: str) -> None:
    document = copy.deepcopy(PIPER)
    place: Any = document
    for step in at[:-1]:
        place = place[step]
    place[at[-1]] = value
    with pytest.raises(FormatError) as caught:
        read(document)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("gnmt", ("-k", "2", "--memory", "2.5GiB"), 263.354289),
        ("bert32a100", ("-k", "8", "--memory", "8GiB", "--tensor-parallel", "8"), 0.16585575),
        ("bert32a100", ("-k", "64", "--memory", "2GiB", "--tensor-parallel", "8"), 0.0320300812349),
    ],
)
def test_values_of_its_program(name: str, options: tuple[str, ...], value: float) -> None:
    path: Path = INPUTS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"needs {path.name}")
    stream = dnnp("import", "--from", "piper", path)
    plan = dnnp("partition", *options, *LIMITS, stdin=stream.out)
    assert plan.status == 0, plan.err
    record = next(json.loads(x) for x in plan.out.splitlines() if b'"type":"plan"' in x)
    assert record["status"] == "optimal"
    assert record["value"] == pytest.approx(value, rel=1e-8)
    assert dnnp("check", stdin=plan.out).status == 0
