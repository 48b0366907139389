"""Small models, one a fusion of ONNX Runtime or a case that looks like one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Model:
    """A model under construction; every method returns names of tensors."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._weights: list[onnx.TensorProto] = []

    def input(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant((self._rng.random(shape) + 0.1).astype(np.float32))

    def constant(self, value: object, dtype: object = None) -> str:
        array = np.asarray(value, dtype or (np.float32 if isinstance(value, float) else None))
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: object):
        name = f"{op}_{len(self._nodes)}"
        made = [f"{name}_out{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def build(self, *outputs: str) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        graph = helper.make_graph(self._nodes, "g", self._inputs, infos, self._weights)
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=9)


IMAGE, SEQUENCE, MATRIX = (1, 16, 8, 8), (2, 8, 16), (8, 16)
Body = Callable[[Model, str], object]
CASES: dict[str, tuple[tuple[int, ...], int, Body]] = {}


def case(shape: tuple[int, ...], opset: int = 17) -> Callable[[Body], Body]:
    """Register a body: it gets a model and a tensor of the shape, and returns its results."""

    def register(body: Body) -> Body:
        CASES[body.__name__] = (shape, opset, body)
        return body

    return register


def conv(m: Model, x: str, kernel: int = 3) -> str:
    return m("Conv", x, m.weight(16, 16, kernel, kernel), pads=[kernel // 2] * 4)


def norm(m: Model, x: str) -> str:
    return m("BatchNormalization", x, *(m.weight(16) for _ in range(4)))


def linear(m: Model, x: str) -> str:
    return m("Add", m("MatMul", x, m.weight(16, 16)), m.weight(16))


def add_cases() -> None:
    """Cases of one line, by shape."""
    image: dict[str, Body] = {
        "conv_bn": lambda m, x: norm(m, conv(m, x)),
        "conv_bn_relu": lambda m, x: m("Relu", norm(m, conv(m, x))),
        "conv_mul": lambda m, x: m("Mul", conv(m, x), m.weight(16, 1, 1)),
        "conv_mul_scalar": lambda m, x: m("Mul", conv(m, x), m.constant(2.0)),
        "conv_add": lambda m, x: m("Add", conv(m, x), m.weight(1, 16, 1, 1)),
        "conv_add_scalar": lambda m, x: m("Add", conv(m, x), m.constant(2.0)),
        "conv_mul_activation": lambda m, x: m("Mul", conv(m, x), x),
        "conv_clip": lambda m, x: m("Clip", conv(m, x), m.constant(0.0), m.constant(6.0)),
        "conv_silu": lambda m, x: silu(m, conv(m, x)),
        "conv_twice": lambda m, x: (lambda c: [m("Relu", c), m("Tanh", c)])(conv(m, x)),
        "conv_transpose_bn": lambda m, x: norm(m, m("ConvTranspose", x, m.weight(16, 16, 3, 3))),
        "bn_conv": lambda m, x: conv(m, norm(m, x)),
        "pad_conv": lambda m, x: conv(m, m("Pad", x, m.constant([0, 0, 1, 1, 0, 0, 1, 1]))),
        "relu_clip": lambda m, x: m("Clip", m("Relu", x), m.constant(0.0), m.constant(6.0)),
        "div_mul": lambda m, x: m("Mul", m("Div", m.constant(1.0), x), m("Cos", x)),
        "identity": lambda m, x: conv(m, m("Identity", x)),
        "dropout": lambda m, x: conv(m, m("Dropout", x)),
        "transposes": lambda m, x: m(
            "Transpose", m("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 1, 3, 2]
        ),
        "reshapes": lambda m, x: m(
            "Reshape", m("Reshape", x, m.constant([16, 64])), m.constant([4, 256])
        ),
    }
    for op in ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Selu", "Softplus"):
        image[f"conv_{op}"] = lambda m, x, op=op: m(op, conv(m, x))
    matrix: dict[str, Body] = {
        "matmul_add": linear,
        "matmul_add_matrix": lambda m, x: m("Add", m("MatMul", x, m.weight(16, 16)), x),
        "matmul_add_relu": lambda m, x: m("Relu", linear(m, x)),
        "matmul_relu": lambda m, x: m("Relu", m("MatMul", x, m.weight(16, 16))),
        "matmul_sub": lambda m, x: m("Sub", m("MatMul", x, m.weight(16, 16)), m.weight(16)),
        "matmul_bn": lambda m, x: norm(m, m("MatMul", x, m.weight(16, 16))),
        "gemm_sum": lambda m, x: m("Sum", m("Gemm", x, m.weight(16, 16)), x),
        "gemm_transpose": lambda m, x: m("Transpose", m("Gemm", x, m.weight(16, 16)), perm=[1, 0]),
        "transpose_gemm": lambda m, x: m("Gemm", m("Transpose", x, perm=[1, 0]), m.weight(8, 16)),
        "gemm_bn": lambda m, x: norm(m, m("Gemm", x, m.weight(16, 16), m.weight(16))),
    }
    for op in (
        "Relu",
        "Sigmoid",
        "Tanh",
        "LeakyRelu",
        "Elu",
        "HardSigmoid",
        "Selu",
        "Softplus",
        "Softsign",
        "ThresholdedRelu",
    ):
        matrix[f"gemm_{op}"] = lambda m, x, op=op: m(
            op, m("Gemm", x, m.weight(16, 16), m.weight(16))
        )
    sequence: dict[str, Body] = {
        "matmul_add_3d": linear,
        "matmul_add_activation_3d": lambda m, x: m("Add", m("MatMul", x, m.weight(16, 16)), x),
        "matmul_add_relu_3d": lambda m, x: m("Relu", linear(m, x)),
        "bias_gelu": lambda m, x: gelu(m, m("Add", x, m.weight(16))),
        "linear_gelu": lambda m, x: gelu(m, linear(m, x)),
        "gelu": lambda m, x: gelu(m, x),
        "gelu_half_first": lambda m, x: gelu(m, x, half_first=True),
        "fast_gelu": lambda m, x: fast_gelu(m, x),
        "bias_fast_gelu": lambda m, x: fast_gelu(m, m("Add", x, m.weight(16))),
        "fast_gelu_other": lambda m, x: fast_gelu_other(m, x),
        "quick_gelu": lambda m, x: m("Mul", x, m("Sigmoid", m("Mul", x, m.constant(1.702)))),
        "silu": lambda m, x: silu(m, x),
        "layer_norm": lambda m, x: layer_norm(m, x),
        "layer_norm_two_subs": lambda m, x: layer_norm(m, x, twice=True),
        "rms_norm": lambda m, x: rms_norm(m, x),
        "rms_norm_reciprocal": lambda m, x: rms_norm(m, x, reciprocal=True),
        "skip_layer_norm": lambda m, x: layer(m, m("Add", x, m("Cos", x))),
        "skip_layer_norm_spelled_out": lambda m, x: layer_norm(m, m("Add", x, m("Cos", x))),
        "skip_layer_norm_read_twice": lambda m, x: (lambda a: [layer(m, a), a])(
            m("Add", x, m("Cos", x))
        ),
        "skip_layer_norm_after_linear": lambda m, x: layer(m, m("Add", linear(m, x), x)),
        "bias_skip_layer_norm": lambda m, x: layer(
            m, m("Add", m("Add", x, m.weight(16)), m("Cos", x))
        ),
        "not_where": lambda m, x: m(
            "Where", m("Not", m("Greater", x, m.constant(0.0))), x, m("Cos", x)
        ),
        "add_softmax": lambda m, x: m("Softmax", m("Add", x, m("Cos", x))),
    }
    square: dict[str, Body] = {
        "matmul_mul": lambda m, x: m("Mul", product(m, x), m.constant(2.0)),
        "matmul_div": lambda m, x: m("Div", product(m, x), m.constant(2.0)),
        "mul_matmul": lambda m, x: m("MatMul", m("Mul", x, m.constant(2.0)), m("Cos", x)),
        "mul_both_matmul": lambda m, x: m(
            "MatMul", m("Mul", x, m.constant(2.0)), m("Div", m("Cos", x), m.constant(2.0))
        ),
        "transpose_matmul": lambda m, x: m("MatMul", m("Transpose", x, perm=[0, 2, 1]), x),
        "matmul_transpose_div": lambda m, x: m(
            "Div", m("MatMul", x, m("Transpose", m("Cos", x), perm=[0, 2, 1])), m.constant(2.0)
        ),
    }
    for shape, bodies in (
        (IMAGE, image),
        (MATRIX, matrix),
        (SEQUENCE, sequence),
        ((2, 8, 8), square),
    ):
        for name, body in bodies.items():
            CASES[name] = (shape, 17, body)


def product(m: Model, x: str) -> str:
    return m("MatMul", x, m("Cos", x))


def silu(m: Model, x: str) -> str:
    return m("Mul", x, m("Sigmoid", x))


def layer(m: Model, x: str) -> str:
    return m("LayerNormalization", x, m.weight(16), m.weight(16), axis=-1)


def gelu(m: Model, x: str, half_first: bool = False) -> str:
    one = m("Add", m("Erf", m("Div", x, m.constant(float(np.sqrt(2))))), m.constant(1.0))
    if half_first:
        return m("Mul", m("Mul", x, m.constant(0.5)), one)
    return m("Mul", m("Mul", x, one), m.constant(0.5))


def fast_gelu(m: Model, x: str) -> str:
    cube = m("Mul", m("Pow", x, m.constant(3.0)), m.constant(0.044715))
    tanh = m("Tanh", m("Mul", m("Add", x, cube), m.constant(0.7978845608)))
    return m("Mul", m("Mul", x, m.constant(0.5)), m("Add", tanh, m.constant(1.0)))


def fast_gelu_other(m: Model, x: str) -> str:
    inner = m("Add", m("Mul", m("Mul", x, m.constant(0.044715)), x), m.constant(1.0))
    tanh = m("Tanh", m("Mul", inner, m("Mul", x, m.constant(0.7978845608))))
    return m("Mul", m("Add", tanh, m.constant(1.0)), m("Mul", x, m.constant(0.5)))


def layer_norm(m: Model, x: str, twice: bool = False) -> str:
    mean = m("ReduceMean", x, axes=[-1])
    centred = m("Sub", x, mean)
    again = m("Sub", x, mean) if twice else centred
    variance = m("ReduceMean", m("Pow", centred, m.constant(2.0)), axes=[-1])
    normal = m("Div", again, m("Sqrt", m("Add", variance, m.constant(1e-5))))
    return m("Add", m("Mul", normal, m.weight(16)), m.weight(16))


def rms_norm(m: Model, x: str, reciprocal: bool = False) -> str:
    mean = m("ReduceMean", m("Pow", x, m.constant(2.0)), axes=[-1])
    root = m("Sqrt", m("Add", mean, m.constant(1e-5)))
    if reciprocal:
        return m("Mul", m("Mul", x, m("Div", m.constant(1.0), root)), m.weight(16))
    return m("Mul", m("Div", x, root), m.weight(16))


@case(SEQUENCE, opset=18)
def layer_norm_18(m: Model, x: str) -> str:
    def mean(t: str) -> str:
        return m("ReduceMean", t, m.constant([-1]))

    centred = m("Sub", x, mean(x))
    variance = mean(m("Pow", centred, m.constant(2.0)))
    normal = m("Div", centred, m("Sqrt", m("Add", variance, m.constant(1e-5))))
    return m("Add", m("Mul", normal, m.weight(16)), m.weight(16))


@case(SEQUENCE, opset=20)
def bias_gelu_operator(m: Model, x: str) -> str:
    return m("Gelu", m("Add", x, m.weight(16)))


@case(SEQUENCE)
def attention(m: Model, x: str) -> str:
    def heads(t: str, *perm: int) -> str:
        return m("Transpose", m("Reshape", t, m.constant([0, 0, 2, 8])), perm=perm)

    def project(t: str) -> str:
        return m("Add", m("MatMul", t, m.weight(16, 16)), m.weight(16))

    x = layer(m, x)
    scores = m("MatMul", heads(project(x), 0, 2, 1, 3), heads(project(x), 0, 2, 3, 1))
    weights = m("Softmax", m("Div", scores, m.constant(2.8284271)), axis=-1)
    mixed = m("MatMul", weights, heads(project(x), 0, 2, 1, 3))
    back = m("Reshape", m("Transpose", mixed, perm=[0, 2, 1, 3]), m.constant([0, 0, 16]))
    return layer(m, m("Add", project(back), x))


def quantise(m: Model, x: str) -> str:
    return m("QuantizeLinear", x, m.constant(0.02), m.constant(128, np.uint8))


def dequantise(m: Model, x: str) -> str:
    return m("DequantizeLinear", x, m.constant(0.02), m.constant(128, np.uint8))


def through(m: Model, x: str) -> str:
    """An activation, quantised and back."""
    return dequantise(m, quantise(m, x))


def stored(m: Model, *shape: int) -> str:
    """A quantised weight."""
    return dequantise(m, m.constant(np.full(shape, 3, np.uint8)))


def add_quantised_cases() -> None:
    bodies: dict[str, tuple[tuple[int, ...], Body]] = {
        "q_conv": (IMAGE, lambda m, x: m("Conv", through(m, x), stored(m, 16, 16, 3, 3))),
        "q_matmul": (SEQUENCE, lambda m, x: m("MatMul", through(m, x), stored(m, 16, 16))),
        "q_gemm": (MATRIX, lambda m, x: m("Gemm", through(m, x), stored(m, 16, 16))),
        "q_add": (MATRIX, lambda m, x: m("Add", through(m, x), through(m, m("Cos", x)))),
        "q_concat": (
            MATRIX,
            lambda m, x: m("Concat", through(m, x), through(m, m("Cos", x)), axis=0),
        ),
        "q_sigmoid": (MATRIX, lambda m, x: m("Sigmoid", through(m, x))),
        "q_max_pool": (IMAGE, lambda m, x: m("MaxPool", through(m, x), kernel_shape=[2, 2])),
        "q_reshape": (MATRIX, lambda m, x: m("Reshape", through(m, x), m.constant([128]))),
        "q_tanh": (MATRIX, lambda m, x: m("Tanh", through(m, x))),
        "q_shared": (
            IMAGE,
            lambda m, x: (
                lambda d: m(
                    "Add", *(through(m, m("Conv", d, stored(m, 16, 16, 3, 3))) for _ in range(2))
                )
            )(through(m, x)),
        ),
    }
    for name, (shape, body) in bodies.items():
        CASES[name] = (shape, 17, lambda m, x, body=body: through(m, body(m, x)))
    CASES["q_matmul_to_float"] = (
        SEQUENCE,
        17,
        lambda m, x: m("MatMul", through(m, x), stored(m, 16, 16)),
    )


@case(SEQUENCE)
def dynamic_quantise_matmul(m: Model, x: str) -> str:
    y, scale, zero = m("DynamicQuantizeLinear", x, outputs=3)
    whole = m(
        "MatMulInteger",
        y,
        m.constant(np.full((16, 16), 3, np.uint8)),
        zero,
        m.constant(128, np.uint8),
    )
    scaled = m("Mul", m("Cast", whole, to=TensorProto.FLOAT), m("Mul", scale, m.constant(0.1)))
    return m("Add", scaled, m.weight(16))


add_cases()
add_quantised_cases()


def write_case(name: str, path: Path) -> onnx.ModelProto:
    """Build the model of a case and write it.

    Sin before and after takes part in no fusion and keeps names of its own.
    """
    shape, opset, body = CASES[name]
    model = Model(opset)
    result = body(model, model("Sin", model.input("x", *shape)))
    results = result if isinstance(result, list) else [result]
    proto = model.build(*(model("Sin", t) for t in results))
    onnx.save(proto, path)
    return proto
