"""Bounds and gaps of good plans: generated graphs, the 2020 workloads, sample models.

DNNP_BENCH_GRAPHS says how many of the 30 generated graphs are split (two small ones, then a large
one, and so on), DNNP_BENCH_COUNTS over how many devices ("2 8 64"), DNNP_BENCH_BOUND_S for how
many seconds each plan is bounded, DNNP_BENCH_PARTS what is measured ("graphs workloads models"),
DNNP_BENCH_MODELS which models. All of it takes over an hour on two cores. Each result goes to
standard error when it is there; with DNNP_BENCH_RESULTS=FILE also to a file, and what stands in it
is not measured again. Ctrl-C or SIGTERM ends with tables of what there is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench_models import SHARED, stream_of
from bench_mtpp import mean_ratio

from dnnp.core.bounds.auto import TOLERANCE
from dnnp.formats.stream import read_bytes
from dnnp.formats.workloads.synthetic import synthetic_stream
from dnnp.samples.build import select, write
from dnnp.samples.papers.placement_values import TABLE_1
from dnnp.samples.papers.regal import FAMILIES, regal_graph
from support.bench import table
from support.graphs import to_bytes
from support.run import executable

PARTS = os.environ.get("DNNP_BENCH_PARTS", "graphs workloads models").split()
MODELS = os.environ.get("DNNP_BENCH_MODELS", "small").split()
"""Names or sizes of sample models (python -m dnnp.samples.build --list)."""
RESULTS = os.environ.get("DNNP_BENCH_RESULTS", "")
COUNTS = tuple(map(int, os.environ.get("DNNP_BENCH_COUNTS", "2 4 8 16 32 64").split()))
LARGE_COUNTS = tuple(k for k in COUNTS if k >= 8)
BOUND_S = float(os.environ.get("DNNP_BENCH_BOUND_S", "40"))
SPLIT_S = 4
MODEL_S = 60
AT_A_TIME = 2
WORKLOADS = Path(__file__).resolve().parents[3] / "shared" / "workloads" / "throughput"

GRAPHS = int(os.environ.get("DNNP_BENCH_GRAPHS", "30"))
SMALL = [(50 + i % 11, i) for i in range(20)]
LARGE = [(100 + 2 * i, 100 + i) for i in range(10)]
"""Nodes and seed; the seed says which family, each in turn."""
IN_TURN = [one for i in range(10) for one in (*SMALL[2 * i : 2 * i + 2], LARGE[i])][:GRAPHS]

SMALL_TARGETS = {2: 1.0, 4: 1.03, 8: 1.055, 16: 1.10, 32: 1.10, 64: 1.0}
LARGE_TARGETS = {8: 1.12, 16: 1.12, 32: 1.10, 64: 1.0}
"""k -> value over bound."""
WORKLOAD_S, OPTIMAL_PART, WORST_GAP = 3.0, 0.9, 0.02


class Result(NamedTuple):
    """One plan, bounded."""

    part: str
    name: str
    nodes: int
    """Or groups."""
    k: int
    value: float
    bound: float
    status: str
    """Of the bound record."""
    method: str
    """The argument that proves it."""
    seconds: float
    """Of the commands that split and bound."""
    verdict: str
    """Of `dnnp-check --certificate`."""
    check_s: float

    @property
    def ratio(self) -> float:
        """Exactly 1 where the record says so."""
        return 1.0 if self.closed else self.value / self.bound

    @property
    def closed(self) -> bool:
        """True if the gap is 0."""
        return self.status == "optimal"

    @property
    def optimal(self) -> bool:
        """True if the gap is within the tolerance of solvers of integer programs."""
        return self.ratio <= 1 + TOLERANCE

    @property
    def gap(self) -> float:
        """Part of the value."""
        return 1 - 1 / self.ratio


def command(name: str, *words: str, stdin: bytes, one_core: bool) -> bytes:
    """Run a command; SystemExit if it fails."""
    env = {**os.environ, "NUMBA_NUM_THREADS": "1"} if one_core else None
    done = subprocess.run(
        [executable(name), "-q", *words], input=stdin, capture_output=True, env=env
    )
    if done.returncode:
        raise SystemExit(f"dnnp-{name} {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout


def verdict_of(stream: bytes) -> str:
    """The checker's verdict on the certificate; SystemExit if anything else is wrong."""
    done = subprocess.run(
        [executable("check"), "-q", "--certificate", "--json"],
        input=stream,
        capture_output=True,
    )
    said = json.loads(done.stdout)
    if {v["kind"] for v in said["violations"]} - {"certificate", "unchecked", "unverified"}:
        raise SystemExit(f"dnnp-check: {done.stderr.decode()}")
    return said["certificates"][0]["verdict"]


