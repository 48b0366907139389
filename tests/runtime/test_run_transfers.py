"""Transfers of schedules as such: what moves, in which order, what waits, what is said of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.core.model.schedule import Placement
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.schedule_orders import (
    ScheduleSteps,
    UnitOrders,
    edge_capacities,
    orders_of_units,
    schedule_steps,
)
from dnnp.core.runtime.pipeline.steps import Job
from dnnp.core.runtime.report.outcome import timing_lines
from dnnp.core.runtime.report.statistics import Moved, Trace, Transfer, summarize_schedule
from dnnp.core.schedule.transfers import with_transfers
from support.placements import random_placement
from support.run import dnnp
from support.running import SPLIT, network, planned, run_pipeline
from support.scheduled import Record, pass_of, passes_of, schedule_of, stand_ins

CORES = ["cpu-core/0", "cpu-core/1"]
MODES = ("blocking", "non-blocking")


def drawn(seed: int, mode: str) -> tuple[Placement, Placement]:
    """A random placement with random transfer times, and the transfers of a mode."""
    rng = random.Random(seed)
    plain = random_placement(seed, pairs=rng.randint(1, 4), memory=False)
    times = (0.0, 0.5, 1.0, 3.0)
    blocks = tuple(
        replace(b, after=tuple(replace(w, transfer_s=rng.choice(times)) for w in b.after))
        for b in plain.blocks
    )
    plain = replace(plain, blocks=blocks)
    return plain, with_transfers(plain, mode)


def any_order(passes: Sequence[Record], count: int, seed: int) -> list[int]:
    """All blocks, each after those that it waits for."""
    rng = random.Random(seed)
    waits = {
        n * len(passes) + p: {n * len(passes) + w["pass"] for w in row["after"]}
        for n in range(count)
        for p, row in enumerate(passes)
    }
    order: list[int] = []
    while waits:
        ready = [e for e, before in waits.items() if before.isdisjoint(waits)]
        order.append(rng.choice(ready))
        del waits[order[-1]]
    return order


def result(number: int, sample: int, inputs: dict[int, float]) -> float:
    """Output of a pass for its inputs."""
    return number + 10 * sample + sum((p + 2) * x for p, x in inputs.items()) % 1009


def run(scheduled: ScheduleSteps, count: int, outputs: Sequence[str], **more: Any) -> Trace:
    return run_pipeline(
        scheduled.steps,
        [{"x": s} for s in range(count)],
        count,
        outputs,
        orders=scheduled.device_orders(outputs, 0),
        keep=lambda s: True,
        **more,
    )


@given(seed=st.integers(0, 10**6), mode=st.sampled_from(MODES), count=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_any_order_comes_to_its_end(seed: int, mode: str, count: int) -> None:
    """Outputs are right, units run their jobs in order, and transfers copy."""
    plain, placement = drawn(seed, mode)
    passes, units = passes_of(placement), [unit.name for unit in placement.units]
    schedule, blocks = schedule_of(passes, count, units, any_order(passes, count, seed))
    made: dict[str, list[Any]] = {}
    read: list[tuple[int, str, Any]] = []

    def call_of(number: int) -> Any:
        turn = iter([b["micro_batch"] for b in blocks if b["pass"] == number])

        def call(values: Values) -> Values:
            sample = next(turn)
            read.extend((number, name, value) for name, value in values.items())
            inputs = {int(name): float(value[0]) for name, value in values.items()}
            array = np.full(3, result(number, sample, inputs))
            made.setdefault(str(number), []).append(array)
            return {str(number): array}

        return call

    steps, step_of = stand_ins(passes, call_of)
    scheduled = schedule_steps(steps, orders_of_units(schedule, blocks, step_of))
    outputs = [str(number) for number in step_of]
    trace = run(scheduled, count, outputs)
    assert not trace.interrupted
    for sample in range(count):
        expected: dict[int, float] = {}
        for number in sorted(step_of, key=lambda p: _depth(plain, p)):
            before = {w.block: expected[w.block] for w in plain.blocks[number].after}
            expected[number] = result(number, sample, before)
            assert trace.outputs[sample][str(number)][0] == expected[number]
    _one_at_a_time(trace, scheduled, schedule, blocks, step_of)
    for reader, name, value in read:
        own = any(np.shares_memory(value, array) for array in made[name])
        assert own == (not _moves(plain, int(name), reader)), (reader, name)
    moved = scheduled.apart(trace).moved
    assert (moved is None) == (len(passes) == len(step_of))
    if moved is not None:
        assert [passes[t.number]["name"] for t in moved.transfers] == [
            row["name"] for row in passes if row["kind"] == "transfer"
        ]
        # What goes to several units of one pass is read from the first transfer.
        assert {*moved.bytes} <= {0.0, 24.0}
        assert {t.blocking for t in moved.transfers} == {mode == "blocking"}


def _depth(placement: Placement, number: int) -> int:
    after = placement.blocks[number].after
    return 1 + max((_depth(placement, w.block) for w in after), default=0)


def _moves(placement: Placement, maker: int, reader: int) -> bool:
    """True if a result moves to its reader and that takes time."""
    here, there = placement.blocks[maker].homes[0], placement.blocks[reader].homes[0]
    times = [w.transfer_s for w in placement.blocks[reader].after if w.block == maker]
    return max(times) > 0 and not {*there} <= {*here}


def _one_at_a_time(
    trace: Trace,
    scheduled: ScheduleSteps,
    schedule: Record,
    blocks: Sequence[Record],
    step_of: dict[int, int],
) -> None:
    """Blocks of a unit are in order of their starts and do not overlap."""
    step = step_of | {t.number: t.step for t in scheduled.unit_orders.transfers}
    for unit in range(len(schedule["units"])):
        mine = sorted((b for b in blocks if unit in b["units"]), key=lambda b: b["start_s"])
        ended = 0
        for block in mine:
            i, n = step[block["pass"]], block["micro_batch"]
            assert trace.start_ns[i, n] >= ended
            ended = trace.end_ns[i, n]


def test_blocking_transfers_in_different_orders_are_refused() -> None:
    """Device 0 sends first, device 1 too: each waits for the other to receive."""
    passes = [
        pass_of(0, 0),
        pass_of(1, 1),
        pass_of(0, 0, after=[0]) | {"name": "a>1", "kind": "transfer", "homes": [[0, 1]]},
        pass_of(1, 1, after=[1]) | {"name": "b>0", "kind": "transfer", "homes": [[1, 0]]},
    ]
    schedule, blocks = schedule_of(passes, 1, CORES, [0, 1, 2, 3])
    unit_orders = orders_of_units(schedule, blocks, {0: 0, 1: 1})
    steps, _ = stand_ins(passes, lambda number: lambda values: {str(number): number})
    run(schedule_steps(steps, unit_orders), 1, ["0", "1"])
    first, second = unit_orders.orders
    assert [unit_orders.name(job.step) for job in first] == [
        "stage 0",
        "cpu-core/0, before a>1",
        "cpu-core/0, after a>1",
        "transfer b>0",
    ]
    swapped = replace(unit_orders, orders=(first, (second[0], *second[2:], second[1])))
    with pytest.raises(FormatError, match="wait for each other for ever: cpu-core/0, after a>1"):
        run(schedule_steps(steps, swapped), 1, ["0", "1"])


def test_transfers_after_transfers() -> None:
    """Out of one device, into the next: both links copy, and the reader gets the second copy."""
    passes = [
        pass_of(0, 0),
        pass_of(0, 2, after=[0]) | {"name": "out", "kind": "transfer"},
        pass_of(1, 3, after=[1]) | {"name": "in", "kind": "transfer"},
        pass_of(1, 1, after=[2, 0]),
    ]
    units = [*CORES, "0>", ">1"]
    schedule, blocks = schedule_of(passes, 2, units, range(8))
    unit_orders = orders_of_units(schedule, blocks, {0: 0, 3: 1})
    assert unit_orders.via == {(3, 0): 2, (1, 0): 3}
    jobs = [tuple(Job(step, 0, n) for n in range(2)) for step in range(2)]
    assert unit_orders.of_nodes() == (jobs, [(0, 1)])
    array, got = np.arange(4.0), []

    def call_of(number: int) -> Any:
        return lambda values: got.append(values) or {str(number): array}

    steps, _ = stand_ins(passes, call_of)
    scheduled = schedule_steps(steps, unit_orders)
    moved = scheduled.apart(run(scheduled, 2, ["3"])).moved
    assert moved is not None
    assert moved.bytes == (32.0, 32.0)
    values = [v["0"] for v in got if "0" in v]
    assert len(values) == 2
    assert all(np.array_equal(v, array) and not np.shares_memory(v, array) for v in values)


def test_a_transfer_whose_number_of_units_changes() -> None:
    row = pass_of(0, 0) | {"name": "a", "kind": "transfer", "homes": [[0, 1], [0]]}
    schedule = {"passes": [row], "units": [{"name": n} for n in CORES], "micro_batches": 1}
    with pytest.raises(UsageError, match="pass a runs on as many units"):
        orders_of_units(schedule, [], {})


def test_an_emulated_link_ends_when_others_fail() -> None:
    """It would take an hour, but the other stage fails as soon as it runs."""
    passes = [
        pass_of(0, 0),
        pass_of(0, 2, after=[0]) | {"name": "a", "kind": "transfer", "time_s": 3600.0},
        pass_of(1, 1, after=[1]),
        pass_of(2, 1),
    ]
    schedule, blocks = schedule_of(passes, 1, [*CORES, "0>1"], [0, 3, 1, 2])
    unit_orders = orders_of_units(schedule, blocks, {0: 0, 2: 1, 3: 2})
    begun = threading.Event()

    def call_of(number: int) -> Any:
        def call(values: Values) -> Values:
            if number == 3:
                begun.wait(10)
                raise InputFileError("no luck")
            begun.set()
            return {str(number): 1}

        return call

    steps, _ = stand_ins(passes, call_of)
    scheduled = schedule_steps(steps, unit_orders, emulate=True)
    threads = threading.active_count()
    with pytest.raises(InputFileError, match="no luck"):
        run(scheduled, 1, ["2", "3"])
    assert threading.active_count() <= threads


def test_figures_of_transfers() -> None:
    """Two devices, 10 ms: stages take 3 and 4 of them, a blocking transfer 1, a link 2."""
    ms = 10**6
    transfers = (
        Transfer(2, 2, "a>1", 1e-3, True, 2, frozenset({0, 1})),
        Transfer(5, 3, "b>0", 4e-3, False, 1, frozenset({2})),
    )
    moved = Moved(
        transfers, np.array([[3], [4]]) * ms, np.array([[4], [6]]) * ms, (8.0, 16.0), False
    )
    start, end = np.array([[0], [6]]) * ms, np.array([[3], [10]]) * ms
    trace = Trace(start, end, end[-1], np.array([1, 1]), {}, False, moved=moved)
    timing = summarize_schedule(trace, 2)
    assert timing.makespan_s == pytest.approx(10e-3)
    assert timing.bubble == pytest.approx(1 - (3 + 4 + 2 * 1) / 20)
    figures = timing.moved
    assert figures is not None
    assert figures.measured_s == (pytest.approx(1e-3), pytest.approx(2e-3))
    # Three units carry transfers: 2 * 1 + 2 of 30 ms.
    assert figures.share == pytest.approx(4 / 30)
    assert any("13.3% of the makespan; tensors are copied" in s for s in timing_lines(timing))
    assert summarize_schedule(trace.without_samples(), 2).moved is None


def test_the_last_stage_may_end_before_a_transfer() -> None:
    """The makespan is that of all blocks."""
    ms = 10**6
    moved = Moved(
        (Transfer(1, 1, "a", 1e-3, False, 1, frozenset({1})),),
        np.array([[3]]) * ms,
        np.array([[9]]) * ms,
        (0.0,),
        True,
    )
    start, end = np.array([[0]]) * ms, np.array([[3]]) * ms
    timing = summarize_schedule(Trace(start, end, end[-1], np.ones(1), {}, False, moved=moved), 1)
    assert timing.makespan_s == pytest.approx(9e-3)
    assert any("links are emulated" in line for line in timing_lines(timing))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return planned(network(), tmp_path_factory.mktemp("transfers"), SPLIT)


def found_by_the_checker(stream: bytes) -> list[str]:
    found = orjson.loads(dnnp("check", "--json", stdin=stream).out)["violations"]
    return [v["message"] for v in found if "memory_bytes is 0.0" not in v["message"]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("emulate", [False, True])
def test_a_verified_run(plan: bytes, mode: str, emulate: bool) -> None:
    options = ["--transfers", mode, "--transfer-time", "1e-3", "-n", "5"]
    scheduled = dnnp("schedule", *options, stdin=plan)
    assert scheduled.status == 0, scheduled.err
    more = ["--emulate-links"] if emulate else []
    result = dnnp("run", "--verify", "--warmup", "0", *more, stdin=scheduled.out)
    assert result.status == 0, result.err
    record = result.one("run")
    assert (record["verified"], record["samples"]) == (True, 5)
    stated = record["transfers"]
    assert stated["how"] == ("emulated" if emulate else "copied")
    assert [m["blocking"] for m in stated["moves"]] == [mode == "blocking"] * 3
    # Stage 0 makes a tensor that both others read, stage 1 one that stage 2 reads: 5 x 8 floats.
    assert [m["bytes"] for m in stated["moves"]] == [160.0] * 3
    assert found_by_the_checker(result.out) == []
    assert f"F0>cpu-core/1  {mode}  " in result.err
    assert f"{'links are emulated' if emulate else 'tensors are copied'}\n" in result.err


def test_there_is_nothing_to_emulate(plan: bytes) -> None:
    for data in (plan, dnnp("schedule", "-n", "2", stdin=plan).out):
        result = dnnp("run", "--emulate-links", stdin=data)
        assert (result.status, result.out) == (2, b"")
        assert "--emulate-links: there are no transfers to run" in result.err


def test_delays_are_not_emulated(plan: bytes) -> None:
    options = ["--transfers", "blocking", "--transfer-time", "1e-4", "--latency", "1e-3"]
    scheduled = dnnp("schedule", "-n", "2", *options, stdin=plan).out
    result = dnnp("run", "--emulate-links", "--warmup", "0", stdin=scheduled)
    assert "links are emulated without the delays (--latency) of the schedule" in result.err


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The network, priced for two classes."""
    path = tmp_path_factory.mktemp("unlike") / "net.onnx"
    path.write_bytes(network().SerializeToString())
    classes = ["--device", "cpu-core", "--device", "cpu-core-avx512"]
    result = dnnp("profile", "-q", *classes, stdin=dnnp("import", "-q", path).out)
    assert result.status == 0, result.err
    return result.out


