"""Every command on graphs of up to a million nodes: processor time, memory, and how they grow.

    make bench BENCH=growth BASE=REV         NODES=30000,100000: sizes
    PYTHONPATH=tests BASE=REV ONLY=import,coarsen python tests/bench/bench_growth.py

NODES lists the sizes (10,000 to 100,000 unless told), ONLY the rows to measure (files that they
read come from rows before). BASE is a revision that is measured beside this version, command by
command, in turn, with REPEATS runs of each (3; medians are shown): both are installed as by
`bench_regress.py`, and the files of this version are read. LIMIT_S are the processor seconds after
which a command is given up, KEEP is a folder where files stay.
The graphs are layered (`dnnp.core.synthetic`); costs of its first device, or an ONNX model
of additions of the same shape.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from dnnp.core.synthetic import layered_graph
from support.bench import table
from support.graphs import header, node, tensor
from support.seeds import encode
from support.versions import Spent, Version, revision_of

SIZES = [int(n) for n in os.environ.get("NODES", "10_000,30_000,100_000").split(",")]
LIMIT_S = int(os.environ.get("LIMIT_S", "100"))
BASE, KEEP = os.environ.get("BASE"), os.environ.get("KEEP")
ONLY = [row for row in os.environ.get("ONLY", "").split(",") if row]
EXPONENT, BYTES = 1.1, 2_000
"""The targets: of processor time, and of memory for each node."""

STAGES = 8


def priced(n: int, path: Path) -> None:
    """Write a layered graph with its times on one device, as a stream."""
    graph = layered_graph(n)
    times = next(iter(graph.times.values())).tolist()
    reads: list[list[int]] = [[] for _ in range(n)]
    for tail, head in zip(graph.tail.tolist(), graph.head.tolist(), strict=True):
        reads[head].append(tail)
    records: list[dict[str, object]] = [
        header(model="layered", units={"time": "unknown"}),
        {"type": "device", "class": "dev", "kind": "accelerator", "bandwidth_bytes_per_s": 1.0},
    ]
    for i, size in enumerate(graph.size.tolist()):
        records.append(tensor(i, "activation", size))
    for i, read in enumerate(reads):
        records.append(node(i, "", read, [i], name=f"node{i}", time_s={"dev": times[i]}))
    path.write_bytes(encode(records))


def model(n: int, path: Path) -> None:
    """Write a layered graph as an ONNX model: a node adds up what it reads."""
    graph = layered_graph(n)
    reads: list[list[str]] = [[] for _ in range(n)]
    read = set(graph.tail.tolist())
    for tail, head in zip(graph.tail.tolist(), graph.head.tolist(), strict=True):
        reads[head].append(f"t{tail}")
    nodes = [
        helper.make_node("Sum" if ins else "Relu", ins or ["x"], [f"t{i}"], name=f"node{i}")
        for i, ins in enumerate(reads)
    ]
    x, *ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [64])
        for name in ("x", *(f"t{i}" for i in range(n) if i not in read))
    )
    opset = [helper.make_opsetid("", 17)]
    made: ModelProto = helper.make_model(
        helper.make_graph(nodes, "g", [x], ends), opset_imports=opset
    )
    path.write_bytes(made.SerializeToString())


def listed(n: int, path: Path) -> None:
    """Write a layered graph as a table of nodes, and one of edges beside it."""
    graph = layered_graph(n)
    times, sizes = next(iter(graph.times.values())).tolist(), graph.size.tolist()
    nodes = [f"n{i},{time}\n" for i, time in enumerate(times)]
    pairs = zip(graph.tail.tolist(), graph.head.tolist(), strict=True)
    path.write_text("id,time\n" + "".join(nodes))
    edges = [f"n{tail},n{head},{sizes[tail]}\n" for tail, head in pairs]
    path.with_name("edges.csv").write_text("from,to,size\n" + "".join(edges))


def steps(n: int) -> Iterator[tuple[str, str]]:
    """Rows of the table, and their commands; each reads files that earlier ones wrote."""
    yield "import", "import -o imported m.onnx"
    yield "import of tables", "import --edges edges.csv -o tables nodes.csv"
    yield "import --synthetic", f"import --synthetic layered --nodes {n} -o drawn"
    yield "coarsen", "coarsen -o coarse imported"
    yield "profile", "profile --device v100 -o profiled imported"
    yield f"partition -k {STAGES}", f"partition -k {STAGES} -o plan g"
    yield "bound", "bound -o bounded plan"
    yield "check", "check -o checked plan"
    yield "schedule", "schedule -n 16 -o scheduled plan"
    yield "view", "view -o viewed plan"
    yield "(slice the model)", f"partition -k {STAGES} --method slice -o cut profiled"
    yield "export", "export --model m.onnx -o stages cut"
    yield "run", "run --model m.onnx -n 1 -o ran cut"
    yield "partition -k n/5", f"partition -k {n // 5} -o many g"
    yield "check -k n/5", "check -o checked many"
    yield "view -k n/5", "view -o viewed many"
    yield "partition -k 1000", "partition -k 1000 -o thousand g"
    yield "schedule of 1000", "schedule -n 16 -o scheduled thousand"


def measured(
    versions: Sequence[Version], words: list[str], folder: Path, repeats: int
) -> list[Spent]:
    """Medians of each version's runs of a command, in turn; the last version's files stay."""
    out = folder / "out"
    found: list[list[Spent]] = [[] for _ in versions]
    for version in versions:
        version.warmed(words, folder, None, out, LIMIT_S)
    for i in range(repeats):
        order = range(len(versions))
        for j in order if (repeats - i) % 2 else reversed(order):  # the last one's files stay
            found[j].append(versions[j].run(words, folder, None, out, LIMIT_S))
    return [
        Spent(*(type(each[0])(statistics.median(each)) for each in zip(*runs, strict=True)))
        for runs in found
    ]


def main() -> None:
    """Measure, and print the table."""
    repeats = int(os.environ.get("REPEATS", "3" if BASE else "1"))
    versions = [*([Version(revision_of(BASE))] if BASE else []), Version(None)]
    labels = [*([", before"] if BASE else []), ""]
    found: dict[str, list[Spent]] = {}
    for n in SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(KEEP, str(n)) if KEEP else Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            for make, file in ((priced, "g"), (model, "m.onnx"), (listed, "nodes.csv")):
                if (folder / file).exists():
                    continue
                if (pid := os.fork()) == 0:  # in a child: its memory counts for ours otherwise
                    make(n, folder / file)
                    os._exit(0)
                os.waitpid(pid, 0)
            for row, command in steps(n):
                columns = [found.setdefault(row + label, []) for label in labels]
                if (ONLY and row not in ONLY) or any(c and c[-1].status for c in columns):
                    continue
                for column, spent in zip(
                    columns, measured(versions, command.split(), folder, repeats), strict=True
                ):
                    column.append(spent)
                print(n, row, *(column[-1] for column in columns), file=sys.stderr, flush=True)
    rows = []
    for row, runs in found.items():
        good = [(n, *run[1:]) for n, run in zip(SIZES, runs, strict=False) if not run.status]
        cells = [f"{cpu:.2f}, {mb:,.0f}" for _, cpu, mb in good]
        for run in runs[len(good) :]:
            cells.append(f"over {LIMIT_S}" if run.status < 0 else f"status {run.status}")
        cells += ["-"] * (len(SIZES) - len(cells))
        exponent = each = "-"
        if len(good) > 1:
            (a, s, low), (b, t, high) = good[-2:]
            power, size = log(t / s) / log(b / a), 1e6 * (high - low) / (b - a)
            exponent = f"{power:.2f}" + ("" if power <= EXPONENT else "*")
            each = f"{size:,.0f}" + ("" if size <= BYTES else "*")
        rows.append([row, *cells, exponent, each])
    head = ("command", *(f"{n:,}" for n in SIZES), "exponent", "bytes a node")
    print(
        "Layered graphs of so many nodes, warm: processor seconds and peak memory in MB of whole "
        "commands, -q; exponent of time, and bytes for each node more, between the two largest "
        f"sizes that end (* above {EXPONENT} or {BYTES:,}).\n"
    )
    print(table(head, rows))


if __name__ == "__main__":
    main()
