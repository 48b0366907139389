#!/usr/bin/env bash
# Libraries: onnxruntime 1.32.0, onnx 1.23.2 (Python 3.11, CPU provider).
# Expected:  an operator whose definition did not change runs in all later opsets: Swish has one version, 24. ONNX Runtime
#            1.32 has no kernel for it and takes the function body of its definition, as for Mish and HardSwish.
# Happens:   Swish runs in a model of opset 24 alone; with opset 25 to 28 the session fails: NOT_IMPLEMENTED, "Could not find an
#            implementation for Swish(24)". Mish and HardSwish (version 22, no kernels either) run in each. Inlining the
#            definition before by onnx.inliner helps only where the node spells its alpha out: where the default is meant, the
#            inliner writes a Constant without a value (for Elu and LeakyRelu too), which onnx.checker.check_model accepts
#            unless full_check is set, and no session is made.
# Matters:   raising the opset of a stage, or writing it with onnx's newest, makes a running model fail, and the message
#            names the version that does run; checks of "operator known" or "opset known" do not see it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

assert {s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == "Swish"} == {24}
kernels = {k.op_name for k in state.get_all_opkernel_def() if k.provider == "CPUExecutionProvider" and not k.domain}
assert not kernels & {"Swish", "Mish", "HardSwish"} and "Softsign" in kernels


def model(operator, opset, **attributes):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "g", value[:1], value[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def runs(made):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except state.NotImplemented as error:
        assert "Could not find an implementation for Swish(24)" in str(error), error
        return False
    return bool(np.isfinite(session.run(None, {"x": np.ones(3, np.float32)})[0]).all())


opsets = range(24, 29)
result = {op: [v for v in opsets if runs(model(op, v))] for op in ("Swish", "Mish", "HardSwish")}
assert result == {"Swish": [24], "Mish": list(opsets), "HardSwish": list(opsets)}, result


def inlined(made):
    operator = made.graph.node[0].op_type
    made = onnx.inliner.inline_selected_functions(made, [("", operator)], inline_schema_functions=True)
    assert operator not in {n.op_type for n in made.graph.node}
    onnx.checker.check_model(made)
    return made


assert runs(inlined(model("Swish", 25, alpha=1.0)))
for operator in ("Swish", "Elu", "LeakyRelu"):
    made = inlined(model(operator, 24))
    assert any(n.op_type == "Constant" and not n.attribute for n in made.graph.node), operator
    for refuses, kind in (
        (lambda made=made: onnx.checker.check_model(made, full_check=True), onnx.shape_inference.InferenceError), (lambda made=made: runs(made), state.Fail)):
        try:
            refuses()
        except kind:
            continue
        raise AssertionError((operator, kind))
print("as stated: opsets that run:", result)
PY
