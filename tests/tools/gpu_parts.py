"""Commands, models and clocks for `tests/tools/gpu_steps.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Record = dict[str, Any]

LAYERS = 16
SAID = {"import": "import_"}
"""Command -> its module, where they differ."""


class FailedError(Exception):
    """Something ended with another status than expected."""


def row(what: str, found: str, ok: bool = True) -> None:
    print("ROW " + json.dumps([what, found, bool(ok)]), flush=True)


def dnnp(command: str, *words: str | Path, status: int = 0) -> str:
    """Run a command, which must end with this status; what it said."""
    module = SAID.get(command, command)
    code = f"import sys; from dnnp.cmds.{module} import main; sys.exit(main())"
    arguments = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(arguments, capture_output=True, text=True, errors="replace")
    print(done.stderr, file=sys.stderr)
    if done.returncode != status:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise FailedError(f"dnnp-{command} ends with {done.returncode}, not {status}: {last}")
    return done.stderr


@contextmanager
def tried(what: str) -> Iterator[None]:
    """Inside, a command that ends otherwise than expected is a row, and the step goes on."""
    try:
        yield
    except FailedError as error:
        row(what, str(error), ok=False)


def records(path: Path, kind: str) -> list[Record]:
    found = map(json.loads, path.read_text().splitlines())
    return [record for record in found if record["type"] == kind]


def mlp(width: int, batch: int, kind: type) -> onnx.ModelProto:
    """Products and rectifiers in a row."""
    rng, element = np.random.default_rng(0), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes, stored, last = [], [], "x"
    for i in range(LAYERS):
        weight = rng.standard_normal((width, width)) * np.sqrt(2 / width)
        stored.append(numpy_helper.from_array(weight.astype(kind), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Relu", [f"p{i}"], [f"r{i}"], name=f"relu{i}"))
        last = f"r{i}"
    ends = [helper.make_tensor_value_info(name, element, [batch, width]) for name in ("x", last)]
    return model_of(nodes, ends[:1], ends[1:], stored)


def reshaped() -> onnx.ModelProto:
    """A computed shape, and `Unique`, which only the CPU has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "one"], ["n"], name="rows"),
        helper.make_node("Concat", ["n", "rest"], ["to"], name="target", axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"], name="reshape"),
        helper.make_node("Unique", ["y"], ["u"], name="unique"),
    ]
    stored = [
        numpy_helper.from_array(np.array([k], np.int64), n) for n, k in (("one", 1), ("rest", -1))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, "n"])
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("u", TensorProto.FLOAT, ["k"]),
    ]
    return model_of(nodes, [x], outputs, stored)


def model_of(nodes: Any, inputs: Any, outputs: Any, stored: Any) -> onnx.ModelProto:
    body = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(body, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def smallest() -> onnx.ModelProto:
    """One product of small matrices."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in ("x", "y")]
    return model_of(
        [helper.make_node("MatMul", ["x", "x"], ["y"], name="n")], ends[:1], ends[1:], []
    )


def timed(call: Callable[[], object], count: int = 40) -> float:
    """Seconds of a call, the median."""
    times = []
    for _ in range(count + 5):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times[5:]))


def at_once(calls: Sequence[Callable[[], object]], count: int = 40) -> float:
    """Seconds that one call of each takes, each in a thread of its own."""

    def work(call: Callable[[], object]) -> None:
        for _ in range(count):
            call()

    threads = [Thread(target=work, args=(call,)) for call in calls]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begin) / count
