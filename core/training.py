"""Backward pass of a graph, for planning: what each operator's gradient needs and costs.

Every operator with a gradient gets one backward node. It reads what the forward pass keeps for it
and the gradients of the operator's outputs, and writes the gradients of its inputs. A tensor with
several readers gets a gradient from each; its maker adds them up. Gradients of parameters stay
where the parameter is: an operator, its backward node and all others that read the same parameters
have one colour, so that no split separates them. A loss, a backward node too, stands at each output
of the model that has a gradient.

A table holds three things for a kind of operator. Which inputs have a gradient: those of
floating-point elements, or some of them only. What the forward pass has to keep: nothing, the
operator's inputs, or its outputs. And the work: a product for each factor of a matrix product, as
much again as the forward pass, or less. Work is counted as in the forward pass, so that a device's
rates hold for both.

The records have the form of published training workloads (`formats/workloads/msr.py`): backward
nodes marked as such, colours that join them to the forward pass, memory stated for every node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import GRADIENT

READS, WRITES = "reads", "writes"
"""Tensors kept for the backward pass: those that the operator reads, or writes."""


class Rule(NamedTuple):
    """The backward pass of a kind of operator."""

    keeps: frozenset[str] = frozenset({READS})
    """Needs of the forward pass: `READS`, `WRITES`, or neither."""
    positions: tuple[int, ...] | None = None
    """Inputs that have a gradient if they are of floating-point elements; None: all."""
    product: bool = False
    """A product with each input that has a gradient; a vector of addends costs but its sums."""
    work: float = 1.0
    """Other operators: operations over those of the forward pass."""
    free: bool = False
    """Nothing is done: the gradient is passed on as it is, or seen in another shape."""
    sums: bool = False
    """Gradients of inputs that were repeated over the output are summed up, others passed on."""
    scatters: bool = False
    """The gradient is added to the elements that were read; of the inputs the forward pass keeps
    all but the first, which say where these are."""


_NOTHING: frozenset[str] = frozenset()
_KINDS: tuple[tuple[str, Rule], ...] = (
    (
        "MatMul Gemm FusedMatMul FusedGemm TransposeMatMul Einsum Conv FusedConv ConvTranspose "
        "DeformConv MatMulNBits",
        Rule(product=True),
    ),
    ("LSTM GRU RNN Attention MultiHeadAttention GroupQueryAttention MoE", Rule(work=2.0)),
    (
        "LayerNormalization SimplifiedLayerNormalization RMSNormalization SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization InstanceNormalization GroupNormalization GroupNorm "
        "LpNormalization MeanVarianceNormalization LRN EmbedLayerNormalization",
        Rule(work=2.0),
    ),
    ("BatchNormalization", Rule(positions=(0, 1, 2), work=2.0)),
    ("Softmax LogSoftmax Sigmoid Tanh Exp Sqrt Reciprocal", Rule(frozenset({WRITES}))),
    ("Relu", Rule(frozenset({WRITES}))),
    ("Add Sub Sum Mean BiasAdd", Rule(_NOTHING, sums=True)),
    ("Reshape Flatten Squeeze Unsqueeze Identity", Rule(_NOTHING, positions=(0,), free=True)),
    ("Neg Cast CastLike Transpose Split Slice Pad Tile Expand ReverseSequence Resize Upsample "
     "DepthToSpace SpaceToDepth Trilu CumSum",
     Rule(_NOTHING, positions=(0,))),
    ("Concat", Rule(_NOTHING)),
    ("ReduceSum ReduceMean AveragePool GlobalAveragePool", Rule(_NOTHING, positions=(0,))),
    ("Dropout", Rule(frozenset({WRITES}), positions=(0,))),
    ("Gather GatherND GatherElements", Rule(positions=(0,), scatters=True)),
    ("Clip Pow", Rule(positions=(0,))),
    ("TopK", Rule(frozenset({WRITES}), positions=(0,))),
    ("MaxPool Where GridSample RoiAlign ScatterND ScatterElements Scatter", Rule()),
)  # fmt: skip

RULES = {op: rule for ops, rule in _KINDS for op in ops.split()}
"""Rules by operator type of the default domain and of ONNX Runtime's."""

