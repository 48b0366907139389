"""Placers that had to be helped to fit the memory, or were cut short, say so under another name."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.baselines.placing import getf
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.schedule import memory_limits
from dnnp.core.methods.splits import LATENCY
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import LimitError
from dnnp.core.model.search_context import Evolution, MethodOptions, SearchContext
from dnnp.core.solver.program import Outcome, SparseProgram
from dnnp.core.split import heuristic
from dnnp.core.split.auto import solve
from dnnp.core.split.order_search import search_orders
from support.placing import PLACERS, problem_of
from support.problems import chain
from support.problems import problem_of as split_of

MEMORY = [float(x) for x in (7, 8, 2, 6, 4, 5)]
"""Two devices of 16 hold these in two ways only, which no placer meets by itself."""

PACKED = ("getf", "heft", "heft-congested", "m-etf", "m-sct")
REPAIRED = ("greedy", "m-topo")


def six(capacity: float) -> LatencyProblem:
    """A path of six tasks on two devices of so many bytes."""
    edges = [(i, i + 1) for i in range(5)]
    times = [[1.0] * 6] * 2
    return problem_of(times, edges, [1.0] * 5, memory=MEMORY, capacity=[capacity] * 2)


def told(method: str, problem: LatencyProblem) -> tuple[str, list[str]]:
    """The name in the record, empty for that of the method, and the warnings."""
    said: list[str] = []
    run = SearchContext(effort=0.1, warn=said.append)
    found = LATENCY[method].function("operators")(problem, MethodOptions(method), run)
    assert np.isfinite(problem.value(found.split))
    return found.method, said


@pytest.mark.parametrize("method", PACKED)
def test_what_was_packed_beforehand_is_said(method: str) -> None:
    full = "the devices ran full, so that places of large tasks were packed beforehand"
    line = f"{method}: {full}; what ran instead is {method}-packed"
    assert told(method, six(16.0)) == (f"{method}-packed", [line])


@pytest.mark.parametrize("method", REPAIRED)
def test_what_was_repaired_is_said(method: str) -> None:
    line = f"{method}: no room for 3 of 6 places, which were repaired; what ran instead is "
    assert told(method, six(16.0)) == (f"{method}-repaired", [f"{line}{method}-repaired"])


@pytest.mark.parametrize("method", sorted(set(PLACERS) - {"single"}))
def test_nothing_is_said_where_there_is_room(method: str) -> None:
    assert told(method, six(160.0)) == ("", [])


def test_a_program_that_is_replaced_and_helped_says_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getf, "MOST_CHOICES", 1)
    name, (line,) = told("getf", six(16.0))
    assert name == "getf-fluid-packed"
    assert "choices are too many for its linear program; the devices ran full" in line


def test_what_no_device_at_hand_runs_is_no_repair() -> None:
    """m-topo itself puts what it passes over anywhere."""
    times = [[1.0, np.inf, 1.0], [1.0, 1.0, 1.0]]
    problem = problem_of(times, [(0, 1), (1, 2)], [1.0, 1.0])
    assert told("m-topo", problem) == ("", [])


def test_a_whole_program_without_a_proof_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = six(16.0)
    columns = getf.program_of(problem, memory_limits(problem), integer=True)[1]

    def ended(program: SparseProgram, **how: object) -> Outcome:
        values = np.zeros(int(columns.max()) + 1)
        values[columns[0]] = 1.0  # All on the first device.
        return Outcome("feasible", values=values.tolist())

    monkeypatch.setattr(getf, "ask_sparse", ended)
    name, (early, line) = told("getf-milp", problem)
    assert name == "getf-milp-repaired"
    assert early == "getf-milp: its program was ended after 6 s without a proof"
    assert line.startswith("getf-milp: no room for 3 of 6 places")


@pytest.mark.parametrize("method", ["brkga", "mla", "mla-weighted"])
def test_orders_that_were_not_tried_are_said(method: str) -> None:
    said: list[str] = []
    evolution = Evolution(population=10, generations=3)
    asked = MethodOptions(method=method, evolution=evolution)
    problem = split_of(chain(4.0, 3.0, 5.0, 2.0), DeviceClass("dev", count=2))
    found = solve(problem, asked, SearchContext(warn=said.append))
    assert (found.method, said) == (method, [])
    calls = iter([False])
    run = SearchContext(warn=said.append, interrupted=lambda: next(calls, True))
    search_orders(problem, asked, run)
    total = 10 + 2 * (10 - evolution.kept)
    assert said == [f"evolution: stopped after 10 of {total} orders"]


def test_orders_of_which_none_was_tried_are_a_slicing() -> None:
    said: list[str] = []
    problem = split_of(chain(4.0, 3.0, 5.0, 2.0), DeviceClass("dev", count=2))
    run = SearchContext(warn=said.append, interrupted=lambda: True)
    asked = MethodOptions(method="random", samples=5)
    with pytest.raises(LimitError, match="nothing was found"):
        search_orders(problem, asked, run)
    assert said == ["random: stopped after 0 of 5 orders"]
    assert solve(problem, asked, run).method == "slice"


def test_annealing_that_is_too_large_is_the_split_it_would_start_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LimitError("too many devices")

    monkeypatch.setattr(heuristic, "anneal", refuse)
    said: list[str] = []
    problem = split_of(chain(4.0, 3.0, 5.0), DeviceClass("dev", count=2))
    found = heuristic.annealed(
        problem, MethodOptions(method="anneal", validity="ordered"), SearchContext(warn=said.append)
    )
    assert found.method == "slice"
    assert said == ["too many devices; this is the best ordered split"]
