"""Tables II and III and figures 9 and 11 to 17 of Tessel (Lin et al. 2024), by dnnp-schedule.

    python -m dnnp.samples.tessel [--devices D] [--time-limit S] [--full] [--csv FOLDER] [PART ...]

Parts: table-2, table-3, figure-9, figure-11 to figure-17, and, not in the paper, searches, cases
and zero-bubble; all by default. Shapes, times and memories are those of `dnnp-schedule --shape`:
forward 1, backward 3. Figures 13 to 17 are simulated (`dnnp.samples.tessel_figures`). The bubble
rate is that of numerous micro-batches: the part of its time that a device is idle while the
schedule repeats, mean over devices.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from dnnp.samples import arguments, tessel_figures, tessel_shapes
from dnnp.samples.tessel_runs import (
    LEAST_S,
    MOST_IN_REPETEND,
    NONE,
    Answer,
    Run,
    Runs,
    Table,
    percent,
    repeating,
    schedule,
    text,
)

from dnnp.samples.tables import Table, text, write_csv

SHAPES = ("V", "X", "M", "NN", "K")
MODELS = (("GPT", "M"), ("mT5", "NN"), ("Flava", "K"))
"""Models of the paper and the shapes that their operators are placed in."""

FEW = (2, 4, 8, 16, 32)
"""Micro-batches of the time-optimal search."""

MOST_MEMORY = 8


class Answer(NamedTuple):
    """What a run of dnnp-schedule says."""

    record: dict[str, Any] | None
    """The schedule; None: there is none."""
    seconds: float
    """Of the search; of the whole command where its messages do not say when that began."""


Run = Callable[[Sequence[str]], Answer]
"""Runs dnnp-schedule with arguments."""


def schedule(words: Sequence[str]) -> Answer:
    """Run the command; SystemExit if it fails other than by finding nothing."""
    done = subprocess.run(
        ["dnnp-schedule", "-v", "--timings", *words], stdin=subprocess.DEVNULL, capture_output=True
    )
    said = done.stderr.decode()
    if done.returncode in REFUSED:
        return Answer(None, 0.0)
    if done.returncode:
        raise SystemExit(f"dnnp-schedule {' '.join(words)}: {said.strip()}")
    return answer(done.stdout, said)


def answer(stream: bytes, said: str) -> Answer:
    """What a stream with a schedule and the messages of the command say."""
    header, record = (json.loads(line) for line in stream.split(b"\n", 2)[:2])
    times = re.findall(r"(?:searching|found the schedule) after ([0-9.]+) s", said)
    if len(times) == 2:
        return Answer(record, float(times[1]) - float(times[0]))
    return Answer(record, header["provenance"][-1]["elapsed_s"])


def load(record: dict[str, Any]) -> float:
    """Time that a micro-batch keeps a device busy, mean over the devices that have blocks."""
    busy: dict[int, float] = {}
    for block in record["passes"]:
        for home in block["homes"]:
            for unit in home:
                if not record["units"][unit].get("link"):
                    busy[unit] = busy.get(unit, 0.0) + block["time_s"] / len(block["homes"])
    return sum(busy.values()) / len(busy)


def repeating(found: Answer) -> float | None:
    """Bubble rate of the repetend."""
    if found.record is None:
        return None
    repetend = found.record["repetend"]
    return max(1 - load(found.record) * repetend["unroll"] / repetend["period_s"], 0.0)


def steady(few: Answer, many: Answer) -> float | None:
    """Bubble rate of a recipe, from its schedules of two numbers of micro-batches."""
    if few.record is None or many.record is None:
        return None
    more = many.record["micro_batches"] - few.record["micro_batches"]
    period = (many.record["makespan_s"] - few.record["makespan_s"]) / more
    return max(1 - load(many.record) / period, 0.0)


def percent(rate: float | None) -> str:
    """A bubble rate as the paper prints it."""
    return NONE if rate is None else f"{100 * rate:.3g}%"


class Runs:
    """Runs the command, several at a time where nothing is timed."""

    def __init__(self, run: Run, devices: int, seconds: float) -> None:
        self.run, self.devices, self.seconds = run, devices, seconds
        self.known: dict[tuple[str, ...], Answer] = {}

    def words(self, name: str, method: str, *more: str) -> list[str]:
        """Arguments for a shape and a method."""
        fixed = ["--shape", name, "--devices", str(self.devices), "--method", method]
        return [*fixed, "--time-limit", f"{self.seconds:g}", *more]

    def all(self, jobs: Iterable[Sequence[str]]) -> list[Answer]:
        """Answers in the order of the jobs; none is asked for twice."""
        keys = [tuple(job) for job in jobs]
        new = [key for key in keys if key not in self.known]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.known.update(zip(new, pool.map(self.run, new), strict=True))
        return [self.known[key] for key in keys]

    def repetends(self, name: str, method: str, options: Iterable[Sequence[str]]) -> list[Answer]:
        """Repetends of a shape; warm-up and cool-down of a single micro-batch take no time."""
        return self.all(self.words(name, method, "-n", "1", *more) for more in options)

    def by_count(self, name: str) -> list[Answer]:
        """Tessel's repetends of 1, 2, ... micro-batches."""
        counts = range(1, MOST_IN_REPETEND + 1)
        return self.repetends(name, "tessel", (("--max-micro-batches", str(n)) for n in counts))

    def recipe(self, name: str, method: str) -> float | None:
        """Bubble rate of a method that is no search."""
        counts = (MANY, 2 * MANY)
        few, many = self.all(self.words(name, method, "-n", str(n)) for n in counts)
        return steady(few, many)


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
        free = [repeating(a) or 0.0 for a in runs.by_count(name)]
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


