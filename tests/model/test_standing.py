"""Progress of long work never gets worse, whatever is reported last."""

from __future__ import annotations

from math import inf

import pytest

from dnnp.core.model.search_context import Progress, SearchContext


def test_nothing_gets_worse() -> None:
    known = Progress("slicing", 5.0, 2.0, 0.4)
    for said in (Progress(), Progress(value=6.0), Progress(bound=1.0), Progress(share=0.1)):
        assert said.after(known) == known
    better = ("annealing", 4.0, 3.0, 0.5, "", False, "")
    assert Progress("annealing", 4.0, 3.0, 0.5).after(known) == better


def test_another_quantity_begins_anew() -> None:
    known = Progress("shortest period", 5.0, 4.0, 0.4, "period")
    ends = Progress("ends", 90.0, what="makespan").after(known)
    assert ends == ("ends", 90.0, 0.0, 0.4, "makespan", False, "")
    assert Progress(value=80.0).after(ends).what == "makespan"


@pytest.mark.parametrize(
    ("value", "bound", "gap"),
    [(inf, 1.0, None), (2.0, 0.0, None), (0.0, 0.0, None), (2.0, 1.5, 0.25), (2.0, 2.1, 0.0)],
)
def test_gap(value: float, bound: float, gap: float | None) -> None:
    assert Progress(value=value, bound=bound).gap == gap


def test_a_step_is_a_part_of_the_whole() -> None:
    heard: list[Progress] = []
    run = SearchContext(watch=heard.append)
    half = run.phase("slicing", 0.5, 1.0)
    half.report_progress(share=0.5)
    half.phase("", 0.5, 1.0).report_progress(share=1.0)
    assert [(s.doing, s.share) for s in heard] == [
        ("slicing", 0.5),
        ("", 0.75),
        ("", 0.75),
        ("", 1.0),
    ]


def test_what_does_not_hold_for_the_whole_is_left_out() -> None:
    heard: list[Progress] = []
    run = SearchContext(watch=heard.append)
    for other in (run.without_shares(), run.without_bounds()):
        other.report_progress("slicing", value=3.0, bound=2.0, share=0.5)
    assert heard == [Progress("slicing", 3.0, 2.0), Progress("slicing", 3.0, 0.0, 0.5)]
