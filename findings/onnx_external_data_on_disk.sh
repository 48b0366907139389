#!/usr/bin/env bash
# Libraries: onnx 1.23.2, onnx-ir 1.1.0, onnxruntime 1.32.0 (Python 3.11, Linux).
# Expected:  onnx.save_model(model, path, save_as_external_data=True) writes model and weight file and leaves the model alone;
#            saving again over both files gives the same files. A weight file may be linked like any file: stages share it
#            by a hard link or a symbolic link, as download caches do.
# Happens:   (1) saving empties the model in memory: its weights are gone, a session from its bytes fails unless the working
#            directory holds the file. (2) Saving an equal model to the same place appends: the weight file has twice the
#            size, the first half is dead. (3) onnx's loader and checker, and onnx-ir, refuse a weight file that
#            has a second hard link anywhere; onnx refuses symbolic links as well.
# Matters:   writing stages in a loop, or repeatedly, loses weights or fills the disk; a folder of stages that shares one weight file by
#            links runs where it was made, and onnx's own tools refuse it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnx==1.23.2 onnx-ir==1.1.0 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import os

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

SIZE = 64 * 64 * 4


def build():
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy"]
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", value[:1], value[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def save(model):
    onnx.save_model(model, "stage/m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return os.path.getsize("stage/w.bin")


def refused(*calls):
    for call in calls:
        try:
            call()
        except (onnx.checker.ValidationError, ValueError) as error:
            assert "link" in str(error), error
        else:
            return False
    return True


os.mkdir("stage")
model = build()
assert len(model.graph.initializer[0].raw_data) == SIZE
assert save(model) == SIZE
assert not model.graph.initializer[0].raw_data and model.graph.initializer[0].data_location == TensorProto.EXTERNAL
try:
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
except Exception as error:
    assert "External data" in str(error), error
else:
    raise AssertionError("the model in memory still has its weights")
assert save(build()) == 2 * SIZE
assert int(next(e.value for e in onnx.load("stage/m.onnx", load_external_data=False).graph.initializer[0].external_data if e.key == "offset")) == SIZE


def load():
    onnx.load("stage/m.onnx")


def check():
    onnx.checker.check_model("stage/m.onnx")


def load_ir():
    onnx_ir.load("stage/m.onnx").graph.initializers["w"].const_value.numpy()


for call in (load, check, load_ir):
    call()
os.link("stage/w.bin", "other.bin")
assert refused(load, check, load_ir)
os.remove("other.bin")
for call in (load, check, load_ir):
    call()
os.rename("stage/w.bin", "stage/real.bin")
os.symlink("real.bin", "stage/w.bin")
assert refused(load, check)
print("as stated: emptied in memory, appended on disk, refused with a second link")
PY
