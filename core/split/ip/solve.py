"""Splits of the largest throughput by integer programming (2020 paper, section 5.1.3).

The solver's solutions are priced by the cost model like any other split; what the program did
not know of them (live activations) comes back as a constraint.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.items import Items, block_order
from dnnp.core.cost.load import StageLoad, stage_load
from dnnp.core.cost.load_formula import COMM, ROOM, combine, shared_load
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Graph, Ints, distinct, row_of
from dnnp.core.model.plan import VALIDITIES, Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.program import Outcome
from dnnp.core.solver.slices import (
    COARSE,
    SAFETY,
    Best,
    SearchResult,
    Slices,
    SliceSearch,
    attempted,
    refuse_unknown,
    result_of,
    solve_slices,
)
from dnnp.core.split.ip.task import Place, Task, cells_of, storage_of, synchronised
from dnnp.core.split.ip.throughput import Cut, Draft, by_work, entries, formulate
from dnnp.core.split.peak import with_least_peak

PEAK_EFFORT = 0.2
"""Effort for the order of the nodes in the stages of a solution."""


def best_split(problem: SplitProblem, validity: str) -> Best[list[Block]]:
    """The best split of a problem so far, of those with a validity; none yet."""

    def judge(blocks: list[Block]) -> float:
        plan = problem.plan(blocks)
        weak = VALIDITIES.index(plan.validity) < VALIDITIES.index(validity)
        return np.inf if weak else plan.value

    return Best(judge)


def solve_ip(
    problem: SplitProblem,
    validity: str,
    *,
    solver: str = "cbc",
    incumbent: Sequence[Block] | None = None,
    run: SearchContext = PLAIN,
) -> SearchResult[list[Block]]:
    """Find the split with the least objective by integer programming.

    The bound holds for all splits of the validity asked for.

    Parameters
    ----------
    problem
        What is split. Memory that is not a sum over nodes, with the `peak` model, is learned from
        solutions, which may take many solves where it binds.
    validity
        `ordered`, `convex` or `free`.
    solver
        `cbc` or `highs`.
    incumbent
        A split to start from; one that is invalid or too weak is not used.
    run
        When to end with what there is.

    Raises
    ------
    UsageError
        The program cannot express this: device clusters, or `gpipe` without a backward pass.
    InfeasibleError
        It is proven that no split fits.
    LimitError
        The solver failed before any split was known.
    UnavailableError
        The solver is not installed.
    """
    _refuse(problem, validity, solver)
    if problem.graph.n == 0:
        return SearchResult([], 0.0, 0.0, "optimal", solver)
    problem = problem.with_devices(*(d for d in problem.devices if d.count > 0))
    if not problem.devices:
        raise InfeasibleError("infeasible: no devices are offered")
    choices = problem.item_choices if validity == "ordered" else (problem.free_items,)
    best = best_split(problem, validity)
    if incumbent is not None:
        best.offer(list(incumbent))
    bound, closed, failure, asked = np.inf, True, "", False
    for number, items in enumerate(choices):
        part = run.part(1 / (len(choices) - number))
        if len(choices) > 1:
            part = part.without_bounds()
        loop = Loop(problem, best, task_of(problem, validity, items), part)

        def work(process: SolverProcess, loop: Loop = loop, part: SearchContext = part) -> bool:
            loop.failure = ""
            return solve_slices(loop, Slices(solver, process, part))

        done = attempted(work, lambda _, loop=loop: loop.failure, run)  # type: ignore[misc]
        asked |= loop.asked
        bound, closed, failure = min(bound, loop.low), closed and done, failure or loop.failure
    what = f"{validity} split"
    return result_of(best, bound, solver, failure, asked=asked, closed=closed, what=what)


def task_of(problem: SplitProblem, validity: str, items: Items) -> Task:
    """The problem in terms of one choice of items, laid out in a line."""
    graph, options = problem.graph, problem.options
    line = problem.line(items)
    item = line.item_of_node
    cells = cells_of(graph, problem.units) if validity == "convex" else None
    synchronise = options.max_replicas > 1 and bool(graph.backward.any())
    return Task(
        line=line,
        devices=problem.devices,
        options=options,
        ordered=validity == "ordered",
        cells=cells,
        cell_item=item[cells.node] if cells else item[:0],
        storage=storage_of(graph, line, options),
        weights=synchronised(graph, line) if synchronise else None,
    )


def _refuse(problem: SplitProblem, validity: str, solver: str) -> None:
    """Raise for what the programs cannot express."""
    if validity not in VALIDITIES:
        raise UsageError(f"'{validity}' is not a validity; there are {', '.join(VALIDITIES)}")
    refuse_unknown(solver)
    if problem.options.objective == "gpipe" and not problem.graph.backward.any():
        raise UsageError("the objective 'gpipe' needs a graph with a backward pass")
    if any(d.cluster_size and d.count > 1 for d in problem.devices):
        raise UsageError(
            "the integer programs know no clusters of devices; the method 'exact' does"
        )


class Loop(SliceSearch[list[Block]]):
    """The search for one task."""

    def __init__(
        self, problem: SplitProblem, best: Best[list[Block]], task: Task, run: SearchContext
    ) -> None:
        super().__init__(best, task.quantum)
        self.problem, self.task, self.run = problem, task, run
        self.item = task.line.item_of_node
        self.ordered = problem.options.memory_model == "peak" and any(
            not d.is_cpu and not task.storage.fits(d.memory_bytes) for d in task.devices
        )
        self.cuts: list[Cut] = []

    def write(self) -> Draft | None:
        """The program of all splits that are not worse than the best one; None: too large."""
        if self.refuses(entries(self.task)):
            return None
        reference = self.best.value if np.isfinite(self.best.value) else self._crude()
        return formulate(self.task, reference, self.cuts, self.run)

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
            order = SearchContext(effort=PEAK_EFFORT, interrupted=self.run.stop)
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


def blocks_of(graph: Graph, draft: Draft, at: Ints) -> list[Block]:
    """Blocks of an assignment (place of every item, i64[items]), by place."""
    line = draft.task.line
    place_of_node = np.repeat(at, np.diff(line.node_ptr))
    blocks = []
    for i in distinct(at).tolist():
        nodes = line.nodes[place_of_node == i]
        place = draft.places[i]
        nodes = nodes[np.argsort(graph.rank[nodes])]
        blocks.append(Block(nodes, draft.task.devices[place.device], place.replicas))
    return blocks


def places_of_blocks(draft: Draft, item_of_node: Ints, blocks: Sequence[Block]) -> Ints | None:
    """Place of every item for given blocks, numbered as the program wants it; None: no fit."""
    names = [d.name for d in draft.task.devices]
    block_of_item = row_of((item_of_node[block.nodes] for block in blocks), draft.task.line.n)
    for b, block in enumerate(blocks):
        if block.device.name not in names or (block_of_item[item_of_node[block.nodes]] != b).any():
            return None
    if draft.task.ordered:
        line = draft.task.line
        found = block_order(block_of_item[line.tail], block_of_item[line.head], len(blocks))
        order = None if found is None else found.tolist()
    else:
        order = list(dict.fromkeys(int(block_of_item[v]) for v in by_work(draft)))
    if order is None:
        return None
    at = np.full(draft.task.line.n, -1, dtype=np.int64)
    free = list(range(len(draft.places)))
    for step, b in enumerate(order):
        kind = Place(
            names.index(blocks[b].device.name),
            blocks[b].replicas,
            step if draft.task.ordered else -1,
        )
        i = next((i for i in free if draft.places[i] == kind), None)
        if i is None:
            return None
        free.remove(i)
        at[block_of_item == b] = i
    return at
