"""Choice of the fastest way to run a model: pipeline, whole model or replicas of it.

What was measured decides, among the ways that fit the memory of the devices; what was predicted
stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dnnp.core.runtime.model.session import SessionConfig
from dnnp.core.runtime.report.statistics import Timing, tells_nothing

MOST_ROUNDS = 9
"""Each way runs this often at most, in turn, where their order is not clear."""
CLOSE = 0.05
"""Share of a rate up to which two ways count as equally fast."""

PIPELINE, WHOLE, REPLICAS = "pipeline", "whole", "replicas"


class Compared(NamedTuple):
    """A way to run a model, and how it went."""

    mode: str
    config: SessionConfig
    sessions: int
    timing: Timing


@dataclass(frozen=True)
class Offer:
    """Predictions for the ways before they run."""

    copies: int | None = None
    """Devices of the plan that can hold the whole model: as many replicas there may be; None: all
    of them."""
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    """Mode that is not to be chosen -> why: no device can hold the model."""
    rates_per_s: Sequence[float] = ()
    """Predicted rate of the whole model on each of these devices."""
    value_s: float = 0.0
    """Predicted time of a sample in the pipeline."""

    def predicted(self, mode: str, sessions: int, *, as_planned: bool) -> float | None:
        """The predicted rate of a mode over that of the pipeline; None: none is predicted.

        `sessions`: replicas that ran; `as_planned`: they had a device of the plan each.
        """
        if mode == PIPELINE:
            return 1.0
        if not as_planned or len(self.rates_per_s) < sessions or not self.value_s:
            return None
        return sum(self.rates_per_s[:sessions]) * self.value_s


@dataclass(frozen=True)
class Choice:
    """The fastest way of those that were measured."""

    mode: str
    ratio: float
    """Its rate over that of the pipeline."""
    predicted: float | None
    """What was predicted of that; None: nothing."""
    clear: bool
    """Whether the next best is slower by more than rounds differ, and nobody disturbed that."""
    second: str = ""
    """The next best; empty: there is none."""
    lead: float = 1.0
    """The rate over that of the next best."""
    second_predicted: float | None = None
    """The predicted rate of the next best over that of the pipeline."""
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    taken: float = 0.0
    """Largest share of its time that others took from what was compared."""

    @property
    def disturbed(self) -> str:
        """Reason why the comparison tells nothing; empty: it does, or there is none."""
        return tells_nothing(self.taken) if self.second else ""

    def record(self) -> dict[str, Any]:
        """Fields of the run record."""
        fields: dict[str, Any] = {"mode": self.mode, "ratio": self.ratio, "clear": self.clear}
        if self.predicted is not None:
            fields["predicted_ratio"] = self.predicted
        if self.second:
            fields |= {"second": self.second, "lead": self.lead, "taken": self.taken}
        fields["reason"] = self.reason()
        if self.ruled_out:
            fields["ruled_out"] = [
                {"mode": mode, "reason": reason} for mode, reason in self.ruled_out.items()
            ]
        return fields

    def reason(self) -> str:
        """Reason for the choice."""
        if not self.second:
            return "no other way fits the memory of the devices"
        said = f"{_times(self.lead)} the rate of the {SPOKEN[self.second]}, measured"
        if self.disturbed:
            return f"{said}, but {self.disturbed}"
        return said + ("" if self.clear else ", which is too close to call")

    def line(self) -> str:
        """One sentence for people: what to deploy, and why."""
        said = f"deploy      the {SPOKEN[self.mode]}: "
        if not self.second:
            said += self.reason()
        else:
            said += f"{_times(self.lead)} the rate of the {SPOKEN[self.second]}"
            before = self.second_predicted
            if self.predicted is not None and before:
                said += f" ({_times(self.predicted / before)} predicted)"
            if not self.clear:
                said += f", but {self.disturbed}" if self.disturbed else ", too close to call"
        missing: dict[str, list[str]] = {}
        for mode, reason in self.ruled_out.items():
            missing.setdefault(reason, []).append(f"the {SPOKEN[mode]}")
        for reason, modes in missing.items():
            said += f"; not {' or '.join(modes)}: {reason}"
        return said


SPOKEN = {PIPELINE: "pipeline", WHOLE: "whole model", REPLICAS: "replicas"}
"""What people call the modes."""


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times"


def is_clear(timings: Mapping[str, Timing]) -> bool:
    """True if the order of the first two is clear enough to stop.

    They differ by more than their rounds do, or are so close that it does not matter.
    """
    best = ordered(timings)
    if len(best) < 2:
        return True
    first, second = timings[best[0]], timings[best[1]]
    apart, noise = _apart(first, second)
    return apart > noise or apart + noise <= CLOSE * first.throughput_per_s


def _apart(first: Timing, second: Timing) -> tuple[float, float]:
    """Difference of two rates, and the noise of both."""
    noise = (first.spread_per_s + second.spread_per_s) / 2
    return first.throughput_per_s - second.throughput_per_s, noise


def ordered(timings: Mapping[str, Timing]) -> list[str]:
    """The modes that ran, fastest first; at ties the first one that stands there."""
    ran = [mode for mode, timing in timings.items() if timing.throughput_per_s > 0]
    return sorted(ran, key=lambda mode: -timings[mode].throughput_per_s)


def choose(
    timings: Mapping[str, Timing], offer: Offer, predicted: Mapping[str, float | None]
) -> Choice | None:
    """The fastest way; None if nothing was measured.

    Parameters
    ----------
    timings
        Figures of each mode over all rounds; modes that are ruled out did not run.
    offer
        What was known before.
    predicted
        Predicted rate of each mode over that of the pipeline.
    """
    best = ordered(timings)
    base = timings[PIPELINE].throughput_per_s if PIPELINE in timings else 0.0
    if not best or base <= 0:
        return None
    first = timings[best[0]]
    ratio, mine = first.throughput_per_s / base, predicted.get(best[0])
    if len(best) < 2:
        return Choice(best[0], ratio, mine, clear=True, ruled_out=offer.ruled_out)
    second = timings[best[1]]
    apart, noise = _apart(first, second)
    taken = max((share for timing in timings.values() for share in timing.taken), default=0.0)
    return Choice(
        best[0],
        ratio,
        mine,
        clear=apart > noise and not tells_nothing(taken),
        second=best[1],
        lead=first.throughput_per_s / second.throughput_per_s,
        second_predicted=predicted.get(best[1]),
        ruled_out=offer.ruled_out,
        taken=taken,
    )
