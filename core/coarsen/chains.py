"""Series contraction: what runs strictly one after the other becomes one group."""

from __future__ import annotations

import numpy as np

from dnnp.core.coarsen.merge import NONE, Units
from dnnp.core.model.graph import Floats, Graph

RULE = "chain"


def contract_chains(units: Units, share: Floats, max_share: float = 1.0) -> None:
    """Merge u into v when v is all that reads u and u is all that v waits for.

    Constants and model inputs count for nothing here. Merging changes neither what a chain's
    head waits for nor who reads its tail, so one pass in topological order is a fixpoint.
    Time O(V + E).

    Parameters
    ----------
    units
        The units to merge.
    share
        Share of each node of their graph in the work; f64[n].
    max_share
        Share of the model's work that a chain may hold besides its heaviest unit, so that
        a model that is one long chain can still be split evenly. From 1 on, no limit.
    """
    work = np.bincount(units.label(), weights=share, minlength=len(share)).tolist()
    heaviest = work[:]
    for unit in units.order:
        if units.find(unit) != unit:
            continue
        v = units.consumer(unit)
        if v == NONE or not _waits_only_for(units, v, unit):
            continue
        total, top = work[unit] + work[v], max(heaviest[unit], heaviest[v])
        if (max_share >= 1 or total - top <= max_share) and units.merge(unit, v):
            work[v], heaviest[v] = total, top
            units.rules[v] = RULE


def _waits_only_for(units: Units, consumer: int, unit: int) -> bool:
    """Whether everything `consumer` reads is known in advance, an input, or made by `unit`."""
    allowed = (NONE, unit, consumer)
    return all(units.constant[t] or units.maker(t) in allowed for t in units.reads[consumer])


def work_shares(graph: Graph) -> Floats:
    """Share of each node in the work of the model; f64[n].

    The largest over device classes of its share of the time; for a graph without times, the
    share of the bytes it reads and writes.
    """
    columns = [np.where(np.isfinite(t), t, 0.0) for t in graph.times.values()]
    if not columns:
        touched = np.zeros(graph.n)
        for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
            node = np.repeat(np.arange(graph.n), np.diff(ptr))
            touched += np.bincount(node, weights=graph.tensor_bytes[idx], minlength=graph.n)
        columns = [touched]
    shares = [column / (column.sum() or 1.0) for column in columns]
    return np.max(shares, axis=0)
