#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider).
# Expected:  GroupQueryAttention with a cache in place: total_sequence_length is the number of tokens after the pass; another number than
#            seqlens_k + 1 is an error, or decides what is attended to.
# Happens:   for a pass of one token on a cache of 5 in a buffer of 16, each number from 2 to 16 gives the same result to the bit.
#            1, equal to the length of the pass, means "first prompt": the whole cache is passed over, and the result is that of an empty
#            cache, without a word. 0 and 17 are errors.
# Matters:   a decoding loop or a stage that feeds the number of new tokens (the name of a feed in other runtimes) decodes
#            plausible text without memory; a wrong number is noticed in neither direction. Set it from seqlens_k and check.
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

SIZE, BUFFER, PAST = 8, 16, 5
FLOAT = TensorProto.FLOAT
value = helper.make_tensor_value_info
node = helper.make_node(
    "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total"], ["y", "present_k", "present_v"],
    domain="com.microsoft", num_heads=2, kv_num_heads=1)
cache = [1, 1, BUFFER, SIZE]
graph = helper.make_graph(
    [node], "g",
    [value("q", FLOAT, [1, 1, 2 * SIZE]), value("k", FLOAT, [1, 1, SIZE]), value("v", FLOAT, [1, 1, SIZE]),
     value("past_k", FLOAT, cache), value("past_v", FLOAT, cache),
     value("seqlens_k", TensorProto.INT32, [1]), value("total", TensorProto.INT32, [])],
    [value("y", FLOAT, [1, 1, 2 * SIZE]), value("present_k", FLOAT, cache), value("present_v", FLOAT, cache)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def attend(total, past=PAST):
    draw = np.random.default_rng(0)
    new = {name: draw.random((1, 1, width), np.float32) for name, width in (("q", 2 * SIZE), ("k", SIZE), ("v", SIZE))}
    buffers = {name: draw.random(cache, np.float32) for name in "kv"}
    kept = {name: ort.OrtValue.ortvalue_from_numpy(buffers[name]) for name in "kv"}
    binding = session.io_binding()
    binding.bind_output("y", "cpu")
    lengths = {"seqlens_k": np.array([past], np.int32), "total": np.array(total, np.int32)}
    for name, array in {**new, **lengths}.items():
        binding.bind_cpu_input(name, array)
    for name in "kv":
        binding.bind_ortvalue_input(f"past_{name}", kept[name])
        binding.bind_ortvalue_output(f"present_{name}", kept[name])
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy().ravel(), new["v"].ravel()


right, _ = attend(PAST + 1)
for total in range(2, BUFFER + 1):
    assert np.array_equal(attend(total)[0], right), total
forgotten, own = attend(1)
assert not np.allclose(forgotten, right, atol=1e-2)
assert np.allclose(forgotten, np.tile(own, 2), atol=1e-6)
for total in (0, BUFFER + 1):
    try:
        attend(total)
    except Exception as error:
        assert "GroupQueryAttention" in str(error), error
    else:
        raise AssertionError(total)
print("as stated: totals from 2 to", BUFFER, "agree, 1 sees the new token alone")
PY
