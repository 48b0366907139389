"""The process that runs the solvers: `python -P -m dnnp.core.solver.worker FD`.

It answers programs that come over the socket FD until the other end is closed. Limits and
interrupts are the parent's business: it kills this process. When the parent itself is gone, a
thread notices and ends the process, even in the middle of a solve.

CP-SAT needs a process without any other solver: ortools and highspy cannot share one.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from dnnp.core.model.graph import Ints
from dnnp.core.solver.program import Outcome, Program, Row, solve_sparse
from dnnp.core.solver.scheduling_model import NEWS, CpProgram

GAP = 1e-9
"""Absolute gap at which a solver may stop; programs are scaled to about 1."""

PARENT_CHECK_S = 2.0
"""Interval between checks for a dead parent, should its end of the socket live on."""


def solve_cpsat(
    tell: Callable[[Outcome], None],
    program: CpProgram,
    hint: Sequence[int] | None,
    seconds: float | None,
    threads: int,
    seed: int,
) -> Outcome:
    """Run the solver; every better solution and every better bound is told at once."""
    from ortools.sat.python import cp_model

    model, variables = _cpsat_model(program, hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = seed
    # With it, ortools 9.15 calls solutions optimal that are not (or-tools, issue 5293).
    solver.parameters.presolve_inclusion_work_limit = 0
    if seconds is not None:
        solver.parameters.max_time_in_seconds = seconds

    lock = Lock()

    def say(outcome: Outcome) -> None:
        with lock:  # the solver's threads must not mix what they say
            tell(outcome)

    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc, unused-ignore]
        def on_solution_callback(self) -> None:
            values = tuple(float(self.value(v)) for v in variables)
            say(Outcome(NEWS, self.best_objective_bound, values))

    solver.best_bound_callback = lambda bound: say(Outcome(NEWS, bound))
    status = solver.solve(model, Listener())
    names = {
        cp_model.OPTIMAL: "optimal",
        cp_model.FEASIBLE: "feasible",
        cp_model.INFEASIBLE: "infeasible",
        cp_model.UNKNOWN: "limit",
    }
    name = names.get(status, "failed")
    if name in ("optimal", "feasible"):
        values = tuple(float(solver.value(v)) for v in variables)
        return Outcome(name, solver.best_objective_bound, values)
    if name == "limit":
        return Outcome(name, solver.best_objective_bound)
    return Outcome(name, reason="" if name == "infeasible" else solver.status_name(status))


def _cpsat_model(program: CpProgram, hint: Sequence[int] | None) -> tuple[Any, list[Any]]:
    """A program as CP-SAT has it, and its variables."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    variables = [
        model.new_int_var(low, high, "")
        for low, high in zip(program.lower, program.upper, strict=True)
    ]
    for indices, weights, low, high, given in program.rows:
        total = cp_model.LinearExpr.weighted_sum([variables[i] for i in indices], weights)
        if low is None:
            row = model.add(total <= high)
        elif high is None:
            row = model.add(total >= low)
        else:
            row = model.add_linear_constraint(total, low, high)
        if given:
            row.only_enforce_if([variables[i] for i in given])
    for lane in program.lanes:
        intervals = [
            model.new_optional_fixed_size_interval_var(variables[start], size, variables[flag], "")
            for start, size, flag in lane
        ]
        model.add_no_overlap(intervals)
    if hint is not None:
        for variable, value in zip(variables, hint, strict=True):
            model.add_hint(variable, value)
    model.minimize(variables[0])
    return model, variables


def solve(
    solver: str,
    program: Program,
    start: list[float] | None,
    seconds: float | None,
    tolerance: float,
    presolve: bool = True,
) -> Outcome:
    """Run one solver for some seconds, from a starting solution if there is one.

    Without `presolve` HiGHS takes the program as it is.
    """
    import mip

    missing = _missing(solver)
    if missing:
        return Outcome("missing", reason=missing)
    model, columns = _model(solver, program)
    model.max_mip_gap = 0.0
    model.max_mip_gap_abs = GAP
    _set_tolerances(solver, model, tolerance)
    if solver == "highs" and not presolve:
        model.solver._set_string_option_value("presolve", "off")
    if start is not None:
        pairs = zip(columns, start, program.integer, strict=True)
        # CBC completes a start from its integers; HiGHS wants all of it.
        model.start = [(c, value) for c, value, whole in pairs if whole or solver == "highs"]
    status = model.optimize(max_seconds=mip.INF if seconds is None else seconds)
    return _outcome(model, columns, status)


class Relaxation:
    """A program without integers that is solved again and again, each time from the last basis."""

    def __init__(self) -> None:
        self._model: Any = None
        self._columns: list[Any] = []

    def relax(self, solver: str, program: Program) -> Outcome:
        """Solve a program, and keep it."""
        missing = _missing(solver)
        if missing:
            return Outcome("missing", reason=missing)
        self._model, self._columns = _model(solver, program)
        return self._optimize()

    def refine(self, rows: Sequence[Row], closed: Sequence[int], dropped: Sequence[int]) -> Outcome:
        """Solve it again from its last basis, with `closed` columns at 0 and new rows.

        Rows with the numbers `dropped` go first; those behind them move up.
        """
        if dropped:
            self._model.remove([self._model.constrs[i] for i in dropped])
        _add_rows(self._model, self._columns, rows)
        for column in closed:
            self._columns[column].ub = 0.0
        return self._optimize()

    def _optimize(self) -> Outcome:
        outcome = _outcome(self._model, self._columns, self._model.optimize(relax=True))
        if outcome.status != "optimal":
            return outcome
        duals = tuple(float(row.pi) for row in self._model.constrs)
        return replace(outcome, bound=float(self._model.objective_value), duals=duals)


