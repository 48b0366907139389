"""The front end: ResNet-50 up to a plan, warm and cold; stream and import throughput."""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import onnx

from dnnp.formats.stream import read_bytes, write
from dnnp.loading import load_onnx
from dnnp.options.graph import ImportOptions
from dnnp.samples.build import write as write_sample
from support.bench import medians, table

REPEATS = 5
PIPELINE = "dnnp-import {model} | dnnp-profile | dnnp-partition -k 4 > plan.dnnp"
GIANT = "gpt3-13b"
"""A sample of at least 20,000 nodes that states every shape."""
BLOCKS = 500
"""Size of the models that need a later step of the shape chain."""


def run(command: str, folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a shell pipeline with the installed commands; standard error."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        check=True,
        env={**os.environ, "PATH": path, **(env or {})},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return done.stderr


def pipeline_rows(folder: Path) -> list[tuple[str, str, str]]:
    """Import to plan on ResNet-50, as three processes in a pipe."""
    model = write_sample("resnet50-full", folder)
    command = PIPELINE.format(model=model.name)
    run(command, folder)
    (warm,) = medians([lambda: run(command, folder)], REPEATS)
    cold, notices = [], []
    for i in range(2):
        env = {"NUMBA_CACHE_DIR": str(folder / f"cache{i}")}
        started = time.perf_counter()
        notices.append(run(command, folder, env))
        cold.append(time.perf_counter() - started)
    said = {text.count("compiling") for text in notices}
    shown = " or ".join(map(str, sorted(said)))
    return [
        ("ResNet-50, import to plan, warm", f"{warm:.2f} s", "3 s"),
        (
            f"ResNet-50, import to plan, cold kernels ({shown} notice)",
            f"{statistics.median(cold):.1f} s",
            "20 s",
        ),
    ]


def stream_rows(model: Path) -> list[tuple[str, str, str]]:
    """Records per second of reader and writer, in this process."""
    stream, buffer = load_onnx(str(model)), io.BytesIO()
    write(stream, buffer)
    data = buffer.getvalue()
    records = data.count(b"\n")
    reading, writing = medians(
        [lambda: read_bytes(data, "bench"), lambda: write(stream, io.BytesIO())],
        REPEATS,
        time.process_time,
    )
    return [
        (f"stream of {records:,} records, read and validate", rate(records, reading), "200,000/s"),
        (f"stream of {records:,} records, write", rate(records, writing), "200,000/s"),
    ]


def rate(count: int, seconds: float) -> str:
    """Things per second."""
    return f"{count / seconds:,.0f}/s"


def chain(block: Callable[[str, int], list[onnx.NodeProto]]) -> onnx.ModelProto:
    """A model of `BLOCKS` blocks; block i reads a name and writes `y{i}`."""
    nodes, last = [], "x"
    for i in range(BLOCKS):
        nodes += block(last, i)
        last = f"y{i}"
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [value("x", onnx.TensorProto.FLOAT, [8, 16])],
        [value(last, onnx.TensorProto.FLOAT, [8, 16])],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def fused(x: str, i: int) -> list[onnx.NodeProto]:
    """Operators of ONNX Runtime, which ONNX inference does not know."""
    node = onnx.helper.make_node
    return [
        node("FastGelu", [x], [f"g{i}"], domain="com.microsoft"),
        node("Relu", [f"g{i}"], [f"r{i}"]),
        node("Add", [f"r{i}", x], [f"a{i}"]),
        node("Relu", [f"a{i}"], [f"y{i}"]),
    ]


def counting(x: str, i: int) -> list[onnx.NodeProto]:
    """Sizes that depend on values; only a run tells them."""
    node = onnx.helper.make_node
    return [
        node("NonZero", [x], [f"n{i}"]),
        node("Cast", [f"n{i}"], [f"c{i}"], to=onnx.TensorProto.FLOAT),
        node("ReduceMax", [f"c{i}"], [f"m{i}"], keepdims=0),
        node("Add", [x, f"m{i}"], [f"y{i}"]),
    ]


def import_rows(model: Path) -> list[tuple[str, str, str]]:
    """Nodes per second by the step of the shape chain that is needed."""
    folder = model.parent
    stripped = onnx.load(model, load_external_data=False)
    nodes = len(stripped.graph.node)
    del stripped.graph.value_info[:]
    cases = [
        ("complete value_info", model, "symbolic", nodes, "20,000/s"),
        ("ONNX inference", folder / "stripped.onnx", "infer", nodes, ""),
        ("symbolic inference", folder / "fused.onnx", "symbolic", 4 * BLOCKS, ""),
        ("one run", folder / "counting.onnx", "run", 4 * BLOCKS, ""),
    ]
    onnx.save(stripped, cases[1][1])
    onnx.save(chain(fused), cases[2][1])
    onnx.save(chain(counting), cases[3][1])
    rows = []
    for what, path, shapes, count, target in cases:
        stream = load_onnx(str(path), ImportOptions(shapes=shapes))
        unknown = sum("shape" not in t for t in stream.get("tensor"))
        if unknown:
            raise SystemExit(f"{what}: {unknown} tensors without a shape")
        action = partial(load_onnx, str(path), ImportOptions(shapes=shapes))
        (seconds,) = medians([action], REPEATS, time.process_time)
        rows.append((f"import of {count:,} nodes, {what}", rate(count, seconds), target))
    return rows


def main() -> None:
    """Measure and print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = pipeline_rows(folder)
        giant = write_sample(GIANT, folder)
        rows += import_rows(giant)
        rows += stream_rows(giant)
    print(
        f"ResNet-50 is the sample `resnet50-full`: wall time of `{PIPELINE.format(model='M')}`, "
        f"three processes, median of {REPEATS} runs warm and of 2 with an empty "
        f"`NUMBA_CACHE_DIR`. Rates are per second of processor time in one process, start-up "
        f"excluded, median of {REPEATS}. The large model is the sample `{GIANT}`; the small ones "
        "are chains of operators that need the step of the shape chain in question.\n"
    )
    print(table(("what", "measured", "target"), rows))


if __name__ == "__main__":
    main()
