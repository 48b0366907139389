"""Sharded plans of `gpt` on eight cores beside the best plan without shards: predicted and run.

Fewer cores than eight do: every part of both plans is run alone, one after the other, in rounds, on
one thread, and its own processor time counts. A device takes the sum of its parts, a plan as long
as its slowest device, replicas as many times less. What it takes to hand tensors over is not in it,
but what puts them together (Concat, Add) is. Outputs are compared with those of the whole model.

The environment: SAMPLES, as `gpt-small gpt-full`; COSTS, as `analytic measured`, says where costs
are from; ROUNDS how often each part runs. All of both samples takes some five minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime

import dnnp as api
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.samples.build import write
from support.bench import medians, table
from support.run import must, records_of

K = 8
DEGREES = (1, 2, 4, 8)
ROUNDS = int(os.environ.get("ROUNDS", "15"))
SAMPLES = os.environ.get("SAMPLES", "gpt-small gpt-full").split()
COSTS = os.environ.get("COSTS", "analytic").split()
MEASURE = ("--mode", "measure")


class Planned(NamedTuple):
    """A plan, and its exported models."""

    degree: int
    plan: Mapping[str, Any]
    stages: list[Mapping[str, Any]]
    loaded: api.Stages
    error: float


def planned(path: Path, costs: str, folder: Path) -> tuple[list[Planned], list[dict[str, Any]]]:
    """The best plan for each degree, of the same costs; and what goes into each part of each."""
    coarse = must("coarsen", stdin=must("import", str(path)))
    how = MEASURE if costs == "measured" else ()
    most = ("--tensor-parallel", str(max(DEGREES)))
    priced = must("profile", "--device", "cpu-core", *how, *most, stdin=coarse)
    model = onnx.load(str(path), load_external_data=False)
    sample = dict(random_inputs(model, 3))
    whole = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in whole.get_outputs()]
    expected = dict(zip(names, whole.run(names, sample), strict=True))
    found, feeds = [], []
    for degree in DEGREES:
        words = ("--tensor-parallel", str(degree)) if degree > 1 else ()
        plan = must("partition", "-k", str(K), *words, stdin=priced)
        must("check", stdin=plan)
        target = folder / f"{path.stem}-{costs}-{degree}"
        must("export", "--to", "stages", "-o", str(target), stdin=plan)
        loaded = api.load_stages(target)
        values, given = loaded.accept(sample), {}
        for number, stage in enumerate(loaded.manifest["stages"]):
            given[number] = {t["name"]: values[t["name"]] for t in stage["inputs"]}
            values = loaded.pass_on(number, values)
        error = max(
            float(np.abs(values[name] - there).max() / np.abs(there).max())
            for name, there in expected.items()
        )
        found.append(
            Planned(degree, records_of(plan, "plan")[0], records_of(plan, "stage"), loaded, error)
        )
        feeds.append(given)
    return found, feeds


def measured(plans: list[Planned], feeds: list[dict[str, Any]]) -> list[float]:
    """Processor time of a sample on the slowest device of each plan."""
    parts = [(p, number) for p, plan in enumerate(plans) for number in plan.loaded.loaded]

    def run(p: int, number: int) -> Any:
        runner = plans[p].loaded._runners[number]
        return lambda: runner(feeds[p][number])

    times = medians([run(*part) for part in parts], ROUNDS, time.thread_time)
    loads: list[dict[str, float]] = [{} for _ in plans]
    for (p, number), seconds in zip(parts, times, strict=True):
        stage = plans[p].loaded.manifest["stages"][number]
        load = loads[p]
        load[stage["device"]] = load.get(stage["device"], 0.0) + seconds / stage["replicas"]
    return [max(load.values()) for load in loads]


def main() -> int:
    """Print the table."""
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in SAMPLES:
            path = write(name, Path(folder))
            for costs in COSTS:
                plans, feeds = planned(path, costs, Path(folder))
                took = measured(plans, feeds)
                for plan, seconds in zip(plans, took, strict=True):
                    value, worst = plan.plan["value"], max(worst, plan.error)
                    shards = [stage.get("shards", 1) for stage in plan.stages]
                    rows.append([
                        name, costs, plan.degree, " ".join(map(str, shards)),
                        f"{value * 1e3:.3f}", f"{plans[0].plan['value'] / value:.2f}",
                        f"{seconds * 1e3:.3f}", f"{took[0] / seconds:.2f}",
                        f"{plan.error:.1e}",
                    ])  # fmt: skip
    header = [
        "model", "costs", "T", "shards of stages", "predicted, ms", "gain", "run, ms", "gain",
        "error",
    ]  # fmt: skip
    print(table(header, rows))
    print()
    print(
        f"{K} devices `cpu-core`; T: `--tensor-parallel`, 1 is the best plan without. Loads of the "
        "slowest device for a sample; run: processor time of its parts, each run alone on one "
        f"thread, medians of {ROUNDS} rounds over all parts of all plans of a model. Gains are "
        "throughputs over that of T = 1. Error: of the outputs, relative to the largest value."
    )
    return 1 if worst >= 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())
