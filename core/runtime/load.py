"""What is sent through a pipeline, how, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dnnp.core.model.plan import Stage
from dnnp.core.runtime.file_runs import FileRun
from dnnp.core.runtime.inputs import Sample
from dnnp.core.runtime.scheduled import Program
from dnnp.core.runtime.sources import Arrivals, Kept, Repeated, Sink, Source
from dnnp.core.runtime.values import to_numpy


@dataclass(frozen=True)
class Load:
    """What is sent through, and how."""

    samples: Sequence[Sample]
    """Distinct inputs; of files the first one, for the warm-up."""
    count: int
    """Samples to measure; they take the inputs in turn."""
    warmup: int = 3
    """Samples before them, for each replica of a stage."""
    queue: int = 2
    """Samples that may wait between neighbouring stages."""
    window: int | None = None
    """Samples that may be on their way at once; None: as many as there is room for."""
    program: Program | None = None
    """What each device runs, sample by sample; its samples are the `count` to measure. The
    warm-up goes through before them, on its own. None: as the samples come."""
    settle: bool = False
    """Send other samples through before the warm-up, until the rate is steady; repeat what other
    processes disturb."""
    emulate: bool = False
    """Transfers of the program take as long as it says; else they copy."""
    least_s: float = 0.0
    """Measure more samples than `count` if they would be through in less time, seconds."""
    seconds: float | None = None
    """Measure what sets out in so much time, in place of `count`."""
    arrivals: Arrivals | None = None
    """When samples arrive; None: each is there when there is room for it."""
    files: FileRun | None = None
    """Files to send through once each, in place of `count` of `samples`."""

    @property
    def apart(self) -> bool:
        """Whether the warm-up goes through on its own, before what is measured."""
        return (self.program, self.seconds, self.arrivals, self.files) != (None,) * 4

    @property
    def expected(self) -> int:
        """Samples to measure, as far as that is known before; 0: it is not."""
        if self.files is not None:
            return self.files.expected
        return self.count if self.seconds is None else 0

    def source(self, count: int) -> Source:
        """What gives `count` samples, or those that are to be measured in place of them."""
        if self.files is not None:
            return self.files.source
        arrivals_ns = None if self.arrivals is None else self.arrivals.times_ns(count)
        many = None if self.seconds is not None else count
        return Repeated(self.samples, many, seconds=self.seconds, arrivals_ns=arrivals_ns)

    def sink(self, keep: Callable[[int], bool]) -> Sink:
        """What takes their outputs; in memory those that `keep` names."""
        return Kept(keep, to_numpy) if self.files is None else self.files.sink


def widest(stages: Sequence[Stage]) -> int:
    """Replicas of the stage that has most."""
    return max((stage.replicas for stage in stages), default=1)


@dataclass
class Watch:
    """How a run talks to whoever started it."""

    note: Callable[[str], None] = lambda message: None
    detail: Callable[[str], None] = lambda message: None
    interrupted: Callable[[], bool] = lambda: False
    progress: Callable[[int, int], None] = lambda done, total: None
    """Told how many samples are through, of how many; of 0: nobody knows."""
    checks: Callable[[str, float], None] = lambda doing, share: None
    """Told what is done after that, and which share of it is done."""
