#!/usr/bin/env bash
# Libraries: openvino 2026.4.1 (CPU device, x86), onnx 1.23.2, onnxruntime 1.32.0 as the reference (Python 3.11).
# Expected:  a compiled model whose inputs and outputs say int64 and double computes in them, or refuses; NaN goes through Relu and Max as in
#            ONNX Runtime and numpy; an array of another type than the input's is refused.
# Happens:   int64 is computed in 32 bits and widened again: 2**40 + 2**40 is 0, 2**20 * 2**20 is 0; a constant of
#            2**40 becomes 2**31 - 1. double is computed as float32
#            (an error of 1e-8 in 1/9). Relu and Max turn NaN into 0, ReduceMax drops it. An array of floats for
#            an int8 input is converted without a word, 300.5 to 44.
# Matters:   a stage that moves from one runtime to the other gives other numbers for sizes, hashes, ids and offsets above 2**31, and hides a
#            NaN that the other passes on; comparing stages of two runtimes on small random inputs shows nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnxruntime as ort
import openvino
from onnx import TensorProto, helper

core = openvino.Core()


def both(operator, array, *more, copies=1, result=None, **attributes):
    """The output of one operator by ONNX Runtime and by OpenVINO, whose declared types are those of the model."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    x = helper.make_tensor_value_info("x", kind, array.shape)
    y = helper.make_tensor_value_info("y", kind, array.shape if result is None else result)
    weights = [onnx.numpy_helper.from_array(m, f"w{i}") for i, m in enumerate(more)]
    node = helper.make_node(operator, ["x"] * copies + [w.name for w in weights], ["y"], **attributes)
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, "m.onnx")
    compiled = core.compile_model(core.read_model("m.onnx"), "CPU")
    types = {port.element_type.to_dtype() for port in (*compiled.inputs, *compiled.outputs)}
    assert types == {array.dtype}, types
    session = ort.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": array})[0], compiled([array])[0], compiled


for operator, number, right in (("Add", 2**40, 2**41), ("Mul", 2**20, 2**40)):
    exact, short, _ = both(operator, np.array([number, 3]), copies=2)
    assert exact[0] == right and short[0] == 0 and exact[1] == short[1] and short.dtype == np.int64, (exact, short)
exact, short, _ = both("Add", np.array([0]), np.array([2**40]))
assert exact == 2**40 and short == 2**31 - 1, (exact, short)
exact, short, _ = both("Mul", np.array([1 / 3]), copies=2)
assert abs(exact[0] - 1 / 9) < 1e-16 and 1e-10 < abs(short[0] - 1 / 9) < 1e-7 and short.dtype == np.float64, (exact, short)

row = np.array([np.nan, -1, 3, 2], np.float32)
exact, short, _ = both("Relu", row)
assert np.isnan(exact[0]) and short.tolist() == [0, 0, 3, 2], (exact, short)
exact, short, _ = both("Max", row, np.zeros(1, np.float32))
assert np.isnan(exact[0]) and short.tolist() == [0, 0, 3, 2], (exact, short)
exact, short, _ = both("ReduceMax", row, result=[], keepdims=0)
assert np.isnan(exact) and short == 3, (exact, short)

compiled = both("Abs", np.array([1, 2], np.int8))[2]
assert compiled([np.array([1.9, 300.5], np.float32)])[0].tolist() == [1, 44]
print("as stated: int64 2**40 + 2**40 =", both("Add", np.array([2**40]), copies=2)[1][0], "and Relu(NaN) = 0")
PY
