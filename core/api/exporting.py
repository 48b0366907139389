"""Write a plan for others: stage models as ONNX, or the split in another tool's format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from dnnp.callbacks import Callbacks, open_source
from dnnp.core.model.errors import FormatError, UsageError, VerificationError
from dnnp.core.model.text import counted, did_you_mean, shown_bytes
from dnnp.options.run import ExportOptions
from dnnp.options.table import FOLDERS, TORCH, shown_as

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.model.graph import Graph as NodeGraph
    from dnnp.core.model.plan import Plan
    from dnnp.formats.export.stage_folder import Extras, Unit, Weights
    from dnnp.formats.onnx.stages import StageModel
    from dnnp.formats.stream import Stream
    from dnnp.graph import Graph

P = ParamSpec("P")


def _export(graph: Graph, path: str | os.PathLike[str], options: ExportOptions) -> None:
    """Write the plan of a graph for others.

    Parameters
    ----------
    path
        Folder of the stages, empty or from an earlier export; or the file to write.

    Raises
    ------
    UsageError
        There is no plan, or one that cannot be exported so.
    FormatError
        The graph is malformed, or the model is not the one that was imported.
    InputFileError
        A file cannot be read or written.
    """
    from dnnp.formats.files import whole_file

    stream, name = graph.stream(), os.fspath(path)
    if options.to in FOLDERS:
        export_folder(stream, name, options)
        return
    data = file_bytes(stream, options)
    with whole_file(name) as file:
        file.write(data)


def _public(
    kind: Callable[P, ExportOptions],
) -> Callable[Concatenate[Graph, str | os.PathLike[str], P], None]:
    def call(graph: Graph, path: str | os.PathLike[str], *args: P.args, **kwargs: P.kwargs) -> None:
        options = kind(*args, **kwargs)
        options.check()
        _export(graph, path, options)

    return shown_as(call, _export, kind)


export = _public(ExportOptions)


def file_bytes(stream: Stream, options: ExportOptions) -> bytes:
    """The split or the schedule of a stream as one file; raises what `export` does."""
    if options.to == "torch-plan":
        from dnnp.formats.export.pytorch import torch_plan

        _planned(stream)
        return torch_plan(stream.get("plan")[0], stream.get("stage"), stream.get("node"))
    if options.to == "torch":
        return _torch_file(stream, options)
    if options.to == "subgraph":
        return _subgraph(stream, options)
    if options.to in TORCH:
        return _torch_csv(stream, options.caller, transfers=options.to == "torch-comms-csv")
    from dnnp.formats.workloads.msr import write_split
    from dnnp.workload import refuse_shards

    plan = _planned(stream)[1]
    refuse_shards(stream, plan, "which the format of the 2020 paper cannot say")
    return write_split(plan)


def _subgraph(stream: Stream, options: ExportOptions) -> bytes:
    """A part of the model with its weights; its outputs are compared with the whole model's."""
    from dnnp.core.runtime.model.inputs import random_inputs
    from dnnp.core.runtime.model.providers import SessionConfig
    from dnnp.core.runtime.model.session import self_contained, to_numpy
    from dnnp.core.runtime.pipeline.prepare import Pipeline
    from dnnp.core.runtime.report.verify import compare_values, exposed, tolerance_for
    from dnnp.formats.graph import graph_of
    from dnnp.formats.onnx.fixed_inputs import part_model
    from dnnp.formats.onnx.scope import reads
    from dnnp.formats.onnx.value_types import find_types, known_shapes, types_of
    from dnnp.placing import Names

    model, path, _ = open_source(options.caller, stream, options.model)
    nodes, sample = model.graph.node, random_inputs(model, 0, shapes=known_shapes(stream))
    known = [*sample, *(name for node in nodes for name in node.output if name)]
    for name in (*options.from_, *options.upto):
        if name not in known:
            raise UsageError(f"the model has no tensor '{name}'{did_you_mean(name, known)}")
    find = Names(stream, graph_of(stream)).find
    chosen = {v for name in options.part for v in find(name, "--part")} or {*range(len(nodes))}
    outside = [reads(node) for v, node in enumerate(nodes) if v not in chosen]
    read = {value.name for value in model.graph.output}.union(*outside)
    ends = [*options.upto] or [n for v in sorted(chosen) for n in nodes[v].output if n in read]
    chosen = {v for v in chosen if {*nodes[v].output}.isdisjoint(options.from_)}
    part = part_model(model, chosen, ends, find_types(model, known, types_of(stream)))
    inputs = [value.name for value in part.graph.input]
    if wrong := {*options.from_}.difference(inputs) | {*ends}.intersection(inputs):
        raise UsageError(f"no operator of the part is on a way from or to '{min(wrong)}'")
    opened = Pipeline(model, path.parent, SessionConfig(), {}, [], [], [], ()).reference
    values = {**sample, **opened(exposed(model, [*inputs, *ends]))(dict(sample))}
    got = opened(part)({name: values[name] for name in inputs if name in values})
    for name in ends:
        found = compare_values(to_numpy(values[name]), to_numpy(got[name]), tolerance_for(model))
        if found.mismatch:
            raise VerificationError(f"output '{name}' of the part: {found.mismatch}")
    options.caller.note(f"{len(part.graph.node)} operators from {', '.join(inputs)}: verified")
    return self_contained(part, path.parent, {})


