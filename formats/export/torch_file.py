"""A plan for training and its schedule as one file of PyTorch.

The file is `torch_train.py` with a class for each stage, the functions of `torch_ops.py` that they
call, and the schedule as a list. What several devices run together is laid out anew: the layout is
the one with the fewest bytes that a device stores, makes and exchanges (`tensor_parallel.layout`),
of those that suit the attributes of nodes (`formats.onnx.shard_ops`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from dnnp.formats.onnx.scope import domain_of, reads, subgraphs
from dnnp.formats.onnx.shard_ops import Change, Facts, Layout, UnfitError
from dnnp.formats.onnx.stages import StageModel
from dnnp.formats.onnx.value_types import TensorType, dtype_name
from dnnp.formats.stream import Record

SHORT = 64
"""Elements of constants that are written into the file."""


class Entry(NamedTuple):
    """A block of the schedule."""

    what: str
    """F: forward, B: backward, I and W: its parts."""
    stage: int
    batch: int
    devices: tuple[int, ...]


class Ops(NamedTuple):
    """What the file of operators has."""

    source: dict[str, str]
    """Functions, by name."""
    words: dict[str, frozenset[str]]
    """Their attributes."""
    direct: dict[str, str]
    literal: dict[str, tuple[int, ...]]


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text()


@cache
def _ops() -> Ops:
    """Read the file of operators, which cannot be imported without PyTorch."""
    text = _text("torch_ops.py")
    source, words, tables = {}, {}, []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            source[node.name] = ast.get_source_segment(text, node) or ""
            words[node.name] = frozenset(
                one.arg for one in (*node.args.args, *node.args.kwonlyargs)
            )
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            tables.append(ast.literal_eval(node.value))
    return Ops(source, words, *tables)


@dataclass
class _Writer:
    """The stages in the making."""

    stages: Sequence[StageModel]
    degrees: Sequence[int]
    """Devices that run each stage together."""
    facts: Facts
    known: Mapping[str, TensorType]
    trained: frozenset[str]
    """Parameters with a gradient."""
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Small tensors that do not depend on data."""
    stored: dict[str, int] = field(default_factory=dict)
    """Stored tensor -> how each device has it."""
    used: set[str] = field(default_factory=set)
    """Operators that occur."""

    def nodes(self, s: int) -> list[onnx.NodeProto]:
        """The nodes of a stage that are written; what does not depend on data is worked out."""
        found = []
        for node in self.stages[s].model.graph.node:
            if node.op_type == "Constant" and node.output[0] in self.facts.stored:
                continue
            if not self._worked_out(node):
                found.append(node)
        return found

    def _worked_out(self, node: onnx.NodeProto) -> bool:
        """Work out a node of small whole numbers, if it is one; True: done."""
        if node.output[0] in self.values:
            return True
        known = self.known.get(node.output[0], TensorType(None, None))
        if domain_of(node.domain) or any(True for _ in subgraphs(node)):
            return False
        if known.dtype not in ("int64", "int32", "bool") or prod(_sizes(known) or (0,)) > SHORT:
            return False
        shape = _sizes(self.known.get(node.input[0])) if node.input else None
        if node.op_type == "Shape" and shape is not None and not node.attribute:
            self.values[node.output[0]] = np.array(shape, dtype=np.int64)
            return True
        given = [self.value(name) for name in node.input]
        if not given or any(v is None for v, name in zip(given, node.input, strict=True) if name):
            return False
        feeds = {n: v for n, v in zip(node.input, given, strict=True) if v is not None}
        model = helper.make_model(
            helper.make_graph(
                [node], "", [onnx.ValueInfoProto(name=n) for n in feeds],
                [onnx.ValueInfoProto(name=n) for n in node.output],
            ),
            opset_imports=[helper.make_opsetid("", self.facts.opset)],
        )  # fmt: skip
        made = ReferenceEvaluator(model).run(None, feeds)
        self.values |= zip(node.output, made, strict=True)
        return True

    def value(self, name: str) -> NDArray[Any] | None:
        """The value of a small tensor that does not depend on data; None: it does, or is large."""
        tensor = self.facts.stored.get(name)
        if name not in self.values and tensor is not None and name not in self.trained:
            if prod(tensor.dims) > SHORT or tensor.data_location == onnx.TensorProto.EXTERNAL:
                return None
            self.values[name] = numpy_helper.to_array(tensor)
        return self.values.get(name)

    def lay_out(self, degree: int) -> dict[str, Layout]:
        """Layouts of nodes on so many devices, by their first output."""
        ahead = [n for s, t in enumerate(self.degrees) if t == degree for n in self.nodes(s)]
        names = list(dict.fromkeys(n for v in ahead for n in (*reads(v), *v.output) if n))
        number = {name: i for i, name in enumerate(names)}
        size = [self._size(name) for name in names]
        inputs = [[number[n] for n in reads(v)] for v in ahead]
        outputs = [[number[n] for n in v.output if n] for v in ahead]
        is_stored = [name in self.facts.stored for name in names]
        shapes = [self.facts.shape(name) for name in names]
        seen = with_blocks(
            [
                Operator(
                    v.op_type,
                    tuple(shapes[i] for i in r),
                    tuple(shapes[i] for i in w),
                    tuple(is_stored[i] for i in r),
                )
                for v, r, w in zip(ahead, inputs, outputs, strict=True)
            ],
            inputs,
            outputs,
        )
        leaves = {number[n] for s in self.stages for n in s.outputs if n in number}
        begins: dict[int, int] = {}
        for i, row in enumerate(inputs):
            for x in row:
                begins.setdefault(x, i)

        def price(i: int, rule: Rule) -> float:
            """Bytes that a device stores, makes and exchanges."""
            total = 0.0
            for x, state in zip(inputs[i], rule.inputs, strict=True):
                total += part(state, degree) * size[x] if is_stored[x] and begins[x] == i else 0.0
            for x, state in zip(outputs[i], rule.outputs, strict=True):
                total += size[x] * (part(state, degree) + 2 * rule.reduced)
                total += size[x] if x in leaves and state != WHOLE else 0.0
            return total

        def said(i: int, rule: Rule) -> Layout:
            sides = (inputs[i], rule.inputs), (outputs[i], rule.outputs)
            states = [dict(zip((names[x] for x in a), b, strict=True)) for a, b in sides]
            return Layout(states[0], states[1], rule.reduced)

        ways = [
            [r for r in rules(seen[i], degree) if not r.divided and not r.reduced
             or self._suits(v, said(i, r), degree)]
            for i, v in enumerate(ahead)
        ]  # fmt: skip
        every = frozenset(x for x in range(len(names)) if is_stored[x])
        backward = Backward((frozenset(),) * len(ahead), every, lambda *_: 0.0)
        found = choose(inputs, outputs, ways, price, lambda x: size[x], backward=backward)
        for x in sorted(every & begins.keys()):
            self.stored.setdefault(names[x], found.state[x])
        return {
            v.output[0]: said(i, r) for i, (v, r) in enumerate(zip(ahead, found.rules, strict=True))
        }

    def _size(self, name: str) -> float:
        known = self.known.get(name, TensorType(None, None))
        return 4.0 * prod(_sizes(known) or (1,))

    def _suits(self, node: onnx.NodeProto, layout: Layout, degree: int) -> bool:
        if layout.reduced and node.op_type == "Gather":
            return not any(a.name == "axis" and a.i for a in node.attribute)
        try:
            self.facts.change(node, layout, degree)
        except UnfitError:
            return False
        return True


