"""Compare the exact search with brute force and the other solvers on random graphs.

    python tests/tools/agree.py --count 1000 --seed 0
    python tests/tools/agree.py --contract --count 2000
    python tests/tools/agree.py --orders --count 1000

For every graph: the ideal search has the value and the bound of brute force over ordered splits,
with and without a guess; on every tenth graph so has the integer program; annealing is never
below brute force over free splits; linearisation (DPL) is never below the optimum, and on a
chain drawn from the same seed equal to it; the independent checker accepts every plan.

With `--contract` the ideal search runs with and without safe contractions, from several guesses,
which may make more contractions safe; values and bounds must be equal.

With `--orders` one random order is sliced: the value is that of all cuts, of the ideal search
kept to that order, and of the table of segment costs. On every fourth graph the priorities of an
optimal split (MTPP Theorem 3.4) recover the optimum.

Prints a line for every disagreement and one in the end; exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.items import steps_of
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Ints, singletons
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.core.split.auto import solve
from dnnp.core.split.ideals.search import IdealResult, ideal_search
from dnnp.core.split.ip.solve import solve_ip
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.decoder import prioritised_order
from support.ablation import no_contraction
from support.brute import brute_force
from support.cases import Case, random_case
from support.matrix import segment_costs, slice_matrix
from support.problems import chain, problem_of
from support.slicing import (
    best_cuts,
    line_of,
    optimum_and_priorities,
    random_order_of,
    searched_in_order,
)

ROUNDING = 1e-9
IP_EVERY = 10
RECOVER_EVERY = 4
ANNEAL_EFFORT = 0.02
GUESSES = (1.0 + 1e-9, 1.001, 1.2, 2.0)
"""Guesses of `--contract`, in optima: from those that rule out almost everything."""


class Judge:
    """Collects what is wrong with one case."""

    def __init__(self, case: Case, counts: Counter[str]) -> None:
        self.case, self.counts = case, counts
        self.wrong: list[str] = []
        self.problem = SplitProblem(case.graph, case.units, case.devices, case.options)

    def value(self, name: str, blocks: list[Block], validity: tuple[str, ...]) -> float:
        """Objective of a split that the checker has judged."""
        case = self.case
        plan = make_plan(
            case.problem,
            blocks,
            method="test",
            bound=0.0,
            digest="0" * 64,
        )
        violations = check_plan(case.graph, case.units, plan).violations
        self.wrong += [f"{name}: {v}" for v in violations]
        self.expect(plan.validity in validity, f"{name}: the split is {plan.validity}")
        return plan.value

    def run(self, name: str, run: SearchContext = PLAIN, **asked: Any) -> float:
        """Objective that a method reaches; inf if it finds nothing."""
        validity = ("ordered", "convex", "free") if name == "anneal" else ("ordered",)
        try:
            found = solve(self.problem, MethodOptions(method=name, **asked), run)
        except InfeasibleError:
            return math.inf
        return self.value(name, found.blocks, validity)

    def expect(self, good: bool, reason: str) -> None:
        """Note what is wrong, if it is not good."""
        if not good:
            self.wrong.append(reason)

    def search(self, name: str, expected: float, guess: float = math.inf) -> None:
        """The ideal search finds and proves a value."""
        case = self.case
        found = ideal_search(case.problem, incumbent=guess)
        if found.blocks is not None:
            reached = self.value(name, found.blocks, ("ordered",))
            self.expect(same(reached, found.value), f"{name}: says {found.value}, is {reached}")
        self.expect(same(found.value, expected), f"{name}: {found.value}, not {expected}")
        self.expect(
            found.bound <= expected * (1 + ROUNDING), f"{name}: bound {found.bound} > {expected}"
        )
        # Live memory depends on the order of a block's nodes, so the proof may fall short.
        if case.options.memory_model == "sum":
            self.expect(same(found.bound, expected), f"{name}: bound {found.bound} < {expected}")


def same(a: float, b: float) -> bool:
    """True if two objectives differ by rounding only."""
    return a == b or math.isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-12)


def disagreements(seed: int, nodes: int, counts: Counter[str]) -> list[str]:
    """Faults of the solvers' answers to one random problem."""
    case = random_case(seed, nodes)
    judge = Judge(case, counts)
    problem = case.problem
    least, _ = brute_force(problem)
    counts["infeasible"] += least == math.inf
    judge.search("search", least)
    if least < math.inf:
        judge.search("search with a guess", least, 1.001 * least + 1e-3)
    if seed % IP_EVERY == 0:
        counts["integer programs"] += 1
        try:
            result = solve_ip(problem, "ordered")
        except InfeasibleError:
            judge.expect(least == math.inf, f"ip: infeasible, not {least}")
        else:
            reached = judge.value("ip", result.solution or [], ("ordered",))
            judge.expect(same(reached, least), f"ip: {reached}, not {least}")
    sliced = judge.run("dpl")
    # Brute force knows one order of a block's nodes, on which live memory depends.
    all_orders = case.options.memory_model == "sum"
    reaches = sliced >= least * (1 - ROUNDING) or not all_orders
    judge.expect(reaches, f"dpl: {sliced} below {least}")
    any_split, _ = brute_force(problem, "free")
    judge.expect(any_split <= least * (1 + ROUNDING), f"free optimum {any_split} above {least}")
    annealed = judge.run("anneal", SearchContext(effort=ANNEAL_EFFORT), validity="free")
    reaches = annealed >= any_split * (1 - ROUNDING) or not all_orders
    judge.expect(reaches, f"anneal: {annealed} below {any_split}")
    counts["annealed to the optimum"] += same(annealed, any_split)
    return judge.wrong + chain_disagreements(seed, counts)


