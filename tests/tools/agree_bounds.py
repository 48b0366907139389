"""Compare every argument for a lower bound with brute force on random graphs.

    python tests/tools/agree_bounds.py --count 2000 --seed 0 [--solver highs] [--nodes 8] [--kinds]
        [--validity free] [--only NAME ...]

Half of the graphs run on one class of accelerators under `sum`, which all arguments know; the
others are those of every solver's tests: several classes, CPUs, memory, replicas, colours, all
ways to combine loads, both objectives of training. For each graph, a validity in turn: no
claim is above the optimum, nor below the simple bound once judged; what is solved is in the order
of the hierarchy (simple <= no-dag <= bottleneck <= exact, simple <= no-io <= bottleneck,
simple <= guess <= exact); every certificate that can be checked is verified. Every other graph
starts from a poor split. With `--validity free` or `convex` the split that `auto` finds is compared
too: value, bound, and what the checker says. Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import FAILED, REFUSED, SOLVED, BoundTask, LowerBound
from dnnp.core.certificates.certificate import REFUTED, VERIFIED, check_certificate
from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.plan import VALIDITIES as STRENGTHS
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions
from dnnp.core.split.auto import solve
from dnnp.formats.bounds import storable
from support.brute import brute_force
from support.cases import accelerators_case, random_case

CHAINS = (
    ("simple", "no-dag", "bottleneck", "exact"),
    ("simple", "no-io", "bottleneck"),
    ("simple", "guess", "exact"),
)
VALIDITIES = ("ordered", "convex", "ordered", "free")
SPLIT_EFFORT = 0.1
ROUNDING = 1e-9
CLOSE = 1e-5
"""Relative: solvers' tolerances."""

LIMIT_S = 20.0
"""Seconds for one argument; far more than these graphs need."""


