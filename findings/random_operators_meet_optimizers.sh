#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2, onnxsim 0.8.1, onnxslim 0.1.98, onnxoptimizer 0.4.2, onnxscript 0.7.2,
#            onnx-graphsurgeon 0.6.1, onnx-ir 1.1.0 (Python 3.11, CPU provider).
# Expected:  operators that draw are no constants and no common subexpressions: optimisers leave RandomNormalLike, RandomNormal,
#            Bernoulli and Dropout in training mode alone. Each new session draws numbers of its own.
# Happens:   two RandomNormalLike nodes without a seed are merged into one by onnxsim, onnxslim and onnxoptimizer (x - x = 0
#            where noise was); RandomNormal without a seed is frozen to a constant by onnxslim and graphsurgeon. onnxscript and
#            onnx-ir spare these two, yet onnxscript freezes Bernoulli of a constant, and merges two Dropouts that
#            train, as onnx-ir's CSE pass does. ONNX Runtime's own optimiser spares all. But each new session of a process
#            draws the same numbers again, except for Dropout, whose draws differ.
# Matters:   whether a split "equals" the whole model must be told apart from noise that a simplifier removed before the split;
#            replicas of a stage in threads of one process add the same noise to different samples.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 onnxsim==0.8.1 onnxslim==0.1.98 onnxoptimizer==0.4.2 onnxscript==0.7.2 onnx-graphsurgeon==0.6.1 onnx-ir==1.1.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import logging

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxoptimizer
import onnxruntime as ort
import onnxscript.optimizer
import onnxsim
import onnxslim
from onnx import TensorProto, helper, load, numpy_helper
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

logging.disable(logging.CRITICAL)
SIZE = 64
X = {"x": np.full(SIZE, 0.5, np.float32)}


def model(*nodes):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE]) for name in "xy"]
    weights = [
        numpy_helper.from_array(np.full(SIZE, 0.5, np.float32), "half"),
        numpy_helper.from_array(np.float32(0.5), "ratio"), numpy_helper.from_array(np.bool_(True), "training"),
    ]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [w for w in weights if w.name in used])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def twins(operator, *more):
    make = helper.make_node
    return lambda: model(make(operator, ["x", *more], ["a"]), make(operator, ["x", *more], ["b"]), make("Sub", ["a", "b"], ["y"]))


def frozen(operator, *inputs, **attributes):
    return lambda: model(helper.make_node(operator, inputs, ["a"], **attributes), helper.make_node("Add", ["x", "a"], ["y"]))


def session(made):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def by_runtime(made):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = "optimised.onnx"
    ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return load("optimised.onnx")


def by_ir(made):
    return ir.serde.serialize_model(CommonSubexpressionEliminationPass()(ir.serde.deserialize_model(made)).model)


TOOLS = {
    "onnxruntime": by_runtime,
    "onnxsim": lambda m: onnxsim.simplify(m)[0],
    "onnxslim": onnxslim.slim,
    "onnxoptimizer": lambda m: onnxoptimizer.optimize(m, ["eliminate_common_subexpression"]),
    "onnxscript": onnxscript.optimizer.optimize,
    "onnx-ir": by_ir,
    "graphsurgeon": lambda m: gs.export_onnx(gs.import_onnx(m).fold_constants().cleanup()),
}


def draws(made, cancels):
    runs = [session(made).run(None, X)[0]] if cancels else []
    one = session(made)
    runs = runs or [one.run(None, X)[0], one.run(None, X)[0]]
    return bool(runs[0].any()) if cancels else not np.array_equal(*runs)


CASES = {
    "two RandomNormalLike": (twins("RandomNormalLike"), True, {"onnxsim", "onnxslim", "onnxoptimizer"}),
    "RandomNormal": (frozen("RandomNormal", shape=[SIZE]), False, {"onnxslim", "graphsurgeon"}),
    "Bernoulli of a constant": (frozen("Bernoulli", "half"), False, {"onnxslim", "graphsurgeon", "onnxscript"}),
    "two training Dropouts": (
        twins("Dropout", "ratio", "training"), True, {"onnxsim", "onnxslim", "onnxoptimizer", "onnxscript", "onnx-ir"}),
}
for name, (build, cancels, wrong) in CASES.items():
    assert draws(build(), cancels), name
    found = {tool for tool, apply in TOOLS.items() if not draws(apply(build()), cancels)}
    assert found == wrong, (name, found)
    print(f"as stated: {name}: no longer drawn after {', '.join(sorted(found))}")

for name in ("RandomNormal", "Bernoulli of a constant"):
    build = CASES[name][0]
    assert np.array_equal(session(build()).run(None, X)[0], session(build()).run(None, X)[0]), name
build = CASES["two training Dropouts"][0]
assert not np.array_equal(session(build()).run(None, X)[0], session(build()).run(None, X)[0])
print("as stated: new sessions repeat RandomNormal and Bernoulli, not Dropout")
PY