def chain_disagreements(seed: int, counts: Counter[str]) -> list[str]:
    """On a chain there is one order, so slicing it is exact."""
    rng = random.Random(f"chain {seed}")
    times = [rng.choice([0.0, 1.0, 3.0, rng.uniform(0, 20)]) for _ in range(rng.randint(1, 12))]
    graph = chain(*times, transfer=rng.choice([0.0, 0.5, 4.0]), memory_bytes=rng.randint(0, 10))
    devices = [DeviceClass("dev", count=rng.randint(1, 5), memory_bytes=rng.choice([math.inf, 30]))]
    if rng.random() < 0.4:
        devices.append(DeviceClass("cpu", kind="cpu", count=rng.randint(1, 2)))
    comm = rng.choice(["sum", "overlap", "duplex"])
    problem = problem_of(graph, *devices, comm=comm, memory_model="sum")
    judge = Judge(
        Case(seed, problem.graph, problem.units, problem.devices, problem.options), counts
    )
    expected = judge.run("dpl")
    counts["feasible chains"] += expected < math.inf
    judge.search("search on a chain", expected)
    return judge.wrong


def contraction_disagreements(seed: int, nodes: int, counts: Counter[str]) -> list[str]:
    """True if contraction changes the result of the ideal search, or its proof."""
    case = light_case(seed, nodes) if seed % 2 else random_case(seed, nodes)
    judge = Judge(case, counts)
    problem = case.problem
    with no_contraction():
        plain = ideal_search(problem)
    short = ideal_search(problem)
    compare(judge, "contracted", plain, short)
    counts["fewer ideals"] += short.ideals < plain.ideals
    if not 0 < plain.value < math.inf:
        return judge.wrong
    for factor in GUESSES:
        guess = plain.value * factor
        short = ideal_search(problem, incumbent=guess)
        with no_contraction():
            whole = ideal_search(problem, incumbent=guess)
        compare(judge, f"contracted below {factor:g}", whole, short)
        counts["fewer ideals with a guess"] += short.ideals < whole.ideals
        judge.expect(same(short.value, plain.value), f"{factor:g}: {short.value}")
    return judge.wrong


