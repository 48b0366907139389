"""Begin, length and disturbance of measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime import execute as outcomes
from dnnp.core.runtime import usage
from dnnp.core.runtime.execute import execute
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline import threads as pipelines
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.sources import Traffic
from dnnp.core.runtime.report import statistics
from dnnp.core.runtime.report.outcome import Checks, timing_lines
from dnnp.core.runtime.report.statistics import (
    SteadyRate,
    Timing,
    Trace,
    count_for,
    find_steady_rate,
    median_timing,
    summarize,
    worth_repeating,
)
from dnnp.deployment import load as command
from support.run import dnnp
from support.running import SPLIT, known_time, network, planned, run_pipeline, stage_of, step_of


def timing_of(rate: float = 100.0, *taken: float, samples: int = 10) -> Timing:
    return Timing(samples, rate, 0.01, 0.01, (0.01,), (0.0,), 0.0, taken=taken)


class Machine:
    """Runs samples at given rates, one a stretch, the last one for ever."""

    def __init__(self, rates: Sequence[float], taken: Sequence[float] = ()) -> None:
        self.rates, self.taken = [*rates], [*taken]
        self.now = 0.0
        self.stretches: list[int] = []

    def run(self, count: int) -> Timing:
        rate = self.rates[min(len(self.stretches), len(self.rates) - 1)]
        taken = self.taken[len(self.stretches) : len(self.stretches) + 1]
        self.stretches.append(count)
        self.now += count / rate
        return timing_of(rate, *taken, samples=count)

    def find_steady_rate(self, first: int, **options: Any) -> SteadyRate:
        return find_steady_rate(self.run, first, clock=lambda: self.now, **options)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "SETTLE_S", 1.5)
    monkeypatch.setattr(statistics, "TRIES", 3)


def test_two_stretches_of_one_rate_are_enough() -> None:
    machine = Machine([30, 50, 100, 101])
    assert machine.find_steady_rate(10) == SteadyRate(40, 101, pytest.approx(1 / 101))
    assert machine.stretches == [10] * 4


def test_short_stretches_grow_before_they_count() -> None:
    machine = Machine([1000])
    assert machine.find_steady_rate(3).samples == sum(machine.stretches)
    assert machine.stretches[:3] == [3, 12, 48]
    assert machine.stretches[3] == pytest.approx(1000 * statistics.STRETCH_S, rel=0.02)
    assert len(machine.stretches) == 4


def test_a_rate_that_others_lower_is_not_steady() -> None:
    machine = Machine([50, 50, 50, 100], [0.5, 0.5, 0.5, 0.0])
    machine.find_steady_rate(10)
    assert machine.stretches == [10] * 5


def test_patience_has_an_end() -> None:
    machine = Machine([100, 200] * 20)
    steady_rate = machine.find_steady_rate(30)
    assert steady_rate.change == pytest.approx(0.5)
    assert machine.now < 1.5 + 30 / 100
    slow = Machine([0.5])
    assert slow.find_steady_rate(3) == SteadyRate(3, 0.5, None)
    assert Machine([100]).find_steady_rate(30, most=1) == SteadyRate(30, 100, None)


def test_an_interruption_ends_it() -> None:
    steady_rate = find_steady_rate(lambda count: timing_of(0.0, samples=1), 9, clock=lambda: 0.0)
    assert steady_rate == SteadyRate(1, 0.0, None)


def test_the_number_of_samples_follows_from_the_rate() -> None:
    assert count_for(250.5, 1.0, 32) == 251
    assert count_for(3.0, 1.0, 32) == 32
    assert count_for(0.0, 1.0, 32) == 32
    assert count_for(250.5, 0.0, 7) == 7


def test_what_is_worth_repeating() -> None:
    disturbed, quiet = timing_of(100, 0.0, 0.4), timing_of(100, 0.01, 0.01)
    assert worth_repeating(disturbed, 1, 1.0)
    assert not worth_repeating(quiet, 1, 1.0)
    assert not worth_repeating(timing_of(100), 1, 1.0)  # not known
    assert worth_repeating(timing_of(100, 0.02, 0.02), 1, 1.0)  # the pipeline may lose both
    assert not worth_repeating(disturbed, 3, 3.0)
    assert not worth_repeating(disturbed, 1, 2.5)


def trace_of(waited: Any, own_share: float = 0.0) -> Trace:
    """Two stages, the second on two devices; four samples in 100 ns each."""
    start = np.array([[0, 100, 200, 300], [100, 200, 300, 400]], dtype=np.int64)
    done = np.array([200, 300, 400, 500], dtype=np.int64)
    table = None if waited is None else np.array(waited, dtype=np.int64)
    return Trace(start, start + 100, done, np.array([1, 2]), {}, False, table, own_share)


def test_waits_become_shares_of_the_time_of_a_stage() -> None:
    waited = [[90, 0, 30, 0], [0, 0, 0, 60]]
    assert summarize(trace_of(waited)).taken == pytest.approx((120 / 400, 60 / 800))
    assert summarize(trace_of(waited), 2).taken == pytest.approx((30 / 200, 60 / 400))
    # Time that our own threads may have taken does not count.
    assert summarize(trace_of(waited, 0.1)).taken == pytest.approx((0.22, 0.055))
    assert summarize(trace_of(waited, 0.5)).taken == (0.0, 0.0)
    assert summarize(trace_of(None)).taken == ()
    assert trace_of(waited).without_samples().waited_ns.tolist() == [[], []]  # type: ignore[union-attr]
    rounds = [timing_of(1, 0.5, 0.0), timing_of(1, 0.1, 0.2), timing_of(1, 0.3, 0.1)]
    assert median_timing(rounds).taken == pytest.approx((0.3, 0.1))
    assert median_timing([timing_of(), timing_of()]).taken == ()


def test_waits_are_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_OWN", f"{tmp_path}/own")
    monkeypatch.setattr(usage, "_TASKS", str(tmp_path))

    def write(folder: str, text: str) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "schedstat").write_text(text)

    assert not usage.waits_are_known()
    assert usage.WaitClock().passed_ns() == 0
    write("own", "5000 700 3\n")
    write("12", "1 100 1\n")
    assert usage.waits_are_known()
    clock = usage.WaitClock((12,))
    write("own", "9000 1000 3\n")
    write("12", "1 600 1\n")
    assert clock.passed_ns((12,)) == (300 + 500) // 2
    assert clock.passed_ns((12,)) == 0
    write("own", "?\n")
    assert usage.WaitClock().passed_ns() == 0


def test_what_the_host_takes_is_read_by_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The eighth number of a core's line, in ticks; the first line is the sum over cores."""
    monkeypatch.setattr(usage, "_CORES", str(tmp_path / "stat"))
    tick = 10**9 // os.sysconf("SC_CLK_TCK")

    def write(*stolen: int) -> None:
        lines = [f"cpu{i} 1 2 3 4 5 6 7 {ticks} 9 10" for i, ticks in enumerate(stolen)]
        (tmp_path / "stat").write_text("\n".join(["cpu 1 2 3 4 5 6 7 999 0 0", *lines, "intr 5"]))

    assert usage.StealClock().passed_ns() == 0
    write(10, 20, 30)
    clock = usage.StealClock()
    write(13, 20, 36)
    assert clock.passed_ns({0}) == 3 * tick
    assert clock.passed_ns({0, 2}) == 9 * tick // 2
    assert clock.passed_ns() == 3 * tick
    assert clock.passed_ns({7}) == 0
    (tmp_path / "stat").write_text("cpu0 x\n")
    assert clock.passed_ns() == 0


