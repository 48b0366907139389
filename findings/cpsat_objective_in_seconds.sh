#!/usr/bin/env bash
# Libraries: ortools 9.15.6755 (CP-SAT, Python 3.11).
# Expected:  status OPTIMAL means that no better solution exists, up to rounding of doubles; for max 1e-6 x, x in 0..10, that is
#            x = 10. The model takes float coefficients in objectives (in constraints it refuses them).
# Happens:   OPTIMAL with x = 0, objective 0, bound 1e-5. The parameter absolute_gap_limit (0.0001 by default) stops the search, and
#            it is counted in the units of the objective before scaling: whatever lies within 1e-4 is "optimal". With
#            absolute_gap_limit = 0, or the objective times 1e6, x = 10.
# Matters:   operators take microseconds, and times are kept in seconds: each schedule of less than 0.1 ms is OPTIMAL, the worst
#            too, while objective and bound look like numbers of a finished search. Only their difference tells.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q ortools==9.15.6755 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
from ortools.sat.python import cp_model


def largest(scale, **parameters):
    model = cp_model.CpModel()
    x = model.new_int_var(0, 10, "x")
    model.maximize(scale * x)
    return solved(model, x, parameters)


def makespan(scale, **parameters):
    """Two devices, tasks of 9, 8, 7, 6 and 4 microseconds: 17 is best, all on one device takes 34."""
    model = cp_model.CpModel()
    tasks = [9, 8, 7, 6, 4]
    there = [model.new_bool_var(f"t{i}") for i in range(len(tasks))]
    longest = model.new_int_var(0, sum(tasks), "longest")
    model.add(sum(t * b for t, b in zip(tasks, there)) <= longest)
    model.add(sum(t * (1 - b) for t, b in zip(tasks, there)) <= longest)
    model.minimize(scale * longest)
    return solved(model, longest, parameters)


def solved(model, variable, parameters):
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)
    status = solver.solve(model)
    assert status == cp_model.OPTIMAL, solver.status_name(status)
    return solver.value(variable), solver.objective_value, solver.best_objective_bound


try:
    model = cp_model.CpModel()
    model.add(0.5 * model.new_int_var(0, 10, "x") <= 2)
except TypeError:
    pass
else:
    raise AssertionError("float coefficients in constraints are taken")
value, objective, bound = largest(1e-6)
assert value == 0 and objective == 0 and 0.9e-5 < bound < 1.1e-5, (value, objective, bound)
assert largest(1)[0] == largest(1e-6, absolute_gap_limit=0.0)[0] == 10
assert cp_model.CpSolver().parameters.absolute_gap_limit == 1e-4
value, objective, bound = makespan(1e-6)
print(makespan(1e-6), makespan(1), makespan(1e-6, absolute_gap_limit=0.0))
assert value > 17 and bound < objective, (value, objective, bound)
assert makespan(1)[0] == makespan(1e-6, absolute_gap_limit=0.0)[0] == 17
print("as stated: OPTIMAL makespan in seconds", value, "us, in microseconds 17 us")
PY
