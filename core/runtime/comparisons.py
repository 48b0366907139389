"""After the measurement: rates of a sweep, other ways to run the model, and the choice of one."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import DnnpError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import shown_seconds, table
from dnnp.core.runtime.model.providers import SessionConfig, main_config, places
from dnnp.core.runtime.pipeline.prepare import Pipeline
from dnnp.core.runtime.pipeline.sources import POISSON, Arrivals, Traffic
from dnnp.core.runtime.pipeline.steps import Worker
from dnnp.core.runtime.pipeline.threads import stop_workers
from dnnp.core.runtime.report.statistics import (
    Timing,
    Trace,
    median_timing,
    tells_nothing,
    timing_of,
)
from dnnp.core.runtime.usage import StealClock, WaitClock, waits_are_known

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
class WayPredictions:
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
    """Predicted ratio; None: unknown."""
    clear: bool
    """True if its lead exceeds the noise of rounds, undisturbed."""
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
        """Reason why the comparison is inconclusive; empty: it is not, or there is none."""
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
        text = f"{_times(self.lead)} the rate of the {MODE_WORDS[self.second]}, measured"
        if self.disturbed:
            return f"{text}, but {self.disturbed}"
        return text + ("" if self.clear else ", which is too close to call")

    def line(self) -> str:
        """One sentence for people: what to deploy, and why."""
        text = f"deploy      the {MODE_WORDS[self.mode]}: "
        if not self.second:
            text += self.reason()
        else:
            text += f"{_times(self.lead)} the rate of the {MODE_WORDS[self.second]}"
            before = self.second_predicted
            if self.predicted is not None and before:
                text += f" ({_times(self.predicted / before)} predicted)"
            if not self.clear:
                text += f", but {self.disturbed}" if self.disturbed else ", too close to call"
        missing: dict[str, list[str]] = {}
        for mode, reason in self.ruled_out.items():
            missing.setdefault(reason, []).append(f"the {MODE_WORDS[mode]}")
        for reason, modes in missing.items():
            text += f"; not {' or '.join(modes)}: {reason}"
        return text


MODE_WORDS = {PIPELINE: "pipeline", WHOLE: "whole model", REPLICAS: "replicas"}
"""Modes in words."""


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
    noise = (first.quartile_range_per_s + second.quartile_range_per_s) / 2
    return first.throughput_per_s - second.throughput_per_s, noise


def ordered(timings: Mapping[str, Timing]) -> list[str]:
    """The modes that ran, fastest first; at ties the first one that stands there."""
    ran = [mode for mode, timing in timings.items() if timing.throughput_per_s > 0]
    return sorted(ran, key=lambda mode: -timings[mode].throughput_per_s)


def choose(
    timings: Mapping[str, Timing],
    predictions: WayPredictions,
    predicted: Mapping[str, float | None],
) -> Choice | None:
    """The fastest way; None if nothing was measured.

    Parameters
    ----------
    timings
        Figures of each mode over all rounds; modes that are ruled out did not run.
    predictions
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
        return Choice(best[0], ratio, mine, clear=True, ruled_out=predictions.ruled_out)
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
        ruled_out=predictions.ruled_out,
        taken=taken,
    )


