#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6 (Python 3.11, CPU provider).
# Expected:  an array that cannot be used as it lies in memory is refused or copied: strided as the place of an output, of another byte
#            order as input. Results that were handed out stay. A scalar input takes a scalar.
# Happens:   a strided array bound as output by ortvalue_from_numpy is not written at all. A transposed array bound as input is copied
#            at binding, so later values are not seen, while those of a contiguous one are. An output bound to "cpu" is one
#            buffer: the next run changes the array of the last. run() reads big-endian float32 as if it were little-endian, and
#            an input of rank 0 takes a matrix. No error in any case.
# Matters:   what moves between stages is of these kinds: views on received buffers, slices of caches,
#             results kept in a queue while the next sample runs.
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


def session(*shape):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


line = session(4)
x = np.full(4, 7, np.float32)


def run_into(array):
    binding = line.io_binding()
    binding.bind_cpu_input("x", x)
    place = ort.OrtValue.ortvalue_from_numpy(array)
    binding.bind_ortvalue_output("y", place)
    line.run_with_iobinding(binding)
    return place.numpy().tolist()


strided = np.zeros(8, np.float32)[::2]
assert run_into(strided) == [-7] * 4 and strided.tolist() == [0] * 4


def seen(array):
    """The first output before and after the bound input is changed, and the first result as it is after that."""
    table = session(*array.shape)
    binding = table.io_binding()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y", "cpu")
    table.run_with_iobinding(binding)
    result = binding.get_outputs()[0].numpy()
    before = float(result[0, 0])
    array += 100
    table.run_with_iobinding(binding)
    return before, float(binding.get_outputs()[0].numpy()[0, 0]), float(result[0, 0])


assert seen(np.ones((2, 3), np.float32)) == (-1, -101, -101)
assert seen(np.ones((3, 2), np.float32).T) == (-1, -1, -1)

little = np.arange(1, 5, dtype=np.float32)
other = little.astype(">f4")
assert (other == little).all()
(result,) = line.run(None, {"x": other})
np.testing.assert_array_equal(result, -other.view("<f4"))
assert not np.allclose(result, -little)
assert session().run(None, {"x": np.ones((2, 2), np.float32)})[0].shape == (2, 2)
print("as stated: strides and byte order passed over, results reused")
PY
