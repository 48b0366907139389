"""The checker accepts a plan worked out by hand and finds every corruption of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from support import seeds
from support.run import Result, dnnp

Records = list[dict[str, Any]]


def one(records: Records, kind: str, index: int = 0) -> dict[str, Any]:
    """Record number `index` of a type."""
    return [r for r in records if r["type"] == kind][index]


def check(records: Records) -> tuple[Result, dict[str, Any]]:
    """Run dnnp-check --json in this process."""
    result = dnnp("check", "--json", stdin=seeds.encode(records))
    return result, orjson.loads(result.out)


def kinds(summary: dict[str, Any]) -> set[str]:
    return {violation["kind"] for violation in summary["violations"]}


@pytest.mark.parametrize("groups", [False, True])
def test_hand_made_plan_holds(groups: bool) -> None:
    result, summary = check(seeds.planned(groups=groups))
    assert result.status == 0, result.err
    assert summary["ok"]
    assert summary["value"] == 19.0
    assert summary["loads"] == [15.0, 17.0, 19.0]
    assert summary["validity"] == "ordered"
    assert summary["objective"] == "throughput"
    assert summary["violations"] == []
    assert "ok: 6 nodes" in result.err


def test_quiet_success_is_silent() -> None:
    result = dnnp("check", "-q", stdin=seeds.encode(seeds.planned()))
    assert (result.status, result.out, result.err) == (0, b"", "")


def test_stream_without_plan() -> None:
    result, summary = check([*seeds.graph_records(), *seeds.group_records()])
    assert result.status == 0
    assert summary["ok"]
    assert summary["value"] is None
    assert summary["groups"] == 5


def set_stage(index: int, **fields: Any) -> Callable[[Records], None]:
    return lambda records: one(records, "stage", index).update(fields)


def set_plan(**fields: Any) -> Callable[[Records], None]:
    return lambda records: one(records, "plan").update(fields)


def set_devices(**fields: Any) -> Callable[[Records], None]:
    return lambda records: one(records, "plan")["devices"][0].update(fields)


def drop_stages(records: Records) -> None:
    records[:] = [r for r in records if r["type"] != "stage"]


def rename_stage_2(records: Records) -> None:
    one(records, "stage", 2)["id"] = 7


def stream_weights(records: Records) -> None:
    set_devices(memory_bytes=100)(records)
    set_plan(memory_mode="overflow")(records)


def sum_with_peak(records: Records) -> None:
    set_plan(memory_model="sum")(records)
    set_stage(0, peak_bytes=1.0)(records)


def color_0_and_5(records: Records) -> None:
    for index in (0, 5):
        one(records, "node", index)["color"] = 3


def cut_a_group(records: Records) -> None:
    records += [seeds.group(9, [1, 2]), *(seeds.group(10 + v, [v]) for v in (0, 3, 4, 5))]


def add_run(records: Records) -> None:
    run = {"type": "run", "mode": "pipeline", "provider": "cpu", "samples": 1}
    records.append({**run, "digest": "a" * 64})


def coarsen_later(records: Records) -> None:
    tools = ("import", "partition", "coarsen")
    one(records, "header")["provenance"] = [
        {"tool": f"dnnp-{tool}", "version": "1", "arguments": []} for tool in tools
    ]


CORRUPTIONS: dict[str, tuple[Callable[[Records], None], str, str]] = {
    "load": (set_stage(0, load_s=14.0), "load", "load_s is 14.0, recomputed 15.0"),
    "load, a little": (set_stage(0, load_s=15.0 * (1 + 3e-9)), "load", "recomputed 15.0"),
    "in": (set_stage(1, in_s=0.0), "load", "in_s is 0.0, recomputed 2.0"),
    "compute": (set_stage(1, compute_s=11.0), "load", "compute_s is 11.0, recomputed 12.0"),
    "out": (set_stage(0, out_s=10.0), "load", "out_s is 10.0, recomputed 12.0"),
    "overflow": (set_stage(0, overflow_s=1.0), "load", "overflow_s is 1.0, recomputed 0.0"),
    "memory": (set_stage(0, memory_bytes=296.0), "load", "memory_bytes is 296.0"),
    "peak": (set_stage(0, peak_bytes=1.0), "load", "peak_bytes is 1.0, recomputed"),
    "peak bound": (
        set_stage(0, peak_bound_bytes=1e6),
        "bound",
        "the bound of the peak 1000000.0 exceeds",
    ),
    "peak of a sum": (sum_with_peak, "load", "peak_bytes is 1.0, but memory is summed"),
    "node in no stage": (set_stage(1, nodes=[2, 3]), "node", "node 4: the node is in no stage"),
    "node twice": (set_stage(2, nodes=[4, 5]), "node", "node 4: the node is in stages 1, 2"),
    "unknown node": (set_stage(2, nodes=[5, 99]), "node", "node 99 is not in the graph"),
    "no node": (set_stage(2, nodes=[]), "stages", "stage 2: the stage has no nodes"),
    "order": (set_stage(1, nodes=[4, 2, 3]), "order", "node 4 runs before node 2"),
    "unknown class": (set_stage(1, **{"class": "tpu"}), "device", "'tpu' is not among"),
    "device beyond count": (set_stage(1, device="acc/3"), "device", "there is no device 'acc/3'"),
    "odd device": (set_stage(1, device="acc/01"), "device", "there is no device 'acc/01'"),
    "other device": (set_stage(1, device="cpu/0"), "device", "there is no device 'cpu/0'"),
    "shared device": (set_stage(1, device="acc/0"), "device", "already used by stage 0"),
    "k": (set_plan(k=2), "stages", "3 accelerators are in use, but k is 2"),
    "count": (set_devices(count=2), "device", "there is no device 'acc/2'; class 'acc' has 2"),
    "class twice": (set_devices(**{"class": "cpu"}), "device", "listed twice"),
    "value": (set_plan(value=18.0, gap=12 / 18), "value", "the value is 18.0, recomputed 19.0"),
    "bound": (set_plan(bound=20.0, gap=0.0), "bound", "the bound 20.0 exceeds"),
    "gap": (set_plan(gap=0.5), "gap", "the gap is 0.5"),
    "status": (set_plan(status="optimal"), "status", "claims to be optimal"),
    "comm": (set_plan(comm="overlap"), "load", "load_s is 15.0, recomputed 12.0"),
    "duplex": (set_plan(comm="duplex"), "load", "load_s is 19.0, recomputed 13.0"),
    "charge_io": (set_plan(charge_io=True), "load", "in_s is 0.0, recomputed 1.0"),
    "memory model": (set_plan(memory_model="sum"), "load", "recomputed 8.0"),
    "bandwidth": (set_devices(bandwidth_bytes_per_s=16.0), "load", "recomputed 6.0"),
    "capacity": (set_devices(memory_bytes=199), "capacity", "needs 200 B, 'acc' has 199 B"),
    "overflow mode": (stream_weights, "load", "overflow_s is 0.0, recomputed 12.0"),
    "digest": (set_plan(digest="f" * 64), "digest", "made from another graph"),
    "size": (
        lambda records: one(records, "tensor", 2).update(size_bytes=17),
        "digest",
        "made from another graph",
    ),
    "transfer": (lambda records: one(records, "tensor", 2).update(transfer_s=7.0), "load", "in_s"),
    "price": (
        lambda records: one(records, "node", 5).update(time_s={"acc": 5.0}),
        "load",
        "compute_s is 6.0, recomputed 5.0",
    ),
    "unsupported": (
        lambda records: one(records, "node", 5).update(time_s={"cpu": 5.0}),
        "support",
        "node 5 cannot run on 'acc'",
    ),
    "color": (color_0_and_5, "color", "nodes 0, 5 must share a device but are in stages 0, 2"),
    "no stages": (drop_stages, "records", "there are plan records but no stage record"),
    "stage ids": (rename_stage_2, "stages", "stage ids are 0, 1, 7"),
    "group cut": (cut_a_group, "group", "group 9: the group is cut over stages 0, 1"),
    "run": (add_run, "digest", "run 0: was made with another plan"),
    "old plan": (coarsen_later, "provenance", "dnnp-coarsen ran after dnnp-partition"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_found(name: str) -> None:
    corrupt, kind, text = CORRUPTIONS[name]
    records = seeds.planned()
    corrupt(records)
    result, summary = check(records)
    assert not summary["ok"]
    assert kind in kinds(summary), summary["violations"]
    assert text in result.err
    assert result.status == (4 if kinds(summary) == {"capacity"} else 3)
    assert all(line.startswith("dnnp-check: ") for line in result.err.splitlines())
    assert len(result.err.splitlines()) == len(summary["violations"]) + 1


def test_capacity_alone_is_infeasible() -> None:
    records = seeds.planned()
    set_devices(memory_bytes=150)(records)
    result, summary = check(records)
    assert kinds(summary) == {"capacity"}
    assert [v["subject"] for v in summary["violations"]] == ["stage 0", "stage 1"]
    assert result.status == 4


def test_every_violation_is_reported_and_the_plan_recomputed() -> None:
    records = seeds.planned()
    set_plan(digest="0" * 64, value=1.0, k=1)(records)
    set_stage(0, load_s=1.0)(records)
    result, summary = check(records)
    assert {"digest", "value", "stages", "load", "bound", "gap"} <= kinds(summary)
    assert summary["value"] == 19.0
    assert result.status == 3


def test_infinite_load_is_valid_json() -> None:
    records = seeds.planned()
    one(records, "node", 5)["time_s"] = {"cpu": 1.0}
    _, summary = check(records)
    assert summary["value"] == "inf"


def test_malformed_stream_has_a_summary_too() -> None:
    result = dnnp("check", "--json", stdin=b"{}\n")
    summary = orjson.loads(result.out)
    assert result.status == 3
    assert not summary["ok"]
    assert summary["violations"][0]["kind"] == "format"
    assert summary["violations"][0]["message"] in result.err


def test_cpu_stage_costs_compute_only() -> None:
    """Node 5 on the CPU: load 60, no transfers, no capacity; its producers still pay."""
    records = seeds.planned()
    set_stage(2, device="cpu/0", in_s=0.0, compute_s=60.0, load_s=60.0, **{"class": "cpu"})(records)
    one(records, "plan")["devices"][1]["memory_bytes"] = 1
    set_plan(value=60.0, gap=0.9, k=2)(records)
    result, summary = check(records)
    assert result.status == 0, result.err
    assert summary["value"] == 60.0


def test_group_prices_override_node_prices() -> None:
    records = seeds.planned(groups=True)
    for record in records:
        if record["type"] == "group" and record["id"] == 2:
            record["time_s"] = {"acc": 1.0}
    records = seeds.sealed(records)
    set_stage(1, compute_s=6.0, load_s=11.0)(records)
    result, _ = check(records)
    assert result.status == 0, result.err


def test_output_with_a_file(tmp_path: Any) -> None:
    path = tmp_path / "summary.json"
    result = dnnp("check", "--json", "-o", path, stdin=seeds.encode(seeds.planned()))
    assert result.status == 0
    assert result.out == b""
    assert orjson.loads(path.read_bytes())["ok"]
