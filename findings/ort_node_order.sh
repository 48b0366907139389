#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider).
# Expected:  ONNX demands nodes in topological order, so with all optimisation disabled they run in the order of the file,
#            and a file written as "unpack weight i, use weight i" holds one unpacked weight at a time.
# Happens:   by default every node that waits for nothing but weights runs first, all of them, here in reverse order:
#            eight unpacked weights are alive at once instead of one, with all optimisation disabled as well as enabled.
#            SessionOptions.execution_order = PRIORITY_BASED follows the file.
# Matters:   the peak of a stage that is computed from the order of its file is too small by the number of such weights
#            (8 times here); moving nodes within the file to save memory changes nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import json

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

COUNT, WIDTH = 8, 256
weights = [numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.int8), f"w{i}") for i in range(COUNT)]
nodes = []
for i in range(COUNT):
    nodes.append(helper.make_node("DequantizeLinear", [f"w{i}", "scale"], [f"d{i}"], name=f"unpack{i}"))
    nodes.append(helper.make_node("MatMul", [f"x{i}", f"d{i}"], [f"x{i + 1}"], name=f"use{i}"))
value = helper.make_tensor_value_info
graph = helper.make_graph(
    nodes, "g", [value("x0", TensorProto.FLOAT, [1, WIDTH])], [value(f"x{COUNT}", TensorProto.FLOAT, [1, WIDTH])],
    [*weights, numpy_helper.from_array(np.float32(0.01), "scale")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def executed(order):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    if order is not None:
        options.execution_order = order
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x0": np.ones((1, WIDTH), np.float32)})
    events = json.load(open(session.end_profiling()))
    suffix = "_kernel_time"
    return [e["name"].removesuffix(suffix) for e in events if e["name"].endswith(suffix)]


def most_alive(names):
    alive = most = 0
    for name in names:
        alive += 1 if name.startswith("unpack") else -1
        most = max(most, alive)
    return most


plain, followed = executed(None), executed(ort.ExecutionOrder.PRIORITY_BASED)
assert sorted(plain) == sorted(followed) == sorted(n.name for n in nodes), (plain, followed)
assert plain[:COUNT] == [f"unpack{i}" for i in reversed(range(COUNT))], plain
assert followed == [n.name for n in nodes], followed
assert (most_alive(plain), most_alive(followed)) == (COUNT, 1)
print("as stated: unpacked weights alive at once: default", most_alive(plain), "- PRIORITY_BASED", most_alive(followed))
PY
