"""Gaps to the bound of plans of random graphs in limited time, and those of brkga-10000.

    PYTHONPATH=tests GRAPHS=4 LIMIT_S=60 python tests/bench/bench_quality.py

The larger graphs of bench_bounds (100 nodes and more) at k = 8, split for a third of LIMIT_S and
bounded for the rest; graphs of samples/regal.json at k = 4 and 8 in half of that, with the bound
for both. GRAPHS of each; kernels are compiled before.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench_mtpp import ORDERED, RIVAL, mean_ratio, regal_problem

import dnnp
from dnnp.core.split.auto import solve
from dnnp.formats.workloads.synthetic import synthetic_stream
from dnnp.samples.papers.regal import FAMILIES, regal_graph
from support.bench import table
from support.graphs import to_bytes

GRAPHS, LIMIT_S = int(os.environ.get("GRAPHS", "4")), float(os.environ.get("LIMIT_S", "60"))
TARGET = 1.045
"""Mean of value over bound, of the larger graphs."""


def found(family: str | None, nodes: int | None, seed: int, k: int, limit_s: float) -> dnnp.Graph:
    """A plan of a generated graph, and its bound."""
    made = regal_graph(family, nodes, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.dnnp")
        stream = synthetic_stream(made.family, made.tail, made.head, made.size, made.cost)
        path.write_bytes(to_bytes(stream))
        planned = dnnp.split(dnnp.load(path), k=k, time_limit=limit_s / 3)
    return dnnp.bound(planned, time_limit=2 * limit_s / 3)


def main() -> None:
    """Print both tables."""
    found(None, 60, 0, 8, 3.0)  # what it compiles is not timed
    rows: list[tuple[object, ...]] = []
    ratios = []
    for i in range(GRAPHS):
        nodes, seed = 100 + 2 * i, 100 + i
        family = list(FAMILIES)[seed % len(FAMILIES)]
        begun = time.process_time()
        plan = found(family, nodes, seed, 8, LIMIT_S).stream()
        value, bound = plan.get("plan")[0]["value"], plan.get("bound")[0]
        ratios.append(value / bound["value"])
        spent = f"{time.process_time() - begun:.0f}"
        rows.append((family, nodes, f"{value:.6g}", f"{ratios[-1]:.4f}", bound["method"], spent))
    print(table(("graph", "nodes", "value", "over bound", "by", "CPU s"), rows), flush=True)
    print(f"\nMean {mean_ratio(ratios):.4f}, target {TARGET}.\n", flush=True)
    rows = []
    for k in (4, 8):
        ours, theirs = [], []
        for seed in range(GRAPHS):
            plan = found(None, None, seed, k, LIMIT_S / 2).stream()
            least = plan.get("bound")[0]["value"]
            ours.append(plan.get("plan")[0]["value"] / least)
            problem = regal_problem(None, None, seed, k)
            theirs.append(problem.value(solve(problem, ORDERED[RIVAL]).blocks) / least)
        near, far = mean_ratio(ours) - 1, mean_ratio(theirs) - 1
        rows.append((k, f"{100 * far:.2f} %", f"{100 * near:.2f} %", f"{near / far:.2f}"))
    print(table(("k", f"{RIVAL} above the bound", "auto", "ratio (target 0.5)"), rows))


if __name__ == "__main__":
    main()