def disagreements(
    seed: int,
    nodes: int,
    solver: str,
    counts: Counter[str],
    asked: str | None = None,
    only: Collection[str] = (),
) -> list[str]:
    """Faults of the bounds of one random problem."""
    case = accelerators_case(seed, nodes) if seed % 2 else random_case(seed, nodes)
    validity = asked or VALIDITIES[seed // 2 % len(VALIDITIES)]
    problem = SplitProblem(case.graph, case.units, case.devices, case.options)
    least, blocks = brute_force(case.problem, validity)
    if math.isinf(least):
        counts["infeasible"] += 1
        return []
    start = blocks if seed // 8 % 2 else poor(problem) or blocks
    known = BoundTask(validity, start, problem.value(start), solver=solver)
    # Live memory depends on the order of a block's nodes, which brute force does not vary.
    loose = case.options.memory_model == "peak"
    wrong = []
    claims = {}
    for name, argument in BOUNDS.items():
        if not argument.where or (only and name not in only):
            continue
        try:
            claim = argument.function()(problem, known, PLAIN.within(LIMIT_S))
        except UsageError:
            claim = LowerBound(0.0, REFUSED)
        claims[name] = claim
        counts[f"{name}: {claim.status}"] += 1
        counts[f"{name} optimal"] += claim.value >= least * (1 - CLOSE)
        if claim.value > least * (1 + ROUNDING) and not loose:
            wrong.append(f"{name}: {claim.value!r} above {least!r}")
        if claim.status == FAILED:
            wrong.append(f"{name}: failed: {claim.reason}")
        wrong += unverified(problem, validity, name, claim, counts)
    for chain in CHAINS:
        there = [name for name in chain if name in claims and claims[name].status == SOLVED]
        for weaker, stronger in pairwise(there):
            low, high = claims[weaker].value, claims[stronger].value
            if low > max(high, claims["simple"].value) * (1 + CLOSE):
                wrong.append(f"{weaker}: {low!r} above {stronger}: {high!r}")
    if asked and not loose:
        wrong += split_by_auto(problem, asked, least, counts)
    if only:
        return wrong
    proof = bound(problem, known)
    counts["auto optimal"] += proof.claim.value >= least * (1 - CLOSE)
    if proof.claim.value > least * (1 + ROUNDING) and not loose:
        wrong.append(f"auto: {proof.claim.value!r} above {least!r}")
    simple = proof.tried[0].value or 0.0
    below = [t.method for t in proof.tried if t.value is not None and t.value < simple]
    return wrong + [f"{name} reported below the simple bound" for name in below]


def split_by_auto(
    problem: SplitProblem, validity: str, least: float, counts: Counter[str]
) -> list[str]:
    """Faults of the split that `auto` finds where the least value is `least`."""
    try:
        found = solve(problem, MethodOptions(validity=validity), PLAIN.scaled(SPLIT_EFFORT))
    except (InfeasibleError, LimitError) as error:
        return [f"split: {error}, but there is one of {least!r}"]
    plan = problem.plan(found.blocks)
    counts["split optimal"] += plan.value <= least * (1 + ROUNDING)
    counts["split proven"] += found.bound >= plan.value * (1 - CLOSE)
    wrong = [f"split: {v}" for v in check_plan(problem.graph, problem.units, plan).violations]
    if plan.value < least * (1 - ROUNDING) or found.bound > least * (1 + ROUNDING):
        wrong.append(f"split: {plan.value!r} and bound {found.bound!r} for {least!r}")
    if STRENGTHS.index(plan.validity) < STRENGTHS.index(validity):
        wrong.append(f"split: {plan.validity}, not {validity}")
    return wrong


def poor(problem: SplitProblem) -> list[Block] | None:
    """Everything on the first device, if it fits."""
    try:
        blocks = [Block(problem.graph.order, problem.devices[0])]
        problem.value(blocks)
    except InfeasibleError:
        return None
    return blocks


def unverified(
    problem: SplitProblem, validity: str, name: str, claim: LowerBound, counts: Counter[str]
) -> list[str]:
    """True if a certificate that can be checked is refused."""
    if claim.certificate is None or claim.value <= 0:
        return []
    record = {
        "method": name,
        "value": claim.value,
        "validity": validity,
        "certificate": storable(claim.certificate),
    }
    report = check_certificate(
        problem.graph, problem.units, problem.devices, problem.options, record
    )
    counts[f"certificates {report.verdict}"] += 1
    return [f"{name}: {violation}" for violation in report.violations]


def verdict(problem: SplitProblem, validity: str, claim: LowerBound) -> str:
    """The checker's verdict on a lower bound."""
    record = {"value": claim.value, "validity": validity}
    record["certificate"] = storable(claim.certificate) if claim.certificate else None
    given = problem.graph, problem.units, problem.devices, problem.options
    return check_certificate(*given, record).verdict


def kind_of_proof(
    problem: SplitProblem, validity: str, blocks: list[Block], counts: Counter[str]
) -> list[str]:
    """Count what `auto` proves with; wrong is one that cannot be checked where another can."""
    known = BoundTask(validity, blocks, problem.value(blocks))
    proof = bound(problem, known)
    said = verdict(problem, validity, proof.claim)
    closed = "optimal" if proof.claim.value >= proof.value * (1 - ROUNDING) else "gap"
    kind = f"{proof.method} {problem.options.objective} {closed} {said}"
    counts[kind] += 1
    if said in (VERIFIED, REFUTED):
        return [] if said == VERIFIED else [kind]
    others = []
    best = replace(known, blocks=proof.blocks or blocks, value=proof.value)
    for name, argument in BOUNDS.items():
        if not argument.where or name == proof.method:
            continue
        try:
            claim = argument.function()(problem, best, PLAIN.within(LIMIT_S))
        except (UsageError, InfeasibleError):
            continue
        if claim.value >= proof.claim.value * (1 - ROUNDING):
            others += [name] if verdict(problem, validity, claim) == VERIFIED else []
    if not others:
        counts[f"no other than {kind}"] += 1
    return [f"{kind}, but {', '.join(others)} can be checked"] if others else []


def random_kind(seed: int, nodes: int, counts: Counter[str]) -> list[str]:
    """The same of one random problem."""
    case = accelerators_case(seed, nodes) if seed % 4 == 0 else random_case(seed, nodes)
    validity = VALIDITIES[seed // 2 % len(VALIDITIES)]
    problem = SplitProblem(case.graph, case.units, case.devices, case.options)
    try:
        blocks = solve(problem, MethodOptions(), PLAIN.scaled(0.2)).blocks
    except (InfeasibleError, LimitError):
        return []
    return kind_of_proof(problem, validity, blocks, counts)


def main() -> int:
    """Run; 1 if anything disagrees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--kinds", action="store_true", help="only count what auto proves with")
    parser.add_argument("--solver", choices=("cbc", "highs"), default="cbc")
    parser.add_argument("--validity", choices=VALIDITIES[1:], help="of all graphs")
    parser.add_argument("--only", nargs="+", default=(), help="arguments, and not auto")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    bad = 0
    started = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        if args.kinds:
            wrong = random_kind(seed, args.nodes, counts)
        else:
            wrong = disagreements(seed, args.nodes, args.solver, counts, args.validity, args.only)
        bad += bool(wrong)
        for reason in wrong:
            print(f"seed {seed}: {reason}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{name:44} {count}")
    print(f"{args.count} graphs, {bad} disagreements, {time.monotonic() - started:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
