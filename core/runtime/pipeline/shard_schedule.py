"""A schedule of stages that several devices hold together, as one of what each device runs.

A block on several devices at once becomes one for each piece: a part of the stage that one of its
devices runs in one go, between two exchanges with the others. Pieces of a block share its time by
their depth. Each device keeps the order of its blocks, and none starts one before all devices have
ended what it waits for; within a block devices wait for each other's tensors alone.

A transfer brings what a stage made to one device of another stage; its pieces there take it from
the transfer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dnnp.core.model.errors import FormatError, UsageError

Record = Mapping[str, Any]


class Piece(NamedTuple):
    """A part of a stage on one of its devices."""

    stage: int
    homes: tuple[str, ...]
    """Its device in each replica of the stage."""
    depth: int
    """Pieces of its stage that come before it, on the longest way."""


def schedule_of_pieces(
    schedule: Record, blocks: Sequence[Record], pieces: Sequence[Piece]
) -> tuple[Record, list[Record]]:
    """A valid schedule with a pass for each piece, at its position, and the others behind them.

    Raises
    ------
    UsageError
        A stage runs in several passes.
    FormatError
        A pass does not run on all devices of its stage.
    """
    passes = schedule["passes"]
    held: dict[int, list[int]] = {}
    for i, piece in enumerate(pieces):
        held.setdefault(piece.stage, []).append(i)
    parts: dict[int, list[int]] = {}
    """Pass -> its pieces."""
    for number, row in enumerate(passes):
        if row["kind"] == "forward":
            parts[number] = held.pop(row["stage"], [])
            if not parts[number]:
                raise UsageError(
                    f"stage {row['stage']} runs in several passes ({row['name']} is another one), "
                    "which a stage on several devices cannot"
                )
    rest = [number for number in range(len(passes)) if number not in parts]
    behind = {number: len(pieces) + at for at, number in enumerate(rest)}
    waits = _Waits(schedule, pieces, parts, behind)
    rows: list[Record] = [{}] * len(pieces)
    for number, mine in parts.items():
        row = passes[number]
        for i in mine:
            homes = waits.turns(row, pieces[i])
            rows[i] = {**row, "stage": i, "homes": homes, "after": waits.of_piece(row, i, homes)}
    rows += [{**passes[number], "after": waits.of_other(passes[number])} for number in rest]
    found: list[Record] = []
    for block in blocks:
        mine = parts.get(block["pass"], [])
        if block["pass"] in behind:
            found.append({**block, "pass": behind[block["pass"]]})
        share = (block["end_s"] - block["start_s"]) / (
            1 + max((pieces[i].depth for i in mine), default=0)
        )
        for i in mine:
            start = block["start_s"] + pieces[i].depth * share
            found.append({**block, "pass": i, "start_s": start, "end_s": start + share})
    return {**schedule, "passes": rows}, found


class _Waits:
    """Waits of pieces, from those of passes."""

    def __init__(
        self,
        schedule: Record,
        pieces: Sequence[Piece],
        parts: Mapping[int, Sequence[int]],
        behind: Mapping[int, int],
    ) -> None:
        self._passes, self._parts, self._behind = schedule["passes"], parts, behind
        self._names = [unit["name"] for unit in schedule["units"]]
        first: dict[tuple[int, tuple[str, ...]], int] = {}
        last: dict[tuple[int, tuple[str, ...]], int] = {}
        for i in sorted(range(len(pieces)), key=lambda i: pieces[i].depth):
            first.setdefault(pieces[i][:2], i)
            last[pieces[i][:2]] = i
        self._first, self._last = {*first.values()}, {*last.values()}

    def turns(self, row: Record, piece: Piece) -> list[list[int]]:
        """The device of a piece for micro-batches in turn."""
        turns = [[u for u in home if self._names[u] in piece.homes] for home in row["homes"]]
        if any(len(turn) != 1 for turn in turns):
            raise FormatError(f"pass {row['name']} does not run on all devices of its stage")
        return turns

    def of_piece(self, row: Record, i: int, homes: Sequence[Sequence[int]]) -> list[Record]:
        """Waits of a piece: transfers to its device, and all before the first one on a device."""
        found: dict[int, None] = {}
        for number in (wait["pass"] for wait in row["after"]):
            moves = self._passes[number]["kind"] == "transfer"
            if moves and self._brings(self._passes[number], homes):
                found[self._behind[number]] = None
            elif i in self._first:
                own = (
                    [wait["pass"] for wait in self._passes[number]["after"]] if moves else [number]
                )
                found |= dict.fromkeys(self._ends(own, last=True))
        return [{"pass": number} for number in found]

    def of_other(self, row: Record) -> list[Record]:
        """Waits of a pass that has no pieces."""
        before = self._ends([wait["pass"] for wait in row["after"]], last=False)
        return [{"pass": number} for number in before]

    def _ends(self, numbers: Sequence[int], *, last: bool) -> list[int]:
        """Pieces of passes, or the last one of each device; other passes as they are."""
        found = []
        for number in numbers:
            mine = self._parts.get(number)
            if mine is None:
                found.append(self._behind[number])
            else:
                found += [i for i in mine if i in self._last or not last]
        return found

    def _brings(self, transfer: Record, homes: Sequence[Sequence[int]]) -> bool:
        """Test whether a transfer ends on a device; true where it does not say where it ends."""
        turns = transfer["homes"]
        for n in range(math.lcm(len(turns), len(homes))):
            carriers = [self._names[u] for u in turns[n % len(turns)]]
            _, arrow, target = carriers[-1].rpartition(">")
            if (arrow or len(carriers) > 1) and target != self._names[homes[n % len(homes)][0]]:
                return False
        return True
