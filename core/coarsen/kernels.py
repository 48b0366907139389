"""What runs as one kernel by fusion rules, for prices: units, what formed them, constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.coarsen.coarsen import apply_rules
from dnnp.core.coarsen.merge import Shape, Units
from dnnp.core.model.graph import Bools, Graph, Ints
from dnnp.core.model.rules import RuleSet


def fused_units(
    graph: Graph, shapes: Sequence[Shape], rules: RuleSet
) -> tuple[Ints, tuple[str, ...], Bools]:
    """Units by fusion rules.

    Returns
    -------
    tuple
        Unit of each node, a position of a node, i64[n]; the rule that formed each unit, by
        that position, empty for none; whether each tensor is known before the model runs, bool[m].
    """
    units = Units(graph)
    apply_rules(units, rules, shapes)
    return units.label(), tuple(units.rules), np.array(units.constant, dtype=np.bool_)
