"""How far from the bound plans of random graphs are after a limited time, and those of brkga-10000.

    PYTHONPATH=tests GRAPHS=6 LIMIT_S=60 python tests/bench/bench_quality.py

The larger graphs of bench_bounds (100 nodes and more) at k = 8 within LIMIT_S, and graphs of
samples/regal.json at k = 4 and 8 within a third of it, by `auto`, kernels compiled. GRAPHS of each.
"""

from __future__ import annotations

import os
import time

from bench_mtpp import ORDERED, RIVAL, mean_ratio, regal_problem

from dnnp.core.model.request import Request
from dnnp.core.model.search_context import Run
from dnnp.core.split.auto import solve
from dnnp.core.synthetic.regal import FAMILIES
from support.bench import table

GRAPHS, LIMIT_S = int(os.environ.get("GRAPHS", "6")), float(os.environ.get("LIMIT_S", "60"))
TARGET = 1.045
"""Mean of value over bound, of the larger graphs."""


def main() -> None:
    """Print both tables."""
    solve(regal_problem(None, 20, 0, 2), Request())  # what it compiles is not timed
    rows, ratios = [], []
    for i in range(GRAPHS):
        nodes, seed = 100 + 2 * i, 100 + i
        family = list(FAMILIES)[seed % len(FAMILIES)]
        problem = regal_problem(family, nodes, seed, 8)
        begun = time.process_time()
        found = solve(problem, Request(), Run().within(LIMIT_S))
        value = problem.value(found.blocks)
        ratios.append(value / found.bound)
        spent = time.process_time() - begun
        rows.append((family, nodes, f"{value:.6g}", f"{ratios[-1]:.4f}", f"{spent:.0f}"))
    print(table(("graph", "nodes", "value", "over bound", "CPU s"), rows))
    print(f"\nMean {mean_ratio(ratios):.4f}, target {TARGET}.\n")
    rows = []
    for k in (4, 8):
        ours, theirs = [], []
        for seed in range(GRAPHS):
            problem = regal_problem(None, None, seed, k)
            found = solve(problem, Request(), Run().within(LIMIT_S / 3))
            ours.append(problem.value(found.blocks) / found.bound)
            other = problem.value(solve(problem, ORDERED[RIVAL]).blocks)
            theirs.append(other / found.bound)
        near, far = mean_ratio(ours) - 1, mean_ratio(theirs) - 1
        rows.append((k, f"{100 * far:.2f} %", f"{100 * near:.2f} %", f"{near / far:.2f}"))
    print(table(("k", f"{RIVAL} above the bound", "auto", "ratio (target 0.5)"), rows))


if __name__ == "__main__":
    main()
