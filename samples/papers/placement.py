"""Tables 1, 2 and 4, and figures 8 to 10 of the 2020 paper, from what dnnp-partition finds.

    python -m dnnp.samples.papers.placement DIR [--full] [--time-limit S] [--only NAME ...]
        [--csv FOLDER] [--part PART ...]

DIR holds the workloads: a clone of https://github.com/msr-fiddle/dnn-partitioning, or files as
`dnnp.samples.papers.placement_runs` says. What is not there is left out, and named. Printed values
(`dnnp.samples.papers.placement_values`) stand in parentheses. Figures are bars and strips of
characters.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dnnp.samples.arguments import seconds
from dnnp.samples.papers.moirai import Run, command
from dnnp.samples.papers.placement_runs import (
    Found,
    Job,
    Runs,
    Workloads,
    more_devices,
    published_order,
    waits,
)
from dnnp.samples.papers.placement_values import TABLE_1, TABLE_4, label
from dnnp.samples.papers.tables import Table, show

PRICED = ("--memory-mode", "ignore")
"""Splits that know no memory are priced, not refused."""

FREE = ("--method", "anneal", "--validity", "free")
"""Any split, and a bound for all of them."""

CONVEX = ("--method", "anneal", "--validity", "convex")
"""The same for splits whose stages no path leaves and comes back to."""

OVER, FAR_OVER = "†", "‡"
"""Marks of splits that exceed the memory of a device, and by more than a factor of three."""

MORE = "*"
"""Marks splits on more devices than there are."""

FAR = 3.0


BAR = 24
"""Characters of a bar of length 1."""

STRIP = 80
"""Nodes in a line of a strip."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Accelerators, in the order of their stages; a CPU is a dot."""


NOTES = (
    f"{OVER} exceeds the memory of a device, {FAR_OVER} more than {FAR:g} times (OOM in the paper)",
    f"{MORE} on more devices than the workload offers, as the paper prices it, too",
    "in parentheses: as printed in the paper",
)


class Method(NamedTuple):
    """A column of table 1."""

    title: str
    field: str
    """The printed value, in `Row`."""
    options: tuple[str, ...] = ()
    exact: bool = False
    """True if the paper's value follows from the workload alone."""


METHODS = (
    Method("DP", "dp", (), True),
    Method("IP", "ip", ("--method", "ip", "--validity", "convex")),
    Method("any split", "free", FREE),
    Method("DPL", "linearised", ("--method", "slice"), True),
    Method("expert", "expert", PRICED, True),
    Method("local search", "local_search", ("--method", "local-search", *PRICED)),
    Method("PipeDream", "pipedream", ("--method", "pipedream"), True),
    Method("Scotch", "scotch", ("--method", "scotch", *PRICED)),
)


class Study:
    """Rows of a study, and the results."""

    def __init__(self, files: Workloads, runs: Runs, limit: float, program_s: float) -> None:
        self.files, self.runs = files, runs
        self.limit, self.program_s = limit, program_s
        """Seconds for the latency of a workload, and for an integer program."""
        self.only: frozenset[str] = frozenset()

    def named(self, kind: str, names: Sequence[str]) -> dict[str, Path]:
        """The files of some workloads, as far as they are there and asked for."""
        wanted = [name for name in names if not self.only or name in self.only]
        found = {name: self.files.graph(kind, name) for name in wanted}
        return {name: path for name, path in found.items() if path is not None}

    def throughput(self) -> dict[str, dict[str, Found]]:
        """Workload -> title of the method -> answer, for table 1."""
        jobs: dict[tuple[str, str], Job] = {}
        for name, path in self.named("throughput", list(TABLE_1)).items():
            self.runs.stream(path)  # refuses what is no workload
            for method in METHODS:
                options = self.options(method, name, path)
                if options is not None:
                    jobs[name, method.title] = Job(path, options)
        self.runs.all(jobs.values())
        found: dict[str, dict[str, Found]] = {}
        for (name, title), job in jobs.items():
            found.setdefault(name, {})[title] = self.runs.known[job]
        return found

    def options(self, method: Method, workload: str, path: Path) -> tuple[str, ...] | None:
        """Options of dnnp-partition for a method; None: it has no such row."""
        if method.title == "PipeDream" and workload.startswith("op_"):
            return None  # of layers alone: a chain of operators is but a few items
        if method.title == "DPL":
            order = published_order(path, by_color=True)
            sequence = self.runs.write(f"{workload}.json", order)
            return (*method.options, "--sequence", str(sequence))
        if method.title == "IP":
            return (*method.options, "--time-limit", f"{self.program_s:g}")
        if method.title == "expert":
            split = self.files.expert(workload)
            return None if split is None else ("--eval", str(split), *method.options)
        return method.options


