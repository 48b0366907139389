"""dnnp-run by a schedule: the order on every device, figures, refusals, failures."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import orjson
import pytest

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.model.plan import Plan
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.schedule_orders import (
    Program,
    UnitOrders,
    edge_capacities,
    program_of,
)
from dnnp.core.runtime.pipeline.sources import RunCallbacks, Traffic
from dnnp.core.runtime.pipeline.steps import DeviceOrders, Job, Step, route
from dnnp.core.runtime.report.outcome import timing_lines
from dnnp.core.runtime.report.statistics import Timing, Trace, summarize_schedule
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import Stream, read_bytes
from support.run import SAMPLES, dnnp, interrupted_at_terminal
from support.running import (
    SPLIT,
    changed,
    known_time,
    network,
    planned,
    rows_that_fail,
    run_pipeline,
    stage_of,
    step_of,
    written,
)
from support.scheduled import Record, pass_of, with_schedule
from support.split_models import array, graph, make, node, value

CORES = [f"cpu-core/{i}" for i in range(4)]
TIMES = (2e-3, 3e-3, 2e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scheduled")


@pytest.fixture(scope="module")
def plain(folder: Path) -> bytes:
    return planned(network(), folder, SPLIT)


def chain(*units: Sequence[int]) -> list[Record]:
    """A pass of each stage, one after the other."""
    return [
        pass_of(s, *home, after=[s - 1] if s else []) | {"time_s": TIMES[s]}
        for s, home in enumerate(units)
    ]


@pytest.fixture(scope="module")
def stream(plain: bytes) -> bytes:
    """Six micro-batches through three stages, one behind the other."""
    return written(with_schedule(plain, chain([0], [1], [2]), 6, CORES[:3]))


def runs(stream: bytes, *options: Any) -> Record:
    """The record of a verified run, in a stream that holds."""
    result = dnnp("run", "--verify", *options, stdin=stream)
    assert result.status == 0, result.err
    assert "verified    yes" in result.err
    # The plan's memory is made up; all else holds.
    found = orjson.loads(dnnp("check", "--json", stdin=result.out).out)["violations"]
    assert [v for v in found if "memory_bytes is 0.0" not in v["message"]] == []
    return next(r for r in result.records("run") if r["mode"] == "pipeline")


def test_a_verified_run(stream: bytes) -> None:
    record = runs(stream)
    assert (record["samples"], record["k"], record["verified"]) == (6, 3, True)
    assert record["makespan_predicted_s"] == pytest.approx(0.022)
    assert record["makespan_measured_s"] > 0
    assert record["throughput_per_s"] == pytest.approx(6 / record["makespan_measured_s"])
    assert 0 <= record["bubble"] <= 1
    assert [s["predicted_s"] for s in record["stages"]] == [0.002, 0.003, 0.002]
    assert all(s["measured_s"] > 0 for s in record["stages"])
    result = dnnp("run", "-n", "6", "--warmup", "0", stdin=stream)
    assert "makespan    " in result.err
    assert ", 22 ms predicted\n" in result.err
    assert ", 36.4% predicted\n" in result.err
    assert "slowest stage" not in result.err


def test_other_ways_to_run_it_stand_beside(stream: bytes) -> None:
    result = dnnp("run", "--compare", stdin=stream)
    assert result.status == 0, result.err
    runs = {r["mode"]: r for r in result.records("run")}
    assert list(runs) == ["pipeline", "whole", "replicas"]
    assert {r["samples"] for r in runs.values()} == {18}
    assert "makespan_measured_s" in runs["pipeline"]
    assert "makespan_measured_s" not in runs["whole"]


def test_outputs_are_those_without_a_schedule(plain: bytes, stream: bytes, tmp_path: Path) -> None:
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for data, path in zip((plain, stream), paths, strict=True):
        assert dnnp("run", "-n", "6", "--save-outputs", path, stdin=data).status == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_given_inputs(stream: bytes, tmp_path: Path) -> None:
    arguments = []
    for i in range(8):
        arguments += ["--inputs", tmp_path / f"{i}.npz"]
        np.savez(arguments[-1], **random_inputs(network(), i))
    result = dnnp("run", "--save-outputs", tmp_path / "y.npz", *arguments, stdin=stream)
    assert result.status == 0, result.err
    assert "only the first 6 of 8 inputs are used; the schedule is for as many" in result.err
    with np.load(tmp_path / "y.npz") as archive:
        assert sorted(archive) == sorted(f"{i}/{name}" for i in range(6) for name in "my")
    arguments = arguments[:4]
    assert runs(stream, *arguments)["samples"] == 6


@pytest.mark.parametrize("homes", [[1, 2], [2, 1], [2, 2, 1]])
def test_replicas_take_turns_as_the_schedule_says(folder: Path, homes: list[int]) -> None:
    plan = planned(network(), folder, SPLIT, replicas=(1, 2, 1))
    content = with_schedule(plan, chain([0], homes, [3]), 7, CORES)
    record = runs(written(content))
    assert [s.get("replicas", 1) for s in record["stages"]] == [1, 2, 1]
    program = program_in(content)
    middle = {
        job.sample: job.replica
        for row in program.unit_orders.orders
        for job in row
        if job.step == 1
    }
    assert middle == {n: homes[n % len(homes)] - 1 for n in range(7)}


def program_in(content: Stream) -> Program:
    plan = plan_of(content, graph_of(content))
    assert isinstance(plan, Plan)
    return program_of(content.get("schedule")[0], content.get("block"), plan)


def two_way(folder: Path) -> Stream:
    """A plan whose first stage runs before and after the second one: two parts on one device."""
    content = read_bytes(planned(network(), folder, [[0, 1, 5, 6], [2, 3, 4]]))
    content.get("plan")[0]["validity"] = "free"
    passes = [
        pass_of(0, 0, nodes=[0, 1]) | {"time_s": 2e-3},
        pass_of(1, 1, after=[0]) | {"time_s": 3e-3},
        pass_of(0, 0, after=[1], nodes=[5, 6]) | {"name": "F0.1", "time_s": 2e-3},
    ]
    # Micro-batch n + 1 starts before n comes back.
    sequence = [0, 3, 1, *(e for n in range(4) for e in (3 * n + 2, 3 * n + 6, 3 * n + 4))]
    sequence = [e for e in sequence if e < 15]
    rest = [e for e in range(15) if e not in sequence]
    return with_schedule(content, passes, 5, CORES[:2], [*sequence, *rest])


def test_a_stage_in_parts(folder: Path) -> None:
    content = two_way(folder)
    program = program_in(content)
    assert program.owners == (0, 0, 1)
    assert [stage.nodes for stage in program.stages] == [(0, 1), (5, 6), (2, 3, 4)]
    assert [stage.load_s for stage in program.stages] == [0.002, 0.002, 0.003]
    first = [(job.step, job.sample) for job in program.unit_orders.orders[0]]
    assert first[:5] == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
    record = runs(written(content))
    assert [s["stage"] for s in record["stages"]] == [0, 0, 1]
    assert [s["device"] for s in record["stages"]] == ["cpu-core/0", "cpu-core/0", "cpu-core/1"]


def fails(status: int, message: str, *arguments: Any, stdin: bytes) -> None:
    result = dnnp("run", "-q", *arguments, stdin=stdin)
    (line,) = result.err.splitlines()
    assert (result.status, message in line) == (status, True), line
    assert result.out == b""


def set_schedule(**fields: Any) -> Callable[[Stream], None]:
    return lambda content: content.get("schedule")[0].update(fields)


def set_pass(number: int, **fields: Any) -> Callable[[Stream], None]:
    return lambda content: content.get("schedule")[0]["passes"][number].update(fields)


def early(content: Stream) -> None:
    content.get("block")[1] |= {"start_s": 0.0, "end_s": 3e-3}


def backward(content: Stream) -> None:
    passes = content.get("schedule")[0]["passes"]
    passes.append(copy.deepcopy(passes[2]) | {"name": "B2", "kind": "backward"})
    rows = content.get("block")
    rows += [
        r | {"pass": 3, "start_s": 1.0 + r["start_s"], "end_s": 1.0 + r["end_s"]}
        for r in rows
        if r["pass"] == 2
    ]


REFUSED: dict[str, tuple[int, str, Callable[[Stream], None]]] = {
    "other plan": (3, "the schedule was made for another plan", set_schedule(digest="0" * 64)),
    "no digest": (3, "made for another plan", lambda c: c.get("schedule")[0].pop("digest")),
    "two": (3, "second schedule", lambda c: c.get("schedule").append(c.get("schedule")[0])),
    "lacks a block": (3, "1 of 18 blocks are missing", lambda c: c.get("block").pop()),
    "too early": (3, "F1 of micro-batch 0: starts at 0.0, before 0.002", early),
    "other device": (
        3, "pass F2: runs on cpu-core/3, but stage 2 is on cpu-core/2",
        lambda c: c.get("schedule")[0]["units"][2].update(name="cpu-core/3"),
    ),
    "no such stage": (3, "there is no stage 7", set_pass(2, stage=7)),
    "circle": (3, "passes wait for each other", set_pass(0, after=[{"pass": 2}])),
    "does not wait": (3, "does not wait for pass F0", set_pass(2, after=[])),
    "backward": (2, "the schedule holds backward passes (B2)", backward),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_schedules_that_cannot_be_followed(stream: bytes, name: str) -> None:
    status, message, change = REFUSED[name]
    fails(status, message, stdin=changed(stream, change))


def test_another_number_of_samples(stream: bytes) -> None:
    fails(2, "run dnnp-schedule -n 7 first, or leave -n out", "-n", "7", stdin=stream)


def test_a_pass_on_several_devices_at_once(folder: Path) -> None:
    plan = planned(network(), folder, SPLIT, replicas=(1, 2, 1))
    passes = chain([0], [1], [3])
    passes[1]["homes"] = [[1, 2]]
    content = with_schedule(plan, passes, 2, CORES)
    fails(2, "pass F1 runs on several devices at once", stdin=written(content))


def test_a_sample_that_makes_a_stage_fail(stream: bytes, tmp_path: Path) -> None:
    """The second sample asks for a row that the table does not have."""
    paths = rows_that_fail(tmp_path)
    fails(1, "stage 1: sample 1: ONNX Runtime fails: ", "--warmup", "0", *paths, stdin=stream)


def test_memory_above_the_limit_is_no_reason(stream: bytes) -> None:
    """It is the checker that finds fault with it."""
    small = changed(
        stream,
        lambda c: c.get("schedule")[0]["units"][0].update(
            memory_bytes=0, fixed_bytes=1, peak_bytes=1
        ),
    )
    assert "holds 1.0 bytes, more than 0.0" in dnnp("check", stdin=small).err
    assert dnnp("run", stdin=small).status == 0


DIAMOND = [("a", "x", "ab"), ("b", "a", "c"), ("c", "bx", "d"), ("d", "cdb", "y")]
"""Name, inputs and outputs of four stages."""
NEEDS = [(), (0,), (0,), (0, 1, 2)]


def random_program(seed: int, count: int) -> tuple[Program, list[int]]:
    """A random order of the diamond's blocks on random devices; the number of replicas."""
    rng = random.Random(seed)
    devices = rng.randint(1, 4)
    replicas = [rng.randint(1, 3) for _ in DIAMOND]
    homes = [[rng.randrange(devices) for _ in range(r)] for r in replicas]
    orders: list[list[Job]] = [[] for _ in range(devices)]
    done: set[tuple[int, int]] = set()
    start = np.zeros((4, count))
    left = [(i, s) for i in range(4) for s in range(count)]
    while left:
        ready = [(i, s) for i, s in left if all((j, s) in done for j in NEEDS[i])]
        i, s = rng.choice(ready)
        left.remove((i, s))
        start[i, s] = len(done)
        done.add((i, s))
        orders[homes[i][s % replicas[i]]].append(Job(i, s % replicas[i], s))
    stages = tuple(stage_of([i], i, r) for i, r in enumerate(replicas))
    rows = tuple(map(tuple, orders))
    whole = 4.0 * count
    unit_orders = UnitOrders(rows, (), start, start + 1)
    return Program(stages, (0, 1, 2, 3), unit_orders, whole, 0.0), replicas


