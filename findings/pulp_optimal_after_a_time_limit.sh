#!/usr/bin/env bash
# Libraries: PuLP 3.3.2 with its CBC and highspy 1.16.0, python-mip 2.0.0 (Python 3.11).
# Expected:  LpStatus of a problem says "Optimal" where optimality was proven, and something else where the time limit ended the search.
#            Names that PuLP makes legal stay apart, or are refused where they are given.
# Happens:   with timeLimit reached and a solution at hand, status is 1, "Optimal", for CBC and for HiGHS; sol_status alone tells, by
#            2 ("Solution Found") in the place of 1. python-mip says FEASIBLE for the same program and CBC. Variables
#            "/a-b" and "/a_b" become "_a_b" both, with a warning: HiGHS solves it, CBC's command fails with an error that does not
#            name the cause, and equal names of rules are refused at once.
# Matters:   plans are published as optimal that are only what the limit left, and variables named after nodes of a model, with
#            slashes and dashes, collide for one solver and not for the other.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q pulp==3.3.2 highspy==1.16.0 mip==2.0.0 cbcbox==2.935 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import random
import warnings

import mip
import pulp

DEVICES, COUNT, LIMIT = 9, 150, 2
draw = random.Random(7)
times = [draw.randint(10**6, 10**7) for _ in range(COUNT)]


def split():
    problem = pulp.LpProblem("split", pulp.LpMinimize)
    on = [[pulp.LpVariable(f"x{i}_{d}", cat="Binary") for d in range(DEVICES)] for i in range(COUNT)]
    most = pulp.LpVariable("most", 0)
    problem += most
    for row in on:
        problem += pulp.lpSum(row) == 1
    for d in range(DEVICES):
        problem += pulp.lpSum(t * row[d] for t, row in zip(times, on)) <= most
    return problem, most


solvers = {"CBC": pulp.PULP_CBC_CMD(msg=False, timeLimit=LIMIT, gapRel=0), "HiGHS": pulp.HiGHS(msg=False, timeLimit=LIMIT, gapRel=0)}
for name, solver in solvers.items():
    problem, most = split()
    status = problem.solve(solver)
    assert pulp.LpStatus[status] == pulp.LpStatus[problem.status] == "Optimal", (name, status)
    assert problem.sol_status == pulp.LpSolutionIntegerFeasible != pulp.LpSolutionOptimal, (name, problem.sol_status)

program = mip.Model(solver_name="CBC")
program.verbose = 0
program.max_mip_gap = 0
on = [[program.add_var(var_type="B") for _ in range(DEVICES)] for _ in range(COUNT)]
most = program.add_var()
program.objective = mip.minimize(most)
for row in on:
    program += mip.xsum(row) == 1
for d in range(DEVICES):
    program += mip.xsum(t * row[d] for t, row in zip(times, on)) <= most
assert program.optimize(max_seconds=LIMIT) == mip.OptimizationStatus.FEASIBLE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    a, b = pulp.LpVariable("/a-b", 1), pulp.LpVariable("/a_b", 2)
assert a.name == b.name == "_a_b"
problem = pulp.LpProblem("names", pulp.LpMinimize)
problem += a + b
problem += a + b >= 4
assert pulp.LpStatus[problem.solve(solvers["HiGHS"])] == "Optimal" and a.value() + b.value() == 4
try:
    problem.solve(solvers["CBC"])
except pulp.PulpSolverError as error:
    assert "Error while" in str(error) and "_a_b" not in str(error), error
else:
    raise AssertionError("CBC takes equal names")
print("as stated: Optimal after the limit, by CBC and HiGHS; equal names fail by CBC alone")
PY