@dataclass
class _StageText:
    """The class of one stage in the making."""

    writer: _Writer
    stage: StageModel
    layouts: Mapping[str, Layout]
    degree: int
    lines: list[str] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    constants: dict[str, tuple[Any, str]] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=dict)
    local: dict[tuple[str, int], str] = field(default_factory=dict)
    """Tensor and state -> what has it."""

    def written(self, number: int, nodes: Sequence[onnx.NodeProto]) -> str:
        """The class."""
        for i, name in enumerate(self.stage.inputs):
            self.local[name, WHOLE], self.state[name] = f"x{i}", WHOLE
        for i, node in enumerate(nodes):
            self._node(i, node)
        back = ", ".join(self.get(name, WHOLE) for name in self.stage.outputs)
        arguments = "".join(f", x{i}" for i in range(len(self.stage.inputs)))
        body = "".join(f"        {line}\n" for line in (*self.lines, f"return ({back},)"))
        return (
            f"class Stage{number}(Stage):\n"
            f"    READS = {self.stage.inputs!r}\n    MAKES = {self.stage.outputs!r}\n"
            f"    STORED = {{{_rows(self.stored, 2)}    }}\n"
            f"    CONSTANTS = {{{_rows(self.constants, 2)}    }}\n\n"
            f"    def forward(self{arguments}):\n{body}\n\n"
        )

    def get(self, name: str, need: int) -> str:
        """What has a tensor in a state, made where it is not there."""
        if name not in self.state:
            self._find(name)
        if (name, need) in self.local:
            return self.local[name, need]
        have = self.state[name]
        if need == WHOLE:
            call = f"self.gather({self.local[name, have]}, {axis_of(have)}, {blocks_of(have)})"
        else:
            call = f"self.part({self.get(name, WHOLE)}, {axis_of(need)}, {blocks_of(need)})"
        self.local[name, need] = made = f"m{len(self.local)}"
        self.lines.append(f"{made} = {call}")
        return made

    def _find(self, name: str) -> None:
        """Enter what the model stores, or a small constant."""
        writer = self.writer
        value = writer.value(name)
        have = WHOLE
        if value is not None:
            field_ = f"c{len(self.constants)}"
            self.constants[field_] = value.tolist(), str(value.dtype)
        elif name in writer.facts.stored:
            have, field_ = writer.stored.get(name, WHOLE), f"w{len(self.stored)}"
            self.stored[field_] = name
        else:
            raise UsageError(f"--to torch: nothing makes '{printable(name)}'")
        self.state[name], self.local[name, have] = have, f"self.{field_}"

    def _node(self, i: int, node: onnx.NodeProto) -> None:
        """A line for a node."""
        ops, op, label = _ops(), node.op_type, called(node.op_type, node.name, node.output)
        if domain_of(node.domain) or not (op in ops.source or op in ops.direct):
            domain = f"{node.domain}:" if domain_of(node.domain) else ""
            raise UsageError(f"--to torch does not know the operator {domain}{op} of '{label}'")
        layout = self.layouts.get(node.output[0])
        rows = layout is not None and layout.reduced and op == "Gather"
        whole = change = Change()
        if layout is not None and layout.divided and not rows:
            change = self.writer.facts.change(node, layout, self.degree)
            whole = self.writer.facts.change(node, layout, 1)
        words = self._attributes(node, label)
        for name, value in change.attributes.items():
            words[name] = _shared(whole.attributes[name], value)
        given = []
        for position, name in enumerate(node.input):
            need = WHOLE if layout is None else layout.inputs.get(name, WHOLE)
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
                given.append(self.get(name, need))
                if position in change.once:
                    given[-1] = f"{given[-1]} if self.j == 0 else None"
        if rows:
            size = (self.writer.facts.shape(node.input[0]) or (0,))[0]
            op, words = "GatherRows", {"first": f"self.j * ({size} // self.t)"}
        made = [name for name in node.output if name] if op == "Split" else node.output[:1]
        if op == "Split":
            words["count"] = str(len(made))
        self.writer.used.add(op)
        state = WHOLE if layout is None or layout.reduced else layout.outputs[made[0]]
        names = [f"v{i}" if len(made) == 1 else f"v{i}_{j}" for j in range(len(made))]
        for name, local in zip(made, names, strict=True):
            self.local[name, state], self.state[name] = local, state
        call = f"{ops.direct.get(op, op)}({', '.join([*given, *(f'{k}={v}' for k, v in words.items())])})"
        if layout is not None and layout.reduced:
            call = f"self.add_up({call})"
        self.lines.append(f"{', '.join(names)}{',' * (op == 'Split')} = {call}")

    def _attributes(self, node: onnx.NodeProto, label: str) -> dict[str, str]:
        """Attributes as words of Python."""
        found = {}
        for one in node.attribute:
            value = helper.get_attribute_value(one)
            if one.name == "auto_pad" and value in (b"NOTSET", b"VALID"):
                continue
            if one.name not in _ops().words.get(node.op_type, ()):
                raise UsageError(
                    f"--to torch does not know the attribute {one.name} of {node.op_type} '{label}'"
                )
            if one.name == "to":
                value = dtype_name(value)
            elif isinstance(value, onnx.TensorProto):
                array = numpy_helper.to_array(value)
                value = (array.reshape(-1)[0].item(), str(array.dtype))
            elif isinstance(value, bytes):
                value = value.decode()
            elif not isinstance(value, int | float | str):
                value = list(value)
            found[one.name] = repr(value)
        return found


