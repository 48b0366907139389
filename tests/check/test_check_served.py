"""Figures of runs that serve: true ones are accepted whatever happens, false ones are not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.check import arrivals as checked
from dnnp.core.check.arrivals import Redrawn
from dnnp.core.check.asked import check_asked
from dnnp.core.check.runs import check_runs
from dnnp.core.runtime.sources import PROCESSES, Arrivals
from dnnp.core.runtime.sweep import queueing
from dnnp.core.runtime.trace import Trace
from support.forgery import accepts, forge, records_in
from support.struck import serving

Run = dict[str, Any]


def run_of(arrivals: Arrivals, latency_ns: np.ndarray) -> Run:
    """What a run says whose samples took so long, each at least until the one before it."""
    count = len(latency_ns)
    arrived = arrivals.times_ns(count) + 12_345
    done = np.maximum.accumulate(arrived + latency_ns)
    start = np.minimum(arrived, done)[None]
    trace = Trace(start, done[None], done, np.array([2]), {}, False, arrived_ns=arrived)
    found = queueing(trace, arrivals)
    assert found is not None
    stage = {"stage": 0, "device": "acc/0", "replicas": 2, "predicted_s": 1.0}
    elapsed = (done[-1] - start[0, 0]) * 1e-9
    return {
        "mode": "pipeline",
        "samples": count,
        "elapsed_s": elapsed,
        "throughput_per_s": count / elapsed,
        "stages": [stage],
        "arrivals": found.record(),
    }


@given(
    st.sampled_from(PROCESSES),
    st.floats(1e-2, 1e7),
    st.integers(0, 2**70),
    st.lists(st.integers(1, 10**10), min_size=1, max_size=150),
)
def test_what_is_measured_is_accepted(
    process: str, rate_per_s: float, seed: int, latencies: list[int]
) -> None:
    run = run_of(Arrivals(process, rate_per_s, seed), np.array(latencies))
    assert list(map(str, check_runs({"run": [run]}))) == []


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("count", [1, 2, 90, 1000])
def test_what_arrivals_determine(process: str, count: int) -> None:
    rng = np.random.default_rng(count)
    run = run_of(Arrivals(process, 50.0, 7), rng.integers(10**6, 10**8, count))
    row = run["arrivals"]
    cases = [("span_s", row["span_s"] + 1e-6), ("backlog", 0), ("backlog", count + 1)]
    cases += [("latency_mean_s", row["latency_p50_s"] / 3), ("latency_mean_s", 0.09999)]
    if count > 1:
        cases += [("rate_per_s", 49.99), ("backlog", count)]
        cases += [("seed", 8)] * (process == "poisson")
    if count == 90:
        cases.append(("latency_p99_s", row["latency_p99_s"] * (1 + 1e-5)))
    for name, value in cases:
        wrong = copy.deepcopy(run)
        wrong["arrivals"][name] = value
        if value != row[name] and not (name == "backlog" and value == count == 1):
            assert check_runs({"run": [wrong]}), (name, value)


def test_more_arrivals_than_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(Arrivals("poisson", 50.0, 7), np.full(1000, 10**7))
    monkeypatch.setattr(checked, "MOST", 999)
    assert Redrawn().times_s(run["arrivals"], run["arrivals"]) is None
    assert check_runs({"run": [run]}) == []
    run["arrivals"] |= {"rate_per_s": 100.0}
    assert "span_s is " in " ".join(map(str, check_runs({"run": [run]})))


def header(*words: str) -> dict[str, Any]:
    """A header that says how the run was made, twice."""
    made = [{"tool": "dnnp-run", "arguments": ["-n", "1"]}]
    return {"provenance": [*made, {"tool": "dnnp-run", "arguments": list(words)}]}


LOSS = {"worker": "stage 0", "sample": 3, "reason": "its process was killed (SIGKILL)"}
FILES = {"written": 4, "skipped": 0, "failed": 0}


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        (["-n", "8"], {}, ""),
        (["-qn8"], {}, ""),
        (["-n=8"], {"samples": 7}, "samples is 7.0, but -n asks for 8.0"),
        (["-vqn", "9"], {}, "-n asks for 9.0"),
        (["--samples", "9"], {}, "-n asks for 9.0"),
        (["--samples=9", "-n", "8"], {}, ""),
        (["-n", "9"], {"interrupted": True}, ""),
        (["-n", "4"], {"rounds": 2}, ""),
        (["-n", "4"], {"samples": 4, "sweep": {"rates": [{"samples": 5}]}}, "samples is 5"),
        ([], {"threads": 2}, "threads is 2, but --threads asks for 1.0"),
        (["--threads", "2"], {"threads": 2}, ""),
        (["--rtol", "1e-3"], {"rtol": 1e-2}, "rtol is 0.01"),
        (["--duration", "2"], {"duration_s": 2.5}, "duration_s is 2.5"),
        (["--rate", "10"], {"arrivals": {"rate_per_s": 11.0, "seed": 0}}, "rate_per_s is 11.0"),
        (["--rate", "sweep"], {"sweep": {"rates": [], "seed": 1}}, "seed is 1"),
        (["--retries", "1"], {"restarts": [LOSS]}, ""),
        (["--retries", "1"], {"restarts": [LOSS, LOSS]}, "restarts of stage 0 is 2"),
        ([], {"restarts": [LOSS]}, "--retries asks for 0.0"),
        (["--retries=9"], {"restarts": [LOSS | {"sample": 12}]}, "of at most 12 that went"),
        (["--warmup", "2"], {"samples": 4, "files": FILES}, ""),
        (["--warmup", "1"], {"samples": 4, "files": FILES}, "but 6 went through"),
        (["--warmup", "2", "-n", "3"], {"samples": 4, "files": FILES}, "files written is 4"),
        (["--warmup=2", "--outputs=o"], {"samples": 4, "files": FILES | {"skipped": 5}}, ""),
        (["--warmup=2"], {"samples": 4, "files": FILES | {"skipped": 5}}, "takes --outputs"),
        (["--warmup=2"], {"samples": 4, "files": FILES | {"failed": 1}}, "takes --keep-going"),
        (["--warmup", "2", "--keep-going"], {"files": FILES | {"failed": 4}}, ""),
        (["--warmup", "2", "--keep-going"], {"files": FILES | {"failed": 3}}, "but 8 went"),
        (["--threads", "many"], {"threads": 3}, ""),
    ],
)
def test_runs_are_what_was_asked_for(words: list[str], change: Run, message: str) -> None:
    run = {"mode": "pipeline", "samples": 8, "discarded": 4, "threads": 1, "stages": [
        {"stage": 0, "replicas": 2}, {"stage": 1}]} | change  # fmt: skip
    found = [str(violation) for violation in check_asked(header(*words), [run])]
    assert (message in found[0] and len(found) == 1) if message else not found, found


def test_what_nobody_knows_is_not_asked() -> None:
    run = {"mode": "pipeline", "samples": 8, "threads": 3}
    assert check_asked({"provenance": []}, [run]) == []
    assert check_asked(header(), [run | {"mode": "whole"}]) == []


def test_no_forged_number_is_accepted(tmp_path: Path) -> None:
    forged = 0
    for number, (name, stream) in enumerate(serving(tmp_path)):
        records = records_in(stream)
        assert accepts(records), name
        if number % 8:
            continue  # all of them take long: `make attack`
        for one in forge(name, records, 1, ("run",)):
            forged += 1
            assert not one.accepted or one.reason, one
    assert forged > 200
