"""Where the outputs of a pipeline go: nowhere, or to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.values import Values


class Sink:
    """Takes the outputs of samples, from any thread and in any order; this one wants none."""

    def wants(self, sample: int) -> bool:
        """Whether the outputs of a sample are of use."""
        return False

    def put(self, sample: int, values: Values) -> None:
        """Take all outputs of a sample, waiting for room."""

    def failed(self, sample: int, error: DnnpError) -> bool:
        """Told that a stage fails on a sample; whether the others shall go on without it."""
        return False

    def outputs(self, done: int) -> dict[int, Values]:
        """What is in memory of the first `done` samples, by sample."""
        return {}

    def close(self) -> None:
        """Finish what was taken; the run is over."""


class Kept(Sink):
    """Keeps outputs in memory."""

    def __init__(
        self, keep: Callable[[int], bool], convert: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """Keep outputs of the samples that `keep` names; each value is converted in the end."""
        self._keep, self._convert = keep, convert
        self._values: dict[int, Values] = {}

    def wants(self, sample: int) -> bool:
        """Whether it is kept."""
        return self._keep(sample)

    def put(self, sample: int, values: Values) -> None:
        """Keep them."""
        self._values[sample] = values

    def outputs(self, done: int) -> dict[int, Values]:
        """Those of the first `done` samples, each value converted."""
        return {
            sample: {name: self._convert(value) for name, value in values.items()}
            for sample, values in sorted(self._values.items())
            if sample < done
        }
