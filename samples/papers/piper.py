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
from dnnp.samples.papers.tables import Table, text, write_csv

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
NAMES = ("bert32a100", "resnet", "gnmt")
HEAD = ("input", "k", "GiB", "Piper", "s", "dnnp", "s", "ratio", "gap %", "stages")
ROWS = (
    Row("bert32a100", 8, 1.0, INF, 0.1),
    Row("bert32a100", 8, 2.0, INF, 0.1),
    Row("bert32a100", 8, 8.0, 0.16585575, 0.1),
    Row("bert32a100", 8, 80.0, 0.12200726935, 0.1),
    Row("bert32a100", 32, 1.0, INF, 0.2),
    Row("bert32a100", 32, 2.0, 0.0665495, 0.2),
    Row("bert32a100", 32, 8.0, 0.0415154504417, 0.2),
    Row("bert32a100", 32, 80.0, 0.0308440482088, 0.3),
    Row("bert32a100", 64, 1.0, INF, 0.3),
    Row("bert32a100", 64, 2.0, 0.0320300812349, 0.3),
    Row("bert32a100", 64, 8.0, 0.0202005502945, 0.4),
    Row("bert32a100", 64, 80.0, 0.0156501780186, 0.6),
    Row("bert32a100", 128, 1.0, 0.03887175, 0.4),
    Row("bert32a100", 128, 2.0, 0.0151464078563, 0.6),
    Row("bert32a100", 128, 8.0, 0.0101208803239, 0.7),
    Row("bert32a100", 128, 80.0, 0.00805324292352, 1.0),
    Row("bert32a100", 512, 1.0, 0.00878004035815, 4.4),
    Row("bert32a100", 512, 2.0, 0.00366752625994, 4.8),
    Row("bert32a100", 512, 8.0, 0.00256112784601, 5.4),
    Row("bert32a100", 512, 80.0, 0.00227252010888, 7.3),
    Row("resnet", 8, 4.0, 73.4932860001, 4.8),
    Row("resnet", 16, 1.5, INF, 8.4),
    Row("resnet", 16, 2.0, 76.5213125, 9.0),
    Row("resnet", 32, 2.0, 24.6258985217, 11.4),
    Row("resnet", 8, 8.0, 63.4335366048, 6.1),
    Row("resnet", 64, 1.0, INF, 15.7),
    Row("gnmt", 2, 2.5, 263.354289062, 321.4),
)


class Found(NamedTuple):
    """What dnnp makes of a row; `stages` 0: nothing fits, which is proven."""

    value: float
    bound: float
    seconds: float
    stages: int


def compare(row: Row, folder: Path) -> Found:
    """Plan a row, and check the plan."""
    path = next(p for p in (folder / "inputs", folder) if (p / f"{row.name}.json").exists())
    graph = dnnp.load(path / f"{row.name}.json", kind="piper")
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
    """All rows, or those of one input."""
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
    missing = [n for n in NAMES if args.only in (None, n) and not _there(args.folder, n)]
    if missing:
        raise dnnp.UsageError(f"{args.folder} has no {missing[0]}.json")
    table = table_of(args.folder, args.only)
    print(*text(table), sep="\n")
    if args.csv is not None:
        write_csv(table, args.csv)


def _there(folder: Path, name: str) -> bool:
    return any((at / f"{name}.json").exists() for at in (folder / "inputs", folder))


if __name__ == "__main__":
    raise SystemExit(main())
