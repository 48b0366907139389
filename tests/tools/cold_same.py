"""Compare the bytes that every method writes with an empty and a full cache of kernels.

    python tests/tools/cold_same.py [WORD ...]

Each method runs on one and on two threads: with an empty cache (small problems are interpreted,
others compile), with a full one (others load), and with all its kernels compiled from the start.
Only names that hold a WORD are tried, if there are any. A line a method says how many kernels it
compiled with the empty cache; the exit status is 1 if bytes or statuses differ. Solvers that run
for slices of time (`TIMED`) may stop elsewhere on a busy machine: theirs are tried where named.
Takes about an hour of one core, most of it for compiling.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.core.methods.schedules import SCHEDULES
from dnnp.core.methods.splits import LATENCY, SPLITS
from support.run import PATIENCE_S, dnnp, executable

TIMED = ("ip", "cpsat", "getf-milp", "placeto", "auto bound", "exact bound", "no-dag", "no-io")

GRAPH = "import --synthetic erdos-renyi --nodes 24 --seed 1"
CUT = "partition -k 3 --bandwidth 6"
LATE = f"{CUT} --objective latency"
QUICKER = {
    "anneal": "--effort 0.05",
    "heuristic": "--effort 0.05",
    "auto blocks": "--effort 0.05",
    "anneal blocks": "--effort 0.05",
    "anneal operators": "--effort 0.05",
    "brkga": "--generations 5 --population 40",
    "mla": "--generations 5 --population 40",
    "mla-weighted": "--generations 5 --population 40",
    "placeto": "--episodes 2",
}
"""Options with which a method compiles what it needs, and ends soon after that."""

COMPILED = (
    "import runpy, sys; from dnnp.core.kernels.kernel import compile_always; compile_always(); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Runs a program with nothing interpreted."""


class Case(NamedTuple):
    """A method, the commands that make its input, and the one that runs it."""

    name: str
    before: tuple[str, ...]
    words: str


SMALL = (
    Case("slice of 4000", ("import --synthetic --nodes 4000",), "partition -k 3 --method slice"),
    Case("random", (GRAPH,), f"{CUT} --method random --samples 2000"),
    Case("local-search", (GRAPH,), f"{CUT} --method local-search --effort 4"),
    Case("m-etf operators", (GRAPH,), f"{LATE} --execution operators --method m-etf"),
    Case("simple bound", (GRAPH, f"{LATE} --method single"), "bound --method simple"),
)
"""Methods whose kernels take a moment to compile: the suite tries these."""


def cases() -> Iterator[Case]:
    """Every method, of each kind."""
    yield from SMALL
    for name, method in SPLITS.items():
        for kind in method.kinds:
            words = f"{CUT} --method {name} --validity {kind} {QUICKER.get(name, '')}"
            yield Case(f"{name} {kind}", (GRAPH,), words)
    for name, method in LATENCY.items():
        for kind in method.kinds:
            words = f"{LATE} --execution {kind} --method {name}"
            case = f"{name} {kind}"
            yield Case(case, (GRAPH,), f"{words} {QUICKER.get(case, QUICKER.get(name, ''))}")
    for name, method in BOUNDS.items():
        for kind in method.kinds:
            cut = f"{CUT} --method {'slice' if kind == 'ordered' else 'anneal --effort 0.001'}"
            words = f"bound --method {name} --validity {kind} --effort 0.1"
            yield Case(f"{name} bound {kind}", (GRAPH, cut), words)
    for name, method in LATENCY_BOUNDS.items():
        for kind in method.kinds or ("blocks", "operators"):
            cut = f"{LATE} --execution {kind} --method greedy"
            yield Case(f"{name} bound {kind}", (GRAPH, cut), f"bound --method {name} --effort 0.1")
    for name in SCHEDULES:
        yield Case(
            f"{name} schedule", (GRAPH, f"{CUT} --method slice"), f"schedule --method {name}"
        )


def answers(case: Case) -> tuple[dict[str, tuple[int, bytes]], int]:
    """Status and bytes by state of the cache and number of threads; files of the empty cache."""
    stream = b""
    for command in case.before:
        name, *words = command.split()
        made = dnnp(name, *words, stdin=stream)
        if made.status:
            raise SystemExit(f"{case.name}: {command}: {made.err}")
        stream = made.out
    name, *words = case.words.split()
    program = [executable(name), *words, "-q"]
    found, files = {}, 0
    for threads in ("1", "2"):
        with tempfile.TemporaryDirectory() as empty:
            for state, runner, more in (
                ("empty", [], {"NUMBA_CACHE_DIR": empty}),
                ("full", [], {}),
                ("compiled", ["-c", COMPILED], {}),
            ):
                done = subprocess.run(
                    [sys.executable, *runner, *program],
                    input=stream,
                    capture_output=True,
                    timeout=PATIENCE_S,
                    env={**os.environ, "NUMBA_NUM_THREADS": threads, **more},
                )
                found[f"{state}, {threads}"] = done.returncode, done.stdout
            files = max(files, len([*Path(empty).rglob("*.nbc")]))
    return found, files


def main(wanted: Sequence[str]) -> int:
    """Compare all; return how many differ."""
    if subprocess.run([sys.executable, "-m", "dnnp.warm", "-q"]).returncode:
        return 1
    wrong, done = list[str](), 0
    for case in cases():
        named = any(word in case.name for word in wanted)
        if not named and (wanted or any(word in case.name for word in TIMED)):
            continue
        found, files = answers(case)
        done += 1
        same = len(set(found.values())) == 1
        status = found["empty, 1"][0]
        said = "same" if same else f"DIFFER: { ({k: (s, len(b)) for k, (s, b) in found.items()}) }"
        print(f"{case.name:30} status {status}, {files} compiled: {said}", flush=True)
        wrong += [] if same else [case.name]
    print(f"{done} cases, {len(wrong)} differ: {', '.join(wrong) or 'none'}")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