def _torch_csv(stream: Stream, caller: Callbacks, *, transfers: bool) -> bytes:
    """The schedule of a stream as CSV."""
    from dnnp.formats.export.pytorch import torch_cells, with_transfers

    if not stream.get("schedule"):
        raise UsageError(f"{stream.name}: no schedule to export; run dnnp-schedule first")
    cells = torch_cells(stream.get("schedule")[0], stream.get("block"))
    if cells.skips:
        pairs = ", ".join(f"{head} from {tail}" for tail, head in cells.skips)
        caller.warn(
            f"stages read from others than the one before them ({pairs}); torch passes tensors to "
            "the next stage alone: those between must hand them on"
        )
    return (with_transfers(cells) if transfers else cells).encoded()


def _torch_file(stream: Stream, options: ExportOptions) -> bytes:
    """The plan for training and its schedule as one file of PyTorch."""
    from dnnp.core.training import gradients_of, is_trainable
    from dnnp.deployment.torch_file import Trained, entries, torch_file
    from dnnp.formats.onnx.stages import split_model
    from dnnp.formats.onnx.value_types import types_of
    from dnnp.formats.plan import plan_digest
    from dnnp.formats.stream import read_bytes

    (graph, plan), other = _planned(stream), stream
    if options.schedule is not None:
        other = read_bytes(options.caller.read_input(options.schedule), options.schedule)
    if not other.get("schedule"):
        raise UsageError(f"{other.name}: no schedule to export; run dnnp-schedule first")
    if not graph.backward.any():
        raise UsageError(f"{stream.name}: no graph of training (dnnp-import --training)")
    schedule = other.get("schedule")[0]
    own = plan_digest(stream.get("plan")[0], stream.get("stage"))
    if schedule.get("digest", own) != own:
        raise other.fault_at("schedule", 0, "digest", "the schedule was made for another plan")
    ahead = [record for record in stream.get("node") if not record.get("backward")]
    ids, tensors = {record["id"] for record in ahead}, stream.get("tensor")
    model, source, digest = open_source(options.caller, stream, options.model)
    rows = [tuple(node for node in stage.nodes if node in ids) for stage in plan.stages]
    if not all(rows):
        raise UsageError(f"{stream.name}: stage {rows.index(())} has no forward pass")
    stages = split_model(model, rows, types_of(stream))
    reached = {t for row in gradients_of(tensors, ahead).values() for t in row}
    trained = {r["name"] for r in tensors if r["id"] in reached and is_trainable(r)}
    again = tuple(s for s, stage in enumerate(plan.stages) if len(stage.recomputed))
    found = entries(schedule, other.get("block"), stages)
    made = Trained(stages, again, frozenset(trained), found)
    return torch_file(model, (str(source), digest), made, types_of(stream))


