"""Cold and warm starts: small samples, from an empty cache of kernels and from a filled one.

    python tests/bench/bench_cold.py [PART ...]

Parts: commands, pipeline, sweep, limits, versions; all of them where none is named. Bytecode of
Python is kept, as in an installation, whatever the environment says. TREE (another checkout) stands
beside this one in `versions`; INSTALLED is a folder with what `python -m dnnp.warm --defaults`
compiles, made where it is not said; ROWS says how many of its commands are run.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from support.bench import table
from support.run import executable

QUICK_S, SEARCHES_S = 4.0, 8.0
"""Processor seconds that commands, and searches without an end of their own, may take cold."""

BYTECODE = Path(tempfile.gettempdir(), "dnnp-bench-bytecode")

PARTS = ("commands", "pipeline", "sweep", "limits", "versions")
TREE, INSTALLED = os.environ.get("TREE", ""), os.environ.get("INSTALLED", "")
ROWS = int(os.environ.get("ROWS", "4"))

LIMITS_S = (1, 2, 5)
GRAPHS = 100
FEWER = 5
"""Part of them that is measured for random graphs, which take long."""
REPEATS = 9

PARTITION = ("partition", "-k", "4")
SHAPES = ("V", "X", "M", "NN", "K")
QUICK: tuple[tuple[str, ...], ...] = (
    ("coarsen",),
    ("profile",),
    PARTITION,
    (*PARTITION, "--method", "slice"),
    (*PARTITION, "--max-replicas", "2"),
    (*PARTITION, "--memory-model", "peak"),
    ("bound", "-k", "4"),
    ("check",),
    ("schedule",),
)
SEARCHES = (
    (*PARTITION, "--objective", "latency"),
    (*PARTITION, "--method", "heuristic"),
    (*PARTITION, "--method", "anneal"),
    *(("schedule", "--shape", shape) for shape in SHAPES),
)


RANDOM = ("partition", "-k", "8", "--bandwidth", "10")
DEFAULTS: tuple[tuple[str, ...], ...] = (
    RANDOM, ("bound",), ("schedule", "-n", "8"), (*RANDOM, "--time-limit", "10"),
)  # fmt: skip
"""Commands that `versions` runs on a random graph of 64 nodes; bounds and schedules of its plan."""


class Outcome(NamedTuple):
    """One run of a command."""

    cpu_s: float
    wall_s: float
    out: bytes


def run(words: Sequence[str], stream: bytes = b"", **environment: str) -> Outcome:
    """Run a command of ours on a stream; SystemExit if it fails."""
    before, started = _spent(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, executable(words[0]), *words[1:], "-q"],
        input=stream,
        capture_output=True,
        env=with_bytecode(**environment),
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.decode()}")
    return Outcome(_spent() - before, time.perf_counter() - started, done.stdout)


def with_bytecode(**more: str) -> dict[str, str]:
    """The environment, where Python keeps what it compiles of modules; `more` is set besides."""
    kept = {"PYTHONPYCACHEPREFIX": str(BYTECODE), **more}
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | kept


def _spent() -> float:
    """Processor seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def value_of(stream: bytes) -> float:
    """The value of the plan or of the schedule in a stream; nan: there is none."""
    value = float("nan")
    for line in stream.splitlines():
        record: Mapping[str, Any] = orjson.loads(line)
        if record["type"] == "plan":
            value = float(record["value"])
        elif record["type"] == "schedule":
            value = float(record["makespan_s"])
    return value


def samples(folder: Path) -> dict[str, bytes]:
    """Name -> priced stream of every small sample model."""
    subprocess.run(
        [sys.executable, "-m", "dnnp.samples.build", "-o", folder], check=True, capture_output=True
    )
    streams = {}
    for path in sorted(folder.glob("*.onnx")):
        stream = run(("import", str(path))).out
        streams[path.stem] = run(("profile",), run(("coarsen",), stream).out).out
    return streams


def cold_table(streams: Mapping[str, bytes]) -> str:
    """Processor time of commands from an empty cache, over all samples."""
    rows = []
    for words, most in (*((w, QUICK_S) for w in QUICK), *((w, SEARCHES_S) for w in SEARCHES)):
        cold: dict[str, float] = {}
        warm, worse = [], []
        alone = "--shape" in words
        for name, stream in {"": b""}.items() if alone else streams.items():
            given = stream
            if words[0] in ("check", "schedule") and not alone:
                given = run(PARTITION, stream).out
            run(words, given)
            expected = run(words, given)
            with tempfile.TemporaryDirectory() as cache:
                found = run(words, given, NUMBA_CACHE_DIR=cache)
            cold[name] = found.cpu_s
            warm.append(expected.cpu_s)
            worse.append(value_of(found.out) / value_of(expected.out) - 1)
        slowest = max(cold, key=lambda name: cold[name])
        missed = sum(seconds > most for seconds in cold.values())
        rows.append(
            (
                f"`{' '.join(words)}`",
                f"{len(cold)}",
                f"{statistics.median(cold.values()):.2f}",
                f"{cold[slowest]:.2f}"
                + (f" ({slowest.removesuffix('-small')})" if slowest else ""),
                f"{most:g}",
                f"{missed or ''}",
                f"{statistics.median(warm):.2f}",
                "" if max(worse) != max(worse) else f"{100 * max(worse):.2f} %",
            )
        )
    header = (
        *("command", "samples", "cold, median", "cold, worst", "target"),
        *("missed by", "warm, median", "worse by"),
    )
    return table(header, rows)


