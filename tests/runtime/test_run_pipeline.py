"""The pipeline itself, with stand-ins for stages: routing, order, failure, interruption."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.model.text import shown_seconds
from dnnp.core.runtime.pipeline.sources import Kept, Repeated, Sink
from dnnp.core.runtime.pipeline.steps import SOURCE, Edge, Step, route
from dnnp.core.runtime.pipeline.threads import Channel, ClosedError, Terminals
from dnnp.core.runtime.report.statistics import median_timing, summarize
from support.run import PATIENCE_S
from support.running import check_figures, known_time, made_up, run_pipeline, step_of


def step(name: str, inputs: str, outputs: str, call: Any = None) -> Step:
    """A step with one-letter tensors; by default it writes what it read into its outputs."""

    def trace(values: dict[str, Any]) -> dict[str, Any]:
        assert sorted(values) == sorted(inputs)
        text = "".join(values[x] for x in inputs)
        return {y: f"{y}({text})" for y in outputs}

    return step_of(name, inputs, outputs, call or trace)


DIAMOND = [
    step("stage 0", "x", "ab"),
    step("stage 1", "a", "c"),
    step("stage 2", "bz", "d"),
    step("stage 3", "cdab", "y"),
]
SAMPLES = [{"x": f"x{i}", "z": f"z{i}"} for i in range(3)]


def expected(i: int) -> str:
    x, z = f"x{i}", f"z{i}"
    return f"y(c(a({x}))d(b({x}){z})a({x})b({x}))"


@pytest.mark.parametrize("queue", [1, 2, 5])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_tensors_arrive_by_name_and_in_order(queue: int, order: tuple[int, ...]) -> None:
    steps = [DIAMOND[i] for i in order]
    trace = run_pipeline(steps, SAMPLES, 20, ["y", "a", "z"], queue=queue, keep=lambda s: s != 7)
    assert sorted(trace.outputs) == [s for s in range(20) if s != 7]
    for s, values in trace.outputs.items():
        i = s % 3
        assert values == {"y": expected(i), "a": f"a(x{i})", "z": f"z{i}"}
    assert not trace.interrupted
    assert (trace.end_ns >= trace.start_ns).all()
    assert (np.diff(trace.done_ns) >= 0).all()


def test_edges_join_each_pair_once_and_long_ones_hold_more() -> None:
    assert route(DIAMOND, ["y", "a"], queue=2) == [
        Edge(SOURCE, 0, ("x",), 2),
        Edge(SOURCE, 2, ("z",), 5),
        Edge(0, 1, ("a",), 2),
        Edge(0, 2, ("b",), 2),
        Edge(0, 3, ("a", "b"), 5),
        Edge(0, 4, ("a",), 8),
        Edge(1, 3, ("c",), 2),
        Edge(2, 3, ("d",), 2),
        Edge(3, 4, ("y",), 2),
    ]


def test_stages_without_tensors_still_run_once_a_sample() -> None:
    calls = []
    lonely = step_of("stage 0", "", "c", lambda values: {"c": calls.append(1) or "c"})
    unread = step_of("stage 1", "x", "u", lambda values: {"u": calls.append(2) or "u"})
    trace = run_pipeline([lonely, unread], [{"x": "x"}], 4, ["c"], keep=lambda s: True)
    assert trace.outputs[3] == {"c": "c"}
    assert sorted(calls) == [1] * 4 + [2] * 4


def test_a_circle_of_stages_is_refused() -> None:
    steps = [step("stage 0", "xb", "a"), step("stage 1", "a", "b")]
    with pytest.raises(FormatError, match=r"stages \[0, 1\] wait for each other"):
        run_pipeline(steps, [{"x": "x"}], 1, ["b"])


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("error", [InputFileError("no luck"), ZeroDivisionError("bug")])
def test_a_failing_stage_stops_the_others_at_once(bad: int, error: Exception) -> None:
    calls = [0] * len(DIAMOND)

    def counting(i: int) -> Any:
        def call(values: dict[str, Any]) -> dict[str, Any]:
            calls[i] += 1
            if i == bad and calls[i] == 5:
                raise error
            return dict.fromkeys(DIAMOND[i].outputs, "-")

        return call

    steps = [step_of(s.name, s.inputs, s.outputs, counting(i)) for i, s in enumerate(DIAMOND)]
    threads = threading.active_count()
    with pytest.raises(type(error)) as caught:
        run_pipeline(steps, SAMPLES, 100_000, ["y"])
    assert max(calls) <= 5 + sum(edge.capacity for edge in route(DIAMOND, ["y"]))
    assert threading.active_count() <= threads
    if isinstance(error, InputFileError):
        assert str(caught.value) == f"stage {bad}: sample 4: no luck"


def test_the_first_failure_is_the_one_reported() -> None:
    stopped = threading.Event()

    def patient(values: dict[str, Any]) -> dict[str, Any]:
        if not stopped.wait(PATIENCE_S):
            return {"a": "a"}
        raise InputFileError("terminated")

    def fail(values: dict[str, Any]) -> dict[str, Any]:
        raise InputFileError("the real reason")

    steps = [
        step_of("stage 0", "x", "a", patient, stop=stopped.set),
        step_of("stage 1", "z", "b", fail, stop=stopped.set),
    ]
    with pytest.raises(InputFileError, match="stage 1: sample 0: the real reason"):
        run_pipeline(steps, SAMPLES, 3, ["a", "b"])


def test_interruption_keeps_what_is_done() -> None:
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done = count

    trace = run_pipeline(
        DIAMOND, SAMPLES, 1_000_000, ["y"], interrupted=lambda: done >= 10, progress=progress
    )
    assert trace.interrupted
    assert 10 <= done == len(trace.done_ns) < 1_000_000
    assert trace.start_ns.shape == (4, done)
    assert (trace.done_ns >= trace.end_ns.max(axis=0)).all()
    assert summarize(trace).samples == done


def test_interruption_ends_a_call_under_way() -> None:
    stopped = threading.Event()
    flag = threading.Event()
    told = []

    def slow(values: dict[str, Any]) -> dict[str, Any]:
        flag.set()
        told.append(stopped.wait(PATIENCE_S))
        return {"a": 1}

    step = step_of("stage 0", "x", "a", slow, stop=stopped.set)
    trace = run_pipeline([step], [{"x": 1}], 3, ["a"], interrupted=flag.is_set)
    assert told == [True]
    assert trace.interrupted


def test_a_full_channel_waits_and_a_closed_one_does_not() -> None:
    channel = Channel(2)
    channel.put(0, "a")
    channel.put(1, "b")
    threading.Timer(0.05, channel.close).start()
    with pytest.raises(ClosedError):
        channel.put(2, "c")
    with pytest.raises(ClosedError):
        channel.get(0)


def test_outputs_are_collected_whole_and_in_order() -> None:
    """Parts of samples may come in any order; an input that is an output is handed through."""
    kept = Kept(lambda s: s != 0)
    terminals = Terminals(Repeated([{"x": 1}, {"x": 2}], 3), kept, window=2, through=["x"])
    terminals.parts = 2
    assert terminals.get(1, ["x"]) == {"x": 2}
    for sample, part, done in ((1, "a", 0), (0, "b", 0), (1, "b", 0), (0, "a", 2), (2, "a", 2)):
        terminals.put(sample, {part: sample})
        assert terminals.done == done
    assert kept.outputs(terminals.done) == {1: {"x": 2, "a": 1, "b": 1}}
    assert not terminals.wait(0.0)
    terminals.put(2, {"b": 2})
    assert terminals.wait(0.0)
    assert kept.outputs(terminals.done)[2] == {"x": 1, "a": 2, "b": 2}


def test_a_sample_waits_at_the_source_for_room() -> None:
    terminals = Terminals(Repeated([{"x": 1}], 9), Sink(), window=1)
    terminals.get(0, ["x"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(terminals.get, 1, ["x"])
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        terminals.put(0, {})
        assert waiting.result(PATIENCE_S) == {"x": 1}
        closed = pool.submit(terminals.get, 2, ["x"])
        terminals.close()
        with pytest.raises(ClosedError):
            closed.result(PATIENCE_S)
    assert terminals.wait(0.0)


def test_a_model_without_nodes_hands_its_inputs_through() -> None:
    trace = run_pipeline([], [{"x": 1}, {"x": 2}], 3, ["x"], keep=lambda s: True)
    assert trace.outputs == {0: {"x": 1}, 1: {"x": 2}, 2: {"x": 1}}


def test_a_stage_that_nobody_waits_for_gets_not_far_ahead() -> None:
    """Its samples are done long after it, and would pile up."""
    away = threading.Event()
    ahead, behind = [0], [0]

    def fast(values: dict[str, Any]) -> dict[str, Any]:
        ahead[0] += 1
        if ahead[0] == 100:
            away.set()
        return {"a": 1}

    def slow(values: dict[str, Any]) -> dict[str, Any]:
        away.wait(0.0 if behind[0] else 0.2)
        behind[0] += 1
        return {"b": ahead[0]}

    steps = [step_of("stage 0", "x", "a", fast), step_of("stage 1", "x", "b", slow)]
    trace = run_pipeline(steps, [{"x": 1}], 100, ["a", "b"], keep=lambda s: s == 0)
    assert trace.outputs[0]["b"] < 20


def test_memory_of_samples_in_flight_is_bounded() -> None:
    """With queues of 2, the first stage is never more than a few samples ahead."""
    made = [0]
    ahead = []

    def make(values: dict[str, Any]) -> dict[str, Any]:
        made[0] += 1
        return {"a": made[0]}

    def use(values: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.001)
        ahead.append(made[0] - values["a"])
        return {"y": values["a"]}

    steps = [step_of("stage 0", "x", "a", make), step_of("stage 1", "a", "y", use)]
    run_pipeline(steps, [{"x": 0}], 50, ["y"], queue=2)
    assert max(ahead) <= 4


def test_figures_of_known_times() -> None:
    trace = made_up([0.004, 0.010, 0.002], 30, window=4)
    timing = summarize(trace, warmup=5)
    check_figures(timing, trace, 5)
    assert timing.loads_s == pytest.approx((0.004, 0.010, 0.002))
    assert timing.throughput_per_s == pytest.approx(100)
    assert (timing.latency_p50_s, timing.latency_p99_s) == pytest.approx((0.04, 0.04))
    assert timing.bubbles == pytest.approx((1 - 100 / 244, 0, 1 - 50 / 242))
    assert timing.bubble == pytest.approx(1 - 400 / (244 + 250 + 242))


def test_figures_of_a_run_with_known_times() -> None:
    steps = [
        step_of("stage 0", "x", "a", known_time(0.004, ["a"])),
        step_of("stage 1", "a", "b", known_time(0.010, ["b"])),
        step_of("stage 2", "ba", "y", known_time(0.002, ["y"], busy=True)),
    ]
    trace = run_pipeline(steps, [{"x": 0}], 30, ["y"])
    start, end = trace.start_ns, trace.end_ns
    assert (start[:, 1:] >= end[:, :-1]).all()
    assert (start[1:] >= end[:-1]).all()
    assert (trace.done_ns >= end[2]).all()
    timing = summarize(trace, warmup=5)
    check_figures(timing, trace, 5)
    assert timing.samples == 25
    assert (np.array(timing.loads_s) >= [0.004, 0.010, 0.002]).all()
    assert timing.latency_p50_s >= 0.016
    assert 0 < timing.bubble < 1
    assert median_timing([timing, timing]).loads_s == timing.loads_s


def test_figures_of_short_runs_are_finite() -> None:
    steps = [step("stage 0", "x", "y")]
    one = summarize(run_pipeline(steps, [{"x": "x"}], 1, ["y"]))
    assert (one.samples, one.bubble) == (1, 0.0)
    assert one.throughput_per_s == 1 / one.elapsed_s
    none = summarize(run_pipeline(steps, [{"x": "x"}], 2, ["y"]), warmup=2)
    assert (none.samples, none.latency_p50_s, none.loads_s) == (0, 0.0, (0.0,))
    assert median_timing([none]).samples == 0


def test_times_for_people() -> None:
    shown = {1e-9: "0.001 us", 9.9994e-4: "999.9 us", 9.9996e-4: "1 ms", 0.99996: "1 s"}
    shown |= {1e3: "1000 s", 12345.6: "12346 s"}
    assert {value: shown_seconds(value) for value in shown} == shown
