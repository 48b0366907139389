"""Time that `auto` saves by a gap that is small enough: `--max-gap 0` against the default.

    PYTHONPATH=tests python tests/bench/bench_gap.py

A shape of Llama 2 70B (80 layers of 8192, 64 heads, 8 of keys and values, 2048 tokens, float16)
and other large ones: processor seconds of whole commands, warm, in turns, medians of REPEATS (3),
then value, gap and status. ONLY is a word that rows must hold; TREE (another checkout) adds what
its commands do by default. Every file is checked.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from math import sqrt
from pathlib import Path

import dnnp
from dnnp.samples import build
from dnnp.samples.builder import Builder
from dnnp.samples.layers import linear, merge_heads, split_heads
from dnnp.samples.shapes import FLOAT16, INT64, Value
from dnnp.samples.weights import save
from support.bench import table

ONLY, TREE = os.environ.get("ONLY", ""), os.environ.get("TREE", "")
REPEATS = int(os.environ.get("REPEATS", "3"))
LAYERS, WIDTH, HEADS, KEYS, INNER, WORDS, LENGTH = 80, 8192, 64, 8, 28672, 32000, 2048

ROWS = {
    "llama-70b, k = 16": ("llama-70b", "partition -k 16"),
    "llama-70b, k = 16, clusters of 8": (
        "llama-70b",
        "partition -k 16 --cluster-size 8 --inner-bandwidth 300G",
    ),
    "llama-70b, 16 devices, replicas": (
        "llama-70b",
        "partition -k 16 --data-parallel 4 --micro-batches 64",
    ),
    "gpt3-330m, latency, k = 4": ("gpt3-330m", "partition -k 4 --objective latency"),
    "llama-70b, bound": ("llama-70b plan", "bound"),
    "gpt3-330m, bound": ("gpt3-330m plan", "bound"),
    "schedule of V, 4 devices, n = 3000": ("", "schedule --shape V --devices 4 -n 3000"),
}


def _norm(b: Builder, x: Value, name: str) -> Value:
    with b.scope(name):
        power = b.reduce("ReduceMean", b.mul(x, x), [-1])
        return b.mul(b.div(x, b.op("Sqrt", b.add(power, 1e-5))), b.weight("weight", (WIDTH,)))


def _turned(b: Builder, x: Value) -> Value:
    half = x.shape[-1] // 2
    cos, sin = (b.weight(name, (LENGTH, 2 * half), trained=False) for name in ("cos", "sin"))
    other = b.concat([b.mul(b.slice(x, 3, half, 2 * half), -1.0), b.slice(x, 3, 0, half)], axis=3)
    return b.add(b.mul(x, cos), b.mul(other, sin))


def _layer(b: Builder, x: Value, mask: Value) -> Value:
    y, each = _norm(b, x, "input_norm"), WIDTH // HEADS
    with b.scope("attention"):
        sizes = {"q": HEADS, "k": KEYS, "v": KEYS}
        parts = [linear(b, y, n * each, name, bias=False) for name, n in sizes.items()]
        query, key, value = map(lambda p, n: split_heads(b, p, n), parts, sizes.values())
        query, key = _turned(b, query), _turned(b, key)
        places = b.ints([i // (HEADS // KEYS) for i in range(HEADS)])
        key, value = b.gather(key, places, axis=1), b.gather(value, places, axis=1)
        scores = b.add(b.mul(b.matmul(query, b.transpose(key, 0, 1, 3, 2)), 1 / sqrt(each)), mask)
        y = merge_heads(b, b.matmul(b.softmax(scores), value))
        x = b.add(x, linear(b, y, WIDTH, "o", bias=False))
    y = _norm(b, x, "post_norm")
    with b.scope("mlp"):
        gate, up = (linear(b, y, INNER, name, bias=False) for name in ("gate", "up"))
        y = b.mul(b.mul(gate, b.op("Sigmoid", gate)), up)
        return b.add(x, linear(b, y, WIDTH, "down", bias=False))


def llama(path: Path) -> None:
    """Write the model, without weights."""
    b = Builder("llama-70b", opset=13, dtype=FLOAT16, planning=True)
    words = b.input("input_ids", (1, LENGTH), INT64, (0, WORDS - 1))
    x = b.gather(b.weight("embedding", (WORDS, WIDTH)), words)
    mask = b.weight("mask", (1, 1, LENGTH, LENGTH), trained=False)
    for index in range(LAYERS):
        with b.scope(f"layers.{index}"):
            x = _layer(b, x, mask)
    b.output("logits", linear(b, _norm(b, x, "norm"), WORDS, "head", bias=False))
    save(b.build(), path)


def cpu(tree: str, words: list[str]) -> float:
    """Processor seconds of a command of a checkout, and of all its workers."""
    process = subprocess.Popen([f"{tree}/.venv/bin/dnnp-{words[0]}", "-q", *words[1:]])
    _, ended, used = os.wait4(process.pid, 0)
    assert ended == 0, words
    return used.ru_utime + used.ru_stime


def found(path: Path) -> str:
    """Value, gap and status in a file, which is checked."""
    graph = dnnp.load(path)
    if graph.stream().get("schedule"):
        record = graph.stream().get("schedule")[0]
        value, bound = record["makespan_s"], record["bound_s"]
    else:
        record = graph.stream().get("plan")[0]
        value, bound = record["value"], record["bound"]
    return f"{value:.6g}, {100 * (1 - bound / value):.2g} %, {record['status']}"


def main() -> None:
    """Measure, and print the table."""
    here = str(Path(__file__).resolve().parents[2])
    runs = {"--max-gap 0": (here, ["--max-gap", "0"]), "default": (here, [])}
    runs |= {"default of TREE": (TREE, [])} if TREE else {}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = {row: what for row, what in ROWS.items() if ONLY in row}
        for model in sorted({source.split()[0] for source, _ in wanted.values() if source}):
            file = folder / f"{model}.onnx"
            if model == "llama-70b":
                llama(file)
            else:
                build.write(model, folder)
            cpu(here, ["import", str(file), "-o", str(folder / "raw")])
            cpu(here, ["coarsen", str(folder / "raw"), "-o", str(folder / "groups")])
            cpu(here, ["profile", "--device", "a100", str(folder / "groups"), "-o", f"{file}.st"])
            cpu(
                here,
                [
                    "partition",
                    "-k",
                    "16",
                    "--method",
                    "slice",
                    f"{file}.st",
                    "-o",
                    f"{file} plan.st",
                ],
            )
        for row, (source, command) in wanted.items():
            model, _, plan = source.partition(" ")
            given = [f"{folder}/{model}.onnx{' plan' if plan else ''}.st"] if source else []
            times: dict[str, list[float]] = {label: [] for label in runs}
            answers = {}
            for number in range(REPEATS + 1):  # the first may compile
                for label, (tree, words) in runs.items():
                    out = folder / "out.st"
                    spent = cpu(tree, [*command.split(), *words, *given, "-o", str(out)])
                    times[label] += [spent] if number else []
                    if number == REPEATS:
                        cpu(here, ["check", str(out)])
                        answers[label] = found(out)
            for label in runs:
                rows.append([row, label, f"{statistics.median(times[label]):.2f}", answers[label]])
                print(*rows[-1], sep=" | ", file=sys.stderr)
    print(table(["problem", "gap", "seconds", "value, gap, status"], rows))


if __name__ == "__main__":
    main()
