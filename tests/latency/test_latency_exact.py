"""Exact models of latency: their constraints one by one, and their answers against brute force."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from tools.agree_latency import EXECUTIONS, disagreements, latency_case, solve
from tools.agree_live import live_case

from dnnp.core.cost.latency import (
    Invocations,
    LatencyProblem,
    Placement,
    latency_problem,
    lazy_events,
)
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.ip.block_model import BlockProgram, items_of_tasks
from dnnp.core.latency.ip.formulation import identical_devices, in_order, serial_latency
from dnnp.core.latency.ip.loop import LatencyProgram, formulation_of, solve_intervals, solve_model
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError, UsageError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.solver import child, slices
from dnnp.core.solver.scheduling_model import TickProgram
from dnnp.core.solver.slices import Best
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.graphs import header, node, tensor
from support.latency_brute import brute_blocks, brute_operators, items
from support.latency_cases import random_problem


def brute(problem: LatencyProblem):
    blocks = problem.options.execution == "blocks"
    return (brute_blocks if blocks else brute_operators)(problem)


def starved(problem: LatencyProblem) -> LatencyProblem:
    """The same without enough memory, and without a CPU."""
    machine = replace(
        problem.machine,
        capacity=np.full(problem.machine.count, 0.5),
        is_cpu=np.zeros(problem.machine.count, dtype=np.bool_),
    )
    memory = np.maximum(problem.tasks.memory, 1.0)
    return replace(problem, tasks=replace(problem.tasks, memory=memory), machine=machine)


# The models themselves, without a solver.


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_best_solution_is_one_of_the_models(execution):
    """It meets every constraint of both programs, with its latency as the upper limit too."""
    counted = 0
    for seed in range(40):
        problem = latency_case(seed, execution, 6)
        value, best = brute(problem)
        formulation = formulation_of(problem)
        if best is None:
            continue
        assert formulation.windows.least <= value * (1 + 1e-12)
        assert serial_latency(formulation.problem) >= value
        for upper in (serial_latency(formulation.problem), value):
            model = formulation.model(upper)
            known = formulation.known(best)
            assert not model.hopeless
            assert known is not None
            times, flags = model.start(known)
            check_program(LatencyProgram(model), times, flags, value)
            check_ticks(TickProgram(model, formulation.quantum), times, flags)
            again = formulation.solution(model, times, flags)
            assert formulation.problem.value(again) == pytest.approx(value, rel=1e-12)
        counted += 1
    assert counted > 20


@pytest.mark.parametrize("floors", [2, 16])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_what_fits_with_its_live_tensors_is_a_solution_of_the_models(
    execution, floors, monkeypatch
):
    """Bounds hold for any number of steps to which floors of live tensors are rounded."""
    monkeypatch.setattr("dnnp.core.latency.ip.formulation.FLOORS", floors)
    binding = 0
    for seed in range(25 if execution == "blocks" else 90):
        problem = latency_problem(live_case(seed, execution, 4)).searched
        value, best = brute(problem)
        if best is None:
            continue
        formulation = formulation_of(problem)
        model = formulation.model(value)
        rows = len(formulation_of(problem.relaxed).model(value).rows)
        binding += len(model.rows) > rows
        times, flags = model.start(formulation.known(best))
        check_program(LatencyProgram(model), times, flags, value)
        check_ticks(TickProgram(model, formulation.quantum), times, flags)
    assert binding > 2


def check_program(latency: LatencyProgram, times, flags, value: float) -> None:
    program, values = latency.program, latency.start(times, flags)
    assert values[0] * latency.scale == pytest.approx(value)
    for x, low, high in zip(values, program.lower, program.upper, strict=True):
        assert low - 1e-9 <= x <= high + 1e-9
    for columns, weights, sense, bound in program.rows:
        left = sum(values[c] * w for c, w in zip(columns, weights, strict=True)) - bound
        assert {"<": left, ">": -left, "=": abs(left)}[sense] <= 1e-9


def check_ticks(ticks: TickProgram, times, flags) -> None:
    program, values = ticks.program, ticks.start(times, flags)
    for x, low, high in zip(values, program.lower, program.upper, strict=True):
        assert low <= x <= high
    for variables, weights, low, high, given in program.rows:
        if all(values[g] for g in given):
            total = sum(values[v] * w for v, w in zip(variables, weights, strict=True))
            # Rounding may differ by a tick where numbers are fractions.
            slack = 0 if ticks.exact else 2 * len(variables)
            assert low is None or total >= low - slack
            assert high is None or total <= high
    for lane in program.lanes:
        spans = sorted((values[start], size) for start, size, flag in lane if values[flag])
        ends = [start + size for start, size in spans]
        starts = [start for start, _ in spans[1:]]
        assert all(a <= b + 2 for a, b in zip(ends, starts, strict=False))


def test_items_are_those_of_brute_force():
    for seed in range(60):
        problem = latency_case(seed, "blocks", 7)
        label = items_of_tasks(problem.tasks)
        assert {frozenset(item) for item in items(problem)} == {
            frozenset(np.flatnonzero(label == i).tolist()) for i in np.unique(label).tolist()
        }


def test_twins_can_change_places():
    for seed in range(30):
        problem = latency_case(seed, "operators", 3)
        for device, other in enumerate(identical_devices(problem).tolist()):
            assert other < device
            if other >= 0:
                assert problem.machine.classes[other] == problem.machine.classes[device]


def test_an_order():
    when = {0: 3.0, 1: 1.0, 2: 2.0, 3: 0.0}
    assert in_order(when, [(2, 1), (0, 3)]) == ([2, 1, 0, 3], set())
    done, waiting = in_order(when, [(0, 1), (1, 0), (1, 2)])
    assert (done, waiting) == ([3], {0, 1})


def test_blocks_that_take_no_time_must_not_wait_for_each_other():
    """a -> b and c -> d, with a and d in one block and b and c in another."""
    nodes = [
        node(v, "Op", reads, [v], name="abcd"[v], time_s={"dev": 0.0})
        for v, reads in enumerate([[], [0], [], [2]])
    ]
    tensors = [tensor(v, "activation", 0) for v in range(4)]
    graph = graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))
    options = CostOptions(objective="latency", execution="blocks")
    problem = latency_problem(
        SplitProblem(graph, singletons(graph), (DeviceClass("dev", count=2),), options)
    )
    formulation = BlockProgram(problem)
    for again in (False, True):
        model = formulation.model(1.0)
        flags = [0.0] * len(model.whole)
        for item, slot in enumerate((0, 1, 1, 0)):
            flags[model.places[item][1 + slot]] = 1.0
        excluded = [
            row
            for row in model.rows
            if row.sense == "<"
            and sum(w * flags[f] for f, w in zip(row.flags, row.weights, strict=True)) == 4
        ]
        assert [row.bound for row in excluded] == ([3] if again else [])
        assert formulation.solution(model, [0.0] * len(model.low), flags) is None
    assert solve_model(formulation_of(problem)).value == 0


def test_a_bound_that_is_known_ends_the_search():
    problem = hard_problem("operators")
    start = start_of(problem)
    value = problem.value(start)
    result = solve_model(formulation_of(problem), start=start, bound=value)
    assert (result.status, result.bound, result.solution) == ("optimal", value, start)


# Their answers.


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_cbc_agrees_with_brute_force(execution, seed):
    assert not disagreements(latency_case(seed, execution, 6), ["cbc"])


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("solver", "module"), [("highs", "highspy"), ("cpsat", "ortools")])
def test_the_others_agree_with_brute_force(solver, module, execution):
    pytest.importorskip(module)
    for seed in range(8):
        assert not disagreements(latency_case(seed, execution, 6), [solver])


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_models_agree_with_one_another(execution):
    """Beyond what brute force can do."""
    pytest.importorskip("ortools")
    for seed in (0, 2, 4):
        problem = random_problem(random.Random(seed), 9, execution=execution)
        with_cbc, with_cpsat = solve(problem, "cbc"), solve(problem, "cpsat")
        assert with_cbc.status == with_cpsat.status == "optimal"
        assert with_cbc.value == pytest.approx(with_cpsat.value, rel=1e-9)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("solver", "module"), [("cbc", "mip"), ("highs", "highspy"), ("cpsat", "ortools")]
)
def test_no_memory_is_infeasible(solver, module, execution):
    pytest.importorskip(module)
    problem = starved(latency_case(0, execution))
    assert brute(problem) == (np.inf, None)
    with pytest.raises(InfeasibleError, match=r"^infeasible: "):
        solve(problem, solver)


# Limits, interrupts, failures.


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("solver", "module"), [("cbc", "mip"), ("cpsat", "ortools")])
def test_an_interrupt_keeps_what_is_known(solver, module, execution):
    pytest.importorskip(module)
    problem = hard_problem(execution)
    start = start_of(problem)
    result = solve(problem, solver, start, run=SearchContext(interrupted=lambda: True))
    assert (result.status, result.solution) == ("feasible", start)
    assert 0 < result.bound <= result.value
    result = solve(problem, solver, run=SearchContext(interrupted=lambda: True))
    assert (result.status, result.solution, result.value) == ("limit", None, np.inf)
    assert 0 < result.bound < np.inf


def hard_problem(execution: str) -> LatencyProblem:
    """More than a solver proves in a second."""
    return random_problem(random.Random(7), 24, execution=execution, devices=3)


def start_of(problem: LatencyProblem):
    """Everything on the first device that runs it."""
    tasks = problem.tasks
    device = next(d for d, row in enumerate(tasks.time) if np.isfinite(row).all())
    if problem.options.execution == "blocks":
        return Invocations(np.array([device]), np.zeros(tasks.n, dtype=np.int64))
    homes = np.full(tasks.n, device)
    return Placement(homes, lazy_events(tasks, homes, tasks.order))


def test_cpsat_keeps_what_it_told_before_an_interrupt():
    pytest.importorskip("ortools")
    problem = hard_problem("blocks")
    told = []

    whole = Best.offer

    def offer(self, solution):
        told.append(whole(self, solution))
        return told[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Best, "offer", offer)
        result = solve_intervals(
            formulation_of(problem), run=SearchContext(interrupted=lambda: bool(told))
        )
    assert result.status == "feasible"
    assert result.value == min(told)
    assert result.bound <= result.value


@pytest.mark.parametrize(
    ("solver", "module", "name"), [("cbc", "mip", "cbc"), ("cpsat", "ortools", "CP-SAT")]
)
def test_a_solver_that_dies(monkeypatch, solver, module, name):
    pytest.importorskip(module)
    problem = hard_problem("operators")
    start = start_of(problem)
    monkeypatch.setattr(slices, "ATTEMPTS", 1)
    kind = "cpsat" if solver == "cpsat" else "mip"

    def kill() -> bool:
        for process in started:
            with suppress(ProcessLookupError):
                os.kill(process._process.pid, signal.SIGKILL)
        return False

    child._close_idle()
    child._idle.clear()
    for known in (start, None):
        started = [child.SolverProcess(kind)]
        child._idle.append(started[0])
        if known is None:
            with pytest.raises(LimitError, match="signal 9"):
                solve(problem, solver, run=SearchContext(interrupted=kill))
        else:
            result = solve(problem, solver, known, run=SearchContext(interrupted=kill))
            assert result.status == "feasible"
            assert result.failure == f"the solver {name} failed: signal 9"
    # The next one has a new process.
    assert solve(latency_case(2, "operators", 4), solver).status == "optimal"


def test_processes_of_two_kinds_are_kept_apart():
    with child.solver_process() as first:
        pass
    with child.solver_process("cpsat") as second:
        assert second is not first
    with child.solver_process() as again:
        assert again is first


def test_cpsat_is_not_installed(monkeypatch, tmp_path):
    (tmp_path / "ortools").mkdir()
    (tmp_path / "ortools" / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child._close_idle()
    child._idle.clear()
    for execution in EXECUTIONS:
        with pytest.raises(UnavailableError, match=r"pip install 'dnnp\[cpsat\]'") as caught:
            solve(hard_problem(execution), "cpsat")
        assert caught.value.exit_status == 7
    child._close_idle()
    child._idle.clear()


def test_what_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(slices, "MAX_ENTRIES", 10)
    problem = hard_problem("operators")
    with pytest.raises(LimitError, match="too large; coarsen first"):
        solve_model(formulation_of(problem))
    start = start_of(problem)
    result = solve_model(formulation_of(problem), start=start)
    assert (result.status, result.solution) == ("feasible", start)


def test_an_unknown_solver():
    with pytest.raises(UsageError, match="'gurobi' is not a solver"):
        solve_model(formulation_of(latency_case(0, "blocks")), solver="gurobi")
