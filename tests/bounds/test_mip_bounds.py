"""The bounds by integer programs, against brute force and against each other."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dnnp.core.bounds import ip
from dnnp.core.bounds.ip import (
    Call,
    bottleneck_bound,
    exact_bound,
    guess_bound,
    no_dag_bound,
    no_io_bound,
    windows,
)
from dnnp.core.bounds.lower_bound import FAILED, LIMIT, REFUSED, SOLVED, BoundTask
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.items import items_of, quotient_order
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver import child
from dnnp.core.solver.program import Outcome
from dnnp.core.split.ip.formulas import Formulas, Kind, parts_of, start_of, superblocks
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.synthetic import synthetic_stream
from support.brute import brute_force
from support.cases import Case, accelerators_case, random_case
from support.problems import chain

BOUNDS = {
    "no-dag": no_dag_bound,
    "no-io": no_io_bound,
    "bottleneck": bottleneck_bound,
    "guess": guess_bound,
    "exact": exact_bound,
}
CHAINS = (
    ("simple", "no-dag", "bottleneck", "exact"),
    ("simple", "no-io", "bottleneck", "guess", "exact"),
)
CLOSE = 1e-5
SUM = CostOptions(memory_model="sum")
THIRDS = chain(3, 10 / 3, 3)
"""Loads that are no multiples of anything."""
LOADS = 28 / 3
VALIDITIES = ("ordered", "convex", "ordered", "free")
needs_highs = pytest.mark.skipif(
    importlib.util.find_spec("highspy") is None, reason="needs the extra 'highs'"
)


def known_for(case: Case, validity: str, solver: str = "cbc") -> tuple[BoundTask, float] | None:
    """The task and the optimum; the known split is the optimal one, a bad one, or none."""
    problem = case.problem
    optimum, blocks = brute_force(problem, validity)
    if math.isinf(optimum):
        return None
    if case.seed % 3 == 0:
        return BoundTask(validity, blocks, optimum, solver=solver), optimum
    if case.seed % 3 == 1:
        return BoundTask(validity, value=1.5 * optimum, solver=solver), optimum
    return BoundTask(validity, solver=solver), optimum


def agree(case: Case, validity: str, solver: str = "cbc") -> int:
    """No bound is above the optimum, and they are ordered as they should be; those above L."""
    found = known_for(case, validity, solver)
    if found is None:
        return 0
    known, optimum = found
    values = {"simple": min(simple_bound(case.problem), optimum)}
    for name, bound in BOUNDS.items():
        claim = bound(case.problem, known)
        if claim.status == REFUSED:
            assert claim.reason
            continue
        assert claim.status == SOLVED, (case.seed, name, claim)
        assert values["simple"] <= claim.value <= optimum * (1 + 1e-9), (case.seed, name, claim)
        values[name] = claim.value
        if claim.certificate is not None:
            assert claim.certificate["argument"] == name
            assert claim.certificate["checkable"] is False
    for names in CHAINS:
        shown = [values[name] for name in names if name in values]
        for weaker, stronger in pairwise(shown):
            assert weaker <= stronger * (1 + CLOSE), (case.seed, values)
    if case.options.memory_model == "sum" and "exact" in values:
        assert values["exact"] == pytest.approx(optimum, rel=CLOSE), case.seed
    return sum(value > values["simple"] * (1 + CLOSE) for value in values.values())


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_accelerators_of_one_class(first):
    seeds = range(first, first + 8)
    cases = [accelerators_case(s, 6, ("sum", "sum", "overlap", "duplex")) for s in seeds]
    assert sum(agree(case, VALIDITIES[case.seed % 4]) for case in cases)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_classes_memory_colours_replicas_and_training(first):
    for seed in range(first, first + 8):
        agree(random_case(seed, 6), VALIDITIES[seed % 4])


@needs_highs
def test_the_other_solver_agrees():
    for seed in range(200, 208):
        agree(accelerators_case(seed, 6), VALIDITIES[seed % 4], "highs")
        agree(random_case(seed, 6), VALIDITIES[seed % 4], "highs")


def device_of(count: int, **other: float) -> DeviceClass:
    return DeviceClass("dev", count=count, bandwidth_bytes_per_s=1.0, **other)


def asked_of(
    graph, devices, options=SUM, validity="ordered", **other
) -> tuple[SplitProblem, BoundTask]:
    problem = SplitProblem(graph, singletons(graph), devices, options)
    return problem, BoundTask(validity, **other)


def test_by_hand():
    # 3 and 3 and 3 on two devices: 3 + 1 at least, but 4.5 of work needs two of them.
    asked = asked_of(chain(3, 3, 3), (device_of(2),))
    for bound in (no_dag_bound, bottleneck_bound, guess_bound, exact_bound):
        assert bound(*asked).value == pytest.approx(7, rel=CLOSE)
    assert no_io_bound(*asked).value == pytest.approx(6, rel=CLOSE)
    # Without precedence the two ends make a stage of 6 + 2, less than 3 + 5 + 3.
    asked = asked_of(chain(3, 5, 3), (device_of(2),))
    assert no_dag_bound(*asked).value == pytest.approx(8, rel=CLOSE)
    assert bottleneck_bound(*asked).value == pytest.approx(9, rel=CLOSE)


def test_a_guess_counts_both_sides():
    # The third node alone is 4 + 0.5 + 0.5, but then the first tensor leaves both sides.
    numbers = [0, 1, 2, 0], [1, 2, 3, 3], [10, 0.5, 0.5, 1], [0.5, 0.5, 4, 1]
    stream = synthetic_stream("s", *map(np.array, numbers))
    asked = asked_of(graph_of(stream), (replace(device_of(3), name="unit"),))
    assert bottleneck_bound(*asked).value == pytest.approx(5, rel=CLOSE)
    assert guess_bound(*asked).value == pytest.approx(6, rel=CLOSE)
    assert exact_bound(*asked).value == pytest.approx(6, rel=CLOSE)


def test_a_better_split_comes_with_the_bound():
    graph = chain(3, 3, 3)
    devices = (device_of(2),)
    whole = [Block(graph.order, devices[0])]
    for options in (SUM, replace(SUM, max_replicas=2)):
        asked = asked_of(graph, devices, options, blocks=whole, value=9.0)
        claim = exact_bound(*asked)
        plan = make_plan(
            asked[0],
            claim.blocks or whole,
            method="",
            bound=claim.value,
            digest="",
        )
        assert plan.value == pytest.approx(7 if options == SUM else 4.5)
        assert claim.value == pytest.approx(plan.value, rel=CLOSE)


def test_refuses_what_it_does_not_hold_for():
    graph = chain(1, 9, 1)
    device, cpu = device_of(2), DeviceClass("cpu", kind="cpu")
    gpipe = replace(SUM, objective="gpipe")
    wrong = (
        (no_io_bound, asked_of(graph, (device,), validity="free")),
        (bottleneck_bound, asked_of(graph, (device,), validity="free")),
        (guess_bound, asked_of(graph, (device,), validity="convex")),
        (guess_bound, asked_of(graph, (device, cpu))),
        (guess_bound, asked_of(graph, (device,), replace(SUM, max_replicas=2))),
        (no_dag_bound, asked_of(graph, (device,), gpipe)),
        (exact_bound, asked_of(graph, (device,), gpipe)),
        (exact_bound, asked_of(graph, (device_of(2, cluster_size=2),))),
    )
    for bound, asked in wrong:
        claim = bound(*asked)
        assert (claim.status, claim.value) == (REFUSED, 0.0)
        assert claim.reason


def test_transfers_inside_clusters_are_cheaper():
    inner = {"cluster_size": 2, "inner_bandwidth_bytes_per_s": 4.0}
    asked = asked_of(chain(3, 3, 3), (device_of(2, **inner),))
    assert bottleneck_bound(*asked).value == pytest.approx(6.25, rel=CLOSE)


class Fake:
    """A solver that gives the same answer always."""

    def __init__(self, monkeypatch, *outcomes: Outcome) -> None:
        self.outcomes, self.calls = outcomes, 0
        monkeypatch.setattr(child.SolverProcess, "ask", self)

    def __call__(self, *_, **__) -> Outcome:
        self.calls += 1
        return self.outcomes[min(self.calls, len(self.outcomes)) - 1]


def test_the_bound_is_kept_when_the_time_is_over(monkeypatch):
    asked = asked_of(THIRDS, (device_of(2),), value=LOADS)
    fake = Fake(monkeypatch, Outcome("limit", 0.7))
    run = SearchContext(interrupted=lambda: fake.calls > 0)
    claim = bottleneck_bound(*asked, run)
    assert (claim.status, claim.value) == (LIMIT, pytest.approx(0.7 * LOADS, rel=CLOSE))
    assert claim.certificate is not None
    assert claim.certificate["status"] == "limit"
    # A bound above the split that is known is none.
    fake.outcomes, fake.calls = (Outcome("limit", 1.5),), 0
    assert bottleneck_bound(*asked, run).value == pytest.approx(LOADS / 2)
    # What is known already has not been proven once more.
    fake.calls = 0
    claim = bottleneck_bound(asked[0], replace(asked[1], floor=8.0), run)
    assert claim.value == pytest.approx(LOADS / 2)
    assert "8" in claim.reason


@pytest.mark.parametrize("bound", BOUNDS.values())
def test_no_time_is_no_bound(bound):
    asked = asked_of(THIRDS, (device_of(2),))
    claim = bound(*asked, PLAIN.within(0.0))
    assert claim.status in (LIMIT, FAILED)
    assert claim.value == pytest.approx(LOADS / 2)


def test_programs_that_are_too_large_are_not_written(monkeypatch):
    monkeypatch.setattr(ip, "MOST_NUMBERS", 5)
    asked = asked_of(THIRDS, (device_of(2),), value=LOADS)
    for bound in (bottleneck_bound, exact_bound):
        claim = bound(*asked)
        assert (claim.status, claim.value) == (LIMIT, pytest.approx(LOADS / 2))
        assert "coarsen" in claim.reason


def test_a_crash_is_tried_again_and_then_told(monkeypatch):
    asked = asked_of(THIRDS, (device_of(2),), value=LOADS)
    fake = Fake(monkeypatch, Outcome("failed", reason="signal 6"))
    claim = no_dag_bound(*asked)
    assert (claim.status, fake.calls) == (FAILED, 2)
    assert "signal 6" in claim.reason
    assert claim.value == pytest.approx(LOADS / 2)
    fake.outcomes, fake.calls = (Outcome("failed"), Outcome("optimal", 0.7, (0.7,))), 0
    assert no_dag_bound(*asked).status == SOLVED


def test_a_solver_that_gives_up_is_not_asked_forever(monkeypatch):
    asked = asked_of(THIRDS, (device_of(2),), value=LOADS)
    fake = Fake(monkeypatch, Outcome("limit", 0.7))
    claim = no_dag_bound(*asked)
    assert (claim.status, fake.calls) == (LIMIT, 2)
    assert claim.value == pytest.approx(0.7 * LOADS, rel=CLOSE)
    assert "before its time" in claim.reason


def test_an_optimum_above_the_bound_is_doubted(monkeypatch):
    asked = asked_of(THIRDS, (device_of(2),), value=LOADS)
    values = (0.9, *[0.0] * 20)
    fake = Fake(monkeypatch, Outcome("optimal", 0.7, values))
    claim = bottleneck_bound(*asked)
    assert (claim.status, fake.calls) == (LIMIT, 2)
    assert claim.value == pytest.approx(0.7 * LOADS, rel=CLOSE)
    fake.outcomes, fake.calls = (
        (Outcome("optimal", 0.7, values), Outcome("optimal", 0.9, values)),
        0,
    )
    claim = bottleneck_bound(*asked)
    assert (claim.status, claim.value) == (SOLVED, pytest.approx(0.9 * LOADS, rel=CLOSE))


def test_a_missing_solver_names_the_extra(monkeypatch):
    Fake(monkeypatch, Outcome("missing", reason="HiGHS"))
    asked = asked_of(chain(3, 3, 3), (device_of(2),), solver="highs")
    with pytest.raises(UnavailableError, match=r"dnnp\[highs\]"):
        bottleneck_bound(*asked)


# The programs themselves, without a solver.


def test_stages_of_the_best_split_are_solutions():
    tried = 0
    for seed in range(40):
        case = accelerators_case(seed, 6, ("sum", "overlap", "duplex"))
        optimum, blocks = brute_force(case.problem)
        call = Call(case.problem, BoundTask("ordered", blocks, optimum), PLAIN)
        order = call.pipeline()
        plan = make_plan(case.problem, blocks)
        for task in call.tasks("ordered"):
            parts, placed = parts_of(task, precedence=True), call.placed(task)
            if placed is None or order is None:
                continue
            for b in range(len(blocks)):
                before, after = int(order[b]), len(blocks) - 1 - int(order[b])
                load = plan.stages[before].load_s
                for kind in (Kind(0), Kind(0, 1, before, after)):
                    formulas: Formulas = superblocks(task, parts, kind, 0.0, optimum, 0.0, 1.0)
                    values = formulas.start(start_of(parts, placed, b, order))
                    if values is None:  # this direction of a backward pass is not the split's
                        assert case.graph.backward.any()
                        continue
                    tried += 1
                    if kind.before is None:
                        assert values[formulas.top] * optimum == pytest.approx(load)
    assert tried > 100


def test_items_of_the_best_split_are_in_their_windows():
    narrow = 0
    for seed in range(60):
        case = accelerators_case(seed, 7)
        if case.graph.backward.any():
            continue
        optimum, blocks = brute_force(case.problem)
        items = items_of(case.graph, case.units)
        line = case.problem.line(items)
        stages = min(case.devices[0].count, line.n)
        first, last = windows(line, optimum, stages, cuts=True)
        call = Call(case.problem, BoundTask("ordered", blocks), PLAIN)
        order = quotient_order(case.graph, call.block_of_node(), len(blocks))
        place = np.argsort(order) + 1
        at = place[call.placed(call.tasks("ordered")[0])]
        assert (first <= at).all(), seed
        assert (at <= last).all(), seed
        narrow += int((last - first < stages - 1).sum())
    assert narrow > 20


def test_pairs_kept_apart_are(monkeypatch):
    def keep_apart(*pairs: tuple[int, int]) -> None:
        monkeypatch.setattr(ip, "pairs_apart", lambda *_: list(pairs))

    graph = chain(3, 3, 3)
    asked = asked_of(graph, (device_of(3),), value=9.0)
    keep_apart()
    assert bottleneck_bound(*asked).value == pytest.approx(4, rel=CLOSE)
    assert exact_bound(*asked).value == pytest.approx(5, rel=CLOSE)
    # Three stages are the only split without the first pair, and two do not suffice.
    keep_apart((0, 1))
    assert exact_bound(*asked).value == pytest.approx(5, rel=CLOSE)
    two = asked_of(graph, (device_of(2),), value=8.5)
    keep_apart((1, 0), (1, 2))
    assert exact_bound(*two).value == pytest.approx(8.5, rel=CLOSE)
