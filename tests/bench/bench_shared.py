"""Stages that all devices share (Tessel, shapes M, NN and K): predicted and run.

Models whose best plans have these shapes are planned, scheduled and cut as `dnnp-run` does; their
parts sleep for their times, and so do links, so that four devices fit a machine of any size. A
second table has the same in threads, in a process for each part, and in one for each device.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.prepare import open_pool, pooled_worker
from dnnp.core.runtime.pipeline.schedule_orders import schedule_steps
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.core.runtime.report.statistics import Timing, summarize_schedule
from dnnp.core.runtime.workers.pool import Rules, WorkerPool, WorkerSpec
from dnnp.deployment.parts import runnable_of
from dnnp.deployment.shards import runnable_shards
from dnnp.formats.graph import graph_of
from dnnp.formats.onnx.stages import split_model
from dnnp.formats.onnx.value_types import types_of
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import read_bytes
from dnnp.workload import has_shards
from support import shared_models
from support.bench import table
from support.run import dnnp
from support.running import run_pipeline
from support.sharded import Quiet
from support.workers import Sleep

LAYER_S = 10e-3
"""Of a layer."""
COUNT = 32
"""Micro-batches."""
MOVE_S = LAYER_S
"""Of a transfer, where there are any."""
ROUNDS = 3


class Way(NamedTuple):
    """A kind of plan and of transfers."""

    name: str
    partition: tuple[str, ...]
    schedule: tuple[str, ...] = ()
    alone: float = 1.0
    """Times as long on one device: so much that all devices hold all."""


MOVED = ("--transfer-time", str(MOVE_S), "--transfers")
WAYS = (
    Way("a device a stage", ()),
    Way("all devices together", ("--tensor-parallel", "4"), alone=100.0),
    Way("shared stages", ("--shared-stages", "2")),
    Way("shared, blocking transfers", ("--shared-stages", "2"), (*MOVED, "blocking")),
    Way("shared, non-blocking transfers", ("--shared-stages", "2"), (*MOVED, "non-blocking")),
)


class Figures(NamedTuple):
    """Predicted and measured time of a run."""

    load_s: float
    """No pipeline of the plan is faster."""
    predicted_s: float
    makespan_s: float
    latency_s: float


def must(name: str, *words: str, stdin: bytes) -> bytes:
    """Output of a command that succeeds."""
    result = dnnp(name, "-q", *words, stdin=stdin)
    assert result.status == 0, result.err
    return bytes(result.out)


def measured(path: Path, way: Way) -> Figures:
    """A model in one way."""
    plan = must(
        "partition", "-k", "4", *way.partition,
        stdin=shared_models.priced(path, LAYER_S, way.alone),
    )  # fmt: skip
    data = must("schedule", "-n", str(COUNT), *way.schedule, stdin=plan)
    rounds = [slept(data, path) for _ in range(ROUNDS)]
    stream = read_bytes(data)
    (schedule,), (record,) = stream.get("schedule"), stream.get("plan")
    makespan, latency = (
        statistics.median(column)
        for column in zip(*((t.makespan_s, t.latency_p50_s) for t in rounds), strict=True)
    )
    return Figures(record["value"], schedule["makespan_s"], makespan, latency)


def slept(data: bytes, path: Path, pool: WorkerPool[Any] | None = None) -> Timing:
    """A run of the parts of a scheduled stream, which sleep; `pool`: not in this process."""
    stream = read_bytes(data)
    graph, model, types = graph_of(stream), onnx.load(str(path)), types_of(stream)
    plan = plan_of(stream, graph)
    assert plan is not None
    caller: Any = Quiet()
    if has_shards(plan):
        found = runnable_shards(caller, stream, graph, plan, model)
        assert found.made is not None
        model, types = found.made.model, types | dict(found.made.types)
    else:
        found = runnable_of(caller, stream, graph, plan)
    program = found.program
    assert program is not None
    outputs = [value.name for value in model.graph.output]
    steps = []
    cut = split_model(model, [part.nodes for part in program.stages], types)
    for i, (part, stage) in enumerate(zip(program.stages, cut, strict=True)):
        worker = Worker(f"stage {i}", sleeping(part.compute_s, stage.outputs))
        if pool is not None:
            spec = WorkerSpec(worker.name, device=part.homes[0])
            worker = pooled_worker(pool, spec, Sleep(part.compute_s, stage.outputs), {})
        steps.append(Step(worker.name, stage.inputs, stage.outputs, (worker,)))
    if pool is not None:
        pool.ready()
    scheduled = schedule_steps(steps, program.unit_orders, emulate=True)
    orders = scheduled.device_orders(outputs, 2)
    sample = {value.name: np.zeros(1, np.float32) for value in model.graph.input}
    trace = run_pipeline(scheduled.steps, [sample], COUNT, outputs, orders=orders)
    return summarize_schedule(scheduled.apart(trace), shared_models.ALL)


def sleeping(seconds: float, outputs: tuple[str, ...]) -> Callable[[Values], Values]:
    """A part that takes its time."""

    def call(_: Values) -> Values:
        time.sleep(seconds)
        return dict.fromkeys(outputs)

    return call


def rows_of(folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each model and way; rates are over that of shared stages."""
    for name in ("M", "NN", "K"):
        path = shared_models.build(name, folder / f"{name}.onnx")
        found = {way.name: measured(path, way) for way in WAYS}
        base = found["shared stages"]
        for way, one in found.items():
            blocked = found["shared, blocking transfers"]
            last = way.endswith("non-blocking transfers")
            yield (
                f"{name}, {way}",
                f"{1e3 * one.load_s:.1f}",
                *(f"{1e3 * x / COUNT:.1f}" for x in (one.predicted_s, one.makespan_s)),
                f"{one.makespan_s / one.predicted_s:.3f}",
                f"{COUNT * one.load_s / one.makespan_s:.1%}",
                f"{1e3 * one.latency_s:.0f}",
                f"{base.makespan_s / one.makespan_s:.2f}",
                f"{blocked.makespan_s / one.makespan_s:.2f}" if last else "",
            )


