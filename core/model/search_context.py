"""A search: its options, its context (seed, effort, time, callbacks), and its answer.

A run travels beside the problem; a step that may use a part of the time or of the effort gets a
part of the run.

Compiling a kernel, laying out a large graph or a call into a library cannot be told to stop. So a
search runs in a thread of its own; one that goes on for too long after its end is left alone, and
a fallback answers. Such a thread dies with the process. Where memory is short a thread may die
before its first line; the one that waits for it is told.
"""

from __future__ import annotations

import hashlib
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import CLOSED, Block, PolicyUsed
from dnnp.core.model.processes import left_alone
from dnnp.core.model.text import shown_time


@dataclass(frozen=True, eq=False)
class Policy:
    """Weights of a network that places groups of operators, for a number of devices."""

    devices: int
    hops: int
    """Rounds of message passing."""
    width: int
    """Numbers by which a message describes a group."""
    weights: Floats
    """f64[p], all in one."""
    episodes: int = 0
    """With which they were trained."""
    graphs: int = 0
    """On which they were trained."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of devices, hops, width and weights."""
        sizes = np.array([self.devices, self.hops, self.width], dtype="<i8")
        plain = np.ascontiguousarray(self.weights, dtype="<f8")
        return hashlib.sha256(sizes.tobytes() + plain.tobytes()).hexdigest()


@dataclass(frozen=True)
class Training:
    """Options of a method that learns."""

    policy: Policy | None = None
    """Start weights; None: they are drawn."""
    family: tuple[Any, ...] = ()
    """Latency problems to train on; empty: the one that is to be solved."""
    episodes: int | None = None
    """Of training; None: by effort, and none for a given policy that no family comes with."""


class Learned(NamedTuple):
    """Origin of the policy that made a split, and how it was applied."""

    policy: Policy
    episodes: int
    """Of training in this run."""
    asked: int
    """Episodes that were to be; more than `episodes`: it was stopped."""
    graphs: int
    """On which they were."""
    groups: int
    """Groups that were placed."""
    colors: int
    """Operators, or operators that must be together: if more than `groups`, they were merged."""
    rounds: int
    """In each of which all groups were visited by the policy that was then learned."""

    def told(self) -> PolicyUsed:
        """The part of it that a plan tells."""
        policy = self.policy
        return PolicyUsed(
            policy.digest,
            policy.episodes,
            self.episodes,
            self.asked,
            self.graphs,
            policy.hops,
            self.groups,
            self.colors,
            self.rounds,
        )


@dataclass(frozen=True)
class Evolution:
    """Options of a population that evolves (Goncalves and Resende, 2011)."""

    population: int = 100
    generations: int = 100
    elite: float = 0.2
    """Share of the population that is kept."""
    mutants: float = 0.15
    """Share of the population that is drawn anew."""
    bias: float = 0.7
    """Probability that a child takes a key from its elite parent."""

    def check(self) -> None:
        """Refuse what is no evolution.

        Raises UsageError: too few individuals or generations, or shares that do not add up.
        """
        if self.population < 2:
            raise UsageError(f"a population of {self.population} is too small: at least 2")
        if self.generations < 1:
            raise UsageError(f"{self.generations} generations are too few: at least 1")
        if not 0 < self.elite < 1:
            raise UsageError(f"an elite share of {self.elite:g} is not between 0 and 1")
        if not 0 <= self.mutants < 1:
            raise UsageError(f"a share of mutants of {self.mutants:g} is not below 1")
        if not 0 <= self.bias <= 1:
            raise UsageError(f"a bias of {self.bias:g} is no probability")
        if self.kept + self.drawn > self.population:
            raise UsageError(
                f"an elite of {self.kept} and {self.drawn} mutants are more than a population of "
                f"{self.population}"
            )

    @property
    def kept(self) -> int:
        """Individuals that are kept; at least 1, and not all."""
        return min(max(round(self.elite * self.population), 1), self.population - 1)

    @property
    def drawn(self) -> int:
        """Mutants of a generation."""
        return round(self.mutants * self.population)


@dataclass(frozen=True)
class Solution:
    """A split, and what was proven about it."""

    blocks: list[Block]
    bound: float = 0.0
    """No split of the validity asked for has a smaller objective."""
    method: str = ""
    """The method that made it; empty: the requested one."""
    planned_by: str = ""
    """As in `Plan`: `classes` where it knew the best link of each class only."""
    contiguous_bound: float = 0.0
    """As in `Plan`."""
    widest: float = inf
    """Width of windows that took too long in vain: for more devices they are narrower."""


