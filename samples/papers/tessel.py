"""Tables II and III and figures 9 and 11 to 17 of Tessel (Lin et al. 2024), by dnnp-schedule.

    python -m dnnp.samples.papers.tessel [--devices D] [--time-limit S] [--full] [--csv FOLDER]
        [PART ...]

Parts: table-2, table-3, figure-9, figure-11 to figure-17, and, not in the paper, factors, cases and
shared-stages; all by default. Shapes, times and memories are those of `dnnp-schedule --shape`:
forward 1, backward 3. Figures 13 to 17 are simulated (`dnnp.samples.papers.tessel_figures`). The
bubble rate is that of numerous micro-batches: the part of its time that a device is idle while the
schedule repeats, mean over devices.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dnnp
from dnnp.samples import arguments, build
from dnnp.samples.papers import tessel_figures
from dnnp.samples.papers.tables import Table, show
from dnnp.samples.papers.tessel_runs import (
    LEAST_S,
    MOST_IN_REPETEND,
    NONE,
    Answer,
    Run,
    Runs,
    percent,
    repeating,
    schedule,
)

SHAPES = ("V", "X", "M", "NN", "K")
MODELS = (("GPT", "M"), ("mT5", "NN"), ("Flava", "K"))
"""Models of the paper and the shapes that their operators are placed in."""

FEW = (2, 4, 8, 16, 32)
"""Micro-batches of the time-optimal search."""

MOST_MEMORY = 8

GIANTS = ("gpt-1m-vocab", "gpt-1m-vocab-untied", "mt5-1m-vocab", "flava-4096")
"""Samples with large tables, and one with two branches, which is not trained, as in figure 15."""

PLANS = (
    ("a device a stage", ("1f1b",), None),
    ("several devices a stage", ("1f1b",), "tensor_parallel"),
    ("shared stages", ("1f1b+", "auto"), "shared_stages"),
)
"""Kinds of plans, methods for their schedules, and the option that allows such plans."""

CASES = ("NN-eager", "multi-modal", "fine-tuning", "AlphaFold")
"""Placements of the authors' program that the paper does not show."""

SEARCHES = ("tessel", "tessel-fast", "auto")


def table_2(runs: Runs) -> Table:
    """Bubble rates of schedules in use and of Tessel's."""
    one, chimera = runs.recipe("V", "1f1b"), runs.recipe("X", "chimera")
    rows = []
    for model, name in MODELS:
        plus = runs.recipe(name, "1f1b+")
        (tessel,) = runs.repetends(name, "tessel", [()])
        rates = (one, chimera, plus, repeating(tessel))
        rows.append((f"{model} ({name})", *map(percent, rates)))
    header = ("model (shape)", "1F1B (V)", "Chimera-direct (X)", "1F1B+", "Tessel")
    title = "Table II: bubble rate of numerous micro-batches"
    return Table("table-2", title, header, rows)


def figure_9(runs: Runs) -> Table:
    """Time of the time-optimal search over that of the repetend search."""
    rows = []
    for name in SHAPES:
        runs.run(runs.words(name, "tessel", "-n", "1"))  # compiles, where nothing is compiled yet
        tessel = runs.run(runs.words(name, "tessel", "-n", "1"))
        cells = []
        for count in FEW:
            found = runs.run(runs.words(name, "optimal", "-n", str(count)))
            proven = found.record is not None and found.record["status"] == "optimal"
            ratio = found.seconds / max(tessel.seconds, LEAST_S)
            cells.append(f"{ratio:.2g}" if proven else NONE)
        rows.append((name, f"{tessel.seconds:.3f} s", *cells))
    header = ("shape", "Tessel", *(f"TO, N = {n}" for n in FEW))
    title = (
        "Figure 9: time of a time-optimal search (TO) of N micro-batches over that of Tessel's\n"
        f"repetend search; {NONE}: not proven in {runs.seconds:g} s"
    )
    return Table("figure-9", title, header, rows)


def figure_11(runs: Runs) -> Table:
    """Bubble rates by the micro-batches that a repetend may hold."""
    rows = [(name, *(percent(repeating(a)) for a in runs.by_count(name))) for name in SHAPES]
    header = ("shape", *(f"N_R = {n + 1}" for n in range(MOST_IN_REPETEND)))
    title = "Figure 11: bubble rate by micro-batches in the repetend, memory without a limit"
    return Table("figure-11", title, header, rows)


