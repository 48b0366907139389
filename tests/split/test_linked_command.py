"""Links and throughput, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from support.graphs import random_stream, to_bytes
from support.run import Result, dnnp


def graph(seed: int = 4, n: int = 12) -> bytes:
    """A random graph that an A100 and a T4 run; times are seconds, sizes bytes."""
    stream = random_stream(seed, n, classes=("a100", "t4"))
    for node in stream.get("node"):
        node["time_s"] = {"a100": 1e-4 * (1 + node["id"] % 3), "t4": 2e-4 * (1 + node["id"] % 3)}
    for tensor in stream.get("tensor"):
        tensor["size_bytes"] *= 100_000
        tensor.pop("transfer_s", None)
    return to_bytes(stream)


def split(*arguments: object) -> Result:
    return dnnp("partition", "--devices", "a100-t4", *map(str, arguments), stdin=graph())


def stages(result: Result) -> list[dict]:
    return [r for r in map(orjson.loads, result.out.splitlines()) if r["type"] == "stage"]


def test_two_machines():
    result = split()
    assert result.status == 0, result.err
    assert "no effect" not in result.err
    plan = result.one("plan")
    between = {x["bandwidth_bytes_per_s"] for x in plan["links"] if x["from"][0] != x["to"][0]}
    inside = {x["bandwidth_bytes_per_s"] for x in plan["links"] if x["from"][0] == x["to"][0]}
    assert (between, inside) == ({10e9}, {300e9, 15.75e9})
    assert "planned_by" not in plan
    assert dnnp("check", stdin=result.out).status == 0
    slow = split("--method", "slice")
    assert plan["value"] <= slow.one("plan")["value"]


def test_a_method_that_knows_classes_says_so():
    result = split("--method", "slice")
    assert result.one("plan")["planned_by"] == "classes"
    assert "slice knows the best link of each class only" in result.err
    assert dnnp("check", stdin=result.out).status == 0


def test_bound_and_certificate():
    for method in ("slice", "auto"):
        bound = dnnp("bound", "--method", "simple", stdin=split("--method", method).out)
        assert bound.status == 0, bound.err
        assert dnnp("check", "--certificate", stdin=bound.out).status in (0, 6)
    bound = dnnp("bound", "--method", "links", stdin=split("--method", "slice").out)
    assert bound.one("bound")["method"] == "links"
    assert dnnp("check", stdin=bound.out).status == 0
    plain = dnnp("partition", "-k", "2", stdin=to_bytes(random_stream(1, 4)))
    refused = dnnp("bound", "--method", "links", stdin=plain.out)
    assert refused.status == 2
    assert "there are no links" in refused.err


@pytest.mark.parametrize("name", ["bandwidth_bytes_per_s", "latency_s"])
def test_edited_links_are_found(name):
    result = split()
    records = [orjson.loads(line) for line in result.out.splitlines()]
    plan = next(r for r in records if r["type"] == "plan")
    used = {r["device"] for r in records if r["type"] == "stage"}
    for link in plan["links"]:
        if {link["from"], link["to"]} <= used:
            link[name] = 2 * link[name] + 1.0
    edited = b"".join(orjson.dumps(r) + b"\n" for r in records)
    checked = dnnp("check", stdin=edited)
    assert checked.status == 3
    assert "recomputed" in checked.err


def test_links_that_connect_too_little(tmp_path: Path):
    cluster = [
        {"class": "a100", "count": 2},
        {"class": "t4", "count": 1, "bandwidth_bytes_per_s": 1e9},
        {"type": "link", "from": "a100/0", "to": "a100/1", "bandwidth_bytes_per_s": 1e9},
    ]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(cluster))
    result = dnnp("partition", "--devices", str(file), stdin=graph())
    assert result.status == 3
    assert "the cluster is disconnected: there is no path from a100/0 to t4/0" in result.err


def test_a_host_that_no_link_names(tmp_path: Path):
    """It is joined to every device over that device's bandwidth, as if a record said so."""
    cluster = [
        {"class": "a100", "count": 2, "bandwidth_bytes_per_s": 3e9},
        {"class": "t4", "kind": "cpu", "count": 1},
        {"type": "link", "from": "a100", "to": "a100", "bandwidth_bytes_per_s": 1e9},
    ]
    named = [*cluster, {"type": "link", "from": "a100", "to": "t4", "bandwidth_bytes_per_s": 3e9}]
    results = []
    for records in (cluster, named):
        file = tmp_path / "cluster.json"
        file.write_text(json.dumps(records))
        result = dnnp("partition", "--devices", str(file), stdin=graph())
        assert result.status == 0, result.err
        assert dnnp("check", stdin=result.out).status == 0
        results.append(result)
    assert "no link names 't4': each device reaches it over its own bandwidth" in results[0].err
    assert "no link names" not in results[1].err
    plans = [result.one("plan") for result in results]
    links = [{(x["from"], x["to"]): x for x in plan["links"]} for plan in plans]
    assert links[0] == links[1]
    assert plans[0]["value"] == plans[1]["value"]
    assert "t4/0" in {stage["device"] for stage in stages(results[0])}


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_schedules_take_the_loads_over_links(comm):
    result = split("--comm", comm)
    for options in ((), ("--transfers", "non-blocking")):
        schedule = dnnp("schedule", "-n", "4", *options, stdin=result.out)
        assert schedule.status == 0, schedule.err
        assert dnnp("check", stdin=schedule.out).status == 0


def test_replicas_over_links():
    compared = split("--allow-replicas")
    assert compared.status == 0, compared.err
    assert dnnp("check", stdin=compared.out).status == 0
    assert len(compared.one("plan")["ways"]) == 4
    replicated = split("--max-replicas", "2")
    assert replicated.status == 0
    assert dnnp("check", stdin=replicated.out).status == 0
