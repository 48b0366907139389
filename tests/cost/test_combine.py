"""Combination of the parts of a load: one formula, for numbers, arrays and kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dnnp.core.cost.load_formula import (
    COMM,
    ROOM,
    SAFE_ROOM,
    combine,
    combine_arrays,
    load_of,
    share_of,
    shared_load,
)

PARTS = list(itertools.product((0.0, 0.1, 7.3), (0.0, 2.7, np.inf), (0.0, 0.3), (0.0, 1.1)))
"""Times in, of compute, of overflow and out."""


@pytest.mark.parametrize(
    ("comm", "load", "shared"),
    [
        ("sum", 4 + 9 + 1 + 2, (4 + 9 + 1 + 2) / 2 + 5),
        ("overlap", 9, 5),  # max(9, 4 + 1 + 2); synchronising overlaps 9 / 2
        ("duplex", 9, 5),
    ],
)
def test_loads(comm, load, shared):
    assert combine(COMM[comm], 4.0, 9.0, 1.0, 2.0) == load
    assert shared_load(COMM[comm], load, 2, 5.0) == shared


def test_transfers_that_take_longest():
    # overlap: 4 + 1 + 2; duplex: 4 + 1 in, beside 2 out, and the other way round
    assert combine(COMM["overlap"], 4.0, 3.0, 1.0, 2.0) == 7
    assert combine(COMM["duplex"], 4.0, 3.0, 1.0, 2.0) == 5
    assert combine(COMM["duplex"], 1.0, 3.0, 1.0, 4.0) == 4


@pytest.mark.parametrize("comm", COMM.values())
def test_numbers_arrays_and_kernels_agree(comm):
    loads = [combine(comm, *parts) for parts in PARTS]
    assert [load_of(comm, *parts) for parts in PARTS] == loads
    assert combine_arrays(comm, *np.array(PARTS).T).tolist() == loads
    for r, sync in itertools.product((1, 3), (0.0, 0.7)):
        shares = [shared_load(comm, load, r, sync) for load in loads]
        assert [share_of(comm, load, r, sync) for load in loads] == shares


@pytest.mark.parametrize("comm", ["sum", "overlap"])
def test_in_may_hold_out(comm):
    for in_s, compute_s, overflow_s, out_s in PARTS:
        both = combine(COMM[comm], in_s + out_s, compute_s, overflow_s, 0.0)
        assert both == pytest.approx(combine(COMM[comm], in_s, compute_s, overflow_s, out_s))


def test_who_fills_a_capacity_stays_clear_of_the_limit():
    memory = [0.1] * 10_000
    assert sum(memory) != 1000.0  # the order of the additions shows
    assert sum(memory) / ROOM < 1000.0 < sum(memory) * ROOM
    assert 1 < SAFE_ROOM < ROOM