SHARES = tuple(step / 10 for step in range(1, 13))
"""Rates over what the pipeline can do."""


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep."""

    process: str
    """Arrival process."""
    seed: int
    count: int | None
    """Samples at each rate; None: those that arrive in `duration_s`, and at least `least`."""
    duration_s: float
    least: int

    def steps(self, capacity_per_s: float) -> list[tuple[float, Arrivals, int]]:
        """(share of the capacity, arrivals, samples) of each rate."""
        found = []
        for share in SHARES:
            arrivals = Arrivals(self.process, share * capacity_per_s, self.seed)
            count = self.count or max(arrivals.within(self.duration_s), self.least)
            found.append((share, arrivals, count))
        return found


@dataclass
class SweepResult:
    """Results of a sweep."""

    sweep: Sweep
    capacity_per_s: float
    """Samples a second where each arrives as soon as the pipeline can take it."""
    rows: list[tuple[float, Queueing]] = field(default_factory=list)
    """(share of the capacity, figures) of each rate that was tried."""

    @property
    def knee(self) -> Queueing | None:
        """Rate with the largest throughput over mean latency: more costs more than it brings."""
        figures = [found for _, found in self.rows]
        return max(figures, key=lambda found: found.power, default=None)

    @property
    def sustained(self) -> Queueing | None:
        """The highest rate below the first at which the pipeline does not keep up."""
        best = None
        for _, found in self.rows:
            if found.saturated:
                break
            best = found
        return best

    def record(self) -> dict[str, Any]:
        """Fields of the run record."""
        seed = {"seed": self.sweep.seed} if self.sweep.process == POISSON else {}
        named = {"knee_per_s": self.knee, "sustained_per_s": self.sustained}
        return {
            "process": self.sweep.process,
            **seed,
            "capacity_per_s": self.capacity_per_s,
            **{name: one.arrivals.rate_per_s for name, one in named.items() if one is not None},
            "rates": [{"share": share, **found.fields()} for share, found in self.rows],
        }

    def lines(self) -> list[str]:
        """A table for people, and its knee."""
        shares = [f"{100 * share:.4g}%" for share in QUANTILES.values()]
        header = ["arrive", "of capacity", "leave", *shares, "most", ""]
        rows = [self._row(share, found) for share, found in self.rows]
        found = table(header, rows)
        if self.knee is not None:
            found.append(
                f"knee        {self.knee.arrivals.rate_per_s:.4g}/s, where throughput over mean "
                "latency is largest"
            )
        if self.sustained is not None:
            rate = self.sustained.arrivals.rate_per_s
            found.append(f"sustained   {rate:.4g}/s is the highest rate with which it keeps up")
        return found

    def _row(self, share: float, found: Queueing) -> Sequence[str]:
        notes = []
        if found is self.knee:
            notes.append("knee")
        if found.saturated:
            notes.append("saturated")
        return [
            f"{found.arrivals.rate_per_s:.4g}/s",
            f"{share:.0%}",
            f"{found.throughput_per_s:.4g}/s",
            *map(shown_seconds, found.quantiles_s),
            shown_seconds(found.max_s),
            ", ".join(notes),
        ]


def run_sweep(
    sweep: Sweep,
    capacity_per_s: float,
    measure: Callable[[Arrivals, int], Queueing | None],
    progress: Callable[[str, float], None],
) -> SweepResult:
    """Try all rates; `measure` gives None when it was interrupted."""
    swept = SweepResult(sweep, capacity_per_s)
    steps = sweep.steps(capacity_per_s) if capacity_per_s > 0 else []
    # The lower the rate, the longer it takes.
    times = [count / arrivals.rate_per_s for _, arrivals, count in steps]
    for number, (share, arrivals, count) in enumerate(steps):
        doing = f"sweeping, rate {number + 1} of {len(steps)}"
        progress(doing, sum(times[:number]) / sum(times))
        found = measure(arrivals, count)
        if found is None:
            break
        swept.rows.append((share, found))
    return swept


def sweep_rates(
    pipeline: Pipeline, traffic: Traffic, sweep: Sweep, capacity_per_s: float
) -> SweepResult:
    """Send samples through a pipeline at all rates of a sweep, each after a warm-up."""

    def measure(arrivals: Arrivals, count: int) -> Queueing | None:
        trace = pipeline.run(replace(traffic, count=count, seconds=None, arrivals=arrivals))
        return None if trace.interrupted else queueing(trace, arrivals)

    return run_sweep(sweep, capacity_per_s, measure, pipeline.watch.checks)


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""Reported quantiles of latency."""

MANY = 0.05
"""Share of all samples: a pipeline that keeps up has fewer of them waiting in the end."""


