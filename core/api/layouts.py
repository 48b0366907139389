"""How the folder of an export is laid out, and what is in it besides models and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.formats.onnx_stages import StageModel
    from dnnp.formats.stage_folder import Extras, Unit

_LEFT_OUT = {
    "handed_through": "outputs that are inputs of the model",
    "unused": "inputs that no output depends on",
    "idle": "stages that no output depends on",
}
"""What Triton's ensembles cannot have -> what it is."""


def lay_out(
    to: str,
    manifest: dict[str, Any],
    stages: Sequence[StageModel],
    max_batch_size: int,
    caller: Caller,
) -> tuple[list[Unit], Extras]:
    """Models and other files of an export; see `export` for what it raises."""
    from dnnp.formats.stage_folder import Extras, stage_units

    if to == "triton":
        return _triton(manifest, stages, max_batch_size, caller)
    return stage_units(stages), Extras()


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
