"""Measure what sessions of ONNX Runtime on a CPU hold of the weights of each kind of operator.

    python tests/tools/memory_factors.py [--mib 36] [KIND...]

Each kind is a model of a few nodes with so many MiB of weights, loaded from its file in a process
of its own. `held`: what that holds once the session has run twice and `malloc_trim(0)` has given
freed blocks back, less what it held with an empty session, over the bytes of the weights in the
file. `predicted`: the memory of the one stage that dnnp plans, over the same. A kind where they are
more than 10 % apart is marked: `dnnp.core.profile.residence` needs a rule, or says why it has none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.run import dnnp

MIB = 2**20
MARKED = 0.1
HOLDER = """
import ctypes, gc, sys
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto, helper
def held():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
options = ort.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 4
options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
def load(model):
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(int64)": "i8",
             "tensor(uint8)": "u1", "tensor(double)": "f8"}
    feeds = {x.name: np.ones(x.shape, types[x.type]) for x in session.get_inputs()}
    for _ in range(2):
        session.run(None, feeds)
    return session
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
versions = [helper.make_opsetid("", 21)]
empty = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
kept = load(empty)
before = held()
session = load(sys.argv[1])
print(held() - before)
"""

Model = Callable[[int], onnx.ModelProto]
KINDS: dict[str, Model] = {}
FLOAT, HALF, INT64, UINT8 = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.UINT8,
)  # fmt: skip


def kind(name: str) -> Callable[[Model], Model]:
    """Enter a kind by name."""

    def enter(make: Model) -> Model:
        KINDS[name] = make
        return make

    return enter


def weights(name: str, *shape: int, dtype: DTypeLike = np.float32) -> onnx.TensorProto:
    """An initializer of random numbers."""
    rng = np.random.default_rng(ord(name[0]))
    values = rng.standard_normal(shape, dtype=np.float32) * 0.05
    if np.issubdtype(dtype, np.integer):
        values = rng.integers(0, 100, shape)
    return numpy_helper.from_array(values.astype(dtype), name)


def model(
    nodes: list[onnx.NodeProto],
    x: tuple[int, list[int]],
    y: int,
    *given: onnx.TensorProto,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model that makes `y` of `x`, each with its element type."""
    ends = helper.make_tensor_value_info("x", *x), helper.make_tensor_value_info("y", y, None)
    graph = helper.make_graph(nodes, "kind", [ends[0]], [ends[1]], list(given))
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def node(op: str, reads: str, write: str = "y", **attributes: object) -> onnx.NodeProto:
    """A node; names of what it reads by spaces."""
    return helper.make_node(op, reads.split(" "), [write], **attributes)  # type: ignore[arg-type]


