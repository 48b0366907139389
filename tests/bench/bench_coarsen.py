"""Coarsening of large models: seconds in one process, and the groups that result."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from dnnp.core.coarsen.coarsen import coarsen
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.rules import load_rules
from dnnp.loading import load_onnx
from dnnp.samples.build import write as write_sample
from support.bench import medians, table
from support.graphs import to_bytes
from support.run import dnnp

REPEATS = 5
MODELS = ("gpt3-13b", "swin-13b", "evoformer-2.4b")
GROUPS = 500
WAYS = (
    (), ("--rules", "ort-cpu"), ("--chains",), ("--layers",), ("--to", str(GROUPS)),
    ("--rules", "ort"),
)  # fmt: skip
OPTIMISED = ("evoformer-2.4b",)
"""Models that ONNX Runtime optimises for `--rules ort`; the others take minutes."""
TARGET = "50,000 nodes in 2 s"


def row(name: str, folder: Path) -> tuple[str, ...]:
    """One model: nodes, seconds, and the number of groups for each way."""
    stream = load_onnx(str(write_sample(name, folder)))
    graph, rules = graph_of(stream), load_rules("ort-cpu")
    shapes = [tuple(r["shape"]) if "shape" in r else None for r in stream.get("tensor")]
    data = to_bytes(stream)

    def command(*way: str) -> None:
        assert dnnp("coarsen", "-q", *way, stdin=data).status == 0

    alone, whole, balanced = medians(
        [
            lambda: coarsen(graph, shapes, rules, 0.02),
            command,
            lambda: command("--to", str(GROUPS)),
        ],
        REPEATS,
    )
    groups, started = [], time.perf_counter()
    for way in WAYS if name in OPTIMISED else WAYS[:-1]:
        started = time.perf_counter()
        result = dnnp("coarsen", *way, stdin=data)
        assert result.status == 0, result.err
        groups.append(len(result.records("group")))
    taken = f"{time.perf_counter() - started:.0f} s" if name in OPTIMISED else "-"
    counts = [*(f"{g:,}" for g in groups), "-"][: len(WAYS)]
    return (
        name,
        f"{graph.n:,}",
        f"{alone:.2f} s",
        f"{whole:.2f} s",
        f"{balanced:.2f} s",
        taken,
        *counts,
    )


def main() -> None:
    """Measure and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder)) for name in MODELS]
    print(
        f"`dnnp-coarsen` in one process, median of {REPEATS}: rules and chains alone, and the "
        f"whole command, which reads and writes the stream too, by default and with "
        f"`--to {GROUPS}`. Target: {TARGET}. With `--rules ort`, once, ONNX Runtime optimises the "
        "model, which takes nearly all the time. Then the groups: by default, and each way "
        "alone.\n"
    )
    header = (
        "model",
        "nodes",
        "rules and chains",
        "whole command",
        f"`--to {GROUPS}`",
        "`--rules ort`",
        "groups",
        "`--rules ort-cpu`",
        "`--chains`",
        "`--layers`",
        f"`--to {GROUPS}`",
        "`--rules ort`",
    )
    print(table(header, rows))


if __name__ == "__main__":
    main()
