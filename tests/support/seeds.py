"""Small valid streams, written out by hand, with the arithmetic of their plans."""

from __future__ import annotations

import copy
from typing import Any

import orjson

from dnnp.formats.graph import digest_of, graph_of, units_of
from dnnp.formats.stream import read_bytes
from support import graphs
from support.graphs import tensor

Record = dict[str, Any]


def header(**fields: Any) -> Record:
    """A header record."""
    made = {"tool": "dnnp-import", "version": "0.1.0", "arguments": ["seed.onnx"]}
    return graphs.header(**{"model": "seed", "provenance": [made], **fields})


def node(i: int, inputs: list[int], outputs: list[int], time_s: float, **fields: Any) -> Record:
    """A node record, priced for class `acc`."""
    times = {"acc": time_s, "cpu": 10.0 * time_s}
    return graphs.node(i, "Op", inputs, outputs, time_s=times, **fields)


def group(i: int, nodes: list[int], **fields: Any) -> Record:
    """A group record."""
    return {"type": "group", "id": i, "name": f"g{i}", "nodes": nodes, **fields}


def graph_records() -> list[Record]:
    """Six nodes: a chain 0-1-2-4-5 with a branch 1-3-4, a skip 0-5 and a shared weight.

    Tensors 0 input (8), 1..6 activations of n0..n5 (80, 16, 32, 40, 24, 8; 6 is the output),
    7 a weight (100) that n1 and n3 share, 8 a constant (4) of n2. Bandwidth 8 bytes a second
    makes transfers 10, 2, 4, 5, 3, 1.
    """
    return [
        header(),
        {
            "type": "device",
            "class": "acc",
            "kind": "accelerator",
            "count": 3,
            "memory_bytes": 1000,
            "bandwidth_bytes_per_s": 8.0,
        },
        {"type": "device", "class": "cpu", "kind": "cpu", "count": 1},
        tensor(0, "input", 8),
        tensor(1, "activation", 80),
        tensor(2, "activation", 16),
        tensor(3, "activation", 32),
        tensor(4, "activation", 40),
        tensor(5, "activation", 24),
        tensor(6, "activation", 8, output=True),
        tensor(7, "parameter", 100),
        tensor(8, "constant", 4),
        node(0, [0], [1], 1.0),
        node(1, [1, 7], [2], 2.0),
        node(2, [2, 8], [3], 3.0),
        node(3, [2, 7], [4], 4.0),
        node(4, [3, 4], [5], 5.0),
        node(5, [5, 1], [6], 6.0),
    ]


def plan_records() -> list[Record]:
    """The plan {0, 1} | {2, 3, 4} | {5} of `graph_records` on three accelerators.

    Stage 0: in 0, compute 1 + 2, out t1 10 + t2 2: load 15. Memory: weight 100, steps
    {t0, t1} 88 and {t1, t2} 96: 196.
    Stage 1: in t2 2, compute 3 + 4 + 5, out t5 3: load 17. Memory: weights 104, steps
    {t2, t3} 48, {t2, t3, t4} 88, {t3, t4, t5} 96: 200.
    Stage 2: in t5 3 + t1 10, compute 6, out 0: load 19. Memory: {t5, t1, t6} 112.
    Value 19. No split beats the largest node, 6: bound 6, gap 13/19.
    """
    stages = [
        ([0, 1], 15.0, 0.0, 3.0, 12.0, 196.0),
        ([2, 3, 4], 17.0, 2.0, 12.0, 3.0, 200.0),
        ([5], 19.0, 13.0, 6.0, 0.0, 112.0),
    ]
    plan = {
        "type": "plan",
        "id": 0,
        "k": 3,
        "method": "slice",
        "objective": "throughput",
        "validity": "ordered",
        "value": 19.0,
        "bound": 6.0,
        "gap": 13 / 19,
        "status": "feasible",
        "comm": "sum",
        "memory_model": "peak",
        "memory_mode": "hard",
        "charge_io": False,
        "devices": [
            {
                "class": "acc",
                "kind": "accelerator",
                "count": 3,
                "memory_bytes": 1000,
                "bandwidth_bytes_per_s": 8.0,
            },
            {"class": "cpu", "kind": "cpu", "count": 1},
        ],
        "digest": "0" * 64,
    }
    return [
        plan,
        *(
            {
                "type": "stage",
                "id": i,
                "device": f"acc/{i}",
                "class": "acc",
                "nodes": nodes,
                "load_s": load,
                "in_s": in_s,
                "compute_s": compute,
                "overflow_s": 0.0,
                "out_s": out,
                "memory_bytes": memory,
            }
            for i, (nodes, load, in_s, compute, out, memory) in enumerate(stages)
        ),
    ]


def group_records() -> list[Record]:
    """Groups that the plan of `plan_records` does not cut."""
    return [
        group(0, [0]),
        group(1, [1]),
        group(2, [2, 3], time_s={"acc": 7.0}, cost="measured"),
        group(3, [4]),
        group(4, [5]),
    ]


def sealed(records: list[Record]) -> list[Record]:
    """A copy with the plan's digest set to what it should be."""
    records = copy.deepcopy(records)
    for record in records:
        if record["type"] == "plan":
            stream = read_bytes(encode(records))
            graph = graph_of(stream)
            record["digest"] = digest_of(graph, units_of(stream, graph))
    return records


def encode(records: list[Record]) -> bytes:
    """The stream of some records, with its end record."""
    end = {"type": "end", "records": len(records)}
    return b"".join(orjson.dumps(record) + b"\n" for record in [*records, end])


def planned(*, groups: bool = False) -> list[Record]:
    """A valid stream with a plan, and with groups if asked."""
    extra = group_records() if groups else []
    return sealed([*graph_records(), *extra, *plan_records()])