def measured(
    part: str,
    name: str,
    stream: bytes,
    k: int,
    commands: Sequence[Sequence[str]],
    *,
    one_core: bool,
) -> Result:
    """Run commands one after the other, the last of which is dnnp-bound, and check its proof."""
    start = time.perf_counter()
    for words in commands:
        stream = command(*words, stdin=stream, one_core=one_core)
    seconds = time.perf_counter() - start
    found = read_bytes(stream, name)
    plan, bound = found.get("plan")[0], found.get("bound")[0]
    start = time.perf_counter()
    verdict = verdict_of(stream)
    return Result(
        part,
        name,
        len(found.get("group") or found.get("node")),
        k,
        plan["value"],
        bound["value"],
        bound["status"],
        bound["method"],
        seconds,
        verdict,
        time.perf_counter() - start,
    )


Job = tuple[tuple[str, str, int], Callable[[], Result]]
"""Part, name and k; and what finds the result."""


def graph_jobs() -> list[Job]:
    """Generated graphs, split by the heuristic, then bounded."""
    jobs: list[Job] = []
    for nodes, seed in IN_TURN:
        family = list(FAMILIES)[seed % len(FAMILIES)]
        made = regal_graph(family, nodes, seed)
        name = f"{family} {nodes}, seed {seed}"
        data = to_bytes(synthetic_stream(name, made.tail, made.head, made.size, made.cost))
        for k in COUNTS if nodes <= 60 else LARGE_COUNTS:
            split = ["partition", "-k", str(k), "--method", "heuristic", "--time-limit"]
            commands = [[*split, str(SPLIT_S)], ["bound", "--time-limit", f"{BOUND_S:g}"]]
            part = "small" if nodes <= 60 else "large"
            run = partial(measured, part, name, data, k, commands, one_core=True)
            jobs.append(((part, name, k), run))
    return jobs


def workload_jobs() -> list[Job]:
    """Inference workloads of the 2020 paper, on identical devices."""
    jobs: list[Job] = []
    for name in TABLE_1:
        path = WORKLOADS / f"{name}.json"
        if not name.endswith("_inference") or not path.is_file():
            continue
        data = subprocess.run(
            [executable("import"), "-q", path], check=True, capture_output=True
        ).stdout
        for k in COUNTS:
            words = [["bound", "-k", str(k), "--cpus", "0"]]
            run = partial(measured, "workload", name, data, k, words, one_core=False)
            jobs.append((("workload", name, k), run))
    return jobs


def model_jobs(folder: Path) -> list[Job]:
    """Sample models, coarsened."""
    jobs: list[Job] = []
    sizes = [m for m in MODELS if m in ("small", "full", "giant")]
    names = [name for size in sizes for name in select([], size)]
    names += [m for m in MODELS if m not in sizes]
    models = [write(name, folder) for name in dict.fromkeys(names)]
    models += sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else []
    for model in models:
        data = stream_of(model, coarsen=True)
        for k in COUNTS:
            words = [["bound", "-k", str(k), "--time-limit", str(MODEL_S)]]
            run = partial(measured, "model", model.stem, data, k, words, one_core=True)
            jobs.append((("model", model.stem, k), run))
    return jobs


