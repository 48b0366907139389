"""Bounds proven on real models: operators alone, and after coarsening."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.split.auto import solve
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.plan import device_of
from dnnp.formats.stream import read_bytes
from support.bench import table
from support.run import executable

MODELS = os.environ.get("DNNP_BENCH_MODELS", "small").split()
"""Names or sizes of sample models (python -m dnnp.samples.build --list)."""
SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
COUNTS = (2, 4, 8)
LIMIT_S = 30.0


def stream_of(model: Path, *, coarsen: bool) -> bytes:
    """The priced stream of a model."""
    data = subprocess.run(
        [executable("import"), "-q", model], check=True, capture_output=True
    ).stdout
    for command in ("coarsen", "profile") if coarsen else ("profile",):
        run = subprocess.run(
            [executable(command), "-q"], input=data, check=True, capture_output=True
        )
        data = run.stdout
    return data


def rows(model: Path, *, coarsen: bool) -> list[tuple[object, ...]]:
    """One row a device count."""
    stream = read_bytes(stream_of(model, coarsen=coarsen), model.name)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    priced = device_of(stream.get("device")[0])
    found = []
    for k in COUNTS:
        device = type(priced)(
            priced.name, "accelerator", k, priced.memory_bytes, priced.bandwidth_bytes_per_s
        )
        problem = SplitProblem(graph, units, (device,), CostOptions())
        said: list[str] = []
        start = time.monotonic()
        end = start + LIMIT_S
        run = SearchContext(interrupted=lambda end=end: time.monotonic() >= end, log=said.append)
        solution = solve(problem, MethodOptions(), run)
        seconds = time.monotonic() - start
        plan = make_plan(
            SplitProblem(graph, units, (device,), CostOptions()),
            solution.blocks,
            method="auto",
            bound=solution.bound,
            digest="",
        )
        ideals = next((s.split()[0] for s in said if "ideals" in s), "-")
        found.append(
            (
                model.stem,
                "groups" if coarsen else "operators",
                units.g,
                k,
                ideals if ideals != "too" else "too many",
                f"{plan.value:.6g}",
                f"{plan.bound:.6g}",
                plan.status if plan.status == "optimal" else f"gap {100 * plan.gap:.2f} %",
                f"{seconds:.2f}",
            )
        )
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        names = [n for n in MODELS if n not in ("small", "full", "giant")]
        sizes = [n for n in MODELS if n in ("small", "full", "giant")]
        for arguments in [["--size", s] for s in sizes] + ([names] if names else []):
            subprocess.run(
                [sys.executable, "-m", "dnnp.samples.build", "-o", folder, *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        models = sorted(Path(folder).glob("*.onnx"))
        models += sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else []
        found = [
            row
            for model in models
            for coarsen in (True, False)
            for row in rows(model, coarsen=coarsen)
        ]
    print(f"Optimum or proven gap within {LIMIT_S:.0f} s a plan; analytic costs, cpu-core.\n")
    head = ("model", "units", "number", "k", "ideals", "value s", "bound s", "proven", "seconds")
    print(table(head, found))


if __name__ == "__main__":
    main()
