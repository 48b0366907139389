#!/usr/bin/env bash
# Libraries: onnx-tool 1.0.1, onnx-opcounter 0.0.4, onnx 1.23.2, onnxruntime 1.32.0 (Python 3.11).
# Expected:  counters of multiply-adds agree on MatMul, Conv and ConvTranspose, whose number follows from shapes alone, and say no where
#            they cannot count.
# Happens:   ConvTranspose is counted as if it were Conv: by opcounter stride**2 times too much (4 times for an upsampling by 2), by onnx-tool
#            2 times if channels are halved and 8 times if they are doubled. MatMul of batches that broadcast: 2 x 1 with 1 x 3 is a third
#            by opcounter and half by onnx-tool, which also infers 1 x 3 as the output's shape; one matrix times ten is a tenth by
#            opcounter. A free dimension makes the count 0 in opcounter (onnx-tool refuses it); Einsum and Attention count as one
#            operation an element of the output there, with a line printed.
# Matters:   decoders of U-Nets and products with one shared matrix look 8 times dearer or 10 times cheaper than they are, and a
#            split by count puts the cut elsewhere. Check a counter on one node of each kind that a model holds.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnx-tool==1.0.1 onnx-opcounter==0.0.4 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import contextlib
import io

import numpy as np
import onnx
import onnx_tool
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx_opcounter import calculate_macs


def model(kind, x, w, y, inputs=("x", "w"), **attributes):
    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    node = helper.make_node(kind, list(inputs), ["y"], name="node", **attributes)
    weights = [numpy_helper.from_array(np.ones(w, np.float32), "w")] if "w" in inputs else []
    graph = helper.make_graph([node], "g", [value("x", x)], [value("y", y)], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    if all(isinstance(size, int) for size in x):
        session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        assert session.run(None, {"x": np.ones(x, np.float32)})[0].shape == tuple(y)
    return made


def opcounter(made):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        count = int(calculate_macs(made))
    return count, said.getvalue().strip()


def tool(made):
    graph = onnx_tool.Model(onnx.ModelProto.FromString(made.SerializeToString()), {"verbose": False}).graph
    graph.shape_infer(None)
    graph.profile()
    return int(graph.macs[0]), list(graph.tensormap["y"].shape)


def counts(*arguments, **attributes):
    made = model(*arguments, **attributes)
    (count, said), (other, _) = opcounter(made), tool(made)
    assert not said
    return count, other


assert counts("MatMul", (8, 16), (16, 4), (8, 4)) == (512, 512)
pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
for group in (1, 4):
    true = 1600 * 16 // group * 9
    assert counts("Conv", (1, 16, 10, 10), (16, 16 // group, 3, 3), (1, 16, 10, 10), group=group, **pads) == (true, true)

# ConvTranspose multiplies each number of the input with each number of its channel's kernel
up = {"kernel_shape": [2, 2], "strides": [2, 2]}
halved = counts("ConvTranspose", (1, 32, 10, 10), (32, 16, 2, 2), (1, 16, 20, 20), **up)
assert halved == (4 * 204_800, 2 * 204_800) and 204_800 == (32 * 100) * (16 * 4), halved
doubled = counts("ConvTranspose", (1, 16, 10, 10), (16, 32, 2, 2), (1, 32, 20, 20), **up)
assert doubled == (4 * 204_800, 8 * 204_800) and 204_800 == (16 * 100) * (32 * 4), doubled

both = model("MatMul", (2, 1, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))
true = 2 * 3 * 8**3
assert opcounter(both) == (true // 3, "")
assert tool(both) == (true // 2, [1, 3, 8, 8])
assert counts("MatMul", (8, 8), (10, 8, 8), (10, 8, 8)) == (8**3, 10 * 8**3)

free = model("MatMul", ("N", 16), (16, 4), ("N", 4))
assert opcounter(free) == (0, "")
try:
    tool(free)
except ValueError as error:
    assert "shape [N,16] is not valid" in str(error), error
else:
    raise AssertionError("onnx-tool counts a free dimension")
einsum = model("Einsum", (8, 16), (16, 4), (8, 4), equation="ij,jk->ik")
assert opcounter(einsum) == (8 * 4, "Unsupported op: Einsum") and tool(einsum)[0] == 512
attention = model("Attention", (1, 4, 32, 16), (), (1, 4, 32, 16), inputs="xxx")
assert opcounter(attention) == (4 * 32 * 16, "Unsupported op: Attention")
print("as stated: 204800 multiply-adds of a ConvTranspose are", doubled, "- 3072 of a MatMul", (opcounter(both)[0], tool(both)[0]))
PY