_ELEMENTWISE = """
    Mul Div Abs Max Min LeakyRelu PRelu HardSigmoid HardSwish Softplus Softsign Mish Sin Cos Tan Erf
    Log Elu Selu Celu Gelu BiasGelu FastGelu QuickGelu Swish LpPool GlobalMaxPool ReduceMax
    ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp
"""
RULES |= dict.fromkeys(_ELEMENTWISE.split(), Rule())

_STOPS = """
    Shape Size Constant ConstantOfShape Range EyeLike ArgMax ArgMin NonZero Equal Greater
    GreaterOrEqual Less LessOrEqual And Or Not Xor IsNaN IsInf Floor Ceil Round Sign OneHot Hardmax
    Unique NonMaxSuppression Compress Mod BitShift RandomNormal RandomNormalLike RandomUniform
    RandomUniformLike Multinomial Bernoulli QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    QLinearMatMul QLinearConv QLinearAdd ConvInteger MatMulInteger DynamicQuantizeMatMul
    StringNormalizer TfIdfVectorizer
"""
STOPS = frozenset(_STOPS.split())
"""Operators without a gradient: the way of gradients ends there."""

OTHERS = Rule(frozenset({READS, WRITES}), work=2.0)
"""Operators that have no rule: all is kept, and twice the work is done."""


def rule_of(op: str) -> Rule | None:
    """The rule of an operator type; None: it has no gradient."""
    return None if op in STOPS else RULES.get(op, OTHERS)


class Operand(NamedTuple):
    """A tensor that an operator reads."""

    size: float
    """Elements; 0: not known."""
    gradient: bool
    """True if it has one."""


def backward_flop(
    rule: Rule, flop: float | None, operands: Sequence[Operand], out: float
) -> float | None:
    """Operations of a backward pass.

    Parameters
    ----------
    flop
        Operations of the forward pass; None: unknown.
    operands
        Its floating-point inputs.
    out
        Elements that it writes.

    Returns
    -------
    Operations; None: unknown.
    """
    if rule.free:
        return 0.0
    if rule.sums:
        return sum(out for each in operands if each.gradient and 0 < each.size < out)
    if flop is None:
        return None
    if not rule.product:
        return rule.work * flop
    factors = [each for each in operands[:2] if each.gradient]
    addends = [each for each in operands[2:] if each.gradient]
    return len(factors) * flop + out * len(addends)


OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0}
"""Optimiser -> numbers that it keeps for each weight, in float32."""

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of types that have gradients."""
MASTER_BYTES = 4
"""Bytes of a weight, and of a number of the optimiser, as it is updated."""


@dataclass(frozen=True)
class Optimizer:
    """The optimiser, which updates the weights."""

    name: str = "adam"
    """One of `OPTIMIZERS`."""

    def kept_bytes(self, tensor: Mapping[str, Any]) -> float:
        """Bytes that training keeps for a parameter besides the weights that the passes read.

        Its gradient, in the precision of the passes; the optimiser's numbers; and the weights
        themselves in float32, if the passes read them in fewer bits (as Micikevicius et al. 2018,
        "Mixed precision training").
        """
        size = float(tensor["size_bytes"])
        each = BYTES[tensor["dtype"]]
        count = size / each
        master = MASTER_BYTES if each < MASTER_BYTES else 0
        return size + count * (master + MASTER_BYTES * OPTIMIZERS[self.name])


def in_half_precision(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensor records with float16 in the place of float32."""
    return [
        {**record, "dtype": "float16", "size_bytes": record["size_bytes"] / 2}
        if record.get("dtype") == "float32"
        else record
        for record in tensors
    ]


Record = dict[str, Any]

LOSS = "Loss"
"""Operator type of what makes the first gradients."""


