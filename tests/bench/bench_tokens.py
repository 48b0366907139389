"""Predicted against measured tokens/s, time a token and time to the first token of decoders.

    make bench BENCH=tokens         MODELS=FILE,FILE: these, after the samples

Two stages; prompts of 24 ids and 64 tokens; passes of 4 sequences, 8 under way; the time to the
first token with one under way. Costs are measured, or by the fitted rates of this machine; no run
is used for either. Medians of five runs; with each figure the error of what was predicted.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from dnnp import load, profile, split
from dnnp.generating import generate_stream
from dnnp.graph import Graph
from dnnp.options.run import RunOptions
from dnnp.samples.build import CATALOG, write
from support.bench import table

PROMPT, TOKENS, UNDER_WAY, RUNS = 24, 64, 8, 5
PHASES = [f"prompt:seq=8..{PROMPT + TOKENS}", f"token:batch=4,past=8..{PROMPT + TOKENS}"]
COSTS = {"measured": {"mode": "measure"}, "cpu-here": {"device": ["cpu-here"]}}
FIGURES = ("tokens_per_s", "tpot_s", "ttft_s")
SAMPLES = [
    name for name, entry in CATALOG.items()
    if entry.size == "decoder" and entry.parameters < 1e9
]  # fmt: skip


def run(plan: Graph, under_way: int) -> dict[str, float]:
    """Figures of one run."""
    stream = plan.stream()
    rows = {"pass_rows": 1} if under_way == 1 else {}
    options = RunOptions(generate=TOKENS, samples=4 * under_way, under_way=under_way, **rows)
    generate_stream(stream, options)
    found = stream.get("generation")[0]
    return {"tokens_per_s": found["tokens_per_s"], "tpot_s": found["tpot_p50_s"],
            "ttft_s": found["ttft_p50_s"]}  # fmt: skip


def measured(plan: Graph) -> dict[str, float]:
    """Medians of several runs."""
    full = [run(plan, UNDER_WAY) for _ in range(RUNS)]
    alone = [run(plan, 1)["ttft_s"] for _ in range(RUNS)]
    found = {name: statistics.median(one[name] for one in full) for name in FIGURES}
    return found | {"ttft_s": statistics.median(alone)}


def main() -> None:
    """Print the table, and the median and the worst error by figure and costs."""
    rows: list[list[str]] = []
    errors: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [write(name, Path(folder), 0) for name in SAMPLES]
        paths += [Path(path) for path in os.environ.get("MODELS", "").split(",") if path]
        for path in paths:
            name = path.stem if path.stem in SAMPLES else path.parent.name
            graph = load(path, phase=PHASES)
            for costs, how in COSTS.items():
                plan = split(profile(graph, **how, cache=folder), k=2, workload=[(PROMPT, TOKENS)],
                             in_flight=UNDER_WAY)  # fmt: skip
                predicted, found = plan.stream().get("plan")[0], measured(plan)
                row = [name, costs]
                for figure in FIGURES:
                    error = predicted[figure] / found[figure] - 1
                    errors.setdefault((costs, figure), []).append(abs(error))
                    row += [f"{found[figure]:.4g}", f"{100 * error:+.0f} %"]
                rows.append(row)
    print(table(["decoder", "costs", "tokens/s", "", "TPOT s", "", "TTFT s", ""], rows))
    for (costs, figure), each in errors.items():
        middle, worst = 100 * statistics.median(each), 100 * max(each)
        print(f"{costs}, {figure}: median {middle:.0f} %, worst {worst:.0f} %")


if __name__ == "__main__":
    main()
