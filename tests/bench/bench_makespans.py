"""Latency of placements on task graphs with published least makespans, beside CP-SAT."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

from support.bench import table
from support.graphs import to_bytes
from support.makespans import TaskGraph, stream_of
from support.run import executable

GRAPHS = Path(__file__).resolve().parents[3] / "shared" / "makespans" / "optimal.jsonl"
LIMITS = ((10, 1.0), (21, 10.0), (30, 10.0), (30, 60.0))
"""Number of tasks, and seconds."""
SLOW = float(os.environ.get("DNNP_BENCH_SLOW", "1"))
"""Time limits are this times the seconds: on a machine that is busy with other things a command
gets its processor time late. What took more of that than the seconds is not counted as proven."""
METHODS = ("auto", "cpsat") if find_spec("ortools") else ("auto",)
OPTIONS = ("--objective", "latency", "--execution", "operators", "--congestion", "none")
CLOSE = 1e-9


class Outcome(NamedTuple):
    """One graph by one method within one limit."""

    seconds: float
    """Processor time of the command."""
    value: float
    bound: float

    def proven(self, limit: float) -> bool:
        """True if the bound meets the value in this time."""
        return self.seconds <= limit and self.value <= self.bound * (1 + CLOSE)


def solved(graph: dict, method: str, limit: float) -> Outcome:
    """Plan a graph by the command."""
    data = to_bytes(stream_of(TaskGraph(graph["times"], [tuple(e) for e in graph["edges"]])))
    words = (*OPTIONS, "--transfers", "edge", "-k", str(graph["processors"]), "--method", method)
    command = [executable("partition"), "-q", *words, "--time-limit", str(limit * SLOW)]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as made:
        given.write(data)
        given.seek(0)
        process = subprocess.Popen(command, stdin=given, stdout=made)
        _, ended, used = os.wait4(process.pid, 0)
        made.seek(0)
        records = [json.loads(line) for line in made]
    if ended:
        return Outcome(used.ru_utime + used.ru_stime, math.inf, 0.0)
    plan = next(record for record in records if record["type"] == "plan")
    return Outcome(used.ru_utime + used.ru_stime, plan["value"], plan["bound"])


def right(found: Outcome, least: float) -> bool:
    """True if value and bound do not contradict the published optimum."""
    return found.bound <= least * (1 + CLOSE) and found.value >= least * (1 - CLOSE)


def row(graphs: list[dict], found: list[Outcome], limit: float) -> list[object]:
    """Cells of a row: graphs, proven, optimal values, seconds in all and of the longest."""
    pairs = list(zip(found, graphs, strict=True))
    proven = sum(one.proven(limit) for one in found)
    optimal = sum(one.value <= graph["optimum"] * (1 + CLOSE) for one, graph in pairs)
    share = f"{proven} ({100 * proven / len(found):.0f} %)"
    seconds = [one.seconds for one in found]
    return [len(found), share, optimal, f"{sum(seconds):.1f}", f"{max(seconds):.1f}"]


def main() -> int:
    """Print the table; 1 if a value or a bound contradicts what is published."""
    if not GRAPHS.exists():
        print("needs the folder makespans beside the project", file=sys.stderr)
        return 1
    graphs = [json.loads(line) for line in GRAPHS.read_text().splitlines()]
    rows, wrong = [], 0
    for method in METHODS:
        solved(graphs[0], method, 60.0)  # compiles
    for (size, limit), method in product(LIMITS, METHODS):
        mine = [graph for graph in graphs if len(graph["times"]) == size]
        found = [solved(graph, method, limit) for graph in mine]
        pairs = zip(found, mine, strict=True)
        wrong += sum(not right(one, graph["optimum"]) for one, graph in pairs)
        rows.append([size, f"{limit:g} s", method, *row(mine, found, limit)])
    heads = ["tasks", "limit", "method", "graphs", "proven", "optimal values", "all, s", "most, s"]
    print("Task graphs with published least makespans; processor time of the warm command.\n")
    print(table(heads, rows))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
