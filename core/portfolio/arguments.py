"""Arguments for lower bounds by name.

Each is a function of the problem, of what is known and of the run, and makes a claim. Its module is
imported when it is tried.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, cast

from dnnp.core.bound.claim import Claim
from dnnp.core.bound.known import Known
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.run import Run


class Argument(NamedTuple):
    """One way to prove a bound."""

    where: str
    """Its function, as `module:name` below `dnnp.core`."""
    share: float = 0.0
    """It solves linear or integer programs, in this share of the time left for them."""

    def prove(self, problem: SplitProblem, known: Known, run: Run) -> Claim:
        """What it claims; raises what its function does."""
        module, name = self.where.split(":")
        function = getattr(import_module(f"dnnp.core.{module}"), name)
        return cast(Claim, function(problem, known, run))


BOUNDS = {
    "simple": Argument("bound.simple:simple_claim"),
    "chain": Argument("bound.chain:chain_claim"),
    "node-cut": Argument("bound.node_cut:node_cut_claim"),
    "ideal": Argument("portfolio.ideal:ideal_claim"),
    "pairs": Argument("bound.pairs:pairs_claim"),
    "same-block": Argument("bound.same_block:same_block_claim", 0.5),
    "cover": Argument("bound.cover:cover_claim", 0.7),
    "no-dag": Argument("bound.hierarchy:no_dag_bound", 0.5),
    "no-io": Argument("bound.hierarchy:no_io_bound", 0.5),
    "bottleneck": Argument("bound.hierarchy:bottleneck_bound", 0.3),
    "guess": Argument("bound.hierarchy:guess_bound", 0.5),
    "exact": Argument("bound.exact:exact_bound", 1.0),
}
"""Name -> argument."""
