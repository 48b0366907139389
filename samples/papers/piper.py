"""Parallel plans of Piper's public inputs, beside those of its own program.

    python -m dnnp.samples.papers.piper DIR [--csv DIR] [--only NAME]

DIR is a clone of https://github.com/msr-fiddle/piper, or a folder with its inputs. J. Tarnawski,
D. Narayanan, A. Phanishayee: Piper: Multidimensional Planner for DNN Parallelization, NeurIPS 2021.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import dnnp
from dnnp.samples.arguments import status_of
from dnnp.samples.papers.tables import Table, show

BANDWIDTH = 25 * 2**30


class Row(NamedTuple):
    """An input with a number of devices and their memory, and what Piper's program makes of it.

    Its values were printed with 12 digits by the program as it is published, called for one row at
    a time (g++ -O3, 2026-11-24, AMD EPYC, beside other work); inf: it finds nothing that fits.
    """

    name: str
    devices: int
    memory_gib: float
    value: float
    seconds: float
    """Processor time."""


INF = float("inf")
HEAD = ("input", "k", "GiB", "Piper", "s", "dnnp", "s", "ratio", "gap %", "stages")
_ROWS = {
    "bert32a100": (
        (8, 1.0, INF, 0.1), (8, 2.0, INF, 0.1), (8, 8.0, 0.16585575, 0.1),
        (8, 80.0, 0.12200726935, 0.1), (32, 1.0, INF, 0.2), (32, 2.0, 0.0665495, 0.2),
        (32, 8.0, 0.0415154504417, 0.2), (32, 80.0, 0.0308440482088, 0.3), (64, 1.0, INF, 0.3),
        (64, 2.0, 0.0320300812349, 0.3), (64, 8.0, 0.0202005502945, 0.4),
        (64, 80.0, 0.0156501780186, 0.6), (128, 1.0, 0.03887175, 0.4),
        (128, 2.0, 0.0151464078563, 0.6), (128, 8.0, 0.0101208803239, 0.7),
        (128, 80.0, 0.00805324292352, 1.0), (512, 1.0, 0.00878004035815, 4.4),
        (512, 2.0, 0.00366752625994, 4.8), (512, 8.0, 0.00256112784601, 5.4),
        (512, 80.0, 0.00227252010888, 7.3),
    ),
    "resnet": (
        (8, 4.0, 73.4932860001, 4.8), (16, 1.5, INF, 8.4), (16, 2.0, 76.5213125, 9.0),
        (32, 2.0, 24.6258985217, 11.4), (8, 8.0, 63.4335366048, 6.1), (64, 1.0, INF, 15.7),
    ),
    "gnmt": (
        (2, 2.5, 263.354289062, 321.4),
    ),
}  # fmt: skip
NAMES = tuple(_ROWS)
ROWS = [Row(name, *row) for name, rows in _ROWS.items() for row in rows]


class Found(NamedTuple):
    """Result of dnnp for a row; `stages` 0: nothing fits, which is proven."""

    value: float
    bound: float
    seconds: float
    stages: int


def compare(row: Row, folder: Path) -> Found:
    """Plan a row, and check the plan."""
    graph = dnnp.load(_files(folder, row.name)[0], kind="piper")
    began = time.process_time()
    try:
        planned = dnnp.split(
            graph,
            k=row.devices,
            memory=row.memory_gib * 2**30,
            bandwidth=BANDWIDTH,
            tensor_parallel=8,
            data_parallel=row.devices,
            recompute="auto",
            weight_sync="server",
        )
    except dnnp.InfeasibleError:
        return Found(INF, INF, time.process_time() - began, 0)
    seconds = time.process_time() - began
    dnnp.check(planned)
    (plan,) = planned.records("plan")
    return Found(plan["value"], plan["bound"], seconds, len(planned.stages))


def table_of(folder: Path, only: str | None) -> Table:
    """Table of all rows, or of those of one input."""
    rows: list[tuple[str, ...]] = []
    for row in ROWS:
        if only in (None, row.name):
            found = compare(row, folder)
            ratio = 1.0 if found.value == row.value else found.value / row.value
            gap = 0.0 if found.stages == 0 else 100 * (1 - found.bound / found.value)
            rows.append(
                (
                    row.name, str(row.devices), f"{row.memory_gib:g}", _number(row.value),
                    f"{row.seconds:.1f}", _number(found.value), f"{found.seconds:.1f}",
                    f"{ratio:.6f}", f"{gap:.2f}", str(found.stages),
                )
            )  # fmt: skip
    return Table("piper", "Time of a micro-batch in its slowest stage; processor time", HEAD, rows)


def _number(value: float) -> str:
    return "none fits" if value == INF else f"{value:.9g}"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.papers.piper",
        description="Compare parallel plans with those of Piper's own program.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="Piper's inputs")
    parser.add_argument("--csv", metavar="DIR", type=Path, help="folder for the table as CSV")
    parser.add_argument("--only", metavar="NAME", help="only this input", choices=NAMES)
    args = parser.parse_args()
    return status_of(parser.prog, lambda: _show(args))


def _show(args: argparse.Namespace) -> None:
    missing = [n for n in NAMES if args.only in (None, n) and not _files(args.folder, n)]
    if missing:
        raise dnnp.UsageError(f"{args.folder} has no {missing[0]}.json")
    show(table_of(args.folder, args.only), args.csv)


def _files(folder: Path, name: str) -> list[Path]:
    places = (at / f"{name}.json" for at in (folder / "inputs", folder))
    return [path for path in places if path.exists()]


if __name__ == "__main__":
    raise SystemExit(main())
