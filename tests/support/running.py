"""Streams with a plan of one's choice for models that are to run, and stand-ins for stages."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions, Plan, Stage
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline import threads as pipelines
from dnnp.core.runtime.pipeline.sources import Kept, Repeated
from dnnp.core.runtime.pipeline.steps import Call, Step, Worker
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.report.statistics import Timing, Trace
from dnnp.formats.graph import digest_of, graph_of, units_of
from dnnp.formats.plan import plan_records
from dnnp.formats.stream import Stream, read_bytes, write
from support.run import dnnp
from support.split_models import array, graph, make, node, value

SPLIT = [[0, 1], [2, 3, 4], [5, 6]]
"""Nodes of three stages of `network`."""


def network() -> onnx.ModelProto:
    """A table that is looked up in the middle stage; a tensor and an input skip over it."""
    rng = np.random.default_rng(3)
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Tanh", ["a"], ["t"]),
        node("Gather", ["table", "ids"], ["e"]),
        node("Mul", ["t", "e"], ["m"]),
        node("MatMul", ["m", "w2"], ["b"]),
        node("Sub", ["b", "t"], ["d"]),
        node("Add", ["d", "x"], ["y"]),
    ]
    stored = [
        array("w1", rng.standard_normal((8, 8))),
        array("w2", rng.standard_normal((8, 8))),
        array("table", rng.standard_normal((11, 8))),
    ]
    inputs = [value("x", [5, 8]), value("ids", [5], TensorProto.INT64)]
    outputs = [value("y", [5, 8]), value("m", [5, 8])]
    return make(graph(nodes, "net", inputs, outputs, stored))


def rows_that_fail(folder: Path) -> list[str | Path]:
    """Options with two samples for `network`; the second asks for a row that the table lacks."""
    paths: list[str | Path] = []
    for i, ids in enumerate(([0, 1, 2, 3, 4], [0, 1, 2, 3, 99])):
        paths += ["--inputs", folder / f"{i}.npz"]
        np.savez(paths[-1], **random_inputs(network(), i) | {"ids": np.array(ids)})
    return paths


def known_time(seconds: float, outputs: Sequence[str], *, busy: bool = False) -> Call:
    """A stand-in for a stage that takes a known time and hands on empty tensors."""

    def call(_: Values) -> Values:
        until = time.perf_counter() + seconds
        if not busy:
            time.sleep(seconds)
        while time.perf_counter() < until:
            pass
        return dict.fromkeys(outputs)

    return call


def made_up(
    times_s: Sequence[float], count: int, *, window: int, replicas: Sequence[int] = ()
) -> Trace:
    """A chain of stages that take exactly these times, with so many samples under way."""
    workers = list(replicas) or [1] * len(times_s)
    start = np.zeros((len(times_s), count), dtype=np.int64)
    end, done = start.copy(), np.zeros(count, dtype=np.int64)
    for s in range(count):
        there = done[s - window] if s >= window else 0
        for i, (time_s, r) in enumerate(zip(times_s, workers, strict=True)):
            start[i, s] = max(there, end[i, s - r] if s >= r else 0)
            there = end[i, s] = start[i, s] + round(time_s * 1e9)
        done[s] = there
    return Trace(start, end, done, np.array(workers), {}, interrupted=False)


def check_figures(timing: Timing, trace: Trace, warmup: int) -> None:
    """Figures against their definitions, whatever pace the trace was made at."""
    start, end, done = (
        1e-9 * x[..., warmup:] for x in (trace.start_ns, trace.end_ns, trace.done_ns)
    )
    busy = end - start
    assert timing.samples == len(done)
    assert timing.elapsed_s == pytest.approx(done[-1] - 1e-9 * trace.done_ns[warmup - 1])
    assert timing.throughput_per_s == pytest.approx(len(done) / timing.elapsed_s)
    assert timing.loads_s == pytest.approx(np.median(busy, axis=1) / trace.replicas)
    latency = np.sort(done - start.min(axis=0))
    assert latency[0] <= timing.latency_p50_s <= timing.latency_p99_s <= latency[-1] + 1e-12
    there = trace.replicas * (end.max(axis=1) - start.min(axis=1))
    assert timing.bubbles == pytest.approx(1 - busy.sum(axis=1) / there, abs=1e-6)
    assert timing.bubble == pytest.approx(1 - busy.sum() / there.sum(), abs=1e-6)


def step_of(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *calls: Call,
    stop: Callable[[], None] | None = None,
) -> Step:
    """A step with one replica a call."""
    names = [name] if len(calls) == 1 else [f"replica {j} of {name}" for j in range(len(calls))]
    workers = (Worker(n, call, stop=stop) for n, call in zip(names, calls, strict=True))
    return Step(name, tuple(inputs), tuple(outputs), tuple(workers))


def planned(
    model: onnx.ModelProto | Path,
    folder: Path,
    stages: Sequence[Sequence[int]] | int,
    *options: str,
    replicas: Sequence[int] = (),
) -> bytes:
    """Import a model and plan it: into given stages of node ids, or so many equal slices."""
    path = model
    if isinstance(model, onnx.ModelProto):
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
    result = dnnp("import", path, *options)
    assert result.status == 0, result.err
    stream = read_bytes(result.out)
    if isinstance(stages, int):
        graph = graph_of(stream)
        ids = [int(graph.node_ids[v]) for v in graph.order]
        cuts = [len(ids) * i // stages for i in range(stages + 1)]
        stages = [ids[a:b] for a, b in itertools.pairwise(cuts)]
    return with_plan(stream, stages, replicas)


def stage_of(nodes: Sequence[int], number: int = 0, replicas: int = 1) -> Stage:
    """A stage that takes a millisecond a node."""
    time_s = 1e-3 * len(nodes)
    device, load = f"cpu-core/{number}", time_s / replicas
    return Stage(device, "cpu-core", tuple(nodes), load, 0.0, time_s, 0.0, 0.0, 0.0, replicas)


def with_plan(
    stream: Stream, stages: Sequence[Sequence[int]], replicas: Sequence[int] = ()
) -> bytes:
    """The stream with a plan of these stages; every node takes a millisecond."""
    for record in stream.get("node"):
        record["time_s"] = {"cpu-core": 1e-3}
    graph = graph_of(stream)
    counts = replicas or [1] * len(stages)
    first = [sum(counts[:i]) for i in range(len(stages))]
    parts = tuple(map(stage_of, stages, first, counts))
    plan = Plan(
        stages=parts,
        k=sum(counts),
        method="slice",
        validity="ordered",
        value=max(part.load_s for part in parts),
        bound=0.0,
        status="feasible",
        options=CostOptions(max_replicas=max(counts, default=1)),
        devices=(DeviceClass("cpu-core", "cpu", sum(counts)),),
        digest=digest_of(graph, units_of(stream, graph)),
    )
    record, stage_records = plan_records(plan)
    stream.replace("plan", [record])
    stream.replace("stage", stage_records)
    return written(stream)


def written(stream: Stream) -> bytes:
    """The bytes of a stream."""
    out = io.BytesIO()
    write(stream, out)
    return out.getvalue()


def changed(stream: bytes, change: Callable[[Stream], None]) -> bytes:
    """A stream after a change of its contents."""
    content = read_bytes(stream)
    change(content)
    return written(content)


def swap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap the names of the tensors `a` and `b` between stages."""
    inputs = pipelines._PipelineRun._inputs

    def swapped(run: Any, job: Any) -> dict[str, Any]:
        values = inputs(run, job)
        return {**values, "a": values["b"], "b": values["a"]} if {"a", "b"} <= {*values} else values

    monkeypatch.setattr(pipelines._PipelineRun, "_inputs", swapped)


def run_pipeline(
    steps: Sequence[Step],
    samples: Sequence[Mapping[str, Any]],
    count: int,
    outputs: Sequence[str],
    *,
    keep: Callable[[int], bool] = lambda s: False,
    convert: Callable[[Any], Any] = lambda value: value,
    **how: Any,
) -> Trace:
    """Send `count` samples through: sample s is `samples[s % len(samples)]`; see `send`.

    Outputs of the samples that `keep` names are in the trace, each value as `convert` makes it.
    """
    kept = Kept(keep, convert)
    trace = send(steps, Repeated(samples, count), kept, outputs, **how)
    return replace(trace, outputs=kept.outputs(trace.done))
