"""METIS through the package pymetis: k parts with balanced work and a small cut."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.parts import part_graph, split_of_parts
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.plan import Block


def metis(problem: SplitProblem, seed: int = 0) -> list[Block]:
    """Split with METIS; the parts need be neither contiguous nor within the memory.

    Raises
    ------
    UnavailableError
        The package pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError:
        raise UnavailableError(
            "method metis needs the package pymetis: pip install 'dnnp[metis]'"
        ) from None
    weighted = part_graph(problem)
    part = np.arange(weighted.vertices, dtype=np.int64)
    if weighted.parts < weighted.vertices:
        _, found = pymetis.part_graph(
            weighted.parts,
            pymetis.CSRAdjacency(weighted.ptr, weighted.neighbors),
            vweights=weighted.weights,
            eweights=weighted.edge_weights,
            options=pymetis.Options(seed=seed),
        )
        part = np.array(found, dtype=np.int64)
    return split_of_parts(problem, weighted, part)
