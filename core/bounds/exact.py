"""The exact mixed-integer program (MTPP Figure 3), and the general one where it does not serve.

The program of `dnnp.core.split.ip.pipeline` is for ordered splits over one class of devices
without replicas and clusters, where memory does not bind. The blocks that an item may be in are
fixed by what a better split leaves room for (`windows`). All else is solved by
`dnnp.core.split.ip.solve`, which knows several classes, CPUs, capacities, replicas, `gpipe`, and
convex and free splits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.bounds.claim import FAILED, LIMIT, REFUSED, SOLVED, Claim, Known
from dnnp.core.bounds.flows import Nets, network_of, push
from dnnp.core.bounds.hierarchy import MOST_NUMBERS, Call, claim_of, numbers_of, too_large
from dnnp.core.bounds.path_closure import closure
from dnnp.core.bounds.programs import Candidate, CandidateSearch
from dnnp.core.cost.load_formula import MARGIN, WORTHWHILE
from dnnp.core.cost.ordered_items import Line
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.solver.program import SLACK
from dnnp.core.solver.slices import SAFETY
from dnnp.core.split.ip.best import best_split
from dnnp.core.split.ip.formulas import Formulas
from dnnp.core.split.ip.pipeline import Pipeline
from dnnp.core.split.ip.solve import solve_ip
from dnnp.core.split.ip.storage import item_of_node, storage_of
from dnnp.core.split.ip.task import Task

MOST_ITEMS = 500
MOST_PINS = 20_000
"""Up to here minimum cuts are computed; beyond them work alone counts."""


def exact_bound(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The least objective of all splits, as far as it can be solved; splits that are better."""
    call = Call(problem, known, run)
    if known.validity == "ordered" and call.problem.options.objective == "throughput":
        trivial = call.trivial()
        if trivial is not None:
            return trivial
        tasks = call.tasks("ordered")
        if all(_plain(call, task) for task in tasks):
            stages = [min(task.devices[0].count, task.line.n) for task in tasks]
            sizes = [k * numbers_of(task) for k, task in zip(stages, tasks, strict=True)]
            return too_large(call) if max(sizes) > MOST_NUMBERS else _Exact(call, tasks).claim()
    return _general(call)


def _plain(call: Call, task: Task) -> bool:
    """Whether Figure 3 says everything about a task."""
    graph, options = call.problem.graph, call.problem.options
    if len(task.devices) > 1 or options.max_replicas > 1 or task.devices[0].cluster_size:
        return False
    device = call.problem.devices[0]
    limited = not device.is_cpu and np.isfinite(device.memory_bytes)
    if limited and not storage_of(graph, task.line, options).fits(device.memory_bytes):
        return False
    return bool(np.isfinite(task.line.work).all())


class _Exact:
    """Figure 3 for every choice of items."""

    def __init__(self, call: Call, tasks: Sequence[Task]) -> None:
        self.call = call
        self.best = best_split(call.problem, "ordered")
        self.search: CandidateSearch = call.search(tasks)
        self.search.found = self.found
        self.programs: dict[int, tuple[Task, Pipeline]] = {}
        lower = call.lower() / self.search.reference
        order = call.pipeline()
        self.candidates = []
        for task in tasks:
            placed = call.placed(task)
            starts = [] if placed is None or order is None else [order[placed] + 1]
            self.candidates.append(Candidate(self._maker(task), starts, lower))

    def _maker(self, task: Task):  # type: ignore[no-untyped-def]
        call, search = self.call, self.search
        stages = min(task.devices[0].count, task.line.n)
        cuts = call.problem.options.comm == "sum" and not task.devices[0].is_cpu
        pairs = call.pairs(task)

        def make(upper: float) -> Formulas:
            lower = min(call.lower() / search.reference, upper)
            first, last = windows(task.line, upper * search.reference, stages, cuts=cuts)
            program = Pipeline(task, stages, first, last, search.reference, lower, upper, pairs)
            self.programs[id(program.formulas)] = task, program
            return program.formulas

        return make

    def found(self, candidate: Candidate, formulas: Formulas, values: Sequence[float]) -> float:
        """Price a solution by the cost model."""
        task, program = self.programs[id(formulas)]
        value = self.best.offer(self._blocks(task, program.blocks(values)))
        return value / self.search.reference

    def _blocks(self, task: Task, at: Ints) -> list[Block]:
        graph = self.call.problem.graph
        of_node = at[item_of_node(graph, task.line)]
        ordered = graph.order[np.argsort(of_node[graph.order], kind="stable")]
        borders = np.flatnonzero(np.diff(of_node[ordered])) + 1
        return [Block(part, self.call.problem.devices[0]) for part in np.split(ordered, borders)]

    def claim(self) -> Claim:
        """Solve, and say what was proven."""
        low, done = self.search.least(self.candidates)
        value, blocks = self.best.value, self.best.solution
        known = self.call.known.value
        if not value < known * (1 - WORTHWHILE):
            value, blocks = known, None
        return claim_of(self.call, "exact", self.search, low, done=done, value=value, blocks=blocks)


