"""Cuts of models into timed parts, and times of their units."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from dnnp.core.runtime.measure_in_situ import (
    SEGMENTS,
    Part,
    coarser_cuts,
    intervals,
    order_of,
    parts_of,
    parts_of_nodes,
    slices,
    unit_times,
)
from support.split_models import make, value

WEIGHTS = st.lists(st.floats(0, 1e3), min_size=1, max_size=30)


def dag(edges: list[tuple[int, int]], count: int):
    """A model with an edge from node i to node j for each pair."""
    nodes = [
        helper.make_node("Sum", ["x", *(f"t{i}" for i, j in edges if j == v)], [f"t{v}"])
        for v in range(count)
    ]
    outputs = [value(f"t{v}") for v in range(count)]
    return make(helper.make_graph(nodes, "g", [value("x")], outputs))


@given(st.data())
def test_orders_are_topological(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = [(i, j) for i, j in data.draw(st.lists(pair, max_size=20)) if i < j]
    # Units are single nodes, named in any order.
    named = data.draw(st.permutations(range(count)))
    position = {v: u for u, v in enumerate(named)}
    order = order_of(dag(edges, count), [[v] for v in named])
    assert sorted(order) == list(range(count))
    assert all(order.index(position[i]) < order.index(position[j]) for i, j in edges)


def test_a_branch_ends_before_the_next_one_begins() -> None:
    # Two towers, listed in turn, and what joins them.
    edges = [(0, 2), (2, 4), (1, 3), (3, 5), (4, 6), (5, 6)]
    order = order_of(dag(edges, 7), [[6], [5], [4], [3], [2], [1], [0]])
    nodes = [6 - u for u in order]
    assert nodes in ([0, 2, 4, 1, 3, 5, 6], [1, 3, 5, 0, 2, 4, 6])


def test_units_in_a_circle_are_all_there() -> None:
    assert sorted(order_of(dag([(0, 1), (1, 2)], 3), [[0, 2], [1]])) == [0, 1]


@given(WEIGHTS, st.integers(1, 10))
def test_slices_are_even(weights: list[float], count: int) -> None:
    order = list(range(len(weights)))[::-1]
    found = slices(order, np.array(weights), count)
    assert [u for piece in found for u in piece] == order
    assert 1 <= len(found) <= count
    assert all(found)
    # No piece is heavier than its share and the heaviest of its units.
    for piece in found:
        most = math.fsum(weights) / count + max(weights[u] for u in piece)
        assert math.fsum(weights[u] for u in piece) <= most * (1 + 1e-9)


def test_no_segment_is_too_short_to_be_timed() -> None:
    (one,) = parts_of(range(10), np.full(10, 1e-6), 1)
    assert one.segments == (tuple(range(10)),)
    two = parts_of(range(100), np.full(100, 1e-3), 2)
    assert [len(part.segments) for part in two] == [SEGMENTS, SEGMENTS]
    assert [u for part in two for u in part.units] == list(range(100))


def test_fewer_borders() -> None:
    parts = [Part(((2, 0), (1,))), Part(((3,),))]
    same, plain, whole = coarser_cuts(parts)
    assert same == parts
    assert plain == [Part(((2, 0, 1),)), Part(((3,),))]
    assert whole == [Part(((2, 0, 1, 3),))]
    assert parts_of_nodes(parts, [[5], [9, 8], [1], [2, 3]]) == [
        Part(((1, 5), (9, 8))),
        Part(((2, 3),)),
    ]


def test_shares_by_hand() -> None:
    parts = [Part(((0, 1), (2,))), Part(((4, 3),))]
    # Segments of the first part took 3 and 1 s where it took 8 s; units 1 : 2, and 1 : 3.
    times = unit_times(np.array([1.0, 2.0, 9.0, 1.0, 3.0, 7.0]), parts, [8.0, 2.0], [3.0, 1.0, 2.0])
    assert times == pytest.approx([2.0, 4.0, 2.0, 0.5, 1.5, 7.0])
    found = intervals(6, parts, [0.03, 0.01], [0.04, 0.0, 0.02])
    assert found == pytest.approx([0.05, 0.05, 0.03, 0.01, 0.01, 0.0])


def test_what_took_nothing_alone_shares_alike() -> None:
    assert unit_times(np.zeros(2), [Part(((0,), (1,)))], [4.0], [0.0, 0.0]).tolist() == [2.0, 2.0]
    assert unit_times(np.zeros(2), [Part(((0, 1),))], [4.0], [4.0]).tolist() == [2.0, 2.0]


@given(WEIGHTS, st.integers(1, 4), st.randoms())
def test_sums_are_those_of_the_parts(weights: list[float], count: int, random) -> None:
    alone = np.array(weights) * 1e-3
    parts = parts_of(range(len(alone)), alone, count)
    part_s = [random.random() for _ in parts]
    segment_s = [random.random() for part in parts for _ in part.segments]
    times = unit_times(alone, parts, part_s, segment_s)
    for part, whole_s in zip(parts, part_s, strict=True):
        assert times[list(part.units)].sum() == pytest.approx(whole_s)
    for a, b in pairwise(parts[0].segments[0]):
        # Units of a segment keep their ratio.
        assert times[a] * alone[b] == pytest.approx(times[b] * alone[a])