def searches(runs: Runs) -> Table:
    """This project's search beside Tessel's, at the least memory that needs no longer period."""
    rows = []
    for name in SHAPES:
        runs.run(runs.words(name, "auto", "-n", "1"))
        ours = runs.run(runs.words(name, "auto", "-n", "1"))
        limit: tuple[str, ...] = ()
        if ours.record is not None:
            limit = ("--memory", f"{ours.record['repetend']['memory_bytes']:.17g}")
        tessel = runs.run(runs.words(name, "tessel", "-n", "1", *limit))
        rows.append((name, *_found(tessel), *_found(ours)))
    each = ("period", "memory", "span", "time")
    header = ("shape", *(f"Tessel {c}" for c in each), *(f"ours {c}" for c in each))
    title = "Not in the paper: repetends at the least memory of the shortest period"
    return Table("searches", title, header, rows)


def _found(found: Answer) -> tuple[str, str, str, str]:
    """Period, memory, span and seconds."""
    if found.record is None:
        return NONE, NONE, NONE, NONE
    repetend = found.record["repetend"]
    numbers = (repetend[key] for key in ("period_s", "memory_bytes", "span_s"))
    period, memory, span = (f"{number:g}" for number in numbers)
    return period, memory, span, f"{found.seconds:.3f} s"


PARTS: dict[str, Callable[[Runs], Table]] = {
    "table-2": table_2,
    "table-3": tessel_figures.table_3,
    "figure-9": figure_9,
    "figure-11": figure_11,
    "figure-12": figure_12,
    "figure-13": tessel_figures.figure_13,
    "figure-14": tessel_figures.figure_14,
    "figure-15": tessel_figures.figure_15,
    "figure-16": tessel_figures.figure_16,
    "figure-17": tessel_figures.figure_17,
    "searches": searches,
    "cases": tessel_shapes.cases,
    "zero-bubble": tessel_shapes.zero_bubble,
}


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
            _show(PARTS[name](runs), args.csv, first=not number)


def _show(table: Table, folder: Path | None, *, first: bool) -> None:
    """Print a table, and write it as CSV."""
    if not first:
        print()
    for line in text(table):
        print(line, flush=True)
    if folder is not None:
        with (folder / f"{table.name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([table.header, *table.rows])
            write_csv(table, args.csv)


if __name__ == "__main__":
    main()