def marked(found: Found | None) -> str:
    """A value, with its mark."""
    if found is None:
        return "-"
    if found.value is None:
        return found.reason
    mark = "" if found.excess <= 1 + 1e-9 else OVER if found.excess <= FAR else FAR_OVER
    return f"{found.value:.2f}{mark}"


def beside(ours: str, printed: object) -> str:
    """A value of ours, and the printed one."""
    if printed is None or printed == "-":
        return ours
    return f"{ours} ({printed:.2f})" if isinstance(printed, float) else f"{ours} ({printed})"


def as_printed(value: float, printed: float) -> bool:
    """True if a value has the printed digits, rounded or cut off as the paper does either."""
    return round(value, 2) == printed or int(value * 100) == round(printed * 100)


def table_1(study: Study) -> Iterator[Table]:
    """Time per sample."""
    rows = []
    answers = study.throughput()
    for name, found in answers.items():
        row = TABLE_1[name]
        best = found["DP"]
        cells = [f"{row.nodes}", f"{row.ideals}", f"{best.seconds:.1f}s ({row.seconds})"]
        for method in METHODS:
            printed = getattr(row, method.field)
            cells.append(beside(marked(found.get(method.title)), printed))
        rows.append((label(name), *cells))
    header = ("workload", "nodes", "ideals", "DP, time", *(m.title for m in METHODS))
    yield Table("table-1", "Table 1: time per sample, the largest load of a device", header, rows)
    yield _agreement(answers)


BOUNDED = {
    "table-1-free": ("non-contiguous splits", "any split", FREE),
    "table-1-convex": ("stages contiguous one by one", "convex", CONVEX),
}
"""Tables of splits with bounds: kind of splits, heading, options."""


def bounded(name: str, study: Study) -> Iterator[Table]:
    """Values of a method with their bounds, beside the printed ones."""
    kind, column, options = BOUNDED[name]
    files = study.named("throughput", [*TABLE_1])
    jobs = {workload: Job(path, options) for workload, path in files.items()}
    study.runs.all(jobs.values())
    is_free = options == FREE
    rows = []
    for workload, job in jobs.items():
        found, row = study.runs.known[job], TABLE_1[workload]
        plan = found.plan or {}
        rows.append(
            (
                label(workload),
                beside(marked(found), row.free if is_free else row.ip),
                f"{plan.get('bound', 0.0):.2f}",
                f"{100 * plan.get('gap', 1.0):.2f} %",
                f"{found.seconds:.1f}s" + (f" ({row.free_seconds})" if is_free else ""),
            )
        )
    title = f"Table 1: {kind}, with a bound"
    yield Table(name, title, ("workload", column, "bound", "gap", "time"), rows)


def _agreement(answers: dict[str, dict[str, Found]]) -> Table:
    """Number of values that are as printed."""
    rows = []
    for method in METHODS:
        same = better = worse = 0
        far = 1.0
        for name, found in answers.items():
            printed, answer = getattr(TABLE_1[name], method.field), found.get(method.title)
            if printed is None or answer is None or answer.value is None:
                continue
            if as_printed(answer.value, printed):
                same += 1
            elif answer.value < printed:
                better += 1
            else:
                worse += 1
                far = max(far, answer.value / printed)
        above = f"{100 * (far - 1):.2f} %" if worse else ""
        kind = "from the workload alone" if method.exact else "of a search, or random"
        rows.append((method.title, f"{same}", f"{better}", f"{worse}", above, kind))
    header = ("method", "as printed", "below", "above", "at most by", "the printed value is")
    return Table("table-1-agreement", "Values of ours beside the printed ones", header, rows)


def gains(study: Study) -> dict[str, dict[str, float | None]]:
    """Workload -> title of the method -> throughput over that of the best contiguous split."""
    ratios: dict[str, dict[str, float | None]] = {}
    for name, found in study.throughput().items():
        best = found["DP"].value
        ratios[name] = {
            title: best / answer.value if best and answer.value else None
            for title, answer in found.items()
        }
    return ratios


def table_2(study: Study) -> Iterator[Table]:
    """Throughput over that of the best contiguous split, printed values from table 1."""
    rows = []
    for name, ratios in gains(study).items():
        row, cells = TABLE_1[name], []
        for method in METHODS[1:]:
            ours, value = ratios.get(method.title), getattr(row, method.field)
            printed = None if value is None else round(row.dp / value, 2)
            cells.append(beside("-" if ours is None else f"{ours:.2f}x", printed))
        rows.append((label(name), "1.00x", *cells))
    header = ("workload", *(m.title for m in METHODS))
    yield Table(
        "table-2", "Table 2: throughput over that of the best contiguous split", header, rows
    )


