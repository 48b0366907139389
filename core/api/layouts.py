"""How the folder of an export is laid out, and what is in it besides models and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.caller import Caller
    from dnnp.formats.onnx_stages import StageModel
    from dnnp.formats.stage_folder import Extras, Unit

_LEFT_OUT = {
    "handed_through": "outputs that are inputs of the model",
    "unused": "inputs that no output depends on",
    "idle": "stages that no output depends on",
}
"""What Triton's ensembles cannot have -> what it is."""


@dataclass(frozen=True)
class Content:
    """What is exported."""

    manifest: dict[str, Any]
    stages: Sequence[StageModel]
    model: ModelProto
    """The whole model, which may be changed."""


def lay_out(
    to: str, content: Content, max_batch_size: int, caller: Caller
) -> tuple[list[Unit], Extras]:
    """Models and other files of an export; see `export` for what it raises."""
    from dnnp.formats.stage_folder import Extras, stage_units

    if to == "triton":
        return _triton(content.manifest, content.stages, max_batch_size, caller)
    if to == "ort-layers":
        return _ort_layers(content, caller)
    if to == "onnx-devices":
        return _onnx_devices(content, caller)
    return stage_units(content.stages), Extras()


def _ort_layers(content: Content, caller: Caller) -> tuple[list[Unit], Extras]:
    """The model with stages as layers, and how a session is made that heeds them."""
    import orjson

    from dnnp.formats.onnx_annotated import add_layers, layer_settings
    from dnnp.formats.stage_folder import Extras, whole_unit

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


def _onnx_devices(content: Content, caller: Caller) -> tuple[list[Unit], Extras]:
    """The model with stages as device configurations."""
    from dnnp.formats.onnx_annotated import add_device_configurations
    from dnnp.formats.stage_folder import Extras, whole_unit

    _note_replicas(content.manifest, caller)
    devices = [stage["devices"] for stage in content.manifest["stages"]]
    add_device_configurations(content.model, [stage.nodes for stage in content.stages], devices)
    return [whole_unit(content.model)], Extras("onnx-devices")


def _note_replicas(manifest: dict[str, Any], caller: Caller) -> None:
    """Say what one model for all stages cannot."""
    names = [str(s["id"]) for s in manifest["stages"] if s["replicas"] > 1]
    if names:
        caller.warn(f"that replicas take turns with samples is lost (stages {', '.join(names)})")


def _triton(
    manifest: dict[str, Any], stages: Sequence[StageModel], max_batch_size: int, caller: Caller
) -> tuple[list[Unit], Extras]:
    """A model repository."""
    from dnnp.formats.stage_folder import Extras, Unit
    from dnnp.formats.triton import repository

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