def export_folder(stream: Stream, folder: str, options: ExportOptions) -> None:
    """Write the models of a stream to a folder; raises what `export` does."""
    import numpy as np

    from dnnp.core.cost.execution_order import FileOrder, file_order
    from dnnp.deployment.parts import export_order, exported_order, runnable_of
    from dnnp.formats.export.manifest import Role, about, manifest_of, planned_sizes
    from dnnp.formats.export.stage_folder import write_export
    from dnnp.formats.onnx.stages import split_model
    from dnnp.formats.onnx.value_types import types_of
    from dnnp.formats.plan import refuse_training
    from dnnp.workload import has_shards

    caller = options.caller
    graph, plan = _planned(stream)
    refuse_training(graph)
    model, source, digest = open_source(caller, stream, options.model)
    types, exchanges = types_of(stream), list[dict[str, Any]]()
    if has_shards(plan):
        from dnnp.deployment.shards import runnable_shards

        found = runnable_shards(caller, stream, graph, plan, model)
        order = list(range(len(found.parts)))
    else:
        found = runnable_of(caller, stream, graph, plan, split=True)
        order = export_order(graph, found)
    if found.made is not None:
        model = found.made.model
        types |= found.made.types
        exchanges = [{**e._asdict(), "parts": list(e.parts)} for e in found.made.exchanges]
    homes = [(found.owners[i], found.shards[i] if found.shards else -1) for i in order]
    roles = [
        Role(found.parts[i], owner, homes.count((owner, shard)) == 1, max(shard, 0))
        for i, (owner, shard) in zip(order, homes, strict=True)
    ]
    known = about(stream, plan, str(source), digest)
    if stream.get("state") and found.made is None:
        known |= _decoder(stream, model)
    if exchanges:
        known["collectives"] = exchanges
    if found.program is not None:
        known["schedule"] = exported_order(found.program, order)
    try:
        with caller.progress("writing the stages") as bar:
            nodes = [role.stage.nodes for role in roles]
            peaks: list[FileOrder] = []
            if plan.options.memory_model == "peak" and not exchanges:
                place = {number: v for v, number in enumerate(graph.node_ids.tolist())}
                rows = [np.array([place[v] for v in row], dtype=np.int64) for row in nodes]
                peaks = [file_order(graph, row, plan.options) for row in rows]
                nodes = [tuple(graph.node_ids[order.nodes].tolist()) for order in peaks]
            stages = split_model(model, nodes, types)
            manifest = manifest_of(stages, model, roles, known, planned_sizes(stream))
            for entry, peak in zip(manifest["stages"], peaks, strict=False):
                entry |= {"peak_bytes": peak.listed, "default_peak_bytes": peak.default}
            content = Content(manifest, stages, model)
            units, extras = lay_out(stream, content, source, options)
            weights = write_export(
                units,
                manifest,
                source,
                Path(folder),
                extras=extras,
                watch=bar.update,
            )
    except FormatError as error:
        raise FormatError(error.reason, error.file or str(source)) from None
    _report(caller, weights, folder)
    caller.note(f"wrote {counted(len(stages), 'stage')} to {folder}")


def _decoder(stream: Stream, model: ModelProto) -> dict[str, Any]:
    """The part of a manifest on generating with the stages; empty: not known."""
    from dnnp.core.runtime.generate.decoder import decoder_of, described, named_states

    try:
        return {"decoder": described(decoder_of(model, named_states(stream.records)))}
    except FormatError:
        return {}


def _planned(stream: Stream) -> tuple[NodeGraph, Plan]:
    """Graph and plan of a stream."""
    from dnnp.workload import Workload

    work = Workload(stream)
    if work.plan is None:
        raise UsageError(f"{stream.name}: no plan to export; run dnnp-partition first")
    return work.graph, work.plan


def _report(caller: Callbacks, weights: Weights, folder: str) -> None:
    """Say what became of the weight files."""
    for source, files in _by_source(weights, "missing").items():
        others = len(files) - 1
        likewise = f", and likewise in the {counted(others, 'other folder')}" if others else ""
        caller.warn(
            f"{source}: no such file; the stages expect it at {folder}/{files[0]}{likewise}"
        )
    if _by_source(weights, "copy"):
        shared = weights.repeated_bytes
        again = (
            f", {shown_bytes(shared)} of them again, as stages share parameters" if shared else ""
        )
        caller.note(f"copied {shown_bytes(weights.copied_bytes)} of weights{again}")


def _by_source(weights: Weights, how: str) -> dict[str, list[str]]:
    """Files of one kind in the export, by the source file of their bytes."""
    found: dict[str, list[str]] = {}
    for file in weights.files:
        for source in file.sources if file.how == how else ():
            found.setdefault(str(source), []).append(file.file)
    return found


_LEFT_OUT = {
    "handed_through": "outputs that are inputs of the model",
    "unused": "inputs that no output depends on",
    "idle": "stages that no output depends on",
}
"""Things that Triton's ensembles cannot have -> their description."""