def known() -> dict[tuple[str, str, int], Result]:
    """The contents of the file of results."""
    if not RESULTS or not Path(RESULTS).exists():
        return {}
    lines = Path(RESULTS).read_text().splitlines()
    found = [Result(*json.loads(line)) for line in lines]
    return {(r.part, r.name, r.k): r for r in found}


def tell(result: Result) -> None:
    """Say what one instance came to."""
    print(
        f"{result.part:8} {result.name:32} k = {result.k:2}  {result.value:12.6g} "
        f"{result.ratio:7.4f}  {result.status:11} {result.method:10} {result.seconds:5.1f} s  "
        f"{result.verdict}, {result.check_s:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    if RESULTS:
        with Path(RESULTS).open("a") as file:
            file.write(json.dumps(result) + "\n")


def run(jobs: Iterable[Job], at_a_time: int) -> tuple[list[Result], bool]:
    """Results of all jobs, or after Ctrl-C of those that have ended; and whether those are all."""
    old = known()
    jobs = list(jobs)
    found = [old[key] for key, _ in jobs if key in old]
    pool = ThreadPoolExecutor(at_a_time)
    waiting = [pool.submit(job) for key, job in jobs if key not in old]
    try:
        for done in as_completed(waiting):
            found.append(done.result())
            tell(found[-1])
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come to the process and its group
        print(f"{len(found)} of {len(jobs)} have ended", file=sys.stderr)
    finally:
        pool.shutdown(cancel_futures=True)
    return found, len(found) == len(jobs)


def winners(results: Sequence[Result]) -> str:
    """Arguments by how often they were the best."""
    return ", ".join(f"{name} {n}" for name, n in Counter(r.method for r in results).most_common())


def graph_rows(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """One row a size and k."""
    rows: list[tuple[object, ...]] = []
    for part, targets in (("small", SMALL_TARGETS), ("large", LARGE_TARGETS)):
        for k in COUNTS:
            mine = [r for r in results if (r.part, r.k) == (part, k)]
            if not mine:
                continue
            mean = mean_ratio([r.ratio for r in mine])
            worst = max(mine, key=lambda r: r.ratio)
            seconds = [r.seconds for r in mine]
            closed, optimal = sum(r.closed for r in mine), sum(r.optimal for r in mine)
            goal = targets.get(k)
            shown = (
                ""
                if goal is None
                else f"{goal:g}" + (" (missed)" if mean > goal + TOLERANCE else "")
            )
            rows.append(
                (
                    f"{min(r.nodes for r in mine)} to {max(r.nodes for r in mine)}",
                    k,
                    len(mine),
                    f"{mean:.4f}",
                    shown,
                    f"{worst.ratio:.4f} ({worst.name})",
                    f"{closed} + {optimal - closed}",
                    f"{sum(seconds) / len(mine):.0f} s",
                    f"{max(seconds):.0f} s",
                    winners(mine),
                )
            )
    return rows


def grid_rows(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """One row a workload or model: gap and seconds by k."""
    rows: list[tuple[object, ...]] = []
    for name in dict.fromkeys(r.name for r in results):
        by_k = {r.k: r for r in results if r.name == name}
        cells = (
            f"{100 * by_k[k].gap:.2f}% ({by_k[k].seconds:.1f} s)" if k in by_k else ""
            for k in COUNTS
        )
        rows.append((name, next(iter(by_k.values())).nodes, *cells))
    return sorted(rows, key=lambda row: str(row[0]))


def missed_rows(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """Rows with a gap, the widest first."""
    left = sorted((r for r in results if not r.closed), key=lambda r: -r.gap)
    return [
        (
            r.name,
            r.k,
            f"{r.value:.6g}",
            f"{r.bound:.6g}",
            f"{100 * r.gap:.4f}%",
            r.method,
            f"{r.seconds:.1f} s",
        )
        for r in left
    ]


def verdicts(results: Sequence[Result]) -> str:
    """One sentence about certificates."""
    counts: dict[str, list[Result]] = {}
    for r in results:
        counts.setdefault(r.verdict, []).append(r)
    said = "; ".join(
        f"{len(of)} {verdict} ({winners(of)})" for verdict, of in sorted(counts.items())
    )
    longest = max(r.check_s for r in results)
    return f"Certificates, by `dnnp-check --certificate`: {said}. Longest check: {longest:.1f} s."


def print_graphs(results: Sequence[Result]) -> None:
    """The table of the generated graphs."""
    print(
        f"Generated graphs of four families, split by `--method heuristic` in {SPLIT_S} s, then "
        f"`dnnp-bound --time-limit {BOUND_S:g}`, {AT_A_TIME} instances at a time: value over "
        "bound, geometric mean. *Optimal*: proven with gap 0, and up to the tolerance of integer "
        f"programs, {TOLERANCE:g}. *Time*: both commands.\n"
    )
    header = (
        "nodes",
        "k",
        "graphs",
        "mean",
        "target",
        "worst",
        "optimal",
        "mean time",
        "longest",
        "best argument",
    )
    print(table(header, graph_rows(results)))
    print(f"\n{verdicts(results)}\n")


def print_workloads(results: Sequence[Result]) -> None:
    """The table of the workloads."""
    slow = [r for r in results if r.seconds > WORKLOAD_S]
    print(
        "Inference workloads of the 2020 paper on k identical devices: gap and wall time of "
        f"`dnnp-bound -k K --cpus 0`, plan included. Target: 0 in {WORKLOAD_S:g} s; missed: "
        f"{sum(not r.closed for r in results)} by gap, {len(slow)} by time.\n"
    )
    print(table(("workload", "nodes", *(f"k = {k}" for k in COUNTS)), grid_rows(results)))
    print(f"\n{verdicts(results)}\n")


def print_models(results: Sequence[Result]) -> None:
    """The tables of the sample models."""
    closed, optimal = sum(r.closed for r in results), sum(r.optimal for r in results)
    worst = max(r.gap for r in results)
    print(
        f"Sample models, coarsened, analytic costs, cpu-core: gap and wall time of `dnnp-bound -k "
        f"K --time-limit {MODEL_S}`, plan included, {AT_A_TIME} at a time. Gap 0: {closed} of "
        f"{len(results)}, {100 * closed / len(results):.1f}% (target {100 * OPTIMAL_PART:.0f}%), "
        f"and {optimal - closed} up to the tolerance of integer programs, {TOLERANCE:g}; worst gap "
        f"{100 * worst:.2f}% (target {100 * WORST_GAP:g}%).\n"
    )
    print(table(("model", "groups", *(f"k = {k}" for k in COUNTS)), grid_rows(results)))
    missed = missed_rows(results)
    if missed:
        print("\nWhere a gap remains:\n")
        header = ("model", "k", "value s", "bound s", "gap", "best argument", "time")
        print(table(header, missed))
    print(f"\n{verdicts(results)}\n")


def main() -> None:
    """Measure and print the tables; SystemExit if a certificate is refuted."""
    found: list[Result] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        for part, jobs, at_a_time, show in (
            ("workloads", workload_jobs, 1, print_workloads),
            ("models", partial(model_jobs, Path(folder)), AT_A_TIME, print_models),
            ("graphs", graph_jobs, AT_A_TIME, print_graphs),
        ):
            if part not in PARTS:
                continue
            results, complete = run(jobs(), at_a_time)
            found += results
            if results:
                show(results)
            if not complete:
                break
    wrong = [f"{r.name} k = {r.k}" for r in found if r.verdict == "refuted"]
    if wrong:
        raise SystemExit(f"refuted certificates: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
