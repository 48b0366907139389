"""Tables 1, 2 and 4, and figures 8 to 10 of the 2020 paper, from what dnnp-partition finds.

    python -m dnnp.samples.papers.placement DIR [--full] [--time-limit S] [--only NAME ...]
        [--csv FOLDER] [--part PART ...]

DIR holds the workloads: a clone of https://github.com/msr-fiddle/dnn-partitioning, or files as
`dnnp.samples.papers.placement_runs` says. What is not there is left out, and named. Printed values
(`dnnp.samples.papers.placement_values`) stand in parentheses.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dnnp.samples.arguments import seconds
from dnnp.samples.papers.placement_figures import bars, cumulative, side_by_side
from dnnp.samples.papers.placement_runs import (
    Found,
    Job,
    Run,
    Runs,
    Workloads,
    more_devices,
    process,
    published_order,
)
from dnnp.samples.papers.placement_study import (
    FAR,
    FAR_OVER,
    METHODS,
    MORE,
    OVER,
    PRICED,
    Study,
    beside,
    marked,
)
from dnnp.samples.papers.placement_values import TABLE_1, TABLE_2, TABLE_4, label
from dnnp.samples.papers.tables import Table, text, write_csv

NOTES = (
    f"{OVER} exceeds the memory of a device, {FAR_OVER} more than {FAR:g} times (OOM in the paper)",
    f"{MORE} on more devices than the workload offers, as the paper prices it, too",
    "in parentheses: as printed in the paper",
)


def as_printed(value: float, printed: float) -> bool:
    """Whether a value has the printed digits, rounded or cut off as the paper does either."""
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


def _agreement(answers: dict[str, dict[str, Found]]) -> Table:
    """How many values are as printed."""
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
    """Throughput over that of the best contiguous split."""
    rows = []
    for name, ratios in gains(study).items():
        cells = []
        for method in METHODS[1:]:
            ours, printed = ratios.get(method.title), getattr(TABLE_2[name], method.field)
            cells.append(beside("-" if ours is None else f"{ours:.2f}x", printed))
        rows.append((label(name), "1.00x", *cells))
    header = ("workload", *(m.title for m in METHODS))
    yield Table(
        "table-2", "Table 2: throughput over that of the best contiguous split", header, rows
    )


def figure_8(study: Study) -> Iterator[Table]:
    """The same, drawn."""
    ratios = {label(name): row for name, row in gains(study).items()}
    yield bars("figure-8", "Figure 8: table 2 as bars, the best contiguous split is 1", ratios)


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
            more = more_devices(path, split)
            ways["expert"] = ("--eval", str(split), *(("-k", f"{more}") if more else ()), *PRICED)
        for way, options in ways.items():
            jobs[name, way] = Job(path, ("--objective", "latency", *options))
    study.runs.all(jobs.values())
    rows = []
    for name in files:
        printed = TABLE_4[name]
        found = {way: study.runs.known[job] for (n, way), job in jobs.items() if n == name}
        expert = _by_experts(found.get("expert"), jobs.get((name, "expert")))
        ours = found["ours"]
        plan = ours.plan or {}
        rows.append(
            (
                label(name),
                beside(marked(found["greedy"]), printed.greedy),
                beside(marked(found["max-load"]), printed.max_load),
                beside(marked(found["scotch"]), printed.scotch),
                beside(expert, printed.expert),
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


def _by_experts(found: Found | None, job: Job | None) -> str:
    """What an expert's split takes, and whether it has the devices for it."""
    return marked(found) + (MORE if job is not None and "-k" in job.options else "")


def _gain(ours: Found, others: Sequence[Found | None]) -> str:
    """How much shorter than the best baseline that fits."""
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


def figure_9(study: Study) -> Iterator[Table]:
    """Two splits of BERT-3."""
    name = "op_bert_l-3_inference"
    path = study.named("throughput", [name]).get(name)
    if path is not None:
        contiguous, free = study.runs.of(path), study.runs.of(path, "--method", "anneal")
        yield from side_by_side("figure-9", label(name), contiguous, free)


def figure_10(study: Study) -> Iterator[Table]:
    """Cumulative times of the layers of ResNet50."""
    name = "layer_resnet50_training"
    path = study.named("throughput", [name]).get(name)
    if path is not None:
        study.runs.stream(path)
        yield cumulative("figure-10", label(name), path)


PARTS: dict[str, Callable[[Study], Iterator[Table]]] = {
    "table-1": table_1,
    "table-2": table_2,
    "figure-8": figure_8,
    "figure-9": figure_9,
    "figure-10": figure_10,
    "table-4": table_4,
}


def parser() -> argparse.ArgumentParser:
    """What the program takes."""
    made = argparse.ArgumentParser(description="Repeat tables and figures of the 2020 paper.")
    made.add_argument("folder", type=Path, metavar="DIR", help="the workloads")
    made.add_argument("--part", nargs="+", default=[], metavar="PART", help=", ".join(PARTS))
    made.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of the workloads")
    made.add_argument("--csv", type=Path, metavar="FOLDER", help="write a CSV file of each, too")
    made.add_argument(
        "--full",
        action="store_true",
        help="20 minutes for an integer program and 5 for a latency, as against 10 and 60 seconds",
    )
    made.add_argument("--time-limit", type=seconds, metavar="S", help="for a latency")
    return made


def main(run: Run = process, words: Sequence[str] | None = None) -> None:
    """Print the tables that are asked for."""
    given = parser()
    args = given.parse_args(words)
    unknown = {*args.part} - {*PARTS} | {*args.only} - {*TABLE_1}
    if unknown:
        given.error(f"no {', '.join(sorted(unknown))}: there are {', '.join([*PARTS, *TABLE_1])}")
    if not args.folder.is_dir():
        given.error(f"{args.folder}: no such folder")
    limit = args.time_limit or (300.0 if args.full else 60.0)
    study = Study(Workloads(args.folder), Runs(run), limit, 1200.0 if args.full else 10.0)
    study.only = frozenset(args.only)
    try:
        for name in args.part or PARTS:
            for table in PARTS[name](study):
                if table.rows and args.csv is not None:
                    write_csv(table, args.csv)
                if table.rows:
                    print(*text(table), "", sep="\n", flush=True)
        for what in study.files.missing:
            print(f"left out, no file in {args.folder}: {what}")
        print(*NOTES, sep="\n", flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        study.runs.close()


if __name__ == "__main__":
    main()