def _general(call: Call) -> Claim:
    """The program of 2020, for everything that Figure 3 does not say."""
    known = call.known
    try:
        result = solve_ip(
            call.problem,
            known.validity,
            solver=known.solver,
            incumbent=known.blocks,
            run=call.run,
        )
    except UsageError as error:
        return Claim(0.0, REFUSED, str(error))
    except (InfeasibleError, LimitError) as error:
        return Claim(call.simple, _ended(str(error)), str(error))
    best = best_split(call.problem, known.validity)
    value = known.value
    blocks = None
    if result.blocks is not None:
        found = best.offer(result.blocks)
        if found < value * (1 - WORTHWHILE):
            value, blocks = found, best.solution
    status = SOLVED if result.status == "optimal" else _ended(result.failure)
    if result.bound <= call.simple:
        return Claim(min(call.simple, value), status, result.failure, blocks=blocks)
    certificate = {
        "argument": "exact",
        "solver": result.solver,
        "status": result.status,
        "bound": result.bound,
        "tolerance": SAFETY,
        "checkable": False,
    }
    if status == FAILED:
        status = LIMIT
    return Claim(min(result.bound, value), status, result.failure, certificate, blocks)


def _ended(failure: str) -> str:
    """The status of a claim after a program that was not solved to its end."""
    # One that is too large is not even given to the solver.
    return FAILED if failure and "too large" not in failure else LIMIT


def windows(line: Line, load: float, stages: int, *, cuts: bool) -> tuple[Ints, Ints]:
    """First and last block, from 1 to `stages`, of every item; i64[items] each.

    For ordered splits over devices of one class, the line's first, into blocks of at most `load`
    seconds. A first block after the last one: there is no such split. `cuts`: whether transfers
    and compute add up.

    If item v is in block b or before, so is everything before v: the first b blocks together hold
    a set S of items with v and its ancestors. Their loads add up to at least work(S), and under
    `sum` to at least f(S) (`bounds.flows`): a tensor with pins on both sides of the border of S
    is paid by at least one of them. So b is at least the least f(S) over the load allowed. From the
    other end it is the same with descendants.
    """
    by = np.argsort(line.head, kind="stable")  # tails are before heads
    after = closure(line.n, np.arange(line.n), line.tail[by], line.head[by])
    before = np.ascontiguousarray(after.T)
    needs = [least_loads(line, sets, cuts=cuts) for sets in (before, before.T)]
    blocks = [
        np.maximum(np.ceil(need * (1 - MARGIN) / (load * (1 + SLACK))), 1).astype(np.int64)
        for need in needs
    ]
    return blocks[0], stages + 1 - blocks[1]


def least_loads(line: Line, sets: Bools, *, cuts: bool) -> Floats:
    """Least f(S) over the sets S that hold each of some sets (bool[sets, items])."""
    work = line.work[0]
    alone: Floats = sets @ work
    if not cuts or line.n > MOST_ITEMS or len(line.pins) > MOST_PINS:
        return alone
    network = network_of(work, Nets(line.pin_ptr, line.pins, line.always, line.cost[0]))
    flows = [push(network, network.capacity.copy(), np.flatnonzero(row)) for row in sets]
    return np.maximum(alone, np.array(flows))
