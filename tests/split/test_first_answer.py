"""A search that is stopped before it has found anything, and does not end: there is an answer."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from dnnp.cmds.shell.context import Context
from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import LIMIT, BoundTask
from dnnp.core.check.plan import check_plan
from dnnp.core.cost.latency import latency_problem
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.latency.solve import solve_latency
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import NOTHING, MethodOptions, SearchContext, run_with_fallback
from dnnp.core.schedule.auto import solve as schedule
from dnnp.core.schedule.problem import Wanted, violations
from dnnp.core.schedule.problem import problem_of as blocks_of
from dnnp.core.schedule.shapes import SHAPES, shape
from dnnp.core.schedule.transfers import with_transfers
from dnnp.core.split.auto import solve
from dnnp.core.split.first import FIRST_FIT, first_latency, first_split
from dnnp.core.split.slices import best_slicing
from support.cases import random_case
from support.latency_cases import random_problem
from support.problems import chain, problem_of
from support.run import PATIENCE_S, interrupted
from support.wide import branches

DEVICES = (DeviceClass("dev", count=3), DeviceClass("cpu", "cpu", 1))


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Work that hears nothing until the test is over; no time is given to it."""
    over = Event()
    monkeypatch.setattr("dnnp.core.model.search_context.GRACE_S", 0.0)

    def work(*_: object, **__: object) -> None:
        over.wait(PATIENCE_S)

    yield work
    over.set()


STOPPED = SearchContext(interrupted=lambda: True)


def small() -> SplitProblem:
    return problem_of(chain(1.0, 2.0, 3.0, 4.0, 2.0), *DEVICES)


