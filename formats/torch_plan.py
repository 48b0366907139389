"""A plan as a table for torch.distributed.pipelining: where to split, degrees; a row a stage."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

HEADER = (
    "stage", "device", "split_before", "exact", "shards", "replicas", "recompute", "micro_batches",
    "in_flight", "shared",
)  # fmt: skip
"""Stage: as in the schedule. Device: the first one. Split before: the module that the stage begins
with, as PyTorch names it; nothing for the first stage. Exact: 1, unless parts of that module belong
to earlier stages. Shards, replicas: tensor and data parallelism. Recompute: the part of its forward
nodes that run again. Micro-batches: those of each replica. In flight: how many of them at once.
Shared: 1, if all devices hold it besides stages of their own."""


def torch_plan(plan: Record, stages: Sequence[Record], nodes: Sequence[Record]) -> bytes:
    """The table.

    Parameters
    ----------
    plan, stages
        Records of a plan, its stages in their order.
    nodes
        Records of the graph.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    by_id = {record["id"]: record for record in nodes}
    seen: set[str] = set()
    whole = plan.get("parallel", {}).get("micro_batches")
    for number, stage in enumerate(stages):
        own = [by_id[v] for v in stage["nodes"] if not by_id[v].get("backward")]
        before, exact = _beginning(own, seen) if number else ("", True)
        seen.update(name for record in own for name in _modules(record))
        replicas = stage.get("replicas", 1)
        writer.writerow(
            [
                number, stage["device"], before, int(exact), stage.get("shards", 1), replicas,
                round(len(stage.get("recomputed", ())) / len(own), 3) if own else 0,
                "" if whole is None else whole // replicas, stage.get("in_flight", ""),
                int(stage.get("shared", False)),
            ]
        )  # fmt: skip
    return text.getvalue().encode()


def _modules(record: Record) -> Iterator[str]:
    """Names of the modules that a node is in, from the outermost: `/h.0/attn` is `h.0.attn`."""
    parts = [part for part in record.get("scope", "").split("/") if part]
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _beginning(own: Sequence[Record], seen: set[str]) -> tuple[str, bool]:
    """The first module of a stage's nodes, the outermost that no earlier stage has a part of.

    If there is none, the innermost of its first node that has any, and that it is not exact.
    """
    names = [list(_modules(record)) for record in own]
    first = next((found for found in names if found), [])
    new = next((name for name in first if name not in seen), None)
    return (new, True) if new is not None else (first[-1] if first else "", False)
