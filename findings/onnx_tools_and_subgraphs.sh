#!/usr/bin/env bash
# Libraries: onnx 1.23.2, onnxruntime 1.32.0 (Python 3.11).
# Expected:  onnx's own tools for parts of models know the whole of ONNX: what a body of If or Loop reads from outside belongs to its node,
#            and local functions belong to their calls. Extractor and extract_model return what the part needs,
#            compose.add_prefix renames all or nothing, version_converter converts what a function holds or says no.
# Happens:   Extractor leaves out the node and the weight that a branch captures, and a local function that is called in a branch alone,
#            even of the "part" from all inputs to all outputs; extract_model notices missing captures, not the function.
#            add_prefix renames a weight at the top and not the branch that captures it (captured results of nodes are
#            renamed): the model is invalid. version_converter drops all local functions; checker.check_model with full_check passes
#            what it returns, ONNX Runtime does not.
# Matters:   these three are what one would cut, join and lift stages with. Models with control flow or functions need an own walk with
#            captures as inputs; inline functions first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnx.compose
import onnx.utils
import onnx.version_converter
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper


def value(name, kind=TensorProto.FLOAT, shape=(2,)):
    return helper.make_tensor_value_info(name, kind, list(shape))


def build(branch, functions=()):
    """If with a branch that holds one node; its other branch passes h on."""
    yes = helper.make_graph([branch], "yes", [], [value("yes")])
    no = helper.make_graph([helper.make_node("Identity", ["x"], ["no"])], "no", [], [value("no")])
    nodes = [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)]
    weight = numpy_helper.from_array(np.full(2, 3, np.float32), "w")
    graph = helper.make_graph(nodes, "g", [value("c", TensorProto.BOOL, ()), value("x")], [value("y")], [weight])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"c": np.array(True), "x": np.ones(2, np.float32)})[0].tolist()


def fails(call, *words):
    try:
        call()
    except Exception as error:
        assert all(word in str(error) for word in words), error
        return True
    return False


twice = helper.make_function("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)])
captures = build(helper.make_node("Mul", ["h", "w"], ["yes"]))
calls = build(helper.make_node("Twice", ["x"], ["yes"], domain="own"), [twice])
assert run(captures) == [-3, -3] and run(calls) == [2, 2]

part = onnx.utils.Extractor(captures).extract_model(["c", "x"], ["y"])
assert [n.op_type for n in part.graph.node] == ["If"] and not part.graph.initializer, part
assert fails(lambda: run(part), "topologically sorted", "input 'h'")
onnx.save(captures, "captures.onnx")
assert fails(lambda: onnx.utils.extract_model("captures.onnx", "part.onnx", ["c", "x"], ["y"]), "input 'h'")

onnx.save(calls, "calls.onnx")
onnx.utils.extract_model("calls.onnx", "part.onnx", ["c", "x"], ["y"])
part = onnx.load("part.onnx")
assert [n.op_type for n in part.graph.node] == ["If"] and not part.functions
assert fails(lambda: run(part), "own:Twice")

prefixed = onnx.compose.add_prefix(captures, "p_")
assert [i.name for i in prefixed.graph.initializer] == ["p_w"]
(body,) = (a.g for a in prefixed.graph.node[1].attribute if a.name == "then_branch")
assert list(body.node[0].input) == ["p_h", "w"]
assert fails(lambda: onnx.checker.check_model(prefixed), "input 'w'")

top = helper.make_graph([helper.make_node("Twice", ["x"], ["y"], domain="own")], "g", [value("x")], [value("y")])
opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
called = helper.make_model(top, opset_imports=opsets, ir_version=10, functions=[twice])
onnx.checker.check_model(called, full_check=True)
converted = onnx.version_converter.convert_version(called, 22)
assert [n.op_type for n in converted.graph.node] == ["Twice"] and not converted.functions
onnx.checker.check_model(converted, full_check=True)
assert fails(lambda: run(converted), "own:Twice")
print("as stated: captures and functions are lost by Extractor, add_prefix and version_converter")
PY
