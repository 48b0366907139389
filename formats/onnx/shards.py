"""A model whose stages several devices hold together, as an ordinary ONNX model.

A node of such a stage becomes one a device, which takes parts of its tensors as its layout says:

    y = MatMul(x, W)   ->   y@1.0of2 = MatMul(x, W@1.0of2)     on the first device
                            y@1.1of2 = MatMul(x, W@1.1of2)     on the second
                            y = Concat(y@1.0of2, y@1.1of2)     where all of y is needed

Weights are cut here, once; what is cut and needed otherwise is put together by Concat, sums over
the devices by Add, a piece on each of more than two. Stages hand tensors on whole. Inputs, outputs
and what they mean are those of the model, and so is the name of every tensor that is whole on the
first device of its stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import onnx
from onnx import helper

from dnnp.core.model.errors import FormatError
from dnnp.core.model.shards import WHOLE, axis_of, blocks_of, cut, ranges
from dnnp.formats.onnx.scope import copy_fields, reads, writes
from dnnp.formats.onnx.shard_ops import Change, Facts, Layout, Shape, UnfitError
from dnnp.formats.onnx.value_types import TensorType
from dnnp.formats.onnx.weights import Slice, slice_tensor


class StageLayout(NamedTuple):
    """A stage of a plan."""

    nodes: Sequence[int]
    """Positions in the graph, in execution order."""
    devices: int
    """Number of devices that hold the stage together."""
    layouts: Mapping[int, Layout]
    """Of each node, where there are several devices."""


class Task(NamedTuple):
    """A node of the model that was made."""

    stage: int
    device: int
    """Number of the device in the stage, from 0."""
    source: int | None
    """The node of the model that it runs, or a part of it; None: it moves or puts together."""
    joins: int | None = None
    """The node whose outputs it puts together."""


class Exchange(NamedTuple):
    """A tensor that devices of a stage put together of what each of them has."""

    kind: str
    """`all-reduce`, of summands; or `all-gather`, of parts."""
    stage: int
    tensor: str
    parts: tuple[str, ...]
    """Names of the parts, one a device."""


class StatePart(NamedTuple):
    """A state on one device, or its part there."""

    whole: tuple[str, str]
    """Input and output of the model that hold all of it."""
    own: tuple[str, str]
    axis: int
    """The axis that it is cut along; `WHOLE`: none."""
    devices: int


@dataclass(frozen=True, eq=False)
class ShardedModel:
    """An ordinary model that computes what the source computes."""

    model: onnx.ModelProto
    """External data keeps the location it has in the source model; parts may be rows of it."""
    tasks: Mapping[int, Task]
    """Position in its graph -> what that node is, in an order in which they can run."""
    slices: Mapping[str, Slice]
    """Weights that are parts of others."""
    types: Mapping[str, TensorType]
    """Types of the tensors that it has and the source has not."""
    whole: Mapping[int, str]
    """Nodes of the source that all devices run whole, against their layout, and why."""
    exchanges: tuple[Exchange, ...]
    """In the order of the stages."""
    states: Sequence[StatePart] = ()


def shard_model(
    model: onnx.ModelProto,
    stages: Sequence[StageLayout],
    known: Mapping[str, TensorType],
    states: Mapping[str, str] | None = None,
) -> ShardedModel:
    """Cut the nodes of a model by the layouts of its stages.

    Parameters
    ----------
    model
        The source; external data need not be there.
    stages
        Every node is in one of them, except those that make weights; each reads from itself and
        from those before it.
    known
        Types of the tensors at the sizes that the layouts are for. Free sizes of inputs become
        these, without `states`.
    states
        Input -> output of what each device keeps between passes, or its part: the model that is
        made has inputs and outputs for them. It runs at any sizes that `known` does not have.

    Raises
    ------
    FormatError
        What needs to be known of a tensor is not.
    """
    return _Rewriting(model, stages, known, states).done()


_FIRST = -2
"""State of a tensor that the first device alone has, all of it."""
_SUMMANDS = -3
"""State of a tensor of which each device has a summand."""
_PIECES = -4
"""State of such a tensor of which each device has a piece of the sum."""


@dataclass
class _Emitted:
    """The nodes that were made so far."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def add(self, node: onnx.NodeProto, task: Task) -> None:
        self.nodes.append(node)
        self.tasks.append(task)