def figure_8(study: Study) -> Iterator[Table]:
    """The same, drawn: a bar for each method of each workload, cut off at twice the unit."""
    width = 2 * BAR + 1
    rows = []
    for name, methods in gains(study).items():
        for method, ratio in methods.items():
            if ratio is not None:
                bar = "#" * round(BAR * min(ratio, 2.0)) + (">" if ratio > 2 else "")
                rows.append((label(name), method, f"{ratio:.2f}", bar.ljust(width)))
    header = ("workload", "method", "throughput", "bar".ljust(width))
    title = "Figure 8: table 2 as bars, the best contiguous split is 1"
    yield Table("figure-8", title, header, rows)


def table_4(study: Study) -> Iterator[Table]:
    """Latency of one sample."""
    files = study.named("latency", list(TABLE_4))
    jobs: dict[tuple[str, str], Job] = {}
    for number, (name, path) in enumerate(files.items()):
        study.runs.stream(path)  # refuses what is no workload
        sequence = study.runs.write(f"order-{number}.json", published_order(path))
        ways: dict[str, tuple[str, ...]] = {
            "greedy": ("--method", "greedy", "--sequence", str(sequence)),
            "max-load": ("--method", "max-load", "--order", "published"),
            "scotch": ("--method", "scotch", "--invocations", "999", *PRICED),
            "ours": ("--time-limit", f"{study.limit:g}"),
        }
        split = study.files.expert(name)
        if split is not None:
            count = more_devices(path, split)
            ways["expert"] = ("--eval", str(split), *(("-k", f"{count}") if count else ()), *PRICED)
        for way, options in ways.items():
            jobs[name, way] = Job(path, ("--objective", "latency", *options))
    study.runs.all(jobs.values())
    rows = []
    for name in files:
        printed = TABLE_4[name]
        found = {way: study.runs.known[job] for (n, way), job in jobs.items() if n == name}
        ours, by_experts = found["ours"], jobs.get((name, "expert"))
        more = MORE if by_experts is not None and "-k" in by_experts.options else ""
        plan = ours.plan or {}
        rows.append(
            (
                label(name),
                beside(marked(found["greedy"]), printed.greedy),
                beside(marked(found["max-load"]), printed.max_load),
                beside(marked(found["scotch"]), printed.scotch),
                beside(marked(found.get("expert")) + more, printed.expert),
                beside(marked(ours), printed.ip),
                f"{ours.seconds:.0f}s ({printed.ip_time})",
                f"{100 * plan.get('gap', 1.0):.1f}% ({printed.ip_gap})",
                _gain(ours, [found.get(w) for w in ("greedy", "max-load", "scotch", "expert")]),
                _verdict(ours, float(printed.ip)),
            )
        )
    header = (
        "workload", "greedy", "max-load DP", "Scotch", "expert", "ours (IP)", "time", "gap", "gain",
        "against the IP",
    )  # fmt: skip
    yield Table("table-4", "Table 4: latency of one sample", header, rows)


def _gain(ours: Found, others: Sequence[Found | None]) -> str:
    """Gain over the best baseline that fits."""
    fitting = [f.value for f in others if f is not None and f.value and f.excess <= 1 + 1e-9]
    if ours.value is None or not fitting:
        return "-"
    return f"{100 * (min(fitting) / ours.value - 1):.1f}%"


def _verdict(ours: Found, printed: float) -> str:
    """Ours against the printed value of the integer program."""
    if ours.value is None:
        return "-"
    if round(ours.value, 2) == round(printed, 2) or abs(ours.value - printed) < 0.06:
        return "equal"
    return f"{100 * (ours.value / printed - 1):+.1f}%"


def side_by_side(name: str, what: str, contiguous: Found, free: Found) -> Iterator[Table]:
    """Loads of the devices of two splits, and the device of every node, in order of the first."""
    splits = {"contiguous": contiguous, "any": free}
    rows, letters = [], dict[str, dict[int, str]]()
    for split, found in splits.items():
        letters[split] = {}
        accelerators_first = sorted(found.stages, key=lambda stage: stage["class"] == "cpu")
        for number, stage in enumerate(accelerators_first):
            letter = "." if stage["class"] == "cpu" else LETTERS[number % len(LETTERS)]
            letters[split] |= dict.fromkeys(stage["nodes"], letter)
            count = f"{len(stage['nodes'])}"
            rows.append((split, letter, stage["device"], count, f"{stage['load_s']:.2f}"))
    title = f"Figure 9: the best splits of {what}, contiguous and not"
    yield Table(name, title, ("split", "letter", "device", "nodes", "load"), rows)
    order = [node for stage in contiguous.stages for node in stage["nodes"]]
    strips = []
    for first in range(0, len(order), STRIP):
        some = order[first : first + STRIP]
        for split in splits:
            drawn = "".join(letters[split].get(node, "?") for node in some)
            strips.append((f"{first}", split, drawn.ljust(STRIP)))
    header = ("from", "split", "nodes, in the order of the contiguous split".ljust(STRIP))
    yield Table(f"{name}-nodes", "The device of each node", header, strips)


