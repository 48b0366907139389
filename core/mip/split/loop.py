"""The search for the best split of one task, by programs that learn from its solutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.combine import COMM, ROOM, combine, shared_load
from dnnp.core.cost.load import StageLoad, stage_load
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.mip.program import Outcome
from dnnp.core.mip.search import Best, SliceSearch
from dnnp.core.mip.slices import COARSE, SAFETY
from dnnp.core.mip.split.blocks import blocks_of, places_of_blocks
from dnnp.core.mip.split.draft import Draft
from dnnp.core.mip.split.storage import item_of_node
from dnnp.core.mip.split.task import Task
from dnnp.core.mip.split.throughput import Cut, entries, formulate
from dnnp.core.model.graph import distinct
from dnnp.core.model.plan import Block
from dnnp.core.model.run import Run
from dnnp.core.peak.order import with_least_peak

PEAK_EFFORT = 0.2
"""Effort for the order of the nodes in the stages of a solution."""


class Loop(SliceSearch[list[Block]]):
    """The search for one task."""

    presolve = (True, True)

    def __init__(
        self, problem: SplitProblem, best: Best[list[Block]], task: Task, run: Run
    ) -> None:
        super().__init__(best, task.quantum)
        self.problem, self.task, self.run = problem, task, run
        self.item = item_of_node(problem.graph, task.line)
        self.ordered = problem.options.memory_model == "peak" and any(
            not d.is_cpu and not task.storage.fits(d.memory_bytes) for d in task.devices
        )
        self.cuts: list[Cut] = []

    def write(self) -> Draft | None:
        """The program of all splits that are not worse than the best one; None: too large."""
        if self.refuses(entries(self.task)):
            return None
        reference = self.best.value if np.isfinite(self.best.value) else self._crude()
        return formulate(self.task, reference, 1.0, self.cuts, self.run)

    def start(self, written: Draft) -> list[float] | None:
        """The best split as a solution of the program."""
        if self.best.solution is None:
            return None
        at = places_of_blocks(written, self.item, self.best.solution)
        return None if at is None else written.start(at)

    def take(self, written: Draft, outcome: Outcome) -> bool | None:
        """Price a solution; whether the task is closed by it, None if it goes on."""
        self.take_bound(outcome.bound, written.reference)
        if outcome.values is None:
            return None
        blocks = blocks_of(self.problem.graph, written, written.assignment(outcome.values))
        if self.ordered:
            order = Run(effort=PEAK_EFFORT, interrupted=self.run.stop)
            blocks = with_least_peak(self.problem.graph, blocks, run=order)
        value = self.best.offer(blocks)
        if outcome.status != "optimal":
            return None
        if value <= (outcome.bound + 2 * SAFETY) * written.reference:
            return True if written.reference <= COARSE * value or value == 0 else None
        known = len(self.cuts)
        self._learn(blocks, (outcome.bound + SAFETY) * written.reference)
        # Without anything to learn the same solution would come again.
        return None if len(self.cuts) > known else False

    def _learn(self, blocks: Sequence[Block], expected: float) -> None:
        """Keep what the program did not know of some blocks."""
        problem, hard = self.problem, self.problem.options.memory_mode == "hard"
        names = [d.name for d in self.task.devices]
        for block in blocks:
            device = block.device
            cost = stage_load(
                problem.graph,
                problem.units,
                block.nodes,
                device,
                problem.options,
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
            items = tuple(distinct(self.item[block.nodes]).tolist())
            grows = full and self.task.storage.exact
            cut = Cut(names.index(device.name), block.replicas, items, loads, grows)
            if sum(loads) > expected and cut not in self.cuts:
                self.cuts.append(cut)

    def _load(self, cost: StageLoad, block: Block, needed: float) -> float:
        """Load of a stage if it needs so many bytes."""
        device, options = block.device, self.problem.options
        overflow = 0.0
        if options.memory_mode == "overflow" and not device.is_cpu:
            overflow = max(needed - device.memory_bytes, 0.0) / device.bandwidth_bytes_per_s
        comm = COMM[options.comm]
        alone = combine(comm, cost.in_s, cost.compute_s, overflow, cost.out_s)
        return shared_load(comm, alone, block.replicas, cost.sync_s)

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
