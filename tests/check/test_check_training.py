"""Replicas, clusters, both passes and the GPipe objective: a plan by hand, and its corruptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.check.violation import KINDS
from dnnp.core.model.errors import FormatError
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import plan_digest, plan_of, plan_records
from dnnp.formats.stream import read_bytes
from support import seeds
from support.run import dnnp
from support.training import planned

Records = list[dict[str, Any]]


def plan_in(records: Records) -> Plan:
    stream = read_bytes(seeds.encode(records), "s")
    plan = plan_of(stream, graph_of(stream))
    assert plan is not None
    return plan


def check(records: Records) -> tuple[int, str, dict[str, Any]]:
    """Status, messages and summary of dnnp-check."""
    result = dnnp("check", "--json", stdin=seeds.encode(records))
    return result.status, result.err, orjson.loads(result.out)


def stage(index: int, **fields: Any) -> Callable[[Records], None]:
    def change(records: Records) -> None:
        [r for r in records if r["type"] == "stage"][index].update(fields)

    return change


def plan(**fields: Any) -> Callable[[Records], None]:
    return lambda records: next(r for r in records if r["type"] == "plan").update(fields)


def device(**fields: Any) -> Callable[[Records], None]:
    return lambda records: next(r for r in records if r["type"] == "plan")["devices"][0].update(
        fields
    )


def without(index: int, *names: str) -> Callable[[Records], None]:
    def change(records: Records) -> None:
        for name in names:
            del [r for r in records if r["type"] == "stage"][index][name]

    return change


def no_backward_pass(records: Records) -> None:
    for record in records:
        record.pop("backward", None)


def gpipe_without_a_backward_pass(records: Records) -> None:
    no_backward_pass(records)
    plan(objective="gpipe")(records)


def exchange(records: Records) -> None:
    """Backward nodes where neither direction of the backward pass fits the forward pass."""
    for index, nodes in enumerate(([0, 4], [1, 3], [2, 5])):
        stage(index, nodes=nodes)(records)


def drop_max_replicas(records: Records) -> None:
    del next(r for r in records if r["type"] == "plan")["max_replicas"]


def test_plan_by_hand_holds() -> None:
    status, messages, summary = check(planned())
    assert status == 0, messages
    assert summary["loads"] == [15.0, 16.0, 24.0]
    assert (summary["value"], summary["validity"]) == (24.0, "ordered")


def test_gpipe_adds_the_largest_of_each_pass() -> None:
    records = planned()
    next(r for r in records if r["type"] == "node" and r["id"] == 5)["time_s"]["acc"] = 8.0
    stage(0, load_s=20.0, compute_s=10.0, backward_s=14.0)(records)
    plan(objective="gpipe", value=26.0, bound=26.0, gap=0.0, status="optimal")(records)
    status, messages, summary = check(seeds.sealed(records))
    assert status == 0, messages
    assert summary["value"] == 26.0
    assert "forward plus backward load 26" in messages


CORRUPTIONS: dict[str, tuple[Callable[[Records], None], str, str]] = {
    "overlap with a replica": (
        stage(2, device="acc/3"), "device", "stage 2: device acc/3 is already used by stage 1"
    ),
    "replica over a stage": (
        stage(1, device="acc/0"), "device", "stage 1: device acc/0 is already used by stage 0"
    ),
    "replicas beyond the count": (
        stage(1, device="acc/3"),
        "device",
        "stage 1: its 2 replicas reach to device 'acc/4'; class 'acc' has 4",
    ),
    "far beyond": (
        stage(1, device=f"acc/{10**17}", replicas=2**53 - 1), "device", "there is no device 'acc/1"
    ),
    "too many replicas": (
        stage(1, replicas=3), "replicas", "stage 1: has 3 replicas, the plan allows 2"
    ),
    "replicas not allowed": (
        drop_max_replicas, "replicas", "stage 1: has 2 replicas, the plan allows 1"
    ),
    "no replicas": (without(1, "replicas", "sync_s"), "load", "load_s is 16.0, recomputed 28.0"),
    "k": (plan(k=3), "stages", "4 accelerators are in use, but k is 3"),
    "sync": (stage(1, sync_s=8.0), "load", "sync_s is 8.0, recomputed 2.0"),
    "no sync": (without(1, "sync_s"), "load", "sync_s is 0.0, recomputed 2.0"),
    "sync of one": (stage(0, sync_s=1.0), "load", "sync_s is 1.0, recomputed 0.0"),
    "memory divided": (stage(1, memory_bytes=100), "load", "recomputed 200.0"),
    "capacity of each": (device(memory_bytes=150), "capacity", "needs 200 B, 'acc' has 150 B"),
    "forward": (stage(2, forward_s=11.0), "load", "forward_s is 11.0, recomputed 12.0"),
    "no forward": (without(0, "forward_s"), "load", "forward_s is missing, recomputed 6.0"),
    "backward": (stage(1, backward_s=9.0), "load", "backward_s is 9.0, recomputed 11.0"),
    "no backward": (without(1, "backward_s"), "load", "backward_s is missing, recomputed 11.0"),
    "no passes": (
        no_backward_pass, "load", "forward_s is 6.0, but the graph has no backward pass"
    ),
    "gpipe": (
        plan(objective="gpipe", value=25.0), "value", "the value is 25.0, recomputed 24.0"
    ),
    "gpipe without a pass": (
        gpipe_without_a_backward_pass, "value", "'gpipe' needs a graph with a backward pass"
    ),
    "no clusters": (device(cluster_size=0), "load", "in_s is 6.0, recomputed 7.0"),
    "small clusters": (device(cluster_size=1), "load", "out_s is 4.0, recomputed 6.0"),
    "one cluster": (device(cluster_size=4), "load", "in_s is 5.0, recomputed 2.5"),
    "inner link": (
        device(inner_bandwidth_bytes_per_s=32.0), "load", "in_s is 6.0, recomputed 5.5"
    ),
    "replicas in two clusters": (
        stage(1, device="acc/1"), "load", "sync_s is 2.0, recomputed 4.0"
    ),
    "other cluster": (stage(2, device="acc/2"), "load", "in_s is 6.0, recomputed 7.0"),
    "order": (exchange, "validity", "no order suits both passes: stages"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_found(name: str) -> None:
    corrupt, kind, text = CORRUPTIONS[name]
    records = planned()
    corrupt(records)
    status, messages, summary = check(records)
    found = {violation["kind"] for violation in summary["violations"]}
    assert kind in found, summary["violations"]
    assert found <= set(KINDS)
    assert text in messages
    assert status == (4 if found == {"capacity"} else 3)


@pytest.mark.parametrize("replicas", [0, -1])
def test_plans_that_no_stream_can_hold(replicas: int) -> None:
    stream = read_bytes(seeds.encode(planned()), "s")
    valid = plan_in(planned())
    stages = (valid.stages[0], dataclasses.replace(valid.stages[1], replicas=replicas))
    options = CostOptions(memory_model="sum", max_replicas=replicas)
    broken = dataclasses.replace(valid, stages=(*stages, valid.stages[2]), options=options)
    found = [str(v) for v in check_plan(graph_of(stream), None, broken).violations]
    assert f"stage 1: has {replicas} replicas, expected at least 1" in found
    assert f"plan: allows {replicas} replicas" in found


REFUSED = {
    "replicas 0": (
        stage(1, replicas=0), "field 'replicas': 0 is not an integer of at least 1"
    ),
    "replicas 1.5": (stage(1, replicas=1.5), "field 'replicas': 1.5 is not an integer"),
    "max_replicas 0": (
        plan(max_replicas=0), "field 'max_replicas': 0 is not an integer of at least 1"
    ),
    "cluster_size -1": (
        device(cluster_size=-1), "field 'devices[0].cluster_size': -1 is not an integer"
    ),
    "inner bandwidth 0": (
        device(inner_bandwidth_bytes_per_s=0), "field 'devices[0].inner_bandwidth_bytes_per_s': 0"
    ),
    "replicas above the most": (
        stage(1, replicas=3), "field 'replicas': 3 replicas; the plan allows 2"
    ),
    "replicas beyond the count": (
        stage(1, device="acc/3"),
        "field 'device': there is no device 'acc/4' for the last replica; class 'acc' has 4",
    ),
    "device beyond the count": (
        stage(0, device="acc/4"), "field 'device': there is no device 'acc/4'; class 'acc' has 4"
    ),
    "odd device": (stage(0, device="acc/01"), "field 'device': there is no device 'acc/01'"),
    "no number": (stage(0, device="acc"), "field 'device': there is no device 'acc'; class"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_readers_refuse(name: str) -> None:
    corrupt, text = REFUSED[name]
    records = planned()
    corrupt(records)
    with pytest.raises(FormatError) as caught:
        plan_in(records)
    assert text in str(caught.value)
    assert str(caught.value).startswith("s:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["bandwidth_bytes_per_s", "inner_bandwidth_bytes_per_s"])
def test_clusters_need_both_bandwidths(name: str) -> None:
    records = planned()
    del next(r for r in records if r["type"] == "plan")["devices"][0][name]
    with pytest.raises(FormatError) as caught:
        plan_in(records)
    expected = f"field 'devices[0].{name}': is missing, but there is a cluster_size"
    assert expected in str(caught.value)
    result = dnnp("check", stdin=seeds.encode(records))
    assert result.status == 3
    assert expected in result.err


def test_records_of_a_plan_are_read_back() -> None:
    records = planned()
    read = plan_in(records)
    record, stages = plan_records(read)
    assert record == next(r for r in records if r["type"] == "plan")
    assert stages == [r for r in records if r["type"] == "stage"]
    changed = [dict(r) for r in stages]
    del changed[1]["replicas"]
    assert plan_digest(record, stages) != plan_digest(record, changed)
