"""The bound `links`: what a search over order ideals proves that knows the links between stages."""

from __future__ import annotations

from dnnp.core.bound.claim import LIMIT, REFUSED, SOLVED, Claim
from dnnp.core.bound.known import Known
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.linked import linked_search
from dnnp.core.model.run import PLAIN, Run


def linked_bound(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The bound, without a certificate, for ordered splits; and the split that is charged least."""
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
    certificate = {"argument": "links", "checkable": False}
    return Claim(answer.bound, SOLVED, "", certificate, answer.blocks)
