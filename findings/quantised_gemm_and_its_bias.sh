#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0 (quantize_static, and sessions of the CPU provider), onnx 1.23.2, numpy 2.4.6 (Python 3.11).
# Expected:  quantisation adds rounding: alpha * x W + beta * b is what a quantised Gemm computes, in both formats (QDQ, QOperator). The scale of
#            a bias between DequantizeLinear and Gemm is free, as ONNX sets none, and levels of optimisation agree up to a step of the output.
# Happens:   quantize_static loses beta, and squares it: for beta 2 it sets beta to 1, keeps b and doubles its scale. In QDQ b counts half without
#            optimisation and a quarter with it, from one file; in QOperator a quarter, and with alpha 0.5 an eighth. For beta 0.5 it is
#            2 and 4 times. The session's part is that it makes a QGemm of the nodes, which takes the integers of the bias as multiples
#            of (scale of x) * (scale of W) and does not look at their own scale: a Gemm whose bias has 64 times that scale is right
#            without optimisation, and by default has a 64th of its bias. A Conv with such a bias is left as it is, and right.
# Matters:   torch.addmm with a beta is exported as such a Gemm, and a bias may keep a scale of its own. Status and shapes are as they should be,
#            and two levels, or two runtimes, are two models. Compare with the float model, and with optimisation off.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 sympy==1.14.0 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - 2>errors <<'PY' || { cat errors >&2; exit 1; }
import logging

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

logging.disable(logging.CRITICAL)
node = helper.make_node
LEVELS = {"off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL, "on": ort.GraphOptimizationLevel.ORT_ENABLE_ALL}
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
W = np.linspace(-2, 2, 128, dtype=np.float32).reshape(16, 8)
BIAS = 4.0


class Samples(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": X}]

    def get_next(self):
        return self.left.pop() if self.left else None


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes, shape, outputs, weights):
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [value("x", shape)], [value("y", outputs)], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def ran(made, x, level):
    """The result, and the kinds of nodes that were run."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = "run.onnx"
    result = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    return result, {n.op_type for n in onnx.load("run.onnx").graph.node}


def share(made, beta, level):
    """What is left of beta * b: the result for x = 0 over what it should be."""
    found = ran(made, np.zeros_like(X), level)[0] / (beta * BIAS)
    assert np.ptp(found) < 1e-6, found
    return float(found.mean())


for alpha, beta in ((1.0, 1.0), (1.0, 2.0), (1.0, 0.5), (0.5, 2.0)):
    gemm = node("Gemm", ["x", "W", "b"], ["y"], name="gemm", alpha=alpha, beta=beta)
    whole = model([gemm], [2, 16], [2, 8], {"W": W, "b": np.full(8, BIAS, np.float32)})
    assert share(whole, beta, "on") == 1.0
    onnx.save(whole, "whole.onnx")
    made = {}
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        quantize_static("whole.onnx", "quantised.onnx", Samples(), quant_format=form)
        made[form] = onnx.load("quantised.onnx")
    qdq, qoperator = made.values()
    found = share(qdq, beta, "off"), share(qdq, beta, "on"), share(qoperator, beta, "on")
    fused = "QGemm" in ran(qdq, X, "on")[1]
    wanted = 1 / beta, 1 / beta**2 if fused else 1 / beta, alpha / beta**2
    assert fused == (alpha == 1.0) and np.allclose(found, wanted, rtol=0.05), (alpha, beta, found, wanted)
    print(f"alpha {alpha}, beta {beta}: of beta * b are left {found[0]:.3f} (QDQ), {found[1]:.3f} (QDQ, optimised), {found[2]:.3f} (QOperator)")


def by_hand(op, x, weight, channels, outputs, factor):
    """A quantised node whose bias has `factor` times the scale of x times that of the weight; results without and with optimisation."""
    sx, sw, sy = (np.float32(2.0**-k) for k in (6, 6, 3))
    zero = np.int8(0)
    weights = {"sx": sx, "sw": sw, "sb": sx * sw * np.float32(factor), "sy": sy, "zero": zero}
    weights |= {"W": np.rint(weight / sw).astype(np.int8), "b": np.rint(np.full(channels, BIAS) / weights["sb"]).astype(np.int32)}
    made = model(
        [node("QuantizeLinear", ["x", "sx", "zero"], ["xq"]), node("DequantizeLinear", ["xq", "sx", "zero"], ["xd"]),
         node("DequantizeLinear", ["W", "sw", "zero"], ["Wd"]), node("DequantizeLinear", ["b", "sb"], ["bd"]), node(op, ["xd", "Wd", "bd"], ["t"]),
         node("QuantizeLinear", ["t", "sy", "zero"], ["tq"]), node("DequantizeLinear", ["tq", "sy", "zero"], ["y"])],
        x.shape, outputs, weights)
    (off, _), (on, kinds) = ran(made, x, "off"), ran(made, x, "on")
    return float(np.abs(on - off).max()), float(sy), kinds


image, kernel = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 4, 4, 4), np.linspace(-1, 1, 72, dtype=np.float32).reshape(2, 4, 3, 3)
for factor in (1, 64):
    apart, step, kinds = by_hand("Gemm", X, W / 2, 8, [2, 8], factor)
    assert "QGemm" in kinds and (apart <= step if factor == 1 else abs(apart - BIAS * 63 / 64) <= step), (apart, kinds)
    print(f"Gemm, bias in {factor} times sx * sw: the levels are {apart} apart, where b is {BIAS}")
    apart, step, kinds = by_hand("Conv", image, kernel, 2, [1, 2, 2, 2], factor)
    assert ("QLinearConv" in kinds) == (factor == 1) and apart <= step, (apart, kinds)
    print(f"Conv, bias in {factor} times sx * sw: the levels are {apart} apart")
print("as stated")
PY