@dataclass(frozen=True)
class Queueing:
    """Figures of samples that arrived at their own pace; times in seconds."""

    arrivals: Arrivals
    samples: int
    span_s: float
    """First to last arrival."""
    throughput_per_s: float
    """From the first arrival to the last output."""
    mean_s: float
    """Latency, from the arrival of a sample to its last output."""
    quantiles_s: tuple[float, ...]
    """Interpolated quantiles of the latency, as `QUANTILES`."""
    max_s: float
    backlog: int
    """Samples that had arrived, but were not through, when the last one arrived."""
    workers: int
    """Samples that can be in work at once: all replicas of all stages."""

    @property
    def saturated(self) -> bool:
        """True if the pipeline does not keep up: too many are left behind to be chance."""
        return self.backlog > self.workers + max(MANY * self.samples, math.sqrt(self.samples))

    @property
    def power(self) -> float:
        """Throughput over mean latency, which is largest at the knee (Kleinrock 1979)."""
        return self.throughput_per_s / self.mean_s if self.mean_s > 0 else 0.0

    def fields(self) -> dict[str, Any]:
        """Fields of a record."""
        quantiles = zip(QUANTILES, self.quantiles_s, strict=True)
        return {
            "rate_per_s": self.arrivals.rate_per_s,
            "samples": self.samples,
            "span_s": self.span_s,
            "throughput_per_s": self.throughput_per_s,
            "latency_mean_s": self.mean_s,
            **{f"latency_{name}_s": value for name, value in quantiles},
            "latency_max_s": self.max_s,
            "backlog": self.backlog,
            "saturated": self.saturated,
        }

    def record(self) -> dict[str, Any]:
        """The same, with how samples arrived."""
        seed = {"seed": self.arrivals.seed} if self.arrivals.process == POISSON else {}
        return {"process": self.arrivals.process, **seed, **self.fields()}

    def lines(self) -> list[str]:
        """The same for people."""
        p50, p90, p99, p999 = map(shown_seconds, self.quantiles_s)
        how = "at random" if self.arrivals.process == POISSON else "at equal distances"
        found = [
            f"arrivals    {self.arrivals.rate_per_s:.4g}/s {how}; {self.throughput_per_s:.4g}/s "
            "leave",
            f"response    {p50} median from arrival to output, {p90} at 90%, {p99} at 99%, {p999} "
            f"at 99.9%, {shown_seconds(self.max_s)} at most",
        ]
        if self.saturated:
            found.append(
                f"saturated   the pipeline does not keep up: {self.backlog} samples were left "
                "behind when the last one arrived"
            )
        return found


def queueing(trace: Trace, arrivals: Arrivals) -> Queueing | None:
    """Figures of a trace whose samples arrived at their own pace; None: nothing is through."""
    arrived, done = trace.arrived_ns, trace.done_ns
    if arrived is None or not len(done):
        return None
    latency = (done - arrived) * 1e-9
    return Queueing(
        arrivals,
        samples=len(done),
        span_s=float(arrived[-1] - arrived[0]) * 1e-9,
        throughput_per_s=len(done) / (float(max(done[-1] - arrived[0], 1)) * 1e-9),
        mean_s=float(latency.mean()),
        quantiles_s=tuple(np.quantile(latency, list(QUANTILES.values())).tolist()),
        max_s=float(latency.max()),
        backlog=int((done > arrived[-1]).sum()),
        workers=int(trace.replicas.sum()),
    )


ROUNDS = 3
"""Each way runs this often, in turn; medians are reported."""
_POLL_S = 0.1


