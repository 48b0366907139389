"""Split an ONNX model into one model a stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import onnx

from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import called
from dnnp.formats.onnx.scope import Functions, copy_fields, domain_of, reads, writes
from dnnp.formats.onnx.value_types import TensorType, describe, find_types, require_type

MODEL = -1
"""Stands for the model itself where a stage index is expected."""

WEIGHT_MAKERS = ("Constant", "ConstantOfShape")
"""Operators that may stand outside every stage; each stage that reads them gets a copy."""

COPIED = ("DequantizeLinear",)
"""Operators that each stage that reads them gets a copy of, so that what crosses is quantised
and the stage fuses them with their readers as the whole model does."""


@dataclass(frozen=True, eq=False)
class StageModel:
    """One stage as a model of its own, and how it is wired to the others."""

    model: onnx.ModelProto
    """External data keeps the location it has in the source model."""
    nodes: tuple[int, ...]
    """Indices into the source graph's nodes, in execution order; without copies."""
    inputs: tuple[str, ...]
    """Tensors to feed, in the order of the graph's inputs."""
    outputs: tuple[str, ...]
    """Tensors it hands out, in the order of the graph's outputs."""
    sources: Mapping[str, int]
    """For each input the stage that makes it, or MODEL for an input of the model."""
    targets: Mapping[str, tuple[int, ...]]
    """For each output the stages that read it; MODEL among them if it is a model output."""
    types: Mapping[str, TensorType]
    """Element type and shape of each input and output."""


def split_model(
    model: onnx.ModelProto,
    stages: Sequence[Sequence[int]],
    known: Mapping[str, TensorType] | None = None,
) -> list[StageModel]:
    """Split a model into stages that hand tensors to each other by name.

    Together the stages compute what the model computes. A tensor goes straight from the
    stage that makes it to each stage that reads it. Initializers, weight-makers (`Constant`,
    `ConstantOfShape`), `DequantizeLinear` and local functions are copied to every stage that
    needs them. Outputs of the model that no node makes come from the first stage that holds
    them; those that are inputs of the model come from no stage (see `boundary`).

    Parameters
    ----------
    model
        The source model; external data need not be loaded.
    stages
        Node indices of each stage in execution order. Every node is in one stage, except
        weight-makers. Empty stages are dropped; the others are numbered as they come.
    known
        Types from elsewhere, for tensors whose type neither the model nor inference gives.

    Raises
    ------
    FormatError
        The stages do not cover the nodes, their order contradicts the graph, stages depend on
        each other in a cycle, a name has no maker or two, or a tensor that crosses stages has
        no known element type or is no ordinary tensor.
    """
    source = _Source(model)
    parts = [tuple(part) for part in stages if len(part)]
    stage_of = _stage_of_node(source, parts)
    _check_order(source, parts, stage_of)
    return _Splitter(source, parts, stage_of, known or {}).models()


def boundary(stages: Sequence[StageModel]) -> dict[str, int]:
    """The origin of each tensor that enters or leaves a stage: a stage index, or MODEL.

    An output of the model that is missing here is one of the model's inputs, handed through.
    """
    table: dict[str, int] = {}
    for i, stage in enumerate(stages):
        table.update(stage.sources)
        table.update((name, i) for name in stage.outputs)
    return table