@pytest.mark.parametrize("method", SPLITS)
def test_every_method(
    method: str, endless: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnnp.core.split.auto._by_method", endless)
    problem, said = small(), list[str]()
    found = solve(problem, MethodOptions(method=method), replace(STOPPED, warn=said.append))
    assert 0 < found.bound <= problem.value(found.blocks)
    if method in ("auto", "slice"):
        assert (found.method, said) == (FIRST_FIT, [])
        return
    # What stands in for a method that was asked for by name is no worse than `slice`.
    assert problem.value(found.blocks) <= problem.value(best_slicing(problem))
    assert found.method == "slice"
    assert said == [f"{method}: {NOTHING}; this split is by slice"]


@pytest.mark.parametrize("method", LATENCY)
def test_every_method_of_latency(
    method: str, endless: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnnp.core.latency.solve._found", endless)
    for execution in LATENCY[method].kinds:
        options = CostOptions(memory_model="sum", objective="latency", execution=execution)
        problem = replace(small(), options=options)
        latency = latency_problem(problem)
        found = solve_latency(latency, MethodOptions(method=method), STOPPED)
        assert found.method == FIRST_FIT
        assert found.bound > 0
        assert found.bound_method.startswith("critical path")
        plan = make_latency_plan(
            problem,
            latency,
            found.split,
            method=found.method,
            bound=found.bound,
            bound_method=found.bound_method,
            digest="0" * 64,
        )
        assert check_plan(problem.graph, problem.units, plan).violations == ()


def test_what_was_found_comes_before_the_first_answer(
    endless: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small()
    better = solve(problem, MethodOptions(method="slice")).blocks

    def search(
        problem: SplitProblem, asked: MethodOptions, method: str, run: SearchContext
    ) -> None:
        run.report_incumbent(better, problem.value(better), "slice")
        endless()

    monkeypatch.setattr("dnnp.core.split.auto._by_method", search)
    found = solve(problem, MethodOptions(), STOPPED)
    assert (found.method, problem.value(found.blocks)) == ("slice", problem.value(better))


def test_arguments_of_bounds(endless: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([False] * 3)
    monkeypatch.setattr("dnnp.core.bounds.chain.chain_claim", endless)
    problem = small()
    blocks = first_split(problem)
    assert blocks is not None
    known = BoundTask("ordered", blocks, problem.value(blocks))
    proof = bound(problem, known, "chain", SearchContext(interrupted=lambda: next(asked, True)))
    assert proof.method == "simple"
    assert [(t.method, t.status) for t in proof.tried] == [("simple", "solved"), ("chain", LIMIT)]


@pytest.mark.parametrize("name", SHAPES)
def test_schedules(
    name: str, endless: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnnp.core.schedule.auto._found", endless)
    for mode in ("none", "blocking", "non-blocking"):
        placement = with_transfers(shape(name, 4), mode, time_s=0.5)
        found = schedule(placement, Wanted(3), SearchContext(interrupted=lambda: True))
        assert (found.method, found.status) == ("sequential", "interrupted")
        assert violations(blocks_of(found.placement, 3), found.start_s.ravel()) == []
        assert found.bound_s > 0


def test_the_first_split_is_valid() -> None:
    counted = 0
    for seed in range(60):
        case = random_case(seed, 12)
        blocks = first_split(case.problem)
        if blocks is None:
            continue
        plan = make_plan(case.problem, blocks, method=FIRST_FIT, bound=0.0, digest="0" * 64)
        assert check_plan(case.graph, case.units, plan).violations == (), seed
        assert plan.validity == "ordered"
        counted += 1
    assert counted > 50


@pytest.mark.parametrize("execution", ["blocks", "operators"])
def test_the_first_placement_is_valid(execution: str) -> None:
    counted = 0
    for seed in range(40):
        rng = random.Random(seed)
        latency = random_problem(
            rng, 8, execution=execution, tight=rng.random() < 0.5, colors=rng.random() < 0.3
        )
        split, problem = first_latency(latency), latency.whole
        if split is None or problem is None:
            continue
        plan = make_latency_plan(
            problem, latency, split, method=FIRST_FIT, bound=0.0, bound_method="", digest="0" * 64
        )
        assert check_plan(problem.graph, problem.units, plan).violations == (), seed
        counted += 1
    assert counted > 30


def test_the_first_split_keeps_capacities() -> None:
    """Two nodes of 3 bytes and two of 2: only parts of two nodes fit 6 bytes."""
    graph = chain(1.0, 5.0, 1.0, 1.0, memory_bytes=3)
    devices = (DeviceClass("dev", count=2, memory_bytes=6.0),)
    problem = problem_of(graph, *devices, memory_model="sum")
    blocks = first_split(problem)
    assert blocks is not None
    assert [len(b.nodes) for b in blocks] == [2, 2]
    devices = (DeviceClass("dev", count=2, memory_bytes=5.0),)
    assert first_split(problem_of(graph, *devices, memory_model="sum")) is None


def test_beside(endless: Callable[..., None]) -> None:
    assert run_with_fallback(lambda: 3, lambda: True, lambda: 4) in (3, 4)
    assert run_with_fallback(lambda: 3, lambda: False, lambda: 4) == 3
    assert run_with_fallback(endless, lambda: True, lambda: 4) == 4
    with pytest.raises(InfeasibleError, match="why"):
        run_with_fallback(_refuse, lambda: False, lambda: None)
    # Without another answer the work is waited for.
    with pytest.raises(InfeasibleError, match="why"):
        run_with_fallback(_refuse, lambda: True, lambda: None)


def _refuse() -> None:
    raise InfeasibleError("why")


def test_without_a_first_answer_the_search_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.model.search_context.GRACE_S", 0.0)
    monkeypatch.setattr("dnnp.core.split.first.first_split", lambda problem: None)

    def search(*_: object) -> None:
        raise LimitError("nothing was found")

    monkeypatch.setattr("dnnp.core.split.auto._by_method", search)
    with pytest.raises(LimitError, match="nothing was found"):
        solve(small(), MethodOptions(), STOPPED)


def test_a_search_that_is_left_alone_says_nothing_more() -> None:
    """A late message would stand after the result."""
    err, go, said = io.StringIO(), Event(), Event()
    context = Context("dnnp-test", [], None, io.BytesIO(), err)

    def late() -> int:
        context.warn("a search begins")
        go.wait(PATIENCE_S)
        context.warn("too late")
        said.set()
        return 3

    assert run_with_fallback(late, lambda: True, lambda: 4) == 4
    go.set()
    assert said.wait(PATIENCE_S)
    context.warn("the result")
    assert err.getvalue() == "dnnp-test: a search begins\ndnnp-test: the result\n"


@pytest.mark.parametrize("arguments", [(), ("--method", "ip"), ("--objective", "latency")])
def test_interrupt_before_anything_is_compiled(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A real process with a cold cache, which compiles for tens of seconds."""
    path = tmp_path / "long.dnnp"
    path.write_bytes(branches(6, 9))
    result = interrupted(
        "partition",
        "-v",
        "-k",
        "5",
        "--bandwidth",
        "1",
        *arguments,
        path,
        after="searching",
        env={"NUMBA_CACHE_DIR": str(tmp_path / "cold")},
    )
    assert result.one("plan")["status"] == "interrupted"
