"""Measurements of stages in runs, and the factors that are learned from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Setting(NamedTuple):
    """Device, provider and threads of a run; factors hold for the same setting only."""

    device: str
    """Device class."""
    costs: str
    """Source of the base costs: `analytic`, `measured`, ..."""
    provider: str
    threads: int
    """Of a stage."""
    optimization: str


class StageSeen(NamedTuple):
    """Measurements of one stage in a run."""

    operators: Mapping[str, float]
    """Operator type -> base costs of such operators, seconds."""
    nodes: int
    """Operators whose base cost is above 0."""
    transfer_s: float
    """Base costs of its transfers."""
    measured_s: float
    """Above 0."""
    taken: float = 0.0
    """Share of its time that other processes took."""


@dataclass(frozen=True)
class RunSeen:
    """Measurements of the stages of a model in one run."""

    model: str
    stages: tuple[StageSeen, ...]


@dataclass(frozen=True)
class Calibration:
    """By what base costs are multiplied, and what is added; see `core.extras.calibrate`."""

    common: float = 1.0
    """Of all operators."""
    families: Mapping[str, float] = field(default_factory=dict)
    """Of a family of operators; 1 where absent."""
    operators: Mapping[str, float] = field(default_factory=dict)
    """Of an operator type; 1 where absent."""
    transfer: float = 1.0
    """Of times of transfers."""
    launch_s: float = 0.0
    """Seconds that every operator takes on top; below 0: base costs count too much for it."""
    strength: float = 0.0
    """Of the regularisation that they were fitted with."""
    spread: float | None = None
    """Median relative error of loads of models that were left out; None: too few models."""


@dataclass(frozen=True)
class CalibrationFile:
    """Factors, and what they were learned from."""

    setting: Setting
    factors: Calibration
    runs: tuple[RunSeen, ...]
