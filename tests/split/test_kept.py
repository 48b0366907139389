"""Incumbents are kept: the record has the best value and the best bound of all that ran."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf
from threading import Event

import pytest

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import BoundTask, LowerBound
from dnnp.core.cost.latency import LatencySolution, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.proof import LatencyProof, latency_bound
from dnnp.core.latency.solve import solve_latency
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError, UsageError
from dnnp.core.model.search_context import MethodOptions, Progress, SearchContext, Solution
from dnnp.core.schedule.auto import solve as schedule
from dnnp.core.schedule.problem import Answer, Wanted, span_of
from dnnp.core.schedule.recipes import classic
from dnnp.core.schedule.shapes import shape
from dnnp.core.split.auto import solve
from dnnp.core.split.first import first_latency, first_split
from dnnp.core.split.slices import best_slicing
from support.brute import brute_force
from support.cases import accelerators_case, random_case
from support.latency_brute import brute_blocks, brute_operators
from support.latency_cases import random_problem
from support.problems import chain, problem_of

DEVICES = (DeviceClass("dev", count=3),)
SLOW = ("placeto",)

Ended = Callable[[], None]


def told_bounds(told: list[Progress]) -> float:
    """The largest bound of the objective that was told."""
    return max((s.bound for s in told if not s.what), default=0.0)


def told_value(told: list[Progress]) -> float:
    """The least value of the objective that was told."""
    return min((s.value for s in told if not s.what), default=inf)


@pytest.mark.parametrize("method", [m for m in SPLITS if m not in SLOW])
def test_no_split_beats_a_bound_that_is_told(method: str) -> None:
    counted = 0
    for seed in range(12):
        case = accelerators_case(seed, 6) if seed % 3 == 0 else random_case(seed, 6)
        problem = SplitProblem(case.graph, case.units, case.devices, case.options)
        for validity in SPLITS[method].kinds[:2]:
            told = list[Progress]()
            run = SearchContext(effort=0.03, watch=told.append)
            try:
                found = solve(problem, MethodOptions(method=method, validity=validity), run)
            except UnavailableError as error:
                pytest.skip(str(error))
            except (InfeasibleError, LimitError, UsageError):
                continue
            least, _ = brute_force(problem, validity)
            assert told_bounds(told) <= least * (1 + 1e-9), (seed, validity)
            value = problem.value(found.blocks)
            assert least * (1 - 1e-9) <= value <= told_value(told) * (1 + 1e-9)
            assert found.bound >= told_bounds(told) * (1 - 1e-9)
            counted += 1
    assert counted > 3


@pytest.mark.parametrize("method", BOUNDS)
def test_no_split_beats_a_bound_that_an_argument_tells(method: str) -> None:
    counted = 0
    for seed in (*range(16), 5337):  # the last one: above what is known, less is proven than told
        case = accelerators_case(seed, 6) if seed % 2 and seed < 16 else random_case(seed, 7)
        problem = SplitProblem(case.graph, case.units, case.devices, case.options)
        least, _ = brute_force(problem, "ordered")
        blocks = first_split(problem)
        if blocks is None:
            continue
        told = list[Progress]()
        known = BoundTask("ordered", blocks, problem.value(blocks))
        try:
            proof = bound(problem, known, method, SearchContext(effort=0.1, watch=told.append))
        except UsageError:
            continue
        assert max(told_bounds(told), proof.claim.value) <= least * (1 + 1e-9), seed
        assert proof.claim.value >= told_bounds(told) * (1 - 1e-9), seed
        assert proof.value <= told_value(told) * (1 + 1e-9), seed
        counted += 1
    assert counted > 3


@pytest.mark.parametrize("method", [m for m in LATENCY if m not in SLOW])
def test_no_sample_beats_a_bound_that_is_told(method: str) -> None:
    counted = 0
    for seed in range(10):
        for execution in LATENCY[method].kinds:
            latency = random_problem(random.Random(seed), 6, execution=execution)
            if latency.whole is None:
                continue
            told = list[Progress]()
            run = SearchContext(effort=0.05, watch=told.append)
            try:
                found = solve_latency(latency, MethodOptions(method=method), run)
            except UnavailableError as error:
                pytest.skip(str(error))
            except (InfeasibleError, LimitError, UsageError):
                continue
            brute = brute_blocks if execution == "blocks" else brute_operators
            least = brute(latency_problem(latency.whole))[0]
            assert told_bounds(told) <= least * (1 + 1e-9), (seed, execution)
            assert found.bound >= told_bounds(told) * (1 - 1e-9), (seed, execution)
            value = latency.value(found.split)
            assert value <= told_value(told) * (1 + 1e-9)
            counted += 1
    assert counted > 0


# A method that knows more than what it gives in the end, or that never comes to its end.


@pytest.fixture(params=["returns", "is left alone"])
def ended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ended]:
    """The end of a method: it returns, or a signal comes first and it does not heed it."""
    over = Event()
    monkeypatch.setattr("dnnp.core.model.search_context.GRACE_S", 0.0)
    if request.param == "returns":
        over.set()
    yield lambda: over.wait() and None
    over.set()


def stopped_after_a_while() -> SearchContext:
    asked = iter([False] * 3)
    return SearchContext(interrupted=lambda: next(asked, True))


def test_a_split(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(chain(1.0, 2.0, 3.0, 4.0, 2.0), *DEVICES)
    poor, good = first_split(problem.with_devices(DeviceClass("dev"))), best_slicing(problem)
    assert poor is not None

    def search(
        problem: SplitProblem, asked: MethodOptions, method: str, run: SearchContext
    ) -> Solution:
        run.report_incumbent(good, problem.value(good), "slice")
        run.report_progress(bound=4.5)
        ended()
        return Solution(poor, 4.1)

    monkeypatch.setattr("dnnp.core.split.auto._by_method", search)
    found = solve(problem, MethodOptions(method="brkga"), stopped_after_a_while())
    assert (problem.value(found.blocks), found.bound, found.method) == (7.0, 4.5, "slice")


def test_a_sample(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    latency = random_problem(random.Random(3), 8, execution="blocks")
    assert latency.whole is not None
    split = first_latency(latency)
    assert split is not None
    value = latency.value(split)

    def search(
        method: object, problem: object, asked: MethodOptions, run: SearchContext
    ) -> LatencySolution:
        run.report_incumbent(split, value, "ideal")
        run.report_progress(bound=0.9 * value, by="ideals of blocks")
        ended()
        return LatencySolution(split, 0.1 * value, "critical path", "anneal")

    monkeypatch.setattr("dnnp.core.latency.solve._found", search)
    found = solve_latency(latency, MethodOptions(), stopped_after_a_while())
    assert (found.bound, found.bound_method) == (0.9 * value, "ideals of blocks")


def test_an_argument(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(chain(1.0, 2.0, 3.0, 4.0, 2.0), *DEVICES)
    poor, good = first_split(problem.with_devices(DeviceClass("dev"))), best_slicing(problem)
    assert poor is not None

    def argument(problem: SplitProblem, known: BoundTask, run: SearchContext) -> LowerBound:
        run.report_incumbent(good, problem.value(good), "exact")
        run.report_progress(bound=4.5)
        ended()
        return LowerBound(4.2)

    monkeypatch.setattr("dnnp.core.bounds.chain.chain_claim", argument)
    known = BoundTask("ordered", poor, problem.value(poor))
    proof = bound(problem, known, "chain", stopped_after_a_while())
    assert (proof.value, proof.claim.value, proof.method) == (7.0, 4.5, "chain")
    assert proof.claim.certificate == {"argument": "chain", "checkable": False}


def test_an_argument_for_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    latency = random_problem(random.Random(3), 8, execution="blocks")
    split = first_latency(latency)
    assert split is not None
    value = latency.value(split)
    asked = iter([False] * 3)

    def ideal(
        problem: object, known: LatencyProof, search: object, name: str, run: SearchContext
    ) -> LatencyProof:
        run.report_progress(bound=0.95 * known.latency, by="ideals of blocks")
        return known

    monkeypatch.setattr("dnnp.core.latency.proof._searched", ideal)
    proof = latency_bound(
        latency, split, "ideal", run=SearchContext(interrupted=lambda: next(asked, True))
    )
    assert (proof.value, proof.method) == (0.95 * value, "ideals of blocks")


def test_a_schedule(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = shape("V", 4)
    good = classic(placement, "1f1b", 6).start

    def search(batch: object, wanted: Wanted, run: SearchContext) -> Answer:
        run.report_incumbent(good, span_of(batch.problem, good), "optimal")  # type: ignore[attr-defined]
        run.report_progress(bound=span_of(batch.problem, good), what="makespan")  # type: ignore[attr-defined]
        ended()
        return Answer(good, "optimal", 0.0)

    monkeypatch.setattr("dnnp.core.schedule.auto._by_recipe", search)
    found = schedule(placement, Wanted(6, method="1f1b"), stopped_after_a_while())
    assert found.method == "optimal"
