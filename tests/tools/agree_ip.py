"""Compare the integer programs with brute force on random graphs.

    python tests/tools/agree_ip.py --count 1000 --seed 0 [--solver highs] [--nodes 9]

Two graphs of three are those of every solver's tests, the third has two lanes, where validities
differ. For every graph and every validity: the values are equal, the bound is not above the
optimum and close below it, the independent checker accepts the plan, and no weaker validity
costs more.
Every other graph starts from a split: that of the next stronger validity, or the whole graph on
one device. Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.solver.slices import SearchResult
from dnnp.core.split.ip.solve import solve_ip
from dnnp.formats.graph import graph_of, units_of
from support.brute import brute_force
from support.cases import Case, random_case
from support.graphs import random_stream

VALIDITIES = ("ordered", "convex", "free")
ROUNDING = 1e-9
BOUND_GAP = 5e-6
"""Largest relative distance of a bound below the optimum."""


def mixed_case(seed: int, most: int = 9, **fixed: object) -> Case:
    """A random problem; every third one has two lanes."""
    return lanes_case(seed, most) if seed % 3 == 2 else random_case(seed, most, **fixed)


def lanes_case(seed: int, most: int = 9) -> Case:
    """Two chains with some edges between them, few devices, cheap transfers and dear ones.

    Contiguity costs something in a quarter of these, order in some.
    """
    rng = random.Random(f"lanes {seed}")
    stream = random_stream(seed, rng.randint(min(4, most), most))
    nodes = stream.get("node")
    last: list[int | None] = [None, None]
    for node in nodes:
        lane = rng.randrange(2)
        before = {last[lane], last[1 - lane] if rng.random() < 0.35 else None} - {None}
        node["inputs"] = sorted(nodes[u]["outputs"][0] for u in before) or [0]
        last[lane] = node["id"]
        node["time_s"] = {"dev": rng.choice([0, rng.randint(1, 30), rng.randint(1, 30)])}
    for tensor in stream.get("tensor"):
        tensor["transfer_s"] = rng.choice([0, 0, 1, 2, 8, 20])
    graph = graph_of(stream)
    devices = (DeviceClass("dev", count=rng.randint(2, 3)),)
    options = CostOptions(
        comm=rng.choice(["sum", "duplex", "overlap"]),
        memory_model="sum",
        charge_io=rng.random() < 0.2,
    )
    return Case(seed, graph, units_of(stream, graph), devices, options)


def disagreements(case: Case, solver: str = "cbc", counts: Counter[str] | None = None) -> list[str]:
    """Faults of the programs' answers to one problem."""
    found: list[str] = []
    counts = Counter() if counts is None else counts
    stronger: tuple[float, list[Block]] | None = None
    for validity in VALIDITIES:
        want, _ = brute_force(case.problem, validity)
        start = None
        if case.seed % 2:
            nodes = np.asarray(case.graph.order)
            start = stronger[1] if stronger else [Block(nodes, case.devices[0])]
        try:
            result = solve_ip(
                case.problem,
                validity,
                solver=solver,
                incumbent=start,
            )
        except InfeasibleError:
            counts["infeasible"] += 1
            if want < math.inf:
                found.append(f"{validity}: infeasible, but there is a split of {want}")
            continue
        counts[result.status] += 1
        value, wrong = _judged(case, result, validity, want)
        found += [f"{validity}: {reason}" for reason in wrong]
        if stronger and value > stronger[0] * (1 + ROUNDING):
            found.append(f"{validity}: {value} is above {stronger[0]} of a stronger validity")
        stronger = value, result.solution or []
    return found


def _judged(
    case: Case, result: SearchResult[list[Block]], validity: str, want: float
) -> tuple[float, list[str]]:
    """The value of a result, and what is wrong with it."""
    wrong = []
    plan = make_plan(
        case.problem,
        result.solution or [],
        method="ip",
        bound=result.bound,
        digest="0" * 64,
    )
    report = check_plan(case.graph, case.units, plan)
    wrong += [str(v) for v in report.violations]
    if VALIDITIES.index(report.validity) > VALIDITIES.index(validity):
        wrong.append(f"the split is {report.validity}")
    if not math.isclose(plan.value, want, rel_tol=ROUNDING, abs_tol=1e-300):
        wrong.append(f"{plan.value}, brute force {want}")
    if result.status != "optimal":
        wrong.append(f"status {result.status} {result.failure}")
    if result.bound > want * (1 + 1e-12):
        wrong.append(f"bound {result.bound} above the optimum {want}")
    if result.bound < want * (1 - BOUND_GAP):
        wrong.append(f"bound {result.bound} far below the optimum {want}")
    return plan.value, wrong


def main() -> int:
    """Run the comparison and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="number of graphs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--nodes", type=int, default=9, help="most nodes of a graph")
    parser.add_argument("--solver", choices=("cbc", "highs"), default="cbc")
    parser.add_argument("--replicas", type=int, help="fix the most replicas of a stage")
    args = parser.parse_args()
    fixed = {} if args.replicas is None else {"max_replicas": args.replicas}
    counts: Counter[str] = Counter()
    wrong = 0
    begin = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        case = mixed_case(seed, args.nodes, **fixed)
        reasons = disagreements(case, args.solver, counts)
        wrong += bool(reasons)
        for reason in reasons:
            print(f"seed {seed}: {reason}", flush=True)
    told = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    elapsed = time.monotonic() - begin
    print(f"{args.count} graphs, {wrong} disagree; {told}; {args.solver}, {elapsed:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
