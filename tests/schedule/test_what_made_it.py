"""The method that the record of a schedule names did make it, and what was cut short is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dnnp.core.model.errors import LimitError
from dnnp.core.model.schedule import Schedule
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule import auto, complete, repetend, tessel
from dnnp.core.schedule.optimal import optimal, sequential_schedule
from dnnp.core.schedule.problem import Answer, Wanted, problem_of, with_limit
from dnnp.core.schedule.recipes import classic
from dnnp.core.schedule.shapes import shape
from support.run import dnnp

V = shape("V", 4)


def solved(wanted: Wanted, placement=V, effort: float = 1.0) -> tuple[Schedule, list[str]]:
    """A schedule, and what was said meanwhile."""
    said: list[str] = []
    found = auto.solve(placement, wanted, SearchContext(effort=effort, warn=said.append))
    return found, said


def test_auto_names_the_recipe_that_it_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bad schedule around the repetend some recipe is shorter."""
    monkeypatch.setattr(complete, "_valid", lambda problem, made: 2 * made.ravel())
    monkeypatch.setattr(complete, "justified", lambda problem, start, *_: start)
    found, _ = solved(Wanted(8))
    assert found.method in ("gpipe", "1f1b", "1f1b+", "sequential")
    same = classic(V, found.method, 8).start
    assert (found.start_s.ravel() == same - same.min()).all()


def test_beams_are_named_where_they_beat_the_repetend() -> None:
    problem = problem_of(shape("V", 3), 3)
    worse = classic(shape("V", 3), "sequential", 3).start
    found = optimal(problem, worse)
    assert found.method in ("optimal", "in-turn")
    again = optimal(problem, found.start)
    assert (again.method, again.named("auto")) == ("known", "auto")


def test_one_block_needs_no_search() -> None:
    """A schedule that is optimal from the start was not found by beams."""
    found, _ = solved(Wanted(3, "optimal"), shape("V", 1, inference=True))
    assert (found.method, found.status) == ("in-turn", "optimal")
    assert (found.start_s.ravel() == sequential_schedule(problem_of(found.placement, 3))).all()


def test_optimal_without_room_for_wider_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.schedule.optimal.MOST_WIDTH", 1)
    _, said = solved(Wanted(6, "optimal"), shape("NN", 4))
    assert said == [
        "optimal: ended with 1 partial schedules, for which there is memory; a larger --effort "
        "does not help"
    ]


def test_tessel_that_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tessel, "_completes", lambda *_: True)
    monkeypatch.setattr(tessel, "around", lambda *_: None)
    found, said = solved(Wanted(3, "tessel"), with_limit(V, 2.0))
    assert said == ["tessel: 3 micro-batches in the order of the repetend hold too much"]
    assert found.method in ("optimal", "in-turn")
    assert found.repetend is not None
    assert found.repetend.method == "tessel"


def test_tessel_that_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = with_limit(V, 3.0)
    assert solved(Wanted(4, "tessel"), limited)[1] == []
    found = tessel.tessel(limited)
    monkeypatch.setattr(tessel, "tessel", lambda *_, **__: replace(found, complete=False))
    _, said = solved(Wanted(4, "tessel"), limited)
    assert said == ["tessel: not all was tried; a larger --effort may find a shorter period"]


def test_repetends_that_are_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert solved(Wanted(4))[0].repetend.method == "orders"
    for module in (repetend, auto):
        monkeypatch.setattr(module, "MOST_BLOCKS", 7)
    found, said = solved(Wanted(4, unroll=1))
    assert found.repetend.method == "list"
    assert said == [
        "8 blocks in a period are above 7: list scheduling made the repetend, without search"
    ]
    monkeypatch.setattr("dnnp.core.schedule.list_schedules.MOST_CHECKS", 0)
    found, said = solved(Wanted(4, unroll=1))
    assert found.repetend.method == "sequential"
    assert "running one block after the other made" in said[0]


def test_recipes_that_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "MOST_FOR_RECIPES", 1)
    monkeypatch.setattr(auto, "makespan_bound", lambda *_: 0.0)
    monkeypatch.setattr(
        auto,
        "complete",
        lambda limits, found, count, bound, run, starts: Answer(
            complete.unrolled(found, count + len(list(starts))).ravel(), "auto", 0.0
        ),
    )
    assert solved(Wanted(4))[1] == ["32 blocks are above 1: recipes were not tried"]


def test_a_trade_off_that_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run = SearchContext(warn=said.append)
    whole = auto.trade_off(V, 1, run)
    assert (len(whole) > 2, said) == (True, [])
    assert all(point.method == "orders" for point in whole)
    monkeypatch.setattr(auto, "MOST_POINTS", 2)
    assert len(auto.trade_off(V, 1, run)) == 2
    assert said == ["the trade-off ends after 2 points; there may be more below"]


def test_a_point_without_effort_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    find, calls = auto.find_repetend, []

    def tired(*arguments, **named):
        calls.append(arguments)
        if len(calls) > 2:
            raise LimitError("no repetend was found in the time given")
        return find(*arguments, **named)

    monkeypatch.setattr(auto, "find_repetend", tired)
    said: list[str] = []
    points = auto.trade_off(V, 1, SearchContext(warn=said.append))
    assert 1 <= len(points) <= 2
    assert "the trade-off ends after" in said[0]


def test_bounds_that_leave_something_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.schedule.bound.MOST_BLOCKS", 7)
    _, said = solved(Wanted(4, "1f1b"))
    assert said == ["8 blocks a micro-batch are above 7: no bound counts how long memory is held"]


def test_record_and_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = dnnp("schedule", "--shape", "V", "-n", "4", "--pareto", "--unroll", "1")
    record = result.one("schedule")
    assert record["method"] in ("auto", "optimal", "1f1b", "1f1b+", "in-turn")
    assert (" by " in result.err) == (record["method"] != "auto")
    assert {point["method"] for point in record["pareto"]} == {"orders"}
    assert record["repetend"]["method"] == "orders"
    given = dnnp("schedule", "--shape", "V", "-n", "4", "--method", "gpipe")
    assert given.one("schedule")["method"] == "gpipe"
    assert " by " not in given.err
