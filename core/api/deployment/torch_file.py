"""A plan for training and its schedule as one file of PyTorch.

The file is `train.py` of formats/export/torch, with a class for each stage, the functions of
`ops.py` beside it that these call, and the schedule as a list. What several devices run together
is laid out anew: the layout is the one with the fewest elements that a device stores, makes and
exchanges (`core.tensor_parallel.layout`), of those that suit the attributes of nodes
(`formats.onnx.shard_ops`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from dnnp.core.model.errors import UsageError
from dnnp.core.model.shards import WHOLE, axis_of, blocks_of
from dnnp.core.model.text import called, printable
from dnnp.core.tensor_parallel.layout import Backward, choose
from dnnp.core.tensor_parallel.rules import Operator, Rule, part, rules, with_blocks
from dnnp.formats import export
from dnnp.formats.onnx.scope import domain_of, reads
from dnnp.formats.onnx.shard_ops import Change, Facts, Layout, UnfitError
from dnnp.formats.onnx.stages import StageModel
from dnnp.formats.onnx.value_types import TensorType, dtype_name
from dnnp.formats.stream import Record

SHORT = 64
"""Elements of constants that are written into the file."""


class Entry(NamedTuple):
    """A block of the schedule."""

    what: str
    """F: forward, B: backward, W: gradients of weights, where B leaves them."""
    stage: int
    batch: int
    devices: tuple[int, ...]


class Trained(NamedTuple):
    """A plan for training, as far as the file needs it."""

    stages: Sequence[StageModel]
    recomputed: tuple[int, ...]
    """Stages whose forward passes run again."""
    parameters: frozenset[str]
    """Parameters with a gradient."""
    entries: Sequence[Entry]
    """The schedule in its order."""


class _Ops(NamedTuple):
    """Contents of the file of operators."""

    source: dict[str, str]
    """Functions, by name."""
    words: dict[str, list[str]]
    """Their arguments."""
    direct: dict[str, str]
    literal: dict[str, tuple[int, ...]]


def _text(name: str) -> str:
    return (Path(export.__file__).parent / "torch" / name).read_text()


@cache
def _ops() -> _Ops:
    """Read the file of operators, which cannot be imported without PyTorch."""
    text, tables = _text("ops.py"), []
    source, words = dict[str, str](), dict[str, list[str]]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            name, function = node.name, node.args
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            name, function = ast.unparse(node.targets[0]), node.value.args
        else:
            if isinstance(node, ast.Assign):
                tables.append(ast.literal_eval(node.value))
            continue
        source[name] = ast.get_source_segment(text, node) or ""
        words[name] = [one.arg for one in (*function.args, *function.kwonlyargs)]
    return _Ops(source, words, *tables)


def torch_file(
    model: onnx.ModelProto, about: tuple[str, str], plan: Trained, known: Mapping[str, TensorType]
) -> bytes:
    """The file.

    Raises `UsageError` for an operator, attribute or shape that is not supported, by name.

    Parameters
    ----------
    about
        Path and SHA-256 of the model.
    known
        Types of tensors at the sizes of the plan, by name.
    """
    held = {v for stage in plan.stages for v in stage.nodes}
    makers = [v for v in range(len(model.graph.node)) if v not in held]
    degree = {entry.stage: len(entry.devices) for entry in plan.entries}
    writer = _Writer(plan, degree, Facts(model, makers, known), known)
    classes = [writer.stage(s) for s in range(len(plan.stages))]
    made = {n for stage in plan.stages for n, to in stage.targets.items() if max(to) >= 0}
    given = dict.fromkeys(n for s in plan.stages for n, m in s.sources.items() if m < 0)
    tables: dict[str, Mapping[str, Any]] = {
        "INPUTS": {n: (*_typed(n, known), _limit(n, model, known)) for n in given},
        "TENSORS": {n: _typed(n, known) for n in sorted(made)},
        "PARAMETERS": writer.parameters,
    }
    rows = "".join(f"\n    {tuple(entry)!r}," for entry in plan.entries)
    written = [
        *classes,
        "# Type, shape and limit of inputs; tensors between stages; of what the model stores, the",
        "# axis that devices cut, in how many blocks, and 1 if it is trained.",
        f"MODEL = {about[0]!r}\nDIGEST = {about[1]!r}",
        *(f"{name} = {{{_rows(table)}\n}}" for name, table in tables.items()),
        f"OUTPUTS = {tuple(value.name for value in model.graph.output)!r}",
        f"STAGES = ({''.join(f'Stage{s}, ' for s in range(len(classes)))})",
        f"RECOMPUTED = {plan.recomputed!r}",
        f"# Forward, backward or weights, stage, micro-batch, devices.\nSCHEDULE = ({rows}\n)\n",
    ]
    ops, wanted = _ops(), [*writer.used]
    for name in wanted:  # what a function calls comes along
        wanted += [n for n in ops.source if f" {n}(" in ops.source.get(name, "")[5:]]
    functions = "\n\n\n".join(ops.source[name] for name in sorted({*wanted} & ops.source.keys()))
    frame = _text("train.py").replace("# OPERATORS\n", f"\n{functions}\n\n")
    before, _, rest = frame.partition("# BEGIN\n")
    return (before + "\n".join(written) + rest.partition("# END\n")[2]).encode()


def _typed(name: str, known: Mapping[str, TensorType]) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a tensor; raises a UsageError if they are not known."""
    found = known.get(name, TensorType(None, None))
    sizes = tuple(size for size in found.shape or () if isinstance(size, int))
    if found.dtype is None or found.shape is None or len(sizes) < len(found.shape):
        raise UsageError(f"--to torch: type or shape of '{printable(name)}' is not known")
    return found.dtype, sizes


