"""Stages on several devices: order, figures, failures, and real models with such plans."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnp.core.model.errors import DnnpError, InputFileError, LimitError
from dnnp.core.runtime.execute import execute
from dnnp.core.runtime.model import providers
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline import prepare as preparing
from dnnp.core.runtime.pipeline import threads as pipelines
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.sources import RunCallbacks, Traffic
from dnnp.core.runtime.pipeline.steps import SOURCE, Edge, Step, route
from dnnp.core.runtime.report.outcome import Checks
from dnnp.core.runtime.report.statistics import summarize
from dnnp.core.runtime.report.verify import Tolerance
from dnnp.formats.plan import plan_digest
from dnnp.formats.stream import read_bytes
from support.run import PATIENCE_S, SAMPLES, dnnp, interrupted_at_terminal
from support.running import (
    SPLIT,
    changed,
    check_figures,
    known_time,
    made_up,
    network,
    planned,
    rows_that_fail,
    run_pipeline,
    stage_of,
    step_of,
    with_plan,
)

Values = dict[str, Any]


def marking(name: str, outputs: str, seen: list[int], rng: random.Random) -> Callable[..., Values]:
    """A replica with uneven times that records its samples, inputs and outputs."""

    def call(values: Values) -> Values:
        time.sleep(rng.choice((0, 0, 0.0005, 0.004)))
        sample = int(next(iter(values.values())).partition("#")[2].rstrip(")"))
        seen.append(sample)
        text = "+".join(values[x].partition("#")[0] for x in sorted(values))
        return {y: f"{y}<{text}>#{sample}" for y in outputs}

    return call


SHAPE = [("a", "x", "ab"), ("b", "a", "c"), ("c", "bx", "d"), ("d", "cdb", "y")]
"""Name, inputs and outputs: a diamond with a skip connection, of an output and of the input."""


def expected(sample: int) -> str:
    a, b = "a<x>", "b<x>"
    return f"y<{b}+c<{a}>+d<{b}+x>>#{sample}"


@pytest.mark.parametrize("replicas", [(1, 2, 1, 1), (2, 3, 1, 2), (1, 1, 4, 1), (3, 2, 2, 5)])
@pytest.mark.parametrize("queue", [1, 3])
def test_samples_leave_in_order_whoever_is_done_first(
    replicas: tuple[int, ...], queue: int
) -> None:
    rng = random.Random(7)
    seen: list[list[list[int]]] = [[[] for _ in range(r)] for r in replicas]
    steps = [
        step_of(name, inputs, outputs, *(marking(name, outputs, own, rng) for own in seen[i]))
        for i, (name, inputs, outputs) in enumerate(SHAPE)
    ]
    samples = [{"x": f"x#{s}"} for s in range(41)]
    trace = run_pipeline(steps, samples, 41, ["y", "x"], queue=queue, keep=lambda s: True)
    assert trace.outputs == {s: {"y": expected(s), "x": f"x#{s}"} for s in range(41)}
    assert (np.diff(trace.done_ns) >= 0).all()
    assert trace.replicas.tolist() == list(replicas)
    for r, own in zip(replicas, seen, strict=True):
        assert own == [list(range(j, 41, r)) for j in range(r)]


def test_replicas_work_at_the_same_time() -> None:
    """All replicas of a stage run at the same time."""
    meet = threading.Barrier(3)

    def call(values: Values) -> Values:
        meet.wait(PATIENCE_S)
        return {"a": values["x"]}

    steps = [step_of("stage 0", "x", "a", call, call, call)]
    trace = run_pipeline(steps, [{"x": 1}], 9, ["a"], queue=1)
    assert not trace.interrupted


def test_edges_hold_what_fits_around_them() -> None:
    fast = known_time(0, ["a"])
    steps = [
        step_of("stage 0", "x", "a", fast),
        step_of("stage 1", "a", "b", *[fast] * 3),
        step_of("stage 2", "b", "c", fast, fast),
        step_of("stage 3", "ac", "y", fast),
    ]
    assert route(steps, ["y"], queue=2) == [
        Edge(SOURCE, 0, ("x",), 2),
        Edge(0, 1, ("a",), 3),
        Edge(0, 3, ("a",), 3 + 3 + 3 + 2 + 2),
        Edge(1, 2, ("b",), 3),
        Edge(2, 3, ("c",), 2),
        Edge(3, 4, ("y",), 2),
    ]


@pytest.mark.parametrize("replicas", [1, 4])
def test_figures_of_a_run_with_replicas(replicas: int) -> None:
    """A chain with a replicated stage of 20 ms and a skip connection."""
    steps = [
        step_of("stage 0", "x", "a", known_time(0.002, ["a"])),
        step_of("stage 1", "a", "b", *[known_time(0.020, ["b"])] * replicas),
        step_of("stage 2", "ab", "y", known_time(0.001, ["y"])),
    ]
    trace = run_pipeline(steps, [{"x": 0}], 40, ["y"], queue=1)
    start, end = trace.start_ns, trace.end_ns
    assert (start[1, replicas:] >= end[1, :-replicas]).all()
    assert (start[1:] >= end[:-1]).all()
    timing = summarize(trace, warmup=8)
    check_figures(timing, trace, 8)
    assert (np.array(timing.loads_s) >= [0.002, 0.020 / replicas, 0.001]).all()
    assert timing.latency_p50_s >= 0.023
    assert all(0 <= x <= 1 for x in timing.bubbles)


def test_figures_of_a_replicated_stage() -> None:
    """Times of 2, 20 and 1 ms; the second stage has enough to do, and then four replicas."""
    traces = [made_up([0.002, 0.020, 0.001], 40, window=8, replicas=(1, r, 1)) for r in (1, 4)]
    one, four = (summarize(trace, warmup=8) for trace in traces)
    for timing, trace in ((one, traces[0]), (four, traces[1])):
        check_figures(timing, trace, 8)
    assert one.loads_s == pytest.approx((0.002, 0.020, 0.001))
    assert four.loads_s == pytest.approx((0.002, 0.005, 0.001))
    assert one.throughput_per_s == pytest.approx(50)
    assert four.throughput_per_s == pytest.approx(200)
    assert four.bubbles[1] == min(four.bubbles)
    assert all(0 <= x <= 1 for x in four.bubbles)


def test_idle_replicas_count_as_idle() -> None:
    steps = [step_of("stage 0", "x", "y", *[known_time(0.01, ["y"])] * 4)]
    timing = summarize(run_pipeline(steps, [{"x": 0}], 1, ["y"]))
    assert timing.bubbles[0] == pytest.approx(0.75)
    assert timing.bubble == pytest.approx(0.75)


@pytest.mark.parametrize("error", [InputFileError("no luck"), ZeroDivisionError("bug")])
@pytest.mark.parametrize("dies_at", [1, 13])
def test_a_dying_replica_stops_the_others_at_once(error: Exception, dies_at: int) -> None:
    released = threading.Event()
    told = []

    def fail(values: Values) -> Values:
        if values["a"] == dies_at:
            raise error
        return {"b": values["a"]}

    def slow(values: Values) -> Values:
        if values["a"] > dies_at:
            told.append(released.wait(PATIENCE_S))  # a long call; only stop() ends it
        return {"b": values["a"]}

    steps = [
        step_of("stage 0", "x", "a", lambda values: {"a": values["x"]}),
        step_of("stage 1", "a", "b", slow, fail, slow, stop=released.set),
        step_of("stage 2", "b", "y", *[lambda values: {"y": values["b"]}] * 2),
    ]
    threads = threading.active_count()
    with pytest.raises(type(error)) as caught:
        run_pipeline(steps, [{"x": i} for i in range(100)], 100, ["y"])
    assert all(told)
    assert threading.active_count() <= threads
    if isinstance(error, DnnpError):
        assert str(caught.value) == f"replica 1 of stage 1: sample {dies_at}: no luck"


def test_an_interruption_ends_the_calls_of_all_replicas() -> None:
    flag = threading.Event()
    stopped = [threading.Event() for _ in range(3)]
    told = []

    def hang(mine: threading.Event) -> Callable[[Values], Values]:
        def call(values: Values) -> Values:
            flag.set()
            told.append(mine.wait(PATIENCE_S))
            return {"a": 1}

        return call

    workers = tuple(pipelines.Worker("w", hang(e), stop=e.set) for e in stopped)
    threads = threading.active_count()
    trace = run_pipeline(
        [Step("stage 0", ("x",), ("a",), workers)],
        [{"x": 0}],
        100,
        ["a"],
        interrupted=flag.is_set,
    )
    assert told
    assert all(told)
    assert threading.active_count() <= threads
    assert trace.interrupted
    assert trace.start_ns.shape == (1, 0)
    assert summarize(trace).loads_s == (0.0,)


def test_threads_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def scarce(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def busy(values: Values) -> Values:  # a thread that is done would take the next task
        released.wait(PATIENCE_S)
        return {"y": 1}

    released = threading.Event()
    steps = [step_of("stage 0", "x", "y", *[busy] * 5, stop=released.set)]
    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(LimitError, match="the stages need 5 threads: can't start"):
        run_pipeline(steps, [{"x": 0}], 10, ["y"])
    assert not any(thread.is_alive() for thread in started)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def stream(folder: Path) -> bytes:
    """The middle one of three stages is on two devices."""
    return planned(network(), folder, SPLIT, replicas=(1, 2, 1))


def fails(status: int, message: str, *arguments: Any, stdin: bytes, command: str = "run") -> str:
    """The command ends with one line."""
    result = dnnp(command, "-q", *arguments, stdin=stdin)
    (line,) = result.err.splitlines()
    assert (result.status, message in line) == (status, True), line
    assert line.startswith(f"dnnp-{command}: ")
    assert result.out == b""
    return line


def test_a_verified_run(stream: bytes) -> None:
    result = dnnp("run", "--verify", "-n", "25", stdin=stream)
    assert result.status == 0, result.err
    record = result.one("run")
    assert (record["k"], record["samples"], record["verified"]) == (3, 25, True)
    assert record["max_abs_error"] <= 1e-5
    assert [s.get("replicas", 1) for s in record["stages"]] == [1, 2, 1]
    assert [s["predicted_s"] for s in record["stages"]] == [0.002, 0.0015, 0.002]
    assert all(s["measured_s"] > 0 and 0 <= s["bubble"] <= 1 for s in record["stages"])
    assert "cpu-core/1 x2" in result.err
    assert "cpu-core/3 " in result.err
    after = read_bytes(result.out)
    assert record["digest"] == plan_digest(after.get("plan")[0], after.get("stage"))


def all_outputs(pipeline: Pipeline, load: Traffic) -> dict[int, Values]:
    return pipeline.run(load, lambda s: True).outputs


@pytest.mark.parametrize("replicas", [(3, 1, 1), (1, 3, 2), (2, 2, 2), (1, 1, 5)])
@pytest.mark.parametrize("cores", [1, None])
def test_outputs_do_not_depend_on_replicas(
    replicas: Sequence[int], cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all workers share one core."""
    few = providers.available_cores()[:cores]
    monkeypatch.setattr(providers, "available_cores", lambda: few)
    monkeypatch.setattr(preparing, "available_cores", lambda: few)
    model = network()
    samples = [random_inputs(model, [1, i]) for i in range(5)]
    load = Traffic(samples, 23, 1)
    plain = prepare(model, Path(), [stage_of(p, i) for i, p in enumerate(SPLIT)], SessionConfig())
    stages = [stage_of(p, 9 * i, r) for i, (p, r) in enumerate(zip(SPLIT, replicas, strict=True))]
    notes: list[str] = []
    spread = prepare(model, Path(), stages, SessionConfig(), watch=RunCallbacks(notes.append))
    assert [len(step.workers) for step in spread.steps] == list(replicas)
    outcome = execute(spread, load, Checks(Tolerance(1e-5, 1e-5), keep=True))
    assert outcome.verdict is not None
    assert outcome.verdict.ok
    assert sorted(outcome.outputs) == list(range(5))
    one, many = all_outputs(plain, load), all_outputs(spread, load)
    assert (len(one), len(many)) == (23 + 1, 23 + max(replicas))
    for s in one:
        for name in ("y", "m"):
            np.testing.assert_array_equal(one[s][name], many[s][name])
    if cores == 1:
        assert notes[0].startswith(f"{sum(replicas)} stage replicas of 1 thread share 1 core;")


