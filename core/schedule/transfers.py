"""Transfers between devices as blocks of their own (Tessel, section IV-D).

A block that waits for a result of another device waits for its transfer instead. A *blocking*
transfer occupies both devices while it sends and receives; a *non-blocking* one occupies the
link, and the devices go on. One order of all blocks and transfers, which every device follows,
keeps sends and receives free of deadlocks.

Backward passes in two parts: gradients of inputs, for which the stage before waits, and gradients
of weights, which can be computed at any time later (Qi et al. 2023, Zero Bubble Pipeline
Parallelism, section 2). The activations of the forward pass are held until then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

import numpy as np

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.schedule.problem import TOLERANCE, ScheduleProblem
from dnnp.core.schedule.starts import topological_order

MODES = ("none", "blocking", "non-blocking")

Home = tuple[int, ...]


def with_transfers(
    placement: Placement, mode: str, *, time_s: float | None = None, delay_s: float | None = None
) -> Placement:
    """Make a transfer block of every result that has to move.

    A result moves from the first unit of its block to each unit of a waiting block that is not
    among the block's own. All blocks that wait for it there share one transfer, of the longest
    time that one of them states. Transfers of no time are none. Blocks keep their positions,
    transfers and links come after all others. `Wait.transfer_s` is 0 in the result.

    Parameters
    ----------
    mode
        `none`: moves take no time.
    time_s
        Time of each transfer instead of `Wait.transfer_s`.
    delay_s
        Latency: time between the end of a move and the earliest start of the waiting block, besides
        `Wait.delay_s`; also where the move itself takes no time.

    Raises UsageError: no such mode, a negative time, transfer blocks that are there already, or
    two blocks whose devices are the same for some micro-batches only.
    """
    if mode not in MODES:
        raise UsageError(f"no way of transfers is called '{mode}': {', '.join(MODES)}")
    for name, value in (("time", time_s), ("delay", delay_s)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"the {name} of transfers is a finite number of at least 0: {value}")
    if mode != "none" and any(block.kind == "transfer" for block in placement.blocks):
        raise UsageError("the placement has transfer blocks already")
    latency = 0.0 if mode == "none" or delay_s is None else delay_s
    board = _Transfers(placement, mode)
    blocks = []
    for block in placement.blocks:
        after: list[Wait] = []
        for wait in block.after:
            time = wait.transfer_s if time_s is None else time_s
            free = mode == "none" or (time == 0 and latency == 0)
            moves = [] if free else board.moves(wait.block, block)
            delay = wait.delay_s + (latency if moves else 0.0)
            if time > 0 and moves:
                after += [Wait(board.transfer(wait.block, move, time), delay) for move in moves]
            else:
                after.append(Wait(wait.block, delay))
        blocks.append(replace(block, after=tuple(after)))
    blocks += [board.block(move) for move in board.made]
    return replace(placement, units=(*placement.units, *board.links), blocks=tuple(blocks))


@dataclass
class _Transfers:
    """The transfers that are needed so far."""

    placement: Placement
    mode: str
    made: dict[tuple[int, tuple[Home, ...]], tuple[int, float]] = field(default_factory=dict)
    """Position and time of the transfer of a block's result between units, in turn."""
    links: list[Unit] = field(default_factory=list)
    link: dict[Home, int] = field(default_factory=dict)
    """Position of the link between two units."""
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = {block.name for block in self.placement.blocks}

    def moves(self, maker: int, reader: PlacedBlock) -> list[tuple[Home, ...]]:
        """(from, to) for micro-batches in turn, of each move that a result needs."""
        source = self.placement.blocks[maker]
        turns = math.lcm(len(source.homes), len(reader.homes))
        rows: list[list[Home]] = []
        for n in range(turns):
            here, there = source.homes[n % len(source.homes)], reader.homes[n % len(reader.homes)]
            rows.append([(here[0], d) for d in there if d not in here])
        if len({len(row) for row in rows}) > 1:
            raise UsageError(
                f"results of '{source.name}' move to '{reader.name}' for some micro-batches only: "
                "such a transfer cannot be scheduled"
            )
        return [_shortest(list(column)) for column in zip(*rows, strict=True)]

    def transfer(self, maker: int, move: tuple[Home, ...], time: float) -> int:
        """Position of a transfer."""
        place, known = self.made.get((maker, move), (len(self.made), 0.0))
        self.made[maker, move] = place, max(known, time)
        return len(self.placement.blocks) + place

    def block(self, key: tuple[int, tuple[Home, ...]]) -> PlacedBlock:
        """The block of a transfer."""
        maker, move = key
        units = self.placement.units
        name = f"{self.placement.blocks[maker].name}>{units[move[0][1]].name}"
        homes = move if self.mode == "blocking" else tuple((self._link(pair),) for pair in move)
        return PlacedBlock(
            unused(name, self.names), "transfer", homes, self.made[key][1], 0.0, (Wait(maker),)
        )

    def _link(self, pair: Home) -> int:
        if pair not in self.link:
            self.link[pair] = len(self.placement.units) + len(self.links)
            a, b = (self.placement.units[d].name for d in pair)
            self.links.append(Unit(f"{a}>{b}", link=True))
        return self.link[pair]