def order_disagreements(seed: int, nodes: int, counts: Counter[str]) -> list[str]:
    """True if slicing one order is exact, and priorities recover an optimal split."""
    case = random_case(seed, nodes, max_replicas=1, objective="throughput")
    judge = Judge(case, counts)
    order = random_order_of(case, seed)
    expected = best_cuts(case, order)
    counts["infeasible orders"] += expected == math.inf
    answers = {"slicing": sliced(judge, order), "search": searched_in_order(case, order)}
    if len(case.devices) == 1:
        counts["tables"] += 1
        answers["table"] = tabulated(case, order)
    for name, value in answers.items():
        judge.expect(same(value, expected), f"{name}: {value}, not {expected}")
    if seed % RECOVER_EVERY:
        return judge.wrong
    case = random_case(
        seed, nodes, max_replicas=1, objective="throughput", training=False, memory_model="sum"
    )
    again = Judge(case, counts)
    optimum, priorities = optimum_and_priorities(case)
    if priorities is not None:
        counts["optima recovered"] += 1
        value = sliced(again, prioritised_order(case.problem, priorities))
        again.expect(same(value, optimum), f"recovered: {value}, not {optimum}")
    return judge.wrong + again.wrong


def sliced(judge: Judge, order: Ints) -> float:
    """Value of the best slicing of an order; inf if nothing fits."""
    case = judge.case
    try:
        blocks = best_slicing(case.problem, order)
    except InfeasibleError:
        return math.inf
    return judge.value("slicing", blocks, ("ordered",))


def tabulated(case: Case, order: Ints) -> float:
    """Value of the best slicing of an order by the table of segment costs."""
    line, options = line_of(case, order), case.options
    steps = steps_of(case.graph, line, options) if options.memory_mode == "overflow" else None
    try:
        return slice_matrix(segment_costs(line, options.comm, 0, steps), case.devices[0].count)[0]
    except InfeasibleError:
        return math.inf


def light_case(seed: int, nodes: int) -> Case:
    """A random problem most nodes of which take little time, so that they can be contracted."""
    case = random_case(seed, nodes)
    rng = np.random.default_rng(seed)
    light = np.where(rng.random(case.graph.n) < 0.7, rng.choice([0.0, 0.1], case.graph.n), 1.0)
    times = {
        name: np.where(np.isinf(time), np.inf, light * np.nan_to_num(time))
        for name, time in case.graph.times.items()
    }
    graph = replace(case.graph, times=times)
    return replace(case, graph=graph, units=singletons(graph))


def compare(judge: Judge, name: str, plain: IdealResult, short: IdealResult) -> None:
    """Value, bound and the split itself."""
    judge.expect(same(plain.value, short.value), f"{name}: {short.value}, not {plain.value}")
    if judge.case.options.memory_model == "sum":
        judge.expect(same(plain.bound, short.bound), f"{name}: {short.bound}, not {plain.bound}")
    if short.blocks is not None:
        reached = judge.value(name, short.blocks, ("ordered",))
        judge.expect(same(reached, short.value), f"{name}: says {short.value}, is {reached}")


def main() -> int:
    """Run the comparison and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="number of graphs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--nodes", type=int, help="most nodes (9; with --contract 12)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--contract", action="store_true", help="compare with and without safe contractions"
    )
    what.add_argument(
        "--orders", action="store_true", help="slice one order in several ways, recover optima"
    )
    args = parser.parse_args()
    name, test, nodes = "solvers", disagreements, args.nodes or 9
    if args.contract:
        name, test, nodes = "contraction", contraction_disagreements, args.nodes or 12
    elif args.orders:
        name, test = "orders", order_disagreements
    counts: Counter[str] = Counter()
    wrong = 0
    begin = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        reasons = test(seed, nodes, counts)
        wrong += bool(reasons)
        for reason in reasons:
            print(f"seed {seed}: {reason}", flush=True)
    told = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    elapsed = time.monotonic() - begin
    print(f"{name}: {args.count} graphs, {wrong} disagree; {told}; {elapsed:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
