"""Parallel plans: what is planned is recomputed by the checker, and what is changed is noticed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from support import shapes
from support.graphs import header, random_stream, tensor
from support.run import dnnp

NUMBERS = (
    "load_s", "in_s", "compute_s", "out_s", "sync_s", "memory_bytes", "collective_s", "in_flight",
    "replicas", "shards",
)  # fmt: skip


def sharded(seed: int) -> list[dict[str, Any]]:
    """Records of a graph that is trained, or not; most state what nodes take on more devices."""
    rng = random.Random(seed)
    stream = random_stream(seed, rng.randint(3, 9), training=seed % 4 != 0)
    records = [dict(r) for rows in stream.records.values() for r in rows]
    nodes = [r for r in records if r["type"] == "node"]
    given = rng.random() < 0.4
    for node in nodes:
        node["memory_bytes"] = float(rng.randint(4, 20))
        if not node.get("backward"):
            node["held_bytes"] = float(rng.randint(0, 4))
        if rng.random() < 0.2:
            continue
        node["shards"] = []
        for t in (1, 2, 4):
            costs = {
                "devices": t,
                "time_s": {c: s / t for c, s in node["time_s"].items()},
                "memory_bytes": node["memory_bytes"] / t,
                "held_bytes": node.get("held_bytes", 0.0) / t,
                "weight_bytes": float(rng.randint(0, 5)),
            }
            if t > 1:
                kinds = ("all-reduce", "all-gather", "all-to-all")
                costs["collectives"] = [{"kind": rng.choice(kinds), "bytes": 3.0}]
            if given:
                again = {c: 1.3 * s for c, s in costs["time_s"].items()}
                held = costs["held_bytes"] / 2
                costs["recomputed"] = {
                    "time_s": again,
                    "memory_bytes": costs["memory_bytes"],
                    "held_bytes": held,
                }
            node["shards"].append(costs)
    for row in (r for r in records if r["type"] == "tensor"):
        if rng.random() < 0.3:
            row["shards"] = [{"devices": 2, "in_bytes": 1.0, "out_bytes": 2.0}]
    rows = [header(), *(r for r in records if r["type"] in ("tensor", "node"))]
    return [*rows, {"type": "end", "records": len(rows)}]


def encoded(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def planned(seed: int) -> bytes | None:
    """A stream with a parallel plan; None: nothing fits."""
    rng = random.Random(seed)
    options = [
        "-k", str(rng.randint(1, 5)), "--bandwidth", "2", "--tensor-parallel",
        str(rng.choice((1, 2, 4))), "--data-parallel", str(rng.choice((1, 2, 4))),
        "--micro-batches", "8", "--weight-sync", rng.choice(("ring", "server")),
        "--comm", rng.choice(("sum", "overlap", "duplex")),
    ]  # fmt: skip
    if rng.random() < 0.5:
        options += ["--memory", str(rng.randint(30, 120))]
    if seed % 4:
        options += ["--recompute", rng.choice(("none", "full", "auto"))]
    if rng.random() < 0.3:
        options.append("--overlap-sync")
    result = dnnp("partition", "-q", *options, stdin=encoded(sharded(seed)))
    assert result.status in (0, 4), result.err
    return None if result.status else result.out


@pytest.mark.parametrize("seed", range(60))
def test_what_is_planned_is_recomputed(seed: int) -> None:
    data = planned(seed)
    if data is None:
        return
    result = dnnp("check", stdin=data)
    assert result.status == 0, result.err


def test_some_plans_have_everything() -> None:
    stages = [
        json.loads(line)
        for seed in range(60)
        for line in (planned(seed) or b"").splitlines()
        if b'"stage"' in line
    ]
    for name in ("shards", "recomputed", "replicas"):
        assert sum(name in stage for stage in stages) > 5, name


def test_what_is_changed_is_noticed() -> None:
    changes = dict.fromkeys(NUMBERS, 0)
    for data in filter(None, map(planned, range(12))):
        lines = data.splitlines()
        for i, line in enumerate(lines):
            record = json.loads(line)
            for name in NUMBERS if record["type"] == "stage" else ():
                if name not in record:
                    continue
                changed = json.dumps({**record, name: 2 * record[name] + 1}).encode()
                forged = b"\n".join([*lines[:i], changed, *lines[i + 1 :]]) + b"\n"
                assert dnnp("check", stdin=forged).status != 0, (name, record)
                changes[name] += 1
    assert min(changes.values()) > 0, changes


def trained(**device: Any) -> list[dict[str, Any]]:
    """Records of a chain of two nodes and back, with its plan on four devices, two a stage."""
    rows = [
        {
            "type": "node", "id": v, "name": f"n{v}", "op": "X", "inputs": [v], "outputs": [v + 1],
            "time_s": {"a": 8.0}, "memory_bytes": 10.0, "held_bytes": 4.0 * (v == 0),
            "color": min(v, 3 - v), **({"backward": True} if v > 1 else {}),
            "shards": [{"devices": 2, "time_s": {"a": 4.0}, "memory_bytes": 10.0,
                        "held_bytes": 4.0 * (v == 0),
                        "collectives": [{"kind": "all-reduce", "bytes": 8.0}]}],
        }
        for v in range(4)
    ]  # fmt: skip
    tensors = [tensor(t, "activation" if t else "input", 1.0) for t in range(5)]
    offer = {"type": "device", "class": "a", "kind": "accelerator", "count": 4, **device}
    records = [header(training=True), offer, *tensors, *rows]
    data = encoded([*records, {"type": "end", "records": len(records)}])
    result = dnnp("partition", "-q", "--tensor-parallel", "2", "--micro-batches", "4", stdin=data)
    assert result.status == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


FAST = {"bandwidth_bytes_per_s": 2.0, "cluster_size": 2, "inner_bandwidth_bytes_per_s": 8.0}


def edited(records: list[dict[str, Any]], kind: str, **fields: Any) -> bytes:
    return encoded([r | fields if r["type"] == kind else r for r in records])


LINKS = [
    {"from": f"a/{i}", "to": f"a/{1 - i}", "bandwidth_bytes_per_s": 1e-3, "latency_s": 9.0}
    for i in range(2)
]
OTHER = {"class": "b", "kind": "cpu", "count": 1}
SLOW = {"class": "a", "kind": "accelerator", "count": 4, **FAST, "inner_bandwidth_bytes_per_s": 1.0}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"memory_model": "peak"}, "memory_model"),
        ({"memory_mode": "overflow"}, "memory_mode"),
        ({"charge_io": True}, "charge_io"),
        ({"validity": "free"}, "validity"),
        ({"objective": "gpipe"}, "objective"),
        ({"max_replicas": 2}, "max_replicas"),
        ({"links": LINKS}, "links"),
        ({"devices": [SLOW]}, "inner_bandwidth_bytes_per_s"),
        ({"devices": [SLOW | FAST, OTHER]}, "devices"),
    ],
)
def test_what_parallel_plans_do_not_know_is_named(fields: dict[str, Any], named: str) -> None:
    records = trained(**FAST)
    assert dnnp("check", stdin=encoded(records)).status == 0
    result = dnnp("check", stdin=edited(records, "plan", **fields))
    assert result.status != 0
    assert f"{named} is not for parallel plans" in result.err


def test_stages_are_listed_in_the_order_of_the_pipeline() -> None:
    records = trained(**FAST)
    first, second = (r for r in records if r["type"] == "stage")
    assert (first["in_flight"], first["memory_bytes"]) == (2, 24.0)
    # The other way round the first stage would hold one micro-batch only.
    turned = {0: second | {"id": 0, "in_flight": 2}, 1: first | {"id": 1, "in_flight": 1}}
    turned[1]["memory_bytes"] = 20.0
    rows = [turned[r["id"]] if r["type"] == "stage" else r for r in records]
    result = dnnp("check", stdin=encoded(rows))
    assert result.status != 0
    assert "not listed in the order of the pipeline" in result.err


def test_shards_are_in_the_cluster_that_they_are_priced_with() -> None:
    records = trained(**FAST)
    (first, second) = (r for r in records if r["type"] == "stage")
    assert (first["shards"], second["shards"]) == (2, 2)
    rows = [r | {"device": "a/1"} if r is first else r for r in records if r is not second]
    result = dnnp("check", stdin=encoded(rows))
    assert "not in one cluster" in result.err


def test_backward_nodes_are_in_the_shared_stage_of_what_they_are_of() -> None:
    stream = shapes.shape_stream("NN", training=True, room=100.0)
    result = dnnp("partition", "--shared-stages", "2", stdin=stream)
    records = [json.loads(line) for line in result.out.splitlines()]
    assert dnnp("check", stdin=encoded(records)).status == 0
    of = {r["id"]: r["of"] for r in records if r["type"] == "node" and "of" in r}
    shared = [r for r in records if r["type"] == "stage" and r.get("shared")]
    (late,) = (v for v in shared[0]["nodes"] if v in of)
    (other,) = (v for v in shared[1]["nodes"] if v in of)
    swap = {late: other, other: late}
    rows = [r | {"nodes": [swap.get(v, v) for v in r["nodes"]]} if r in shared else r
            for r in records]  # fmt: skip
    result = dnnp("check", stdin=encoded(rows))
    assert "must share a device" in result.err
