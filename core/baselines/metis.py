"""METIS through the package pymetis: k parts with balanced work and a small cut."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.blocks import checked
from dnnp.core.baselines.parts import part_graph, split_of_parts, tell_what_is_left
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.run import PLAIN, Run


def metis(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """Split with METIS; the parts need not be contiguous.

    Raises
    ------
    UnavailableError
        The package pymetis is not installed.
    InfeasibleError
        A part is too much for the memory of its device: METIS knows none.
    """
    try:
        import pymetis
    except ImportError:
        raise UnavailableError(
            "method metis needs the package pymetis: pip install 'dnnp[metis]'"
        ) from None
    weighted = part_graph(problem)
    tell_what_is_left(weighted, "metis", run)
    part = np.arange(weighted.vertices, dtype=np.int64)
    if 1 < weighted.vertices <= weighted.parts:
        run.warn("metis: as many devices as there is to part: each has one, metis was not run")
    if weighted.parts < weighted.vertices:
        _, found = pymetis.part_graph(
            weighted.parts,
            pymetis.CSRAdjacency(weighted.ptr, weighted.neighbors),
            vweights=weighted.weights,
            eweights=weighted.edge_weights,
            options=pymetis.Options(seed=run.seed),
        )
        part = np.array(found, dtype=np.int64)
    return checked(problem, split_of_parts(problem, weighted, part))
