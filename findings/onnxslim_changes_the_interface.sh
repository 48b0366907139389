#!/usr/bin/env bash
# Libraries: onnxslim 0.1.98, onnx 1.23.2, onnxruntime 1.32.0; onnxsim 0.8.1 for comparison (Python 3.11).
# Expected:  a simplifier changes nodes and keeps what callers see: names, number and shapes of inputs and outputs.
# Happens:   a free dimension N of an input that meets a constant of 4 by broadcasting is declared 4 from then on, as input and output:
#            N = 1, valid before, is refused. Two free dimensions N and M that an Add joins become one, N in some
#            processes and M in others for the same file. An input
#            that no node reads is taken out, and feeding it fails with "Invalid input name". onnxsim keeps all of it.
# Matters:   dimensions are set by name when a model is priced or split (M is unknown then, or follows N), and feeds made for the
#            original model fail on stages of the slimmed one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxslim==0.1.98 onnx==1.23.2 onnxruntime==1.32.0 onnxsim==0.8.1 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import logging

import numpy as np
import onnxruntime as ort
import onnxsim
import onnxslim
from onnx import TensorProto, helper, numpy_helper

logging.disable(logging.CRITICAL)


def value(name, dimension):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [dimension])


def build(nodes, inputs, output, weights=()):
    values = [value(n, d) for n, d in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [value("y", output)], [numpy_helper.from_array(w, n) for n, w in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def interface(model):
    ends = [*model.graph.input, *model.graph.output]
    return {v.name: v.type.tensor_type.shape.dim[0].dim_param or v.type.tensor_type.shape.dim[0].dim_value for v in ends}


def run(model, **sizes):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    try:
        return session.run(None, {n: np.ones(s, np.float32) for n, s in sizes.items()})[0].shape
    except Exception as error:
        return str(error)


def slim(model):
    return onnxslim.slim(model)


def sim(model):
    return onnxsim.simplify(model)[0]


def broadcast():
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Add", ["n", "w"], ["y"])]
    return build(nodes, {"x": "N"}, "M", [("w", np.ones(4, np.float32))])


def joined():
    return build([helper.make_node("Add", ["a", "b"], ["y"])], {"a": "N", "b": "M"}, "K")


def unread():
    return build([helper.make_node("Neg", ["x"], ["y"])], {"x": "N", "u": "N"}, "N")


assert run(broadcast(), x=1) == run(sim(broadcast()), x=1) == (4,)
assert interface(slim(broadcast())) == {"x": 4, "y": 4} and interface(sim(broadcast()))["x"] == "N"
assert "Got: 1 Expected: 4" in run(slim(broadcast()), x=1)

assert run(joined(), a=1, b=5) == (5,)
merged = interface(slim(joined()))
assert merged["a"] == merged["b"] in ("N", "M") and merged["y"] == "K", merged
assert interface(sim(joined())) == interface(joined())

assert run(unread(), x=3, u=3) == run(sim(unread()), x=3, u=3) == (3,)
assert "Invalid input name: u" in run(slim(unread()), x=3, u=3)
print("as stated: N becomes", interface(slim(broadcast()))["x"], "- N and M become", merged["a"], "- an input is gone")
PY
