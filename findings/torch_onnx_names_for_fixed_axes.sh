#!/usr/bin/env bash
# Libraries: PyTorch 2.13.0 (torch.onnx.export with its default exporter), onnxscript 0.7.2, onnx 1.23.2, onnxruntime 1.32.0 as a reader,
#            numpy 2.4.6 (Python 3.11).
# Expected:  an axis marked Dim.AUTO that the model turns out to fix, as the 8 features that a Linear(8, 4) takes, is a number in the ONNX
#            model: torch.export, which decides that, says x is [s, 8], and its own module refuses 7 features ("x.size()[1] == 8").
# Happens:   the number becomes a name. From that exported program the inputs of the ONNX model are x ['s..', '8'] and y ['s..', '4'], with the
#            digits as `dim_param`; from the module itself, with the same axes marked, they are new free names, though the program inside
#            the result holds them to 8 and 4 (range VR[8, 8]). The outputs have their 4 as a number. The checker passes with full shape
#            inference; ONNX Runtime takes x with 7 features and ends in the middle of the run.
# Matters:   heads, head sizes and hidden sizes of caches become free dimensions of a decoder (as Transformers' exporter marks all axes so): who
#            asks the model for the size of a cache gets the text "64", or a name, memory and costs cannot be told, and what binds free
#            dimensions must read names that are numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: torch==2.13.0 onnxscript==0.7.2 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
"$work/env/bin/python" - 2>"$work/errors" <<'PY' || { cat "$work/errors" >&2; exit 1; }
import logging
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from torch.export import Dim

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Linear(8, 4)

    def forward(self, x, y):
        return self.product(x) + y


def axes(values):
    """Each axis of some values as its name or number."""
    return {v.name: [getattr(d, d.WhichOneof("value")) for d in v.type.tensor_type.shape.dim] for v in values}


net, example = Net().eval(), (torch.randn(3, 8), torch.randn(3, 4))
marked = ({0: Dim.AUTO, 1: Dim.AUTO},) * 2
program = torch.export.export(net, example, dynamic_shapes=marked)
known = {node.name: int(node.meta["val"].shape[1]) for node in program.graph.nodes if node.name in ("x", "y")}
assert known == {"x": 8, "y": 4}, known
try:
    program.module()(torch.randn(3, 7), example[1])
except AssertionError as error:
    assert "x.size()[1] == 8" in str(error), error
else:
    raise AssertionError("7 features were taken")
print("torch.export:", known)

of_program = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
shapes = axes(of_program.graph.input)
assert (shapes["x"][1], shapes["y"][1]) == ("8", "4") and shapes["x"][0] == shapes["y"][0], shapes
assert [dims[1] for dims in axes(of_program.graph.output).values()] == [4]
print("torch.onnx.export of the program:", shapes)

made = torch.onnx.export(net, example, dynamic_shapes=marked, dynamo=True, verbose=False)
shapes = axes(made.model_proto.graph.input)
free = {name: dims[1] for name, dims in shapes.items()}
assert all(isinstance(dim, str) and not dim.isdigit() for dim in free.values()), shapes
ranges = {str(name): (int(found.lower), int(found.upper)) for name, found in made.exported_program.range_constraints.items()
          if str(name) in free.values()}
assert ranges == {free["x"]: (8, 8), free["y"]: (4, 4)}, ranges
print("torch.onnx.export of the module:", shapes, "held to", ranges)

options = ort.SessionOptions()
options.log_severity_level = 4
for model, wanted in ((of_program, "8"), (made.model_proto, free["x"])):
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape[1] == wanted
    try:
        session.run(None, {"x": np.zeros((3, 7), np.float32), "y": np.zeros((3, 4), np.float32)})
    except Exception as error:
        assert "while running" in str(error) and "Dimension mismatch" in str(error), error
    else:
        raise AssertionError("7 features were computed")
print("ONNX Runtime: x has 7 features until the product")
print("as stated")
PY
