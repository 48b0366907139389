"""Schedules as the CSV of torch.distributed.pipelining: a row a rank, a cell a computation.

A cell such as `2F0` is a stage, what is computed of it (F: forward; B: backward; with split
backward passes I for what inputs need and W for what weights need) and a micro-batch, in the order
in which the rank computes. It is the form `compute_only` of `_PipelineScheduleRuntime._load_csv`,
which adds the communication itself: from each stage to the next one and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import printable
from dnnp.formats.stream import Record


class Cells(NamedTuple):
    """A schedule for ranks."""

    rows: list[list[str]]
    """Cells of each rank, in order."""
    skips: list[tuple[int, int]]
    """Pairs of stages of which the second reads from the first, but does not follow it."""

    def encoded(self) -> bytes:
        """The file; names need no quotes."""
        return "".join(",".join(row) + "\n" for row in self.rows).encode()


def torch_cells(record: Record, blocks: Sequence[Record]) -> Cells:
    """A schedule as rows of computations. Ranks are the devices that compute, in their order.

    Stages are numbered in the order of the forward passes, each of which must follow the one
    before it. Transfers are left out.

    Raises
    ------
    UsageError
        The schedule is none of stages on one device each that follow one another.
    """
    passes = record["passes"]
    stage_of, skips = _stages(passes)
    letters = {"forward": "F", "backward": "B", "weight": "W"}
    if any(one["kind"] == "weight" for one in passes):
        letters["backward"] = "I"
    units = sorted({one["homes"][0][0] for one in passes if one["kind"] in letters})
    rank = {unit: i for i, unit in enumerate(units)}
    rows: list[list[tuple[float, float, str]]] = [[] for _ in units]
    for block in blocks:
        one = passes[block["pass"]]
        if one["kind"] in letters:
            cell = f"{stage_of[block['pass']]}{letters[one['kind']]}{block['micro_batch']}"
            rows[rank[block["units"][0]]].append((block["start_s"], block["end_s"], cell))
    return Cells([[cell for *_, cell in sorted(row)] for row in rows], skips)


def _stages(passes: Sequence[Record]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Position of each pass that computes -> its stage; and who reads from further before."""
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
        if one["kind"] == "transfer":
            continue
        if len(one["homes"]) != 1 or len(one["homes"][0]) != 1:
            raise _odd(one, "is not on one device")
        if one["kind"] == "forward":
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


_WHY = ": stages of torch.distributed.pipelining are a chain, each on one device"


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