def _limit(name: str, model: onnx.ModelProto, known: Mapping[str, TensorType]) -> int | None:
    """Limit of whole numbers: rows of the smallest table that they are looked up in, or 2."""
    if "float" in _typed(name, known)[0]:
        return None
    rows = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    looked = [n.input[0] for n in model.graph.node if n.op_type == "Gather" and n.input[1] == name]
    return min((rows[table][0] for table in looked if table in rows), default=2)


def _rows(table: Mapping[str, Any], indent: str = "    ") -> str:
    return "".join(f"\n{indent}{name!r}: {value!r}," for name, value in table.items())


@dataclass
class _Writer:
    """The classes of stages in the making."""

    plan: Trained
    degree: Mapping[int, int]
    """Devices that run each stage together."""
    facts: Facts
    known: Mapping[str, TensorType]
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Small tensors that do not depend on data."""
    used: dict[str, None] = field(default_factory=dict)
    """Operators that occur."""
    parameters: dict[str, tuple[int | None, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stages = range(len(self.plan.stages))
        self.parted = any(entry.what == "W" for entry in self.plan.entries)
        self.nodes = [self._nodes(stage) for stage in self.plan.stages]
        self.layouts: dict[str, Layout] = {}
        self.stored: dict[str, int] = {}
        """Stored tensor -> how each device has it."""
        for t in sorted({*self.degree.values()} - {1}):
            together = [node for s in stages if self.degree[s] == t for node in self.nodes[s]]
            apart = [node for s in stages if self.degree[s] != t for node in self.nodes[s]]
            others = {name for node in apart for name in reads(node)}
            self._lay_out(together, t, others)

    def _nodes(self, stage: StageModel) -> list[onnx.NodeProto]:
        """The nodes of a stage but those that are worked out here."""
        return [
            node
            for node in stage.model.graph.node
            if node.output[0] not in self.facts.stored and not self._worked_out(node)
        ]

    def _worked_out(self, node: onnx.NodeProto) -> bool:
        """Work out a node of few whole numbers that do not depend on data; False: it is none."""
        name, shape = node.output[0], self.facts.shape(node.output[0])
        if name in self.values:
            return True
        if shape is None or prod(shape) > SHORT or "float" in (self.facts.dtype(name) or "float"):
            return False
        given = [self.value(read) for read in node.input]
        if node.op_type == "Shape" and not node.attribute:
            (of,) = map(self.facts.shape, node.input)
            given = [None if of is None else np.broadcast_to(np.False_, of)]
        if domain_of(node.domain) or not given or any(value is None for value in given):
            return False
        ends = [[onnx.ValueInfoProto(name=n) for n in names] for names in (node.input, node.output)]
        made: Any = ReferenceEvaluator(
            helper.make_model(
                helper.make_graph([node], "", ends[0], ends[1]),
                opset_imports=[helper.make_opsetid("", self.facts.opset)],
            )
        ).run(None, dict(zip(node.input, given, strict=True)))
        self.values |= zip(node.output, made, strict=True)
        return True

    def value(self, name: str) -> NDArray[Any] | None:
        """The value of a small tensor that does not depend on data; None: it does, or is large."""
        tensor = self.facts.stored.get(name)
        if name in self.values or tensor is None or name in self.plan.parameters:
            return self.values.get(name)
        if prod(tensor.dims) <= SHORT and tensor.data_location != onnx.TensorProto.EXTERNAL:
            self.values[name] = numpy_helper.to_array(tensor)
        return self.values.get(name)

    def _lay_out(self, nodes: Sequence[onnx.NodeProto], degree: int, others: set[str]) -> None:
        """Find layouts of nodes on so many devices; what `others` read is stored whole."""
        names = list(dict.fromkeys(n for v in nodes for n in (*reads(v), *v.output) if n))
        number = {name: i for i, name in enumerate(names)}
        shapes = [self.facts.shape(name) for name in names]
        size = [float(prod(shape or (1,))) for shape in shapes]
        inputs = [[number[n] for n in reads(v)] for v in nodes]
        outputs = [[number[n] for n in v.output if n] for v in nodes]
        stored = [name in self.facts.stored for name in names]
        begins = {x: i for i in reversed(range(len(nodes))) for x in inputs[i]}
        leaves = {number[n] for s in self.plan.stages for n in s.outputs if n in number}
        seen = with_blocks(
            [
                Operator(v.op_type, tuple(shapes[x] for x in read), tuple(shapes[x] for x in made),
                         tuple(stored[x] for x in read))
                for v, read, made in zip(nodes, inputs, outputs, strict=True)
            ],
            inputs, outputs,
        )  # fmt: skip

        def price(i: int, rule: Rule) -> float:
            """Elements that a device stores, makes and exchanges."""
            cost = 0.0
            for x, state in zip(inputs[i], rule.inputs, strict=True):
                cost += part(state, degree) * size[x] if stored[x] and begins[x] == i else 0.0
            for x, state in zip(outputs[i], rule.outputs, strict=True):
                joined = x in leaves and state != WHOLE
                cost += size[x] * (part(state, degree) + 2 * rule.reduced + joined)
            return cost

        def layout_of(i: int, rule: Rule) -> Layout:
            ends = (inputs[i], rule.inputs), (outputs[i], rule.outputs)
            read, made = (dict(zip((names[x] for x in row), to, strict=True)) for row, to in ends)
            return Layout(read, made, rule.reduced)

        def suits(i: int, rule: Rule) -> bool:
            layout = layout_of(i, rule)
            if not layout.divided or _by_rows(nodes[i], layout):
                return True
            try:
                self.facts.change(nodes[i], layout, degree)
            except UnfitError:
                return False
            return True

        ways = [[r for r in rules(seen[i], degree) if suits(i, r)] for i in range(len(nodes))]
        every = frozenset(x for x in begins if stored[x] and names[x] not in others)
        backward = Backward((frozenset(),) * len(nodes), every, lambda *_: 0.0)
        found = choose(inputs, outputs, ways, price, lambda x: size[x], backward=backward)
        self.stored |= {names[x]: found.state[x] for x in sorted(every)}
        self.layouts |= {
            v.output[0]: layout_of(i, found.rules[i])
            for i, v in enumerate(nodes)
            if layout_of(i, found.rules[i]).divided
        }

    def stage(self, s: int) -> str:
        """The class of a stage."""
        stage, text = self.plan.stages[s], _StageText(self, self.degree[s])
        for i, name in enumerate(stage.inputs):
            text.enter(name, WHOLE, f"x{i}")
        for i, node in enumerate(self.nodes[s]):
            text.add(i, node)
        back = "".join(f"{text.get(name, WHOLE)}, " for name in stage.outputs)
        body = "".join(f"\n        {line}" for line in (*text.lines, f"return ({back})"))
        for name in text.stored.values():
            state = self.stored.get(name, WHOLE)
            axis = None if state == WHOLE else axis_of(state)
            trained = int(name in self.plan.parameters)
            self.parameters[name] = axis, blocks_of(max(state, 0)), trained
        arguments = "".join(f", x{i}" for i in range(len(stage.inputs)))
        return (
            f"class Stage{s}(Stage):\n    READS = {stage.inputs!r}\n    MAKES = {stage.outputs!r}\n"
            f"    STORED = {{{_rows(text.stored, ' ' * 8)}\n    }}\n"
            f"    CONSTANTS = {{{_rows(text.constants, ' ' * 8)}\n    }}\n\n"
            f"    def forward(self{arguments}):{body}\n\n"
        )


def _by_rows(node: onnx.NodeProto, layout: Layout) -> bool:
    """True if each device looks up some rows of a table."""
    at_rows = all(one.name != "axis" or not one.i for one in node.attribute)
    return node.op_type == "Gather" and layout.reduced and at_rows


@dataclass
class _StageText:
    """The class of one stage in the making."""

    writer: _Writer
    degree: int
    lines: list[str] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    constants: dict[str, tuple[Any, str]] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=dict)
    local: dict[tuple[str, int], str] = field(default_factory=dict)
    """Tensor and state -> what has it."""

    def enter(self, name: str, state: int, local: str) -> None:
        """Note what has a tensor."""
        self.state[name], self.local[name, state] = state, local

    def get(self, name: str, need: int) -> str:
        """Variable of a tensor in a state, made if needed."""
        if name not in self.state:
            value = self.writer.value(name)
            if value is not None:
                self.enter(name, WHOLE, f"self.c{len(self.constants)}")
                self.constants[f"c{len(self.constants)}"] = value.tolist(), str(value.dtype)
            else:
                self.enter(name, self.writer.stored.get(name, WHOLE), f"self.w{len(self.stored)}")
                self.stored[f"w{len(self.stored)}"] = name
        if (name, need) not in self.local:
            have = self.state[name] if need == WHOLE else WHOLE
            do, at = ("gather", have) if need == WHOLE else ("part", need)
            call = f"self.{do}({self.get(name, have)}, {axis_of(at)}, {blocks_of(at)})"
            self.local[name, need] = f"m{len(self.local)}"
            self.lines.append(f"{self.local[name, need]} = {call}")
        return self.local[name, need]

    def add(self, i: int, node: onnx.NodeProto) -> None:
        """Add the line of a node."""
        ops, op, label = _ops(), node.op_type, called(node.op_type, node.name, node.output)
        made = [name for name in node.output if name] if op == "Split" else node.output[:1]
        if domain_of(node.domain) or not (op in ops.source or op in ops.direct):
            title = f"{node.domain}:{op}" if domain_of(node.domain) else op
            raise UsageError(f"--to torch does not know the operator {title} of '{label}'")
        layout = self.writer.layouts.get(node.output[0], Layout({}, {}, False))
        whole = change = Change()
        words = self._words(node, label)
        if _by_rows(node, layout):
            (rows, _) = self.writer.facts.shape(node.input[0]) or (0, 0)
            op, words = "GatherRows", {"first": f"self.j * ({rows} // self.t)"}
        elif layout.divided:
            change = self.writer.facts.change(node, layout, self.degree)
            whole = self.writer.facts.change(node, layout, 1)
            words |= {k: _shared(whole.attributes[k], v) for k, v in change.attributes.items()}
        if op == "Split":
            words["count"] = str(len(made))
        given = []
        for position, name in enumerate(node.input):
            if not name:
                given.append("None")
            elif position in change.vectors:
                given.append(_shared(whole.vectors[position], change.vectors[position]))
            elif position in ops.literal.get(op, ()):
                value = self.writer.value(name)
                if value is None:
                    raise UsageError(f"--to torch: input {position} of '{label}' depends on data")
                given.append(repr(value.item() if value.ndim == 0 else tuple(value.tolist())))
            else:
                once = " if self.j == 0 else None" * (position in change.once)
                given.append(self.get(name, layout.inputs.get(name, WHOLE)) + once)
        self.writer.used[op] = None
        call = ", ".join([*given, *(f"{word}={value}" for word, value in words.items())])
        if self.writer.parted and op != "Split" and any(x.startswith("self.w") for x in given):
            call = f"self.apart({ops.direct.get(op, op)}, {call})"
        else:
            call = f"{ops.direct.get(op, op)}({call})"
        targets = [f"v{i}_{j}" if j else f"v{i}" for j in range(len(made))]
        for name, target in zip(made, targets, strict=True):
            self.enter(name, WHOLE if layout.reduced else layout.outputs.get(name, WHOLE), target)
        call = f"self.add_up({call})" if layout.reduced else call
        self.lines.append(f"{', '.join(targets)}{',' * (op == 'Split')} = {call}")

    @staticmethod
    def _words(node: onnx.NodeProto, label: str) -> dict[str, str]:
        """Attributes as words of Python."""
        found = {}
        for one in node.attribute:
            value = helper.get_attribute_value(one)
            if (one.name, value) in (("auto_pad", b"NOTSET"), ("storage_order", 0)):
                continue
            if one.name not in _ops().words.get(node.op_type, ()):
                what = f"the attribute {one.name} of {node.op_type} '{label}'"
                raise UsageError(f"--to torch does not know {what}")
            if one.name == "to":
                value = dtype_name(value)
            elif isinstance(value, bytes):
                value = value.decode()
            found[one.name] = repr(value if isinstance(value, int | float | str) else list(value))
        return found


def _shared(whole: Any, own: Any) -> str:
    """Numbers of a node of which each device has its part."""
    if isinstance(whole, int):
        return str(whole) if whole == own else f"{whole} // self.t"
    return f"({''.join(_shared(*pair) + ', ' for pair in zip(whole, own, strict=True))})"


def entries(
    schedule: Record, blocks: Sequence[Record], stages: Sequence[StageModel]
) -> list[Entry]:
    """The blocks of a schedule that compute.

    Passes that name no stages, such as those of a shape, are stages in their order, anew in each
    chain of passes that wait for each other; micro-batches of chains take turns.

    Raises `UsageError` if a pass is not one of a whole stage, or blocks do not come in an order
    that stages can run in.
    """
    passes, letters = schedule["passes"], {"forward": "F", "backward": "B", "weight": "W"}
    if all(one["kind"] != "weight" for one in passes):
        del letters["weight"]
    chain = list(range(len(passes)))
    for _ in passes:
        for i, one in enumerate(passes):
            for j in (entry["pass"] for entry in one["after"]):
                chain[i] = chain[j] = min(chain[i], chain[j])
    chains, number = sorted({*chain}), [one.get("stage", -1) for one in passes]
    for c in chains if -1 in number else ():
        ahead = [i for i, one in enumerate(passes) if chain[i] == c and one["kind"] == "forward"]
        named = {passes[i]["name"][1:]: s for s, i in enumerate(ahead)}
        for i, one in enumerate(passes):
            if chain[i] == c:
                number[i] = named.get(one["name"][1:], -1)
    for c in chains:
        for kind in dict.fromkeys((*letters, *(one["kind"] for one in passes))):
            if kind == "transfer":
                continue
            row = [number[i] for i, p in enumerate(passes) if chain[i] == c and p["kind"] == kind]
            if kind not in letters or sorted(row) != list(range(len(stages))):
                raise UsageError(
                    f"--to torch: {kind} passes in the schedule: {len(row)}; each of the "
                    f"{len(stages)} stages of the plan needs a {', a '.join(letters)} pass"
                )
    found = []
    for block in blocks:
        p = block["pass"]
        if passes[p]["kind"] in letters:
            batch = block["micro_batch"] * len(chains) + chains.index(chain[p])
            what, devices = letters[passes[p]["kind"]], tuple(block["units"])
            found.append(Entry(what, number[p], batch, devices))
    order = sorted({unit for entry in found for unit in entry.devices})
    found = [e._replace(devices=tuple(map(order.index, e.devices))) for e in found]
    _check_order(found, stages)
    return found


def _check_order(found: Sequence[Entry], stages: Sequence[StageModel]) -> None:
    """Refuse blocks that come before their predecessors."""
    done = set[tuple[str, int, int]]()
    before = [{m for m in stage.sources.values() if m >= 0} for stage in stages]
    for what, s, b, _ in found:
        needed = {("F", m, b) for m in before[s]} if what == "F" else {("FB"[what == "W"], s, b)}
        if what == "B":
            needed |= {("B", c, b) for c, row in enumerate(before) if s in row}
        for other, stage, _ in sorted(needed - done):
            raise UsageError(
                f"--to torch: {what} of stage {s} and micro-batch {b} comes before {other} of "
                f"stage {stage}, which it needs"
            )
        done.add((what, s, b))
