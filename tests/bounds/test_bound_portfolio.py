"""Arguments for bounds by name, and the order in which they are tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from dnnp.core.bounds import auto as bounds
from dnnp.core.bounds.auto import (
    AUTO,
    CLOSED,
    FEW,
    FEW_AUTO,
    LINKED,
    MANY_AUTO,
    SMALL_AUTO,
    Proof,
    Step,
    bound,
)
from dnnp.core.bounds.lower_bound import FAILED, LIMIT, REFUSED, SOLVED, BoundTask, LowerBound
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.errors import InfeasibleError, UnavailableError, UsageError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from support.brute import brute_force
from support.cases import random_case

SEEDS = range(60)
ROUNDING = 1e-9
CHEAP = [name for name, argument in BOUNDS.items() if argument.where and not argument.share]


class Argument(NamedTuple):
    """One that is made up, in the place of one of the table."""

    prove: Callable[[SplitProblem, BoundTask, SearchContext], LowerBound]
    share: float = 0.0

    def function(self) -> Callable[[SplitProblem, BoundTask, SearchContext], LowerBound]:
        """As that of a `Method`."""
        return self.prove


def solved(seed: int, validity: str = "ordered") -> tuple[SplitProblem, BoundTask] | None:
    """A random problem with an optimal split, or None if none fits."""
    case = random_case(seed, 7)
    value, blocks = brute_force(case.problem, validity)
    if math.isinf(value):
        return None
    problem = case.problem
    return problem, BoundTask(validity, blocks, problem.value(blocks))


def single(problem: SplitProblem) -> BoundTask | None:
    """The split with everything on the first device, if it fits."""
    try:
        blocks = [Block(problem.graph.order, problem.devices[0])]
        return BoundTask("ordered", blocks, problem.value(blocks))
    except InfeasibleError:
        return None


@pytest.mark.parametrize("validity", ["ordered", "convex", "free"])
def test_no_argument_exceeds_the_optimum(validity):
    tested = 0
    for seed in SEEDS:
        case = solved(seed, validity)
        if case is None:
            continue
        problem, known = case
        for name in CHEAP:
            try:
                claim = BOUNDS[name].function()(problem, known, PLAIN)
            except UsageError:
                continue
            assert claim.value <= known.value * (1 + ROUNDING), (seed, name)
            assert claim.status in (SOLVED, LIMIT, REFUSED, FAILED)
            tested += claim.value > 0
    assert tested > len(SEEDS)


def test_auto_proves_small_problems_optimal():
    counted = 0
    for seed in SEEDS:
        case = solved(seed)
        if case is None:
            continue
        problem, known = case
        proof = bound(problem, known)
        assert proof.value == known.value
        assert proof.claim.value <= known.value
        assert proof.tried[0].method == "simple"
        if problem.options.memory_model == "sum":
            assert proof.claim.value >= known.value * (1 - CLOSED), seed
            counted += 1
    assert counted > 10


def test_auto_finds_the_optimum_from_any_split():
    improved = 0
    for seed in SEEDS:
        case = solved(seed)
        poor = None if case is None else single(case[0])
        if case is None or poor is None:
            continue
        problem, known = case
        if problem.options.memory_model == "peak":
            continue
        proof = bound(problem, poor)
        assert proof.value == pytest.approx(known.value), seed
        if proof.blocks is not None:
            improved += 1
            assert proof.found_by in ("ideal", "packing")
            assert problem.value(proof.blocks) == proof.value
    assert improved > 5


def easy() -> tuple[SplitProblem, BoundTask]:
    """A problem whose optimum is above its simple bound."""
    for seed in SEEDS:
        case = solved(seed)
        if case is None:
            continue
        if bound(*case, "simple").claim.value < case[1].value * 0.9:
            return case
    raise AssertionError("no seed will do")


def plan_for(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make `auto` try these arguments."""
    for table in ("AUTO", "FEW_AUTO", "SMALL_AUTO", "MANY_AUTO"):
        monkeypatch.setattr(bounds, table, tuple(map(Step, names)))
    monkeypatch.setattr(bounds, "CHECKABLE", ())