@dataclass(frozen=True)
class MethodOptions:
    """Options of methods; each heeds what concerns it."""

    method: str = "auto"
    validity: str | None = None
    """Requested validity of the split: `ordered`, `convex` or `free`; None: the method's own."""
    order: str = "best"
    sequence: Ints | None = None
    """i64[g], units in the order to slice, instead of a named one."""
    ties: Callable[..., Any] | None = None
    """Of `max-load` in the order `published`: finds the one of the splits of least load that some
    program returns, as a line of items, i64[b + 1] bounds of blocks, and i64[b] their classes, from
    a problem, the load that is reached, and the run."""
    priorities: Floats | None = None
    """f64[g], priorities of the units for the order to slice, instead of a named one."""
    samples: int = 100
    """Orders that method `random` tries."""
    evolution: Evolution = field(default_factory=Evolution)
    """Parameters by which `brkga`, `mla` and `mla-weighted` evolve an order."""
    solver: str = "cbc"
    """Of integer programs: `cbc` or `highs`."""
    training: Training = field(default_factory=Training)
    """Of `placeto`: the policy that it starts from, and what that learns from."""
    least_peak: bool = False
    """Order the nodes of a stage for a small peak even where memory does not bind."""
    known: Solution = Solution([])
    """A split that fits, perhaps on some of the devices, and a bound; no blocks: no split."""
    near: float = 0.0
    """Expected optimum; 0: unknown."""


SMALL_GAP = 1e-4
"""Relative gap up to which searches go on that mostly close it in a moment."""


class Progress(NamedTuple):
    """Progress of long work, as far as that is known.

    It is `doing` something, the best answer has a `value` and none can be below the `bound` (of
    `what`, if that is not the objective), and a `share` of the work is done.
    """

    doing: str = ""
    """The present phase, in a word or two; empty: the same as before."""
    value: float = inf
    """Objective of the best answer so far; inf: there is none."""
    bound: float = 0.0
    """No answer has a smaller objective; 0: nothing is proven."""
    share: float | None = None
    """Share of all the work that is done, from 0 to 1; None: it is not known."""
    what: str = ""
    """The quantity of `value` and `bound`, such as `period`; empty: the same as before."""
    in_seconds: bool = False
    """True if they are in seconds; else their unit is not known."""
    by: str = ""
    """The method that proves the bound, if stated."""

    @property
    def gap(self) -> float | None:
        """Gap between value and bound, relative to the value; None: one of them is not known."""
        if not 0 < self.value < inf or self.bound <= 0:
            return None
        return max(self.value - self.bound, 0.0) / self.value

    def after(self, before: Progress) -> Progress:
        """Progress with what was known before: nothing gets worse.

        >>> Progress("annealing", value=3.0, share=0.2).after(Progress(value=2.0, share=0.5))
        Progress(doing='annealing', value=2.0, bound=0.0, share=0.5, what='', in_seconds=False)
        """
        value, bound = self.value, self.bound
        if self.what in ("", before.what):
            value, bound = min(value, before.value), max(bound, before.bound)
        known = [share for share in (self.share, before.share) if share is not None]
        return Progress(
            self.doing or before.doing,
            value,
            bound,
            max(known) if known else None,
            self.what or before.what,
            self.in_seconds or before.in_seconds,
            self.by if bound > before.bound else before.by,
        )


def narrowed(first: float, now: float, last: float) -> float:
    """Share done of a search that narrows an interval from a width to another, by factors."""
    if not 0 < last < first or now >= first:
        return 0.0
    return min(log(first / max(now, last)) / log(first / last), 1.0)


def _unheard(*_: Any) -> None:
    """Ignore a report."""