def test_what_the_host_takes_counts_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of("stage 0", "x", "y", known_time(0, ["y"]), known_time(0, ["y"]))
    monkeypatch.setattr(pipelines.StealClock, "passed_ns", lambda self, cores: 10**15)
    trace = run_pipeline([step], [{"x": 1}], 7, ["y"])
    assert trace.waited_ns is not None
    # Each of the two replicas says it with its last sample.
    assert (trace.waited_ns >= 10**15).tolist() == [[False] * 5 + [True] * 2]
    assert summarize(replace(trace, own_share=0.0), 5).taken == (1.0,)


def test_threads_that_a_call_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_TASKS", str(tmp_path))
    (tmp_path / "7").mkdir()
    assert usage.with_threads(lambda: (tmp_path / "9").mkdir()) == (None, (9,))


@pytest.fixture
def pipeline() -> Pipeline:
    stages = [stage_of(nodes, i) for i, nodes in enumerate(SPLIT)]
    return prepare(network(), Path(), stages, SessionConfig())


def shares(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *taken: float) -> None:
    """Disturb measurements by these shares, one after the other."""
    figures = iter(taken)
    real = pipeline.summarize

    def made_up(trace: Trace, load: Traffic) -> Timing:
        return replace(real(trace, load), taken=(0.0, next(figures), 0.0))

    monkeypatch.setattr(pipeline, "summarize", made_up)