def _model(solver: str, program: Program):  # type: ignore[no-untyped-def]
    """A program as python-mip has it: (model, columns)."""
    import mip

    model = mip.Model(solver_name={"cbc": mip.CBC, "highs": mip.HIGHS}[solver])
    model.verbose = 0
    columns = [
        model.add_var(lb=lower, ub=upper, obj=cost, var_type=mip.INTEGER if whole else "C")
        for lower, upper, cost, whole in zip(
            program.lower, program.upper, program.objective, program.integer, strict=True
        )
    ]
    _add_rows(model, columns, program.rows)
    return model, columns


def _add_rows(model, columns, rows: Sequence[Row]) -> None:  # type: ignore[no-untyped-def]
    import mip

    for indices, weights, sense, bound in rows:
        chosen = [columns[i] for i in indices]
        model.add_constr(mip.LinExpr(chosen, weights, -bound, sense))


def _missing(solver: str) -> str:
    """The solver that is not installed, or the package that lacks a function; else empty."""
    if solver == "highs":
        from mip.highs import has_highs

        if not has_highs and "highspy._core" in sys.modules:
            from importlib.metadata import version

            return f"highspy {version('highspy')}"
        return "" if has_highs else "HiGHS"
    from mip.cbc import has_cbc

    return "" if has_cbc else "CBC"


def _set_tolerances(solver: str, model, tolerance: float) -> None:  # type: ignore[no-untyped-def]
    """Set feasibility tolerances; python-mip passes its own ones on to CBC only."""
    if solver == "cbc":
        from mip.cbc import cbc_set_parameter

        model.infeas_tol = model.integer_tol = model.opt_tol = tolerance
        # By default a solution must be better by 1e-5 to count.
        cbc_set_parameter(model.solver, "increment", str(GAP))
        return
    model.threads = 1  # more of them make the search differ from run to run
    for option in (
        "primal_feasibility_tolerance",
        "dual_feasibility_tolerance",
        "mip_feasibility_tolerance",
    ):
        model.solver._set_double_option_value(option, tolerance)


def _outcome(model, columns, status) -> Outcome:  # type: ignore[no-untyped-def]
    """Translate what python-mip says."""
    from mip import OptimizationStatus

    names = {
        OptimizationStatus.OPTIMAL: "optimal",
        OptimizationStatus.FEASIBLE: "feasible",
        OptimizationStatus.INFEASIBLE: "infeasible",
        OptimizationStatus.INT_INFEASIBLE: "infeasible",
        OptimizationStatus.NO_SOLUTION_FOUND: "limit",
    }
    name = names.get(status, "failed")
    bound = model.objective_bound
    low = float("-inf") if bound is None or name == "failed" else float(bound)
    values = None
    if name in ("optimal", "feasible"):
        values = tuple(float(column.x) for column in columns)
    return Outcome(name, low, values, "" if name != "failed" else f"status {status.name}")


def part_graph(parts: int, graph: Sequence[Ints], seed: int) -> Outcome:
    """Run METIS; `values` are the parts of the vertices.

    `graph`: CSR offsets and neighbours, weights of the vertices and of the entries. After an error
    METIS leaves SIGTERM blocked in the process that called it.
    """
    import pymetis

    ptr, neighbors, weights, edge_weights = graph
    _, found = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(ptr, neighbors),
        vweights=weights,
        eweights=edge_weights,
        options=pymetis.Options(seed=seed),
    )
    return Outcome("feasible", values=tuple(map(float, found)))


def _receive(pipe: Connection, requests: queue.SimpleQueue) -> None:
    """Pass on what the parent sends; end the process when the parent is gone."""
    parent = os.getppid()
    try:
        while True:
            while not pipe.poll(PARENT_CHECK_S):
                if os.getppid() != parent:
                    os._exit(0)
            requests.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)


def main() -> None:
    """Answer until the parent goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A solver in trouble writes what it was given into the working folder, which is the user's.
    sys.path[:] = map(os.path.abspath, sys.path)
    with suppress(OSError):
        os.chdir("/proc")
    pipe = Connection(int(sys.argv[1]))
    requests: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, requests), daemon=True).start()
    # A model that is collected while cffi holds its lock, for a declaration that it parses, waits
    # for that lock forever. So models are collected between requests only.
    gc.disable()
    relaxation = Relaxation()
    answers: dict[str, Callable[..., Outcome]] = {
        "solve": solve,
        "relax": relaxation.relax,
        "refine": relaxation.refine,
        "sparse": solve_sparse,
        "cpsat": partial(solve_cpsat, pipe.send),
        "metis": part_graph,
    }
    while True:
        what, *request = requests.get()
        try:
            outcome = answers[what](*request)
        except ImportError as error:
            outcome = Outcome("missing", reason=str(error))
        except BaseException as error:
            pipe.send(Outcome("failed", reason=f"{type(error).__name__}: {error}"))
            raise
        if what != "refine":  # which leaves nothing behind, and is asked often
            gc.collect()
        pipe.send(outcome)


if __name__ == "__main__":
    main()
