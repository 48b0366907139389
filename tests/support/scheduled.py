"""Schedules of one's choice, of plans that are to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnnp.core.model.schedule import Placement
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.formats.plan import plan_digest
from dnnp.formats.stream import Stream, read_bytes

Record = dict[str, Any]


def pass_of(stage: int, *units: int, after: Sequence[int] = (), **fields: Any) -> Record:
    """A forward pass of a millisecond, on each of the units in turn."""
    return {
        "name": f"F{stage}",
        "kind": "forward",
        "stage": stage,
        "homes": [[u] for u in units],
        "time_s": 1e-3,
        "after": [{"pass": p} for p in after],
        **fields,
    }


def blocks_of(passes: Sequence[Record], count: int, sequence: Sequence[int]) -> list[Record]:
    """Blocks as early as units and waits allow, in a sequence of micro-batch * passes + pass."""
    free: dict[int, float] = {}
    end: dict[tuple[int, int], float] = {}
    rows = []
    for entry in sequence:
        n, p = divmod(entry, len(passes))
        row = passes[p]
        home = row["homes"][n % len(row["homes"])]
        start = max([free.get(u, 0.0) for u in home] + [end[w["pass"], n] for w in row["after"]])
        end[p, n] = start + row["time_s"]
        free.update(dict.fromkeys(home, end[p, n]))
        rows.append(
            {
                "type": "block",
                "pass": p,
                "micro_batch": n,
                "units": home,
                "start_s": start,
                "end_s": end[p, n],
            }
        )
    assert len(rows) == count * len(passes)
    return rows


def passes_of(placement: Placement) -> list[Record]:
    """The pass records of a placement."""
    return [
        {
            "name": block.name,
            "kind": block.kind,
            "homes": [list(home) for home in block.homes],
            "time_s": block.time_s,
            "after": [{"pass": wait.block} for wait in block.after],
        }
        for block in placement.blocks
    ]


def schedule_of(
    passes: Sequence[Record], count: int, units: Sequence[str], sequence: Sequence[int]
) -> tuple[Record, list[Record]]:
    """The records of a schedule whose blocks come in a sequence."""
    rows = blocks_of(passes, count, sequence)
    busy = [
        sum(r["end_s"] - r["start_s"] for r in rows if u in r["units"]) for u in range(len(units))
    ]
    makespan = max(r["end_s"] for r in rows)
    devices = {u for row in passes for h in row["homes"] for u in h if ">" not in units[u]}
    schedule = {
        "type": "schedule",
        "method": "sequential",
        "micro_batches": count,
        "makespan_s": makespan,
        "bound_s": 0.0,
        "status": "feasible",
        "rate_bound_s": 0.0,
        "passes": list(passes),
        "bubble": 1 - sum(busy[u] for u in devices) / max(makespan * len(devices), 1e-300),
        "units": [
            {"name": name, "peak_bytes": 0, "busy_s": time, "link": u not in devices}
            for u, (name, time) in enumerate(zip(units, busy, strict=True))
        ],
    }
    return schedule, rows


def with_schedule(
    stream: bytes | Stream,
    passes: Sequence[Record],
    count: int,
    units: Sequence[str],
    sequence: Sequence[int] | None = None,
) -> Stream:
    """A schedule of the plan of a stream; by default micro-batches start in turn."""
    content = read_bytes(stream) if isinstance(stream, bytes) else stream
    order = sequence or range(count * len(passes))
    schedule, rows = schedule_of(passes, count, units, order)
    digest = plan_digest(content.get("plan")[0], content.get("stage"))
    content.replace("schedule", [schedule | {"digest": digest}])
    content.replace("block", rows)
    return content


def stand_ins(
    passes: Sequence[Record], call_of: Callable[[int], Callable[[Values], Values]]
) -> tuple[list[Step], dict[int, int]]:
    """A step for each pass but transfers, and pass -> step.

    Pass p makes the tensor `p`, which passes that wait for it read, be it by way of transfers.
    """
    step_of: dict[int, int] = {}
    for number, row in enumerate(passes):
        if row["kind"] != "transfer":
            step_of[number] = len(step_of)
    sources: dict[int, list[int]] = {}

    def before(number: int) -> list[int]:
        if number not in sources:
            found = [w["pass"] for w in passes[number]["after"]]
            far = [q for p in found if p not in step_of for q in before(p)]
            sources[number] = list(dict.fromkeys([*(p for p in found if p in step_of), *far]))
        return sources[number]

    steps = []
    for number in step_of:
        reads = [str(p) for p in before(number)]
        worker = Worker(passes[number]["name"], call_of(number))
        steps.append(Step(passes[number]["name"], tuple(reads), (str(number),), (worker,)))
    return steps, step_of