@dataclass(frozen=True)
class SearchContext:
    """Context of a search: its inputs besides the problem, and its callbacks."""

    seed: int = 0
    """Of random choices."""
    effort: float = 1.0
    """Scales the work of searches that would not end."""
    interrupted: Callable[[], bool] = lambda: False
    """True once it is to end."""
    end: float = inf
    """End of its time, on the clock of `time.monotonic`."""
    log: Callable[[str], None] = _unheard
    """Told what was found on the way."""
    warn: Callable[[str], None] = _unheard
    """Told what went wrong, or was cut short, without ending the search."""
    watch: Callable[[Progress], None] = _unheard
    """Told where the search stands."""
    span: tuple[float, float] = (0.0, 1.0)
    """Part of this step in the whole work: the shares at its begin and at its end."""
    report_incumbent: Callable[[Any, float, str], None] = _unheard
    """Told a split that fits, its objective, and what made it: it is the answer where the search
    does not come to its end."""
    in_seconds: bool = False
    """True if objectives are in seconds; else their unit is not known."""
    max_gap: float = 0.0
    """Relative gap of value and bound that a search need not labour to close."""

    @property
    def wide_gap(self) -> float:
        """The gap at which also searches end that mostly close it in a moment; 0: none."""
        return self.max_gap if self.max_gap > SMALL_GAP else 0.0

    def gap_reached(self, value: float, bound: float) -> bool:
        """True if the gap is one that need not be closed."""
        return bound >= value * (1 - max(self.max_gap, CLOSED))

    def shown(self, value: float, digits: int = 4) -> str:
        """An objective, for messages."""
        return shown_time(value, self.in_seconds, digits)

    def stop(self) -> bool:
        """True if to end now, with the best answer so far. Asked often."""
        return self.interrupted() or monotonic() >= self.end

    def time_left(self) -> float | None:
        """Seconds that are left; None: no limit."""
        return None if self.end == inf else max(self.end - monotonic(), 0.0)

    def within(self, seconds: float | None) -> SearchContext:
        """The same run, over after so many seconds at the latest; None: no limit."""
        if seconds is None:
            return self
        return replace(self, end=min(self.end, monotonic() + seconds))

    def report_progress(
        self,
        doing: str = "",
        *,
        value: float = inf,
        bound: float = 0.0,
        share: float | None = None,
        what: str = "",
        by: str = "",
    ) -> None:
        """Report the progress of the search; see `Progress`, here `share` is that of this step.

        What was said before need not be said again. It may be called as often as a step likes.
        """
        first, last = self.span
        done = None if share is None else first + share * (last - first)
        self.watch(Progress(doing, value, bound, done, what, self.in_seconds, by))

    def phase(self, doing: str, first: float, last: float) -> SearchContext:
        """The same run for a step that begins now, and is the work between two shares of this."""
        self.report_progress(doing, share=first)
        begin, end = self.span
        width = end - begin
        return replace(self, span=(begin + first * width, begin + last * width))

    def without_shares(self) -> SearchContext:
        """The same run for a step of unknown length."""
        return replace(self, watch=lambda standing: self.watch(standing._replace(share=None)))

    def without_bounds(self) -> SearchContext:
        """The same run for a step whose bounds do not hold for all answers."""
        return replace(self, watch=lambda standing: self.watch(standing._replace(bound=0.0)))

    def part(self, share: float, otherwise: float = inf) -> SearchContext:
        """The same run for a step that may use this share of the time that is left.

        `otherwise`: the seconds that are left where there is no limit.
        """
        left = self.time_left()
        return self.within(share * (otherwise if left is None else left))

    def scaled(self, share: float) -> SearchContext:
        """The same run with this share of its effort."""
        return replace(self, effort=share * self.effort)

    def unvalued(self) -> SearchContext:
        """The same run for a step of another objective, whose values are none of this."""
        shown = replace(self, report_incumbent=_unheard)
        return replace(shown, watch=lambda s: self.watch(s._replace(value=inf, bound=0.0)))

    def until_gap(self, value: float, bound: float) -> SearchContext:
        """The same run, over as soon as what it reports closes the gap that is asked for.

        `value`, `bound`: the best that are known now. Nothing changes where only a gap is asked
        for that mostly closes in a moment.
        """
        if not self.wide_gap:
            return self
        known = [value, bound]

        def report(split: Any, found: float, method: str) -> None:
            known[0] = min(known[0], found)
            self.report_incumbent(split, found, method)

        def watch(standing: Progress) -> None:
            if not standing.what:
                known[1] = max(known[1], standing.bound)
            self.watch(standing)

        def over() -> bool:
            return self.interrupted() or self.gap_reached(*known)

        return replace(self, report_incumbent=report, watch=watch, interrupted=over)

    def alone(self) -> SearchContext:
        """The same run for a step inside another that is a problem of its own: what it finds is no
        answer, and its progress is not reported."""
        return replace(self, watch=_unheard, report_incumbent=_unheard)


