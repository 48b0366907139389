"""Compare the exact models of latency with brute force, and with one another, on random graphs.

    python tests/tools/agree_latency.py --count 200 --seed 0 [--solvers cbc,highs,cpsat]
    python tests/tools/agree_latency.py --count 3000 --auto [--execution operators]

Every graph is split into blocks and placed operator by operator; every other one is short of
memory. The solvers find the value of brute force, with and without a solution to start from; their
bounds are not above it, and close below; what has no solution is called infeasible by all.

`--auto`: the same of method `auto`, on graphs of up to eight tasks of which some count live
tensors and some are invoked up to three times; it proves each, and the checker finds no fault, and
no plan below the bound.
Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dnnp.core.certificates.exact import Budget, UncheckedError, UnprovenError
from dnnp.core.certificates.latency import prove_latency
from dnnp.core.check.latency import LatencyCase
from dnnp.core.check.plan import check_plan
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.latency.ip.loop import formulation_of, solve_intervals, solve_model
from dnnp.core.latency.solve import solve_latency
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from support.latency_brute import brute_blocks, brute_operators
from support.latency_cases import random_problem

EXECUTIONS = ("blocks", "operators")
SOLVERS = ("cbc", "highs", "cpsat")
ROUNDING = 1e-9
BOUND_GAP = 1e-5
"""Largest relative distance of a bound below the optimum."""


def latency_case(seed: int, execution: str, most: int = 7) -> LatencyProblem:
    """A random problem; those of odd seeds are short of memory."""
    rng = random.Random(f"latency {seed} {execution}")
    blocks = execution == "blocks"
    return random_problem(
        rng,
        rng.randint(1, most),
        execution=execution,
        tight=seed % 2 == 1,
        training=rng.random() < 0.3,
        colors=rng.random() < 0.3,
        q=rng.choice([1, 1, 2]) if blocks else 1,
        transfers=rng.choice(["tensor", "tensor", "edge"]),
        congestion=rng.choice(["device", "channel", "none"]),
        links=rng.random() < 0.3,
    )


def auto_case(seed: int, execution: str, most: int = 8) -> LatencyProblem:
    """A random problem for `auto`; live tensors count in four of ten, most are short of memory."""
    rng = random.Random(f"auto {seed} {execution}")
    blocks = execution == "blocks"
    return random_problem(
        rng,
        rng.randint(1, most),
        execution=execution,
        tight=rng.random() < 0.6,
        training=rng.random() < 0.25,
        colors=rng.random() < 0.3,
        q=rng.choice([1, 2, 3]) if blocks else 1,
        transfers=rng.choice(["tensor", "edge"]),
        congestion=rng.choice(["device", "channel", "none"]),
        links=rng.random() < 0.3,
        live=rng.random() < 0.4,
    )


def auto_disagreements(problem: LatencyProblem, counts: Counter[str]) -> list[str]:
    """Faults of the answer of `auto` to one problem."""
    brute = brute_blocks if problem.options.execution == "blocks" else brute_operators
    counts["live"] += problem.live is not None and problem.live.binds
    try:
        found = solve_latency(problem, MethodOptions())
    except InfeasibleError:
        counts["infeasible"] += 1
        want, known = brute(problem)
        return [] if known is None else [f"infeasible, but there is a solution of {want}"]
    except LimitError as error:
        return [str(error)]
    by = {"bound": found.bound, "bound_method": found.bound_method, "method": found.method}
    plan = make_latency_plan(problem.whole, problem, found.split, **by)
    counts[plan.status] += 1
    wrong = [str(fault) for fault in check_plan(problem.whole.graph, None, plan).violations]
    want, better = brute(problem, plan.value * (1 - ROUNDING))
    if better is not None:
        wrong.append(f"{plan.value}, brute force {want}")
    if plan.bound > plan.value or plan.status != "optimal":
        wrong.append(f"{plan.status}, {found.bound_method} {plan.bound} of {plan.value}")
    try:
        case = LatencyCase.of(problem.whole.graph, None, plan)
        counts[f"bound verified ({prove_latency(case, plan.bound, Budget())})"] += 1
    except UncheckedError:
        counts["bound not checkable"] += 1
    except UnprovenError as reason:
        wrong.append(f"bound {plan.bound}: {reason}")
    return wrong


def installed() -> list[str]:
    """Solvers that are here."""
    needs = {"highs": "highspy", "cpsat": "ortools"}
    return [name for name in SOLVERS if name not in needs or find_spec(needs[name])]


def solve(
    problem: LatencyProblem, solver: str, start: Any = None, run: SearchContext = PLAIN
) -> Any:
    """Solve a problem exactly."""
    formulation = formulation_of(problem)
    if solver == "cpsat":
        return solve_intervals(formulation, start=start, run=run)
    return solve_model(formulation, solver=solver, start=start, run=run)


def disagreements(
    problem: LatencyProblem, solvers: list[str], counts: Counter[str] | None = None
) -> list[str]:
    """Faults of the answers to one problem."""
    counts = Counter() if counts is None else counts
    blocks = problem.options.execution == "blocks"
    want, known = (brute_blocks if blocks else brute_operators)(problem)
    found = []
    for solver in solvers:
        for start in [None] if known is None else [None, known]:
            what = f"{solver}{' from a solution' if start is not None else ''}"
            try:
                result = solve(problem, solver, start)
            except InfeasibleError:
                counts["infeasible"] += 1
                if known is not None:
                    found.append(f"{what}: infeasible, but there is a solution of {want}")
                continue
            counts[result.status] += 1
            found += [f"{what}: {reason}" for reason in _judged(problem, result, want)]
    return found


def _judged(problem: LatencyProblem, result: Any, want: float) -> list[str]:
    """Faults of a result."""
    wrong = []
    value = problem.value(result.solution)
    if value != result.value:
        wrong.append(f"says {result.value}, the solution is worth {value}")
    if not math.isclose(value, want, rel_tol=ROUNDING, abs_tol=1e-300):
        wrong.append(f"{value}, brute force {want}")
    if result.status != "optimal" or result.failure:
        wrong.append(f"status {result.status} {result.failure}")
    if result.bound > want * (1 + 1e-12):
        wrong.append(f"bound {result.bound} above the optimum {want}")
    if result.bound < want * (1 - BOUND_GAP):
        wrong.append(f"bound {result.bound} far below the optimum {want}")
    return wrong


def main() -> int:
    """Run the comparison and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="number of graphs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--nodes", type=int, default=7, help="most nodes of a graph; 8 with --auto")
    parser.add_argument("--solvers", default="", help="among cbc, highs, cpsat; all that are here")
    parser.add_argument("--auto", action="store_true", help="compare method auto")
    parser.add_argument("--execution", choices=EXECUTIONS, help="one of them only")
    args = parser.parse_args()
    solvers = ["auto"] if args.auto else args.solvers.split(",") if args.solvers else installed()
    counts: Counter[str] = Counter()
    wrong = 0
    begin = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        for execution in [args.execution] if args.execution else EXECUTIONS:
            if args.auto:
                reasons = auto_disagreements(auto_case(seed, execution), counts)
            else:
                reasons = disagreements(latency_case(seed, execution, args.nodes), solvers, counts)
            wrong += bool(reasons)
            for reason in reasons:
                print(f"seed {seed}, {execution}: {reason}", flush=True)
    told = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    elapsed = time.monotonic() - begin
    print(f"{args.count} graphs, {wrong} disagree; {told}; {', '.join(solvers)}, {elapsed:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
