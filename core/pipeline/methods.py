"""The names of schedules: what each does, and which function makes it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

_RECIPES = "dnnp.core.pipeline.recipes.classics"


class Method(NamedTuple):
    """A way to make a schedule."""

    what: str
    """In words."""
    function: str
    """`module:function`. A recipe ranks blocks: `f(placement, micro_batches)`, i64[N, k]; a search
    finds a schedule: `f(batch, wanted, run)`, an `Answer` (`core.pipeline.wanted`)."""

    def load(self) -> Any:
        """The function."""
        module, _, name = self.function.partition(":")
        return getattr(import_module(module), name)


SEARCHES = {
    "auto": Method(
        "shortest period, then least memory, then shortest span, each proven where the effort "
        "allows; then a short warm-up and cool-down",
        "dnnp.core.pipeline.auto:auto",
    ),
    "optimal": Method(
        "shortest schedule of N micro-batches; for small N",
        "dnnp.core.pipeline.finish.optimal:shortest_schedule",
    ),
    "tessel": Method(
        "Tessel's search (Algorithm 1), for comparison",
        "dnnp.core.pipeline.tessel.solve:tessel_schedule",
    ),
}
"""By name."""

RECIPES = {
    "sequential": Method("one micro-batch after the other", f"{_RECIPES}:sequential"),
    "gpipe": Method("all forward passes, then all backward passes", f"{_RECIPES}:gpipe"),
    "1f1b": Method(
        "one forward, one backward (PipeDream-flush, DAPPLE)", f"{_RECIPES}:one_f_one_b"
    ),
    "1f1b+": Method(
        "the same, with blocks of several devices beside their neighbours",
        f"{_RECIPES}:one_f_one_b_plus",
    ),
    "interleaved-1f1b": Method(
        "the same with several stages a device (Megatron-LM)", f"{_RECIPES}:interleaved"
    ),
    "chimera": Method("two pipelines of opposite directions (shape X)", f"{_RECIPES}:chimera"),
    "zb-h1": Method(
        "zero bubble: passes that only weights need fill the gaps (--split-backward)",
        f"{_RECIPES}:zb_h1",
    ),
    "inference": Method("forward passes as they come, later stages first", f"{_RECIPES}:inference"),
}
"""By name; searches try them in this order."""

METHODS = SEARCHES | RECIPES
