"""Files of factors, for the fuzzer."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from dnnp.core.extras.calibrate import calibrate
from dnnp.formats.inputs.calibration import calibration_bytes, parse_calibration

CALIBRATION = {
    "format": "dnnp-calibration", "version": 1, "class": "acc", "costs": "measured",
    "provider": "cpu", "threads": 1, "optimization": "all", "strength": 10.0, "spread": 0.03,
    "factors": {"common": 1.1, "families": {"matrix": 0.9}, "operators": {"a": 2}, "transfer": 0.5,
                "launch_s": -1e-6},
    "runs": [
        {"model": "m", "stages": [
            {"measured_s": 2.0, "taken": 0.01, "nodes": 3, "transfer_s": 0.1,
             "operators": {"a": 1, "b": 1.5}},
            {"measured_s": 1.5, "nodes": 1, "transfer_s": 0, "operators": {"b": 1.25}}]},
    ],
}  # fmt: skip


def seeds() -> list[bytes]:
    return [json.dumps(CALIBRATION).encode()]


def read(data: bytes, _: Path) -> None:
    """A file of factors; what it says must be learned from without a fault."""
    found = parse_calibration(data, "fuzzed")
    if any(run.stages and any(s.operators for s in run.stages) for run in found.runs):
        with suppress(ValueError):
            calibrate(found.runs)
    parse_calibration(calibration_bytes(found), "again")