def run_with(
    monkeypatch: pytest.MonkeyPatch, **claims: LowerBound | Exception
) -> tuple[Proof, SearchContext]:
    """`auto` with these arguments after the simple one, and what it warned of."""
    warned: list[str] = []

    def argument(answer: LowerBound | Exception):
        def prove(problem: SplitProblem, known: BoundTask, run: SearchContext) -> LowerBound:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return Argument(prove)

    table = {name: argument(claim) for name, claim in claims.items()}
    monkeypatch.setattr(bounds, "BOUNDS", {"simple": BOUNDS["simple"], **table})
    plan_for(monkeypatch, *claims)
    problem, known = easy()
    run = SearchContext(warn=warned.append)
    return bound(problem, known, run=run), run


def test_it_stops_at_gap_zero(monkeypatch):
    value = easy()[1].value
    closed = LowerBound(value, certificate={"argument": "closed"})
    proof, _ = run_with(monkeypatch, closed=closed, later=LowerBound(value))
    assert [trial.method for trial in proof.tried] == ["simple", "closed"]
    assert proof.method == "closed"


def test_claims_above_the_value_are_refuted(monkeypatch):
    value = easy()[1].value
    proof, _ = run_with(monkeypatch, wrong=LowerBound(2 * value), nan=LowerBound(float("nan")))
    assert proof.method == "simple"
    assert [trial.status for trial in proof.tried] == [SOLVED, FAILED, FAILED]
    assert "but there is a split of" in proof.tried[1].reason
    assert proof.claim.value < value


def test_failures_fall_back_to_the_next(monkeypatch):
    warned: list[str] = []
    value = easy()[1].value
    proof, run = run_with(
        monkeypatch,
        crash=LowerBound(0.0, FAILED, "signal 11"),
        part=LowerBound(0.95 * value, FAILED, "signal 6"),
        gone=UnavailableError("CBC cannot be loaded"),
        unknown=UsageError("not for this"),
        last=LowerBound(0.99 * value, LIMIT),
    )
    assert [t.status for t in proof.tried[1:]] == [FAILED, FAILED, FAILED, REFUSED, LIMIT]
    assert (proof.tried[1].value, proof.tried[2].value) == (None, 0.95 * value)
    assert (proof.method, proof.claim.value) == ("last", 0.99 * value)
    run.warn("end")
    warned = run.warn.__self__  # type: ignore[attr-defined]
    assert warned[:2] == ["crash failed: signal 11", "part failed: signal 6"]


def test_nothing_below_the_simple_bound_is_reported(monkeypatch):
    proof, _ = run_with(monkeypatch, weak=LowerBound(1e-6), none=LowerBound(0.0))
    simple = proof.tried[0].value
    assert [trial.value for trial in proof.tried] == [simple] * 3


def test_an_improved_split_refutes_earlier_claims(monkeypatch):
    cases = (solved(seed) for seed in SEEDS)
    problem, best, poor = next(
        (problem, best, poor)
        for problem, best in (case for case in cases if case is not None)
        if (poor := single(problem)) is not None and poor.value > 1.1 * best.value > 0
    )
    wrong = Argument(lambda problem, known, run: LowerBound(known.value * 0.99))
    right = Argument(lambda *_: LowerBound(0.0, blocks=list(best.blocks)))
    monkeypatch.setattr(bounds, "BOUNDS", {"simple": BOUNDS["simple"], "a": wrong, "b": right})
    plan_for(monkeypatch, "a", "b")
    proof = bound(problem, poor)
    assert (proof.value, proof.found_by, proof.method) == (best.value, "b", "simple")
    assert [trial.status for trial in proof.tried] == [SOLVED, FAILED, SOLVED]


