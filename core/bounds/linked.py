"""The bound `links`: what a search over order ideals proves that knows the links between stages."""

from __future__ import annotations

from math import frexp

from dnnp.core.bounds.claim import LIMIT, REFUSED, SOLVED, Claim, Known
from dnnp.core.bounds.quantised import SMALLEST
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.ideals.linked import linked_search

BITS = 52
"""Bits of a value in quanta: so many are exact in floating point."""


def linked_bound(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The bound for ordered splits, and the split that is charged least.

    The certificate holds no more than the value: whoever checks it walks the ideals again.
    """
    options = problem.options
    if not problem.links:
        return Claim(0.0, REFUSED, "there are no links")
    if known.validity != "ordered":
        return Claim(0.0, REFUSED, "holds for ordered splits only")
    if options.objective != "throughput":
        return Claim(0.0, REFUSED, f"not for the objective {options.objective}")
    if problem.graph.backward.any():
        return Claim(0.0, REFUSED, "not for graphs with a backward pass")
    if options.max_replicas > 1:
        return Claim(0.0, REFUSED, "does not hold where stages are replicated")
    answer = linked_search(problem, known.value, run)
    if not answer.bound:
        why = "stopped" if run.stop() else "too many ideals and kinds of devices"
        return Claim(0.0, LIMIT, why)
    # Every part of a load is rounded down to quanta there, so that some are lost.
    quantum = 2.0 ** max(frexp(answer.bound)[1] - BITS, SMALLEST)
    lost = 2 * problem.graph.m + problem.graph.n + 4
    units = max(int(answer.bound / quantum) - lost, 0)
    certificate = {"argument": "links", "quantum": quantum, "units": units}
    return Claim(units * quantum, SOLVED, "", certificate, answer.blocks)
