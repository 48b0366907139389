"""Orders of small peak memory: the least on small blocks, bounded and no worse on all others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnnp.core.check.graph import tables_of
from dnnp.core.check.load import peak_memory
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.peak import (
    cuts,
    largest_step,
    peak_bound,
    peak_order,
    steps_of,
    walk,
    walk_given,
    with_least_peak,
)
from dnnp.formats.graph import digest_of, graph_of, units_of
from dnnp.formats.stream import Stream
from support.graphs import header, node, random_stream, tensor, to_bytes
from support.run import dnnp


def graph_from(
    reads: list[list[int]], sizes: list[int], outputs: tuple[int, ...] = (), inputs: int = 0
) -> Graph:
    """Node i reads tensors `reads[i]` and writes tensor `inputs + i`; the first are inputs."""
    return graph_of(stream_from(reads, sizes, outputs, inputs))


def stream_from(
    reads: list[list[int]], sizes: list[int], outputs: tuple[int, ...] = (), inputs: int = 0
) -> Stream:
    tensors: list[dict] = [
        tensor(t, "input" if t < inputs else "activation", size) for t, size in enumerate(sizes)
    ]
    for t in outputs:
        tensors[t]["output"] = True
    nodes = [
        node(i, "Op", tensors_read, [inputs + i], time_s={"dev": 1})
        for i, tensors_read in enumerate(reads)
    ]
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def judged(graph: Graph, nodes: Ints) -> float:
    """Peak of an order by the checker, after seeing that the order is one."""
    place = {v: i for i, v in enumerate(nodes.tolist())}
    for v in nodes.tolist():
        for t in graph.reads(v).tolist():
            assert place.get(int(graph.producer[t]), -1) < place[v]
    return peak_memory(tables_of(graph), nodes.tolist())[1]


def orders(graph: Graph, nodes: list[int]) -> Iterator[list[int]]:
    """All topological orders of some nodes."""
    if not nodes:
        yield []
    for v in nodes:
        if not {int(graph.producer[t]) for t in graph.reads(v)} & set(nodes):
            for rest in orders(graph, [w for w in nodes if w != v]):
                yield [v, *rest]


def regal(seed: int, n: int) -> Graph:
    return graph_of_bytes(
        dnnp("import", "-q", "--synthetic", "--seed", str(seed), "--nodes", str(n)).out
    )


def graph_of_bytes(data: bytes) -> Graph:
    from dnnp.formats.stream import read_bytes

    return graph_of(read_bytes(data))


def random_block(seed: int, most: int) -> tuple[Graph, Ints]:
    """Some nodes of a random graph in its order: stage inputs, outputs, parameters, dead ends."""
    rng = random.Random(f"block {seed}")
    graph = graph_of(random_stream(seed, rng.randint(1, most + 3), params=rng.random() < 0.5))
    keep = rng.choice([0.5, 0.8, 1.0])
    nodes = [v for v in graph.order.tolist() if rng.random() < keep][:most]
    return graph, np.array(nodes or [0], dtype=np.int64)


@settings(max_examples=250)
@given(st.integers(0, 10**6))
def test_small_blocks_have_the_least_peak_of_all_orders(seed: int) -> None:
    graph, nodes = random_block(seed, 7)
    tables = tables_of(graph)
    least = min(peak_memory(tables, order)[1] for order in orders(graph, nodes.tolist()))
    before = judged(graph, nodes)
    found = peak_order(graph, nodes)
    assert found.bound_bytes <= found.peak_bytes == least == judged(graph, found.nodes)
    assert sorted(found.nodes.tolist()) == sorted(nodes.tolist())
    if least == before:
        assert found.nodes.tolist() == nodes.tolist()


@settings(max_examples=40)
@given(st.integers(0, 10**6))
@example(5)
def test_bounds_and_walks_agree_with_the_checker(seed: int) -> None:
    graph, nodes = random_block(seed, 12)
    steps, start = steps_of(graph, nodes)
    during = walk(steps, start, np.arange(len(nodes)))[1]
    np.testing.assert_allclose(during, walk_given(steps, start)[1], rtol=1e-12, atol=1e-9)
    assert max(start, during.max()) == judged(graph, nodes)
    found = peak_order(graph, nodes)
    assert largest_step(steps, start) <= peak_bound(steps, start) <= found.bound_bytes
    assert found.bound_bytes <= found.peak_bytes <= judged(graph, nodes)
    # Nodes at a cut stand at the same place in the order found.
    for place in np.flatnonzero(cuts(steps)).tolist():
        assert found.nodes[place] == nodes[place]


@pytest.mark.parametrize("seed", range(6))
def test_larger_blocks_get_better_and_stay_above_the_bound(seed: int) -> None:
    graph = regal(seed, 70)
    before = judged(graph, graph.order)
    quick, longer = (peak_order(graph, graph.order, SearchContext(effort=e)) for e in (0.01, 0.3))
    for found in (quick, longer):
        assert found.peak_bytes == pytest.approx(judged(graph, found.nodes), rel=1e-12)
        assert found.bound_bytes <= found.peak_bytes <= before
    assert longer.peak_bytes < 0.95 * before
    assert longer.peak_bytes <= quick.peak_bytes * 1.05
    assert max(quick.bound_bytes, longer.bound_bytes) <= longer.peak_bytes


def test_the_same_twice() -> None:
    graph = regal(4, 120)
    first, second = (peak_order(graph, graph.order, SearchContext(effort=0.1)) for _ in range(2))
    assert first.nodes.tolist() == second.nodes.tolist()
    assert first.bound_bytes == second.bound_bytes < first.peak_bytes


@pytest.mark.parametrize("seed", [1, 3])
def test_giants(seed: int) -> None:
    graph = regal(seed, 20_000)
    before = walk_given(*steps_of(graph, graph.order))[1].max()
    found = peak_order(graph, graph.order, SearchContext(effort=0.1))
    steps, start = steps_of(graph, found.nodes)
    assert (steps.maker[steps.reads] < np.repeat(np.arange(graph.n), np.diff(steps.read_ptr))).all()
    assert found.peak_bytes == pytest.approx(walk_given(steps, start)[1].max(), rel=1e-9)
    assert found.bound_bytes <= found.peak_bytes < 0.95 * before


def test_branches_run_one_after_the_other() -> None:
    # Four branches a -> b of sizes 8 -> 1 from one source of size 2, joined at the end. All a's
    # first: 2 + 4 * 8, and 1 of the first b. Branch by branch: 2 + three b's + 8 + 1.
    reads = [[], [0], [0], [0], [0], [1], [2], [3], [4], [5, 6, 7, 8]]
    graph = graph_from(reads, [2, 8, 8, 8, 8, 1, 1, 1, 1, 1])
    assert judged(graph, graph.order) == 34
    found = peak_order(graph, graph.order)
    # The source dies with the last a; the bound knows of it, one a and what that makes.
    assert (found.peak_bytes, found.bound_bytes) == (13, 10)


def test_stage_inputs_are_live_from_the_start_and_outputs_to_the_end() -> None:
    # Inputs of 5 and 7; node 0 reads the first and writes 1, node 1 the second and writes 9.
    graph = graph_from([[0], [1], [2, 3]], [5, 7, 1, 9, 1], inputs=2)
    # The node that makes 9 runs second: 1 + 7 + 9 then, 5 + 7 + 9 first.
    assert peak_order(graph, np.array([1, 0])).nodes.tolist() == [0, 1]
    assert peak_order(graph, np.array([1, 0, 2])).peak_bytes == 17
    kept = graph_from([[0], [1], [2, 3]], [5, 7, 1, 9, 1], (2,), inputs=2)
    assert peak_order(kept, np.array([2])).peak_bytes == 11


def test_chains_and_trifles_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_from([[], [0], [1], [2]], [3, 9, 4, 6])

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be searched")

    monkeypatch.setattr("dnnp.core.split.peak.Segment", refuse)
    found = peak_order(graph, graph.order)
    assert (found.peak_bytes, found.bound_bytes) == (13, 13)
    none = peak_order(graph, np.zeros(0, dtype=np.int64))
    assert (none.peak_bytes, none.bound_bytes, len(none.nodes)) == (0, 0, 0)
    zero = graph_from([[], []], [0, 0])
    assert peak_order(zero, zero.order).peak_bytes == 0


def test_stopped_at_once() -> None:
    graph = regal(2, 60)
    found = peak_order(graph, graph.order, SearchContext(interrupted=lambda: True))
    assert found.nodes.tolist() == graph.order.tolist()
    assert 0 < found.bound_bytes < found.peak_bytes


def test_blocks_and_plans_carry_the_bound() -> None:
    stream = random_stream(11, 14, params=True)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    device = DeviceClass("dev", count=2)
    halves = np.array_split(graph.order, 2)
    blocks = [Block(half, device) for half in halves]
    better, kept = (with_least_peak(graph, blocks, keep=keep) for keep in (False, True))
    assert [b.nodes.tolist() for b in kept] == [half.tolist() for half in halves]
    digest = digest_of(graph, units)
    plans = [
        make_plan(SplitProblem(graph, units, (device,), CostOptions()), b, digest=digest)
        for b in (blocks, kept, better)
    ]
    plain, known, best = (plan.stages for plan in plans)
    for a, b, c in zip(plain, known, best, strict=True):
        assert a.peak_bound_bytes is None
        assert b.peak_bound_bytes == c.peak_bound_bytes <= c.peak_bytes <= b.peak_bytes
        assert a.peak_bytes == b.peak_bytes
        assert b.memory_bytes - c.memory_bytes == b.peak_bytes - c.peak_bytes
    options = CostOptions(memory_model="sum")
    summed = make_plan(SplitProblem(graph, units, (device,), options), kept, digest=digest)
    assert summed.stages[0].peak_bytes is summed.stages[0].peak_bound_bytes is None


def test_partition_stores_the_order_and_its_bound() -> None:
    reads = [[], [0], [0], [0], [0], [1], [2], [3], [4], [5, 6, 7, 8]]
    stream = stream_from(reads, [2, 8, 8, 8, 8, 1, 1, 1, 1, 1])
    # Groups may be interleaved.
    stream.records["group"] = [
        {"type": "group", "id": i, "name": f"g{i}", "nodes": nodes}
        for i, nodes in enumerate([[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]])
    ]
    asked = ("partition", "-k", "1", "--memory-model", "peak")
    result = dnnp(*asked, stdin=to_bytes(stream))
    (stage,) = result.records("stage")
    assert stage["peak_bytes"] == stage["memory_bytes"] == 13
    assert stage["peak_bound_bytes"] == 10
    assert dnnp("check", stdin=result.out).status == 0


def test_a_given_split_keeps_its_order(tmp_path) -> None:
    reads = [[], [0], [0], [0], [0], [1], [2], [3], [4], [5, 6, 7, 8]]
    stream = stream_from(reads, [2, 8, 8, 8, 8, 1, 1, 1, 1, 1])
    file = tmp_path / "split.json"
    file.write_text("[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]")
    result = dnnp("partition", "-k", "1", "--eval", str(file), stdin=to_bytes(stream))
    (stage,) = result.records("stage")
    assert stage["nodes"] == list(range(10))
    assert (stage["peak_bytes"], stage["peak_bound_bytes"]) == (34, 10)
    assert dnnp("check", stdin=result.out).status == 0