def cumulative(name: str, what: str, path: Path) -> Table:
    """Times of the layers up to each, forward and backward; a backward layer has the colour of its
    forward one."""
    document = json.loads(path.read_bytes())
    ahead = [node for node in document["nodes"] if not node.get("isBackwardNode")]
    back: dict[object, float] = {}
    for node in document["nodes"]:
        if node.get("isBackwardNode"):
            color = node.get("colorClass")
            back[color] = back.get(color, 0.0) + node["fpgaLatency"]
    total = [0.0, 0.0]
    rows = []
    by_id = {node["id"]: node for node in ahead}
    pairs = [(edge["sourceId"], edge["destId"]) for edge in document["edges"]]
    inside = [(u, v) for u, v in pairs if u in by_id and v in by_id]
    for node in map(by_id.__getitem__, waits(by_id, inside).static_order()):
        total[0] += node["fpgaLatency"]
        total[1] += back.pop(node.get("colorClass"), 0.0)
        rows.append((total[0], total[1]))
    most = max(max(row) for row in rows)
    lines = [
        (f"{i + 1}", f"{f:.2f}", f"{b:.2f}", _points(f / most, b / most))
        for i, (f, b) in enumerate(rows)
    ]
    title = f"Figure 10: time of the layers 1 to i of {what}, forward (f) and backward (b)"
    return Table(name, title, ("i", "forward", "backward", "f, b".ljust(2 * BAR)), lines)


def _points(forward: float, backward: float) -> str:
    """Two points in a line."""
    line = [" "] * (2 * BAR)
    line[min(int(2 * BAR * backward), 2 * BAR - 1)] = "b"
    line[min(int(2 * BAR * forward), 2 * BAR - 1)] = "f"
    return "".join(line)


def figure_9(study: Study) -> Iterator[Table]:
    """Two splits of BERT-3."""
    name = "op_bert_l-3_inference"
    path = study.named("throughput", [name]).get(name)
    if path is not None:
        contiguous, free = study.runs.of(path), study.runs.of(path, *FREE)
        yield from side_by_side("figure-9", label(name), contiguous, free)


def figure_10(study: Study) -> Iterator[Table]:
    """Cumulative times of the layers of ResNet50."""
    name = "layer_resnet50_training"
    path = study.named("throughput", [name]).get(name)
    if path is not None:
        study.runs.stream(path)
        yield cumulative("figure-10", label(name), path)


PARTS: dict[str, Callable[[Study], Iterator[Table]]] = {
    "table-1": table_1, **{name: partial(bounded, name) for name in BOUNDED},
    "table-2": table_2, "figure-8": figure_8, "figure-9": figure_9, "figure-10": figure_10,
    "table-4": table_4,
}  # fmt: skip


def main(run: Run = command, words: Sequence[str] | None = None) -> None:
    """Print the tables that are asked for."""
    given = argparse.ArgumentParser(description="Repeat tables and figures of the 2020 paper.")
    given.add_argument("folder", type=Path, metavar="DIR", help="the workloads")
    given.add_argument("--part", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    given.add_argument(
        "--only", nargs="+", choices=TABLE_1, default=[], metavar="NAME", help="of the workloads"
    )
    given.add_argument("--csv", type=Path, metavar="FOLDER", help="write a CSV file of each, too")
    given.add_argument(
        "--full",
        action="store_true",
        help="20 minutes for an integer program and 5 for a latency, as against 10 and 60 seconds",
    )
    given.add_argument("--time-limit", type=seconds, metavar="S", help="for a latency")
    args = given.parse_args(words)
    if not args.folder.is_dir():
        given.error(f"{args.folder}: no such folder")
    limit = args.time_limit or (300.0 if args.full else 60.0)
    study = Study(Workloads(args.folder), Runs(run), limit, 1200.0 if args.full else 10.0)
    study.only = frozenset(args.only)
    try:
        for name in args.part or PARTS:
            for table in PARTS[name](study):
                if table.rows:
                    show(table, args.csv, "")
        for what in study.files.missing:
            print(f"left out, no file in {args.folder}: {what}")
        print(*NOTES, sep="\n", flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        study.runs.close()


if __name__ == "__main__":
    main()
