"""Pairs of spans that programs keep apart: which meet, and what is said where they are too many."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.ip import loop
from dnnp.core.latency.ip.loop import (
    LatencyProgram,
    count_meetings,
    ip,
    meetings,
)
from dnnp.core.latency.ip.placement_model import PlacementProgram
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.solver import slices
from dnnp.core.solver.program import Outcome
from dnnp.core.solver.scheduling_model import Model, Turn
from support.latency_cases import random_problem


@pytest.mark.parametrize("seed", range(10))
def test_spans_meet_unless_their_windows_are_apart(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(10.0)
    model.ordered = lambda first, second: first * second == 6
    for _ in range(rng.randint(1, 12)):
        low = float(rng.randint(0, 8))
        start, end = model.time(lambda at: 0.0, low), model.time(lambda at: 0.0, low)
        model.high[end] = min(low + rng.randint(0, 4), 10.0)
        model.span(start, end)
    lane = [
        Turn(span, 0, 1.0) for span in range(len(model.spans)) for _ in range(rng.randint(1, 2))
    ]
    model.lanes = [lane]
    windows = [(model.low[a], model.high[b]) for a, b in model.spans]
    meet = [
        (a, b)
        for a, b in combinations(range(len(windows)), 2)
        if windows[a][0] <= windows[b][1] and windows[b][0] <= windows[a][1]
    ]
    assert list(meetings(model, lane)) == [pair for pair in meet if pair[0] * pair[1] != 6]
    strictly = [
        (a, b) for a, b in meet if windows[a][0] < windows[b][1] and windows[b][0] < windows[a][1]
    ]
    assert len(strictly) - len(windows) <= count_meetings(model) <= len(meet)


def crowd() -> LatencyProblem:
    return random_problem(random.Random(5), 9, execution="operators", devices=2)


def test_a_program_that_is_refused_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The placement is that of the annealing before, with its bound, and the record says so."""
    monkeypatch.setattr(slices, "MAX_ENTRIES", 10)
    said: list[str] = []
    found = ip(crowd(), MethodOptions("ip"), SearchContext(warn=said.append))
    assert found.method == "anneal"
    assert 0 < found.bound <= crowd().value(found.split)
    assert len(said) == 1
    assert "the solver ended early: an integer program with about" in said[0]
    monkeypatch.setattr(slices, "MAX_ENTRIES", 10**6)
    assert ip(crowd(), MethodOptions("ip"), SearchContext(warn=said.append)).method == ""
    assert len(said) == 1


def test_the_start_is_kept_where_the_program_comes_too_late() -> None:
    kept: list[tuple[float, str]] = []
    run = SearchContext(report_incumbent=lambda split, value, method: kept.append((value, method)))
    found = ip(crowd(), MethodOptions("ip"), run)
    assert kept[0][1] == "anneal"
    assert crowd().value(found.split) <= min(value for value, _ in kept)


def test_no_program_is_written_that_would_come_too_late() -> None:
    """The second one, where the first took longer to write than is left."""
    problem = random_problem(random.Random(7), 24, execution="operators", devices=3)
    programs = loop._Programs(PlacementProgram(problem), None, 0.0, "cbc")
    clock = [0.0]
    written = programs.write

    def slow() -> LatencyProgram | None:
        clock[0] += 60.0
        return written()

    class Asks:
        """Slices of a solver that finds nothing; 100 seconds are left at first."""

        solver = "cbc"

        class run:  # noqa: N801
            time_left = staticmethod(lambda: 100.0 - clock[0])
            stop = staticmethod(lambda: False)
            report_progress = staticmethod(lambda **figures: None)

        class process:  # noqa: N801
            alive = True

        @staticmethod
        def solve(*program: object, **how: object) -> Outcome:
            return Outcome("limit")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "write", slow)
        patch.setattr(slices, "monotonic", lambda: clock[0])
        assert not slices.solve_slices(programs, Asks())  # type: ignore[arg-type]
    assert clock[0] == 60.0
