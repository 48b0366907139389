"""Kernels that turn the formula of the load around agree with it."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

from dnnp.core.cost.load_formula import COMM, OVERLAP, SUM, combine, shared_load
from dnnp.core.parallel.cover import allowed

DRAWN = 2_000


def test_compute_that_a_limit_allows() -> None:
    rng, seen = Random(1), set()
    for _ in range(DRAWN):
        comm, overlap = rng.choice(list(COMM.values())), rng.random() < 0.5
        replicas = rng.choice((1, 2, 4))
        in_s, out_s, sync_s, limit = (float(rng.randrange(12)) for _ in range(4))
        rules = SimpleNamespace(comm=comm, overlap_sync=overlap, slack=0.0)
        most = allowed.py_func(rules, limit, in_s, out_s, sync_s, replicas)
        for compute_s in map(float, range(60)):
            alone = combine(comm, in_s, compute_s, 0.0, out_s)
            load = shared_load(OVERLAP if overlap else SUM, alone, replicas, sync_s)
            assert (load <= limit) == (compute_s <= most)
            seen.add(load <= limit)
    assert seen == {True, False}