def warm_table(model: Path) -> str:
    """Processor time of a pipeline of four commands with a filled cache."""
    rounds: list[list[float]] = []
    for _ in range(REPEATS):
        before = _spent()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True, env=with_bytecode())
        times = [_spent() - before]
        stream = b""
        for words in (("import", str(model)), ("coarsen",), ("profile",), PARTITION):
            done = run(words, stream)
            stream = done.out
            times.append(done.cpu_s)
        rounds.append([*times, sum(times[1:])])
    base, *medians = (statistics.median(column) for column in zip(*rounds, strict=True))
    names = ("import", "coarsen", "profile", "partition -k 4", "all four")
    return table(
        ("bert-small", "processor seconds", 'times `python -c "import numpy"`'),
        [(f"`{n}`", f"{t:.2f}", f"{t / base:.1f}") for n, t in zip(names, medians, strict=True)],
    )


def sweep(folder: Path, streams: Mapping[str, bytes]) -> str:
    """Wall time of shell loops over many small graphs, of models and random ones."""
    words = ("import", "--synthetic", "--nodes", "50", "--seed")
    few = GRAPHS // FEWER
    kinds = {
        "the sample models in turn": (list(streams.values()), GRAPHS),
        "random graphs of 50 nodes": ([run((*words, str(seed))).out for seed in range(few)], few),
    }
    rows = []
    for name, (graphs, count) in kinds.items():
        for i in range(count):
            (folder / f"{i}.dnnp").write_bytes(graphs[i % len(graphs)])
        command = f"{sys.executable} {executable('partition')} -k 4 -q"
        loop = f"for i in $(seq 0 {count - 1}); do {command} {folder}/$i.dnnp > {folder}/plan; done"
        started = time.perf_counter()
        subprocess.run(["sh", "-c", loop], check=True, env=with_bytecode())
        took = time.perf_counter() - started
        rows.append((name, f"{count}", f"{took:.0f} s", f"{took / count * GRAPHS:.0f} s"))
    return table(("graphs", "number", "wall time", f"of {GRAPHS}"), rows)


def limits_table(stream: bytes) -> str:
    """Wall time under a limit, cold and warm."""
    rows = []
    for words in (PARTITION, *SEARCHES[:3], (*PARTITION, "--max-replicas", "2")):
        for cold in (True, False):
            times = []
            for limit in LIMITS_S:
                limited = (*words, "--time-limit", str(limit))
                with tempfile.TemporaryDirectory() as cache:
                    done = run(limited, stream, **({"NUMBA_CACHE_DIR": cache} if cold else {}))
                if value_of(done.out) != value_of(done.out):
                    raise SystemExit(f"{' '.join(limited)}: no plan")
                times.append(done.wall_s)
            rows.append(
                (f"`{' '.join(words)}`", "cold" if cold else "warm", *(f"{t:.2f}" for t in times))
            )
    header = ("command", "cache", *(f"limit {limit} s" for limit in LIMITS_S))
    return table(header, rows)


def versions(scratch: Path) -> str:
    """Whole default commands from an empty cache, after installation and warm, of both versions."""
    stream = run(("import", "--synthetic", "erdos-renyi", "--nodes", "64", "--seed", "1")).out
    planned = run(RANDOM, stream).out
    installed = INSTALLED or str(scratch / "installed")
    if not INSTALLED:
        words = [sys.executable, "-m", "dnnp.warm", "--defaults", "-q"]
        subprocess.run(words, check=True, env={**os.environ, "NUMBA_CACHE_DIR": installed})
    python = sys.executable
    rows = []
    for words in DEFAULTS[:ROWS]:
        given = stream if words[0] == "partition" else planned
        for version, tree in (("before", TREE), ("now", "")):
            if version == "before" and not tree:
                continue
            name = f"{tree}/.venv/bin/dnnp-{words[0]}" if tree else executable(words[0])
            command = [f"{tree}/.venv/bin/python" if tree else python, name, *words[1:], "-q"]
            cells: list[str] = []
            for state in ("cold", "installed", "warm"):
                folder = scratch / f"{version} {state} {' '.join(words)}"
                if state == "installed":
                    shutil.copytree(installed, folder)
                where = {} if state == "warm" else {"NUMBA_CACHE_DIR": str(folder)}
                for _ in range(2 if state == "warm" else 1):
                    before, started = _spent(), time.perf_counter()
                    done = subprocess.run(
                        command, input=given, capture_output=True, check=True,
                        env=with_bytecode(**where),
                    )  # fmt: skip
                    cpu_s, wall_s = _spent() - before, time.perf_counter() - started
                cells.append(f"{cpu_s:.1f} / {wall_s:.1f}")
                if words[0] == "partition":
                    cells[-1] += f" ({value_of(done.stdout):.6g})"
            rows.append((f"`{' '.join(words)}`", version, *cells))
    return table(("command", "version", "cold", "after installing", "warm"), rows)


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parts = parser.parse_args().parts or PARTS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "versions" in parts:
            print("Seconds of the processor / of the clock (value), random graph of 64 nodes:\n")
            print(versions(folder))
        streams = samples(folder) if {*parts} - {"versions"} else {}
        if "commands" in parts:
            print(
                f"Processor seconds of whole commands on {len(streams)} small samples, with an "
                "empty cache of kernels and with a filled one; by how many samples the target is "
                "missed, and how much worse the value of the cold run is at worst.\n"
            )
            print(cold_table(streams))
        if "pipeline" in parts:
            print(f"\nWith a filled cache, median of {REPEATS}; target 1.2 s for all four:\n")
            print(warm_table(folder / "bert-small.onnx"))
        if "sweep" in parts:
            print("\nA shell loop of `dnnp-partition -k 4`, one after the other; target 60 s:\n")
            print(sweep(folder, streams))
        if "limits" in parts:
            large = run(("import", "--synthetic", "--nodes", "1000")).out
            print("\nWall seconds under `--time-limit`, 1,000 nodes:\n")
            print(limits_table(large))


if __name__ == "__main__":
    main()
