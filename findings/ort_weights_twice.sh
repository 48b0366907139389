#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider, Linux).
# Expected:  a session made from serialised bytes needs them only while it is made; and four sessions given one and the same
#            OrtValue by SessionOptions.add_initializer share that weight.
# Happens:   the Python session keeps the bytes for its whole life (attribute _model_bytes), though the caller dropped
#            them: one more copy of all weights than a session made from the file's path. The shared weight is copied by
#            each session again (prepacking): four sessions hold more than four copies besides the shared one; with
#            session.disable_prepacking=1 they hold none.
# Matters:   stages are small models that are handed over as bytes, and replicas share weights: both cost a whole set of
#            weights for each stage without any sign, where the reason for splitting was memory.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
cat >one.py <<'PY'
import ctypes
import gc
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTH, MODE = 4096, sys.argv[1]
weight = np.random.default_rng(0).random((WIDTH, WIDTH), np.float32)
value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
    [value("x", TensorProto.FLOAT, [1, WIDTH])], [value("y", TensorProto.FLOAT, [1, WIDTH])],
    [numpy_helper.from_array(weight, "w")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(session):
    session.run(None, {"x": np.ones((1, WIDTH), np.float32)})
    return session


size = weight.nbytes
if MODE in ("path", "bytes"):
    onnx.save(model, "m.onnx")
    del model, graph, weight
    before = resident()
    sessions = [run(ort.InferenceSession("m.onnx" if MODE == "path" else open("m.onnx", "rb").read()))]
else:
    with open("w.bin", "wb") as file:
        file.truncate(size)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    small, shared = model.SerializeToString(), ort.OrtValue.ortvalue_from_numpy(weight)
    before, sessions = resident(), []
    for _ in range(4):
        options = ort.SessionOptions()
        options.add_initializer("w", shared)
        if MODE == "plain":
            options.add_session_config_entry("session.disable_prepacking", "1")
        sessions.append(run(ort.InferenceSession(small, options)))
print((resident() - before) / size)
PY
path=$(env/bin/python one.py path)
bytes=$(env/bin/python one.py bytes)
packed=$(env/bin/python one.py packed)
plain=$(env/bin/python one.py plain)
env/bin/python - "$path" "$bytes" "$packed" "$plain" <<'PY'
import sys

path, from_bytes, packed, plain = map(float, sys.argv[1:])
assert 0.8 < path < 1.6, path
assert 0.8 < from_bytes - path < 1.2, (path, from_bytes)
assert packed > 3.8, packed
assert plain < 0.6, plain
print(f"as stated: copies of the weight: path {path:.2f}, bytes {from_bytes:.2f};"
      f" beside a shared one, four sessions {packed:.2f}, without prepacking {plain:.2f}")
PY
