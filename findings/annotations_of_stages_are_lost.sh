#!/usr/bin/env bash
# Libraries: onnx 1.23.2, onnxruntime 1.32.0, onnx-ir 1.1.0, onnxscript 0.7.2, onnxslim 0.1.98, onnxsim 0.8.1, onnxoptimizer 0.4.2,
#            onnx-graphsurgeon 0.6.1 (Python 3.11).
# Expected:  ONNX has fields for a split: a model's configuration, a node's device_configurations with pipeline_stage (IR 11) and
#            metadata_props. A tool that changes no node keeps them; onnx's own tools do in any case.
# Happens:   of 12 tools six drop all of them from a model of two nodes that stay what they were, silently: onnxslim, onnxsim,
#            onnxoptimizer, graphsurgeon - and onnx's own version converter and text form (printer, then parser).
#            ONNX Runtime's saved model, onnx-ir and onnxscript keep all. onnx.utils.Extractor keeps the stages of nodes and
#            drops the configuration that they name: checker and ONNX Runtime accept the dangling reference.
# Matters:   a plan written into a model survives ONNX Runtime and not the clean-up step before it; annotate last, and treat
#            a stage number without its configuration as stale.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 onnx-ir==1.1.0 onnxscript==0.7.2 onnxslim==0.1.98 onnxsim==0.8.1 onnxoptimizer==0.4.2 onnx-graphsurgeon==0.6.1 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import logging

import numpy as np
import onnx
import onnx.inliner
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxoptimizer
import onnxruntime as ort
import onnxscript.optimizer
import onnxsim
import onnxslim
from onnx import TensorProto, helper, numpy_helper, parser, printer

logging.disable(logging.CRITICAL)


def build():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="n0"), helper.make_node("Relu", ["h"], ["y"], name="n1")]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=11)
    model.configuration.add(name="pipeline", num_devices=2)
    for stage, node in enumerate(model.graph.node):
        node.metadata_props.add(key="stage", value=str(stage))
        node.device_configurations.add(configuration_id="pipeline", pipeline_stage=stage)
    onnx.checker.check_model(model, full_check=True)
    return model


def by_runtime(model):
    options = ort.SessionOptions()
    options.optimized_model_filepath = "saved.onnx"
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load("saved.onnx")


def kept(model):
    nodes = {n.name: n for n in model.graph.node}
    assert [n.op_type for n in model.graph.node] == ["MatMul", "Relu"] and set(nodes) == {"n0", "n1"}, nodes
    stages = [[d.pipeline_stage for d in nodes[name].device_configurations] for name in ("n0", "n1")]
    notes = [[p.value for p in nodes[name].metadata_props] for name in ("n0", "n1")]
    assert stages in ([[0], [1]], [[], []]) and notes in ([["0"], ["1"]], [[], []]), (stages, notes)
    return len(model.configuration), stages != [[], []], notes != [[], []]


TOOLS = {
    "onnxruntime": by_runtime,
    "onnx-ir": lambda m: ir.serde.serialize_model(ir.serde.deserialize_model(m)),
    "onnxscript": onnxscript.optimizer.optimize,
    "shape inference": onnx.shape_inference.infer_shapes,
    "inliner": onnx.inliner.inline_local_functions,
    "extractor": lambda m: onnx.utils.Extractor(m).extract_model(["x"], ["y"]),
    "onnxslim": onnxslim.slim,
    "onnxsim": lambda m: onnxsim.simplify(m)[0],
    "onnxoptimizer": lambda m: onnxoptimizer.optimize(m, ["eliminate_identity"]),
    "graphsurgeon": lambda m: gs.export_onnx(gs.import_onnx(m)),
    "version converter": lambda m: onnx.version_converter.convert_version(m, 22),
    "text": lambda m: parser.parse_model(printer.to_text(m)),
}
result = {name: kept(apply(build())) for name, apply in TOOLS.items()}
everything, nothing = (1, True, True), (0, False, False)
assert [n for n in result if result[n] == everything] == ["onnxruntime", "onnx-ir", "onnxscript", "shape inference", "inliner"], result
assert result["extractor"] == (0, True, True), result
assert [n for n in result if result[n] == nothing] == list(TOOLS)[6:], result
dangling = TOOLS["extractor"](build())
onnx.checker.check_model(dangling, full_check=True)
ort.InferenceSession(dangling.SerializeToString(), providers=["CPUExecutionProvider"])
print("as stated: all is lost by", ", ".join(n for n in result if result[n] == nothing))
PY
