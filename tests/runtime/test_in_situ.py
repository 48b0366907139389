"""Timing parts of a model as they will run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from threading import active_count

import numpy as np
import pytest
from onnx import helper

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime import measure_in_situ
from dnnp.core.runtime.measure_in_situ import Part, Rounds, half_width, measure_parts
from dnnp.core.runtime.measure_operators import Measurement
from dnnp.core.runtime.model import providers
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline.steps import Step
from dnnp.core.runtime.report.statistics import Timing
from support.split_models import array, make, value

N = 96
node = helper.make_node
QUICK = Measurement(repeats=3, warmup=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rounds than are needed."""
    monkeypatch.setattr(measure_in_situ, "PATIENCE_S", 0.0)


def chain(length: int):
    """Products with one matrix, one after the other."""
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    nodes = [node("MatMul", [names[i], "w"], [names[i + 1]]) for i in range(length)]
    weight = array("w", np.full((N, N), 1.0 / N))
    return make(helper.make_graph(nodes, "g", [value("x", [N, N])], [value("y", [N, N])], [weight]))


def rounds(**changes: object) -> Rounds:
    return Rounds(SessionConfig(), **{"least": 3, "warmup": 1, **changes})  # type: ignore[arg-type]


def test_parts_and_segments_are_timed(tmp_path: Path) -> None:
    before, threads = os.sched_getaffinity(0), active_count()
    told: list[int] = []
    units = [[0], [1], [2, 3], [4, 5]]
    parts = [Part(((0,), (1,))), Part(((2, 3),))]
    how = rounds(progress=lambda done, interval: told.append(done))
    found = measure_parts(chain(6), tmp_path, units, parts, QUICK, how)
    assert found.parts == parts
    assert (len(found.part_s), len(found.segment_s)) == (2, 3)
    assert min(*found.part_s, *found.segment_s, found.cold_s) > 0
    assert (len(found.part_interval), len(found.segment_interval)) == (2, 3)
    assert found.interval is not None
    assert found.rounds >= 3
    assert told == list(range(1, len(told) + 1))
    assert found.taken is None or 0 <= found.taken <= 1
    assert found.times(np.ones(4)).sum() == pytest.approx(found.total_s)
    nodes = found.times(np.ones(6), units)
    assert nodes.sum() == pytest.approx(found.total_s)
    assert nodes[2] == pytest.approx(nodes[5])
    assert found.intervals(4).min() >= 0
    # What was started has ended, and this thread may run anywhere.
    assert os.sched_getaffinity(0) == before
    assert active_count() <= threads  # others may have ended meanwhile


def test_parts_that_do_not_follow_each_other(tmp_path: Path) -> None:
    """A tensor skips a part, inputs reach all parts, and one part reads from no other."""
    nodes = [
        node("Add", ["x", "x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("Sum", ["a", "b", "x"], ["y"]),
    ]
    model = make(helper.make_graph(nodes, "g", [value("x", [4])], [value("y", [4])]))
    parts = [Part(((0,),)), Part(((1,),)), Part(((2,),))]
    found = measure_parts(model, tmp_path, [[0], [1], [2]], parts, QUICK, rounds())
    assert len(found.part_s) == 3


def test_parts_that_share_cores_tell_nothing_of_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        providers, "available_cores", lambda: tuple(sorted(os.sched_getaffinity(0)))[:1]
    )
    parts = [Part(((0,),)), Part(((1,),))]
    found = measure_parts(chain(2), tmp_path, [[0], [1]], parts, QUICK, rounds())
    assert found.taken is None
    assert found.rounds == 3


def test_too_few_rounds_say_nothing_of_the_spread(tmp_path: Path) -> None:
    parts, how = [Part(((0,),))], rounds(least=1)
    model = chain(1)
    found = measure_parts(model, tmp_path, [[0]], parts, QUICK, how)
    assert (found.interval, found.part_interval, found.rounds) == (None, (), 1)
    assert len(found.intervals(1)) == 0


def test_what_cannot_be_handed_over_is_timed_in_one_piece(tmp_path: Path) -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
        node("Neg", ["y"], ["z"]),
    ]
    model = make(helper.make_graph(nodes, "g", [value("x", [4])], [value("z", [8])]))
    units, parts = [[0], [1], [2]], [Part(((0,),)), Part(((1,), (2,)))]
    found = measure_parts(model, tmp_path, units, parts, QUICK, rounds())
    assert found.parts == [Part(((0, 1, 2),))]
    whole = found.total_s
    assert found.times(np.array([1.0, 2.0, 1.0])) == pytest.approx(
        [whole / 4, whole / 2, whole / 4]
    )