def _shortest(column: list[Home]) -> tuple[Home, ...]:
    """The shortest part that repeated gives a column."""
    for n in range(1, len(column)):
        if len(column) % n == 0 and column == column[:n] * (len(column) // n):
            return tuple(column[:n])
    return tuple(column)


def without_transfers(placement: Placement) -> tuple[Placement, Ints]:
    """The placement where transfers are delays of what waits for them, and the kept positions."""
    blocks = placement.blocks
    kept = [i for i, block in enumerate(blocks) if block.kind != "transfer"]
    if len(kept) == len(blocks):
        return placement, np.arange(len(blocks))
    new = {i: place for place, i in enumerate(kept)}
    waits = {i: [w.block for w in block.after] for i, block in enumerate(blocks)}
    before: dict[int, dict[int, float]] = {}
    for i in TopologicalSorter(waits).static_order():
        before[i] = {}
        for wait in blocks[i].after:
            other, found = blocks[wait.block], {wait.block: 0.0}
            if other.kind == "transfer":
                found = {b: d + other.time_s for b, d in before[wait.block].items()}
            for b, delay in found.items():
                before[i][b] = max(before[i].get(b, 0.0), delay + wait.delay_s)
    core = (
        replace(blocks[i], after=tuple(Wait(new[b], d) for b, d in before[i].items())) for i in kept
    )
    return replace(placement, blocks=tuple(core)), np.array(kept, dtype=np.int64)


def global_order(problem: ScheduleProblem, start: Floats) -> Ints:
    """All blocks of all micro-batches by start, predecessors first (Tessel, IV-D).

    Devices that run their blocks, and post their sends and receives, in this order never wait
    for each other in a circle: of all blocks that are not done the first one in the order is
    next on each of its devices, and all that it waits for is done.

    Raises FormatError: a block starts before one that it waits for.
    """
    slack = TOLERANCE * np.abs(start).max(initial=0.0)
    if (start[problem.tail] > start[problem.head] + slack).any():
        raise FormatError("a block starts before one that it waits for")
    return topological_order(problem.b, problem.tail, problem.head, start)


def split_backward(placement: Placement, share: float) -> Placement:
    """Give every backward block a weight block, which takes `share` of its time.

    Blocks keep their positions; weight blocks come after all others. What a backward block
    releases, its weight block does.

    Raises UsageError: the share is not between 0 and 1, the backward blocks have been split
    before, or there are none.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"the share of the weight gradient lies between 0 and 1, not {share}")
    kinds = {block.kind for block in placement.blocks}
    if "weight" in kinds:
        raise UsageError("the backward blocks have been split already")
    if "backward" not in kinds:
        raise UsageError("there are no backward blocks to split")
    names = {block.name for block in placement.blocks}
    blocks, weights = [], []
    for position, block in enumerate(placement.blocks):
        if block.kind != "backward":
            blocks.append(block)
            continue
        name = unused(f"W{block.name.removeprefix('B')}", names)
        late = share * block.time_s
        released = min(block.memory_bytes, 0.0)
        after = (Wait(position),)
        weights.append(PlacedBlock(name, "weight", block.homes, late, released, after, block.stage))
        kept = max(block.memory_bytes, 0.0)
        blocks.append(replace(block, time_s=block.time_s - late, memory_bytes=kept))
    return replace(placement, blocks=(*blocks, *weights))


def unused(name: str, names: set[str]) -> str:
    """The name, with a number if it is taken; it is taken from now on."""
    found, number = name, 2
    while found in names:
        found, number = f"{name}.{number}", number + 1
    names.add(found)
    return found