def workers_of(folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each model: what runs take in each kind of workers, over the prediction."""
    for name in ("M", "NN", "K"):
        path = folder / f"{name}.onnx"
        plan = must("partition", "-k", "4", *WAYS[2].partition,
                    stdin=shared_models.priced(path, LAYER_S, 1.0))  # fmt: skip
        data = must("schedule", "-n", str(COUNT), stdin=plan)
        (schedule,) = read_bytes(data).get("schedule")
        ratios, count = [], 0
        for kind, by_device in (("thread", True), ("process", False), ("process", True)):
            rounds = []
            for _ in range(ROUNDS):
                with open_pool(kind, Rules(by_device=by_device)) as pool:
                    rounds.append(slept(data, path, pool).makespan_s)
                    count = max(count, len(pool.workers) if pool is not None else 0)
            ratios.append(f"{statistics.median(rounds) / schedule['makespan_s']:.3f}")
        yield name, str(count), *ratios


KINDS = "model", "parts", "threads", "a process a part", "a process a device"

HEADER = (
    "model, way", "largest load (ms)", "predicted, ms a sample", "run", "ratio",
    "rate over that of the load", "latency (ms)", "rate over shared", "gain over blocking",
)  # fmt: skip


def main() -> None:
    """Print the section."""
    print(
        f"Inference by {COUNT} micro-batches on {shared_models.ALL} devices, parts and links that "
        f"sleep: {LAYER_S * 1e3:g} ms a layer, four times that for a table of words or a joint "
        f"layer, a quarter on all devices; transfers of {MOVE_S * 1e3:g} ms. Medians of {ROUNDS} "
        "runs.\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        print(table(HEADER, list(rows_of(Path(folder)))))
        print("\nShared stages, run over prediction, by workers.\n")
        print(table(KINDS, list(workers_of(Path(folder)))))


if __name__ == "__main__":
    main()