def diamond(replicas: Sequence[int], seen: list[Job], seed: int = 0) -> list[Step]:
    """Stand-ins that take uneven times and note what they run."""
    rng = random.Random(seed)

    def marking(i: int, j: int, outputs: str) -> Callable[..., Any]:
        def call(values: dict[str, Any]) -> dict[str, Any]:
            time.sleep(rng.choice((0, 0, 0.0005, 0.002)))
            sample = next(iter(values.values()))[0]
            assert all(held[0] == sample for held in values.values())
            seen.append(Job(i, j, sample))
            return {y: (sample, y, tuple(sorted(values.values()))) for y in outputs}

        return call

    return [
        step_of(name, inputs, outputs, *(marking(i, j, outputs) for j in range(replicas[i])))
        for i, (name, inputs, outputs) in enumerate(DIAMOND)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_devices_follow_their_order_to_the_letter(seed: int) -> None:
    """With no more room between the stages than the schedule takes."""
    program, replicas = random_program(seed, 9)
    seen: list[Job] = []
    steps = diamond(replicas, seen, seed)
    edges = route(steps, "y")
    samples = [{"x": (s, "x", ())} for s in range(9)]
    trace = run_pipeline(
        steps,
        samples,
        9,
        ["y", "x"],
        orders=DeviceOrders(
            program.unit_orders.orders, edge_capacities(program.unit_orders, edges, 0)
        ),
        keep=lambda s: True,
    )
    assert not trace.interrupted
    for row in program.unit_orders.orders:
        assert tuple(job for job in seen if job in row) == row
    assert [trace.outputs[s]["y"][0] for s in range(9)] == list(range(9))
    for row in program.unit_orders.orders:
        starts = [trace.start_ns[job.step, job.sample] for job in row]
        ends = [trace.end_ns[job.step, job.sample] for job in row]
        assert all(a <= b for a, b in zip(ends, starts[1:], strict=False))


def test_a_fast_stage_does_not_run_ahead() -> None:
    """Stage 0 is immediate, stage 1 slow; in the schedule they alternate."""
    count, ahead = 30, []
    done = [0, 0]

    def first(values: Any) -> Any:
        done[0] += 1
        ahead.append(done[0] - done[1])
        return {"a": 1}

    def second(values: Any) -> Any:
        time.sleep(0.001)
        done[1] += 1
        return {"y": 1}

    steps = [step_of("stage 0", "x", "a", first), step_of("stage 1", "a", "y", second)]
    orders = tuple(tuple(Job(i, 0, s) for s in range(count)) for i in range(2))
    start = np.arange(count) + np.arange(2.0)[:, None]
    unit_orders = UnitOrders(orders, (), start, start + 1)
    capacities = edge_capacities(unit_orders, route(steps, ["y"]), 1)
    assert capacities == {(0, 1): 2}
    run_pipeline(steps, [{"x": 0}], count, ["y"], orders=DeviceOrders(orders, capacities))
    assert max(ahead) <= 5


def chained(orders: Sequence[Sequence[Job]], count: int) -> tuple[Program, list[Step]]:
    steps = [
        step_of("stage 0", "x", "a", known_time(0.002, ["a"])),
        step_of("stage 1", "a", "y", known_time(0.002, ["y"])),
    ]
    stages = tuple(stage_of([i], i) for i in range(2))
    none = np.zeros((2, count))
    rows = tuple(map(tuple, orders))
    return Program(stages, (0, 1), UnitOrders(rows, (), none, none), 1.0, 0.0), steps


def test_orders_that_wait_for_each_other_are_refused() -> None:
    first, second = [Job(0, 0, 1), Job(0, 0, 0)], [Job(1, 0, 0), Job(1, 0, 1)]
    program, steps = chained([first, second], 2)
    edge_capacities(program.unit_orders, route(steps, ["y"]), 0)
    program, steps = chained([[Job(1, 0, 0), Job(0, 0, 0)]], 1)
    with pytest.raises(FormatError, match="wait for each other for ever: stage 1 for sample 0"):
        edge_capacities(program.unit_orders, route(steps, ["y"]), 0)


@pytest.mark.parametrize("second", [[], [Job(1, 0, 0)] * 2, [Job(1, 0, 0), Job(0, 0, 0)]])
def test_orders_that_lack_a_job_are_refused(second: list[Job]) -> None:
    program, steps = chained([[Job(0, 0, 0)], second], 1)
    with pytest.raises(FormatError, match="do not run every sample in each stage once"):
        edge_capacities(program.unit_orders, route(steps, ["y"]), 0)


def test_waits_without_tensors_are_waited_for() -> None:
    """The second step reads nothing of the first, but comes after it."""
    began = []
    steps = [
        step_of("stage 0", "x", "a", lambda v: time.sleep(0.01) or began.append("a") or {"a": 1}),
        step_of("stage 1", "x", "y", lambda v: began.append("y") or {"y": 1}),
    ]
    orders = [[Job(0, 0, s) for s in range(4)], [Job(1, 0, s) for s in range(4)]]
    run_pipeline(steps, [{"x": 0}], 4, ["a", "y"], orders=DeviceOrders(orders, waits=[(0, 1)]))
    assert [began[: k + 1].count("a") > began[:k].count("y") for k in range(8)] == [True] * 8
    assert began[0] == "a"


@pytest.mark.parametrize("error", [InputFileError("no luck"), ZeroDivisionError("bug")])
def test_a_dying_stage_stops_the_others(error: Exception) -> None:
    seen: list[Job] = []
    program, replicas = random_program(3, 50)
    steps = diamond(replicas, seen)

    def fail(values: Any) -> Any:
        raise error

    steps[2] = step_of("stage 2", "bx", "d", *[fail] * replicas[2])
    threads = threading.active_count()
    orders = DeviceOrders(program.unit_orders.orders)
    with pytest.raises(type(error)):
        run_pipeline(steps, [{"x": (0, "x", ())}], 50, ["y"], orders=orders)
    assert threading.active_count() <= threads


def test_an_interruption_keeps_what_is_done() -> None:
    orders = [[Job(0, 0, s) for s in range(500)], [Job(1, 0, s) for s in range(500)]]
    _, steps = chained(orders, 500)
    flag = threading.Event()
    threads = threading.active_count()
    trace = run_pipeline(
        steps,
        [{"x": 0}],
        500,
        ["y"],
        orders=DeviceOrders(orders),
        interrupted=flag.is_set,
        progress=lambda done: flag.set() if done > 5 else None,
    )
    assert threading.active_count() <= threads
    assert trace.interrupted
    assert len(trace.done_ns) < 500
    assert summarize_schedule(trace, 2).samples == len(trace.done_ns)


def ready(stages: int = 3, watch: RunCallbacks | None = None) -> Pipeline:
    parts = [stage_of(nodes, i) for i, nodes in enumerate(SPLIT)]
    return prepare(network(), Path(), parts, SessionConfig(), watch=watch)


def test_the_warm_up_goes_before() -> None:
    done: list[int] = []
    pipeline = ready(watch=RunCallbacks(progress=lambda number, _: done.append(number)))
    orders = tuple(tuple(Job(i, 0, s) for s in range(5)) for i in range(3))
    start = np.arange(5.0) + np.arange(3.0)[:, None]
    waits = ((0, 1), (1, 2))
    unit_orders = UnitOrders(orders, waits, start, start + 1)
    program = Program(tuple(pipeline.stages), (0, 1, 2), unit_orders, 7.0, 0.0)
    load = Traffic([random_inputs(network(), 0)], 5, warmup=3, program=program)
    trace = pipeline.run(load, lambda s: True)
    assert done == sorted(done)
    assert {3, 8} <= {*done}
    assert trace.start_ns.shape == (3, 5)
    assert sorted(trace.outputs) == list(range(5))
    done.clear()
    pipeline.watch.interrupted = lambda: bool(done)  # at the latest when the warm-up is through
    trace = pipeline.run(load)
    assert (trace.interrupted, trace.start_ns.shape) == (True, (3, 0))
    assert pipeline.summarize(trace, load).samples == 0


def test_figures_of_a_schedule() -> None:
    """Two devices: 1 to 4 and 3 to 7, 5 to 8 and 8 to 10 ms; the samples swap places."""
    start = np.array([[1, 5], [8, 3]]) * 10**6
    end = np.array([[4, 8], [10, 7]]) * 10**6
    done = np.array([10, 10]) * 10**6
    timing = summarize_schedule(Trace(start, end, done, np.array([1, 1]), {}, False), 2)
    assert timing.makespan_s == pytest.approx(0.009)
    assert timing.throughput_per_s == pytest.approx(2 / 0.009)
    assert timing.bubble == pytest.approx(1 - 12 / 18)
    assert timing.latency_p50_s == pytest.approx((0.009 + 0.005) / 2)
    assert timing.loads_s == (pytest.approx(0.003), pytest.approx(0.003))
    trace = Trace(start, end, done, np.array([1, 1]), {}, False).without_samples()
    none = summarize_schedule(trace, 2)
    assert timing_lines(none) == ["no sample was measured"]
    assert isinstance(none, Timing)


def heavy() -> onnx.ModelProto:
    """Two stages of some milliseconds."""
    rng = np.random.default_rng(0)
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "w"], ["y"])]
    stored = [array("w", rng.standard_normal((400, 400)))]
    return make(graph(nodes, "net", [value("x", [400, 400])], [value("y", [400, 400])], stored))


def test_control_c(tmp_path: Path) -> None:
    plan = planned(heavy(), tmp_path, [[0], [1]])
    passes = [pass_of(0, 0), pass_of(1, 1, after=[0])]
    path = tmp_path / "plan.dnnp"
    path.write_bytes(written(with_schedule(plan, passes, 8000, CORES[:2])))
    result = interrupted_at_terminal("run", "--warmup", "3", "--verify", path, after=SAMPLES)
    assert result.status == 130, result.err
    assert "Traceback" not in result.err
    record = result.one("run")
    assert record["interrupted"] is True
    assert record["makespan_predicted_s"] == pytest.approx(8.001)
    assert "makespan_measured_s" not in record
    assert 0 < record["samples"] < 8000
