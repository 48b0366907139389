#!/usr/bin/env bash
# Libraries: openvino 2026.4.1 (CPU device, x86), onnx 1.23.2, onnxruntime 1.32.0 as the reference, numpy 2.4.6 (Python 3.11).
# Expected:  a model whose dimensions are numbers computes what the same model with named dimensions does at these sizes. GroupQueryAttention: a
#            buffer that is longer than its tokens comes back as long as it was, an exact cache comes back longer (ONNX Runtime).
# Happens:   there are two operators. While a dimension of the caches or the new tokens is a name (batch, new or past), the caches that come back
#            have the length of the tokens: 3 of a buffer of 16. If all are numbers, in the file or by Model.reshape on the model as
#            read, the whole buffer comes back, and exact caches, which are right by names, fail: one token on 3 is an error when it
#            runs, and a prompt on an empty cache gives a wrong result (here its own query) and caches of length 0, without a word.
# Matters:   to fix dimensions, by a tool or for a plan of memory, turns one kind into the other; a buffer that a loop or the next stage takes to
#            be of one size shrinks at the first pass, and the first pass of a growing cache is noise. Compare the lengths that come back.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnxruntime as ort
import openvino
from onnx import TensorProto, helper

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
SIZE, HEADS = 16, 2
core, draw = openvino.Core(), np.random.default_rng(0)
value = helper.make_tensor_value_info


def shapes(batch, new, past):
    cache = [batch, 1, past, SIZE]
    return {"q": [batch, new, HEADS * SIZE], "k": [batch, new, SIZE], "v": [batch, new, SIZE], "past_k": cache, "past_v": cache}


def build(batch, new, past):
    declared = shapes(batch, new, past)
    attention = helper.make_node("GroupQueryAttention", [*declared, "lengths", "total"], ["y", "now_k", "now_v"], domain="com.microsoft",
                                 num_heads=HEADS, kv_num_heads=1)
    graph = helper.make_graph(
        [attention], "g",
        [*(value(name, FLOAT, shape) for name, shape in declared.items()), value("lengths", INT32, [batch]), value("total", INT32, [])],
        [value("y", FLOAT, declared["q"]), value("now_k", FLOAT, [batch, 1, "now", SIZE]), value("now_v", FLOAT, [batch, 1, "now", SIZE])])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def compare(declared, new, tokens, buffer, fix=False):
    """OpenVINO's result for `new` tokens on `tokens` in a cache of `buffer`: its kind, the length of the caches of both runtimes."""
    sizes = shapes(1, new, buffer)
    feeds = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    feeds |= {"lengths": np.array([tokens + new - 1], np.int32), "total": np.array(tokens + new, np.int32)}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    data = build(*declared)
    right = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    model = core.read_model(data)
    if fix:
        model.reshape({name: list(array.shape) for name, array in feeds.items()})
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    try:
        results = compiled(feeds)
    except RuntimeError as error:
        assert "indices value" in str(error), error
        return "error", None, right[1].shape[2]
    got = [results[output] for output in compiled.outputs]
    used = min(got[1].shape[2], tokens + new)
    assert all(np.array_equal(one[:, :, :used], other[:, :, :used]) for one, other in zip(got[1:], right[1:], strict=True))
    kind = "right" if np.allclose(got[0], right[0], atol=1e-5) else "wrong"
    if kind == "wrong" and np.array_equal(got[0], feeds["q"]):
        print("what comes back is the query")
    return kind, got[1].shape[2], right[1].shape[2]


cases = {"a prompt of 3 in a buffer of 16": (3, 0, 16), "a token on 3 in a buffer of 16": (1, 3, 16), "a prompt of 3 on nothing": (3, 0, 0),
         "a token on an exact cache of 3": (1, 3, 3)}
numbers = {case: ("right", 16, 16) for case in list(cases)[:2]} | {
    "a prompt of 3 on nothing": ("wrong", 0, 3), "a token on an exact cache of 3": ("error", None, 4)}
for case, (new, tokens, buffer) in cases.items():
    ways = {"all names": ("b", "s", "p"), "batch is a number": (1, "s", "p"), "past is a name": (1, new, "p"), "new is a name": (1, "s", buffer)}
    for way, declared in ways.items():
        assert compare(declared, new, tokens, buffer) == ("right", tokens + new, max(buffer, tokens + new)), (case, way)
    assert compare(ways["all names"], new, tokens, buffer, fix=True) == numbers[case], case
    found = compare((1, new, buffer), new, tokens, buffer)
    print(f"{case}: by names right and {tokens + new} long, by numbers {found[0]} and {found[1]} long; ONNX Runtime {found[2]}")
    assert found == numbers[case], (case, found)
print("as stated")
PY
