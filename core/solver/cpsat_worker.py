"""Run CP-SAT, in a process without any other solver: ortools and highspy cannot share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from dnnp.core.solver.cpsat_program import NEWS, CpProgram
from dnnp.core.solver.program import Outcome


def solve(
    tell: Callable[[Outcome], None],
    program: CpProgram,
    hint: Sequence[int] | None,
    seconds: float | None,
    threads: int,
    seed: int,
) -> Outcome:
    """Run the solver; every better solution and every better bound is told at once."""
    from ortools.sat.python import cp_model

    model, variables = _model(program, hint)
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


def _model(program: CpProgram, hint: Sequence[int] | None) -> tuple[Any, list[Any]]:
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
