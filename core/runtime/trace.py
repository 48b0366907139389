"""What happened in a run: when each stage had which sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dnnp.core.runtime.moved import Moved
from dnnp.core.runtime.values import Values


@dataclass(frozen=True)
class Trace:
    """What happened: times in nanoseconds of `time.perf_counter_ns`."""

    start_ns: NDArray[np.int64]
    """i64[stages, samples], when a stage had all inputs of a sample."""
    end_ns: NDArray[np.int64]
    """i64[stages, samples], when it had computed it."""
    done_ns: NDArray[np.int64]
    """i64[samples], when the last output had arrived."""
    replicas: NDArray[np.int64]
    """i64[stages], of each stage."""
    outputs: dict[int, Values]
    """Outputs of the samples that were to be kept."""
    interrupted: bool
    """Not all samples went through; the arrays hold those that did."""
    waited_ns: NDArray[np.int64] | None = None
    """i64[stages, samples], how long the thread of a stage could have run since the last entry
    above 0, but its processor ran something else; with the last sample also how long the
    processor itself had to wait for its host. None: the system does not tell."""
    own_share: float = 0.0
    """Processor time of the thread that watches the others, over the time of the run."""
    first: int = 0
    """The sample that the first column is of; those before it went through, too."""

    arrived_ns: NDArray[np.int64] | None = None
    """i64[samples], when each sample arrived, and may have waited; None: as there was room."""
    moved: Moved | None = None
    """What the transfers of a schedule did; None: there were none."""

    @property
    def done(self) -> int:
        """Samples that went through."""
        return self.first + len(self.done_ns)

    def before(self, count: int) -> Trace:
        """The first `count` samples, as those of a run that was interrupted then."""
        kept = {s: values for s, values in self.outputs.items() if s < count}
        start, end, done = self.start_ns[:, :count], self.end_ns[:, :count], self.done_ns[:count]
        waited = None if self.waited_ns is None else self.waited_ns[:, :count]
        moved = None if self.moved is None else self.moved.before(count)
        return Trace(
            start, end, done, self.replicas, kept, True, waited, self.own_share, moved=moved
        )
