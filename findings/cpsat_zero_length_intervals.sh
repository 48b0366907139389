#!/usr/bin/env bash
# Libraries: ortools 9.15.6755 (CP-SAT, Python 3.11).
# Expected:  no_overlap is cumulative with capacity 1 and demands of 1: one device, one task at a time. A task that asks for 5 of a
#            capacity of 1 is infeasible.
# Happens:   they differ on tasks of length 0. no_overlap forbids one within another task (at its ends it may lie), cumulative allows
#            it there, and allows a demand of 5 on a capacity of 1. A schedule of four tasks ends at 16 with one and at 13
#            with the other, both OPTIMAL.
# Matters:   graphs are full of operators that cost nothing (Reshape, Identity), and both constraints are the textbook's "one
#            device": optimum and bound depend on which was taken. Give such tasks no interval, or lengthen them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q ortools==9.15.6755 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
from ortools.sat.python import cp_model


def solve(model):
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return solver.status_name(status), int(solver.objective_value) if status == cp_model.OPTIMAL else None


def one_device(model, intervals, constraint):
    if constraint == "no_overlap":
        model.add_no_overlap(intervals)
    else:
        model.add_cumulative(intervals, [1] * len(intervals), 1)


def within(at, length, constraint):
    model = cp_model.CpModel()
    intervals = [model.new_fixed_size_interval_var(0, 6, "long"), model.new_fixed_size_interval_var(at, length, "short")]
    one_device(model, intervals, constraint)
    return solve(model)[0]


def schedule(constraint):
    """One device: "long" of 6 from 0, "view" of 0 not before 3, "last" of 5; after the view, 10 on another device."""
    model = cp_model.CpModel()
    lengths = {"long": 6, "view": 0, "last": 5}
    starts = {name: model.new_int_var(0, 20, name) for name in lengths}
    one_device(model, [model.new_fixed_size_interval_var(starts[n], lengths[n], n) for n in lengths], constraint)
    end = model.new_int_var(0, 40, "end")
    model.add(starts["long"] == 0)
    model.add(starts["view"] >= 3)
    model.add(end >= starts["view"] + 10)
    for name, length in lengths.items():
        model.add(end >= starts[name] + length)
    model.minimize(end)
    return solve(model)


for constraint in ("no_overlap", "cumulative"):
    assert within(3, 1, constraint) == "INFEASIBLE"
    assert within(0, 0, constraint) == within(6, 0, constraint) == "OPTIMAL"
assert within(3, 0, "no_overlap") == "INFEASIBLE" and within(3, 0, "cumulative") == "OPTIMAL"
assert schedule("no_overlap") == ("OPTIMAL", 16) and schedule("cumulative") == ("OPTIMAL", 13)
for length, status in ((1, "INFEASIBLE"), (0, "OPTIMAL")):
    model = cp_model.CpModel()
    model.add_cumulative([model.new_fixed_size_interval_var(3, length, "task")], [5], 1)
    assert solve(model)[0] == status, length
print("as stated: the end is", schedule("no_overlap")[1], "by no_overlap,", schedule("cumulative")[1], "by cumulative")
PY
