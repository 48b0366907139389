#!/usr/bin/env bash
# Libraries: scipy 1.17.1 (sparse.csgraph), ortools 9.15.6755 (graph), numpy 2.4.6; networkx 3.6.1 as the reference (Python 3.11).
# Expected:  solvers of flows and assignments compute with the numbers that they are given, or refuse their type. scipy's maximum_flow
#            refuses float64 by name and takes int64; OR-Tools' functions for one arc refuse floats.
# Happens:   scipy reduces int64 capacities modulo 2**32 to signed 32 bits without a word: 10_000_000_000 flows as 1_410_065_408,
#            4_294_967_297 as 1, 3_000_000_000 not at all. The value of a flow has 64 bits: sums beyond 2**31 are right.
#            OR-Tools' functions for arrays of arcs cut floats off: costs of 0.9 and 0.1 are both 0, the dear arc is
#            taken, status OPTIMAL, cost 0; the cheapest assignment comes out as the dearest.
# Matters:   a minimum cut between stages by bytes finds the edge of 3 GB free and cuts there; a transport by seconds is free. Give
#            whole numbers in units of which 2**31 are enough, and recompute the result.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q scipy==1.17.1 ortools==9.15.6755 numpy==2.4.6 networkx==3.6.1 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import networkx
import numpy as np
from ortools.graph.python import linear_sum_assignment, max_flow, min_cost_flow
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow


def both(edges, count):
    matrix = np.zeros((count, count), np.int64)
    graph = networkx.DiGraph()
    for tail, head, capacity in edges:
        matrix[tail, head] = capacity
        graph.add_edge(tail, head, capacity=capacity)
    methods = {int(maximum_flow(csr_array(matrix), 0, count - 1, method=m).flow_value) for m in ("dinic", "edmonds_karp")}
    return methods, networkx.maximum_flow_value(graph, 0, count - 1)


try:
    maximum_flow(csr_array(np.array([[0, 1.5], [0, 0]])), 0, 1)
except ValueError as error:
    assert "must be integers" in str(error), error
else:
    raise AssertionError("float capacities were taken")

assert both([(0, 1, 2**31 - 1)], 2) == ({2**31 - 1}, 2**31 - 1)
assert both([(0, 1, 2**32 + 1)], 2) == ({1}, 2**32 + 1)
assert both([(0, 1, 10**10)], 2) == ({10**10 - 2**33}, 10**10)
assert both([(0, 1, 3 * 10**9)], 2) == ({0}, 3 * 10**9)
assert both([(0, i, 2 * 10**9) for i in (1, 2, 3)] + [(i, 4, 2 * 10**9) for i in (1, 2, 3)], 5) == ({6 * 10**9}, 6 * 10**9)
# the cut: the 2-GB tensor is the cheaper one, yet the 3-GB tensor carries no flow at all and stands for the cut
assert both([(0, 1, 3 * 10**9), (1, 2, 2 * 10**9)], 3) == ({0}, 2 * 10**9)


def column(*values):
    return np.array(values)


try:
    max_flow.SimpleMaxFlow().add_arc_with_capacity(0, 1, 2.9)
except TypeError:
    pass
else:
    raise AssertionError("OR-Tools takes a float for one arc")
flow = max_flow.SimpleMaxFlow()
flow.add_arcs_with_capacity(column(0), column(1), column(2.9))
assert flow.solve(0, 1) == flow.OPTIMAL and flow.optimal_flow() == 2
flow = min_cost_flow.SimpleMinCostFlow()
flow.add_arcs_with_capacity_and_unit_cost(column(0, 0), column(1, 1), column(5, 5), column(0.9, 0.1))
flow.set_nodes_supplies(column(0, 1), column(5, -5))
assert flow.solve() == flow.OPTIMAL
assert flow.optimal_cost() == 0 and [flow.flow(0), flow.flow(1)] == [5, 0]
match = linear_sum_assignment.SimpleLinearSumAssignment()
match.add_arcs_with_cost(column(0, 0, 1, 1), column(0, 1, 0, 1), column(0.9, 0.1, 0.1, 0.9))
assert match.solve() == match.OPTIMAL and match.optimal_cost() == 0
assert [match.right_mate(0), match.right_mate(1)] == [0, 1]
print("as stated: scipy: 10**10 flows as", both([(0, 1, 10**10)], 2)[0].pop(), "- OR-Tools: 5 units at 0.9 cost", flow.optimal_cost())
PY
