"""Run the orders of a schedule again with transfers between groups of devices.

A *blocking* transfer keeps all devices of both groups, from when the last of them has time for it,
right after the block that it moves the result of; every device follows one order of blocks and
transfers, that of the schedule (Tessel, IV-D). A *non-blocking* one keeps none, and one is under
way between two groups at a time. A block starts when all transfers to it have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]


class Replayed(NamedTuple):
    """What happened."""

    makespan_s: float
    busy_s: list[float]
    """Of each device, with blocks."""


def replay(
    schedule: Record,
    blocks: Sequence[Record],
    moves: Mapping[tuple[str, str], float],
    *,
    blocking: bool,
) -> Replayed:
    """Start everything as early as the order allows; `moves` says how long a result takes.

    `schedule` and `blocks` are the records of dnnp-schedule; `moves` goes by the names of a pass
    and of one that waits for it.
    """
    run = _Run(schedule, moves, blocking)
    # What ends when another block starts moves first.
    events = [(block["end_s"], 0, block) for block in blocks]
    events += [(block["start_s"], 1, block) for block in blocks]
    for _, kind, block in sorted(events, key=lambda event: event[:2]):
        (run.start if kind else run.move)(block["pass"], block["micro_batch"])
    return Replayed(run.end_s, run.busy)


class _Run:
    """The devices, and what has arrived on them."""

    def __init__(
        self, schedule: Record, moves: Mapping[tuple[str, str], float], blocking: bool
    ) -> None:
        self.passes, self.moves, self.blocking = schedule["passes"], moves, blocking
        self.free = [0.0] * len(schedule["units"])
        self.busy = list(self.free)
        self.roads: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        self.ended: dict[tuple[int, int], float] = {}
        self.ready: dict[tuple[int, int], float] = {}
        self.end_s = 0.0
        self.readers: dict[int, list[int]] = {}
        for i, each in enumerate(self.passes):
            for wait in each["after"]:
                self.readers.setdefault(wait["pass"], []).append(i)

    def homes(self, number: int, batch: int) -> tuple[int, ...]:
        """Devices of a pass for a micro-batch."""
        homes = self.passes[number]["homes"]
        return tuple(homes[batch % len(homes)])

    def start(self, number: int, batch: int) -> None:
        """Run a block."""
        homes, time = self.homes(number, batch), self.passes[number]["time_s"]
        end = max(self.ready.get((number, batch), 0.0), *(self.free[d] for d in homes)) + time
        for d in homes:
            self.free[d] = end
            self.busy[d] += time
        self.ended[number, batch] = end
        self.end_s = max(self.end_s, end)

    def move(self, number: int, batch: int) -> None:
        """Move the result of a block to where it is waited for."""
        homes, done = self.homes(number, batch), self.ended[number, batch]
        for reader in self.readers.get(number, ()):
            to = self.homes(reader, batch)
            time = self.moves.get((self.passes[number]["name"], self.passes[reader]["name"]), 0.0)
            arrival = done
            if time and self.blocking:
                group = {*homes, *to}
                arrival = max(self.free[d] for d in group) + time
                self.free = [arrival if d in group else t for d, t in enumerate(self.free)]
            elif time:
                arrival = max(done, self.roads.get((homes, to), 0.0)) + time
                self.roads[homes, to] = arrival
            key = reader, batch
            self.ready[key] = max(self.ready.get(key, 0.0), arrival)
