"""Schedules and plans as CSV for torch.distributed.pipelining.

A schedule has a row a rank, a cell a computation; a plan a row a stage: where to split, degrees.

A cell such as `2F0` is a stage, what is computed of it (F: forward; B: backward; with split
backward passes I for what inputs need and W for what weights need) and a micro-batch, in the order
in which the rank computes. It is the form `compute_only` of `_PipelineScheduleRuntime._load_csv`,
which adds the communication itself: from each stage to the next one and back. In the form
`compute_comms` that is there too: SEND_F and RECV_F of outputs, SEND_B and RECV_B of gradients; and
after the last backward pass of a stage REDUCE_GRAD, where PyTorch divides its gradients by the
number of micro-batches and adds up those of replicas.

A rank is a device, or a group of devices that run stages together. Where all stages have as many
replicas, the table is that of each replica, with micro-batches of its own.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import guarded, printable
from dnnp.formats.stream import Record


class Cell(NamedTuple):
    """The actions of a rank."""

    stage: int
    what: str
    batch: int | None
    """Micro-batch; None: of all."""

    def __str__(self) -> str:
        return f"{self.stage}{self.what}{'' if self.batch is None else self.batch}"


class Cells(NamedTuple):
    """A schedule for ranks."""

    rows: list[list[Cell]]
    """Cells of each rank, in order."""
    skips: list[tuple[int, int]]
    """Pairs of stages; the second reads from the first but does not follow it."""

    def encoded(self) -> bytes:
        """The file; names need no quotes."""
        return "".join(",".join(map(str, row)) + "\n" for row in self.rows).encode()


def torch_cells(record: Record, blocks: Sequence[Record]) -> Cells:
    """A schedule as rows of computations. Ranks are the devices that compute, in their order.

    Stages are numbered in the order of the forward passes, each of which must follow the one
    before it. Transfers are left out.

    Raises `UsageError` if stages do not form a chain, each on one device
    or group.
    """
    passes = record["passes"]
    stage_of, skips = _stages(passes)
    letters = {"forward": "F", "backward": "B", "weight": "W"}
    if any(one["kind"] == "weight" for one in passes):
        letters["backward"] = "I"
    rank, replicas = _ranks([one for one in passes if one["kind"] in letters])
    done: dict[tuple[int, int], list[tuple[float, float, Cell]]] = {}
    replica_of: dict[int, int] = {}
    for block in blocks:
        one = passes[block["pass"]]
        if one["kind"] in letters:
            replica, place = rank[tuple(block["units"])]
            batch = block["micro_batch"]
            if replica_of.setdefault(batch, replica) != replica:
                raise UsageError(f"micro-batch {batch} goes from one replica to another{_WHY}")
            cell = Cell(stage_of[block["pass"]], letters[one["kind"]], batch)
            done.setdefault((replica, place), []).append((block["start_s"], block["end_s"], cell))
    rows = [
        _numbered(
            [sorted(done.get((r, place), [])) for place in range(len(rank) // replicas)],
            sorted(batch for batch, replica in replica_of.items() if replica == r),
        )
        for r in range(replicas)
    ]
    if any(other != rows[0] for other in rows):
        raise UsageError(f"replicas run their micro-batches in different orders{_WHY}")
    return Cells(rows[0], skips)


def _stages(passes: Sequence[Record]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Position of each computing pass -> its stage; and pairs that skip stages."""
    stage_of: dict[int, int] = {}
    forward = [number for number in _in_order(passes) if passes[number]["kind"] == "forward"]
    skips: list[tuple[int, int]] = []
    for stage, number in enumerate(forward):
        stage_of[number] = stage
        read = sorted(stage_of[b] for b in _behind(passes, number) if b in stage_of)
        if read[-1:] != [stage - 1][:stage]:
            raise _odd(passes[number], "does not follow the forward pass before it")
        skips += [(other, stage) for other in read[:-1]]
    done = {"backward": 0, "weight": 0}
    for number in _in_order(passes):
        one = passes[number]
        if one["kind"] in ("transfer", "forward"):
            continue
        # Without the number of a stage, backward passes come in the opposite order.
        opposite = len(forward) - 1 - done["backward"]
        if one["kind"] == "weight":
            found = [
                stage_of[b] for b in _behind(passes, number) if passes[b]["kind"] == "backward"
            ]
        elif "stage" in one:
            found = [stage_of[f] for f in forward if passes[f].get("stage") == one["stage"]]
        else:
            found = [opposite] if opposite >= 0 else []
        done[one["kind"]] += 1
        if len(found) != 1 or passes[forward[found[0]]]["homes"] != one["homes"]:
            raise _odd(one, "undoes no forward pass of its device")
        stage_of[number] = found[0]
    for kind, count in done.items():
        if count not in (0, len(forward)):
            raise UsageError(f"{len(forward)} forward passes, but {count} of kind {kind}{_WHY}")
    return stage_of, skips


