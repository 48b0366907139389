"""Samples that arrive at their own pace: arrivals, queues, percentiles, sweeps, durations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dnnp.core.runtime.comparisons import (
    QUANTILES,
    SHARES,
    Queueing,
    Sweep,
    SweepResult,
    queueing,
    run_sweep,
)
from dnnp.core.runtime.pipeline.sources import Arrivals, Repeated, Sink
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.report.statistics import Trace
from support.run import dnnp
from support.running import SPLIT, known_time, network, planned, step_of


def served(arrived_ns: NDArray[np.int64], times_s: list[float]) -> Trace:
    """Trace of arrivals through stages of known times and unlimited queues."""
    times_ns = [round(time_s * 1e9) for time_s in times_s]
    start = np.zeros((len(times_s), len(arrived_ns)), dtype=np.int64)
    free = [0] * len(times_s)
    for s, there in enumerate(map(int, arrived_ns)):
        for i, time_ns in enumerate(times_ns):
            start[i, s] = max(there, free[i])
            there = free[i] = start[i, s] + time_ns
    end = start + np.array(times_ns)[:, None]
    ones = np.ones(len(times_s), dtype=np.int64)
    return Trace(start, end, end[-1].copy(), ones, {}, False, arrived_ns=arrived_ns)


def figures(rate_per_s: float, times_s: list[float], count: int, process: str) -> Queueing:
    arrivals = Arrivals(process, rate_per_s, 1)
    found = queueing(served(arrivals.times_ns(count), times_s), arrivals)
    assert found is not None
    return found


@pytest.mark.parametrize("process", ["poisson", "uniform"])
def test_arrivals_are_those_of_their_process(process: str) -> None:
    arrivals = Arrivals(process, 50.0, 3)
    times = arrivals.times_ns(20_000)
    assert times[0] == 0
    gaps = np.diff(times) * 1e-9
    assert gaps.mean() == pytest.approx(0.02, rel=0.02)
    # The deviation of an exponential gap is its mean, a quarter is below 0.288 of it.
    assert gaps.std() == pytest.approx(0.02 if process == "poisson" else 0.0, rel=0.03, abs=1e-8)
    if process == "poisson":
        assert np.quantile(gaps, 0.25) == pytest.approx(-0.02 * math.log(0.75), rel=0.03)
        assert not np.array_equal(times, Arrivals(process, 50.0, 4).times_ns(20_000))
    for count in (0, 1, 7, 300):
        np.testing.assert_array_equal(arrivals.times_ns(count), times[:count])
    for seconds in (1e-3, 0.5, 30.0):
        assert arrivals.within(seconds) == max(int((times < seconds * 1e9).sum()), 1)


def test_percentiles_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    arrivals = Arrivals("poisson", 10.0)
    for count in (1, 2, 3, 100, 1001):
        arrived = arrivals.times_ns(count) + 12345
        done = np.maximum.accumulate(arrived + rng.integers(1, 10**9, count))
        ones = np.ones((1, count), dtype=np.int64)
        trace = Trace(ones, ones, done, ones[:, 0], {}, False, arrived_ns=arrived)
        found = queueing(trace, arrivals)
        assert found is not None
        latency = (done - arrived) / 1e9
        for name, share in QUANTILES.items():
            wanted = pytest.approx(np.quantile(latency, share))
            assert found.fields()[f"latency_{name}_s"] == wanted
        assert (found.mean_s, found.max_s) == pytest.approx((latency.mean(), latency.max()))
        late = sum(1 for d in done if d > arrived[-1])
        assert (found.samples, found.backlog) == (count, late)
    assert queueing(Trace(ones, ones, done[:0], ones[:, 0], {}, True), arrivals) is None


def test_waiting_is_that_of_theory() -> None:
    """M/D/1, and stages behind it that are faster add their time alone (Kingman, exact here)."""
    for load in (0.3, 0.6, 0.8):
        found = figures(load / 0.01, [0.01], 200_000, "poisson")
        waits = load * 0.01 / (2 * (1 - load))
        assert found.mean_s - 0.01 == pytest.approx(waits, rel=0.05)
        longer = figures(load / 0.01, [0.01, 0.004, 0.007], 200_000, "poisson")
        assert longer.mean_s - found.mean_s == pytest.approx(0.011, rel=1e-6)
        assert not found.saturated
    even = figures(90.0, [0.01, 0.004], 1000, "uniform")
    assert (even.quantiles_s[0], even.max_s) == pytest.approx((0.014, 0.014))
    assert even.backlog <= 2


@pytest.mark.parametrize("process", ["poisson", "uniform"])
def test_what_does_not_keep_up_is_told_from_what_does(process: str) -> None:
    for load, saturated in ((0.5, False), (0.8, False), (1.3, True), (2.0, True)):
        for count in (100, 2000):
            found = figures(load * 100, [0.004, 0.01, 0.002], count, process)
            assert found.saturated == saturated, (load, count, found.backlog)
            assert ("does not keep up" in "".join(found.lines())) == saturated
    slow = figures(200.0, [0.01], 1000, "uniform")
    assert slow.backlog == pytest.approx(500, abs=2)
    assert slow.throughput_per_s == pytest.approx(100, rel=1e-3)


def test_a_pipeline_serves_in_order_and_not_before_a_sample_arrives() -> None:
    steps = [
        step_of("stage 0", "x", "a", known_time(0.002, ["a"])),
        step_of("stage 1", "xa", "y", known_time(0.001, ["y"]), known_time(0.001, ["y"])),
    ]
    arrivals = Arrivals("poisson", 300.0, 5)
    source = Repeated([{"x": 1}], 40, arrivals_ns=arrivals.times_ns(40))
    trace = send(steps, source, Sink(), ["y"])
    assert trace.arrived_ns is not None
    np.testing.assert_array_equal(np.diff(trace.arrived_ns), np.diff(arrivals.times_ns(40)))
    assert (trace.start_ns.min(axis=0) >= trace.arrived_ns).all()
    assert (np.diff(trace.done_ns) >= 0).all()
    found = queueing(trace, arrivals)
    assert found is not None
    # The first stage alone serves them so at best: a stage behind it waits no less here.
    best = served(trace.arrived_ns, [0.002])
    assert (trace.end_ns[0] >= best.end_ns[0]).all()
    assert found.mean_s >= (best.done_ns - trace.arrived_ns).mean() * 1e-9 + 0.001
    assert (found.samples, found.workers) == (40, 3)


def test_a_duration_ends_what_sets_out() -> None:
    now = [0]
    source = Repeated([{"x": 0}, {"x": 1}], None, seconds=1.0, clock=lambda: now[0])
    source.begin(0)
    assert [source.sample(s) for s in (0, 1, 4)] == [{"x": 0}, {"x": 1}, {"x": 0}]
    now[0] = 10**9 + 1
    assert source.sample(3) == {"x": 1}  # a later one has set out
    assert source.sample(2) == {"x": 0}
    assert source.count is None
    assert (source.sample(5), source.count) == (None, 5)
    assert source.sample(4) == {"x": 0}
    calls = [0, 0]

    def count(i: int, name: str) -> Any:
        def call(_: Any) -> dict[str, int]:
            calls[i] += 1
            return {name: 0}

        return call

    steps = [
        step_of("stage 0", "x", "a", count(0, "a"), count(0, "a")),
        step_of("stage 1", "xa", "y", count(1, "y")),
    ]
    trace = send(steps, Repeated([{"x": 0}], None, seconds=0.05), Sink(), ["y"])
    assert calls == [trace.done, trace.done]
    assert trace.done > 0
    assert not trace.interrupted


def swept(count: int = 400) -> SweepResult:
    """A sweep of two stages of known times, at equal distances."""
    sweep = Sweep("uniform", 0, count, 1.0, 10)
    told: list[float] = []

    def measure(arrivals: Arrivals, samples: int) -> Queueing | None:
        return queueing(served(arrivals.times_ns(samples), [0.01, 0.005]), arrivals)

    found = run_sweep(sweep, 100.0, measure, lambda doing, share: told.append(share))
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] < 1
    return found


def test_a_sweep_finds_knee_and_capacity() -> None:
    found = swept()
    assert [share for share, _ in found.rows] == list(SHARES)
    # Samples do not wait up to the capacity: that is the knee, and the highest sustained rate.
    assert found.knee is found.rows[9][1]
    assert found.sustained is found.rows[9][1]
    assert [row.saturated for _, row in found.rows] == [False] * 10 + [True] * 2
    lines = found.lines()
    assert lines[10].split()[:3] == ["100/s", "100%", "99.88/s"]
    assert lines[10].endswith("  knee")
    assert lines[12].endswith("  saturated")
    assert lines[13].startswith("knee        100/s")
    few = Sweep("poisson", 0, None, 0.5, 10).steps(100.0)
    assert [count for _, arrivals, count in few] == [
        max(arrivals.within(0.5), 10) for _, arrivals, _ in few
    ]
    stopped = run_sweep(Sweep("uniform", 0, 5, 1.0, 1), 100.0, lambda a, n: None, lambda d, s: None)
    assert stopped.record()["rates"] == []
    assert run_sweep(stopped.sweep, 0.0, lambda a, n: None, lambda d, s: None).rows == []


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rates")
    (folder / "plan.dnnp").write_bytes(planned(network(), folder, SPLIT))
    return folder / "plan.dnnp"


def run_faults(out: bytes) -> list[str]:
    """Messages of the checker about runs."""
    return [line for line in dnnp("check", stdin=out).err.splitlines() if ": run " in line]


def test_a_rate(plan: Path) -> None:
    for words in (["-n", "50"], ["--duration", "0.1"], ["-n", "9", "--arrivals", "uniform"]):
        result = dnnp("run", "--verify", "--warmup", "1", "--rate", "500", *words, plan)
        assert result.status == 0, result.err
        record = result.one("run")
        arrivals = record["arrivals"]
        process = "uniform" if "uniform" in words else "poisson"
        assert (arrivals["process"], arrivals["rate_per_s"]) == (process, 500)
        assert ("seed" in arrivals) == (process == "poisson")
        wanted = Arrivals(process, 500.0)
        count = wanted.within(0.1) if "--duration" in words else int(words[1])
        assert record["samples"] == arrivals["samples"] == count
        assert arrivals["span_s"] == pytest.approx(wanted.times_ns(count)[-1] * 1e-9)
        assert run_faults(result.out) == []
        assert "response    " in result.err
        assert record["verified"]


def test_a_duration_and_a_sweep(plan: Path) -> None:
    result = dnnp("run", "--verify", "--warmup", "1", "--duration", "0.05", plan)
    assert result.status == 0, result.err
    record = result.one("run")
    assert (record["duration_s"], record["verified"]) == (0.05, True)
    assert record["samples"] >= 1
    assert run_faults(result.out) == []
    words = ["--rate", "sweep", "-n", "20", "--warmup", "1", "--seed", "4"]
    result = dnnp("run", *words, plan)
    assert result.status == 0, result.err
    sweep = result.one("run")["sweep"]
    assert (sweep["seed"], len(sweep["rates"])) == (4, 12)
    assert {row["samples"] for row in sweep["rates"]} == {20}
    assert run_faults(result.out) == []
    assert "knee        " in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "0"], "0 is too small; above 0"),
        (["--rate", "fast"], "'fast' is not a number"),
        (["--duration", "1", "-n", "4"], "give --samples or --duration, not both"),
        (["--arrivals", "uniform"], "--arrivals is for --rate"),
        (["--rate", "5", "--compare"], "--rate: compare ways"),
    ],
)
def test_what_makes_no_sense(plan: Path, words: list[str], message: str) -> None:
    result = dnnp("run", *words, plan)
    assert (result.status, message in result.err) == (2, True), result.err


def test_schedules_have_their_own_pace(plan: Path) -> None:
    scheduled = dnnp("schedule", "-n", "4", plan)
    assert scheduled.status == 0, scheduled.err
    for words in (["--rate", "5"], ["--duration", "1"]):
        result = dnnp("run", *words, stdin=scheduled.out)
        message = f"{words[0]}: the stream holds a schedule, of 4 samples"
        assert (result.status, message in result.err) == (2, True), result.err
