"""Whole commands of this version beside those of an older one: time, memory, value and bound.

    make bench BENCH=regress BASE=REV        REPEATS=3: pairs of runs of each command
    PYTHONPATH=tests BASE=REV ONLY=WORD python tests/bench/bench_regress.py

Both versions are installed apart, below build/regress, with caches of their own, and are warm from
use alone: each command runs until it compiles nothing. ONLY takes the commands whose name holds the
word. Numbers go to tests/bench/results/regress.json; those of a part of the commands to
build/regress/only.json. This process stays small: what the system reports as peak memory of a child
is at least that of its parent.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from support.bench import table
from support.project import ROOT
from support.versions import BUILD, Version, revision_of

MODELS = BUILD / "models"
BESIDE = ROOT.parent / "shared" / "workloads"
RESULTS = ROOT / "tests" / "bench" / "results" / "regress.json"

LACKS = (2, 3)
"""Statuses of a command that does not know an option, or the kind of its input."""

WORTH = {"value": 1, "bound": -1, "makespan_s": 1, "rate_s": 1}
"""Fields that say how good a result is -> 1 where less is better."""

BOUNDS = {"erdos-renyi": "same-block", "barabasi-albert": "cover", "watts-strogatz": "ideal"}


class Case(NamedTuple):
    """A command, and those that make its input, which are not timed."""

    name: str
    made: tuple[str, ...]
    command: str


class Run(NamedTuple):
    """Time, memory and results of a command."""

    status: int
    cpu_s: float
    memory_mb: float
    worth: dict[str, float]


def sample(model: str, *more: str, device: str = "cpu-core") -> tuple[str, ...]:
    """Steps from a sample to a priced stream of groups."""
    return (f"import {model}.onnx", "coarsen", f"profile --device {device}", *more)


def random(family: str, seed: int) -> str:
    """The command that makes a random graph."""
    return f"import --synthetic {family} --nodes 60 --seed {seed}"


def cases() -> Iterator[Case]:
    """All of them."""
    if not BESIDE.is_dir():
        print(f"No {BESIDE}: published workloads are left out.\n")
    for path in sorted(BESIDE.glob("throughput/*.json")):
        yield Case(f"workload {path.stem}", (f"import {path}",), "partition")
    for name in ("layer_bert24_inference", "layer_gnmt_inference"):
        made = (f"import {BESIDE / 'latency' / name}.json",)
        if BESIDE.is_dir():
            yield Case(f"latency {name}", made, "partition --objective latency")
    if BESIDE.is_dir():
        late = "partition --objective latency --execution operators --effort 0.2"
        yield Case(f"latency operators {name}", made, late)
    for name in ("bert", "gpt", "resnet50", "inception-v3", "two-tower", "moe"):
        yield Case(f"sample {name}", sample(f"{name}-small"), "partition -k 4")
    for way in ("", " --training"):  # 36,000 ideals: the exact search at length
        made = (f"import{way} inception-v3-small.onnx", "profile --device v100")
        yield Case(f"ideals inception-v3{way}", made, "partition -k 6 --bandwidth 6G")
    bert = sample("bert-small")
    for option in ("--max-replicas 2", "--memory 8M --memory-model peak", "--method heuristic"):
        yield Case(f"sample bert {option}", bert, f"partition -k 4 {option}")
    late = "partition -k 3 --objective latency --execution operators --effort 0.3"
    yield Case("latency operators resnet50", sample("resnet50-small"), late)
    trained = ("import --training bert-small.onnx", "coarsen", "profile --device t4")
    parallel = "partition -k 4 --data-parallel 4 --micro-batches 8 --recompute auto"
    yield Case("parallel bert", trained, parallel)
    for name in ("gpt3-330m", "evoformer-87m"):
        yield Case(f"giant {name}", sample(name, device="v100"), "partition -k 16")
    for shape, devices in (("M", 4), ("NN", 4), ("K", 4), ("V", 16), ("X", 16), ("NN", 16)):
        yield Case(f"shape {shape} {devices}", (), f"schedule --shape {shape} --devices {devices}")
    gpt = sample("gpt-small", "partition -k 4")
    yield Case("schedule gpt", gpt, "schedule -n 16")
    cut = "partition -k 4 --method slice"
    # Not `auto`, whose integer programs have a limit of time.
    for i, (family, method) in enumerate(BOUNDS.items()):
        yield Case(f"bound {method}", (random(family, i), cut), f"bound --method {method}")
    yield Case("import inception-v3", (), "import inception-v3-small.onnx")
    yield Case("import gpt3-330m", (), "import gpt3-330m.onnx")
    yield Case("coarsen gpt3-330m", ("import gpt3-330m.onnx",), "coarsen")
    yield Case("profile gpt3-330m", ("import gpt3-330m.onnx", "coarsen"), "profile")
    yield Case("check gpt", gpt, "check")
    proven = (random("barabasi-albert", 1), cut, "bound --method cover")
    yield Case("check certificate", proven, "check --certificate")
    yield Case("view gpt", gpt, "view")
    yield Case("start-up help", (), "partition --help")
    yield Case("start-up version", (), "partition --version")


def run(version: Version, case: Case, stream: Path | None, out: Path, warm: bool = False) -> Run:
    """Run the command of a case, as often as it compiles kernels if `warm`."""
    step = version.warmed if warm else version.run
    spent = step(case.command.split(), MODELS, stream, out)
    return Run(*spent, {} if spent.status else worth_of(out))


def worth_of(out: Path) -> dict[str, float]:
    """Quality of a result: fields of its plan, bound and schedule, the last one of each."""
    found: dict[str, float] = {}
    with open(out, "rb") as lines:
        for line in lines:
            kind = line[9:20].split(b'"')[0]
            if kind in (b"plan", b"schedule"):
                record = json.loads(line)
                found |= {name: record[name] for name in WORTH if record.get(name) is not None}
            elif kind == b"bound":
                found["bound"] = json.loads(line)["value"]
    return found


def compared(base: Version, tree: Version, case: Case, stream: Path | None, pairs: int) -> Any:
    """The record of a case; where it looks slower, it is run as often again."""
    out = BUILD / "out"
    runs: list[tuple[Run, Run]] = []
    for rounds in range(2):
        for i in range(pairs):
            order = (base, tree) if i % 2 == 0 else (tree, base)
            both = {version: run(version, case, stream, out) for version in order}
            runs.append((both[base], both[tree]))
        ratios = [new.cpu_s / old.cpu_s for old, new in runs]
        if rounds or min(ratios) <= 1:
            break
    old, new = runs[0]
    flags = ["slower"] if min(ratios) > 1 else []
    for name, sign in WORTH.items():
        if name in old.worth:
            change = sign * (new.worth.get(name, sign * float("inf")) - old.worth[name])
            flags += [f"worse {name}"] if change > 1e-9 * abs(old.worth[name]) else []
    return {
        "name": case.name,
        "command": case.command,
        "cpu_s": [[run.cpu_s for run in pair] for pair in runs],
        "memory_mb": [[run.memory_mb for run in pair] for pair in runs],
        "worth": [old.worth, new.worth],
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "largest": max(ratios),
        "flags": flags,
    }


def row(record: Any) -> tuple[str, ...]:
    """A case in the table."""
    times, memory = (
        [statistics.median(column) for column in zip(*record[key], strict=True)]
        for key in ("cpu_s", "memory_mb")
    )
    old, new = record["worth"]
    worth = []
    for names in (("value", "makespan_s"), ("bound", "rate_s")):
        name = next((name for name in names if name in old), "")
        texts = [f"{found[name]:.6g}" if name in found else "-" for found in (old, new)]
        worth.append(texts[0] if old.get(name) == new.get(name) else " → ".join(texts))
    spread = f"{record['least']:.2f} to {record['largest']:.2f}"
    seconds = " → ".join(f"{t:.2f}" for t in times)
    megabytes = " → ".join(f"{m:.0f}" for m in memory)
    flags = ", ".join(record["flags"])
    return record["name"], seconds, f"{record['ratio']:.2f}", spread, megabytes, *worth, flags


def main() -> None:
    """Measure, and print what is slower or other; all rows are in the results."""
    only, pairs = os.environ.get("ONLY", ""), int(os.environ.get("REPEATS", "3"))
    revision = revision_of(os.environ.get("BASE", "HEAD"))
    chosen = [case for case in cases() if only in case.name]
    words = {
        word for case in chosen for step in (*case.made, case.command) for word in step.split()
    }
    models = sorted(w.removesuffix(".onnx") for w in words if w.endswith(".onnx"))
    base, tree = Version(revision), Version(None)
    MODELS.mkdir(exist_ok=True)
    if missing := [name for name in models if not (MODELS / f"{name}.onnx").exists()]:
        build = [sys.executable, "-m", "dnnp.samples.build", "-o", str(MODELS), *missing]
        subprocess.run(build, env=tree.env, check=True, stdout=subprocess.DEVNULL)

    numbers = count()

    @cache
    def stream(steps: tuple[str, ...]) -> Path | None:
        """The output of some commands: by the older version, if it knows them."""
        if not steps:
            return None
        before = stream(steps[:-1])
        path = BUILD / f"input-{next(numbers)}"
        for version in (base, tree):
            if version.run(steps[-1].split(), MODELS, before, path).status == 0:
                return path
        raise SystemExit(f"{steps[-1]}: {path.with_suffix('.err').read_text()}")

    records, apart = [], []
    for case in chosen:
        read = stream(case.made)
        warm = [run(version, case, read, BUILD / "out", warm=True) for version in (base, tree)]
        old, new = (run.status for run in warm)
        if old or new:
            lacks = old in LACKS and not new
            why = f"not known to {revision}" if lacks else f"ends with status {old} → {new}"
            apart.append(f"{case.name}: `dnnp-{case.command}` {why}.")
            continue
        records.append(compared(base, tree, case, read, pairs))
        print(*row(records[-1]), sep="  ", file=sys.stderr, flush=True)
    names = ("command", "CPU s", "ratio", "of pairs", "MB", "value", "bound", "")
    print(
        f"{revision} → working tree, kernels compiled, in turn: processor time with workers, "
        f"median of {pairs} pairs, of twice as many where all were above 1 (slower: all still "
        "are); one value and bound (of schedules: span and time a micro-batch) where both have "
        "the same.\n"
    )
    ratios = [record["ratio"] for record in records]
    shown = [r for r in records if only or r["ratio"] > 1 or r["flags"]]
    print(
        f"{len(records)} commands: {min(ratios):.2f} to {max(ratios):.2f}, median "
        f"{statistics.median(ratios):.2f} (`regress.json`). Those above 1, or "
        "worse:\n"
    )
    print(table(names, [row(record) for record in shown]))
    print(*("\n" + text for text in apart), sep="\n")
    target = BUILD / "only.json" if only else RESULTS
    target.parent.mkdir(exist_ok=True)
    known = {"base": revision, "cases": records, "apart": apart}
    target.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