def side(mib: int, size: int, parts: int = 1) -> int:
    """Side of a square matrix of so many MiB of elements of `size` bytes, a multiple of 64."""
    return max(64, int((mib * MIB / size / parts) ** 0.5) // 64 * 64)


def _products() -> None:
    for suffix, dtype, element in (("", np.float32, FLOAT), ("-f16", np.float16, HALF)):
        size = np.dtype(dtype).itemsize

        @kind("matmul" + suffix)
        def matmul(mib: int, dtype=dtype, element=element, size=size) -> onnx.ModelProto:
            n = side(mib, size)
            w = weights("w", n, n, dtype=dtype)
            return model([node("MatMul", "x w")], (element, [4, n]), element, w)

        @kind("gemm" + suffix)
        def gemm(mib: int, dtype=dtype, element=element, size=size) -> onnx.ModelProto:
            n = side(mib, size)
            given = weights("w", n, n, dtype=dtype), weights("b", n, dtype=dtype)
            return model([node("Gemm", "x w b", transB=1)], (element, [4, n]), element, *given)

        @kind("conv" + suffix)
        def conv(mib: int, dtype=dtype, element=element, size=size) -> onnx.ModelProto:
            n = side(mib, size, 9)
            w = weights("w", n, n, 3, 3, dtype=dtype)
            return model([node("Conv", "x w", pads=[1] * 4)], (element, [1, n, 4, 4]), element, w)

        @kind("conv-transpose" + suffix)
        def turned(mib: int, dtype=dtype, element=element, size=size) -> onnx.ModelProto:
            n = side(mib, size, 9)
            w = weights("w", n, n, 3, 3, dtype=dtype)
            return model([node("ConvTranspose", "x w")], (element, [1, n, 2, 2]), element, w)

        @kind("gather" + suffix)
        def gather(mib: int, dtype=dtype, element=element, size=size) -> onnx.ModelProto:
            w = weights("w", mib * MIB // size // 256, 256, dtype=dtype)
            return model([node("Gather", "w x")], (INT64, [4]), element, w)

        @kind("tied" + suffix)
        def tied(mib: int, dtype=dtype, element=element, size=size) -> onnx.ModelProto:
            w = weights("w", mib * MIB // size // 512, 512, dtype=dtype)
            nodes = [
                node("Gather", "w x", "e"),
                node("Transpose", "w", "t", perm=[1, 0]),
                node("MatMul", "e t"),
            ]
            return model(nodes, (INT64, [1]), element, w)


_products()


@kind("cast-f16")
def cast(mib: int) -> onnx.ModelProto:
    """Weights stored in float16, computed in float32."""
    n = side(mib, 2)
    nodes = [node("Cast", "w", "f", to=FLOAT), node("MatMul", "x f")]
    return model(nodes, (FLOAT, [4, n]), FLOAT, weights("w", n, n, dtype=np.float16))


@kind("unpacked-int8")
def unpacked(mib: int) -> onnx.ModelProto:
    """Weights stored in int8, made floats by Cast and Mul."""
    n = side(mib, 1)
    nodes = [
        node("Cast", "w", "c", to=FLOAT),
        node("Mul", "c s", "f"),
        node("MatMul", "x f"),
    ]
    scale = numpy_helper.from_array(np.float32(0.01), "s")
    return model(nodes, (FLOAT, [4, n]), FLOAT, weights("w", n, n, dtype=np.int8), scale)


@kind("transpose-matmul")
def transposed(mib: int) -> onnx.ModelProto:
    """A transposed weight that nothing else reads."""
    n = side(mib, 4)
    nodes = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t")]
    return model(nodes, (FLOAT, [4, n]), FLOAT, weights("w", n, n))


@kind("split")
def split(mib: int) -> onnx.ModelProto:
    """A weight that is split, as of queries, keys and values."""
    n = side(mib, 4, 2)
    nodes = [
        helper.make_node("Split", ["w"], ["a", "b"], axis=1, num_outputs=2),
        node("MatMul", "x a", "p"),
        node("MatMul", "x b", "q"),
        node("Add", "p q"),
    ]
    return model(nodes, (FLOAT, [4, n]), FLOAT, weights("w", n, 2 * n))


@kind("lstm")
def lstm(mib: int) -> onnx.ModelProto:
    """A recurrent layer; its weights are prepacked."""
    n = side(mib, 4, 8)
    given = weights("w", 1, 4 * n, n), weights("r", 1, 4 * n, n)
    made = node("LSTM", "x w r", hidden_size=n)
    return model([made], (FLOAT, [2, 1, n]), FLOAT, *given)


@kind("matmul-integer")
def integers(mib: int) -> onnx.ModelProto:
    """A product of whole numbers; the weight is prepacked."""
    n = side(mib, 1)
    w = weights("w", n, n, dtype=np.int8)
    return model([node("MatMulInteger", "x w")], (UINT8, [4, n]), TensorProto.INT32, w)


@kind("qlinear-conv")
def quantised(mib: int) -> onnx.ModelProto:
    """A convolution of whole numbers."""
    n = side(mib, 1, 9)
    zero, scale = np.uint8(3), np.float32(0.01)
    given = [numpy_helper.from_array(v, k) for k, v in (("z", zero), ("s", scale))]
    given.append(numpy_helper.from_array(np.int8(0), "o"))
    w = weights("w", n, n, 3, 3, dtype=np.int8)
    made = node("QLinearConv", "x s z w s o s z", pads=[1] * 4)
    return model([made], (UINT8, [1, n, 4, 4]), UINT8, w, *given)


@kind("matmul-4-bits")
def blocks(mib: int) -> onnx.ModelProto:
    """A product with a weight of four bits, in blocks of 32."""
    n = side(mib, 1, 1)
    attributes = {"K": n, "N": n, "bits": 4, "block_size": 32}
    made = node("MatMulNBits", "x w s", domain="com.microsoft", **attributes)
    given = weights("w", n, n // 32, 16, dtype=np.uint8), weights("s", n * n // 32)
    return model([made], (FLOAT, [4, n]), FLOAT, *given)


def weight_bytes(made: onnx.ModelProto) -> int:
    """Bytes of the weights in the file."""
    return sum(len(w.raw_data) for w in made.graph.initializer)


def measured(made: onnx.ModelProto, folder: Path) -> float:
    """Memory of a session, over the bytes of the weights."""
    onnx.save(made, folder / "kind.onnx")
    words = [sys.executable, "-c", HOLDER, str(folder / "kind.onnx")]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return int(done.stdout) / weight_bytes(made)


def predicted(made: onnx.ModelProto, folder: Path) -> float:
    """Memory of one stage by dnnp, over the same."""
    onnx.save(made, folder / "kind.onnx")
    priced = dnnp("profile", "-q", stdin=dnnp("import", "-q", folder / "kind.onnx").out)
    split = dnnp("partition", "-q", "-k", "1", stdin=priced.out)
    stages = [r for r in map(json.loads, split.out.splitlines()) if r["type"] == "stage"]
    return float(stages[0]["memory_bytes"]) / weight_bytes(made)


def main() -> None:
    """Measure all kinds, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=36)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND")
    arguments = parser.parse_args()
    print(f"{'kind':20} {'held':>6} {'predicted':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.kinds or KINDS:
            made = KINDS[name](arguments.mib)
            held, said = measured(made, Path(folder)), predicted(made, Path(folder))
            mark = " *" if abs(held / said - 1) > MARKED else ""
            print(f"{name:20} {held:6.2f} {said:9.2f}{mark}", flush=True)


if __name__ == "__main__":
    main()
