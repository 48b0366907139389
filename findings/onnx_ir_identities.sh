#!/usr/bin/env bash
# Libraries: onnx-ir 1.1.0, onnx 1.23.2, onnxruntime 1.32.0; onnxscript 0.7.2 for comparison (Python 3.11).
# Expected:  IdentityEliminationPass takes out copies and keeps what callers see; where a copy has to stay (from an input to an output), it
#            stays, as its documentation says.
# Happens:   two outputs of one value become one name: outputs y and z of the copies, or y and its copy z, are "z" and "z" afterwards, and
#            asking for y is an error; checker.check_model with full_check passes the model, ONNX Runtime loads it. And a branch
#            of If that hands on a value from outside loses the copy that it needs: ONNX Runtime refuses the model.
#            onnxscript's optimizer gets all three right, since it keeps these copies.
# Matters:   the pass is what one cleans a stage with, and stages have such outputs: a value sent to two others under two names, a branch
#            that skips. Compare the names of the outputs before and after, and load the result.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnx-ir==1.1.0 onnxscript==0.7.2 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import onnxscript.optimizer
from onnx import TensorProto, helper
from onnx_ir.passes.common import IdentityEliminationPass


def value(name, kind=TensorProto.FLOAT, shape=(2,)):
    return helper.make_tensor_value_info(name, kind, list(shape))


def node(kind, source, target):
    return helper.make_node(kind, [source], [target])


def model(nodes, outputs, *inputs):
    graph = helper.make_graph(nodes, "g", [value("x"), *inputs], [value(name) for name in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def passed(made):
    read = onnx_ir.from_proto(onnx.ModelProto.FromString(made.SerializeToString()))
    return onnx_ir.to_proto(IdentityEliminationPass()(read).model)


def optimized(made):
    return onnxscript.optimizer.optimize(onnx.ModelProto.FromString(made.SerializeToString()))


def names(made):
    return [output.name for output in made.graph.output]


def run(made, *wanted, **feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [array.tolist() for array in session.run(list(wanted), {"x": np.ones(2, np.float32), **feeds})]


def error(call):
    try:
        call()
    except Exception as raised:
        return str(raised)
    return None


copies = model([node("Neg", "x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z")], "yz")
copied = model([node("Neg", "x", "y"), node("Identity", "y", "z")], "yz")
kept = model([node("Identity", "x", "y"), node("Identity", "x", "z")], "yz")
assert names(passed(kept)) == ["y", "z"]
for made in (copies, copied):
    assert run(made, "y", "z") == run(optimized(made), "y", "z") == [[-1, -1], [-1, -1]]
    result = passed(made)
    assert names(result) == ["z", "z"], names(result)
    onnx.checker.check_model(result, full_check=True)
    assert run(result, "z") == [[-1, -1]]
    assert "y" in error(lambda result=result: run(result, "y"))

skip = helper.make_graph([node("Identity", "a", "skip")], "skip", [], [value("skip")])
work = helper.make_graph([node("Abs", "a", "work")], "work", [], [value("work")])
branch = helper.make_node("If", ["c"], ["y"], then_branch=skip, else_branch=work)
skipping = model([node("Neg", "x", "a"), branch], "y", value("c", TensorProto.BOOL, ()))
for made in (skipping, optimized(skipping)):
    assert run(made, "y", c=np.array(True)) == [[-1, -1]] and run(made, "y", c=np.array(False)) == [[1, 1]]
said = error(lambda: run(passed(skipping), "y", c=np.array(True)))
assert "outer scope value being returned directly" in said, said
print("as stated: outputs y and z are", *names(passed(copies)), "- the branch is refused")
PY
