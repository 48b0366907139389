"""Calibrations: what `dnnp-run --calibrate` writes and `dnnp-profile --from-run` reads.

A file is one JSON object: where its factors hold, the factors, and the runs that they were learned
from, so that those of several files can be learned from again, together. dnnp-graph(5) describes
its fields.
"""

from __future__ import annotations

import json

from dnnp.core.model.calibration import Calibration, CalibrationFile, RunSeen, Setting, StageSeen
from dnnp.formats.inputs.checked_json import Fields, headed

FORMAT = "dnnp-calibration"
VERSION = 1

_SETTING = ("class", *Setting._fields[1:])
_FACTORS = ("common", "families", "operators", "transfer", "launch_s")
_STAGE = ("measured_s", "taken", "nodes", "transfer_s", "operators")

LEAST, MOST = 1e-6, 1e6
"""Range of a factor."""
LONGEST_S = 1.0
"""Of a launch, either way."""


def calibration_bytes(file: CalibrationFile) -> bytes:
    """The contents of a file."""
    f = file.factors
    record = {
        "format": FORMAT,
        "version": VERSION,
        **dict(zip(_SETTING, file.setting, strict=True)),
        "factors": {name: getattr(f, name) for name in _FACTORS},
        "strength": f.strength,
        **({} if f.spread is None else {"spread": f.spread}),
        "runs": [
            {"model": run.model, "stages": [{n: getattr(s, n) for n in _STAGE} for s in run.stages]}
            for run in file.runs
        ],
    }
    return (json.dumps(record, indent=1) + "\n").encode()


def parse_calibration(data: bytes, name: str) -> CalibrationFile:
    """Check the contents of a file.

    Raises
    ------
    FormatError
        It is no calibration; the message names the field.
    """
    fields = headed(data, name, "calibration", format=FORMAT, version=VERSION)
    fields.only("format", "version", *_SETTING, "factors", "strength", "spread", "runs")
    setting = Setting(
        fields.text("class"), fields.text("costs"), fields.text("provider"),
        fields.count("threads"), fields.text("optimization"),
    )  # fmt: skip
    factors = _factors(fields.fields("factors"), fields)
    return CalibrationFile(setting, factors, tuple(_run(run) for run in fields.objects("runs")))


def _factors(fields: Fields, whole: Fields) -> Calibration:
    fields.only(*_FACTORS)
    return Calibration(
        _factor(fields, "common"),
        _table(fields, "families"),
        _table(fields, "operators"),
        _factor(fields, "transfer"),
        float(fields.number("launch_s", least=-LONGEST_S, most=LONGEST_S)),
        whole.number("strength"),
        whole.number("spread") if "spread" in whole else None,
    )


def _table(fields: Fields, name: str) -> dict[str, float]:
    own = fields.fields(name)
    return {key: _factor(own, key) for key in own.names()}


def _factor(fields: Fields, name: str) -> float:
    return float(fields.number(name, least=LEAST, most=MOST))


def _run(fields: Fields) -> RunSeen:
    fields.only("model", "stages")
    return RunSeen(fields.text("model"), tuple(_stage(s) for s in fields.objects("stages")))


def _stage(fields: Fields) -> StageSeen:
    fields.only(*_STAGE)
    parts = fields.fields("operators")
    operators = {key: float(parts.number(key)) for key in parts.names()}
    if not fields.number("measured_s"):
        raise fields.fault("measured_s", "0 is not above 0")
    return StageSeen(
        operators,
        fields.count("nodes"),
        float(fields.number("transfer_s")),
        float(fields.number("measured_s")),
        float(fields.number("taken", 0.0)),
    )
