#!/usr/bin/env bash
# Libraries: tinygrad 0.14.0 (its ONNX runner, on the device PYTHON, which needs no compiler), onnx 1.23.2, onnxruntime 1.32.0 as the
#            reference, numpy 2.4.6 (Python 3.11).
# Expected:  a runner is called once a token: each call computes with the inputs of that call, or refuses them. Free dimensions are free at each
#            call.
# Happens:   a whole number that Slice, Expand or TopK reads as bounds, shape or count is kept from the first call, also if it is an
#            input, or computed from one: rows "position to position + 1" of a table are row 0 for each token, and the best 3 are the
#            best 1, without a word. Gather and TensorScatter follow the same input, so that a token is written to its place in the cache
#            with the rotation of place 0. Free dimensions keep the sizes of the first call: a cache that grows is refused at the second
#            token ("Expected 1, received 2"). A new runner of the same file does it right.
# Matters:   a stage that is tried on one pass is right to the bit, and wrong at each later token; a fixed cache with a position as an
#            input, which is what one takes to avoid shapes that change, is the case that says nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: tinygrad==0.14.0 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
export DEV=PYTHON CACHEDB="$work/cache.db"
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


class Both:
    """One model in both runtimes: a call returns what each computes, `fresh` what a new runner does."""

    def __init__(self, name, nodes, inputs, result, **constants):
        self.path = f"{name}.onnx"
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info(*one) for one in inputs],
                                  [helper.make_tensor_value_info("y", FLOAT, result)],
                                  [numpy_helper.from_array(array, key) for key, array in constants.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, self.path)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
        self.runner = OnnxRunner(self.path)

    def __call__(self, runner=None, **feeds):
        got = (runner or self.runner)({name: Tensor(array) for name, array in feeds.items()})["y"].numpy()
        return got.tolist(), self.session.run(["y"], feeds)[0].tolist()

    def fresh(self, **feeds):
        got, right = self(OnnxRunner(self.path), **feeds)
        return got == right


def whole(*numbers):
    return np.array(numbers, np.int64)


table = {"table": np.arange(8, dtype=np.float32), "one": whole(1)}
where = [("position", INT, [1])]
rows = [node("Add", ["position", "one"], ["end"]), node("Slice", ["table", "position", "end"], ["y"])]
kept = {
    "slice": (Both("slice", rows, where, [1], **table), [1.0], [3.0]),
    "topk": (Both("topk", [node("TopK", ["table", "position"], ["y", "order"])], where, ["n"], **table), [7.0], [7.0, 6.0, 5.0]),
    "expand": (Both("expand", [node("Expand", ["eight", "position"], ["y"])], where, ["n"], eight=np.array([8], np.float32)), [8.0], [8.0] * 3),
}
for name, (both, first, later) in kept.items():
    assert both(position=whole(1)) == (first, first), name
    assert both(position=whole(3)) == (first, later), name
    assert both.fresh(position=whole(3)), name
    print(f"{name} with 1, then with 3:", first, first, "where ONNX Runtime has", later)

look = Both("look", [node("Gather", ["table", "position"], ["y"])], where, [1], **table)
cache = [1, 4, 2]
write = Both("write", [node("TensorScatter", ["cache", "new", "position"], ["y"])],
             [("cache", FLOAT, cache), ("new", FLOAT, [1, 1, 2]), *where], cache)
both_ways = Both("both_ways", [*rows[:1], node("Slice", ["table", "position", "end"], ["row"]), node("Mul", ["new", "row"], ["turned"]),
                               node("TensorScatter", ["cache", "turned", "position"], ["y"])],
                 [("cache", FLOAT, cache), ("new", FLOAT, [1, 1, 2]), *where], cache, **table)
for position in range(4):
    feeds = {"cache": np.full(cache, 9, np.float32), "new": np.ones((1, 1, 2), np.float32), "position": whole(position)}
    for both in (look, write):
        got, right = both(**{name: feeds[name] for name in feeds if both is write or name == "position"})
        assert got == right, (both.path, position)
    got, right = both_ways(**feeds)
    assert [row.index([0.0, 0.0]) for row in got] == [position] and right[0][position] == [position] * 2
    print("a token at", position, "is cached as", got[0][position], "where ONNX Runtime has", right[0][position])

grow = Both("grow", [node("Concat", ["past", "new"], ["y"], axis=0)], [("past", FLOAT, ["p", 2]), ("new", FLOAT, [1, 2])], ["t", 2])
steps = [{"past": np.ones((past, 2), np.float32), "new": np.zeros((1, 2), np.float32)} for past in (1, 2)]
got, right = grow(**steps[0])
assert got == right
try:
    grow(**steps[1])
except RuntimeError as error:
    assert "Expected 1, received 2" in str(error), error
    print("a cache that grows:", error)
else:
    raise AssertionError("the second length was taken")
assert grow.fresh(**steps[1])
print("as stated")
PY
