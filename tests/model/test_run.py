"""A run ends when it is told to or its time is over, and its parts end within it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from time import monotonic

from dnnp.core.model.search_context import PLAIN, SearchContext


def test_a_plain_run_never_ends() -> None:
    assert not PLAIN.stop()
    assert PLAIN.time_left() is None
    assert PLAIN.part(0.5).time_left() is None
    assert PLAIN.within(None) is PLAIN


def test_it_ends_when_somebody_says_so() -> None:
    said: list[bool] = []
    run = SearchContext(interrupted=lambda: bool(said))
    part = run.part(0.5, 1000.0)
    assert not run.stop()
    assert not part.stop()
    said.append(True)
    assert run.stop()
    assert part.stop()


def test_it_ends_when_its_time_is_over() -> None:
    late = SearchContext(end=monotonic() - 1.0)
    assert late.stop()
    assert late.time_left() == 0.0
    assert late.part(0.5).stop()
    assert late.within(1000.0).stop()


def test_a_part_has_its_share_of_what_is_left() -> None:
    run = PLAIN.within(1000.0)
    half = run.part(0.5)
    assert 0.0 < half.end - monotonic() <= 500.0
    assert half.end > run.end - 501.0
    assert PLAIN.part(0.25, 1000.0).end <= monotonic() + 250.0
    assert PLAIN.within(inf).time_left() is None


def test_effort_is_scaled_and_the_rest_stays() -> None:
    run = SearchContext(seed=3, effort=0.5)
    assert run.scaled(0.5) == replace(run, effort=0.25)


def test_a_step_alone_is_not_heard() -> None:
    heard: list[object] = []
    run = SearchContext(
        watch=heard.append, report_incumbent=lambda *kept: heard.append(kept), log=heard.append
    )
    run.alone().report_progress(share=0.5)
    run.alone().report_incumbent("split", 1.0, "method")
    assert not heard
    run.alone().log("found")
    assert heard == ["found"]
