"""METIS through the package pymetis: k parts with balanced work and a small cut."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.parts import part_graph, split_of_parts
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Block, CostOptions


def metis(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
    seed: int = 0,
) -> list[Block]:
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
    problem = part_graph(graph, units, devices, options)
    part = np.arange(problem.vertices, dtype=np.int64)
    if problem.parts < problem.vertices:
        _, found = pymetis.part_graph(
            problem.parts,
            pymetis.CSRAdjacency(problem.ptr, problem.neighbors),
            vweights=problem.weights,
            eweights=problem.edge_weights,
            options=pymetis.Options(seed=seed),
        )
        part = np.array(found, dtype=np.int64)
    return split_of_parts(graph, problem, part, devices)