def test_the_least_disturbed_measurement_counts(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares(pipeline, monkeypatch, 0.5, 0.2, 0.3)
    monkeypatch.setattr(outcomes, "worth_repeating", lambda timing, tries, _: tries < 3)
    outcome = execute(
        pipeline, Traffic([random_inputs(network(), 0)], 5, 1, until_steady=True), Checks()
    )
    before = outcome.steady_rate.samples
    assert before > 0
    record = outcome.records("0" * 64)[0]
    assert (record["samples"], record["discarded"]) == (5, before + 3 * 6 - 5)
    assert record["taken"] == 0.2
    assert [s["taken"] for s in record["stages"]] == [0.0, 0.2, 0.0]
    lines = outcome.lines()
    assert any("the least disturbed of 3 measurements" in line for line in lines)
    (line,) = (line for line in lines if line.startswith("disturbed"))
    core = pipeline.steps[1].workers[0].cores[0]
    assert line == f"disturbed   other processes or the host took 20% of core {core} from stage 1"


def test_what_nothing_disturbs_is_measured_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares(pipeline, monkeypatch, 0.01)
    outcome = execute(
        pipeline, Traffic([random_inputs(network(), 0)], 5, 0, until_steady=True), Checks()
    )
    assert outcome.tries == 1
    assert not any(line.startswith("disturbed") for line in outcome.lines())


def test_with_a_given_warm_up_nothing_is_added(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares(pipeline, monkeypatch, 0.9)
    outcome = execute(pipeline, Traffic([random_inputs(network(), 0)], 5, 2), Checks())
    assert (outcome.tries, outcome.steady_rate, outcome.discarded) == (1, SteadyRate(), 2)


def test_stages_that_share_cores_accuse_nobody(pipeline: Pipeline) -> None:
    pipeline.oversubscribed = True
    assert pipeline.figures(timing_of(100, 0.9)).taken == ()
    pipeline.oversubscribed = False
    assert pipeline.figures(timing_of(100, 0.9)).taken == (0.9,)


def test_the_command_chooses_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ENOUGH_S", 0.02)
    monkeypatch.setattr(statistics, "SETTLE_S", 0.0)
    stream = planned(network(), tmp_path, SPLIT)
    result = dnnp("run", stdin=stream)
    assert result.status == 0, result.err
    record = result.one("run")
    assert record["samples"] >= 32
    assert record["discarded"] > 0
    assert f"samples     {record['samples']}; {record['discarded']} others do not" in result.err
    monkeypatch.setattr(
        "dnnp.core.runtime.pipeline.prepare.count_for", lambda rate, seconds, least: 77
    )
    assert dnnp("run", stdin=stream).one("run")["samples"] == 77
    assert dnnp("run", "--warmup", "2", stdin=stream).one("run")["samples"] == 77
    exact = dnnp("run", "-n", "5", "--warmup", "0", stdin=stream)
    assert [exact.one("run")[name] for name in ("samples", "discarded")] == [5, 0]


def test_all_inputs_are_used_where_nothing_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ENOUGH_S", 0.0)
    monkeypatch.setattr(command, "SAMPLES", 2)
    arguments: list[str] = []
    for i in range(6):
        arguments += ["--inputs", str(tmp_path / f"{i}.npz")]
        np.savez(arguments[-1], **random_inputs(network(), i))
    result = dnnp("run", "--warmup", "0", *arguments, stdin=planned(network(), tmp_path, SPLIT))
    assert result.status == 0, result.err
    assert result.one("run")["samples"] == 6


def test_a_stage_that_fails_while_the_rate_settles(pipeline: Pipeline) -> None:
    bad = random_inputs(network(), 0) | {"ids": np.array([0, 1, 2, 3, 99])}
    with pytest.raises(InputFileError, match="stage 1: sample 0: ONNX Runtime fails"):
        execute(pipeline, Traffic([bad], 5, until_steady=True), Checks())


@pytest.mark.parametrize("taken", [(), (0.01, 0.01), (0.2, 0.1)])
def test_share_of_the_slowest_rate_where_others_take_time(taken: tuple[float, ...]) -> None:
    """Three of 20 samples of 1 ms are delayed by 10 ms, which the median ignores."""
    timing = Timing(20, 400.0, 2e-3, 2e-2, (1e-3, 5e-4), (0.0, 0.5), 0.25, taken=taken)
    (line,) = [line for line in timing_lines(timing, slowest_s=1e-3) if "slowest" in line]
    assert "40.0% of the slowest stage's rate" in line
    assert line.endswith("when nothing disturbs it") == (sum(taken) > 0.03)