def _shared(whole: Any, own: Any) -> str:
    """Numbers of a node of which each of the devices has a part."""
    if isinstance(whole, int):
        return str(whole) if whole == own else f"{whole} // self.t"
    return f"({''.join(_shared(a, b) + ', ' for a, b in zip(whole, own, strict=True))})"


def _sizes(known: TensorType | None) -> tuple[int, ...] | None:
    if known is None or known.shape is None:
        return None
    sizes = tuple(size for size in known.shape if isinstance(size, int))
    return sizes if len(sizes) == len(known.shape) else None


def _rows(table: Mapping[str, Any], depth: int = 1) -> str:
    """Rows of a dictionary; `depth`: of the indent."""
    indent = "    " * depth
    return "".join(
        f"\n{indent}{name!r}: {value!r}," for name, value in table.items()
    ) + "\n" * bool(table)


class Trained(NamedTuple):
    """A plan for training, as far as a file needs it."""

    stages: Sequence[StageModel]
    degrees: Sequence[int]
    """Devices that run each stage together."""
    recomputed: tuple[int, ...]
    """Stages whose forward passes run again."""
    parameters: frozenset[str]
    """Those with a gradient."""
    entries: Sequence[Entry]
    """The schedule in its order."""


def torch_file(
    model: onnx.ModelProto, about: tuple[str, str], plan: Trained, known: Mapping[str, TensorType]
) -> bytes:
    """The file.

    Parameters
    ----------
    about
        Path and SHA-256 of the model.
    known
        Types of tensors at the sizes of the plan, by name.

    Raises
    ------
    UsageError
        An operator, an attribute or a shape that cannot be written so, by name.
    """
    held = {v for stage in plan.stages for v in stage.nodes}
    makers = [v for v in range(len(model.graph.node)) if v not in held]
    writer = _Writer(plan.stages, plan.degrees, Facts(model, makers, known), known, plan.parameters)
    nodes = [writer.nodes(s) for s in range(len(plan.stages))]
    degrees = sorted({*plan.degrees} - {1})
    layouts = {t: writer.lay_out(t) for t in degrees}
    readers: dict[str, set[int]] = {}
    for row, t in zip(nodes, plan.degrees, strict=True):
        for name in {n for v in row for n in reads(v)}:
            readers.setdefault(name, set()).add(t)
    writer.stored = {n: s for n, s in writer.stored.items() if len(readers[n]) == 1}
    texts, parameters = [], dict[str, tuple[Any, ...]]()
    for s, stage in enumerate(plan.stages):
        text = _StageText(writer, stage, layouts.get(plan.degrees[s], {}), plan.degrees[s])
        texts.append(text.written(s, nodes[s]))
        for name in text.stored.values():
            state = writer.stored.get(name, WHOLE)
            axis = None if state == WHOLE else axis_of(state)
            parameters[name] = axis, blocks_of(max(state, 0)), int(name in plan.parameters)
    made = {n for stage in plan.stages for n, to in stage.targets.items() if {*to} - {-1}}
    tables = {
        "INPUTS": {n: _input(n, model, known) for n in _inputs(plan.stages)},
        "TENSORS": {n: _typed(n, known) for n in sorted(made)},
        "PARAMETERS": parameters,
    }
    outputs = tuple(value.name for value in model.graph.output)
    rows = "".join(f"\n    {tuple(entry)!r}," for entry in plan.entries)
    written = "\n".join([
        *texts,
        f"MODEL = {about[0]!r}",
        f"DIGEST = {about[1]!r}",
        *(f"{name} = {{{_rows(table)}}}" for name, table in tables.items()),
        f"OUTPUTS = {outputs!r}",
        f"STAGES = ({', '.join(f'Stage{s}' for s in range(len(plan.stages)))},)",
        f"RECOMPUTED = {plan.recomputed!r}",
        f"SCHEDULE = ({rows}\n)",
    ])  # fmt: skip
    ops, wanted = _ops(), [*writer.used]
    for name in wanted:  # what a function calls comes along
        wanted += [n for n in ops.source if f"{n}(" in ops.source.get(name, "")[5:]]
    functions = "\n\n\n".join(ops.source[name] for name in sorted({*wanted} & ops.source.keys()))
    frame = _text("torch_train.py").replace("# OPERATORS\n", f"\n{functions}\n\n")
    begin, end = frame.index("MODEL, DIGEST"), frame.index("# END\n")
    return (frame[:begin] + written + frame[end + len("# END") :]).encode()


