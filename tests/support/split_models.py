"""Small ONNX models, one a feature that a split must get right, and a way to run splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from dnnp.formats.onnx.stages import MODEL, WEIGHT_MAKERS, StageModel, boundary

Feeds = dict[str, np.ndarray]
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {}

node = helper.make_node
graph = helper.make_graph


def value(name: str, shape: Sequence[int | str | None] | None = (4,), kind: int = 1):
    """Declaration of a tensor, float32 by default."""
    return helper.make_tensor_value_info(name, kind, shape)


def array(name: str, values: object, dtype: type = np.float32) -> TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def make(body: onnx.GraphProto, *, ir: int = 8, opset: int = 17, functions: Sequence = (), **extra):
    """A model, with the domain of local functions imported when it has any."""
    opsets = [helper.make_opsetid("", opset)]
    if functions:
        opsets.append(helper.make_opsetid("local", 1))
    return helper.make_model(
        body, ir_version=ir, opset_imports=opsets, functions=functions, **extra
    )


def feature(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    """Register a model."""
    MODELS[build.__name__] = build
    return build


W = array("W", [1.5, -2, 0.5, 3])
V = array("V", [0.25, 1, -1, 2])
TRUE = array("yes", True, bool)


@feature
def tied_weights() -> onnx.ModelProto:
    """Two nodes far apart share a parameter."""
    nodes = [
        node("Mul", ["x", "W"], ["a"], name="first"),
        node("Relu", ["a"], ["b"]),
        node("Add", ["b", "V"], ["c"]),
        node("Mul", ["c", "W"], ["d"]),
        node("Add", ["d", "a"], ["y"]),
    ]
    return make(graph(nodes, "tied", [value("x")], [value("y")], [W, V]))


@feature
def skips_and_outputs() -> onnx.ModelProto:
    """Skip connections over stages; an output that later nodes read; all sorts of outputs."""
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Constant", [], ["c"], value=array("", [9, 8, 7, 6])),
        node("Split", ["a"], ["b0", "b1"], axis=0),
        node("Exp", ["b1"], ["e"]),
        node("Constant", [], ["unread"], value=array("", [1])),
        node("Concat", ["b0", "e"], ["f"], axis=0),
        node("Sub", ["f", "a"], ["g"]),
        node("Abs", ["a"], ["dead"]),
        node("Mul", ["g", "W"], ["h"]),
    ]
    outputs = ["h", "a", "W", "x", "c", "V", "b0", "unused"]
    shapes = {"b0": [2]}
    return make(
        graph(
            nodes,
            "outputs",
            [value("x"), value("unused")],
            [value(n, shapes.get(n, [4])) for n in outputs],
            [W, V],
        )
    )


@feature
def branches() -> onnx.ModelProto:
    """Nested `If` whose bodies capture everything there is to capture."""
    inner = graph(
        [node("Add", ["a", "W"], ["i1"]), node("Mul", ["i1", "made"], ["i2"])],
        "inner",
        [],
        [value("i2")],
    )
    other = graph([node("Sub", ["x", "local"], ["i3"])], "other", [], [value("i3")])
    then = graph(
        [
            node("Constant", [], ["local"], value=array("", [1, 2, 3, 4])),
            node("If", ["flag"], ["t"], then_branch=inner, else_branch=other),
        ],
        "then",
        [],
        [value("t")],
    )
    orelse = graph(
        [node("Add", ["b", "own"], ["e"])], "else", [], [value("e")], [array("own", [5, 5, 5, 5])]
    )
    nodes = [
        node("Constant", [], ["made"], value=array("", [2, 3, 4, 5])),
        node("Abs", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Not", ["flag"], ["unflag"]),
        node("If", ["unflag"], ["c"], then_branch=then, else_branch=orelse),
        node("Relu", ["b"], ["d"]),
        node("If", ["flag"], ["e0"], then_branch=then, else_branch=orelse),
        node("Sum", ["c", "d", "e0"], ["y"]),
    ]
    flag = value("flag", [], TensorProto.BOOL)
    return make(graph(nodes, "branches", [value("x"), flag], [value("y")], [W]))


@feature
def loops() -> onnx.ModelProto:
    """`Loop` and `Scan` with captures of parameters, inputs and activations."""
    body = graph(
        [
            node("Mul", ["state", "W"], ["s1"]),
            node("Add", ["s1", "b"], ["state_out"]),
            node("Identity", ["going"], ["going_out"]),
            node("Add", ["state_out", "x"], ["row"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("going", [], TensorProto.BOOL), value("state")],
        [value("going_out", [], TensorProto.BOOL), value("state_out"), value("row")],
    )
    scan = graph(
        [
            node("Add", ["acc", "item"], ["t"]),
            node("Mul", ["t", "V"], ["acc_out"]),
            node("Sub", ["acc_out", "a"], ["out"]),
        ],
        "scan",
        [value("acc"), value("item")],
        [value("acc_out"), value("out")],
    )
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Loop", ["count", "yes", "a"], ["last", "rows"], body=body),
        node("Sin", ["b"], ["s"]),
        node("Scan", ["s", "rows"], ["final", "scanned"], body=scan, num_scan_inputs=1),
        node("Add", ["final", "last"], ["y"]),
        node("ReduceSum", ["scanned"], ["z"]),
    ]
    stored = [W, V, TRUE, array("count", 3, np.int64)]
    return make(graph(nodes, "loops", [value("x")], [value("y"), value("z", [1, 1])], stored))


def _function(name: str, nodes: list, inputs: list[str], outputs: list[str], **extra):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, opsets, **extra)


@feature
def functions() -> onnx.ModelProto:
    """Functions that call functions, one called in a branch only, overloads, a reused body."""
    scale = _function(
        "Scale",
        [node("Constant", [], ["k"], value_float=2.0), node("Mul", ["p", "k"], ["q"])],
        ["p"],
        ["q"],
    )
    twice = _function(
        "Twice",
        [node("Scale", ["p"], ["m"], domain="local"), node("Scale", ["m"], ["q"], domain="local")],
        ["p"],
        ["q"],
    )
    shift = _function("Shift", [node("Neg", ["p"], ["q"])], ["p"], ["q"])
    over = _function("Over", [node("Abs", ["p"], ["q"])], ["p"], ["q"], overload="a")
    over2 = _function("Over", [node("Exp", ["p"], ["q"])], ["p"], ["q"], overload="b")
    spare = _function("Spare", [node("Log", ["p"], ["q"])], ["p"], ["q"])
    then = graph([node("Shift", ["c"], ["t"], domain="local")], "then", [], [value("t")])
    orelse = graph([node("Twice", ["x"], ["e"], domain="local")], "else", [], [value("e")])
    nodes = [
        node("Twice", ["x"], ["a"], domain="local"),
        node("Over", ["a"], ["b"], domain="local", overload="a"),
        node("Neg", ["b"], ["n"]),
        node("Over", ["n"], ["c"], domain="local", overload="b"),
        node("If", ["flag"], ["d"], then_branch=then, else_branch=orelse),
        node("Scale", ["d"], ["y"], domain="local"),
    ]
    flag = value("flag", [], TensorProto.BOOL)
    return make(
        graph(nodes, "functions", [value("x"), flag], [value("y")]),
        ir=10,
        functions=[scale, twice, shift, over, over2, spare],
    )


@feature
def old_initializers() -> onnx.ModelProto:
    """IR version 3: initializers are inputs too; one is an output as well."""
    nodes = [
        node("Mul", ["x", "W"], ["a"]),
        node("Add", ["a", "V"], ["b"]),
        node("Mul", ["b", "W"], ["y"]),
    ]
    inputs = [value("x"), value("W"), value("V")]
    return make(graph(nodes, "old", inputs, [value("y"), value("V")], [W, V]), ir=3, opset=8)


@feature
def overridable() -> onnx.ModelProto:
    """An input with a default."""
    nodes = [node("Mul", ["x", "W"], ["a"]), node("Add", ["a", "V"], ["y"])]
    return make(graph(nodes, "default", [value("x"), value("V")], [value("y")], [W, V]))


@feature
def weight_makers() -> onnx.ModelProto:
    """Weights made by `ConstantOfShape`, from a constant, from an initializer, for two stages."""
    nodes = [
        node("Constant", [], ["shape"], value=array("", [4], np.int64)),
        node("ConstantOfShape", ["shape"], ["ones"], value=array("", [1])),
        node("Add", ["x", "ones"], ["a"]),
        node("ConstantOfShape", ["size"], ["twos"], value=array("", [2])),
        node("Mul", ["a", "twos"], ["b"]),
        node("Shape", ["b"], ["s"]),
        node("ConstantOfShape", ["s"], ["zeros"], value=array("", [0.5])),
        node("Add", ["b", "zeros"], ["c"]),
        node("Mul", ["c", "ones"], ["y"]),
    ]
    outputs = [value("y"), value("twos")]
    return make(graph(nodes, "makers", [value("x")], outputs, [array("size", [4], np.int64)]))


@feature
def sparse() -> onnx.ModelProto:
    """A sparse initializer."""
    weights = helper.make_sparse_tensor(
        helper.make_tensor("S", TensorProto.FLOAT, [2], [3.0, -1.0]),
        helper.make_tensor("", TensorProto.INT64, [2], [1, 3]),
        [4],
    )
    nodes = [
        node("Add", ["x", "S"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Mul", ["b", "S"], ["y"]),
    ]
    body = graph(nodes, "sparse", [value("x")], [value("y")], sparse_initializer=[weights])
    return make(body)


@feature
def quantized() -> onnx.ModelProto:
    """Quantize-dequantize pairs, with annotations."""
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        node("DequantizeLinear", ["wq", "wscale", "zero"], ["wd"]),
        node("Mul", ["xd", "wd"], ["m"]),
        node("QuantizeLinear", ["m", "scale", "zero"], ["mq"]),
        node("DequantizeLinear", ["mq", "scale", "zero"], ["md"]),
        node("Add", ["md", "wd"], ["s"]),
        node("Relu", ["md"], ["r"]),
        node("Add", ["s", "r"], ["y"]),
    ]
    stored = [
        array("scale", 0.05),
        array("wscale", 0.02),
        array("zero", 3, np.int8),
        array("wq", [10, -20, 30, 40], np.int8),
    ]
    body = graph(nodes, "quantized", [value("x")], [value("y")], stored)
    for name in ("md", "s"):
        entry = body.quantization_annotation.add(tensor_name=name)
        entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
        entry.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="zero")
    return make(body)


@feature
def left_out() -> onnx.ModelProto:
    """Optional inputs and outputs left out; several element types cross."""
    nodes = [
        node("Clip", ["x", "", "top"], ["a"]),
        node("Reshape", ["a", "cube"], ["a3"]),
        node("RNN", ["a3", "square", "square"], ["", "state"], hidden_size=4),
        node("ArgMax", ["state"], ["at"], axis=2, keepdims=0),
        node("Dropout", ["a"], ["b", ""]),
        node("Cast", ["b"], ["h"], to=TensorProto.FLOAT16),
        node("Greater", ["b", "W"], ["mask"]),
        node("Cast", ["h"], ["f"], to=TensorProto.DOUBLE),
        node("Cast", ["mask"], ["g"], to=TensorProto.DOUBLE),
        node("Gather", ["f", "at"], ["picked"]),
        node("ReduceSum", ["g"], ["sum"], keepdims=1),
        node("Add", ["picked", "sum"], ["y"]),
    ]
    stored = [
        W,
        array("top", 1.0),
        array("cube", [1, 1, 4], np.int64),
        array("square", np.linspace(-1, 1, 16).reshape(1, 4, 4)),
    ]
    outputs = [value("y", [1, 1], TensorProto.DOUBLE)]
    return make(graph(nodes, "left_out", [value("x")], outputs, stored))


@feature
def stale_shapes() -> onnx.ModelProto:
    """A free dimension, and `value_info` from before it was made free."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Add", ["a", "W"], ["b"]),
        node("NonZero", ["b"], ["where"]),
        node("Transpose", ["where"], ["turned"]),
        node("GatherND", ["b", "turned"], ["y"]),
    ]
    body = graph(nodes, "free", [value("x", ["n", 4])], [value("y", ["found"])], [W])
    body.value_info.extend([value("a", [1, 4]), value("b", [1, 4])])
    body.value_info.append(value("where", [2, 4], TensorProto.INT64))
    return make(body)