def test_solvers_share_their_time(monkeypatch):
    left = []

    def prove(problem: SplitProblem, known: BoundTask, run: SearchContext) -> LowerBound:
        left.append(run.time_left())
        return LowerBound(0.0)

    monkeypatch.setattr(
        bounds,
        "BOUNDS",
        {
            "simple": BOUNDS["simple"],
            "a": Argument(prove, 0.5),
            "b": Argument(prove, 1.0),
            "c": Argument(prove),
        },
    )
    plan_for(monkeypatch, "a", "b", "c")
    problem, known = easy()
    bound(problem, known)
    assert left[0] == pytest.approx(30, abs=2)
    assert left[1] == pytest.approx(60, abs=2)
    assert left[2] is None
    left.clear()
    bound(problem, known, run=PLAIN.within(10.0))
    assert left == [pytest.approx(value, abs=2) for value in (5, 10, 10)]


def test_a_missing_solver_is_an_error_where_it_is_asked_for(monkeypatch):
    def prove(problem: SplitProblem, known: BoundTask, run: SearchContext) -> LowerBound:
        raise UnavailableError("not installed")

    table = {"simple": BOUNDS["simple"], "exact": Argument(prove, 1.0)}
    monkeypatch.setattr(bounds, "BOUNDS", table)
    plan_for(monkeypatch, "exact")
    problem, known = easy()
    assert bound(problem, known).tried[1].status == FAILED
    for changed, method in ((known, "exact"), (replace(known, solver="highs"), "auto")):
        with pytest.raises(UnavailableError):
            bound(problem, changed, method)


def test_refused_by_name():
    problem, known = easy()
    with pytest.raises(UsageError, match="--method chain: "):
        bound(problem, replace(known, validity="free"), "chain")


def test_latency_is_refused():
    problem, known = easy()
    latency = replace(problem, options=replace(problem.options, objective="latency"))
    with pytest.raises(UsageError, match="the objective is latency"):
        bound(latency, known)


def test_every_argument_of_auto_is_in_the_table():
    for table in (AUTO, FEW_AUTO, SMALL_AUTO, MANY_AUTO):
        apart = {"auto", "simple", "no-io", LINKED, "cover-cut"}
        apart |= set() if table is FEW_AUTO else {"halves"}
        assert {step.name for step in table} | apart == set(BOUNDS)
        assert all(0 < step.effort <= 1 for step in table)
        assert all(step.share or BOUNDS[step.name].share or step.share is None for step in table)


def test_many_units_are_covered_from_the_bound_of_a_program(monkeypatch):
    problem, known = next(
        c for c in map(solved, SEEDS) if c and sum(d.count for d in c[0].devices) > FEW
    )
    half, floors = known.value / 2, []

    def cover(problem: SplitProblem, known: BoundTask, run: SearchContext) -> LowerBound:
        floors.append(known.floor)
        return LowerBound(0.0, LIMIT)

    nothing = Argument(lambda problem, known, run: LowerBound(0.0))
    table = dict.fromkeys(BOUNDS, nothing)
    table["same-block"] = Argument(lambda problem, known, run: LowerBound(half, LIMIT), 0.5)
    monkeypatch.setattr(bounds, "BOUNDS", table | {"cover": Argument(cover, 0.5)})
    monkeypatch.setattr(bounds, "CHECKABLE", ())
    for many in (len(problem.graph.node_ids), 0):
        monkeypatch.setattr(bounds, "MANY", many)
        bound(problem, known)
    assert floors == [0.0, half]


def test_programs_end_where_their_tolerance_is(monkeypatch):
    tried = []

    def prove(problem: SplitProblem, known: BoundTask, run: SearchContext) -> LowerBound:
        tried.append(known.value)
        return LowerBound(0.0)

    near = Argument(lambda problem, known, run: LowerBound(known.value * (1 - 1e-6), LIMIT))
    table = {"simple": BOUNDS["simple"], "near": near, "exact": Argument(prove, 1.0)}
    monkeypatch.setattr(bounds, "BOUNDS", table)
    plan_for(monkeypatch, "near", "exact")
    problem, known = easy()
    proof = bound(problem, known)
    assert (proof.method, tried) == ("near", [])
    bound(problem, known, "exact")
    assert tried == [known.value]