class _Rewriting:
    """The model in the making: stage after stage, node after node."""

    def __init__(
        self,
        source: onnx.ModelProto,
        stages: Sequence[StageLayout],
        known: Mapping[str, TensorType],
        states: Mapping[str, str] | None,
    ) -> None:
        held = {v for stage in stages for v in stage.nodes}
        self._makers = [v for v in range(len(source.graph.node)) if v not in held]
        self._facts = Facts(source, self._makers, known, states is not None)
        self._ends, self._parts = states or {}, list[StatePart]()
        self._source, self._model, self._stages = source, self._facts.model, stages
        graph = source.graph
        self._taken = self._facts.names | {v.name for v in (*graph.input, *graph.output)}
        self._needed = {v.name for v in graph.output}.difference(self._ends.values())
        self._out = _Emitted()
        self._weights: dict[str, onnx.TensorProto] = {}
        self._slices: dict[str, Slice] = {}
        self._cuts: dict[Slice, str] = {}
        self._new: dict[str, TensorType] = {}
        self._whole: dict[int, str] = {}
        self._exchanges: dict[tuple[int, str], Exchange] = {}
        self._state: dict[str, int] = {}
        """Of the tensors that nodes of the stage at work have made."""
        self._maker: dict[str, int] = {}
        self._local: dict[tuple[str, int, int], str] = {}
        """Tensor, state, device of the stage at work -> its name there."""

    def done(self) -> ShardedModel:
        """Cut all stages, and leave out unread values."""
        later = [
            {name for v in stage.nodes for name in reads(self._node(v))} for stage in self._stages
        ]
        for i, stage in enumerate(self._stages):
            self._state, self._maker, self._local = {}, {}, {}
            for v in stage.nodes:
                if stage.devices == 1:
                    self._out.add(self._node(v), Task(i, 0, v))
                else:
                    self._spread(i, stage, v)
            wanted = set(self._needed).union(*later[i + 1 :])
            for name in self._state:
                if name in wanted:
                    self._get(i, stage.devices, name, WHOLE, 0)
            self._keep(stage)
        return self._built()

    def _keep(self, stage: StageLayout) -> None:
        """Enter the states of a stage, in the parts that its devices have made."""
        t, made = stage.devices, {name for v in stage.nodes for name in writes(self._node(v))}
        for ends in (pair for pair in self._ends.items() if pair[1] in made):
            state = self._state.get(ends[1], _FIRST)
            axis = max(state, WHOLE)
            for j in range(1 if state == _FIRST else t):
                own = self._name(t, ends[0], axis, j), self._name(t, ends[1], axis, j)
                self._parts.append(StatePart(ends, own, axis, t))
                self._needed.add(own[1])

    def _node(self, v: int) -> onnx.NodeProto:
        return self._model.graph.node[v]

    def _spread(self, i: int, stage: StageLayout, v: int) -> None:
        """Run a node on the devices of its stage."""
        node, layout = self._node(v), stage.layouts[v]
        change = None
        if self._facts.is_alone(node):
            alone = range(1)
        else:
            alone = range(stage.devices)
            if layout.divided:
                try:
                    change = self._facts.change(node, layout, stage.devices)
                except UnfitError as error:
                    self._whole[v] = str(error)
        for j in alone:
            self._copy(i, stage.devices, v, j, layout, change)
        for name in writes(node):
            self._maker[name] = v
            if len(alone) == 1:
                self._state[name] = _FIRST
            elif change is None:
                self._state[name] = WHOLE
            else:
                self._state[name] = _SUMMANDS if layout.reduced else layout.outputs[name]

    def _copy(
        self, i: int, devices: int, v: int, j: int, layout: Layout, change: Change | None
    ) -> None:
        """The node of one device; `change`: None where it is whole."""
        source = self._node(v)
        node = onnx.NodeProto()
        node.CopyFrom(source)
        node.name = f"{source.name}@{j}of{devices}" if source.name and j else source.name
        del node.input[:]
        for position, name in enumerate(source.input):
            if change is not None and position in change.vectors:
                node.input.append(self._vector(change.vectors[position]))
            elif change is not None and position in change.once and j:
                node.input.append("")
            elif name:
                state = WHOLE if change is None else layout.inputs.get(name, WHOLE)
                node.input.append(self._get(i, devices, name, state, j))
            else:
                node.input.append("")
        while node.input and not node.input[-1]:
            del node.input[-1]
        for name in reads(source):  # bodies read from outside what the first device has whole
            if name not in source.input:
                self._get(i, devices, name, WHOLE, j)
        for name, value in (change.attributes if change is not None else {}).items():
            for one in node.attribute:
                if one.name == name:
                    one.CopyFrom(helper.make_attribute(name, value))
        del node.output[:]
        for name in source.output:
            state = WHOLE
            if change is not None and name:
                state = _SUMMANDS if layout.reduced else layout.outputs[name]
            node.output.append(self._name(devices, name, state, j) if name else "")
        if change is not None and change.rows:
            self._own_rows(node, source.input, devices, Task(i, j, v))
        else:
            self._out.add(node, Task(i, j, v))

    def _own_rows(
        self, node: onnx.NodeProto, names: Sequence[str], devices: int, task: Task
    ) -> None:
        """Take the rows that a device has of a table, and zeros for those of the others.

        What is no row of the table fails on the first device or the last one, as it would.
        """
        (count, _), at = self._facts.stored[names[0]].dims, self._facts.shape(names[1]) or ()
        begin, end = cut(count, devices)[task.device]
        zero = helper.make_tensor(
            self._free(f"{node.output[0]}@0"), self._facts.stored[names[0]].data_type, [1], [0]
        )
        self._weights[zero.name] = zero

        def made(op: str, *inputs: str, **attributes: Any) -> str:
            name = self._free(f"{node.output[0]}@{op}")
            step = helper.make_node(op, inputs, [name], **attributes)
            self._out.add(step, Task(task.stage, task.device, None))
            return name

        def below(rows: str, bound: int) -> str:
            return made("Less", rows, self._vector((bound,)))

        rows = made("Cast", node.input[1], to=onnx.TensorProto.INT64)
        rows = made("Where", below(rows, 0), made("Add", rows, self._vector((count,))), rows)
        rows = made("Sub", rows, self._vector((begin,))) if begin else rows
        others = []
        if task.device:
            others.append(below(rows, 0))
        else:  # no row of any device has such a number: this one says so
            rows = made("Where", below(rows, 0), self._vector((count,)), rows)
        if task.device < devices - 1:
            past = made("Not", below(rows, end - begin))
            if not task.device:
                past = made("And", past, below(rows, count))
            others.append(past)
        strange = others[0] if len(others) == 1 else made("Or", *others)
        node.input[1] = made("Where", strange, self._vector((0,)), rows)
        result = node.output[0]
        node.output[0] = self._free(f"{result}@rows")
        self._out.add(node, task)
        strange = made("Reshape", strange, self._vector((*(0 for _ in at), 1)))
        where = helper.make_node("Where", [strange, zero.name, node.output[0]], [result])
        self._out.add(where, Task(task.stage, task.device, None))

    def _name(self, devices: int, name: str, state: int, j: int) -> str:
        """The name of a tensor, or a part of it, on a device that makes it."""
        key = name, state, j
        if key not in self._local:
            if state == WHOLE and j == 0:
                self._local[key] = name
            else:
                self._local[key] = self._free(f"{name}@{_label(state)}{j}of{devices}")
                self._note(name, self._local[key], state, devices, j)
        return self._local[key]

    def _get(self, i: int, devices: int, name: str, need: int, j: int) -> str:
        """The name of a tensor on a device in the state that is needed; makes it so."""
        if name not in self._state:  # of another stage, an input of the model, or a weight
            if name in self._ends:
                return self._name(devices, name, need, j)
            if need == WHOLE:
                return name
            return self._weight(devices, name, need, j) or self._part(i, devices, name, need, j)
        have = self._state[name]
        if have == need or (have == WHOLE and need == WHOLE):
            return self._name(devices, name, have, j)
        if need != WHOLE:
            return self._part(i, devices, name, need, j)
        if have == _FIRST:
            return name
        if (name, WHOLE, j) not in self._local:
            self._join(i, devices, name, have, j)
        return self._local[name, WHOLE, j]

    def _join(self, i: int, devices: int, name: str, have: int, j: int) -> None:
        """Put all of a tensor together on a device."""
        parts = [self._name(devices, name, have, d) for d in range(devices)]
        whole = self._name(devices, name, WHOLE, j)
        task = Task(i, j, None, self._maker[name])
        kind = "all-reduce" if have == _SUMMANDS else "all-gather"
        self._exchanges[i, name] = Exchange(kind, i, name, tuple(parts))
        if have != _SUMMANDS:
            if blocks_of(have) > 1:
                parts = self._blocks(devices, name, have, parts, task)
            self._out.add(helper.make_node("Concat", parts, [whole], axis=axis_of(have)), task)
            return
        shape = self._facts.shape(name) or ()
        axes = [a for a, size in enumerate(shape) if size >= devices]
        axis = axes[-1 if self._ends else 0] if axes else None
        if devices == 2 or axis is None:
            self._add(parts, whole, shape, task)
            return
        pieces = [self._summed(i, devices, name, axis, d) for d in range(devices)]
        self._out.add(helper.make_node("Concat", pieces, [whole], axis=axis), task)

    def _summed(self, i: int, devices: int, name: str, axis: int, j: int) -> str:
        """The piece of a sum that a device adds up for all: so each of them sends and gets
        2 (t - 1) / t times the tensor, as around a ring, where (t - 1) times it would go to all."""
        key = name, _PIECES, j
        if key not in self._local:
            shape = self._facts.shape(name) or ()
            bounds = cut(shape[axis], devices)[j]
            piece = (*shape[:axis], bounds[1] - bounds[0], *shape[axis + 1 :])
            parts = []
            for d in range(devices):
                parts.append(self._fresh(f"{name}@sum.{j}.{d}of{devices}", name, piece))
                source = self._name(devices, name, _SUMMANDS, d)
                self._slice(source, parts[-1], axis, bounds, Task(i, d, None))
            self._local[key] = self._fresh(f"{name}@all.{j}of{devices}", name, piece)
            self._add(parts, self._local[key], piece, Task(i, j, None, self._maker[name]))
        return self._local[key]

    def _add(self, parts: Sequence[str], made: str, shape: Shape, task: Task) -> None:
        """Add parts up on a device."""
        total = parts[0]
        for d, part in enumerate(parts[1:], 1):
            last = d == len(parts) - 1
            result = made if last else self._fresh(f"{made}.{d}.{task.device}", made, shape)
            self._out.add(helper.make_node("Add", [total, part], [result]), task)
            total = result

    def _fresh(self, wanted: str, source: str, shape: Shape) -> str:
        """A new name, for what is made of a tensor."""
        name = self._free(wanted)
        known = self._new[source].dtype if source in self._new else self._facts.dtype(source)
        self._new[name] = TensorType(known, shape or None)
        return name

    def _blocks(
        self, devices: int, name: str, state: int, parts: Sequence[str], task: Task
    ) -> list[str]:
        """The blocks of a tensor in order, from the parts of all devices."""
        shape, axis = self._facts.shape(name), axis_of(state)
        if shape is None:
            raise FormatError(f"the shape of '{name}', which is cut, is not certain")
        each = shape[axis] // blocks_of(state) // devices
        piece = (*shape[:axis], each, *shape[axis + 1 :])
        found = []
        for b in range(blocks_of(state)):
            for d, part in enumerate(parts):
                wanted = f"{name}@{axis}.{b}.{d}of{devices}.{task.device}"
                found.append(self._fresh(wanted, name, piece))
                self._slice(part, found[-1], axis, (b * each, (b + 1) * each), task)
        return found

    def _slice(
        self, source: str, made: str, axis: int, bounds: tuple[int, int], task: Task
    ) -> None:
        """Take a range of a tensor."""
        begin, end = bounds
        if self._facts.opset < 10:
            node = helper.make_node(
                "Slice", [source], [made], starts=[begin], ends=[end], axes=[axis]
            )
        else:
            vectors = [self._vector((x,)) for x in (begin, end, axis)]
            node = helper.make_node("Slice", [source, *vectors], [made])
        self._out.add(node, task)

    def _part(self, i: int, devices: int, name: str, state: int, j: int) -> str:
        """Take the part of a device from all of a tensor."""
        key = name, state, j
        if key not in self._local:
            whole = self._get(i, devices, name, WHOLE, j)
            shape, axis, task = self._facts.shape(name), axis_of(state), Task(i, j, None)
            if shape is None:
                raise FormatError(f"the shape of '{name}', which is to be cut, is not certain")
            made = self._free(f"{name}@{_label(state)}{j}of{devices}")
            wanted = ranges(shape[axis], devices, state, j)
            if len(wanted) == 1:
                self._slice(whole, made, axis, wanted[0], task)
            else:
                begin, end = wanted[0]
                size = (*shape[:axis], end - begin, *shape[axis + 1 :])
                pieces = [self._fresh(f"{made}.{b}", name, size) for b in range(len(wanted))]
                for piece, bounds in zip(pieces, wanted, strict=True):
                    self._slice(whole, piece, axis, bounds, task)
                self._out.add(helper.make_node("Concat", pieces, [made], axis=axis), task)
            self._local[key] = made
            self._note(name, made, state, devices, j)
        return self._local[key]

    def _weight(self, devices: int, name: str, state: int, j: int) -> str | None:
        """The part of a weight that a device has; None if it is no weight."""
        if name not in self._facts.stored:
            return None
        key = name, state, j
        if key not in self._local:
            axis, dims = axis_of(state), self._facts.stored[name].dims
            part = Slice(name, axis, tuple(ranges(dims[axis], devices, state, j)))
            made = self._cuts.get(part)
            if made is None:
                made = self._free(f"{name}@{_label(state)}{j}of{devices}")
                tensor = slice_tensor(self._facts.stored[name], made, part)
                if tensor is None:
                    raise FormatError(f"'{name}' cannot be cut: its elements share bytes")
                self._weights[made], self._slices[made] = tensor, part
                self._cuts[part] = made
            self._local[key] = made
        return self._local[key]

    def _vector(self, values: tuple[int, ...]) -> str:
        """The name of a constant vector of integers."""
        name = self._free(f"@{','.join(map(str, values))}", again=True)
        if name not in self._weights:
            vector = onnx.TensorProto(name=name, data_type=onnx.TensorProto.INT64)
            vector.dims.append(len(values))
            vector.raw_data = b"".join(v.to_bytes(8, "little", signed=True) for v in values)
            self._weights[name] = vector
        return name

    def _free(self, name: str, *, again: bool = False) -> str:
        """A name that the model does not have; the same each time with `again`."""
        while name in self._taken:
            name += "_"
        if not again:
            self._taken.add(name)
        return name

    def _note(self, name: str, made: str, state: int, devices: int, j: int) -> None:
        """Enter the type of what was made of a tensor."""
        dtype, shape = self._facts.dtype(name), self._facts.shape(name)
        if shape is not None and state >= 0:
            axis = axis_of(state)
            length = sum(end - begin for begin, end in ranges(shape[axis], devices, state, j))
            shape = (*shape[:axis], length, *shape[axis + 1 :])
        self._new[made] = TensorType(dtype, shape)

    def _built(self) -> ShardedModel:
        """The model; of stages on several devices without what no output depends on."""
        source, out, weights = self._model, self._out, self._source.graph.initializer
        needed, kept = set(self._needed), [False] * len(out.nodes)
        for at in range(len(out.nodes) - 1, -1, -1):
            alone = self._stages[out.tasks[at].stage].devices == 1
            kept[at] = alone or not needed.isdisjoint(out.nodes[at].output)
            if kept[at]:
                needed.update(reads(out.nodes[at]))
        model = onnx.ModelProto()
        copy_fields(source, model, without=("graph", "training_info"))
        graph = model.graph
        copy_fields(source.graph, graph, without=("node", "initializer", "input"))
        graph.node.extend(self._node(v) for v in self._makers)
        tasks = {}
        for at, keep in enumerate(kept):
            if keep:
                tasks[len(graph.node)] = out.tasks[at]
                graph.node.append(out.nodes[at])
        read = {name for node in graph.node for name in reads(node)} | self._needed
        annotated = (e.quant_parameter_tensor_names for e in graph.quantization_annotation)
        read |= {pair.value for pairs in annotated for pair in pairs}
        unread = self._facts.stored.keys() - read
        graph.input.extend(value for value in source.graph.input if value.name not in unread)
        for at, side in enumerate((graph.input, graph.output)):
            values = {value.name: value for value in side}
            whole = {part.whole[at] for part in self._parts}
            kept = [value for name, value in values.items() if name not in whole]
            kept += [_piece(values[p.whole[at]], p.own[at], p) for p in self._parts]
            del side[:]
            side.extend(kept)
        graph.initializer.extend(t for t in weights if t.name in read)
        graph.initializer.extend(t for name, t in self._weights.items() if name in read)
        for part in self._parts:
            if part.own[0] not in read:
                raise FormatError(f"the state '{part.whole[0]}' is cut at one end alone")
        slices = {name: part for name, part in self._slices.items() if name in read}
        exchanges = tuple(one for one in self._exchanges.values() if read.issuperset(one.parts))
        for name, kind in self._new.items() if self._ends else ():
            self._new[name] = replace(kind, shape=kind.shape and (None,) * len(kind.shape))
        return ShardedModel(model, tasks, slices, self._new, self._whole, exchanges, self._parts)


def _piece(value: onnx.ValueInfoProto, name: str, part: StatePart) -> onnx.ValueInfoProto:
    """Declare the part of a state."""
    made = onnx.ValueInfoProto()
    made.CopyFrom(value)
    made.name = name
    if part.axis != WHOLE:
        made.type.tensor_type.shape.dim[part.axis].dim_value //= part.devices
    return made


def _label(state: int) -> str:
    """A state in the names of tensors."""
    if state == WHOLE:
        return ""
    blocks = f"x{blocks_of(state)}" if state >= 0 and blocks_of(state) > 1 else ""
    return "sum." if state == _SUMMANDS else f"{axis_of(state)}{blocks}."