PLAIN = SearchContext()
"""Context without limits and callbacks."""


S = TypeVar("S")
T = TypeVar("T")

GRACE_S = 0.5
"""Seconds that work may go on after `stop` says so, where there is a fallback."""

POLL_S = 0.05
"""Seconds between two calls of `stop`."""

NOTHING = "nothing was found before it was stopped"
"""Reason why a fallback answers for a method."""

_always_waits = False


def wait_always() -> None:
    """Wait for all work from now on: for a process whose purpose is what work leaves behind."""
    global _always_waits
    _always_waits = True


def run_with_fallback(
    work: Callable[[], T], stop: Callable[[], bool], instead: Callable[[], T | None]
) -> T:
    """Return what `work` returns, or raise what it raises.

    Where it goes on for `GRACE_S` after `stop` says so: what `instead` returns; None: there is
    nothing, and the work is waited for.

    Raises MemoryError: the thread died without a word.
    """
    running = _Running(work)
    while not (_always_waits or running.wait(POLL_S)):
        if stop():
            if not running.wait(GRACE_S):
                answer = instead()
                if answer is not None:
                    running.leave_alone()
                    return answer
            break
    return running.outcome()


class Incumbent(Generic[S]):
    """The best split and the best bound of all that ran: the answer when a search ends.

    All reports of a search pass here; a watcher sees no more than what is kept.
    """

    def __init__(self, what: str = "") -> None:
        self.what = what
        """As in `Progress`: of other values and bounds nothing is kept."""
        self.split: S | None = None
        self.value = inf
        self.method = ""
        self.bound = 0.0
        self.argument = ""
        """The method that proves the bound, if stated."""

    def told_by(self, run: SearchContext) -> SearchContext:
        """The same run; what it keeps and proves is kept here, and reported."""

        def keep(split: S, value: float, method: str) -> None:
            self.keep(split, value, method)
            run.report_progress(value=self.value, what=self.what)

        def watch(standing: Progress) -> None:
            if standing.what == self.what:
                if standing.bound > self.bound:
                    self.bound, self.argument = standing.bound, standing.by
                standing = standing._replace(value=self.value)
            run.watch(standing)

        return replace(run, report_incumbent=keep, watch=watch)

    def keep(self, split: S, value: float, method: str) -> None:
        """Take over a split, if it is better."""
        if value < self.value:
            self.split, self.value, self.method = split, value, method

    def proven(self, value: float = inf) -> float:
        """The best bound of all that ran: what none of the splits that are known refutes."""
        return min(self.bound, self.value, value)

    def beats(self, value: float) -> bool:
        """True if what is kept is better than an answer of this value, beyond rounding."""
        return self.split is not None and self.value < value * (1 - CLOSED)


class _Life:
    """An object that a thread holds as long as it lives."""


class _Running(Generic[T]):
    """Work in a thread of its own, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        # To release a lock takes no memory.
        self._under_way = allocate_lock()
        self._under_way.acquire()
        self._over = False
        self._work = work
        self._answer: list[T] = []
        self._error: BaseException | None = None
        life = _Life()
        self._life = ref(life)
        # `Thread.start` would wait for ever for a thread that dies before its first line.
        self._thread = start_new_thread(self._run, (life,))

    def _run(self, _life: _Life) -> None:
        with self:
            self._answer.append(self._work())
        left_alone.discard(get_ident())

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Keep an error: `outcome` raises it."""
        self._error = error
        self._under_way.release()
        return True

    def wait(self, seconds: float) -> bool:
        """True if the work is over, after some seconds at the latest."""
        dead = self._life() is None  # a dead thread has said before that it is over
        self._over = self._over or self._under_way.acquire(timeout=seconds)
        if dead and not self._over:
            raise MemoryError
        return self._over

    def leave_alone(self) -> None:
        """Wait for it no more."""
        left_alone.add(self._thread)

    def outcome(self) -> T:
        """Wait for the end; return the answer, or raise the error."""
        while not self.wait(POLL_S):
            pass
        if self._error is not None:
            raise self._error
        return self._answer[0]
