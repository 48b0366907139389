#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider).
# Expected:  the "Node" events of ONNX Runtime's profile partition the time of a run: their sum is at most the run's (model_run), and
#            node_index names a node.
# Happens:   the nodes of the body of Loop are listed once an iteration, and again all together as the Loop: the sum of the events is
#            more than the run, here by all that the body takes. Indices in bodies start at 0 too, so node_index 0 is
#            Loop and MatMul, and nothing in an event says which graph it is of.
# Matters:   costs summed from a profile count models with control flow twice, and a join by node_index puts the time of the body on
#            other nodes of the main graph. Join by names, and drop what a body holds.
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

SIZE, TRIPS = 384, 6


def value(name, kind=TensorProto.FLOAT, shape=(SIZE, SIZE)):
    return helper.make_tensor_value_info(name, kind, list(shape))


body = helper.make_graph(
    [helper.make_node("MatMul", ["state", "state"], ["product"], name="inner"),
     helper.make_node("Tanh", ["product"], ["next"], name="squash"), helper.make_node("Identity", ["go"], ["on"], name="pass")],
    "body", [value("trip", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("state")],
    [value("on", TensorProto.BOOL, ()), value("next")],
)
nodes = [helper.make_node("Loop", ["trips", "", "x"], ["last"], name="loop", body=body), helper.make_node("Neg", ["last"], ["y"], name="outer")]
graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], [numpy_helper.from_array(np.array(TRIPS), "trips")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
options = ort.SessionOptions()
options.enable_profiling = True
options.intra_op_num_threads = 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.full((SIZE, SIZE), 0.01, np.float32)})
events = json.load(open(session.end_profiling()))
(run,) = (e["dur"] for e in events if e["name"] == "model_run")
spent, index = {}, {}
for event in events:
    if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
        name = event["name"].removesuffix("_kernel_time")
        spent.setdefault(name, []).append(event["dur"])
        index.setdefault(event["args"]["node_index"], set()).add(name)
assert {name: len(times) for name, times in spent.items()} == {"loop": 1, "outer": 1, "inner": TRIPS, "squash": TRIPS, "pass": TRIPS}, spent
inside = sum(sum(spent[name]) for name in ("inner", "squash", "pass"))
total = sum(map(sum, spent.values()))
assert inside <= spent["loop"][0] <= run < total, (inside, spent["loop"], run, total)
assert index["0"] == {"loop", "inner"} and index["1"] == {"outer", "squash"}, index
print(f"as stated: the events sum to {total} us of a run of {run} us; index 0 is", *sorted(index["0"]))
PY