@feature
def contained() -> onnx.ModelProto:
    """A sequence inside; it is an output too."""
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("SequenceConstruct", ["x", "a"], ["list"]),
        node("SequenceAt", ["list", "one"], ["b"]),
        node("Relu", ["b"], ["y"]),
    ]
    return make(graph(nodes, "list", [value("x")], [value("y")], [array("one", 1, np.int64)]))


def feeds_of(model: onnx.ModelProto, seed: int = 0) -> Feeds:
    """Random inputs; free dimensions are 3."""
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for item in model.graph.input:
        if item.name in stored:
            continue
        kind = item.type.tensor_type
        shape = [d.dim_value or 3 for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "b":
            feeds[item.name] = np.array(rng.integers(0, 2, shape), dtype=bool)
        elif dtype.kind in "iu":
            feeds[item.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[item.name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def working_nodes(model: onnx.ModelProto) -> list[int]:
    """Nodes that a split must place: all but weight-makers with fixed shapes."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    nodes = []
    for i, item in enumerate(model.graph.node):
        if item.op_type in WEIGHT_MAKERS and set(item.input) <= fixed:
            fixed.update(item.output)
        else:
            nodes.append(i)
    return nodes


def session(model: onnx.ModelProto | str, *, optimized: bool = False) -> ort.InferenceSession:
    """A session on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_whole(model: onnx.ModelProto, feeds: Feeds, *, optimized: bool = False) -> Feeds:
    """Outputs of the model in one piece."""
    names = list(dict.fromkeys(item.name for item in model.graph.output))
    return dict(zip(names, session(model, optimized=optimized).run(names, feeds), strict=True))


def run_split(
    stages: Sequence[StageModel], model: onnx.ModelProto, feeds: Feeds, *, optimized: bool = False
) -> Feeds:
    """Outputs of the stages, run one after the other in an order that their wiring allows."""
    made_by = boundary(stages)
    held = dict(feeds)
    waiting = dict(enumerate(stages))
    while waiting:
        ready = [i for i, stage in waiting.items() if set(stage.inputs) <= held.keys()]
        assert ready, "stages wait for each other"
        for i in ready:
            stage = waiting.pop(i)
            ours = session(stage.model, optimized=optimized)
            assert [item.name for item in ours.get_inputs()] == list(stage.inputs)
            results = ours.run(list(stage.outputs), {n: held[n] for n in stage.inputs})
            for name, result in zip(stage.outputs, results, strict=True):
                assert made_by[name] == i
                held[name] = result
    names = dict.fromkeys(item.name for item in model.graph.output)
    assert all(name in made_by or name in feeds for name in names)
    assert all(MODEL in stages[made_by[n]].targets[n] for n in names if made_by.get(n, -1) >= 0)
    return {name: held[name] for name in names}