@dataclass(frozen=True)
class Trained:
    """A graph that trains a model."""

    tensors: list[Record]
    nodes: list[Record]
    """The forward pass in its order, then the backward pass in its."""
    losses: tuple[str, ...]
    """Outputs of the model that a loss reads, by name."""
    parameters: int
    """Tensors that are trained."""
    unruled: Mapping[str, int]
    """Operators without a rule of their own, by type: twice the work of the forward pass."""


class _Ruled(NamedTuple):
    """A node that has a gradient."""

    rule: Rule
    through: tuple[int, ...]
    """Tensors that it reads and that have one too."""


def train(
    tensors: Sequence[Record],
    nodes: Sequence[Record],
    optimizer: Optimizer,
    losses: Sequence[str] = (),
) -> Trained:
    """Add the backward pass to the records of a model.

    Parameters
    ----------
    tensors, nodes
        Its tensors; its nodes, in an order in which they can run.
    losses
        Outputs that are trained for, by name; empty: all that have a gradient.

    Raises
    ------
    UsageError
        A name in `losses` is no output that has a gradient, or no output has one.
    FormatError
        There is a backward pass already.
    """
    if any(node.get("backward") for node in nodes):
        raise FormatError("the graph has a backward pass already")
    tensor = {record["id"]: record for record in tensors}
    ruled = _ruled(tensor, nodes)
    wanted = _losses(tensor, nodes, ruled, losses)
    made = _BackwardPass(tensor, 1 + max(node["id"] for node in nodes))
    maker = {t: node for node in nodes for t in node["outputs"]}
    for t in wanted:
        made.add_loss(t, maker[t])
    for node in reversed(nodes):
        if node["id"] in ruled:
            made.add_gradient(node, ruled[node["id"]])
    forward = [dict(node) for node in nodes]
    _state_memory(tensor, forward, made, optimizer)
    _join_by_color(forward, made)
    done = set(made.beside.values())
    ops = [node["op"] for node in nodes if node["id"] in done]
    unruled = Counter(op for op in ops if op not in STOPS and op not in RULES)
    return Trained(
        list(tensor.values()),
        [*forward, *made.nodes],
        tuple(str(tensor[t]["name"]) for t in wanted),
        len(set().union(*made.trained.values())),
        dict(sorted(unruled.items())),
    )


def gradients_of(tensors: Sequence[Record], nodes: Sequence[Record]) -> dict[int, tuple[int, ...]]:
    """Tensors that a node reads and that have a gradient, by its id; of a forward pass.

    Whether one arrives at the node is another question.
    """
    ruled = _ruled({record["id"]: record for record in tensors}, nodes)
    return {node: one.through for node, one in ruled.items()}


def is_float(tensor: Record) -> bool:
    """True if a tensor's elements have gradients."""
    return tensor.get("dtype") in BYTES


def is_trainable(tensor: Record) -> bool:
    """True for a parameter of floating-point numbers, not a single one."""
    return tensor["kind"] == "parameter" and is_float(tensor) and elements(tensor) > 1


