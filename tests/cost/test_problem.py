"""The problem that travels: what it derives once, remembers, and forgets."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dnnp.core.cost import problem as module
from dnnp.core.cost.items import LinearizedItems, free_items_of, item_choices
from dnnp.core.cost.problem import LINES, SplitProblem, make_line
from dnnp.core.model.plan import without_memory
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.split.slicing.orders import ORDERS
from support.cases import random_case


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> list[SplitProblem]:
    """The problems whose items are laid out, each time they are."""
    seen: list[SplitProblem] = []

    def counted(problem, items, order):
        seen.append(problem)
        return make_line(problem, items, order)

    monkeypatch.setattr(module, "make_line", counted)
    return seen


def fresh(seed: int = 1, **fixed: object) -> SplitProblem:
    """A problem that nothing is known of yet."""
    return random_case(seed, 9, **fixed).problem


def arrays(line: LinearizedItems) -> dict[str, object]:
    """Arrays of the items and of their hypergraph, by name."""
    own = {f.name: getattr(line, f.name) for f in fields(line) if f.name != "nets"}
    return own | {f"nets.{name}": array for name, array in line.nets._asdict().items()}


def test_items_and_lines_are_those_of_the_functions() -> None:
    for seed in range(20):
        problem = fresh(seed)
        choices = item_choices(problem.graph, problem.units)
        free = free_items_of(problem.graph, problem.units)
        assert len(problem.item_choices) == len(choices)
        assert problem.items is problem.item_choices[0]
        for found, expected in zip(
            (*problem.item_choices, problem.free_items), (*choices, free), strict=True
        ):
            assert (found.label == expected.label).all()
            line, again = problem.line(found), make_line(problem, expected, expected.order)
            made, expected_arrays = arrays(line), arrays(again)
            assert made.keys() == expected_arrays.keys() > {"work", "nets.pins"}
            for name, array in made.items():
                assert np.array_equal(array, expected_arrays[name]), name


def test_a_line_is_laid_out_once(laid: list[SplitProblem]) -> None:
    problem = fresh()
    items = problem.items
    first = problem.line()
    assert problem.line(items) is first
    assert problem.line(items, items.order.copy()) is first
    assert len(laid) == 1
    backward = np.arange(items.count)[::-1]
    assert problem.line(problem.free_items, backward) is not first
    assert len(laid) == 2


def test_variants_share_items_and_tell_lines_apart(laid: list[SplitProblem]) -> None:
    problem = fresh(limited=True, memory_mode="hard")
    line = problem.line()
    bare = problem.with_options(without_memory(problem.options))
    more = problem.with_devices(*(replace(d, count=d.count + 1) for d in problem.devices))
    assert bare.items is more.items is problem.items
    assert bare.free_items is problem.free_items
    assert bare.line() is not line
    assert more.line() is not line
    assert len(laid) == 3
    # The same devices and options again are the same line, whichever problem asks.
    assert bare.with_options(problem.options).line() is line
    assert len(laid) == 3
    assert laid == [problem, bare, more]


def test_another_graph_remembers_nothing() -> None:
    problem = fresh()
    line = problem.line()
    other = replace(problem, graph=replace(problem.graph))
    assert other.items is not problem.items
    assert other.line() is not line


def test_only_the_last_lines_are_remembered(laid: list[SplitProblem]) -> None:
    problem = next(p for p in map(fresh, range(99)) if p.free_items.count > LINES)
    items = problem.free_items
    orders = [np.roll(np.arange(items.count), i) for i in range(items.count)]
    lines = [problem.line(items, order) for order in orders]
    assert len(laid) == len(orders)
    assert problem.line(items, orders[-1]) is lines[-1]
    assert problem.line(items, orders[0]) is not lines[0]
    assert len(laid) == len(orders) + 1


def test_lines_of_foreign_items_are_not_remembered(laid: list[SplitProblem]) -> None:
    problem = fresh()
    foreign = replace(problem.items)
    assert problem.line(foreign) is not problem.line(foreign)
    assert len(laid) == 2


def test_solvers_leave_a_line_as_it_is() -> None:
    from dnnp.core.split.auto import solve

    problem = fresh(3, training=False, limited=False, objective="throughput")
    lines = [problem.line(problem.items, make(problem.items)) for make in ORDERS.values()]
    before = [{name: np.copy(array) for name, array in arrays(line).items()} for line in lines]
    for method in ("auto", "anneal", "greedy", "pipedream", "local-search", "heuristic", "ip"):
        solve(problem, MethodOptions(method=method), SearchContext(effort=0.01))
        for line, kept in zip(lines, before, strict=True):
            for name, array in arrays(line).items():
                assert np.array_equal(array, kept[name]), (method, name)
