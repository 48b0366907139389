"""A small training graph with a plan that has replicas and clusters, and its arithmetic."""

from __future__ import annotations

from typing import Any

from support import seeds

Records = list[dict[str, Any]]

DEVICE = {
    "class": "acc", "kind": "accelerator", "count": 4, "memory_bytes": 1000,
    "bandwidth_bytes_per_s": 8.0, "cluster_size": 2, "inner_bandwidth_bytes_per_s": 16.0,
}  # fmt: skip


def graph_records() -> Records:
    """Three layers f0, f1, f2 (nodes 0, 1, 2) and their gradients b2, b1, b0 (3, 4, 5).

    Bytes of tensors: 0, 1: a0 16 and s 32 of f0; 2: a1 32 of f1; 3: a2 8 of f2; 4, 5: g2 24 and
    gs 16 of b2; 6: g1 40 of b1; 7: g0 4 of b0; 8: weight 64 that f1 and b1 read. s and gs skip
    the middle layer. With 8 bytes a second between clusters and 16 inside one.
    """
    sizes = [16, 32, 32, 8, 24, 16, 40, 4]
    pairs = [0, 1, 2, 2, 1, 0]
    reads = [[], [0, 8], [2, 1], [3], [4, 2, 8], [6, 0, 5]]
    writes = [[0, 1], [2], [3], [4, 5], [6], [7]]
    times = [2.0, 4.0, 6.0, 8.0, 10.0, 3.0]
    return [
        seeds.header(training=True),
        {"type": "device", **DEVICE},
        *(seeds.tensor(i, "activation", size) for i, size in enumerate(sizes)),
        seeds.tensor(8, "parameter", 64),
        *(
            seeds.node(
                v,
                reads[v],
                writes[v],
                times[v],
                color=pairs[v],
                **({"backward": True} if v > 2 else {}),
            )
            for v in range(6)
        ),
    ]


def planned() -> Records:
    """{f0, b0} on acc/0, {f1, b1} on acc/2 and acc/3, {f2, b2} on acc/1; so 0 and 2 are near.

    Stage 0: in g1 5 + gs 1, compute 2 + 3, out a0 2 + s 2: 15. Forward 2 + 2 + 2, backward
    3 + 5 + 1. Memory 16 + 32 + 4.
    Stage 1: in a0 2 + g2 3, compute 4 + 10, out a1 4 + g1 5: 28, shared by two: 14, and half of
    64 bytes inside the cluster: 2; 16. Forward (2 + 4 + 4) / 2, backward (3 + 10 + 5) / 2 + 2.
    Memory 64 + 32 + 64 + 40.
    Stage 2: in a1 4 + s 2, compute 6 + 8, out g2 3 + gs 1: 24. Forward 6 + 4 + 2, backward
    8 + 3 + 1. Memory 8 + 24 + 16.
    Value 24; for GPipe 12 + 12.
    """
    stages = [
        {
            "device": "acc/0",
            "nodes": [0, 5],
            "load_s": 15.0,
            "in_s": 6.0,
            "compute_s": 5.0,
            "out_s": 4.0,
            "memory_bytes": 52,
            "forward_s": 6.0,
            "backward_s": 9.0,
        },
        {
            "device": "acc/2",
            "nodes": [1, 4],
            "load_s": 16.0,
            "in_s": 5.0,
            "compute_s": 14.0,
            "out_s": 9.0,
            "memory_bytes": 200,
            "forward_s": 5.0,
            "backward_s": 11.0,
            "replicas": 2,
            "sync_s": 2.0,
        },
        {
            "device": "acc/1",
            "nodes": [2, 3],
            "load_s": 24.0,
            "in_s": 6.0,
            "compute_s": 14.0,
            "out_s": 4.0,
            "memory_bytes": 48,
            "forward_s": 12.0,
            "backward_s": 12.0,
        },
    ]
    plan = {
        "type": "plan",
        "id": 0,
        "k": 4,
        "method": "given",
        "objective": "throughput",
        "validity": "ordered",
        "value": 24.0,
        "bound": 12.0,
        "gap": 0.5,
        "status": "feasible",
        "comm": "sum",
        "memory_model": "sum",
        "memory_mode": "hard",
        "charge_io": False,
        "max_replicas": 2,
        "devices": [dict(DEVICE)],
        "digest": "0" * 64,
    }
    extra = [
        {"type": "stage", "id": i, "class": "acc", "overflow_s": 0.0, **stage}
        for i, stage in enumerate(stages)
    ]
    return seeds.sealed([*graph_records(), plan, *extra])
