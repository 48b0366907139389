"""Parallel plans: what is planned is recomputed by the checker, and what is changed is noticed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from support.graphs import random_stream
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
    for tensor in (r for r in records if r["type"] == "tensor"):
        if rng.random() < 0.3:
            tensor["shards"] = [{"devices": 2, "in_bytes": 1.0, "out_bytes": 2.0}]
    head = {
        "type": "header", "format": "dnnp", "version": 1, "model": "m",
        "units": {"time": "s"}, "provenance": [],
    }  # fmt: skip
    rows = [head, *(r for r in records if r["type"] in ("tensor", "node"))]
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


@pytest.mark.parametrize("seed", range(12))
def test_what_is_changed_is_noticed(seed: int) -> None:
    data = planned(seed)
    if data is None:
        return
    lines = data.splitlines()
    for i, line in enumerate(lines):
        record = json.loads(line)
        if record["type"] != "stage":
            continue
        for name in NUMBERS:
            if name not in record:
                continue
            changed = json.dumps({**record, name: 2 * record[name] + 1}).encode()
            forged = b"\n".join([*lines[:i], changed, *lines[i + 1 :]]) + b"\n"
            assert dnnp("check", stdin=forged).status != 0, (name, record)
