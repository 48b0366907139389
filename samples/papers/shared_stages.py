"""Training of models with large tables, in the form of Tessel's figures 13 and 14: predictions.

    python -m dnnp.samples.papers.shared_stages [--only NAME] [--devices K ...] [--csv DIR]

For each model and number of devices: the best contiguous split with a device a stage, the best one
with several devices a stage (what Piper plans), both by 1F1B where their stages are a chain; and
the best plan with stages that all devices share, by 1F1B+ and by the schedule that is proven best.
Of all these the time of an iteration. Nothing of it runs.

Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible Schedule
Search", HPCA 2024.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import dnnp
from dnnp.samples import build
from dnnp.samples.arguments import status_of
from dnnp.samples.papers.tables import Table, show

MODELS = ("gpt-1m-vocab", "gpt-1m-vocab-untied", "mt5-1m-vocab", "flava-4096")
INFERENCE = ("flava-4096",)
"""Models that are not trained, as in figure 15."""
MICRO_BATCHES = 128
"""Of a sample each: what figures 13 and 14 call the global size."""
SHARED = 2
"""Stages that may be shared."""
INF = float("inf")
HEAD = (
    "model", "k", "placement", "largest load ms", "gap %", "schedule", "iteration s", "ratio",
    "period proven",
)  # fmt: skip


class Way(NamedTuple):
    """A kind of plan, and schedules for it."""

    name: str
    schedules: tuple[str, ...]
    tensor_parallel: bool = False
    shared: bool = False


WAYS = (
    Way("a device a stage", ("1f1b",)),
    Way("several devices a stage", ("1f1b",), tensor_parallel=True),
    Way("shared stages", ("1f1b+", "auto"), shared=True),
)


class Found(NamedTuple):
    """A plan and its schedule; infinite times: nothing fits."""

    placement: str
    load_s: float
    gap: float
    schedule: str
    iteration_s: float
    proven: bool
    """Whether no schedule of the placement has a shorter period."""


def graph_of(path: Path, devices: int, device: str, *, trained: bool) -> dnnp.Graph:
    """A model, with its backward pass if it is trained; by layers, on one and on more devices."""
    graph = dnnp.load(path, training=trained, mixed_precision=trained)
    return dnnp.profile(dnnp.coarsen(graph, layers=True), device=[device], tensor_parallel=devices)


def compare(graph: dnnp.Graph, devices: int, micro_batches: int = MICRO_BATCHES) -> list[Found]:
    """All ways for one model."""
    found: list[Found] = []
    for way in WAYS:
        try:
            plan = dnnp.split(
                graph,
                k=devices,
                tensor_parallel=devices if way.tensor_parallel else 1,
                micro_batches=micro_batches,
                shared_stages=SHARED if way.shared else None,
            )
        except dnnp.InfeasibleError:
            found.append(Found(way.name, INF, 0.0, "", INF, False))
            continue
        found += [_scheduled(plan, way.name, name, micro_batches) for name in way.schedules]
    return found


def _scheduled(plan: dnnp.Graph, name: str, method: str, micro_batches: int) -> Found:
    """A plan by a schedule; by the best one where its stages are no chain, as 1F1B needs it."""
    try:
        done = dnnp.schedule(plan, micro_batches=micro_batches, method=method)
    except dnnp.UsageError:
        method = "auto"
        done = dnnp.schedule(plan, micro_batches=micro_batches)
    dnnp.check(done)
    (record,), (made,) = done.records("plan"), done.records("schedule")
    shared = sum(bool(stage.get("shared")) for stage in done.records("stage"))
    own = len(done.stages) - shared
    parts = f"{own} stage{'' if own == 1 else 's'}" + (f" + {shared} shared" if shared else "")
    repetend = made.get("repetend") or {"period_s": INF, "period_bound_s": 0.0}
    proven = repetend["period_s"] <= repetend["period_bound_s"] * (1 + 1e-9)
    return Found(
        f"{name}: {parts}", record["value"], record["gap"], method, made["makespan_s"], proven
    )


def table_of(names: Sequence[str], counts: Sequence[int], device: str) -> Table:
    """The table; the ratio is that to the shared stages by the best schedule."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = build.write(name, Path(folder))
            for devices in counts:
                graph = graph_of(path, devices, device, trained=name not in INFERENCE)
                found = compare(graph, devices)
                rows += [_row(name, devices, one, found[-1].iteration_s) for one in found]
    title = f"{MICRO_BATCHES} micro-batches of a sample on {device}, predicted"
    return Table("shared-stages", title, HEAD, rows)


def _row(name: str, devices: int, one: Found, best: float) -> tuple[str, ...]:
    if one.load_s == INF:
        return name, str(devices), one.placement, "does not fit", "", "", "", "", ""
    return (
        name, str(devices), one.placement, f"{1e3 * one.load_s:.2f}", f"{100 * one.gap:.2f}",
        one.schedule, f"{one.iteration_s:.3f}", f"{one.iteration_s / best:.3f}",
        "yes" if one.proven else "",
    )  # fmt: skip


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.papers.shared_stages",
        description="Plan models with stages that all devices share, beside other plans.",
    )
    parser.add_argument(
        "--only", choices=MODELS, metavar="NAME", help=f"one of {', '.join(MODELS)}"
    )
    parser.add_argument(
        "--devices", type=int, nargs="+", default=[4, 8], metavar="K", help="(default: 4 8)"
    )
    parser.add_argument("--device", default="a100", help="class of devices (default: a100)")
    parser.add_argument("--csv", metavar="DIR", type=Path, help="folder for the table as CSV")
    args = parser.parse_args()
    names = MODELS if args.only is None else (args.only,)
    make = partial(table_of, names, args.devices, args.device)
    return status_of(parser.prog, lambda: show(make(), args.csv))


if __name__ == "__main__":
    raise SystemExit(main())
