"""Passes of a schedule as steps of a pipeline, and what each unit does, one job after the other.

A pass that runs nodes is a step, and so is a transfer. Of several units that run a pass at once the
last one works; the others arrive before and leave when it is done, which are steps too. So they
do nothing else meanwhile, and whatever waits for something is a job that waits for other jobs: a
rehearsal of all jobs (`scheduled.room_of`) proves that none waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.runtime.steps import Job
from dnnp.core.runtime.trace import Transfer

Record = Mapping[str, Any]

Ends = Mapping[tuple[int, int], int]
"""(step, maker of what it reads) -> transfer, as a step, that hands it on."""


@dataclass(frozen=True)
class Turns:
    """What units do by a schedule."""

    orders: tuple[tuple[Job, ...], ...]
    """Jobs of each device and link in their order."""
    waits: tuple[tuple[int, int], ...]
    """(step, step that comes after it), for every sample."""
    start_s: Floats
    """f64[steps, micro-batches]; those that run nodes come first."""
    end_s: Floats
    transfers: tuple[Transfer, ...] = ()
    via: Ends = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Names of the steps that run no nodes."""

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.start_s)

    @property
    def count(self) -> int:
        """Micro-batches."""
        return int(self.start_s.shape[1])

    def name(self, step: int) -> str:
        """What messages call a step."""
        stages = self.steps - len(self.others)
        return f"stage {step}" if step < stages else self.others[step - stages]

    def of_nodes(self) -> tuple[list[tuple[Job, ...]], list[tuple[int, int]]]:
        """Orders and waits of the steps that run nodes alone.

        What waits for a transfer waits for what that waits for; units that only carry are left out.
        """
        stages = self.steps - len(self.others)
        orders = [tuple(job for job in row if job.step < stages) for row in self.orders]
        tails: dict[int, set[int]] = {step: set() for step in range(self.steps)}
        for tail, head in self.waits:
            tails[head].add(tail)
        before: dict[int, set[int]] = {}
        for step in TopologicalSorter(tails).static_order():
            own = [{tail} if tail < stages else before[tail] for tail in tails[step]]
            before[step] = set().union(*own)
        waits = [(tail, step) for step in range(stages) for tail in before[step]]
        return [row for row in orders if row], sorted(waits)


class _Seat(NamedTuple):
    """The steps of a pass."""

    work: int
    arrive: tuple[int, ...]
    """Of all units but the last."""
    leave: tuple[int, ...]


def turns_of(
    schedule: Record,
    blocks: Sequence[Record],
    step_of: Mapping[int, int],
    replica: Callable[[int, int], int] = lambda number, unit: 0,
) -> Turns:
    """What units do by a schedule that holds.

    Parameters
    ----------
    step_of
        Passes that run nodes, by their position -> step, from 0 on. Others, unless they are
        transfers, are done by themselves: what waits for them waits for what they wait for.
    replica
        Pass that runs nodes, unit -> which of the replicas of the step this is.

    Raises
    ------
    UsageError
        A pass runs on a number of units that changes.
    FormatError
        Passes wait for each other in a circle.
    """
    passes, count = schedule["passes"], schedule["micro_batches"]
    seats, others = _seats(schedule, step_of)
    steps = len(step_of) + len(others)
    start, end = np.zeros((steps, count)), np.zeros((steps, count))
    rows: dict[int, list[tuple[float, Job]]] = {}
    for block in blocks:
        number, n = block["pass"], block["micro_batch"]
        if number not in seats:
            continue
        seat, homes = seats[number], passes[number]["homes"]
        *waiting, working = homes[n % len(homes)]
        job = Job(seat.work, replica(number, working) if number in step_of else 0, n)
        rows.setdefault(working, []).append((block["start_s"], job))
        start[seat.work, n], end[seat.work, n] = block["start_s"], block["end_s"]
        for unit, arrive, leave in zip(waiting, seat.arrive, seat.leave, strict=True):
            pair = (block["start_s"], Job(arrive, 0, n)), (block["start_s"], Job(leave, 0, n))
            rows.setdefault(unit, []).extend(pair)
            start[arrive, n] = end[arrive, n] = block["start_s"]
            start[leave, n] = end[leave, n] = block["end_s"]
    orders = []
    for _, row in sorted(rows.items()):
        row.sort(key=lambda entry: entry[0])  # those that start together stay as they stand
        orders.append(tuple(job for _, job in row))
    waits, via = _joined(passes, step_of, seats)
    transfers = tuple(_transfers(schedule, seats, step_of))
    return Turns(tuple(orders), waits, start, end, transfers, via, tuple(others))


def _seats(schedule: Record, step_of: Mapping[int, int]) -> tuple[dict[int, _Seat], list[str]]:
    """Steps of each pass that has any, and the names of those that run no nodes."""
    units, others = schedule["units"], list[str]()

    def step(name: str) -> int:
        others.append(name)
        return len(step_of) + len(others) - 1

    seats = {}
    for number, row in enumerate(schedule["passes"]):
        if number not in step_of and row["kind"] != "transfer":
            continue
        name, widths = row["name"], {len(home) for home in row["homes"]}
        if len(widths) != 1 or 0 in widths:
            raise UsageError(
                f"pass {name} runs on as many units as the micro-batch has it: that cannot run"
            )
        work = step_of[number] if number in step_of else step(f"transfer {name}")
        waiting = [units[u]["name"] for u in row["homes"][0][:-1]]
        seats[number] = _Seat(
            work,
            tuple(step(f"{unit}, before {name}") for unit in waiting),
            tuple(step(f"{unit}, after {name}") for unit in waiting),
        )
    return seats, others


def _joined(
    passes: Sequence[Record], step_of: Mapping[int, int], seats: Mapping[int, _Seat]
) -> tuple[tuple[tuple[int, int], ...], Ends]:
    """Steps that wait for steps, and what hands on what steps read."""
    waits = {p: [wait["pass"] for wait in row["after"]] for p, row in enumerate(passes)}
    before: dict[int, set[int]] = {}
    brought: dict[int, dict[int, int]] = {}
    pairs, via = set[tuple[int, int]](), dict[tuple[int, int], int]()
    try:
        order = list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        circle = " -> ".join(passes[p]["name"] for p in reversed(error.args[1]))
        raise FormatError(f"passes wait for each other in a circle: {circle}") from None
    for p in order:
        before[p], brought[p] = set(), {}
        for q in waits[p]:
            before[p] |= {seats[q].work} if q in seats else before[q]
            own = {step_of[q]: step_of[q]} if q in step_of else brought[q]
            for maker, last in own.items():
                hands = seats[q].work if q in seats else last
                # What comes by a transfer is taken from there, also where its maker is waited for.
                if brought[p].get(maker, maker) == maker:
                    brought[p][maker] = hands
        if p not in seats:
            continue
        seat = seats[p]
        pairs |= {(b, seat.work) for b in (*before[p], *seat.arrive)}
        pairs |= {(seat.work, after) for after in seat.leave}
        via |= {(seat.work, m): hands for m, hands in brought[p].items() if hands != m}
    return tuple(sorted(pairs)), via


def _transfers(
    schedule: Record, seats: Mapping[int, _Seat], step_of: Mapping[int, int]
) -> Iterator[Transfer]:
    for number, seat in seats.items():
        row = schedule["passes"][number]
        if number not in step_of:
            units = frozenset(unit for home in row["homes"] for unit in home)
            blocking = not all(schedule["units"][unit].get("link", False) for unit in units)
            width = len(row["homes"][0])
            yield Transfer(
                seat.work, number, row["name"], float(row["time_s"]), blocking, width, units
            )
