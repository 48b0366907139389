"""Transfers while devices compute, with workers of all kinds."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.core.runtime.pipeline.prepare import open_pool, pooled_worker
from dnnp.core.runtime.pipeline.schedule_orders import orders_of_units, schedule_steps
from dnnp.core.runtime.pipeline.steps import Step, Worker
from dnnp.core.runtime.workers.pool import Rules, WorkerSpec
from support.running import run_pipeline
from support.scheduled import blocks_of, pass_of
from support.workers import Mark, Sleep

COUNT = 4
UNITS = {"blocking": (0, 1), "non-blocking": (2,)}
"""Units that a transfer takes: both devices, or the link."""


@pytest.mark.parametrize("kind", ["thread", "process", "ray"])
@pytest.mark.parametrize("how", UNITS)
def test_a_device_goes_on_while_its_result_moves(how: str, kind: str, tmp_path: Path) -> None:
    """The first transfer lasts until the device that it is from has begun another sample."""
    if kind == "ray":
        pytest.importorskip("ray")
    move = {"name": "move", "kind": "transfer", "time_s": 1e-3, "after": [{"pass": 0}]}
    passes = [pass_of(0, 0), {**move, "homes": [[*UNITS[how]]]}, pass_of(1, 1, after=[1])]
    units = [{"name": "a"}, {"name": "b"}, {"name": "a>b", "link": True}]
    schedule = {"passes": passes, "units": units, "micro_batches": COUNT}
    blocks = blocks_of(passes, COUNT, range(COUNT * len(passes)))
    seen: list[bool] = []

    def moving(values: Values) -> Values:
        until = time.monotonic() + (30.0 if how == "non-blocking" else 0.3)
        while not seen and not (tmp_path / "1").exists() and time.monotonic() < until:
            time.sleep(1e-3)
        seen.append((tmp_path / "1").exists())
        return values

    recipes = Mark(0.0, ("t",), folder=str(tmp_path)), Sleep(0.0, ("y",))
    with open_pool(kind, Rules(by_device=True)) as pool:
        stages = []
        for i, (recipe, name) in enumerate(zip(recipes, ("x", "t"), strict=True)):
            worker = Worker(f"stage {i}", recipe)
            if pool is not None:
                spec = WorkerSpec(worker.name, device="ab"[i])
                worker = pooled_worker(pool, spec, recipe, pool.share({}))
            stages.append(Step(worker.name, (name,), recipe.outputs, (worker,)))
        if pool is not None:
            pool.ready()
        scheduled = schedule_steps(stages, orders_of_units(schedule, blocks, {0: 0, 2: 1}))
        steps = [
            replace(step, workers=(Worker(step.name, moving),)) if "transfer" in step.name else step
            for step in scheduled.steps
        ]
        trace = run_pipeline(
            steps, [{"x": np.zeros(1, np.float32)}], COUNT, ["y"],
            orders=scheduled.device_orders(["y"], 2), keep=lambda s: True, convert=to_numpy,
        )  # fmt: skip
    assert [float(trace.outputs[s]["y"][0]) for s in range(COUNT)] == [2.0] * COUNT
    assert seen[0] is (how == "non-blocking")
