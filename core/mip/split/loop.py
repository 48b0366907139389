"""Slices of solving (`dnnp.core.mip.slices`) the program of splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.combine import COMM, ROOM, combine, shared_load
from dnnp.core.cost.divisor import snapped
from dnnp.core.cost.load import StageLoad, stage_load
from dnnp.core.mip.child import SolverProcess
from dnnp.core.mip.program import Outcome
from dnnp.core.mip.slices import (
    BLIND_SLICE_S,
    COARSE,
    FIRST_SLICE_S,
    GRACE_S,
    GROWTH,
    MAX_ENTRIES,
    SAFETY,
    Slices,
    missing,
)
from dnnp.core.mip.split.best import Best
from dnnp.core.mip.split.blocks import blocks_of, places_of_blocks
from dnnp.core.mip.split.draft import Draft
from dnnp.core.mip.split.storage import item_of_node
from dnnp.core.mip.split.task import Task
from dnnp.core.mip.split.throughput import Cut, entries, formulate
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.plan import Block
from dnnp.core.model.run import Run
from dnnp.core.peak.order import with_least_peak

__all__ = [
    "BLIND_SLICE_S", "COARSE", "FIRST_SLICE_S", "GRACE_S", "GROWTH", "MAX_ENTRIES", "SAFETY",
    "Loop", "missing",
]  # fmt: skip
"""With what the loop for latency shares with this one."""

PEAK_EFFORT = 0.2
"""Effort for the order of the nodes in the stages of a solution."""


class Loop:
    """Slices of solving for one task."""

    def __init__(
        self,
        best: Best,
        task: Task,
        solver: str,
        process: SolverProcess,
        run: Run,
    ) -> None:
        self.best, self.task, self.run = best, task, run
        self.slices = Slices(solver, process, run)
        self.item = item_of_node(best.problem.graph, task.line)
        self.quantum = task.quantum
        self.ordered = best.problem.options.memory_model == "peak" and any(
            not d.is_cpu and not task.storage.fits(d.memory_bytes) for d in task.devices
        )
        self.cuts: list[Cut] = []
        self.low = 0.0
        self.failure = ""

    def least(self) -> tuple[float, bool]:
        """Solve until nothing is left to find, or to the end; (lower bound, whether closed)."""
        size = entries(self.task)
        if size > MAX_ENTRIES:
            self.failure = (
                f"an integer program with about {size} numbers is too large; coarsen first, "
                "or offer fewer devices"
            )
            return self.low, False
        while self.best.value > self.low:
            reference = self.best.value if np.isfinite(self.best.value) else self._crude()
            draft = formulate(self.task, reference, 1.0, self.cuts, self.run)
            if self.run.stop():
                return self.low, False
            outcome = Outcome("infeasible") if draft.hopeless else self._slice(draft)
            if outcome.status == "missing":
                raise UnavailableError(missing(self.slices.solver, outcome.reason))
            if outcome.status == "infeasible":
                return self._nothing_better(), True
            self._raise_bound(outcome, reference)
            if outcome.values is not None:
                closed = self._examine(draft, outcome)
                if closed is not None:
                    return self.low, closed
            if outcome.status == "failed":
                self.failure = f"the solver {self.slices.solver} failed: {outcome.reason}"
            if outcome.status == "failed" or not self.slices.process.alive:
                return self.low, False
        return self.low, True

    def _slice(self, draft: Draft) -> Outcome:
        blind = not np.isfinite(self.best.value)
        return self.slices.solve(draft.program, self._start(draft), draft.tops, blind=blind)

    def _nothing_better(self) -> float:
        """The bound when no split has the objective of the best one, or less."""
        known = self.best.value
        if not np.isfinite(known):
            return np.inf
        return snapped(known * (1 - SAFETY), self.quantum)

    def _raise_bound(self, outcome: Outcome, reference: float) -> None:
        """Take over the solver's bound; above the upper limit it means nothing."""
        if outcome.bound <= 1 + SAFETY:
            low = snapped((outcome.bound - SAFETY) * reference, self.quantum)
            self.low = max(self.low, low)

    def _examine(self, draft: Draft, outcome: Outcome) -> bool | None:
        """Price a solution; whether the task is closed by it, None if it goes on."""
        blocks = blocks_of(self.best.problem.graph, draft, draft.assignment(outcome.values or ()))
        if self.ordered:
            order = Run(effort=PEAK_EFFORT, interrupted=self.run.stop)
            blocks = with_least_peak(self.best.problem.graph, blocks, run=order)
        value = self.best.offer(blocks)
        if outcome.status != "optimal":
            return None
        if value <= (outcome.bound + 2 * SAFETY) * draft.reference:
            return True if draft.reference <= COARSE * value or value == 0 else None
        known = len(self.cuts)
        self._learn(blocks, (outcome.bound + SAFETY) * draft.reference)
        # Without anything to learn the same solution would come again.
        return None if len(self.cuts) > known else False

    def _learn(self, blocks: Sequence[Block], expected: float) -> None:
        """Keep what the program did not know of some blocks."""
        best, hard = self.best, self.best.problem.options.memory_mode == "hard"
        names = [d.name for d in self.task.devices]
        for block in blocks:
            device = block.device
            cost = stage_load(
                best.problem.graph,
                best.problem.units,
                block.nodes,
                device,
                best.problem.options,
                block.replicas,
            )
            needed = cost.memory_bytes
            loads: tuple[float, ...] = (cost.load_s,)
            if self.task.passes > 1:
                loads = cost.forward_s or 0.0, cost.backward_s or 0.0
            elif self.ordered:
                # What is learned must hold for all orders of the nodes.
                needed -= max((cost.peak_bytes or 0.0) - block.peak_bound_bytes, 0.0)
                loads = (self._load(cost, block, needed),)
            over = needed > device.memory_bytes * ROOM
            full = hard and not device.is_cpu and over
            if full:
                loads = (np.inf,) * self.task.passes
            items = tuple(np.unique(self.item[block.nodes]).tolist())
            grows = full and self.task.storage.exact
            cut = Cut(names.index(device.name), block.replicas, items, loads, grows)
            if sum(loads) > expected and cut not in self.cuts:
                self.cuts.append(cut)

    def _load(self, cost: StageLoad, block: Block, needed: float) -> float:
        """Load of a stage if it needs so many bytes."""
        device, options = block.device, self.best.problem.options
        overflow = 0.0
        if options.memory_mode == "overflow" and not device.is_cpu:
            overflow = max(needed - device.memory_bytes, 0.0) / device.bandwidth_bytes_per_s
        comm = COMM[options.comm]
        alone = combine(comm, cost.in_s, cost.compute_s, overflow, cost.out_s)
        return shared_load(comm, alone, block.replicas, cost.sync_s)

    def _start(self, draft: Draft) -> list[float] | None:
        """The best split as a solution of the program."""
        if self.best.blocks is None:
            return None
        at = places_of_blocks(draft, self.item, self.best.blocks)
        return None if at is None else draft.start(at)

    def _crude(self) -> float:
        """A load that no split exceeds which is worth a look: everything on one device."""
        line = self.task.line
        work = np.where(np.isfinite(line.work), line.work, 0.0).max(axis=0).sum()
        total = float(work + 2 * line.cost.max(axis=0).sum())
        rates = [d.bandwidth_bytes_per_s for d in self.task.devices]
        if self.task.weights is not None:
            every = np.ones(line.n, dtype=np.bool_)
            total += self.task.weights.of(every) / min(rates)
        if self.task.options.memory_mode == "overflow":
            total += self.task.storage.most / min(rates)
        return total if total > 0 else 1.0