def test_a_part_that_fails_is_named(tmp_path: Path) -> None:
    nodes = [node("Gather", ["x", "i"], ["y"])]
    model = make(
        helper.make_graph(
            nodes, "g", [value("x", [2])], [value("y", [1])], [array("i", [7], np.int64)]
        )
    )
    with pytest.raises(InputFileError, match=r"part 0: .*Gather"):
        measure_parts(model, tmp_path, [[0]], [Part(((0,),))], QUICK, rounds())


def test_how_well_a_median_is_known() -> None:
    assert half_width([1.0, 2.0]) is None
    assert half_width([2.0] * 5) == 0.0
    # Deviations 1, 0, 1 from 10: 1.4826 by their median; 1.2533 / sqrt(n) for a median.
    expected = 1.96 * 1.2533 * 1.4826 / np.sqrt(3) / 10
    assert half_width([9.0, 10.0, 11.0]) == pytest.approx(expected)
    draws = np.random.default_rng(0).normal(100.0, 5.0, (400, 25))
    inside = [abs(np.median(d) - 100.0) / np.median(d) <= half_width(d.tolist()) for d in draws]
    assert 0.85 < np.mean(inside) < 1.0


def timing(lost: float) -> Timing:
    return Timing(1, 1.0, 1.0, 1.0, (1.0,), (0.0,), 0.0, taken=(lost,))


def test_rounds_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_in_situ, "PATIENCE_S", 20.0)
    wide, narrow = [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]
    quiet, loud = [timing(0.0)] * 3, [timing(0.5)] * 3
    goes_on, how, one = measure_in_situ._goes_on, rounds(), rounds(least=1)
    assert goes_on(wide[:2], quiet[:2], how, 1e9)
    assert goes_on(wide, quiet, how, 0.0)
    assert not goes_on(wide, quiet, how, 1e9)
    assert not goes_on(wide, quiet, rounds(few=True), 0.0)
    assert not goes_on(narrow, quiet, how, 0.0)
    assert goes_on(narrow, loud, how, 0.0)
    assert not goes_on(wide * 10, loud * 10, how, 0.0)
    assert not goes_on([1.0], quiet[:1], one, 1e9)


def test_disturbed_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_in_situ, "PATIENCE_S", 1e9)
    lost = iter([0.0, 0.5, 0.0, 0.0, 0.5, 0.0])

    def send(self, count: int, warmup: int) -> Timing:
        share = next(lost)
        return replace(timing(share), loads_s=(1.0 + share,))

    monkeypatch.setattr(measure_in_situ._TimedPipeline, "send", send)
    line = measure_in_situ._TimedPipeline([Step("part 0", (), (), ())], [[0]], [], [])
    assert measure_in_situ._run_rounds([line], rounds()) == 0.0
    assert line.loads == [(1.0,)] * 3
    assert line.medians == (1.0,)


def test_where_all_are_disturbed_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_in_situ, "PATIENCE_S", 1e9)
    monkeypatch.setattr(
        measure_in_situ._TimedPipeline, "send", lambda self, count, warmup: timing(0.5)
    )
    line = measure_in_situ._TimedPipeline([Step("part 0", (), (), ())], [[0]], [], [])
    assert measure_in_situ._run_rounds([line], rounds()) == 0.5
    assert len(line.loads) == 30
