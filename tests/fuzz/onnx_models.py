"""Small ONNX models of many kinds, and mutations of their fields."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper, parser

MLP = """
<ir_version: 8, opset_import: ["" : 17]>
mlp (float[1,4] x) => (float[1,2] y)
<float[4,8] w1 = {WEIGHTS32}, float[8] b1 = {0,0,0,0,0,0,0,0}, float[8,2] w2 = {WEIGHTS16}>
{
  h = MatMul(x, w1)
  a = Add(h, b1)
  r = Relu(a)
  s = Reshape(r, shape)
  y = MatMul(s, w2)
}
"""

BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
branch (bool c, float[2] x) => (float[2] y)
{
  t = Neg(x)
  y = If (c) <
    then_branch = one () => (float[2] p) { p = Add(t, x) },
    else_branch = two () => (float[2] q) { q = Mul(t, x) }
  >
}
"""

FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
calls (float[N,4] x) => (float[N,4] y)
{
  h = local.twice(x)
  y = local.twice(h)
}
<opset_import: ["" : 17], domain: "local">
twice (a) => (b) { c = Add(a, a)  b = Relu(c) }
"""

QUANTIZED = """
<ir_version: 8, opset_import: ["" : 17]>
qdq (float[1,4] x) => (float[1,4] y)
<float scale = {0.1}, uint8 zero = {3}>
{
  q = QuantizeLinear(x, scale, zero)
  d = DequantizeLinear(q, scale, zero)
  n = Constant <value = float {2.0}> ()
  y = Mul(d, n)
}
"""

SEQUENCE = """
<ir_version: 8, opset_import: ["" : 17]>
lists (float[2] x, float[2] z) => (float[M] y)
{
  s = SequenceConstruct(x, z)
  y = ConcatFromSequence <axis = 0> (s)
}
"""


def _loop() -> onnx.ModelProto:
    """A loop that adds its counter, captures an outer value and collects scan outputs."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["v", "outer"], ["w"]),
            helper.make_node("Add", ["w", "f"], ["v_out"]),
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Identity", ["v_out"], ["scan"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("c_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("scan", TensorProto.FLOAT, [2]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["outer"]),
            helper.make_node("Loop", ["trip", "", "x"], ["last", "all"], body=body),
            helper.make_node("ReduceSum", ["all"], ["sum"], keepdims=0),
            helper.make_node("Add", ["last", "sum"], ["y"]),
        ],
        "loop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array(3, dtype=np.int64), "trip")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _external() -> onnx.ModelProto:
    """Weights in a file that does not exist, an old operator set, a made weight."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "64")):
        weight.external_data.add(key=key, value=value)
    shape = numpy_helper.from_array(np.array([4, 4], dtype=np.int64), "shape")
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["made"]),
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("MatMul", ["h", "made"], ["y"]),
        ],
        "external",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight, shape],
    )
    opsets = [helper.make_opsetid("", 9)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=4)


@functools.cache
def models() -> dict[str, onnx.ModelProto]:
    """The models by name."""
    weights = ",".join(str(i % 5) for i in range(32))
    text = MLP.replace("WEIGHTS32", weights).replace("WEIGHTS16", weights[:31])
    mlp = parser.parse_model(text.replace("shape)", "new)"))
    mlp.graph.initializer.append(numpy_helper.from_array(np.array([1, 8], dtype=np.int64), "new"))
    function = parser.parse_model(FUNCTION)
    function.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    return {
        "mlp": mlp,
        "branch": parser.parse_model(BRANCH),
        "function": function,
        "quantized": parser.parse_model(QUANTIZED),
        "sequence": parser.parse_model(SEQUENCE),
        "loop": _loop(),
        "external": _external(),
    }


_NUMBERS = (
    0, 1, -1, 2, 3, 16, 17, 26, 27, 1000, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63),
    2**53 - 1, 2**53, 2**63 - 1, 99,
)  # fmt: skip
_TEXTS = (
    "", "x", "y", "w", "h", "a", "N", "Relu", "If", "Loop", "Scan", "Constant", "MatMul", "local",
    "com.microsoft", "ai.onnx", "ai.onnx.ml", "\u0000", "a\nb", "\U0001f600", "../../w", "x" * 3000,
    "-1", "1e99",
)  # fmt: skip


def fields(data: bytes, random_: random.Random) -> bytes:
    """Change one to three fields anywhere in a model; bytes that are no model stay."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return data
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        message = _some_message(model, random_)
        field = random_.choice(list(message.DESCRIPTOR.fields))
        if random_.random() < 0.7 and message.ListFields():
            field = random_.choice([held for held, _ in message.ListFields()])
        if _is_repeated(field):
            _change_list(message, field, random_)
        elif random_.random() < 0.2:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, _scalar(field, random_))
    return model.SerializeToString()


def dims(data: bytes, random_: random.Random) -> bytes:
    """Give a value or a weight many dimensions, or huge ones; bytes that are no model stay."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return data
    count = random_.choice((1, 2, 3, 7, 30, 2000))
    sizes = random_.choices(random_.choice(((1,), (2,), (0, 2**40), _NUMBERS)), k=count)
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    chosen = random_.choice((*values, *model.graph.initializer))
    if isinstance(chosen, TensorProto):
        chosen.dims[:] = sizes
    else:
        shape = chosen.type.tensor_type.shape
        shape.Clear()
        for size in sizes:
            shape.dim.add().dim_value = size
    return model.SerializeToString()


def _is_repeated(field: Any) -> bool:
    """True if a field is a list; protobuf 6 renamed the question."""
    known = getattr(field, "is_repeated", None)
    return known if known is not None else field.label == FieldDescriptor.LABEL_REPEATED


def _some_message(message: Any, random_: random.Random) -> Any:
    """Walk down to a random submessage."""
    while True:
        children = []
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                repeated = _is_repeated(field)
                children += list(value) if repeated else [value]
        if not children or random_.random() < 0.25:
            return message
        message = random_.choice(children)


def _change_list(message: Any, field: FieldDescriptor, random_: random.Random) -> None:
    """Remove, repeat, reverse or add items."""
    items = getattr(message, field.name)
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    action = random_.randrange(4)
    if items and action == 0:
        del items[random_.randrange(len(items))]
    elif items and action == 1 and is_message:
        items.add().CopyFrom(random_.choice(items))
    elif items and action == 2:
        kept = list(items)[::-1]
        copies = (
            [type(item).FromString(item.SerializeToString()) for item in kept]
            if (is_message)
            else kept
        )
        message.ClearField(field.name)
        getattr(message, field.name).extend(copies)
    elif is_message:
        items.add()
    elif items and random_.random() < 0.7:
        items[random_.randrange(len(items))] = _scalar(field, random_)
    else:
        items.append(_scalar(field, random_))


def _scalar(field: FieldDescriptor, random_: random.Random) -> Any:
    """A value that the field's type allows."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return random_.choice(_TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random_.randbytes(random_.choice((0, 1, 3, 8, 64)))
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return random_.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return random_.choice([value.number for value in field.enum_type.values])
    if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32):
        return random_.choice([number for number in _NUMBERS if 0 <= number < 2**32])
    if field.type == FieldDescriptor.TYPE_INT32:
        return random_.choice([number for number in _NUMBERS if -(2**31) <= number < 2**31])
    return random_.choice(_NUMBERS)
