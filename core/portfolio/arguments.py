"""Arguments for lower bounds by name: adapters from `dnnp.core.bound` and the exact searches.

Each is a function of the problem and of what is asked, and makes a claim. Modules are imported
when an argument is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnp.core.bound.claim import FAILED, LIMIT, REFUSED, SOLVED, Claim
from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block

if TYPE_CHECKING:
    from dnnp.core.bound.hierarchy import Call


@dataclass(frozen=True)
class Ask:
    """What is known when an argument starts, and what it may spend."""

    validity: str
    """`ordered`, `convex` or `free`: the splits that the bound must hold for."""
    blocks: Sequence[Block]
    """The best split known."""
    value: float
    """Its objective."""
    floor: float = 0.0
    """The best bound so far."""
    solver: str = "cbc"
    effort: float = 1.0
    """Scales the work of arguments that count it."""
    stop: Callable[[], bool] = lambda: False
    """Asked now and then: whether to return what there is."""
    time_left: Callable[[], float | None] = lambda: None
    """Seconds that are left; None: no limit."""
    tell: Callable[[str], None] = lambda message: None
    """Told what happens on the way."""
    warn: Callable[[str], None] = lambda message: None
    """Told what went wrong without ending the work."""
    runs: Callable[[Sequence[Callable[..., Any]]], None] = lambda kernels: None
    """Told the kernels that run next, which may have to be compiled."""
    progress: Callable[[float], None] = lambda share: None
    """Told the share of a long step that is done."""


class Argument(NamedTuple):
    """One way to prove a bound."""

    prove: Callable[[SplitProblem, Ask], Claim]
    share: float = 0.0
    """It solves integer programs, in this share of the time left for them."""


def _plain(prove: Callable[..., Claim], problem: SplitProblem, ask: Ask) -> Claim:
    """An argument of `core.bound` that takes nothing special."""
    return prove(
        problem,
        validity=ask.validity,
        floor=ask.floor,
        stop=ask.stop,
    )


def _simple(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.simple import simple_claim

    return _plain(simple_claim, problem, ask)


def _chain(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.chain import chain_claim

    return _plain(chain_claim, problem, ask)


def _node_cut(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.flows import max_flow
    from dnnp.core.bound.node_cut import node_cut_claim

    ask.runs([max_flow])
    return _plain(node_cut_claim, problem, ask)


def _pairs(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.pairs import all_pairs, pairs_claim

    ask.runs([all_pairs])
    return _plain(pairs_claim, problem, ask)


def _same_block(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.same_block import same_block_claim

    return same_block_claim(
        problem,
        validity=ask.validity,
        value=ask.value,
        solver=ask.solver,
        time_left=ask.time_left,
        stop=ask.stop,
        tell=ask.tell,
    )


def _ideal(problem: SplitProblem, ask: Ask) -> Claim:
    """The exact search over order ideals; for clusters, the search with contiguous clusters."""
    if ask.validity != "ordered":
        return _only_ordered()
    if problem.clustered:
        return _clusters(problem, ask)
    from dnnp.core.dp.fast import decide_plain
    from dnnp.core.dp.ideal import ideal_search

    better, value = _sliced(problem, ask)
    ask.runs([decide_plain])
    found = ideal_search(
        problem,
        incumbent=value,
        floor=ask.floor,
        effort=ask.effort,
        stop=ask.stop,
        progress=ask.progress,
    )
    better = better if found.blocks is None else found.blocks
    size = f"{found.ideals} ideals" if found.ideals else "too many ideals"
    ask.tell(f"{size}, {found.walked} blocks: {found.value:.6g}, bound {found.bound:.6g}")
    certificate = {
        "argument": "ideal",
        "ideals": found.ideals,
        "walked": found.walked,
        "checkable": False,
    }
    done = found.bound >= found.value * (1 - ROUNDING)
    if found.bound <= ask.floor and not done:
        # The floor is not its own: it has proven nothing above it.
        return Claim(0.0, LIMIT, _why_unfinished(ask, size), certificate, better)
    if done:
        return Claim(found.bound, SOLVED, "", certificate, better)
    return Claim(found.bound, LIMIT, _why_unfinished(ask, size), certificate, better)


def _why_unfinished(ask: Ask, size: str) -> str:
    return "stopped" if ask.stop() else f"{size}, more than the effort allows"


def _sliced(problem: SplitProblem, ask: Ask) -> tuple[list[Block] | None, float]:
    """The best slicing, if it is better than the split known, and the better value of both."""
    from dnnp.core.dp.sweep import sweep_for
    from dnnp.core.portfolio.slices import best_slicing

    if ask.value <= ask.floor * (1 + ROUNDING):
        return None, ask.value
    streamed = problem.options.memory_mode == "overflow"
    ask.runs([sweep_for(problem.devices, streamed=streamed)])
    try:
        blocks = best_slicing(problem, stop=ask.stop)
        value = problem.value(blocks)
    except InfeasibleError:
        return None, ask.value
    return (blocks, value) if value < ask.value * (1 - ROUNDING) else (None, ask.value)


def _clusters(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.dp.segments import probe
    from dnnp.core.portfolio.hierarchy import hierarchy_split

    ask.runs([probe])
    blocks, bound = hierarchy_split(
        problem,
        stop=ask.stop,
        effort=ask.effort,
    )
    certificate = {"argument": "ideal", "clusters": True, "checkable": False}
    return Claim(bound, SOLVED, "", certificate, blocks)


def _only_ordered() -> Claim:
    return Claim(0.0, REFUSED, "holds for ordered splits only")


def _cover(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.cover import cover_claim
    from dnnp.core.bound.prices import best_sets

    ask.runs([best_sets])
    return cover_claim(
        problem,
        validity=ask.validity,
        value=ask.value,
        floor=ask.floor,
        blocks=ask.blocks,
        solver=ask.solver,
        time_left=ask.time_left,
        stop=ask.stop,
        tell=ask.tell,
    )


def _call(problem: SplitProblem, ask: Ask) -> Call:
    """What the hierarchy of integer programs is asked."""
    from dnnp.core.bound.hierarchy import Call

    return Call(
        problem,
        ask.validity,
        solver=ask.solver,
        blocks=ask.blocks,
        value=ask.value,
        floor=ask.floor,
        time_left=ask.time_left,
        stop=ask.stop,
        apart=_apart(problem, ask),
    )


def _apart(problem: SplitProblem, ask: Ask) -> list[tuple[int, int]]:
    """Pairs of units that no stage holds both of in a split that beats the one known."""
    from dnnp.core.bound.apart import pairs_apart

    return pairs_apart(
        problem,
        validity=ask.validity,
        value=ask.value,
    )


def _no_dag(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.hierarchy import no_dag_bound

    return no_dag_bound(_call(problem, ask))


def _no_io(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.hierarchy import no_io_bound

    return no_io_bound(_call(problem, ask))


def _bottleneck(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.hierarchy import bottleneck_bound

    return bottleneck_bound(_call(problem, ask))


def _guess(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.hierarchy import guess_bound

    return guess_bound(_call(problem, ask))


def _exact(problem: SplitProblem, ask: Ask) -> Claim:
    from dnnp.core.bound.exact import exact_bound

    claim = exact_bound(_call(problem, ask))
    if claim.status == FAILED and "too large" in claim.reason:
        return replace(claim, status=LIMIT)  # the solver was not even asked
    return claim


BOUNDS: dict[str, Argument] = {
    "simple": Argument(_simple),
    "chain": Argument(_chain),
    "node-cut": Argument(_node_cut),
    "ideal": Argument(_ideal),
    "pairs": Argument(_pairs),
    "same-block": Argument(_same_block, 0.5),
    "cover": Argument(_cover, 0.7),
    "no-dag": Argument(_no_dag, 0.5),
    "no-io": Argument(_no_io, 0.5),
    "bottleneck": Argument(_bottleneck, 0.3),
    "guess": Argument(_guess, 0.5),
    "exact": Argument(_exact, 1.0),
}
"""Name -> argument."""
