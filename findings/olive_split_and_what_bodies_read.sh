#!/usr/bin/env bash
# Libraries: olive-ai 0.13.0 (its pass SplitModel), torch 2.13.0 (which it imports), onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6 (Python 3.11).
# Expected:  a pass that splits an ONNX model by names of nodes gives parts that ONNX Runtime loads and that compute, one after the other, all
#            outputs of the model; or it refuses the model.
# Happens:   parts of a chain, with skips, constants and Q/DQ pairs on the cut, are right. But what bodies of If read from outside counts as
#            read by nobody: the tensors do not become inputs of the part with the If nor outputs of the one before, and a part from
#            which nothing else is read comes out with no node at all. Definitions of local functions are left behind, calls are not.
#            An initializer that is an output of the model is an output of no part. The pass ends as if all were well each time: the first
#            two fail when a session is made (the checker of onnx passes the second), and the third is one output less.
# Matters:   merged decoders (an If between prompt and token pass), and models whose layers are functions, are what people split. Load each part,
#            and compare names of outputs with those of the model, before anything is deployed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: olive-ai==0.13.0 torch==2.13.0 transformers==5.24.0 onnxscript==0.7.2 onnx-ir==1.1.0 onnx==1.23.2 \
    onnxruntime==1.32.0 numpy==2.4.6 requests==2.32.5 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
CI=1 env/bin/python - 2>errors <<'PY' || { cat errors >&2; exit 1; }
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.split import SplitModel
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
X = np.array([1, -2], np.float32)


def value(name, kind=TensorProto.FLOAT, shape=(2,)):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, weights=(), functions=()):
    versions = [helper.make_opsetid("", 20), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    graph = helper.make_graph(nodes, "g", inputs, [value(name) for name in outputs], list(weights))
    made = helper.make_model(graph, opset_imports=versions, ir_version=10, functions=list(functions))
    onnx.checker.check_model(made, full_check=True)
    return made


def parts_of(name, made):
    """Parts of a model: nodes below /a, and nodes below /b."""
    folder = Path(name)
    folder.mkdir()
    onnx.save(made, folder / "model.onnx")
    split = create_pass_from_dict(SplitModel, {"split_assignments": "a=0;b=1"}, disable_search=True)
    found = split.run(ONNXModelHandler(str(folder / "model.onnx")), str(folder / "parts"))
    return [onnx.load(part.model_path) for part in found.model_components]


def chained(parts, feeds):
    """What the parts compute, one after the other."""
    known = dict(feeds)
    for part in parts:
        session = session_of(part)
        outputs = [o.name for o in session.get_outputs()]
        known |= dict(zip(outputs, session.run(None, {i.name: known[i.name] for i in session.get_inputs()})))
    return known


def session_of(made):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ends(part):
    return [n.op_type for n in part.graph.node], [i.name for i in part.graph.input], [o.name for o in part.graph.output]


def fails(part, words):
    try:
        session_of(part)
    except Exception as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{ends(part)} was loaded")


relu = node("Relu", ["x"], ["t"], "/a/Relu")
plain = model([relu, node("Neg", ["t"], ["u"], "/b/Neg"), node("Add", ["u", "t"], ["y"], "/b/Add")], [value("x")], ["y"])
parts = parts_of("plain", plain)
assert np.array_equal(chained(parts, {"x": X})["y"], session_of(plain).run(None, {"x": X})[0])
print("a chain:", *map(ends, parts))

bodies = [helper.make_graph([node("Add", ["t", "u"], [name])], name, [], [value(name)]) for name in ("yes", "no")]
branch = model(
    [relu, node("Exp", ["x"], ["u"], "/a/Exp"), node("If", ["c"], ["y"], "/b/If", then_branch=bodies[0], else_branch=bodies[1])],
    [value("x"), value("c", TensorProto.BOOL, ())], ["y"])
session_of(branch).run(None, {"x": X, "c": np.array(True)})
first, second = parts_of("branch", branch)
assert ends(first) == ([], ["x"], []) and ends(second) == (["If"], ["c"], ["y"]), (ends(first), ends(second))
fails(second, "t")
print("bodies that read t and u:", ends(first), ends(second))

function = helper.make_function("local", "F", ["p"], ["q"], [node("Neg", ["p"], ["q"])], [helper.make_opsetid("", 20)])
called = model([relu, node("F", ["t"], ["y"], "/b/F", domain="local")], [value("x")], ["y"], functions=[function])
session_of(called).run(None, {"x": X})
first, second = parts_of("called", called)
assert ends(second)[0] == ["F"] and not second.functions
onnx.checker.check_model(second, full_check=True)
fails(second, "is not a registered function/op")
print("a local function:", ends(second), "without its definition")

weight = numpy_helper.from_array(np.array([3, 4], np.float32), "w")
shown = model([node("Add", ["x", "w"], ["t"], "/a/Add"), node("Add", ["t", "w"], ["y"], "/b/Add")], [value("x")], ["y", "w"], [weight])
assert len(session_of(shown).run(None, {"x": X})) == 2
parts = parts_of("shown", shown)
assert [ends(part)[2] for part in parts] == [["t"], ["y"]], parts
print("a weight that is an output:", *(ends(part)[2] for part in parts))
print("as stated")
PY