def run_replicas(
    replicas: Sequence[Worker],
    samples: Sequence[Mapping[str, Any]],
    count: int,
    warmup: int = 0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Timing:
    """Time replicas of a model, one thread each, that take samples from a common pile.

    Every replica runs `warmup` samples first, then all start together on `count` samples. One
    replica is the whole model run sample by sample.

    Raises `DnnpError` if a replica failed; the others have been stopped.
    """
    pile = itertools.count()
    start, end = np.zeros((2, count), dtype=np.int64)
    waited: list[int] = []
    failed: list[DnnpError] = []

    def stopped() -> bool:
        return bool(failed) or interrupted()

    def prepare(replica: Worker) -> None:
        replica.pin()
        for s in range(warmup):
            if not stopped():
                replica.run(dict(samples[s % len(samples)]))

    def work(replica: Worker) -> None:
        replica.pin()
        waits, steals = WaitClock(replica.threads), StealClock()
        while not stopped():
            s = next(pile)
            if s >= count:
                stolen = steals.passed_ns(replica.cores[:1])
                waited.append(waits.passed_ns(replica.threads) + stolen)
                return
            feeds = dict(samples[s % len(samples)])
            start[s] = time.perf_counter_ns()
            replica.run(feeds)
            end[s] = time.perf_counter_ns()

    def guarded(task: Callable[[Worker], None], replica: Worker) -> None:
        try:
            task(replica)
        except DnnpError as error:
            failed.append(type(error)(f"{replica.name}: {error}"))

    with ThreadPoolExecutor(len(replicas), thread_name_prefix="replica") as pool:
        for task in (prepare, work):
            futures = [pool.submit(guarded, task, replica) for replica in replicas]
            while wait(futures, _POLL_S).not_done:
                if stopped():
                    stop_workers(replicas)
            for future in futures:
                future.result()
    if interrupted():
        failed.clear()
    if failed:
        raise failed[0]
    done = end > 0
    if not done.any():
        return Timing(0, 0.0, 0.0, 0.0, (0.0,), (0.0,), 0.0)
    took = end[done] - start[done]
    span = max(int(end[done].max() - start[done].min()), 1)
    idle = 1.0 - float(took.sum()) / (span * len(replicas))
    load_s = np.array([np.median(took) * 1e-9])
    timing = timing_of(took, span * 1e-9, load_s, np.array([idle]), idle)
    taken = min(sum(waited) / (span * len(replicas)), 1.0)
    return replace(timing, taken=(taken,)) if waits_are_known() else timing


def compare(
    pipeline: Pipeline, traffic: Traffic, first: Timing, predictions: WayPredictions | None = None
) -> list[Compared]:
    """Time the pipeline, the whole model and replicas in turn, on as many devices.

    `first` is a round of the pipeline already run. The whole model's threads spin while they wait,
    or not, whichever is faster here. With `predictions`, what fits the memory of the devices, until
    it is clear which is the fastest.
    """
    others = _others(pipeline, traffic, predictions or WayPredictions())
    modes = {PIPELINE: (pipeline.config, len(pipeline.steps))}
    modes |= {mode: (config, len(workers)) for mode, (config, workers) in others.items()}
    rounds: dict[str, list[Timing]] = {PIPELINE: [first]} | {mode: [] for mode in others}
    least, most = ROUNDS, ROUNDS if predictions is None else MOST_ROUNDS
    stop = pipeline.watch.interrupted
    for number in range(most):
        figures = {mode: median_timing(timings) for mode, timings in rounds.items() if timings}
        if number >= least and is_clear(figures):
            break
        of = f"of {least}" if number < least else f"of {most} at most"
        pipeline.watch.detail(f"comparison, round {number + 1} {of}")
        pipeline.watch.checks(f"comparing, round {number + 1} {of}", number / most)
        if number and not stop():
            rounds[PIPELINE].append(pipeline.summarize(pipeline.run(traffic), traffic))
        for mode, (_, workers) in others.items():
            if not stop():
                rounds[mode].append(
                    run_replicas(workers, traffic.samples, traffic.count, traffic.warmup, stop)
                )
    return [
        Compared(mode, *modes[mode], median_timing(timings))
        for mode, timings in rounds.items()
        if timings
    ]


def _others(
    pipeline: Pipeline, traffic: Traffic, predictions: WayPredictions
) -> dict[str, tuple[SessionConfig, list[Worker]]]:
    """Mode -> sessions of the whole model, in one configuration."""
    cores = len(available_cores())
    config = main_config(pipeline.homes, pipeline.config)
    whole = replace(config, threads=cores, pin=False)
    single = replace(config, threads=1)
    spots, _ = places(pipeline.devices, single)
    if config.provider == "cpu":
        spots = spots[:cores]
    else:
        spots = spots[: len({spot.device_id for spot in spots})]
    found = {}
    if WHOLE not in predictions.ruled_out:
        found[WHOLE] = (whole, [_fastest_whole(pipeline, whole, traffic)])
    if REPLICAS not in predictions.ruled_out:
        spots = spots[: predictions.copies]
        copies = [pipeline.whole(single.at(spot), f"replica {i}") for i, spot in enumerate(spots)]
        found[REPLICAS] = (single, copies)
    return found


def chosen(
    pipeline: Pipeline, others: Sequence[Compared], predictions: WayPredictions
) -> Choice | None:
    """The fastest of the ways that `compare` timed, beside what was predicted of it."""
    gpu = main_config(pipeline.homes, pipeline.config).provider != "cpu"
    predicted = {
        # Each stage has a device of the plan: one GPU, or as many cores as it has threads.
        mode: predictions.predicted(
            mode,
            sessions,
            as_planned=not pipeline.oversubscribed
            and (gpu or config.threads == pipeline.config.threads),
        )
        for mode, config, sessions, _ in others
    }
    return choose({mode: timing for mode, _, _, timing in others}, predictions, predicted)


def _fastest_whole(pipeline: Pipeline, config: SessionConfig, traffic: Traffic) -> Worker:
    """The whole model on all cores, with threads that wait in the better way."""
    workers = [
        pipeline.whole(replace(config, alone=alone), "the whole model") for alone in (False, True)
    ]
    trial = [
        run_replicas([w], traffic.samples, min(traffic.count, 8), 2, pipeline.watch.interrupted)
        for w in workers
    ]
    return max(zip(trial, workers, strict=True), key=lambda pair: pair[0].throughput_per_s)[1]