def elements(tensor: Record) -> int:
    """Number of elements; by the size where there is no shape."""
    if "shape" in tensor:
        return prod(tensor["shape"])
    return int(tensor["size_bytes"] // BYTES.get(tensor.get("dtype", ""), 4))


def _ruled(tensor: Mapping[int, Record], nodes: Sequence[Record]) -> dict[int, _Ruled]:
    """Nodes through which a gradient may go to some parameter, by id."""
    needing = {t for t, record in tensor.items() if is_trainable(record)}
    found: dict[int, _Ruled] = {}
    for node in nodes:
        rule = rule_of(node["op"])
        if rule is None:
            continue
        inputs = node["inputs"]
        if rule.positions is not None:
            inputs = [inputs[p] for p in rule.positions if p < len(inputs)]
        through = tuple(t for t in dict.fromkeys(inputs) if t in needing)
        outputs = [t for t in node["outputs"] if is_float(tensor[t])]
        if through and outputs:
            found[node["id"]] = _Ruled(rule, through)
            needing.update(outputs)
    return found


def _losses(
    tensor: Mapping[int, Record],
    nodes: Sequence[Record],
    ruled: Mapping[int, _Ruled],
    names: Sequence[str],
) -> list[int]:
    """Outputs that a loss reads."""
    differentiable = {
        t for node in nodes if node["id"] in ruled for t in node["outputs"] if is_float(tensor[t])
    }
    outputs = {str(r["name"]): t for t, r in tensor.items() if r.get("output")}
    for name in names:
        if name not in outputs:
            some = ", ".join(list(outputs)[:5])
            raise UsageError(f"--loss {name}: the model has no such output; it has {some}")
        if outputs[name] not in differentiable:
            raise UsageError(f"--loss {name}: no gradient goes from there to a parameter")
    if names:
        return [outputs[name] for name in dict.fromkeys(names)]
    wanted = [t for t in outputs.values() if t in differentiable]
    if not wanted:
        raise UsageError("nothing to train: no gradient goes from an output to a parameter")
    return wanted


@dataclass
class _BackwardPass:
    """Puts a backward pass together, from the end of the model."""

    tensor: dict[int, Record]
    """All tensors by id; gradients are added."""
    next_node: int
    nodes: list[Record] = field(default_factory=list)
    partial: dict[int, list[int]] = field(default_factory=dict)
    """Gradients of a tensor, by its id: one from each reader."""
    beside: dict[int, int] = field(default_factory=dict)
    """The forward node that shares its device, by the id of a backward node."""
    trained: dict[int, set[int]] = field(default_factory=dict)
    """Parameters with gradients by a backward node, by its id."""

    def __post_init__(self) -> None:
        self._next_tensor = 1 + max(self.tensor)

    def add_loss(self, t: int, maker: Record) -> None:
        """A loss at an output, which `maker` writes."""
        output = self.tensor[t]
        record = self._node(maker, LOSS, f"{output['name']}.loss", [t], [self._gradient(t)])
        del record["of"]
        self.beside[record["id"]] = maker["id"]
        record["flop"] = elements(output)
        record["bytes"] = 2 * output["size_bytes"]
        self.trained[record["id"]] = set()

    def add_gradient(self, node: Record, ruled: _Ruled) -> None:
        """The backward node of a forward node, if gradients arrive there."""
        arriving = [g for t in node["outputs"] for g in self.partial.get(t, ())]
        if not arriving:
            return
        through = ruled.through
        parameters = {t for t in through if is_trainable(self.tensor[t])}
        inputs = dict.fromkeys([*_kept(node, ruled), *arriving])
        outputs = [self._gradient(t) for t in through if t not in parameters]
        name = f"{node['name']}.grad" if node["name"] else ""
        record = self._node(node, node["op"] + GRADIENT, name, list(inputs), outputs)
        self.beside[record["id"]] = node["id"]
        self.trained[record["id"]] = parameters
        self._price(record, node, ruled, arriving)

    def _gradient(self, t: int) -> int:
        """A new tensor: a gradient of another one."""
        of, number = self.tensor[t], self._next_tensor
        self._next_tensor += 1
        record = {
            "type": "tensor",
            "id": number,
            "name": f"{of['name']}.grad",
            "kind": "activation",
        }
        record |= {key: of[key] for key in ("size_bytes", "dtype", "shape") if key in of}
        self.tensor[number] = record
        self.partial.setdefault(t, []).append(number)
        return number

    def _node(
        self, of: Record, op: str, name: str, inputs: list[int], outputs: list[int]
    ) -> Record:
        """A new backward node, which belongs to a forward node."""
        record: Record = {"type": "node", "id": self.next_node, "name": name, "op": op}
        self.next_node += 1
        record |= {key: of[key] for key in ("domain", "scope", "layer") if key in of}
        record |= {"inputs": inputs, "outputs": outputs, "backward": True, "of": of["id"]}
        self.nodes.append(record)
        return record

    def _price(self, record: Record, node: Record, ruled: _Ruled, arriving: Sequence[int]) -> None:
        """State operations and traffic of a backward node.

        Gradients of a tensor from several readers are added up first. A gradient of a parameter is
        added to what earlier micro-batches left there: it is read and written.
        """
        rule, through = ruled
        out = sum(elements(self.tensor[t]) for t in node["outputs"] if t in self.partial)
        operands = [
            Operand(elements(self.tensor[t]), t in through)
            for t in node["inputs"]
            if is_float(self.tensor[t])
        ]
        adds = sum(
            (len(self.partial[t]) - 1) * elements(self.tensor[t])
            for t in node["outputs"]
            if t in self.partial
        )
        flop = backward_flop(rule, node.get("flop"), operands, out)
        if flop is not None:
            record["flop"] = flop + adds
        if rule.free or (rule.sums and not flop):
            record["bytes"] = self._bytes([*arriving, *record["outputs"]]) if adds else 0
            return
        weights = self.trained[record["id"]]
        moved = self._bytes([*record["inputs"], *record["outputs"]])
        moved += 2 * (self._bytes(arriving) if rule.scatters else self._bytes(weights))
        if rule.product:
            moved += self._bytes(arriving) * (len(through) - 1)
        record["bytes"] = moved

    def _bytes(self, tensors: Sequence[int] | set[int]) -> float:
        return sum(self.tensor[t]["size_bytes"] for t in tensors)


def _kept(node: Record, ruled: _Ruled) -> list[int]:
    """Tensors of the forward pass that a backward node reads."""
    rule, through = ruled
    kept: list[int] = []
    if READS in rule.keeps:
        kept += node["inputs"][1:] if rule.scatters else node["inputs"]
    if rule.product:
        # The gradient of a factor takes the other one, and that of an addend none.
        factors = kept[:2]
        kept = [f for f in factors if any(t in factors and t != f for t in through)]
        kept = kept or [f for f in factors if f in through]
    if WRITES in rule.keeps:
        kept += node["outputs"]
    return kept


def _state_memory(
    tensor: Mapping[int, Record],
    forward: Sequence[Record],
    made: _BackwardPass,
    optimizer: Optimizer,
) -> None:
    """State the memory of every node.

    A forward node holds the parameters of which it is the first reader, and its outputs for the
    backward pass; a backward node the optimiser's state of parameters of which it is the first to
    make a gradient. Short-lived tensors are not counted. Outputs for the backward pass exist once
    for every micro-batch in flight (`held_bytes`).
    """
    kept = {t for node in made.nodes for t in node["inputs"]}
    held: set[int] = set()
    for node in forward:
        static = [t for t in node["inputs"] if tensor[t]["kind"] in ("parameter", "constant")]
        own = [t for t in dict.fromkeys(static) if t not in held]
        held.update(own)
        node["held_bytes"] = sum(tensor[t]["size_bytes"] for t in node["outputs"] if t in kept)
        node["memory_bytes"] = sum(tensor[t]["size_bytes"] for t in own) + node["held_bytes"]
    trained: set[int] = set()
    for node in made.nodes:
        own = sorted(made.trained[node["id"]] - trained)
        trained.update(own)
        node["memory_bytes"] = sum(optimizer.kept_bytes(tensor[t]) for t in own)


def _join_by_color(forward: Sequence[Record], made: _BackwardPass) -> None:
    """Give what must share a device one colour: see the docstring of the module."""
    parent: dict[int, int] = {}

    def find(v: int) -> int:
        while parent.setdefault(v, v) != v:
            parent[v] = v = parent[parent[v]]
        return v

    def join(a: int, b: int) -> None:
        a, b = sorted((find(a), find(b)))
        parent[b] = a

    first: dict[tuple[str, int], int] = {}
    for node in forward:
        if "color" in node:
            join(node["id"], first.setdefault(("color", node["color"]), node["id"]))
    for node in made.nodes:
        join(node["id"], made.beside[node["id"]])
        for t in made.trained[node["id"]]:
            join(node["id"], first.setdefault(("parameter", t), node["id"]))
    numbers: dict[int, int] = {}
    for node in (*forward, *made.nodes):
        if node["id"] in parent:
            node["color"] = numbers.setdefault(find(node["id"]), len(numbers))
