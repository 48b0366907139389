"""A search: its options, its context (seed, effort, time, callbacks), and its answer.

A run travels beside the problem; a step that may use a part of the time or of the effort gets a
part of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import CLOSED, Block, PolicyUsed
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
    """Where to start from; None: weights are drawn."""
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
    """What made it; empty: the method that was asked."""
    planned_by: str = ""
    """As in `Plan`: `classes` where it knew the best link of each class only."""
    contiguous_bound: float = 0.0
    """As in `Plan`."""


@dataclass(frozen=True)
class MethodOptions:
    """Options of methods; each heeds what concerns it."""

    method: str = "auto"
    validity: str | None = None
    """What is asked of the split: `ordered`, `convex` or `free`; None: the method's own."""
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
    """How `brkga`, `mla` and `mla-weighted` evolve an order."""
    solver: str = "cbc"
    """Of integer programs: `cbc` or `highs`."""
    training: Training = field(default_factory=Training)
    """Of `placeto`: the policy that it starts from, and what that learns from."""
    least_peak: bool = False
    """Order the nodes of a stage for a small peak even where memory does not bind."""
    known: Solution = Solution([])
    """A split that fits, perhaps on some of the devices, and a bound; no blocks: no split."""
    near: float = 0.0
    """Where the optimum is expected; 0: nobody knows."""


SMALL_GAP = 1e-4
"""Relative gap up to which searches go on that mostly close it in a moment."""


class Progress(NamedTuple):
    """Progress of long work, as far as that is known.

    It is `doing` something, the best answer has a `value` and none can be below the `bound` (of
    `what`, if that is not the objective), and a `share` of the work is done.
    """

    doing: str = ""
    """What is being done, in a word or two; empty: the same as before."""
    value: float = inf
    """Objective of the best answer so far; inf: there is none."""
    bound: float = 0.0
    """No answer has a smaller objective; 0: nothing is proven."""
    share: float | None = None
    """Share of all the work that is done, from 0 to 1; None: it is not known."""
    what: str = ""
    """What `value` and `bound` are, such as `period`; empty: the same as before."""
    in_seconds: bool = False
    """Whether they are in seconds; else their unit is not known."""
    by: str = ""
    """What proves the bound, if that was said."""

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


def _unheard(*_: Any) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class SearchContext:
    """Context of a search: what it is told besides the problem, and whom it tells what it finds."""

    seed: int = 0
    """Of random choices."""
    effort: float = 1.0
    """Scales the work of searches that would not end."""
    interrupted: Callable[[], bool] = lambda: False
    """Whether somebody wants it to end."""
    end: float = inf
    """When its time is over, on the clock of `time.monotonic`."""
    log: Callable[[str], None] = _unheard
    """Told what was found on the way."""
    warn: Callable[[str], None] = _unheard
    """Told what went wrong, or was cut short, without ending the search."""
    watch: Callable[[Progress], None] = _unheard
    """Told where the search stands."""
    span: tuple[float, float] = (0.0, 1.0)
    """Which part of the whole work this step is: the shares at its begin and at its end."""
    report_incumbent: Callable[[Any, float, str], None] = _unheard
    """Told a split that fits, its objective, and what made it: it is the answer where the search
    does not come to its end."""
    in_seconds: bool = False
    """Whether objectives are in seconds; else their unit is not known."""
    max_gap: float = 0.0
    """Relative gap of value and bound that a search need not labour to close."""

    @property
    def wide_gap(self) -> float:
        """The gap at which also searches end that mostly close it in a moment; 0: none."""
        return self.max_gap if self.max_gap > SMALL_GAP else 0.0

    def gap_reached(self, value: float, bound: float) -> bool:
        """Tell whether the gap is one that need not be closed."""
        return bound >= value * (1 - max(self.max_gap, CLOSED))

    def shown(self, value: float, digits: int = 4) -> str:
        """An objective, for messages."""
        return shown_time(value, self.in_seconds, digits)

    def stop(self) -> bool:
        """Test whether to end now, with the best answer so far. Asked often."""
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
        """Say where the search stands; see `Progress`, here `share` is that of this step.

        What was said before need not be said again. Called as often as a step likes: whoever
        watches looks when there is time.
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
        """The same run for a step of which nobody knows how long it takes."""
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

    def alone(self) -> SearchContext:
        """The same run for a step inside another that is a problem of its own: what it finds is no
        answer, and where it stands concerns nobody."""
        return replace(self, watch=_unheard, report_incumbent=_unheard)


PLAIN = SearchContext()
"""Nobody ends it, and nobody listens."""
