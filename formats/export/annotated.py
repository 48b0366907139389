"""The whole model, with stages written on its nodes, for runtimes and for viewers.

As layers for ONNX Runtime (`layer_ann` in the metadata of nodes, which the session option
`session.layer_assignment_settings` matches), or as device configurations of ONNX (IR version 11),
for runtimes that assign nodes to devices; as metadata and prefixes of names for viewers.
Nodes outside every stage, which only make weights, stay as they are, and so do those inside the
bodies of `If`, `Loop` and `Scan`: they go where their node goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from dnnp.core.model.errors import UnavailableError
from dnnp.formats.export.manifest import Record
from dnnp.formats.export.triton import gpu_numbers, is_cpu
from dnnp.formats.onnx.scope import leave_only

LAYER = "layer_ann"
"""Key of the metadata of a node that ONNX Runtime looks at."""
VIEW = "dnnp."
"""Before the keys of what is shown of a node."""
OPTION = "session.layer_assignment_settings"
CONFIGURATION = "dnnp"
METADATA_IR, DEVICES_IR = 10, 11
"""IR versions from which nodes have metadata, and models have device configurations."""
_STORED_IR = 4
"""IR version from which initializers need not be inputs."""


def add_layers(model: onnx.ModelProto, stages: Sequence[Iterable[int]]) -> None:
    """Write the stage of each node into its metadata: `stage-0` and so on; changes the model.

    An existing annotation is replaced.
    """
    _raise_ir(model, METADATA_IR)
    for number, nodes in enumerate(stages):
        for v in nodes:
            _annotate(model.graph.node[v], {LAYER: f"stage-{number}"})


def layer_settings(manifest: Record) -> tuple[Record, list[int]]:
    """Settings of a session that heeds the layers, and the GPUs that it would need.

    A session of ONNX Runtime takes one GPU only: with several the rules name their numbers, and
    those of others than the session's do nothing.
    """
    devices = manifest["devices"]
    place: dict[int, int | None] = {}
    for stage in manifest["stages"]:
        cpu = is_cpu(stage["class"], devices)
        place[stage["id"]] = None if cpu else gpu_numbers(stage, devices)[0]
    gpus = sorted({gpu for gpu in place.values() if gpu is not None})
    layers: dict[str, list[str]] = {}
    for stage, gpu in place.items():
        name = "cpu" if gpu is None else "gpu" if len(gpus) == 1 else f"gpu:{gpu}"
        layers.setdefault(name, []).append(f"=stage-{stage}")
    rules = "; ".join(f"{name}({', '.join(names)})" for name, names in layers.items())
    providers = ["CUDAExecutionProvider"] if gpus else []
    settings = {"options": {OPTION: rules}, "providers": [*providers, "CPUExecutionProvider"]}
    return settings, gpus


def add_device_configurations(
    model: onnx.ModelProto, stages: Sequence[Iterable[int]], devices: Sequence[Sequence[str]]
) -> None:
    """Declare the devices, and write stage and device of each node; changes the model.

    Every output of a node is placed on the device of its stage, without being sharded. Replicas of
    a stage are a group of devices, each of which has all of the tensors of its samples.

    Raises `UnavailableError` if the installed onnx knows no device configurations.

    Parameters
    ----------
    stages
        Nodes of each stage.
    devices
        Names of the devices of each stage.
    """
    if "configuration" not in onnx.ModelProto.DESCRIPTOR.fields_by_name:
        raise UnavailableError(
            f"device configurations need onnx 1.18 or newer, this is {onnx.__version__}"
        )
    _raise_ir(model, DEVICES_IR)
    names = list(dict.fromkeys(name for row in devices for name in row))
    leave_only(model.configuration, lambda entry: entry.name != CONFIGURATION)
    model.configuration.add(name=CONFIGURATION, num_devices=len(names), device=names)
    position = {name: i for i, name in enumerate(names)}
    for number, (nodes, row) in enumerate(zip(stages, devices, strict=True)):
        for v in nodes:
            _place(model.graph.node[v], number, [position[name] for name in row])


def add_view(model: onnx.ModelProto, about: Mapping[int, Mapping[str, str]]) -> None:
    """Write what is known of nodes where viewers such as Netron show it; changes the model.

    Into the metadata of each node, with `dnnp.` before the keys; the stage also before its name.

    `about`: position of a node -> key -> value.
    """
    _raise_ir(model, METADATA_IR)
    for v, values in about.items():
        node = model.graph.node[v]
        _annotate(node, {f"{VIEW}{key}": value for key, value in values.items()})
        if "stage" in values:
            node.name = f"stage-{values['stage']}/{node.name or f'{node.op_type}_{v}'}"


def _annotate(node: onnx.NodeProto, values: Mapping[str, str]) -> None:
    """Set entries in the metadata of a node."""
    leave_only(node.metadata_props, lambda entry: entry.key not in values)
    for key, value in values.items():
        node.metadata_props.add(key=key, value=value)


def _place(node: onnx.NodeProto, stage: int, devices: Sequence[int]) -> None:
    """Write stage and devices of a node."""
    leave_only(node.device_configurations, lambda c: c.configuration_id != CONFIGURATION)
    mine = node.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=stage)
    for name in filter(None, node.output):
        spec = mine.sharding_spec.add(tensor_name=name)
        if len(devices) == 1:
            spec.device.append(devices[0])
        else:
            spec.device.append(-1)  # denotes a group: numbers from 0 on are devices
            spec.index_to_device_group_map.add(key=-1, value=devices)


def _raise_ir(model: onnx.ModelProto, version: int) -> None:
    """Give a model at least an IR version; what is stored stays constant."""
    if model.ir_version < _STORED_IR:
        stored = {tensor.name for tensor in model.graph.initializer}
        leave_only(model.graph.input, lambda value: value.name not in stored)
    model.ir_version = max(model.ir_version, version)
