"""Bounding methods by name, and the order in which `auto` tries them.

Each method is a function of the problem, a task and the search context, and returns a lower bound.
Where links are stated they assume the best link of each class, which no split can beat. Here bounds
are judged: none may exceed the value of a split that exists, and the best one wins. A split that a
method finds on the way replaces the one known, and the next methods start from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from time import monotonic
from typing import NamedTuple

from dnnp.core.bounds.lower_bound import FAILED, LIMIT, REFUSED, SOLVED, BoundTask, LowerBound
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.errors import (
    FormatError,
    InfeasibleError,
    LimitError,
    UnavailableError,
    UsageError,
)
from dnnp.core.model.plan import CLOSED, OBJECTIVES, VALIDITIES, Block
from dnnp.core.model.search_context import (
    PLAIN,
    Incumbent,
    Progress,
    SearchContext,
    run_with_fallback,
)
from dnnp.core.split.peak import with_least_peak

SOLVER_S = 60.0
"""Seconds that integer programs may take together, where there is no other limit."""

TOLERANCE = 2e-6
"""Relative gap that is left where integer programs are solved; then no solver is asked again."""

SMALL_EFFORT = 0.05
"""Effort of the first search over ideals, of the effort asked for; the second one has all."""


class Trial(NamedTuple):
    """One method that was tried."""

    method: str
    status: str
    value: float | None
    """Bound that it proves, at least the simple one; None: nothing."""
    reason: str
    seconds: float


class Proof(NamedTuple):
    """The best bound, and how it came about."""

    method: str
    claim: LowerBound
    tried: list[Trial]
    value: float
    """Objective of the best split known now."""
    blocks: list[Block] | None
    """The split of this bound, if it is better than the given one."""
    found_by: str
    """The method that found it."""


class Step(NamedTuple):
    """One method within `auto`."""

    name: str
    effort: float = 1.0
    """Share of the effort."""
    share: float | None = None
    """Share of the time left for solvers; None: the share of the method."""


AUTO = (
    Step("packing"), Step("chain"), Step("zone-cut"), Step("node-cut"), Step("cpu-cut"),
    Step("ideal", SMALL_EFFORT), Step("pairs"), Step("same-block"), Step("cover"), Step("ideal"),
    Step("no-dag"), Step("bottleneck"), Step("guess"), Step("exact"),
)  # fmt: skip
"""Steps of `auto` after `simple`, cheapest first."""

FEW = 2
FEW_AUTO = (
    *AUTO[:6], Step("halves"), Step("pairs"), Step("ideal"), Step("exact", share=0.5),
    Step("guess", share=0.4), Step("no-dag", share=0.3), Step("bottleneck", share=0.3),
    Step("same-block", share=0.5), Step("cover", share=1.0),
)  # fmt: skip
"""The same for up to `FEW` devices, where integer programs for whole splits mostly end."""

SMALL = 16
SMALL_AUTO = (
    *AUTO[:7], Step("ideal"), Step("cover", share=0.75), Step("same-block", share=0.6),
    *AUTO[10:],
)  # fmt: skip
"""The same for up to `SMALL` units a device, where sets of them that fit a stage are found fast."""

MANY = 80
MANY_AUTO = (*AUTO[:7], Step("same-block", share=0.2), Step("cover", share=0.9), *AUTO[9:])
"""The same for more than `MANY` units: `same-block` soon has a bound that `cover`, which takes long
for each target, starts from."""

CHECKABLE, MOST_LINEAR = ("ideal", "halves", "pairs", "same-block", "cover"), 64
"""Tried besides where the best argument cannot be checked; linear programs for so many
units at most."""

LINKED = "links"
"""The argument that knows links; `auto` tries it first where there are any."""

STEPS = {"ideal": (Step("ideal", SMALL_EFFORT), Step("ideal"))}
"""Arguments that try more than once; a better split lets the next one go further."""


def bound(
    problem: SplitProblem, known: BoundTask, method: str = "auto", run: SearchContext = PLAIN
) -> Proof:
    """Prove as large a bound as `method` can: the name of an argument, or `auto`.

    The simple bound is always tried first; the floor that is known is not taken for granted. Ends
    at gap 0, or when the run is to stop; `auto` also at the gap asked for, at a small one once it
    searched ideals.

    Raises
    ------
    UnavailableError
        The solver that is asked for is not installed.
    UsageError
        There are no bounds for this objective, or the argument that is asked for does not hold
        for this problem.
    """
    objective = problem.options.objective
    if objective not in ("throughput", "gpipe"):
        what = OBJECTIVES[objective]
        raise UsageError(f"the objective is {what}; there are bounds for throughput and gpipe")
    if method == "auto":
        run = run.without_shares()  # it may end after any argument
    judge = _Judge(problem, known, run, strict=method != "auto")
    judge.attempt(Step("simple"))
    steps: tuple[Step, ...] = STEPS.get(method, (Step(method),))
    if method == "auto":
        count = sum(d.count for d in problem.devices)
        small = MANY_AUTO if problem.units.g > MANY else SMALL_AUTO
        steps = FEW_AUTO if count <= FEW else small if problem.units.g <= SMALL * count else AUTO
        steps = tuple(s for s in steps if s.name != "no-dag" or known.validity == "free")
        if known.validity != "ordered":
            at = [s.name for s in steps].index("cpu-cut") + 1
            steps = (*steps[:at], Step("cover-cut"), *steps[at:])
        steps = (Step(LINKED), *steps) if problem.links else steps
    for step in steps:
        if judge.done(step.name):
            break
        if method == "auto" and judge.hopeless(step.name):
            continue
        if step.name != "simple":
            judge.attempt(step)
        if method != "auto" and judge.tried[-1].status == REFUSED:
            raise UsageError(f"--method {method}: {judge.tried[-1].reason}")
    if method == "auto":
        for name in CHECKABLE if problem.units.g <= MOST_LINEAR else CHECKABLE[:3]:
            if not judge.best()[1].checkable and judge.may_add(name):
                judge.attempt(Step(name), besides=True)
    return judge.proof()


class _Judge:
    """Tries methods, and keeps the bounds that hold."""

    def __init__(
        self, problem: SplitProblem, known: BoundTask, run: SearchContext, *, strict: bool
    ) -> None:
        self.problem, self.known, self.run = problem, known, run
        self.strict = strict
        """True: a missing solver is an error."""
        self.value = known.value
        self.most = self._unlinked_value(known.blocks)
        """Most that arguments without links may prove: the least value without them."""
        self.blocks: list[Block] | None = None
        self.found_by = ""
        self.held: list[tuple[str, LowerBound]] = []
        self.tried: list[Trial] = []
        self.solver_s = SOLVER_S
        """Seconds left for solvers, where there is no other limit."""
        self.last: dict[str, tuple[float, LowerBound]] = {}
        """Argument -> the value that it last ended with, and its claim."""

    def done(self, name: str) -> bool:
        """True if nothing is left that this argument could prove, or no time to prove it."""
        most = self.value if name == LINKED else min(self.value, self.most)
        enough = self.run if "ideal" in self.last or self.run.wide_gap else PLAIN
        return enough.gap_reached(most, self.best()[1].value) or self.run.stop()

    def hopeless(self, name: str) -> bool:
        """True if an argument has nothing to add.

        Solvers prove no more than their tolerance allows. Where there were too many
        ideals to begin with, there are as many later, unless there is a better split.
        """
        if BOUNDS[name].share and self.best()[1].value >= self.value * (1 - TOLERANCE):
            return True
        last = self.last.get(name)
        if last is None or last[0] != self.value or last[1].certificate is None:
            return False
        return last[1].certificate.get("ideals") == 0 and self.run.effort <= 1

    def best(self) -> tuple[str, LowerBound]:
        """The largest claim; of those that hardly differ, the first that can be checked."""
        best = self.held[0]
        for name, claim in self.held[1:]:
            more, least = claim.checkable > best[1].checkable, best[1].value
            if claim.value > least * (1 + (-CLOSED if more else CLOSED)):
                best = name, claim
        return best

    def may_add(self, name: str) -> bool:
        """True if an argument was not tried yet with the best value that is known."""
        tried = name in self.last and self.last[name][0] == self.value
        return not tried and not self.run.stop()

    def proof(self) -> Proof:
        """Sum up the trials."""
        return Proof(*self.best(), self.tried, self.value, self.blocks, self.found_by)

    def attempt(self, step: Step, *, besides: bool = False) -> None:
        """Try one argument; `besides`: it is to prove again what another cannot show."""
        name, argument = step.name, BOUNDS[step.name]
        share = argument.share if step.share is None else step.share
        problem = self.problem if name == LINKED else self.problem.unlinked
        blocks = self.blocks or self.known.blocks
        known = replace(
            self.known,
            value=self.value,
            blocks=None if blocks is None else problem.own(blocks),
            floor=max((c.value for _, c in self.held if c.checkable or not besides), default=0.0),
        )
        kept: Incumbent[list[Block]] = Incumbent()
        run = kept.told_by(self._shown(self.run.scaled(step.effort)))
        run = run if besides else run.until_gap(self.value, known.floor)
        run.report_progress(name, bound=known.floor)
        told = {"argument": name, "checkable": False}
        if share:
            run = run.part(share, otherwise=self.solver_s)
        started = monotonic()
        try:
            claim = run_with_fallback(
                lambda: argument.function()(problem, known, run),
                self.run.stop,
                lambda: LowerBound(0.0, LIMIT, "stopped"),
            )
            proven = kept.proven(self.value)
            if proven > max(claim.value, known.floor) * (1 + CLOSED):
                claim = replace(claim, value=proven, certificate=told)
        except UsageError as error:
            claim = LowerBound(0.0, REFUSED, str(error))
        except (InfeasibleError, LimitError) as error:
            claim = LowerBound(0.0, FAILED, str(error))
        except UnavailableError as error:
            if self.strict or known.solver != "cbc":
                raise
            claim = LowerBound(0.0, FAILED, str(error))
        seconds = monotonic() - started
        if share:
            self.solver_s = max(self.solver_s - seconds, 0.0)
        if kept.split is not None:
            self._improve(name, kept.split)
        self._take(name, claim, seconds)

    def _shown(self, run: SearchContext) -> SearchContext:
        """The same run, of which is shown what is judged already."""

        def watch(standing: Progress) -> None:
            bound = min(max(standing.bound, self.best()[1].value if self.held else 0.0), self.value)
            self.run.watch(standing._replace(value=self.value, bound=bound))

        return replace(run, watch=watch)

    def _take(self, name: str, claim: LowerBound, seconds: float) -> None:
        """Judge a claim, and keep it if it holds."""
        if claim.blocks is not None:
            self._improve(name, claim.blocks)
        if claim.status != REFUSED and not claim.value <= self.value * (1 + CLOSED):
            claimed, found = (self.run.shown(value, 9) for value in (claim.value, self.value))
            reason = f"it claims {claimed}, but there is a split of {found}"
            claim = LowerBound(0.0, FAILED, reason)
        claim = replace(claim, value=min(claim.value, self.value))
        if claim.status == SOLVED and not claim.value and not claim.reason and self.held:
            claim = replace(claim, reason=f"nothing above {self.best()[0]}")
        if claim.status == FAILED:
            self.run.warn(f"{name} failed: {claim.reason}")
        if claim.status != REFUSED and (claim.value > 0 or not self.held):
            self.held.append((name, claim))
        self.last[name] = self.value, claim
        self.run.report_progress(value=self.value, bound=self.best()[1].value)
        shown = None
        if claim.status in (SOLVED, LIMIT) or (claim.status == FAILED and claim.value > 0):
            shown = max(claim.value, self.held[0][1].value)
        self.tried.append(Trial(name, claim.status, shown, claim.reason, seconds))
        what = claim.status if shown is None else f"{self.run.shown(shown)}, {claim.status}"
        because = f" ({claim.reason})" if claim.reason else ""
        self.run.log(f"{name}: {what}{because}, {seconds:.3f} s")

    def _unlinked_value(self, blocks: Sequence[Block] | None) -> float:
        """Objective of a split where no links are stated; inf: it is not known."""
        if blocks is None or not self.problem.links:
            return inf
        unlinked = self.problem.unlinked
        try:
            return unlinked.value(unlinked.own(blocks))
        except (InfeasibleError, FormatError):
            return inf

    def _improve(self, name: str, blocks: list[Block]) -> None:
        """Take over a better split; claims that it contradicts are dropped."""
        problem = self.problem
        self.most = min(self.most, self._unlinked_value(blocks))
        blocks = problem.own(blocks)
        try:
            if problem.options.memory_model == "peak":
                blocks = with_least_peak(problem.graph, blocks, run=SearchContext(effort=0.0))
            plan = problem.plan(blocks)
        except (InfeasibleError, FormatError):
            return
        weak = VALIDITIES.index(plan.validity) < VALIDITIES.index(self.known.validity)
        if weak or plan.value >= self.value * (1 - ROUNDING):
            return
        self.value, self.blocks, self.found_by = plan.value, blocks, name
        wrong = [n for n, claim in self.held if claim.value > plan.value * (1 + CLOSED)]
        for other in wrong:
            self.run.warn(
                f"{other} failed: it is refuted by a split of {self.run.shown(plan.value, 9)}"
            )
        if wrong:
            self.tried = [
                t._replace(status=FAILED, value=None, reason="refuted by a better split")
                if t.method in wrong
                else t
                for t in self.tried
            ]
            kept = [(n, c) for n, c in self.held if n not in wrong]
            self.held = kept or [("simple", LowerBound(0.0))]
        # What rounding leaves above the new value.
        self.held = [(n, replace(c, value=min(c.value, plan.value))) for n, c in self.held]
