"""Slicing one order: from a line that is laid out to its optimal cut positions."""

from __future__ import annotations

from functools import partial

from dnnp.core.cost.items import items_of
from dnnp.core.cost.problem import SplitProblem, make_line
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.core.split.slicing.slice import slice_line
from dnnp.formats.graph import graph_of, units_of
from support.bench import medians, table
from support.graphs import random_stream

REPEATS = 5
CASES = ((1_000, (2, 16, 64)), (100_000, (16, 64)))
TARGETS = {(1_000, 2): "5 ms", (1_000, 16): "5 ms", (1_000, 64): "5 ms",
           (100_000, 16): "5 s", (100_000, 64): "2 s"}  # fmt: skip


def main() -> None:
    """Print the table."""
    rows = []
    for n, counts in CASES:
        graph = graph_of(random_stream(3, n))
        units = units_of(random_stream(3, n), graph)
        items = items_of(graph, units)
        order = ORDERS["kahn"](items)
        for k in counts:
            device = DeviceClass("dev", count=k, bandwidth_bytes_per_s=2.0)
            lay_out = partial(
                make_line, SplitProblem(graph, units, (device,), CostOptions()), items, order
            )
            build, cut = medians([lay_out, partial(slice_line, lay_out(), "sum")], REPEATS)
            rows.append(
                [f"{n:,}", k, f"{1e3 * build:.1f} ms", f"{1e3 * cut:.1f} ms", TARGETS[n, k]]
            )
    print(
        "Random graphs (`random_stream` in `tests/support/graphs.py`, seed 3) in Kahn order, one "
        f"device class, warm, median of {REPEATS}: laying the order out, then cutting it "
        "optimally.\n"
    )
    print(table(["nodes", "k", "lay out", "slice", "target (slice)"], rows))


if __name__ == "__main__":
    main()