def figure_12(runs: Runs) -> Table:
    """Bubble rates by memory: Tessel's with the micro-batches that need no bubble, and ours."""
    limits = range(1, MOST_MEMORY + 1)
    rows = []
    for name in SHAPES:
        rates = [repeating(a) for a in runs.by_count(name)]
        free = [math.inf if rate is None else rate for rate in rates]
        enough = "--max-micro-batches", str(free.index(min(free)) + 1)
        ways: tuple[tuple[str, str, tuple[str, ...]], ...]
        ways = (name, "tessel", enough), (f"{name} *", "auto", ())
        for label, method, more in ways:
            found = runs.repetends(name, method, ((*more, "--memory", str(m)) for m in limits))
            rows.append((label, *(percent(repeating(a)) for a in found)))
    header = ("shape", *(f"M = {m}" for m in limits))
    title = (
        "Figure 12: bubble rate by memory capacity, with as many micro-batches in the repetend as\n"
        "have no bubble without a limit; * this project's search, any number of them"
    )
    return Table("figure-12", title, header, rows)


def numbers(found: Answer) -> tuple[str, str, str]:
    """Period, memory and span of a repetend."""
    repetend = found.repetend
    if repetend is None:
        return NONE, NONE, NONE
    period, memory, span = (f"{repetend[k]:g}" for k in ("period_s", "memory_bytes", "span_s"))
    return period, memory, span


def cases(runs: Runs) -> Table:
    """Periods, memories and spans of the authors' further cases."""
    rows = []
    for name in CASES:
        cells: list[str] = []
        for method in SEARCHES:
            (found,) = runs.repetends(name, method, [()])
            cells += numbers(found)
        rows.append((name, *cells))
    columns = ("period", "memory", "span")
    header = ("placement", *(f"{way} {c}" for way in ("Tessel", "fast", "ours") for c in columns))
    title = "Not in the paper: further cases of its authors, memory without a limit"
    return Table("cases", title, header, rows)


def shared_stages(runs: Runs) -> Table:
    """Plans of this project for models of its own: shared stages beside others, as in figure 13."""
    rows = []
    for name in GIANTS if runs.full else GIANTS[:1]:
        trained = name != GIANTS[-1]
        graph = dnnp.load(build.write(name, runs.folder), training=trained, mixed_precision=trained)
        k, n = runs.devices, tessel_figures.SAMPLES
        graph = dnnp.coarsen(graph, layers=True)
        graph = dnnp.profile(graph, device=["a100"], tensor_parallel=k)
        for way, methods, option in PLANS:
            options: dict[str, Any] = {option: 2 if way == "shared stages" else k} if option else {}
            try:
                plan = dnnp.split(graph, k=k, micro_batches=n, **options)
            except dnnp.InfeasibleError:
                rows.append((f"{name}, {way}", *[NONE] * 4))
                continue
            for method in methods:
                try:
                    made = dnnp.schedule(plan, micro_batches=n, method=method)
                except dnnp.UsageError:  # no chain of stages
                    made = dnnp.schedule(plan, micro_batches=n)
                dnnp.check(made)
                (record,), (found,) = made.records("plan"), made.records("schedule")
                times = f"{1e3 * record['value']:.2f}", f"{found['makespan_s']:.3f}"
                parts = [stage.get("shared", False) for stage in made.records("stage")]
                stages = f"{len(parts) - sum(parts)} + {sum(parts)}"
                rows.append((f"{name}, {way}", stages, found["method"], *times))
    header = ("model, plan", "stages + shared", "schedule", "largest load, ms", "iteration, s")
    title = (
        f"Not in the paper: plans of this project for {tessel_figures.SAMPLES} micro-batches of a\n"
        f"sample on {runs.devices} A100s, predicted; {NONE}: does not fit"
    )
    return Table("shared-stages", title, header, rows)


PARTS: dict[str, Callable[[Runs], Table]] = {
    "table-2": table_2, "table-3": tessel_figures.table_3, "figure-9": figure_9,
    "figure-11": figure_11, "figure-12": figure_12,
    "figure-13": partial(tessel_figures.throughput, 13, "GPT"),
    "figure-14": partial(tessel_figures.throughput, 14, "mT5"),
    "factors": tessel_figures.factors, "figure-15": tessel_figures.figure_15,
    "figure-16": tessel_figures.figure_16,
    "figure-17": tessel_figures.figure_17,
    "cases": cases, "shared-stages": shared_stages,
}  # fmt: skip


def main(run: Run = schedule, words: Sequence[str] | None = None) -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description="Print tables of schedules, as in Tessel.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--devices", type=arguments.count, default=4, metavar="D")
    parser.add_argument(
        "--time-limit", type=arguments.seconds, default=60.0, metavar="S", help="of a search"
    )
    parser.add_argument("--full", action="store_true", help="all sizes of the simulated figures")
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write a CSV file of each, too")
    args = parser.parse_args(words)
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    with TemporaryDirectory() as folder:
        if args.csv is not None:
            args.csv.mkdir(parents=True, exist_ok=True)
        kept = Path(folder) if args.csv is None else args.csv / "placements"
        kept.mkdir(exist_ok=True)
        runs = Runs(run, args.devices, args.time_limit, args.full, kept)
        for number, name in enumerate(args.parts or PARTS):
            if number:
                print()
            show(PARTS[name](runs), args.csv)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
