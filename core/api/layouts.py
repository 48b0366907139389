"""How the folder of an export is laid out, and what is in it besides models and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx_stages import StageModel
    from dnnp.formats.stage_folder import Extras, Unit


def lay_out(
    to: str,
    manifest: dict[str, Any],
    stages: Sequence[StageModel],
    model: ModelProto,
) -> tuple[list[Unit], Extras]:
    """Models and other files of an export; see `export` for what it raises."""
    from dnnp.formats.stage_folder import Extras, stage_units

    return stage_units(stages), Extras()