class _Source:
    """Lookup tables of the source model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.model = model
        self.functions = Functions(model)
        self.nodes = list(graph.node)
        self.reads = [reads(node) for node in self.nodes]
        """Names each node reads."""
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.rank = {name: i for i, name in enumerate(self.initializers)}
        self.sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self.annotations = {entry.tensor_name: entry for entry in graph.quantization_annotation}
        self.infos = {value.name: value for value in graph.value_info}
        self.inputs = {value.name: value for value in graph.input}
        self.outputs = {value.name: value for value in graph.output}
        self.producer: dict[str, int] = {}
        """Node that makes each tensor that is made."""
        for v, node in enumerate(self.nodes):
            for name in writes(node):
                if name in self.producer or self.is_stored(name) or name in self.inputs:
                    raise FormatError(f"the tensor '{name}' has more than one maker")
                self.producer[name] = v
        names = (*self.inputs, *self.outputs, *self.initializers, *self.sparse, *self.producer)
        if not set(map(type, names)) <= {str}:
            raise FormatError("a tensor's name is not UTF-8")

    def is_stored(self, name: str) -> bool:
        """True if the tensor is an initializer."""
        return name in self.initializers or name in self.sparse

    def is_computed(self, name: str, stage_of: Sequence[int]) -> bool:
        """True if the tensor depends on an input of the model or on a stage."""
        u = self.producer.get(name, MODEL)
        return stage_of[u] != MODEL if u != MODEL else not self.is_stored(name)

    def label(self, v: int) -> str:
        """A node for messages."""
        node = self.nodes[v]
        title = called(node.op_type, node.name, node.output)
        return f"node {v} ({f'{node.op_type} {title!r}' if node.name else title})"


def _stage_of_node(source: _Source, parts: Sequence[Sequence[int]]) -> list[int]:
    """Stage of each node; MODEL for weight-makers outside every stage."""
    stage_of = [MODEL] * len(source.nodes)
    for i, part in enumerate(parts):
        for v in part:
            if not 0 <= v < len(source.nodes):
                raise FormatError(f"stage {i} holds node {v}; the model has {len(source.nodes)}")
            if stage_of[v] != MODEL:
                raise FormatError(f"{source.label(v)} is in stage {stage_of[v]} and in stage {i}")
            stage_of[v] = i
    for v, node in enumerate(source.nodes):
        if stage_of[v] != MODEL:
            continue
        is_maker = not domain_of(node.domain) and node.op_type in WEIGHT_MAKERS
        if not is_maker or any(source.is_computed(name, stage_of) for name in source.reads[v]):
            raise FormatError(f"{source.label(v)} is in no stage")
    return stage_of


def _check_order(source: _Source, parts: Sequence[Sequence[int]], stage_of: Sequence[int]) -> None:
    """Refuse stages that run a node before what it reads, or that wait for each other."""
    waits_for: TopologicalSorter[int] = TopologicalSorter()
    for i, part in enumerate(parts):
        position = {v: at for at, v in enumerate(part)}
        for at, v in enumerate(part):
            for name in source.reads[v]:
                u = source.producer.get(name, MODEL)
                if u == MODEL or stage_of[u] == MODEL:
                    continue
                if stage_of[u] != i:
                    waits_for.add(i, stage_of[u])
                elif position[u] >= at:
                    raise FormatError(
                        f"stage {i} runs {source.label(v)} before {source.label(u)}, "
                        f"whose output '{name}' it reads"
                    )
    try:
        waits_for.prepare()
    except CycleError as error:
        cycle = " -> ".join(str(i) for i in error.args[1])
        raise FormatError(f"the split is not ordered: stages {cycle} wait in a circle") from None


@dataclass
class _StageContent:
    """Contents of one stage, gathered before its model is built; dictionaries as ordered sets."""

    index: int
    nodes: tuple[int, ...]
    makers: dict[int, None] = field(default_factory=dict)
    """Nodes to copy, in an order in which they can run."""
    stored: dict[str, None] = field(default_factory=dict)
    """Initializers to copy."""
    inputs: dict[str, int] = field(default_factory=dict)
    """Input -> stage that makes it, or MODEL."""
    outputs: dict[str, list[int]] = field(default_factory=dict)
    """Output -> stages that read it, MODEL for an output of the model."""


class _Splitter:
    """Gathers what each stage needs and hands out, then builds the models."""

    def __init__(
        self,
        source: _Source,
        parts: Sequence[tuple[int, ...]],
        stage_of: Sequence[int],
        known: Mapping[str, TensorType],
    ) -> None:
        self._source = source
        self._stage_of = stage_of
        self._parts = [_StageContent(i, nodes) for i, nodes in enumerate(parts)]
        for part in self._parts:
            for v in part.nodes:
                self._need_all(part, v)
        for part in self._parts:
            for name, maker in part.inputs.items():
                if maker != MODEL:
                    self._parts[maker].outputs.setdefault(name, []).append(part.index)
        for name in source.outputs:
            holder = self._holder(name)
            if holder is not None:
                holder.outputs.setdefault(name, []).append(MODEL)
        names = [name for part in self._parts for name in self._names(part)]
        self._types = find_types(source.model, names, known)

    def _need_all(self, part: _StageContent, v: int) -> None:
        for name in self._source.reads[v]:
            self._need(part, name, self._source.label(v))

    def _need(self, part: _StageContent, name: str, reader: str) -> None:
        """Make a tensor available in a stage: copy what it comes from, or take it as an input."""
        source = self._source
        u = source.producer.get(name, MODEL)
        if source.is_stored(name):
            part.stored[name] = None
        elif u == MODEL and name in source.inputs:
            part.inputs[name] = MODEL
        elif u == MODEL:
            raise FormatError(f"{reader} reads '{name}', which nothing makes")
        elif self._stage_of[u] == MODEL or (
            self._stage_of[u] != part.index and source.nodes[u].op_type in COPIED
        ):
            self._need_all(part, u)
            part.makers[u] = None
        elif self._stage_of[u] != part.index:
            part.inputs[name] = self._stage_of[u]

    def _holder(self, name: str) -> _StageContent | None:
        """The stage that hands out a model output; None if it is an input handed through."""
        source = self._source
        u = source.producer.get(name, MODEL)
        if u != MODEL and self._stage_of[u] != MODEL:
            return self._parts[self._stage_of[u]]
        if u == MODEL and not source.is_stored(name):
            if name not in source.inputs:
                raise FormatError(f"nothing makes '{name}', an output of the model")
            return None
        if not self._parts:
            raise FormatError(f"there is no stage to hand out '{name}', an output of the model")
        holds = (part for part in self._parts if name in part.stored or u in part.makers)
        holder = next(holds, self._parts[0])
        self._need(holder, name, "the model")
        return holder

    def _names(self, part: _StageContent) -> Iterator[str]:
        """Every tensor of a stage."""
        yield from part.inputs
        yield from part.stored
        for v in (*part.makers, *part.nodes):
            yield from writes(self._source.nodes[v])

    def models(self) -> list[StageModel]:
        """Build every stage."""
        return [self._model(part) for part in self._parts]

    def _model(self, part: _StageContent) -> StageModel:
        names = dict.fromkeys(self._names(part))
        outputs = [name for name in names if name in part.outputs] or self._leaf(part)
        for name, maker in part.inputs.items():
            if maker != MODEL:
                require_type(self._types, name)
        for name in outputs:
            if part.outputs.get(name, [MODEL]) != [MODEL]:
                require_type(self._types, name)
        unknown = onnx.TypeProto()
        return StageModel(
            model=self._build(part, names, outputs),
            nodes=part.nodes,
            inputs=tuple(part.inputs),
            outputs=tuple(outputs),
            sources=dict(part.inputs),
            targets={name: tuple(sorted(part.outputs.get(name, []))) for name in outputs},
            types={n: describe(self._types.get(n, unknown)) for n in (*part.inputs, *outputs)},
        )

    def _leaf(self, part: _StageContent) -> list[str]:
        """An unread output of a stage: a model must have one."""
        made = [name for v in part.nodes for name in writes(self._source.nodes[v])]
        return made[-1:]

    def _build(
        self, part: _StageContent, names: Mapping[str, None], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        source = self._source
        model = onnx.ModelProto()
        copy_fields(source.model, model, without=("graph", "functions", "training_info"))
        graph = model.graph
        copy_fields(source.model.graph, graph, only=("name", "doc_string", "metadata_props"))
        nodes = [source.nodes[v] for v in (*part.makers, *part.nodes)]
        graph.node.extend(nodes)
        for node in graph.node:
            # What ONNX Runtime says of a node names it so.
            node.name = called(node.op_type, node.name, node.output)
        _make_names_unique(graph)
        model.functions.extend(source.functions.needed_by(nodes))
        marked = [source.annotations[name] for name in names if name in source.annotations]
        graph.quantization_annotation.extend(marked)
        scales = (pair.value for entry in marked for pair in entry.quant_parameter_tensor_names)
        stored = {**part.stored, **{name: None for name in scales if source.is_stored(name)}}
        dense = sorted(source.initializers.keys() & stored.keys(), key=source.rank.__getitem__)
        graph.initializer.extend(source.initializers[name] for name in dense)
        graph.sparse_initializer.extend(source.sparse[n] for n in stored if n in source.sparse)
        defaults = [name for name in stored if name in source.inputs]
        graph.input.extend(self._input(name) for name in (*part.inputs, *defaults))
        graph.output.extend(self._output(name) for name in outputs)
        declared = {*part.inputs, *defaults, *outputs}
        infos = (n for n in names if n in source.infos and n not in declared)
        graph.value_info.extend(source.infos[name] for name in infos)
        return model

    def _input(self, name: str) -> onnx.ValueInfoProto:
        """Declaration of an input: the model's own, or what is known of the tensor."""
        if name in self._source.inputs:
            return self._source.inputs[name]
        return onnx.ValueInfoProto(name=name, type=self._types[name])

    def _output(self, name: str) -> onnx.ValueInfoProto:
        """Declaration of an output: the model's own if it has a type, and a rank that holds."""
        own, known = self._source.outputs.get(name), self._types.get(name)
        if own is not None and own.type.WhichOneof("value") is not None:
            ranks = {
                len(kind.tensor_type.shape.dim)
                for kind in (own.type, known or own.type)
                if kind.tensor_type.HasField("shape")
            }
            if len(ranks) < 2:
                return own
        return onnx.ValueInfoProto(name=name, type=known)


def _make_names_unique(graph: onnx.GraphProto) -> None:
    """Number repeated node names: the format allows them, ONNX Runtime does not."""
    taken = {node.name for node in graph.node}
    uses: dict[str, int] = {}
    for node in graph.node:
        stem = node.name
        if stem in uses:
            while node.name in taken:
                uses[stem] += 1
                node.name = f"{stem}_{uses[stem]}"
            taken.add(node.name)
        else:
            uses[stem] = 1
