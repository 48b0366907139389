"""Plans for several numbers of devices in one call against a call for each: processor time, plans.

    PYTHONPATH=tests python tests/bench/bench_sweep.py

ONLY is a word that rows must hold, KS the numbers (2..16). Every file is checked.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dnnp
from dnnp.cmds.shell.arguments import _counts
from dnnp.options.table import Option
from dnnp.samples import build
from support.bench import table
from support.run import executable

KS, ONLY = os.environ.get("KS", "2..16"), os.environ.get("ONLY", "")
WORKLOADS = Path(__file__).resolve().parents[3] / "shared" / "workloads" / "throughput"
TARGET = 2.0
"""Time of all in one call, over that of the dearest by itself."""


def streams(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Rows: a name, the commands that make the stream, and options of its plans."""
    for name in ("op_bert_l-3_inference", "layer_gnmt_inference"):
        if WORKLOADS.is_dir():
            yield name, f"import {WORKLOADS / name}.json", []
    for name, flags in (("resnet50-small", []), ("inception-v3-small", ["--bandwidth", "6G"])):
        groups = [] if flags else ["coarsen"]
        made = [f"import {folder / name}.onnx", *groups, "profile --device v100"]
        yield name, " | ".join(made), flags
    yield "random graph of 64", "import --synthetic erdos-renyi --nodes 64 --seed 1", []
    yield "gpt3-330m", f"import {folder}/gpt3-330m.onnx | coarsen | profile --device v100", []


def cpu(words: list[str]) -> float:
    """Processor seconds of a command and all its workers."""
    process = subprocess.Popen([executable(words[0]), "-q", *words[1:]])
    _, ended, used = os.wait4(process.pid, 0)
    assert ended == 0, words
    return used.ru_utime + used.ru_stime


def plan_of(path: Path) -> dnnp.graph.Plan:
    """The plan of a file, which is checked."""
    cpu(["check", str(path)])
    plan = dnnp.load(path).plan
    assert plan is not None
    return plan


def row(name: str, made: str, flags: list[str], folder: Path) -> list[str]:
    """Measure one stream."""
    data = b""
    for step in made.split(" | "):
        tool, *words = step.split()
        run = [executable(tool), "-q", *words]
        data = subprocess.run(run, input=data, stdout=subprocess.PIPE, check=True).stdout
    stream = folder / "in.st"
    stream.write_bytes(data)
    counts = _counts(KS, Option())
    assert isinstance(counts, tuple)
    words = ["partition", *flags, str(stream), "-o"]
    cpu([*words, str(folder / "warm"), "-k", str(counts[0])])
    together = cpu([*words, str(folder / "all-{k}.st"), "-k", KS])
    alone, better, worse, open_ = [], 0, 0, 0
    for k in counts:
        path = folder / "one.st"
        alone.append(cpu([*words, str(path), "-k", str(k)]))
        one, mine = plan_of(path), plan_of(folder / f"all-{k}.st")
        better += mine.value < one.value * (1 - 1e-9) or mine.bound > one.bound * (1 + 1e-9)
        worse += mine.value > one.value * (1 + 1e-9) or mine.bound < one.bound * (1 - 1e-9)
        open_ += mine.status == "feasible"
    ratio = together / max(alone)
    mark = "" if ratio <= TARGET else "*"
    seconds = [f"{t:.2f}" for t in (together, max(alone), sum(alone))]
    shares = [f"{ratio:.2f}{mark}", f"{together / sum(alone):.2f}"]
    return [name, *seconds, *shares, f"{open_} of {len(counts)}", str(better), str(worse)]


def main() -> None:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in ("resnet50-small", "inception-v3-small", "gpt3-330m"):
            build.write(model, folder)
        rows = [row(*one, folder) for one in streams(folder) if ONLY in one[0]]
    head = ("stream", "all", "dearest", "sum", "all / dearest", "all / sum")
    print(f"-k {KS}: processor seconds of whole commands, warm; * above {TARGET:g}.\n")
    print(table([*head, "open", "better", "worse"], rows))


if __name__ == "__main__":
    main()
