"""Orders: Kahn's algorithm with priorities, slicing one order, the theorems, orders from files."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest

from dnnp.core.cost.items import items_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ideals.search import ideal_search
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.decoder import given_order, kahn_with_priorities, prioritised_order
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.orders import read_priorities, read_sequence
from dnnp.formats.stream import Stream
from support.brute import brute_force
from support.cases import Case, random_case
from support.graphs import header, node, random_stream, tensor, to_bytes
from support.problems import priced, problem_of
from support.run import Result, dnnp
from support.slicing import (
    best_cuts,
    optimum_and_priorities,
    random_order_of,
    searched_in_order,
)

CLOSE = {"rel": 1e-9, "abs": 1e-12}


def problem_in(case: Case) -> SplitProblem:
    return case.problem


def sliced(problem: SplitProblem, order) -> float:
    """Value of the best slicing of an order, by the checker; inf if nothing fits."""
    try:
        return priced(problem, best_slicing(problem, order)).value
    except InfeasibleError:
        return math.inf


# Kahn's algorithm with priorities


def test_highest_ready_priority_first_and_ties_by_the_first_item():
    for seed in range(60):
        graph = graph_of(random_stream(seed, 2 + seed % 30))
        tail, head = graph.edges
        rng = np.random.default_rng(seed)
        # Few different priorities, so that there are ties.
        priorities = rng.integers(3, size=graph.n) if seed % 2 else rng.random(graph.n)
        order = kahn_with_priorities(tail, head, priorities)
        assert sorted(order.tolist()) == list(range(graph.n))
        done: set[int] = set()
        for item in order.tolist():
            waiting = set(head[~np.isin(tail, list(done))].tolist())
            ready = [v for v in range(graph.n) if v not in done and v not in waiting]
            assert item == min(ready, key=lambda v: (-priorities[v], v))
            done.add(item)


def test_every_topological_order_has_priorities():
    for seed in range(20):
        case = random_case(seed, 9)
        items = items_of(case.graph, case.units)
        order = random_order_of(case, seed)
        rank = np.argsort(order)
        again = kahn_with_priorities(items.tail, items.head, -rank)
        assert again.tolist() == order.tolist()


def test_equal_priorities_give_the_order_of_the_items():
    for seed in range(20):
        case = random_case(seed, 9)
        items = items_of(case.graph, case.units)
        order = kahn_with_priorities(items.tail, items.head, np.zeros(items.count))
        assert order.tolist() == ORDERS["kahn"](items).tolist()


def test_priorities_that_are_none():
    tail, head = np.array([0, 1]), np.array([1, 2])
    with pytest.raises(UsageError, match="2 priorities are too few"):
        kahn_with_priorities(tail, head, [0.5, 0.5])
    with pytest.raises(UsageError, match="too few"):
        kahn_with_priorities(tail, head, [])
    with pytest.raises(UsageError, match="too few"):
        kahn_with_priorities(tail, head, np.zeros((3, 1)))
    with pytest.raises(UsageError, match="priority of item 1 is not a number"):
        kahn_with_priorities(tail, head, [0.5, math.nan, math.nan])
    assert kahn_with_priorities(tail, head, [-math.inf, 0.0, math.inf]).tolist() == [0, 1, 2]
    none = np.zeros(0, dtype=np.int64)
    assert kahn_with_priorities(none, none, []).tolist() == []


@pytest.mark.parametrize("name", ORDERS)
def test_named_orders_are_topological(name):
    for seed in range(40):
        case = random_case(seed, 12)
        items = items_of(case.graph, case.units)
        order = ORDERS[name](items)
        assert sorted(order.tolist()) == list(range(items.count))
        place = np.argsort(order)
        assert (place[items.tail] < place[items.head]).all()


# Slicing one order


@pytest.mark.parametrize("start", [0, 75])
def test_slicing_equals_all_cuts_and_the_ideal_search_of_that_order(start):
    for seed in range(start, start + 75):
        case = random_case(seed, 8, max_replicas=1, objective="throughput")
        order = random_order_of(case, seed)
        expected = best_cuts(case, order)
        assert sliced(problem_in(case), order) == pytest.approx(expected, **CLOSE), seed
        assert searched_in_order(case, order) == pytest.approx(expected, **CLOSE), seed


def test_priorities_of_an_optimal_split_recover_it():
    """MTPP Theorem 3.4."""
    feasible = 0
    for seed in range(64):
        case = random_case(
            seed, 8, max_replicas=1, objective="throughput", training=False, memory_model="sum"
        )
        optimum, priorities = optimum_and_priorities(case)
        if priorities is None:
            continue
        feasible += 1
        order = prioritised_order(case.problem, priorities)
        assert sliced(problem_in(case), order) == pytest.approx(optimum, **CLOSE), seed
    assert feasible >= 60


# Worst cases


def worst_case(k: int, epsilon: float, edge: float | None) -> tuple[SplitProblem, np.ndarray]:
    """The graph of MTPP Lemma 3.5 and its bad order of the items.

    Nodes 0..k-1 are heavy, k..2k-1 light; `edge` is the weight of the edge from 0 to k.
    """
    tensors = [tensor(v, "activation", edge or 0.0) for v in range(2 * k)]
    reads = {k: [0]} if edge is not None else {}
    nodes = [
        node(v, "Op", reads.get(v, []), [v], time_s={"dev": 1 - epsilon if v < k else epsilon})
        for v in range(2 * k)
    ]
    graph = graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))
    device = DeviceClass("dev", count=k, bandwidth_bytes_per_s=1.0)
    problem = problem_of(graph, device, memory_model="sum")
    return problem, items_in(problem, [*range(k), *range(2 * k - 1, k - 1, -1)])


def items_in(problem: SplitProblem, nodes: list[int]) -> np.ndarray:
    return problem.items.label[nodes]


def optimum(problem: SplitProblem) -> float:
    return ideal_search(problem).value


@pytest.mark.parametrize("k", range(2, 7))
def test_an_order_can_be_k_times_the_optimum(k):
    """MTPP Lemma 3.5."""
    problem, order = worst_case(k, 1 / 8, 10.0 * k)
    assert optimum(problem) == pytest.approx(1.0)
    assert sliced(problem, order) == pytest.approx(k)
    good = [v for i in range(k) for v in (i, k + i)]
    assert sliced(problem, items_in(problem, good)) == pytest.approx(1.0)


@pytest.mark.parametrize("k", range(2, 7))
def test_heavy_nodes_first_are_almost_twice_the_optimum(k):
    """MTPP Remark A.1: however the heavy nodes are ordered, and the light ones after them."""
    problem, order = worst_case(k, 1 / (k + 1), None)
    assert optimum(problem) == pytest.approx(1.0)
    assert sliced(problem, order) == pytest.approx(2 * k / (k + 1))
    rng = np.random.default_rng(k)
    for _ in range(5):
        nodes = [*rng.permutation(k).tolist(), *(k + rng.permutation(k)).tolist()]
        assert sliced(problem, items_in(problem, nodes)) == pytest.approx(2 * k / (k + 1))


def test_the_optimum_of_the_worst_cases_by_brute_force():
    for k in (2, 3):
        for edge in (10.0 * k, None):
            problem, _ = worst_case(k, 1 / (k + 1), edge)
            assert brute_force(problem)[0] == pytest.approx(1.0)


# Orders that are given


def colored(reads: list[list[int]], colors: dict[int, int], factor: int = 1) -> Graph:
    """Node v reads what nodes `reads[v]` make; its id is `factor` times as large."""
    tensors = [tensor(v, "activation", 1) for v in range(len(reads))]
    nodes = []
    for v, inputs in enumerate(reads):
        fields = {"color": colors[v]} if v in colors else {}
        nodes.append(node(factor * v, "Op", inputs, [v], time_s={"dev": 1.0}, **fields))
    return graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


def diamond(*colors: tuple[int, int]) -> Graph:
    """Node 0 is read by 1 and 2, which 3 reads; unit ids are 10 times as large."""
    return colored([[], [0], [0], [1, 2]], dict(colors), factor=10)


def test_a_given_order_is_kept():
    graph = diamond()
    units = singletons(graph)
    assert given_order(
        SplitProblem(graph, units, (), CostOptions()), np.array([0, 2, 1, 3])
    ).tolist() == [0, 2, 1, 3]
    with pytest.raises(FormatError) as caught:
        given_order(SplitProblem(graph, units, (), CostOptions()), np.array([0, 3, 1, 2]))
    assert str(caught.value) == ("the order is not topological: 30 comes before 10, which it needs")


def test_a_colour_comes_where_its_first_unit_does_and_what_it_needs_before():
    graph = diamond((0, 5), (3, 5))  # with all between them: one item
    assert given_order(
        SplitProblem(graph, singletons(graph), (), CostOptions()), np.array([0, 2, 1, 3])
    ).tolist() == [0]
    graph = colored([[], [], [1]], {0: 1, 2: 1})
    units = singletons(graph)
    items = items_of(graph, units)
    # Topological, though item {0, 2} would come before 1, which it needs.
    order = given_order(SplitProblem(graph, units, (), CostOptions()), np.array([0, 1, 2]))
    assert order.tolist() == items.label[[1, 0]].tolist()
    with pytest.raises(FormatError, match="2 comes before 1, which it needs"):
        given_order(SplitProblem(graph, units, (), CostOptions()), np.array([0, 2, 1]))


def test_any_order_of_the_graph_may_be_given():
    """Colours and backward passes too."""
    counted = 0
    for seed in range(100):
        case = random_case(seed, 9)
        items = items_of(case.graph, case.units)
        label = case.units.label
        if case.units.g < case.graph.n:
            continue
        keys = np.random.default_rng(seed).random(case.graph.n)
        sequence = label[kahn_with_priorities(*case.graph.edges, keys)]
        order = given_order(case.problem, sequence)
        assert sorted(order.tolist()) == list(range(items.count))
        place = np.argsort(order)
        assert (place[items.tail] < place[items.head]).all()
        if items.count == case.graph.n and not case.graph.backward.any():
            assert order.tolist() == items.label[sequence].tolist()
            counted += 1
            continue
        ordered = items_of(case.graph, case.units).order
        assert len(ordered) == len(order)
    assert counted > 20


def test_priorities_of_a_colour_are_its_largest():
    graph = diamond((1, 1), (2, 1))
    order = prioritised_order(
        SplitProblem(graph, singletons(graph), (), CostOptions()), np.array([0.0, 0.1, 0.2, 0.9])
    )
    assert order.tolist() == [0, 1, 2]
    nodes = [node(v, "Op", [], [], time_s={"dev": 1.0}) for v in range(3)]
    nodes[0]["color"] = nodes[2]["color"] = 1
    graph = graph_of(Stream(header=header(), records={"tensor": [], "node": nodes}))
    units = singletons(graph)
    items = items_of(graph, units)
    for priorities, first in (([0, 1, 2], 0), ([0, 1, 0.5], 1)):
        order = prioritised_order(
            SplitProblem(graph, units, (), CostOptions()), np.array(priorities, dtype=float)
        )
        assert order[0] == items.label[first]


# Files


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[30, 10", "F.json:1: not JSON"),
        ("", "F.json:1: not JSON"),
        ('{"order": []}', "F.json: not a JSON list"),
        ("[10, 20]", "F.json: the order lacks 30"),
        ("[10, 20, 30, 40]", "F.json: 40 is no id of a unit"),
        ("[10, 20, 20]", "F.json: 20 is in the order twice"),
        ("[10, 20, 30, 30]", "F.json: 30 is in the order twice"),
        ('[10, 20, "30"]', "F.json: '30' is no id of a unit"),
        ("[10, 20, 30.0]", "F.json: 30.0 is no id of a unit"),
        ("[10, 20, true]", "F.json: true is no id of a unit"),
        ("[10, 20, null]", "F.json: null"),
        ("[10, 20, [30]]", r"F.json: \[30\] is no id of a unit"),
        (f"[10, 20, {10**300}]", "F.json: 1000.* is no id of a unit"),
    ],
)
def test_sequences_that_are_none(text, fault):
    with pytest.raises(FormatError, match=f"^{fault}") as caught:
        read_sequence(text.encode(), "F.json", np.array([10, 20, 30]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[0.5, ", "F.json:1: not JSON"),
        ("3", "F.json: not a JSON list"),
        ("[0.5, 1]", "F.json: 2 priorities for 3 units"),
        ("[0.5, 1, 2, 3]", "F.json: 4 priorities for 3 units"),
        ("[0.5, 1, NaN]", "F.json: priority 2 is .*, not a number"),
        ('[0.5, "1", 2]', "F.json: priority 1 is '1', not a number"),
        ("[true, 1, 2]", "F.json: priority 0 is true, not a number"),
        ("[0.5, 1, null]", "F.json: priority 2 is null.*, not a number"),
        ("[0.5, [1], 2]", r"F.json: priority 1 is \[1\], not a number"),
        (f"[0.5, 1, {10**400}]", "F.json: priority 2 is 1000.*, not a number"),
    ],
)
def test_priorities_in_a_file_that_are_none(text, fault):
    with pytest.raises(FormatError, match=f"^{fault}") as caught:
        read_priorities(text.encode(), "F.json", 3)
    assert "\n" not in str(caught.value)


def test_files_that_are_fine():
    ids = np.array([10, 20, 30])
    assert read_sequence(b"[30, 10, 20]", "F.json", ids).tolist() == [2, 0, 1]
    assert read_sequence(b"[]", "F.json", ids[:0]).tolist() == []
    assert read_priorities(b"[1, -2.5, 1e-3]", "F.json", 3).tolist() == [1.0, -2.5, 0.001]


# The command


@pytest.fixture
def graph_file(tmp_path):
    """A random graph of 12 nodes."""
    path = tmp_path / "graph.dnnp"
    path.write_bytes(to_bytes(random_stream(4, 12)))
    return path


def partition(path, *arguments: object) -> Result:
    return dnnp("partition", path, "-k", "3", *map(str, arguments))


def refused(result: Result, status: int, *words: str) -> None:
    """One clear line, nothing on stdout."""
    assert result.status == status, result.err
    assert result.out == b""
    assert result.err.count("\n") == 1
    assert result.err.startswith("dnnp-partition: ")
    assert all(word in result.err for word in words), result.err


def test_slicing_a_sequence(graph_file, tmp_path):
    graph = graph_of(random_stream(4, 12))
    keys = np.random.default_rng(0).random(12)
    sequence = kahn_with_priorities(*graph.edges, keys)
    file = tmp_path / "order.json"
    file.write_text(json.dumps(sequence.tolist()))
    result = partition(graph_file, "--method", "slice", "--sequence", file)
    assert result.status == 0, result.err
    nodes = [v for stage in result.records("stage") for v in stage["nodes"]]
    assert nodes == sequence.tolist()
    plan = result.one("plan")
    assert (plan["method"], plan["validity"]) == ("slice", "ordered")
    device = DeviceClass("dev", count=3)
    case = Case(
        0, graph, singletons(graph), (device,), CostOptions(memory_model=plan["memory_model"])
    )
    assert plan["value"] == pytest.approx(best_cuts(case, sequence))

    file.write_text(json.dumps(keys.tolist()))
    again = partition(graph_file, "--method", "slice", "--priorities", file)
    assert again.status == 0, again.err
    assert again.records("stage") == result.records("stage")


def test_sequences_and_priorities_that_are_refused(graph_file, tmp_path):
    graph = graph_of(random_stream(4, 12))
    tail, head = graph.edges
    file = tmp_path / "order.json"
    order = graph.order.tolist()
    swapped = [{int(tail[0]): int(head[0]), int(head[0]): int(tail[0])}.get(v, v) for v in order]
    bad = {
        "--sequence": [(order[:-1], "lacks"), ([*order, 99], "99"), (swapped, "not topological")],
        "--priorities": [([0.5] * 11, "11 priorities for 12 units"), ([0.5] * 13, "13 priorities")],
    }
    for option, contents in bad.items():
        for content, words in contents:
            file.write_text(json.dumps(content))
            result = partition(graph_file, "--method", "slice", option, file)
            refused(result, 3, words)
        file.write_text("[1,")
        refused(partition(graph_file, "--method", "slice", option, file), 3, str(file), "not JSON")
        refused(partition(graph_file, option, file), 2, "--method slice")
        missing = tmp_path / "missing"
        refused(partition(graph_file, "--method", "slice", option, missing), 1, str(missing))
    file.write_text(json.dumps(swapped))
    result = partition(graph_file, "--method", "slice", "--sequence", file)
    named = re.search(r"(\d+) comes before (\d+), which it needs", result.err)
    assert named is not None
    edges = set(zip(tail.tolist(), head.tolist(), strict=True))
    first, needed = map(int, named.groups())
    assert (needed, first) in edges
    assert swapped.index(first) < swapped.index(needed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--population", "1"), ("population", "1")),
        (("--population", "0"), ("--population",)),
        (("--generations", "0"), ("--generations",)),
        (("--elite", "0"), ("elite",)),
        (("--elite", "1"), ("elite",)),
        (("--mutants", "1"), ("mutants",)),
        (("--elite", "0.6", "--mutants", "0.6"), ("elite", "mutants")),
        (("--bias", "1.5"), ("--bias",)),
        (("--bias", "nan"), ("--bias",)),
        (("--samples", "0"), ("--samples",)),
    ],
)
def test_evolutions_that_are_refused(graph_file, arguments, words):
    result = partition(graph_file, "--method", "brkga", *arguments)
    assert (result.status, result.out) == (2, b"")
    assert all(word in result.err for word in words), result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("method", ["random", "brkga", "mla", "mla-weighted", "heuristic", "auto"])
def test_no_time_at_all_gives_the_first_slicing(method, graph_file):
    first = partition(graph_file, "--method", "slice", "--time-limit", "0")
    result = partition(graph_file, "--method", method, "--time-limit", "0")
    assert result.status == 0, result.err
    assert result.one("plan")["value"] <= first.one("plan")["value"]
    assert dnnp("check", stdin=result.out).status == 0


@pytest.mark.parametrize("method", ["random", "brkga", "mla", "mla-weighted", "heuristic"])
def test_searches_over_orders_on_the_command_line(method, graph_file):
    arguments = ("--method", method, "--seed", "3", "--effort", "0.1")
    result = partition(graph_file, *arguments)
    assert result.status == 0, result.err
    plan = result.one("plan")
    assert (plan["method"], plan["validity"]) == (method, "ordered")
    assert partition(graph_file, *arguments).out == result.out
    done = dnnp("check", stdin=result.out)
    assert done.status == 0, done.err


def test_stages_follow_the_order():
    """The blocks of a slicing come in pipeline order."""
    for seed in range(10):
        case = random_case(seed, 9, training=False, limited=False, max_replicas=1)
        order = random_order_of(case, seed)
        place = np.argsort(order)[items_of(case.graph, case.units).label]
        blocks = best_slicing(problem_in(case), order)
        spans = [(place[b.nodes].min(), place[b.nodes].max()) for b in blocks]
        assert all(before[1] < after[0] for before, after in pairwise(spans))
