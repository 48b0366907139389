#!/usr/bin/env bash
# Libraries: onnxoptimizer 0.4.2 (optimize with its default passes), onnx 1.23.2 (its inliner), onnxruntime 1.32.0; onnxsim 0.8.1 for comparison,
#            numpy 2.4.6 (Python 3.11).
# Expected:  the passes that an optimiser applies unasked keep what a model computes, to the bit where they only take nodes away.
# Happens:   Reshape counts as idempotent, as Relu is: of two in a row the first is taken out. A 0 in the shape of the second copies a dimension of
#            what the first gave, and now copies that of its input. GroupNormalization as onnx itself expands it (its inliner, the function
#            of the operator) has such a pair: after optimize each channel is a group, same shape, other numbers. Pad with zeros before
#            MaxPool becomes padding of MaxPool, which is minus infinity: where the values are negative, the border is no more 0. What Slice
#            takes from Shape with a start is taken from the whole shape. Pad before an AveragePool with ceil_mode can cost a column; this one
#            onnxsim does as well, the other three it leaves right. Nothing is said, and ONNX Runtime loads each result.
# Matters:   to inline functions and to clean up is what one does before a model is cut; stages of the result agree with it, so that a check of
#            the split passes. Compare with the model as exported, on numbers of both signs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: onnxoptimizer==0.4.2 onnxsim==0.8.1 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
"$work/env/bin/python" - 2>"$work/errors" <<'PY' || { cat "$work/errors" >&2; exit 1; }
import numpy as np
import onnx
import onnx.inliner
import onnxoptimizer
import onnxruntime as ort
import onnxsim
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
RAMP = np.linspace(-2, -1, 48, dtype=np.float32)


def whole(*numbers):
    return np.array(numbers, np.int64)


def model(nodes, shape, result, weights, kind=TensorProto.FLOAT):
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    inputs, outputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", kind, result)]
    types = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in held]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held, value_info=types)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def computed(made, x):
    onnx.checker.check_model(made)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def compared(made, shape):
    """The results of a model as it is, optimised, and simplified by onnxsim."""
    x = RAMP[: np.prod(shape)].reshape(shape)
    return computed(made, x), computed(onnxoptimizer.optimize(made), x), computed(onnxsim.simplify(made)[0], x)


def same(one, other):
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=1e-5)


shape = [1, 4, 3, 4]
norm = node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)
grouped = model([norm], shape, shape, {"scale": np.float32([1, 2, 3, 4]), "bias": np.zeros(4, np.float32)})
inlined = onnx.inliner.inline_selected_functions(grouped, [("", "GroupNormalization")], inline_schema_functions=True)
kinds = [n.op_type for n in inlined.graph.node]
assert "GroupNormalization" not in kinds and kinds.count("Reshape") > 3, kinds
x = RAMP.reshape(shape)
right, found, simplified = compared(inlined, shape)
assert same(right, computed(grouped, x)) and same(simplified, right) and not same(found, right)
by_channel = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * np.float32([1, 2, 3, 4])[:, None, None]
assert np.allclose(found, by_channel, atol=1e-3), np.abs(found - by_channel).max()
print(f"GroupNormalization: {right.ravel()[0]:.3f}, optimised {found.ravel()[0]:.3f}, as if each channel were a group")

pair = model(
    [node("Reshape", ["x", "one"], ["t"]), node("Reshape", ["t", "two"], ["y"])], [3, 4, 2, 2], [3, 2, 2, 4],
    {"one": whole(3, 2, 8), "two": whole(0, 0, -1, 4)})
shapes = [result.shape for result in compared(pair, (3, 4, 2, 2))]
assert shapes == [(3, 2, 2, 4), (3, 4, 1, 4), (3, 2, 2, 4)], shapes
print("Reshape to [3, 2, 8], then [0, 0, -1, 4]:", shapes[0], "optimised", shapes[1])

border = model(
    [node("Pad", ["x", "pads"], ["t"]), node("MaxPool", ["t"], ["y"], kernel_shape=[3, 3])], [1, 1, 4, 4], [1, 1, 4, 4],
    {"pads": whole(0, 0, 1, 1, 0, 0, 1, 1)})
right, found, simplified = compared(border, (1, 1, 4, 4))
assert right.ravel()[0] == 0 and found.max() < -1 and same(simplified, right), (right, found)
print(f"Pad with 0, MaxPool of negative numbers: {right.ravel()[0]}, optimised {found.ravel()[0]:.3f}")

start = model(
    [node("Shape", ["x"], ["t"], start=1), node("Slice", ["t", "from", "to", "axis"], ["y"])], [3, 4, 2], [1],
    {"from": whole(0), "to": whole(1), "axis": whole(0)}, TensorProto.INT64)
results = [result.tolist() for result in compared(start, (3, 4, 2))]
assert results == [[4], [3], [4]], results
print("Shape of (3, 4, 2) from 1 on, its first:", results[0], "optimised", results[1])

ceiling = model(
    [node("Pad", ["x", "pads"], ["t"]), node("AveragePool", ["t"], ["y"], kernel_shape=[3], strides=[2], ceil_mode=1, count_include_pad=1)],
    [1, 1, 10], [1, 1, 6], {"pads": whole(0, 0, 0, 0, 0, 2)})
shapes = [result.shape for result in compared(ceiling, (1, 1, 10))]
assert shapes == [(1, 1, 6), (1, 1, 5), (1, 1, 5)], shapes
print("Pad of 2, AveragePool with ceil_mode:", shapes[0], "optimised", shapes[1], "and by onnxsim", shapes[2])
print("as stated")
PY