def test_comparison_uses_as_many_devices(stream: bytes) -> None:
    result = dnnp("run", "-n", "6", "--compare", "--warmup", "1", stdin=stream)
    assert result.status == 0, result.err
    runs = {r["mode"]: r for r in result.records("run")}
    assert runs["pipeline"]["k"] == 3
    assert runs["replicas"]["k"] == min(4, len(providers.available_cores()))
    assert "pipeline, 3 stages on 4 devices, 1 thread each" in result.err


def test_every_replica_is_warmed_up_and_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One given input, four replicas of which the last computes something else."""
    stream = planned(network(), folder, SPLIT, replicas=(1, 4, 1))
    path = folder / "input.npz"
    np.savez(path, **random_inputs(network(), 5))
    make_stage, calls = preparing.make_stage, [0, 0, 0, 0]
    bent = [False]

    def made(session: Any, outputs: Sequence[str], *rest: Any) -> Any:
        stage = make_stage(session, outputs, *rest)
        if "b" not in outputs or "d" in outputs:
            return stage
        number = len([c for c in calls if c < 0])
        calls[number] = -1

        def call(feeds: Values) -> Values:
            calls[number] += 1
            values = stage(feeds)
            return {**values, "b": values["b"] + (0.5 if bent[0] and number == 3 else 0)}

        for name in ("stop", "memory", "session"):
            setattr(call, name, getattr(stage, name))
        return call

    monkeypatch.setattr(preparing, "make_stage", made)
    arguments = ("run", "--inputs", path, "-n", "2", "--warmup", "2", "--verify")
    result = dnnp(*arguments, stdin=stream)
    assert result.status == 0, result.err
    assert [c + 1 for c in calls] == [3, 3, 2, 2]
    assert "8 samples, largest error" in result.err
    calls[:], bent[0] = [0, 0, 0, 0], True
    result = dnnp(*arguments, stdin=stream)
    assert result.status == 6
    last = result.err.strip().splitlines()[-1]
    assert "replica 3 of stage 1 is the first to differ, in tensor 'b'" in last
    assert "Traceback" not in result.err


def test_a_replica_that_dies_on_its_sample(stream: bytes, tmp_path: Path) -> None:
    """The second sample asks for a row that the table does not have."""
    paths = rows_that_fail(tmp_path)
    line = fails(1, "replica 1 of stage 1: sample 1: ONNX Runtime fails: ", *paths, stdin=stream)
    assert "99" in line


def test_plans_that_are_no_pipeline(stream: bytes, tmp_path: Path) -> None:
    export = ("--to", "stages", "-o", tmp_path / "out")

    def set_plan(**fields: Any) -> bytes:
        return changed(stream, lambda s: s.get("plan")[0].update(fields))

    def set_replicas(count: int, **fields: Any) -> bytes:
        data = changed(stream, lambda s: s.get("plan")[0].update(fields))
        return data.replace(b'"replicas":2', b'"replicas":%d' % count)

    for validity in ("convex", "free"):
        fails(3, f"the plan is {validity}, not ordered", stdin=set_plan(validity=validity))
    cases = [
        (set_replicas(0), "field 'replicas'"),
        (set_replicas(10**9), "field 'replicas'"),
        (set_replicas(4, max_replicas=4), "field 'device'"),
    ]
    for data, message in cases:
        fails(3, message, stdin=data)
        fails(3, message, *export, stdin=data, command="export")
    free = set_plan(validity="free")
    fails(3, "run dnnp-schedule first", stdin=free)
    assert dnnp("export", *export, stdin=free).status == 0  # each part is a stage
    class_ = {"class": "cpu-core", "kind": "cpu", "count": 9999}
    many = set_replicas(5000, max_replicas=5000, devices=[class_])
    fails(5, "the plan needs 5002 sessions", stdin=many.replace(b"cpu-core/3", b"cpu-core/5001"))


def test_plans_for_training(folder: Path) -> None:
    """The same model, with its last nodes marked as the backward pass."""
    (folder / "model.onnx").write_bytes(network().SerializeToString())
    imported = read_bytes(dnnp("import", folder / "model.onnx").out)
    for record in imported.get("node")[5:]:
        record["backward"] = True
    again = with_plan(imported, SPLIT)
    fails(3, "the plan is for training", stdin=again)
    fails(
        3,
        "the plan is for training",
        "--to",
        "stages",
        "-o",
        "/no/x",
        stdin=again,
        command="export",
    )


def test_an_exported_stage_is_written_once(stream: bytes, tmp_path: Path) -> None:
    result = dnnp("export", "--to", "stages", "-o", tmp_path / "out", stdin=stream)
    assert result.status == 0, result.err
    content = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert [s["replicas"] for s in content["stages"]] == [1, 2, 1]
    assert [s["device"] for s in content["stages"]] == [f"cpu-core/{i}" for i in (0, 1, 3)]
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json"] + [
        f"stage-{i}" for i in range(3)
    ]


def test_an_interruption_while_sessions_are_made() -> None:
    """An interruption skips replicas that are not made yet."""
    stages = [stage_of(p, 50 * i, 50) for i, p in enumerate(SPLIT)]
    watch = RunCallbacks(interrupted=lambda: True)
    pipeline = prepare(network(), Path(), stages, SessionConfig(), watch=watch)
    assert [len(step.workers) for step in pipeline.steps] == [1, 1, 1]
    outcome = execute(
        pipeline,
        Traffic([random_inputs(network(), 0)], 10, 1),
        Checks(Tolerance(1e-5, 1e-5), compare=True),
    )
    assert outcome.interrupted
    assert (outcome.verdict, outcome.timing.samples) == (None, 0)
    assert outcome.records("0" * 64)[0]["stages"][1]["replicas"] == 50
    assert "no sample was measured" in outcome.lines()


@pytest.mark.parametrize("after", ["stage 0: ", SAMPLES])
def test_control_c(stream: bytes, tmp_path: Path, after: str) -> None:
    """While sessions are made, and when some samples are through."""
    path = tmp_path / "plan.dnnp"
    path.write_bytes(stream)
    options = ["-v", "-n", "200000", "--warmup", "3", "--verify"]
    result = interrupted_at_terminal("run", *options, path, after=after)
    assert result.status == 130, result.err
    assert "Traceback" not in result.err
    record = result.one("run")
    assert record["interrupted"] is True
    assert record["samples"] < 200_000
    assert record["samples"] > 0 or after != SAMPLES
    assert "verified" not in record
