"""The cost of a border between two stages in threads, beside the cost model's charge for it.

Both stages run as a pipeline on two cores, then each alone with inputs that stay: what a stage
takes longer in a pipeline is what its border costs it, and the other stage beside it. Nothing is
copied between threads.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import onnx

from dnnp.core.model.processes import available_cores
from dnnp.core.runtime.model.inputs import Sample, random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.steps import Worker
from dnnp.core.runtime.report.statistics import summarize
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import read_bytes
from dnnp.samples.build import write as write_sample
from support.bench import table
from support.run import dnnp
from support.running import run_pipeline

MODELS = (
    "mobilenet-v2-small",
    "inception-v3-small",
    "resnet50-small",
    "shufflenet-v2-small",
    "gpt-small",
    "gnmt-small",
    "bert-small",
    "two-tower-small",
    "moe-small",
    "dlrm-small",
)
ROUNDS = 6
SAMPLES = 40
WARMUP = 4


def ready(name: str, folder: Path) -> tuple[Pipeline, Sample, float]:
    """Two stages of a model, an input, and the seconds that each is charged for the border."""
    path = write_sample(name, folder)
    data = b""
    for step in (("import", path), ("coarsen",), ("profile",), ("partition", "-k", "2")):
        result = dnnp(step[0], "-q", *step[1:], stdin=data)
        if result.status:
            raise SystemExit(result.err)
        data = result.out
    stream = read_bytes(data)
    plan = plan_of(stream, graph_of(stream))
    if plan is None or len(plan.stages) != 2:
        raise SystemExit(f"{name}: not two stages")
    model = onnx.load(path)
    pipeline = prepare(model, folder, plan.stages, SessionConfig())
    return pipeline, random_inputs(model, 0), plan.stages[0].out_s


def alone(worker: Worker, values: Values) -> float:
    """Median time of a stage with inputs that stay, on a core, while nothing else runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, available_cores()[:1])
    took = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        worker.call(values)
        took.append(time.perf_counter() - began)
    os.sched_setaffinity(0, before)
    return statistics.median(took)


def row(name: str, folder: Path) -> tuple[str, ...]:
    """Sizes and times of one border; medians over rounds."""
    pipeline, sample, charged = ready(name, folder)
    first, second = pipeline.steps
    given = {n: sample[n] for n in first.inputs}
    made = first.workers[0].call(given)
    crossing = [n for n in second.inputs if n in made]
    read = {n: made[n] if n in made else sample[n] for n in second.inputs}
    extra: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        trace = run_pipeline(pipeline.steps, [sample], SAMPLES + WARMUP, pipeline.outputs)
        loads = summarize(trace, WARMUP).loads_s
        sender = loads[0] - alone(first.workers[0], given)
        extra.append((sender, loads[1] - alone(second.workers[0], read)))
    size = sum(made[n].nbytes for n in crossing)
    shown = (statistics.median(column) for column in zip(*extra, strict=True))
    return (
        name,
        str(len(crossing)),
        f"{size / 1e3:.0f}",
        f"{charged * 1e6:.0f}",
        *(f"{x * 1e6:.0f}" for x in shown),
    )


def main() -> None:
    """Print the section."""
    print(
        "Models of `samples/` in two stages on two cores, prices of `cpu-core`: what the cost "
        "model charges each stage for the border, and how much longer the stages take in a "
        "pipeline than alone with inputs that stay. Medians of "
        f"{ROUNDS} rounds of {SAMPLES} samples.\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder)) for name in MODELS]
    header = ("model", "tensors", "kB", "charged (us)", "sender (us)", "receiver (us)")
    print(table(header, rows))


if __name__ == "__main__":
    main()
