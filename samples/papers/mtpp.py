"""Tables 1 and 4, and figures 4 and 5, of MTPP (Archer et al. 2024).

    python -m dnnp.samples.papers.mtpp [--rows ROW...] [--counts K...] [--times] [--time-limit S]
        [--journal FILE] [--csv FILE] FILE...

A FILE is a priced stream, or a graph of the REGAL data: a CostGraphDef as text, whose nodes make
one tensor each, as in Appendix B.1; or a folder of those, of which `--sample N` takes the first N
by name.
The table has, for every row (`dnnp.samples.papers.rows`) and number of devices, the geometric mean
of the largest load over the simple lower bound. With --times it is the figures instead: times to
cut one random order, and of the bounds `exact` and `guess`, for every graph in the CSV. All cores
work; results go to the journal as they come, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache, lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any, NamedTuple

import dnnp
from dnnp.samples.arguments import count, seconds
from dnnp.samples.papers.rows import OURS, row, split_options

ROWS = (
    "mla", "mla-weighted", "random-1", "random-100", "random-10000", "brkga-100", "brkga-10000",
    "slice", "heuristic-5",
)  # fmt: skip
COUNTS = (2, 4, 8, 16, 32, 64)
TEXT = (".pbtxt", ".pbtext", ".textproto")
"""Endings of cost graphs as text."""

ONE_ORDER = "slice-graph"
"""Timed: one random order, cut."""

REPEATS = 3
"""Of what takes milliseconds; the shortest counts."""

FIELDS = ("version", "graph", "row", "k")
"""Key of a result in the journal."""


@cache
def installed() -> str:
    """The version whose results the journal keeps."""
    from importlib.metadata import version  # slow to load

    return version("dnnp")


Key = tuple[Any, ...]


class Journal:
    """Results in a file, a line of JSON each, by the fields that name them.

    What was broken off goes on where it was.
    """

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        self._path = path
        self._fields = fields
        self.found: dict[Key, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for line in lines:
            self._learn(line)
        # A line that was broken off is not to swallow the next one.
        if lines and not lines[-1].endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")

    def _learn(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            self.found[self._key(entry)] = entry
        except (ValueError, KeyError, TypeError):
            return  # Broken off, or of another version.

    def _key(self, entry: dict[str, Any]) -> Key:
        return tuple(entry[field] for field in self._fields)

    def add(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write results down, all in one piece."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        with self._path.open("ab", buffering=0) as file:
            file.write(text.encode())
        for entry in entries:
            self.found[self._key(entry)] = entry


class Task(NamedTuple):
    """Unit of work of a process: a row of a graph."""

    path: str
    digest: str
    row: str
    """A row of the table, `ONE_ORDER`, or `bound-METHOD-SECONDS`."""
    counts: tuple[int, ...]


def measure(task: Task) -> list[dict[str, Any]]:
    """Results of a task, one for each number of devices."""
    graph, edges = _load(task.path)
    results = []
    for k in task.counts:
        simple = dnnp.split(graph, k=k, method="slice")
        bound = simple.records("plan")[0]["bound"]
        if not bound:
            raise dnnp.FormatError("no node costs anything", task.path)
        names = installed(), task.digest, task.row, k
        result: dict[str, Any] = dict(zip(FIELDS, names, strict=True))
        result |= {"nodes": len(graph.nodes), "edges": edges, "simple": bound}
        if task.row.startswith("bound-"):
            _, method, limit = task.row.split("-", 2)
            result |= _bounded(simple, method, float(limit))
        else:
            result |= _split(graph, task.row, k)
        results.append(result)
    return results


def _split(graph: dnnp.Graph, name: str, k: int) -> dict[str, Any]:
    """The best split that a row finds, and the time."""
    options = split_options("random-1" if name == ONE_ORDER else name)
    times = []
    for _ in range(REPEATS if name == ONE_ORDER else 1):
        start = perf_counter()
        found = dnnp.split(graph, k=k, **options)
        times.append(perf_counter() - start)
    (plan,) = found.records("plan")
    return {"value": plan["value"], "seconds": min(times), "status": "found"}


def _bounded(planned: dnnp.Graph, method: str, limit: float) -> dict[str, Any]:
    """A bound of a plan, the time, and how the solver ended."""
    found = dnnp.bound(planned, method=method, time_limit=limit, timings=True)
    (bound,) = found.records("bound")
    mine = {entry["method"]: entry for entry in bound["tried"]}.get(method)
    # Without an entry the simple bound was enough, and nothing was left to do.
    return {
        "value": bound["value"],
        "seconds": mine["time_s"] if mine else 0.0,
        "status": mine["status"] if mine else "solved",
    }


@lru_cache(maxsize=2)
def _load(path: str) -> tuple[dnnp.Graph, int]:
    """A graph, and its number of edges."""
    graph = dnnp.load(path, one_tensor=Path(path).suffix in TEXT)
    maker = {tensor: node["id"] for node in graph.nodes for tensor in node["outputs"]}
    pairs = {
        (maker[tensor], node["id"])
        for node in graph.nodes
        for tensor in node["inputs"]
        if tensor in maker
    }
    return graph, len(pairs)


def graph_files(paths: Sequence[Path], sample: int | None) -> list[Path]:
    """The files, and the cost graphs of folders, by name.

    Raises
    ------
    ValueError
        A folder has no cost graph, or a file does not exist.
    """
    found = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in TEXT)
            if not inside:
                raise ValueError(f"{path}: no cost graph in it ({', '.join(TEXT)})")
            found += inside[:sample]
        elif path.exists():
            found.append(path)
        else:
            raise ValueError(f"{path}: no such file")
    return found


def work_off(tasks: list[Task], journal: Journal) -> None:
    """Do tasks on all cores, and write down what comes out."""
    os.environ["NUMBA_NUM_THREADS"] = "1"
    if not tasks:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = min(cores or 1, len(tasks))
    # Ctrl-C ends a worker without a word.
    quiet = signal.signal, (signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(workers, get_context("spawn"), *quiet) as pool:
        try:
            for future in as_completed([pool.submit(measure, task) for task in tasks]):
                journal.add(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def table(
    found: Sequence[dict[str, Any]], rows: Sequence[str], counts: Sequence[int]
) -> Iterator[str]:
    """Lines of table 1 or 4."""
    yield " " * 15 + "".join(f"  k = {k:2}" for k in counts)
    for name in rows:
        cells = []
        for k in counts:
            of = [r for r in found if (r["row"], r["k"]) == (name, k)]
            cells.append(f" {geometric_mean(r['value'] / r['simple'] for r in of):7.3f}")
        title = f"{name} *" if name.partition("-")[0] in OURS else name
        yield f"{title:15}" + "".join(cells)


def times(
    found: Sequence[dict[str, Any]], rows: Sequence[str], counts: Sequence[int]
) -> Iterator[str]:
    """Lines about what took how long: median and longest; share that ended, for bounds."""
    yield " " * 17 + "".join(f"{f'k = {k}':>20}" for k in counts)
    for name in rows:
        cells = []
        for k in counts:
            of = [r for r in found if (r["row"], r["k"]) == (name, k)]
            each = [r["seconds"] for r in of]
            ended = f" {100 * sum(r['status'] == 'solved' for r in of) / len(of):3.0f}%"
            cells.append(
                f"{median(each):9.3f}{max(each):6.2f}{ended if 'bound' in name else '':>5}"
            )
        yield f"{name:17}" + "".join(cells)


def write_csv(path: Path, found: Sequence[dict[str, Any]], names: dict[str, str]) -> None:
    """One row a point of the figures, or cell of the tables before the mean."""
    columns = ("nodes", "edges", "row", "k", "value", "simple", "seconds", "status")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("graph", *columns))
        writer.writerows((names[r["graph"]], *(r[column] for column in columns)) for r in found)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description="Tables and figures of MTPP.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--rows", nargs="+", type=row, default=ROWS, metavar="ROW")
    parser.add_argument("--counts", nargs="+", type=count, default=COUNTS, metavar="K")
    parser.add_argument("--times", action="store_true", help="times, in place of the table")
    parser.add_argument("--time-limit", type=seconds, default=5.0, metavar="S", help="of a bound")
    parser.add_argument("--sample", type=count, metavar="N", help="graphs of a folder")
    parser.add_argument("--journal", type=Path, default=Path("mtpp.jsonl"), metavar="FILE")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all results here")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    args = parse(arguments)
    limit = f"{args.time_limit:g}"
    bounds = (f"bound-exact-{limit}", f"bound-guess-{limit}")
    rows = (ONE_ORDER, *bounds) if args.times else tuple(dict.fromkeys(args.rows))
    counts = tuple(dict.fromkeys(args.counts))
    try:
        files = graph_files(args.files, args.sample)
        digests = [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files]
        journal = Journal(args.journal, FIELDS)
    except (OSError, ValueError) as error:
        print(f"mtpp: {error}", file=sys.stderr)
        return 1
    wanted = [(installed(), d, r, k) for d in digests for r in rows for k in counts]
    tasks = []
    for path, digest in dict(zip(files, digests, strict=True)).items():
        for name in rows:
            left = [k for k in counts if (installed(), digest, name, k) not in journal.found]
            if left:
                tasks.append(Task(str(path), digest, name, tuple(left)))
    try:
        work_off(tasks, journal)
    except KeyboardInterrupt:
        here = sum(key in journal.found for key in wanted)
        print(f"mtpp: stopped; {here} of {len(wanted)} results are there", file=sys.stderr)
        return 130
    except (dnnp.DnnpError, BrokenProcessPool, OSError) as error:
        print(f"mtpp: {error}", file=sys.stderr)
        return 1
    found = [journal.found[key] for key in wanted]
    for line in (times if args.times else table)(found, rows, counts):
        print(line)
    if args.csv:
        write_csv(args.csv, found, {d: p.stem for p, d in zip(files, digests, strict=True)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