def _inputs(stages: Sequence[StageModel]) -> list[str]:
    """Inputs of the model that stages read."""
    return list(dict.fromkeys(n for s in stages for n, m in s.sources.items() if m < 0))


def _typed(name: str, known: Mapping[str, TensorType]) -> tuple[str, tuple[int, ...]]:
    found = known.get(name)
    sizes = _sizes(found)
    if found is None or found.dtype is None or sizes is None:
        raise UsageError(f"--to torch: type or shape of '{printable(name)}' is not known")
    return found.dtype, sizes


def _input(
    name: str, model: onnx.ModelProto, known: Mapping[str, TensorType]
) -> tuple[str, tuple[int, ...], int | None]:
    """Type, shape, and limit of whole numbers: the rows of the tables that it is looked up in."""
    dtype, shape = _typed(name, known)
    if dtype.startswith(("float", "bfloat")):
        return dtype, shape, None
    rows = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    tables = [
        rows[node.input[0]][0]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[1] == name and node.input[0] in rows
    ]
    return dtype, shape, min(tables, default=2)


def entries(
    schedule: Record, blocks: Sequence[Record], stages: Sequence[StageModel]
) -> list[Entry]:
    """The blocks of a schedule that compute; devices are numbered as they come in it.

    Passes that name no stages, such as those of a shape, are stages in their order, anew in each
    chain of passes that wait for each other; micro-batches of chains take turns.

    Raises
    ------
    UsageError
        A pass is none of all of a stage, or blocks do not come in an order that stages can run in.
    """
    passes = schedule["passes"]
    letters = {"forward": "F", "backward": "B", "weight": "W"}
    if any(one["kind"] == "weight" for one in passes):
        letters["backward"] = "I"
    chain = list(range(len(passes)))
    for _ in passes:
        for i, one in enumerate(passes):
            for j in [entry["pass"] for entry in one["after"]]:
                chain[i] = chain[j] = min(chain[i], chain[j])
    chains = sorted({*chain})
    number = [one.get("stage", -1) for one in passes]
    if -1 in number:
        for c in chains:
            mine = [i for i in range(len(passes)) if chain[i] == c]
            ahead = [i for i in mine if passes[i]["kind"] == "forward"]
            named = {passes[i]["name"][1:]: s for s, i in enumerate(ahead)}
            for i in mine:
                number[i] = named.get(passes[i]["name"][1:], -1)
    for c in chains:
        for what in letters:
            row = [number[i] for i, p in enumerate(passes) if chain[i] == c and p["kind"] == what]
            if sorted(row) != list(range(len(stages))) and (row or what != "weight"):
                raise UsageError(
                    f"--to torch: the plan has {len(stages)} stages, each of which needs one "
                    f"{what} pass in the schedule; it has {len(row)}"
                )
    names = [unit for unit, one in enumerate(schedule["units"]) if not one.get("link")]
    device = {unit: d for d, unit in enumerate(names)}
    found = [
        Entry(
            letters[passes[b["pass"]]["kind"]], number[b["pass"]],
            b["micro_batch"] * len(chains) + chains.index(chain[b["pass"]]),
            tuple(device[unit] for unit in b["units"]),
        )
        for b in blocks
        if passes[b["pass"]]["kind"] in letters
    ]  # fmt: skip
    _check_order(found, stages, letters["backward"])
    return found


def _check_order(found: Sequence[Entry], stages: Sequence[StageModel], back: str) -> None:
    """Refuse blocks that come before what they need."""
    done = set[tuple[str, int, int]]()
    before = [{m for m in stage.sources.values() if m >= 0} for stage in stages]
    for what, s, b, _ in found:
        needed = {("F", m, b) for m in before[s]} if what == "F" else {("F", s, b)}
        if what == back:
            needed |= {(back, c, b) for c, row in enumerate(before) if s in row}
        elif what == "W":
            needed = {(back, s, b)}
        if needed - done:
            other = min(needed - done)
            raise UsageError(
                f"--to torch: {what} of stage {s} and micro-batch {b} comes before {other[0]} of "
                f"stage {other[1]}, which it needs"
            )
        done.add((what, s, b))
