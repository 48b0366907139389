"""What the transfers of a schedule took, beside what was predicted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COPIED, EMULATED = "copied", "emulated"
"""How tensors moved: they were copied, or links were emulated."""


class Transfer(NamedTuple):
    """A transfer of a schedule."""

    step: int
    """What moves the tensors."""
    number: int
    """Position among the passes."""
    name: str
    time_s: float
    """By the schedule."""
    blocking: bool
    """It occupies devices, not links alone."""
    width: int
    """Units that it occupies at once."""
    units: frozenset[int]
    """Units that it occupies for any micro-batch."""


@dataclass(frozen=True)
class Moved:
    """What the transfers did: times in nanoseconds, as those of a trace."""

    transfers: tuple[Transfer, ...]
    start_ns: NDArray[np.int64]
    """i64[transfers, samples], when all units of a transfer were there, and the tensors."""
    end_ns: NDArray[np.int64]
    bytes: tuple[float, ...]
    """Of a sample, for each transfer."""
    emulated: bool

    def before(self, count: int) -> Moved:
        """What they did for the first `count` samples."""
        return replace(self, start_ns=self.start_ns[:, :count], end_ns=self.end_ns[:, :count])

    @property
    def occupied_ns(self) -> NDArray[np.int64]:
        """i64[transfers], time of all units that each occupied."""
        widths = np.array([t.width for t in self.transfers], dtype=np.int64)
        occupied: NDArray[np.int64] = widths * (self.end_ns - self.start_ns).sum(axis=1)
        return occupied

    @property
    def blocking_ns(self) -> int:
        """Time that devices were occupied."""
        blocking = [t.blocking for t in self.transfers]
        return int(self.occupied_ns[blocking].sum())


@dataclass(frozen=True)
class MovedFigures:
    """Figures of transfers."""

    transfers: tuple[Transfer, ...]
    measured_s: tuple[float, ...]
    """Median over samples."""
    bytes: tuple[float, ...]
    share: float
    """Of the time of the units that they run on, over the makespan."""
    emulated: bool

    def record(self, predicted: float) -> dict[str, Any]:
        """For the record of a run; `predicted`: the share by the schedule."""
        rows = zip(self.transfers, self.measured_s, self.bytes, strict=True)
        return {
            "how": EMULATED if self.emulated else COPIED,
            "share_predicted": predicted,
            "share_measured": self.share,
            "moves": [
                {
                    "pass": t.number,
                    "blocking": t.blocking,
                    "bytes": size,
                    "predicted_s": t.time_s,
                    "measured_s": measured,
                }
                for t, measured, size in rows
            ],
        }


def share_of(transfers: Sequence[Transfer], occupied: float, makespan: float) -> float:
    """Share of a makespan that the units that carry transfers are occupied by them."""
    units = frozenset[int]().union(*(t.units for t in transfers))
    whole = makespan * len(units)
    return min(occupied / whole, 1.0) if whole > 0 else 0.0


def figures_of(moved: Moved, makespan_ns: float) -> MovedFigures:
    """Figures of what transfers did; of at least one sample."""
    spent = np.median(moved.end_ns - moved.start_ns, axis=1) * 1e-9
    return MovedFigures(
        moved.transfers,
        tuple(float(x) for x in spent),
        moved.bytes,
        share_of(moved.transfers, float(moved.occupied_ns.sum()), makespan_ns),
        moved.emulated,
    )


def median_figures(rounds: Sequence[MovedFigures | None]) -> MovedFigures | None:
    """Medians over rounds of the same schedule; None: nothing moved."""
    real = [figures for figures in rounds if figures is not None]
    if not real:
        return None
    spent = np.median([figures.measured_s for figures in real], axis=0)
    return replace(
        real[0],
        measured_s=tuple(float(x) for x in spent),
        share=float(np.median([figures.share for figures in real])),
    )
