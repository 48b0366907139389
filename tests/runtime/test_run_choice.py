"""Choice of the fastest measured way that fits, and the end of measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dnnp as python
from dnnp.core.check.stream import check_runs
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime import comparisons
from dnnp.core.runtime.comparisons import (
    MOST_ROUNDS,
    ROUNDS,
    Choice,
    WayPredictions,
    choose,
    is_clear,
    ordered,
)
from dnnp.core.runtime.pipeline import prepare
from dnnp.core.runtime.report import statistics
from dnnp.core.runtime.report.statistics import Timing, median_timing
from support.run import Result, dnnp
from support.running import SPLIT, network, planned

FREE = WayPredictions()
Patch = pytest.MonkeyPatch


def timing(rate: float, spread: float = 0.0) -> Timing:
    return Timing(10, rate, 0.01, 0.01, (0.01,), (0.0,), 0.0, quartile_range_per_s=spread)


@pytest.mark.parametrize(
    ("first", "second", "clear"),
    [
        ((100, 0), (50, 0), True),
        ((100, 60), (50, 60), False),
        ((100, 0), (99, 0), True),
        ((100, 2), (98, 2), True),  # as fast but for 5 %, whichever it is
        ((100, 8), (97, 8), False),  # it might be more than 5 %
        ((100, 2), (90, 10), True),
        ((100, 0), (0, 0), True),
    ],
)
def test_when_the_order_is_clear(
    first: tuple[float, float], second: tuple[float, float], clear: bool
) -> None:
    timings = {"pipeline": timing(*second), "whole": timing(1), "replicas": timing(*first)}
    assert is_clear(timings) == clear


def test_only_the_first_two_count() -> None:
    assert is_clear({"pipeline": timing(100), "whole": timing(80), "replicas": timing(79, 50)})


def test_spread_is_that_of_the_middle_half() -> None:
    rounds = [timing(rate) for rate in (100, 101, 102, 103, 104)]
    rounds = [replace(t, elapsed_s=10 / t.throughput_per_s) for t in rounds]
    assert median_timing(rounds).quartile_range_per_s == pytest.approx(2)
    assert median_timing(rounds[:1]).quartile_range_per_s == 0


def test_the_fastest_is_chosen() -> None:
    timings = {"pipeline": timing(100, 4), "whole": timing(50), "replicas": timing(125, 4)}
    found = choose(timings, FREE, {"pipeline": 1.0, "whole": None, "replicas": 1.1})
    assert found == Choice("replicas", 1.25, 1.1, True, "pipeline", 1.25, 1.0)
    assert found.line() == (
        "deploy      the replicas: 1.25 times the rate of the pipeline (1.10 times predicted)"
    )
    assert found.record() == {
        "mode": "replicas",
        "ratio": 1.25,
        "clear": True,
        "predicted_ratio": 1.1,
        "second": "pipeline",
        "lead": 1.25,
        "taken": 0.0,
        "reason": "1.25 times the rate of the pipeline, measured",
    }


def test_nothing_is_clear_where_others_took_much(monkeypatch: Patch) -> None:
    """A choice is unclear if any compared way was disturbed, and clear without comparison."""
    monkeypatch.setattr(statistics, "MOST_TAKEN", 0.1)
    loud = replace(timing(100), taken=(0.02, 0.87))
    timings = {"pipeline": loud, "whole": timing(50)}
    found = choose(timings, FREE, {})
    assert found is not None
    took = "other processes or the host took 87% of the processors, above 10%"
    assert found.line().endswith(f"2.00 times the rate of the whole model, but {took}")
    record = found.record()
    assert (record["clear"], record["taken"]) == (False, 0.87)
    assert record["reason"].endswith(f", measured, but {took}")
    quiet = choose({**timings, "pipeline": replace(loud, taken=(0.1,))}, FREE, {})
    assert quiet is not None
    assert (quiet.clear, quiet.disturbed) == (True, "")
    alone = choose({"pipeline": loud}, FREE, {})
    assert alone is not None
    assert (alone.clear, alone.disturbed) == (True, "")


def test_a_disturbed_comparison_ends_with_a_status(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(statistics, "MOST_TAKEN", -1.0)
    stream = planned(network(), tmp_path, [SPLIT[0], SPLIT[1] + SPLIT[2]])
    result = dnnp("run", "-q", "--choose", "-n", "4", "--warmup", "1", stdin=stream)
    assert result.status == 5
    assert result.err.count("\n") == 1
    assert "--choose: nothing is clear: other processes or the host took" in result.err
    choice = result.records("run")[0]["choice"]
    assert not choice["clear"]
    assert choice["taken"] >= 0


def test_a_pipeline_beside_the_next_best() -> None:
    timings = {"pipeline": timing(100, 30), "replicas": timing(80, 30), "whole": timing(10)}
    found = choose(timings, FREE, {"pipeline": 1.0, "replicas": 0.5, "whole": None})
    assert found is not None
    assert (found.mode, found.ratio, found.lead, found.clear) == ("pipeline", 1.0, 1.25, False)
    assert found.line() == (
        "deploy      the pipeline: 1.25 times the rate of the replicas (2.00 times predicted), too "
        "close to call"
    )


def test_what_is_ruled_out_is_said() -> None:
    predictions = WayPredictions(0, {"whole": "it needs 9 bytes", "replicas": "it needs 9 bytes"})
    found = choose({"pipeline": timing(100)}, predictions, {"pipeline": 1.0})
    assert found is not None
    assert found.line() == (
        "deploy      the pipeline: no other way fits the memory of the devices; not the whole "
        "model or the replicas: it needs 9 bytes"
    )
    assert found.record()["ruled_out"][1] == {"mode": "replicas", "reason": "it needs 9 bytes"}


def test_nothing_measured_is_no_choice() -> None:
    assert choose({}, FREE, {}) is None
    assert choose({"pipeline": timing(0), "whole": timing(5)}, FREE, {}) is None
    assert ordered({"pipeline": timing(5), "whole": timing(5)}) == ["pipeline", "whole"]


def test_what_is_predicted() -> None:
    """Two devices take 10 and 20 ms for the whole model, stages 8 ms."""
    predictions = WayPredictions(2, rates_per_s=(100, 50), value_s=0.008)
    assert predictions.predicted("pipeline", 2, as_planned=False) == 1
    assert predictions.predicted("replicas", 2, as_planned=True) == pytest.approx(150 * 0.008)
    assert predictions.predicted("whole", 1, as_planned=True) == pytest.approx(0.8)
    assert predictions.predicted("whole", 1, as_planned=False) is None
    assert predictions.predicted("replicas", 3, as_planned=True) is None


def sleeping(monkeypatch: Patch, stage_s: float, whole_s: Callable[[], float]) -> None:
    """Give each stage, and the whole model, known times."""
    make_stage = prepare.make_stage

    def made(session: Any, outputs: Sequence[str], *rest: Any) -> Any:
        stage = make_stage(session, outputs, *rest)

        def call(feeds: Any) -> Any:
            time.sleep(whole_s() if {"y", "m"} <= set(outputs) else stage_s)
            return stage(feeds)

        for name in ("stop", "memory", "session"):
            setattr(call, name, getattr(stage, name))
        return call

    monkeypatch.setattr(prepare, "make_stage", made)
    for module in (comparisons, prepare):
        monkeypatch.setattr(module, "available_cores", lambda: (0, 1))


def chosen(result: Result) -> dict[str, Any]:
    assert result.status == 0, result.err
    kinds = ("plan", "stage", "run")
    assert not [*check_runs({kind: result.records(kind) for kind in kinds})]
    runs = {r["mode"]: r for r in result.records("run")}
    return runs["pipeline"]["choice"]


@pytest.mark.parametrize(
    ("stage_s", "whole_s", "best"),
    [(0.001, 0.05, "pipeline"), (0.05, 0.005, "replicas"), (0.002, 0.001, "replicas")],
)
def test_known_times(
    stage_s: float, whole_s: float, best: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Two replicas beat the whole model at once, which sleeps as long; the pipeline either."""
    stream = planned(network(), tmp_path, SPLIT)
    sleeping(monkeypatch, stage_s, lambda: whole_s)
    result = dnnp("run", "--choose", "-n", "8", "--warmup", "1", "--no-pin", stdin=stream)
    choice = chosen(result)
    assert choice["mode"] == best
    runs = {r["mode"]: r for r in result.records("run")}
    assert set(runs) == {"pipeline", "whole", "replicas"}
    assert len({run["rounds"] for run in runs.values()}) == 1
    assert ROUNDS <= runs["pipeline"]["rounds"] <= MOST_ROUNDS
    rate = {mode: run["throughput_per_s"] for mode, run in runs.items()}
    assert choice["ratio"] == pytest.approx(rate[best] / rate["pipeline"])
    assert f"deploy      the {best}: " in result.err
    assert "ruled_out" not in choice


