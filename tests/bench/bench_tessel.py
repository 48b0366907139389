"""Schedules of training as in Tessel's table II and figures 13, 14 and 16: predicted and run.

Shapes with equal stages, and the placements that `dnnp.samples.papers.tessel_plans` makes of GPT
and mT5, in shorter time. Blocks sleep, so that 16 devices fit a machine of any size.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_transfers import Case, measured

from dnnp.formats.stream import read_bytes
from dnnp.samples.papers.tessel_figures import OWN, SHAPES, WAYS
from dnnp.samples.papers.tessel_plans import models, placement
from support.bench import table
from support.run import dnnp

COUNT = 32
"""Micro-batches."""
FORWARD_S = 5e-3
"""Of a stage of a shape; its backward block takes three times as long."""
LOAD_S = 40e-3
"""Of a micro-batch of a model on the busiest device, with shared stages."""
METHODS = {
    "V": ("1f1b", "gpipe", "tessel", "auto"), "X": ("chimera", "gpipe", "tessel", "auto"),
    "M": ("1f1b+", "gpipe", "tessel", "auto"), "NN": ("1f1b+", "gpipe", "tessel", "auto"),
    "K": ("gpipe", "tessel", "auto"),
}  # fmt: skip


def scheduled(scale: float, *words: object, count: int = COUNT) -> Case:
    """A schedule, with all times multiplied."""
    done = dnnp("schedule", "-q", "--transfers", "none", "-n", count, *words)
    assert done.status == 0, done.err
    stream = read_bytes(done.out)
    (record,), blocks = stream.get("schedule"), stream.get("block")
    schedule: dict[str, Any] = json.loads(json.dumps(record))
    for row in (schedule, *schedule["passes"], *schedule["units"]):
        row |= {k: row[k] * scale for k in ("time_s", "makespan_s", "busy_s") if k in row}
    moved = [{**b, **{k: b[k] * scale for k in ("start_s", "end_s")}} for b in blocks]
    return Case("", 0.0, "none", schedule, moved)


def rows_of(cases: Iterator[tuple[str, Case | None]]) -> Iterator[tuple[str, ...]]:
    """A row a case; rates are over that of the first case of a shape or model."""
    base: tuple[str, float] = "", 0.0
    for name, case in cases:
        if case is None:
            yield name, "out of memory", *[""] * 6
            continue
        said, took = case.schedule["makespan_s"], measured(case).makespan_s
        if base[0] != name.rpartition(",")[0]:
            base = name.rpartition(",")[0], took
        most = max(unit["busy_s"] for unit in case.schedule["units"])
        yield (
            name, *(f"{1e3 * x / COUNT:.1f}" for x in (most, said, took)), f"{took / said:.3f}",
            *(f"{1 - most / x:.1%}" for x in (said, took)), f"{base[1] / took:.2f}",
        )  # fmt: skip


def shapes() -> Iterator[tuple[str, Case]]:
    """Shapes on four devices."""
    for name, methods in METHODS.items():
        for method in methods:
            yield f"{name}, {method}", scheduled(FORWARD_S, "--shape", name, "--method", method)


def of_paper(folder: Path) -> Iterator[tuple[str, Case | None]]:
    """GPT and mT5 on 4 and 16 GPUs, all ways of a model in the same time."""
    path = folder / "plan.json"
    for name, own in OWN.items():
        for model in models(name)[:3:2]:
            shared = placement(model, own, model.batch)
            assert shared is not None
            scale = LOAD_S / sum(b["time_s"] for b in shared["blocks"] if 0 in b["devices"])
            for way, method in WAYS:
                plan = placement(model, SHAPES.get(method, own), model.batch)
                path.write_text(json.dumps(plan))
                words = "--placement", path, "--method", method
                title, count = f"{name} on {model.devices}, {way}", COUNT
                if method == "chimera":
                    count //= 2  # pairs
                yield title, None if plan is None else scheduled(scale, *words, count=count)


HEADER = (
    "schedule", "largest load (ms)", "predicted, ms a micro-batch", "run", "ratio",
    "waits predicted", "run", "rate",
)  # fmt: skip


def main() -> None:
    """Print the section."""
    print(
        f"Training by {COUNT} micro-batches on four devices, and GPT and mT5 of Tessel on as many "
        f"as stated; blocks sleep, {FORWARD_S * 1e3:g} ms for a forward block of a shape. Waits: "
        "of the busiest device. Rate: over that of the first row of a shape or model.\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for cases in (shapes(), of_paper(Path(folder))):
            print(table(HEADER, list(rows_of(cases))), flush=True)
            print()


if __name__ == "__main__":
    main()
