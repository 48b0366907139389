"""Bounds for plans of the objective latency: the problem of a plan, and the bounding methods."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import monotonic
from typing import NamedTuple

import numpy as np

from dnnp.core.bounds.auto import Trial
from dnnp.core.cost.latency import (
    POOL,
    TASK,
    Invocations,
    LatencyProblem,
    Placement,
    SearchProof,
    Split,
    latency_problem,
)
from dnnp.core.cost.problem import SAME, SplitProblem
from dnnp.core.latency.auto import Search, bound_and_paths, first_bound
from dnnp.core.latency.blocks.bound import SolvedPaths
from dnnp.core.latency.blocks.ideals import BOUND, ideal_latency
from dnnp.core.latency.exact.solve import BOUND as BRANCHES
from dnnp.core.latency.exact.solve import prove, unfit
from dnnp.core.latency.ip.loop import formulation_of, solve_model
from dnnp.core.methods.bounds import LATENCY_BOUNDS
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.graph import Ints, place_of
from dnnp.core.model.plan import CLOSED, Plan
from dnnp.core.model.search_context import PLAIN, Incumbent, SearchContext, run_with_fallback

PROGRAM_S = 60.0
"""Time limit of the integer program where none is given, seconds."""

BRANCHED = 0.5
"""Share of a time limit that the search before it may take."""


class LatencyProof(NamedTuple):
    """The best bound, and a better split if one was found."""

    method: str
    value: float
    tried: list[Trial]
    split: Split | None
    latency: float
    """Least latency known."""
    paths: SolvedPaths | None = None
    """Those of blocks that a bound is of."""

    def after(self, trial: Trial) -> LatencyProof:
        """The same with one more bounding method tried."""
        method, value = trial.method, trial.value or 0.0
        if value <= self.value and self.tried:
            method, value = self.method, self.value
        return self._replace(method=method, value=value, tried=[*self.tried, trial])


def given_split(given: SplitProblem, plan: Plan) -> tuple[LatencyProblem, Split]:
    """The problem of a plan in solver form, and its split.

    Raises
    ------
    FormatError
        Its value is not that of its stages, or these do not fit.
    InfeasibleError
        It does not fit its devices.
    """
    problem, units = latency_problem(given), given.units
    place = {name: i for i, name in enumerate(problem.machine.names)}
    node = {number: v for v, number in enumerate(given.graph.node_ids.tolist())}
    held = [
        np.array(list(dict.fromkeys(units.label[[node[i] for i in s.nodes]].tolist())))
        for s in plan.stages
    ]
    home = np.full(units.g, POOL, dtype=np.int64)
    for stage, mine in zip(plan.stages, held, strict=True):
        if stage.device not in place:
            reason = f"{stage.device} is beyond the {units.g} devices of a class that count"
            raise FormatError(reason, field="devices")
        home[mine] = place[stage.device]
    split: Split
    if plan.options.execution == "blocks":
        split = _blocks(problem, home, held)
    else:
        split = Placement(home, _events(problem, plan, home, held))
    value = problem.value(split)
    if abs(value - plan.value) > SAME * max(value, plan.value):
        reason = f"{plan.value!r} is stated, {value!r} is the value of these stages"
        raise FormatError(reason, field="value")
    return problem, split


def _blocks(problem: LatencyProblem, home: Ints, held: list[Ints]) -> Invocations:
    """Stages as blocks; tasks on CPUs are in the pool."""
    block = np.full(len(home), POOL, dtype=np.int64)
    devices: list[int] = []
    for mine in held:
        device = int(home[mine[0]])
        if not problem.machine.is_cpu[device]:
            block[mine] = len(devices)
            devices.append(device)
    return Invocations(np.array(devices, dtype=np.int64), block)


def _events(problem: LatencyProblem, plan: Plan, home: Ints, held: list[Ints]) -> Ints:
    """Tasks and transfers by the stated times of the stages."""
    tasks = problem.tasks
    rank = place_of(tasks.order)
    flows: dict[tuple[int, ...], list[int]] = {}
    for f in range(tasks.flows):
        ids = tasks.carried_id[tasks.carried_ptr[f] : tasks.carried_ptr[f + 1]].tolist()
        flows.setdefault(tuple(sorted(ids)), []).append(f)
    start = np.zeros(tasks.n)
    rows: list[tuple[float, float, int, int, int]] = []
    for stage, mine in zip(plan.stages, held, strict=True):
        starts = stage.starts_s or ()
        if len(starts) != len(mine):
            reason = f"{stage.device} runs {len(mine)} units but states {len(starts)} starts"
            raise FormatError(reason, field="starts_s")
        for unit, begin in zip(mine.tolist(), starts, strict=True):
            start[unit] = begin
            end = begin + float(tasks.time[home[unit], unit])
            rows.append((begin, end, 2 * int(rank[unit]), TASK, unit))
    for stage, mine in zip(plan.stages, held, strict=True):
        device = int(home[mine[0]])
        taken: set[int] = set()
        for move in stage.receives or ():
            wanted = []
            for f in flows.get(tuple(sorted(move.tensors)), ()):
                readers = tasks.use_idx[tasks.use_ptr[f] : tasks.use_ptr[f + 1]]
                here = readers[home[readers] == device]
                if f not in taken and len(here):
                    wanted.append((float(start[here].min()), f))
            if not wanted:
                raise FormatError(
                    f"{stage.device} receives tensors {list(move.tensors)} without need",
                    field="receives",
                )
            flow = min(wanted)[1]
            taken.add(flow)
            after = 2 * int(rank[tasks.maker[flow]]) + 1
            rows.append((move.start_s, move.end_s, after, flow, device))
    rows.sort()
    return np.array([row[3:] for row in rows], dtype=np.int64).reshape(-1, 2)


def latency_bound(
    problem: LatencyProblem,
    split: Split,
    method: str,
    *,
    solver: str = "cbc",
    run: SearchContext = PLAIN,
) -> LatencyProof:
    """Bound the latency of every split of this problem.

    Raises UsageError: the method is not for latency, or not for this execution.
    """
    if method not in LATENCY_BOUNDS:
        names = ", ".join(LATENCY_BOUNDS)
        raise UsageError(f"method {method} is not for plans of the objective latency: {names}")
    executions = LATENCY_BOUNDS[method].kinds
    if problem.options.execution not in executions:
        raise UsageError(f"method {method} is for plans of the execution {executions[0]}")
    # Without live tensors: a relaxation, so that its bounds hold with them.
    whole, problem = problem, problem.relaxed
    value = problem.value(split)
    known = LatencyProof("simple", 0.0, [], None, value)
    kept: Incumbent[Split] = Incumbent()
    run = kept.told_by(run)
    run.report_incumbent(split, value, "")
    if method in ("auto", "simple"):
        known = _simple(problem, known, run)
    if method in ("auto", "ideal") and problem.options.execution == "blocks" and _open(known, run):
        search = partial(ideal_latency, paths=known.paths)
        known = _searched(problem, known, search, BOUND, run.without_shares())
    fits = isinstance(split, Placement) and not unfit(problem)
    if method == "auto" and fits and _open(known, run):
        known = _searched(problem, known, prove, BRANCHES, run.without_shares().part(BRANCHED))
    near = run.gap_reached(known.latency, known.value) or run.stop()
    if method in ("auto", "exact") and not near:
        known = _exact(problem, known.split or split, known, solver, run.without_shares())
    if not known.tried:  # the plan takes no time
        known = _simple(problem, known, run)
    if kept.proven() > known.value * (1 + CLOSED):
        known = known.after(Trial(kept.argument, "limit", kept.proven(), "", 0.0))
    if kept.beats(known.latency):
        known = known._replace(split=kept.split, latency=kept.value)
    if known.split is not None and not whole.fits(known.split):
        known = known._replace(split=None, latency=value)
    return known._replace(value=min(known.value, known.latency))


def _open(known: LatencyProof, run: SearchContext) -> bool:
    """True if there is a gap, and time left."""
    return known.value < known.latency * (1 - CLOSED) and not run.stop()


def _simple(problem: LatencyProblem, known: LatencyProof, run: SearchContext) -> LatencyProof:
    """Bound without an integer program, in little time."""
    started = monotonic()
    best, name, paths = run_with_fallback(
        lambda: bound_and_paths(problem, known.latency, replace(run, effort=1.0)),
        run.stop,
        lambda: (*first_bound(problem), None),
    )
    run.report_progress(bound=best)
    status = "limit" if run.stop() else "solved"
    trial = Trial(name, status, best, "", monotonic() - started)
    return known._replace(method=name, value=best, tried=[trial], paths=paths)


def _searched(
    problem: LatencyProblem, known: LatencyProof, search: Search, name: str, run: SearchContext
) -> LatencyProof:
    """Bound by an exact search."""
    started = monotonic()
    run.report_progress(name)
    found = run_with_fallback(
        lambda: search(problem, upper=known.latency, run=run),
        run.stop,
        lambda: SearchProof(more=True),
    )
    status = "limit" if found.more or found.reason else "solved"
    spent = monotonic() - started
    known = known.after(Trial(name, status, found.bound, found.reason, spent))
    if found.split is not None and (value := problem.value(found.split)) < known.latency:
        known = known._replace(split=found.split, latency=value)
    return known


def _exact(
    problem: LatencyProblem, split: Split, known: LatencyProof, solver: str, run: SearchContext
) -> LatencyProof:
    """Bound by the integer program, started from a split."""
    started = monotonic()
    run.report_progress("integer program")
    limited = run if run.time_left() is not None else run.within(PROGRAM_S)
    try:
        model = formulation_of(problem)
        found = solve_model(model, solver=solver, start=split, bound=known.value, run=limited)
    except InfeasibleError as error:
        raise FormatError(f"the solver says that nothing fits: {error}") from None
    status = "failed" if found.failure else "limit" if found.status != "optimal" else "solved"
    spent = monotonic() - started
    known = known.after(Trial("exact", status, found.bound, found.failure, spent))
    if found.value < known.latency * (1 - CLOSED):
        known = known._replace(split=found.solution, latency=found.value)
    return known
