"""Types of what operators write that neither ONNX nor ONNX Runtime's tools know, by operator.

ONNX Runtime tells the types of its own operators when it loads them, if they run on the CPU; so
here is what is left: operators of GPUs, operators of ai.onnx.ml, and those that its optimiser
makes most often. A rule is a stand-in, an operator of ONNX that makes the same shape of some of the
inputs, or a function of what is known at the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.shape_inference
from onnx import TensorProto as Element

from dnnp.formats.onnx.scope import domain_of

Size = int | None
Shape = Sequence[Size]
"""Sizes of a tensor; None: unknown."""
Made = tuple[int, Shape | None]
"""Element type (0: unknown) and shape of an output."""

STAND_IN_OPSET = 17
FLOAT = int(Element.FLOAT)


@dataclass(frozen=True)
class Site:
    """A node and what is known of its inputs."""

    node: onnx.NodeProto
    types: Mapping[str, onnx.TypeProto]

    def has(self, i: int) -> bool:
        """True if input `i` is given."""
        return i < len(self.node.input) and bool(self.node.input[i])

    def shape(self, i: int) -> Shape | None:
        """Sizes of input `i`; None: it is absent, or of unknown rank."""
        proto = self.types.get(self.node.input[i]) if self.has(i) else None
        if proto is None or not proto.tensor_type.HasField("shape"):
            return None
        dims = proto.tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") else None for d in dims]

    def element(self, i: int) -> int:
        """Element type of input `i`; 0: absent or unknown."""
        proto = self.types.get(self.node.input[i]) if self.has(i) else None
        return 0 if proto is None else proto.tensor_type.elem_type

    def attribute(self, name: str, default: Any = None) -> Any:
        """Value of an attribute."""
        found = (a for a in self.node.attribute if a.name == name)
        return next(map(onnx.helper.get_attribute_value, found), default)


Rule = Callable[[Site], Sequence[Made]]


def rule_types(site: Site) -> dict[str, onnx.TypeProto]:
    """Types of the outputs of a node by its rule; empty if it has none, or too little is known."""
    rule = RULES.get((domain_of(site.node.domain), site.node.op_type))
    found: dict[str, onnx.TypeProto] = {}
    if rule is not None:
        for name, made in zip(site.node.output, rule(site), strict=False):
            if name and made[0]:
                found[name] = onnx.helper.make_tensor_type_proto(made[0], made[1])
    return found


def _like(op: str, *inputs: int, element: int = 0, fixed: int | None = None) -> Rule:
    """The shape that an ONNX operator makes of some inputs, with attributes of the same names.

    Parameters
    ----------
    element
        Input whose element type the output has.
    fixed
        The element type where it is always the same.
    """

    def rule(site: Site) -> Sequence[Made]:
        kind = site.element(element) if fixed is None else fixed
        made = _stand_in(site, op, inputs)
        return [(kind, made)] if kind else []

    return rule


def _stand_in(site: Site, op: str, inputs: Sequence[int]) -> Shape | None:
    """The shape of the first output of the operator that stands in for a node."""
    known = onnx.defs.get_schema(op, STAND_IN_OPSET).attributes
    names = [f"i{i}" for i in inputs]
    node = onnx.helper.make_node(op, names, ["y"])
    node.attribute.extend(a for a in site.node.attribute if a.name in known)
    values = [onnx.helper.make_tensor_value_info(f"i{i}", FLOAT, site.shape(i)) for i in inputs]
    graph = onnx.helper.make_graph([node], "g", values, [])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", STAND_IN_OPSET)], ir_version=8
    )
    for value in onnx.shape_inference.infer_shapes(model).graph.value_info:
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            return [d.dim_value if d.HasField("dim_value") else None for d in dims]
    return None


def _same(fixed: int | None = None) -> Rule:
    """The shape of the first input, and its element type if none is fixed."""
    return lambda site: [(fixed or site.element(0), site.shape(0))]


def _reshaped(site: Site, shapes: Mapping[int, Shape]) -> Site:
    """The node with other shapes of some inputs."""
    names = [f"{name} {i}" for i, name in enumerate(site.node.input)]
    types = {n: site.types[old] for n, old in zip(names, site.node.input, strict=True)
             if old in site.types}  # fmt: skip
    for i, shape in shapes.items():
        types[names[i]] = onnx.helper.make_tensor_type_proto(site.element(i) or FLOAT, shape)
    node = onnx.NodeProto()
    node.CopyFrom(site.node)
    node.input[:] = names
    return Site(node, types)


def _fused_matmul(site: Site) -> Sequence[Made]:
    """A product of matrices, either of which may be transposed, also together with its batch."""
    shapes: dict[int, Shape] = {}
    for i, side in enumerate("AB"):
        shape = site.shape(i)
        if shape is None or len(shape) < 2:
            continue
        if site.attribute(f"transBatch{side}", 0):
            shape = [*shape[1:-1], shape[0], shape[-1]]
        if site.attribute(f"trans{side}", 0):
            shape = [*shape[:-2], shape[-1], shape[-2]]
        shapes[i] = shape
    return [(site.element(0), _stand_in(_reshaped(site, shapes), "MatMul", (0, 1)))]


def _channels_last(op: str, inputs: Sequence[int]) -> Rule:
    """A convolution or pool over data whose channels are the last axis."""

    def rule(site: Site) -> Sequence[Made]:
        shape = site.shape(0)
        if not shape:
            return [(site.element(0), None)]
        first = _reshaped(site, {0: [shape[0], shape[-1], *shape[1:-1]]})
        made = _stand_in(first, op, inputs)
        return [(site.element(0), None if made is None else [made[0], *made[2:], made[1]])]

    return rule


def _rows(site: Site) -> Size:
    """Rows of the first input; a vector is one."""
    shape = site.shape(0)
    return None if shape is None else shape[0] if len(shape) > 1 else 1


def _columns(attribute: str) -> Rule:
    """As many numbers for each row as an attribute says: one, or the sum of several."""

    def rule(site: Site) -> Sequence[Made]:
        said = site.attribute(attribute, 1)
        return [(FLOAT, [_rows(site), said if isinstance(said, int) else sum(said)])]

    return rule


def _svm_classifier(site: Site) -> Sequence[Made]:
    """A label for each row, and scores: of classes or, without probabilities, of pairs of them."""
    texts = site.attribute("classlabels_strings", ())
    count = len(texts or site.attribute("classlabels_ints", ()))
    if site.attribute("vectors_per_class", ()) and not site.attribute("prob_a", ()):
        count = count * (count - 1) // 2
    rows = _rows(site)
    return [(Element.STRING if texts else Element.INT64, [rows]), (FLOAT, [rows, max(count, 2)])]


_SAME_AS_FIRST = (
    "BiasAdd", "BiasGelu", "BiasSoftmax", "ComplexMul", "ComplexMulConj", "FastGelu", "GatedAdd",
    "GatedRMSNorm", "Gelu", "GemmaRotaryEmbedding", "Inverse", "MoE", "QMoE", "QOrderedGelu",
    "QOrderedLayerNormalization", "QuickGelu", "SwiGLU", "Trilu",
)  # fmt: skip
_MS, _NCHWC, _ML = "com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml"
_NHWC_CONV = _channels_last("Conv", (0, 1))

RULES: dict[tuple[str, str], Rule] = {
    **{(_MS, op): _same() for op in _SAME_AS_FIRST},
    (_MS, "IsAllFinite"): lambda site: [(Element.BOOL, [])],
    (_MS, "FusedConv"): _like("Conv", 0, 1),
    (_MS, "FusedGemm"): _like("Gemm", 0, 1),
    (_MS, "FusedMatMul"): _fused_matmul,
    (_MS, "FusedMatMulActivation"): _fused_matmul,
    (_MS, "TransposeMatMul"): _fused_matmul,
    (_MS, "NhwcConv"): _NHWC_CONV,
    (_MS, "NhwcFusedConv"): _NHWC_CONV,
    (_MS, "DynamicQuantizeMatMul"): _like("MatMul", 0, 1),
    (_MS, "MatMulIntegerToFloat"): _like("MatMul", 0, 1, element=2),
    (_MS, "MatMulInteger16"): _like("MatMul", 0, 1, fixed=int(Element.INT32)),
    (_MS, "QOrderedMatMul"): _like("MatMul", 0, 2),
    (_MS, "QLinearAdd"): _like("Add", 0, 3),
    (_MS, "QLinearMul"): _like("Mul", 0, 3),
    (_MS, "QLinearReduceMean"): _like("ReduceMean", 0),
    (_NCHWC, "Conv"): _like("Conv", 0, 1),
    **{(_NCHWC, op): _like(op, 0) for op in (
        "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")},
    **{(_ML, op): _same(fixed=FLOAT) for op in ("Scaler", "Normalizer")},
    (_ML, "Imputer"): _same(),
    (_ML, "FeatureVectorizer"): _columns("inputdimensions"),
    (_ML, "LinearRegressor"): _columns("targets"),
    (_ML, "SVMRegressor"): lambda site: [(FLOAT, [_rows(site), 1])],
    (_ML, "SVMClassifier"): _svm_classifier,
}  # fmt: skip
"""(domain, operator) -> its rule."""