def _ranks(passes: Sequence[Record]) -> tuple[dict[tuple[int, ...], tuple[int, int]], int]:
    """Devices of a pass -> replica, and rank in it; and the number of replicas."""
    replicas = len(passes[0]["homes"]) if passes else 1
    groups: list[set[tuple[int, ...]]] = [set() for _ in range(replicas)]
    for one in passes:
        if len(one["homes"]) != replicas:
            raise _odd(one, f"has {len(one['homes'])} replicas, others {replicas}")
        for group, home in zip(groups, one["homes"], strict=True):
            group.add(tuple(home))
    taken: dict[int, tuple[int, ...]] = {}
    for one in passes:
        for home in map(tuple, one["homes"]):
            if any(taken.setdefault(unit, home) != home for unit in home):
                raise _odd(one, "has devices that others have, but not all of the same")
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for replica, group in enumerate(groups):
        found |= {home: (replica, place) for place, home in enumerate(sorted(group))}
    return found, replicas


def _numbered(
    rows: Sequence[Sequence[tuple[float, float, Cell]]], batches: Sequence[int]
) -> list[list[Cell]]:
    """Cells of the rows, with micro-batches numbered from 0 on."""
    number = {batch: i for i, batch in enumerate(batches)}
    return [
        [cell._replace(batch=number[cell.batch]) for *_, cell in row if cell.batch is not None]
        for row in rows
    ]


_REVERSE = ("B", "I")
"""Backward passes that hand on gradients."""


def with_transfers(cells: Cells) -> Cells:
    """The same with what ranks send one another.

    A rank sends each result for another rank at once, and the other receives it in the same
    order: so both have their messages in one order, and none waits for ever.

    Raises `UsageError` if ranks wait for each other.
    """
    place = {cell.stage: rank for rank, row in enumerate(cells.rows) for cell in row}
    last = max(place, default=0)
    left = [list(reversed(row)) for row in cells.rows]
    left_over = Counter(cell.stage for row in cells.rows for cell in row)
    rows: list[list[Cell]] = [[] for _ in left]
    done: set[Cell] = set()
    while any(left):
        before = len(done)
        for rank, row in enumerate(left):
            if not row or not _may_run(row[-1], done, last):
                continue
            cell = row.pop()
            done.add(cell)
            rows[rank].append(cell)
            left_over[cell.stage] -= 1
            step, way = (1, "F") if cell.what == "F" else (-1, "B")
            other = place.get(cell.stage + step, rank) if cell.what != "W" else rank
            if other != rank:
                rows[rank].append(Cell(cell.stage, f"SEND_{way}", cell.batch))
                rows[other].append(Cell(cell.stage + step, f"RECV_{way}", cell.batch))
            if not left_over[cell.stage] and cell.what != "F":
                rows[rank].append(Cell(cell.stage, "REDUCE_GRAD", None))
        if len(done) == before:
            raise UsageError(f"the ranks of the schedule wait for each other{_WHY}")
    return Cells(rows, cells.skips)


def _may_run(cell: Cell, done: set[Cell], last: int) -> bool:
    """True if the inputs of a computation from other stages have arrived."""
    if cell.what == "F":
        return not cell.stage or cell._replace(stage=cell.stage - 1) in done
    if cell.what in _REVERSE and cell.stage < last:
        return cell._replace(stage=cell.stage + 1) in done
    return True


_WHY = (
    ": stages of torch.distributed.pipelining are a chain, each on one device or group of devices"
)


def _odd(one: Record, what: str) -> UsageError:
    return UsageError(f"pass '{printable(one['name'])}' {what}{_WHY}")


def _behind(passes: Sequence[Record], number: int) -> set[int]:
    """The passes that one waits for, those that do so through transfers too."""
    found: set[int] = set()
    for entry in passes[number]["after"]:
        before = entry["pass"]
        found |= _behind(passes, before) if passes[before]["kind"] == "transfer" else {before}
    return found


def _in_order(passes: Sequence[Record]) -> list[int]:
    """Positions, each after those that its pass waits for; equals by position."""
    done: dict[int, None] = {}
    while len(done) < len(passes):
        done |= dict.fromkeys(
            number
            for number, one in enumerate(passes)
            if number not in done and all(entry["pass"] in done for entry in one["after"])
        )
    return list(done)


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
                number, guarded(stage["device"]), guarded(before), int(exact),
                stage.get("shards", 1), replicas,
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
    """First outermost module of a stage without parts in earlier stages.

    If there is none, the innermost of its first node that has any, and that it is not exact.
    """
    names = [list(_modules(record)) for record in own]
    first = next((found for found in names if found), [])
    new = next((name for name in first if name not in seen), None)
    return (new, True) if new is not None else (first[-1] if first else "", False)
