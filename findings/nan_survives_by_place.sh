#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider).
# Expected:  one rule for NaN in reductions: it comes out of ReduceMax and ReduceMin wherever it stood (numpy and onnx's
#            reference evaluator do that), or it never does; ArgMax points at it or passes over it.
# Happens:   it depends on where the NaN stands. ReduceMax of 4: NaN if it is first, else the largest of the rest; ArgMax: its index
#            if it is first, else that of the largest; Hardmax of a row that begins with NaN: all zeros, else one-hot. In rows
#            of 64 there are places where ReduceMax is neither NaN nor the largest of the other numbers: the NaN
#            seems to take numbers with it that share its lane of a vector register.
# Matters:   "no NaN in the output" says nothing of the stages before, a poisoned cache decodes to plausible tokens, and a cut
#            changes nothing about it: compare stages where they are cut and not at the end.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

NAN = np.nan


def model(operator, shape, kind=TensorProto.FLOAT, **attributes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "g", [x], [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def runtime(made):
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda array: session.run(None, {"x": array})[0]


rows = [np.array(row, np.float32) for row in ([NAN, 1, 3, 2], [1, NAN, 3, 2], [1, 3, NAN, 2], [1, 3, 2, NAN])]
largest = model("ReduceMax", [4], keepdims=0)
smallest = model("ReduceMin", [4], keepdims=0)
place = model("ArgMax", [4], TensorProto.INT64, keepdims=0)
hot = model("Hardmax", [4])

for made in (largest, smallest):
    reference = ReferenceEvaluator(made)
    assert all(np.isnan(reference.run(None, {"x": row})[0]) for row in rows)
np.testing.assert_array_equal([runtime(largest)(row) for row in rows], [NAN, 3, 3, 3])
np.testing.assert_array_equal([runtime(smallest)(row) for row in rows], [NAN, 1, 1, 1])
assert [int(runtime(place)(row)) for row in rows] == [0, 2, 1, 1]
assert [int(np.argmax(row)) for row in rows] == [0, 1, 2, 3]
assert [float(runtime(hot)(row).sum()) for row in rows] == [0, 1, 1, 1]

long, neither = runtime(model("ReduceMax", [64], keepdims=0)), 0
for at in range(64):
    row = np.arange(64, dtype=np.float32)
    row[at] = NAN
    result = long(row)
    neither += not np.isnan(result) and result != np.nanmax(row)
assert neither, "ReduceMax is NaN or the largest of the rest at each place"
print("as stated: ReduceMax keeps a NaN in the first place only; of 64 places", neither, "give neither NaN nor the maximum")
PY
