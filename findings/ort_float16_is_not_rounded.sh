#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider).
# Expected:  the tensors between the nodes of a float16 model are float16, at the latest with all optimisation disabled: 0.25 + 2048 is
#            2048 there, and minus 2048 that is 0 (numpy and onnx's reference evaluator say so).
# Happens:   0.25 comes out, at each level of optimisation: Casts to float32 are put around runs of nodes, and what lies between
#            the nodes is never rounded. If the sum is an output of the model as well, one run returns 2048 as the sum and
#            0.25 as the sum minus 2048. If the model is cut there, it is 0.
# Matters:   stages of a float16 model differ from the whole model by 1e-3 and more though both are right, and differ the
#            more the more cuts there are; weights are cast to float32 too,
#            so memory predicted with two bytes a weight is half of what is used.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HALF = TensorProto.FLOAT16
X = {"x": np.array([0.25], np.float16)}


def value(name):
    return helper.make_tensor_value_info(name, HALF, [1])


def model(nodes, inputs, outputs):
    big = numpy_helper.from_array(np.array([2048], np.float16), "big")
    graph = helper.make_graph(nodes, "g", [value(n) for n in inputs], [value(n) for n in outputs], [big])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(made, feeds, level, path=""):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    if path:
        options.optimized_model_filepath = path
    return ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


add, subtract = helper.make_node("Add", ["x", "big"], ["sum"]), helper.make_node("Sub", ["sum", "big"], ["y"])
whole = model([add, subtract], ["x"], ["y"])
none, full = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
assert ReferenceEvaluator(whole).run(None, X)[0] == 0
assert (X["x"] + np.float16(2048)) - np.float16(2048) == 0
assert run(whole, X, none, "session.onnx")[0] == 0.25 and run(whole, X, full)[0] == 0.25
for level in (none, full):
    (middle,) = run(model([add], ["x"], ["sum"]), X, level)
    assert middle.dtype == np.float16 and middle == 2048
    assert run(model([subtract], ["sum"], ["y"]), {"sum": middle}, level)[0] == 0
middle, last = run(model([add, subtract], ["x"], ["sum", "y"]), X, none)
assert (middle, last) == (2048, 0.25)
operators = [n.op_type for n in onnx.load("session.onnx").graph.node]
assert operators == ["Cast", "Cast", "Add", "Sub", "Cast"], operators
print("as stated: whole 0.25, cut 0; executed", *operators)
PY