def test_rounds_go_on_until_the_order_is_clear(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nothing is ever clear: the cap ends it; and all is clear at once: three rounds."""
    stream = planned(network(), tmp_path, SPLIT)
    sleeping(monkeypatch, 0.0, lambda: 0.0)
    words = ("run", "--choose", "-n", "4", "--warmup", "1", "--no-pin")
    for clear, rounds in ((False, MOST_ROUNDS), (True, ROUNDS)):
        monkeypatch.setattr(comparisons, "is_clear", lambda figures, clear=clear: clear)
        result = dnnp(*words, stdin=stream)
        chosen(result)
        assert [run["rounds"] for run in result.records("run")] == [rounds] * 3


def split_for(folder: Path, *options: str) -> Result:
    (folder / "model.onnx").write_bytes(network().SerializeToString())
    imported = dnnp("import", folder / "model.onnx")
    return dnnp("partition", *options, "-q", stdin=imported.out)


def test_memory_rules_the_whole_model_out(tmp_path: Path) -> None:
    whole = split_for(tmp_path, "-k", "1").one("stage")["memory_bytes"]
    limit = ("--memory", str(whole - 1))
    plan = split_for(tmp_path, "-k", "2", "--bandwidth", "1e12", *limit)
    assert plan.status == 0, plan.err
    result = dnnp("run", "--choose", "-n", "4", "--warmup", "1", stdin=plan.out)
    choice = chosen(result)
    assert (choice["mode"], choice["ratio"], choice["clear"]) == ("pipeline", 1.0, True)
    assert choice["reason"] == "no other way fits the memory of the devices"
    assert [r["mode"] for r in choice["ruled_out"]] == ["whole", "replicas"]
    assert f"needs {shown_bytes(whole, 6)}, its device has" in choice["ruled_out"][0]["reason"]
    assert [run["mode"] for run in result.records("run")] == ["pipeline"]
    assert "not the whole model or the replicas: the stage on cpu-core/0 needs" in result.err


def test_a_plan_of_replicas_is_compared_too(tmp_path: Path) -> None:
    plan = split_for(tmp_path, "-k", "2", "--allow-replicas")
    assert plan.one("plan")["method"] == "replicas"
    result = dnnp("run", "--choose", "-n", "4", "--warmup", "1", stdin=plan.out)
    chosen(result)
    assert "pipeline, 1 stage on 2 devices, 1 thread each" in result.err


def test_plans_for_latency_are_refused(tmp_path: Path) -> None:
    plan = split_for(tmp_path, "-k", "2", "--objective", "latency")
    result = dnnp("run", "--choose", stdin=plan.out)
    assert (result.status, result.out) == (2, b"")
    assert "--choose compares throughput, the plan is for the latency of one sample" in result.err


def test_from_python(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(network().SerializeToString())
    graph = python.split(python.load(tmp_path / "model.onnx"), k=2)
    ran = python.run(graph, choose=True, samples=4, warmup=1)
    assert ran.records("run")[0]["choice"]["mode"] in ("pipeline", "whole", "replicas")