LINKED = {
    "ordered": ["--method", "uniform"],
    "overlap": ["--method", "uniform", "--comm", "overlap"],
    "searched": ["--effort", "0.1"],
    "operators": ["--objective", "latency", "--execution", "operators", "--effort", "0.1"],
    "edges": ["--objective", "latency", "--transfers", "edge", "--method", "heft"],
}


@pytest.mark.parametrize("name", LINKED)
def test_plans_with_links_between_unlike_devices(unlike: bytes, name: str) -> None:
    devices = ["--devices", "cpu-core:2,cpu-core-avx512:1"]
    links = ["--link", "cpu-core,cpu-core-avx512=1G,1us", "--link", "cpu-core/0,cpu-core/1=2G"]
    plan = dnnp("partition", "-q", *devices, *links, *LINKED[name], stdin=unlike)
    assert plan.status == 0, plan.err
    if "uniform" in LINKED[name]:
        assert len(plan.records("stage")) == 3
    streams = [plan.out]
    if "latency" not in LINKED[name]:
        more = ["--transfers", "blocking", "--transfer-time", "1e-5"]
        streams.append(dnnp("schedule", "-q", "-n", "3", *more, stdin=plan.out).out)
    for stream in streams:
        result = dnnp("run", "--verify", "--warmup", "0", "-n", "3", stdin=stream)
        assert result.status == 0, result.err
        assert "predicted with links; threads of one process hand tensors over" in result.err
        assert dnnp("check", stdin=result.out).status == 0


def test_orders_that_lack_a_transfer_are_refused() -> None:
    none = np.zeros((2, 1))
    unit_orders = UnitOrders(((Job(0, 0, 0),),), (), none, none, others=("transfer a",))
    with pytest.raises(FormatError, match="do not run every sample"):
        edge_capacities(unit_orders, [], 0)
