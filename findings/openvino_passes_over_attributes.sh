#!/usr/bin/env bash
# Libraries: openvino 2026.4.1 (reader of ONNX, CPU device, x86), onnx 1.23.2 (reference evaluator), onnxruntime 1.32.0 as a second opinion,
#            numpy 2.4.6 (Python 3.11).
# Expected:  a reader that does not know an attribute of a node, or the version of an operator, refuses the model; what it takes, it computes. A
#            value that it does not know is refused by name: "tf_crop_and_resize ... not supported", "Unsupported padding mode: [wrap]".
# Happens:   an attribute that it does not know is passed over. Attention-25 with a window (left_window_size, right_window_size) attends to
#            everything; a token far from the start sees all that the window shuts out, with is_causal as without. Resize leaves out
#            antialias, exclude_outside and keep_aspect_ratio_policy, and with the last has another shape than asked for; SpaceToDepth-28
#            takes CRD for DCR. Each is read, compiled and run without an error or a warning; ONNX Runtime and onnx's reference agree on the
#            right result. Without the attribute all agree.
# Matters:   decoders with a sliding window are right as long as the prompt is shorter than the window, so a short test passes; what a newer
#            exporter adds to an operator is a wrong result where a new operator is an error. Check attributes, not names of operators.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: openvino==2026.4.1 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
"$work/env/bin/python" - 2>"$work/errors" <<'PY' || { cat "$work/errors" >&2; exit 1; }
import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

core = ov.Core()
core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def model(op, inputs, result, opset, weights, names, attributes):
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(
        [helper.make_node(op, names or list(inputs), ["y"], **attributes)], "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    onnx.checker.check_model(made, full_check=True)
    return made


def by_openvino(made, inputs):
    return core.compile_model(core.read_model(made.SerializeToString()), "CPU")(list(inputs.values()))[0]


def close(one, other):
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-4)


def last(result):
    return [round(float(x), 2) for x in result.ravel()[-3:]]


def compared(op, inputs, result, opset, attributes, passed_over, weights=None, names=()):
    """Results by ONNX Runtime and OpenVINO, with and without the attributes that are passed over."""
    def three(attributes, shape):
        made = model(op, inputs, shape, opset, weights or {}, names, attributes)
        right = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        return ReferenceEvaluator(made).run(None, inputs)[0], right, by_openvino(made, inputs)

    reference, right, found = three({**attributes, **passed_over}, result)
    plain_reference, plain, plain_found = three(attributes, [None] * 4)
    assert close(reference, right) and close(plain_reference, plain) and close(plain_found, plain), op
    assert not close(right, plain) and close(found, plain), (op, right, found)
    print(f"{op}-{opset}, {passed_over}: {right.shape} {last(right)},", end=" ")
    print(f"OpenVINO {found.shape} {last(found)}")


tokens = 8
qkv = {"q": np.zeros((1, 1, tokens, 1), np.float32), "k": np.zeros((1, 1, tokens, 1), np.float32), "v": np.arange(tokens, dtype=np.float32).reshape(1, 1, tokens, 1)}
compared("Attention", qkv, [1, 1, tokens, 1], 25, {"is_causal": 1}, {"left_window_size": 1})
compared("Attention", qkv, [1, 1, tokens, 1], 25, {}, {"left_window_size": 1, "right_window_size": 2})

image = {"x": np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)}
sizes = {"s": np.array([1, 3], np.int64)}
half, twice = {"s": np.array([1, 1, 0.5, 0.5], np.float32)}, {"s": np.array([1, 1, 2, 2], np.float32)}
compared("Resize", image, [1, 1, 2, 2], 19, {"mode": "cubic"}, {"antialias": 1}, half, ["x", "", "s"])
compared("Resize", image, [1, 1, 8, 8], 13, {"mode": "cubic"}, {"exclude_outside": 1}, twice, ["x", "", "s"])
compared("Resize", image, [1, 1, 1, 1], 19, {"mode": "nearest", "axes": [2, 3]}, {"keep_aspect_ratio_policy": "not_larger"}, sizes, ["x", "", "", "s"])
blocks = {"x": np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4)}
compared("SpaceToDepth", blocks, [1, 8, 1, 2], 28, {"blocksize": 2}, {"mode": "CRD"})

crop = {"roi": np.zeros(8, np.float32), **half}
for op, inputs, weights, names, attributes, words in (
        ("Resize", image, crop, ["x", "roi", "s"], {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, "not supported"),
        ("Pad", image, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, ["x", "p"], {"mode": "wrap"}, "Unsupported padding mode")):
    try:
        by_openvino(model(op, inputs, [None] * 4, 19, weights, names, attributes), inputs)
    except Exception as error:
        assert words in str(error), error
        print(f"{op}: {words}")
    else:
        raise AssertionError(f"{op} was taken")
print("as stated")
PY
! grep -i "openvino\|attribute" "$work/errors" || exit 1