@dataclass(frozen=True)
class Content:
    """Contents of an export."""

    manifest: dict[str, Any]
    stages: Sequence[StageModel]
    model: ModelProto
    """The whole model, which may be changed."""


def lay_out(
    stream: Stream, content: Content, source: Path, options: ExportOptions
) -> tuple[list[Unit], Extras]:
    """Models and other files of an export; see `export` for what it raises."""
    from dnnp.formats.export.stage_folder import Extras, stage_units

    to, max_batch_size, caller = options.to, options.max_batch_size, options.caller
    if to == "genai":
        return _genai(stream, content, source.parent, options)
    if to == "triton":
        return _triton(content.manifest, content.stages, max_batch_size, caller)
    if to == "ort-layers":
        return _ort_layers(content, caller)
    if to == "onnx-devices":
        return _onnx_devices(content, caller)
    return stage_units(content.stages), Extras()


def _genai(
    stream: Stream, content: Content, folder: Path, options: ExportOptions
) -> tuple[list[Unit], Extras]:
    """Stages, the configuration of a decoder pipeline, and the files of a tokenizer."""
    from dnnp.formats.export.genai import CONFIG, genai_config, tokenizer_files
    from dnnp.formats.export.stage_folder import Extras, stage_units

    names = {tensor["id"]: tensor["name"] for tensor in stream.get("tensor")}
    states = [(names[s["input"]], names[s["output"]]) for s in stream.get("state")]
    if not states:
        raise UsageError("--to genai: the model carries no state from pass to pass")
    shared = all(s.get("shared") for s in stream.get("state"))
    _note_replicas(content.manifest, options.caller)
    config = genai_config(content.manifest, states, folder, options.config, shared=shared)
    files = {CONFIG: config, **tokenizer_files(folder)}
    return stage_units(content.stages), Extras("genai", files)


def _ort_layers(content: Content, caller: Callbacks) -> tuple[list[Unit], Extras]:
    """The model with stages as layers, and how a session is made that heeds them."""
    import orjson

    from dnnp.formats.export.annotated import add_layers, layer_settings
    from dnnp.formats.export.stage_folder import Extras, whole_unit

    settings, gpus = layer_settings(content.manifest)
    if len(gpus) > 1:
        caller.warn(
            f"the plan uses {len(gpus)} GPUs, a session of ONNX Runtime one: stages on others than "
            "that of the session go where ONNX Runtime puts them"
        )
    _note_replicas(content.manifest, caller)
    add_layers(content.model, [stage.nodes for stage in content.stages])
    text = orjson.dumps(settings, option=orjson.OPT_INDENT_2) + b"\n"
    files = {"session.json": text}
    return [whole_unit(content.model)], Extras("ort-layers", files, {"settings": settings})


def _onnx_devices(content: Content, caller: Callbacks) -> tuple[list[Unit], Extras]:
    """The model with stages as device configurations."""
    from dnnp.formats.export.annotated import add_device_configurations
    from dnnp.formats.export.stage_folder import Extras, whole_unit

    _note_replicas(content.manifest, caller)
    devices = [stage["devices"] for stage in content.manifest["stages"]]
    add_device_configurations(content.model, [stage.nodes for stage in content.stages], devices)
    return [whole_unit(content.model)], Extras("onnx-devices")


def _note_replicas(manifest: dict[str, Any], caller: Callbacks) -> None:
    """Say what one model for all stages cannot."""
    names = [str(s["id"]) for s in manifest["stages"] if s["replicas"] > 1]
    if names:
        caller.warn(f"that replicas take turns with samples is lost (stages {', '.join(names)})")


def _triton(
    manifest: dict[str, Any], stages: Sequence[StageModel], max_batch_size: int, caller: Callbacks
) -> tuple[list[Unit], Extras]:
    """A model repository."""
    from dnnp.formats.export.stage_folder import Extras, Unit
    from dnnp.formats.export.triton import repository

    found = repository(manifest, max_batch_size)
    units = [
        Unit(i, stage.model, folder)
        for i, (stage, folder) in enumerate(zip(stages, found.folders, strict=True))
    ]
    for kind, what in _LEFT_OUT.items():
        if found.fields[kind]:
            caller.warn(
                f"the ensemble is without {what}: {', '.join(map(str, found.fields[kind]))}"
            )
    return units, Extras("triton", found.files, {"triton": found.fields})
