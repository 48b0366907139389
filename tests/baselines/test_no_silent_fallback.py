"""No baseline for throughput turns into another one without a word."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.baselines import local_search as local_search_module
from dnnp.core.baselines import pipedream as pipedream_module
from dnnp.core.baselines.blocks import greedy
from dnnp.core.baselines.local_search import local_search
from dnnp.core.baselines.partitioners import PROGRAMS, metis, part_graph, scotch, tell_what_is_left
from dnnp.core.baselines.pipedream import pipedream
from dnnp.core.cost.latency import latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency import solve as latency
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext, Solution
from dnnp.core.split.auto import solve
from support.graphs import random_stream, to_bytes
from support.problems import chain, problem_of
from support.run import dnnp

DEV = DeviceClass("dev", count=2)


def heard(said: list[str]) -> SearchContext:
    """A run whose warnings are kept."""
    return SearchContext(warn=said.append)


def of(problem: SplitProblem, **options: object) -> SplitProblem:
    """The same under other options."""
    return problem.with_options(replace(problem.options, **options))  # type: ignore[arg-type]


def holding(times: tuple[float, ...], room: float) -> SplitProblem:
    """A chain of nodes of 2 bytes each, on two devices with so much room."""
    graph = replace(chain(*times), node_bytes=np.full(len(times), 2.0))
    return problem_of(graph, replace(DEV, memory_bytes=room), memory_model="sum")


def test_greedy_fills_up_where_equal_shares_do_not_fit() -> None:
    said: list[str] = []
    times = 4.0, 1.0, 1.0, 1.0, 1.0
    greedy(holding(times, room=8.0), MethodOptions(), heard(said))
    assert said == []
    found = greedy(holding(times, room=6.0), MethodOptions(), heard(said))
    assert [len(block.nodes) for block in found.blocks] == [3, 2]
    assert said == ["greedy: equal shares of the work do not fit; devices are filled up instead"]


def test_the_published_greedy_only_fills_up() -> None:
    said: list[str] = []
    found = greedy(holding((1.0,) * 4, room=6.0), MethodOptions(order="published"), heard(said))
    assert [len(block.nodes) for block in found.blocks] == [3, 1]
    assert said == []


def test_max_load_that_is_not_proven_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CostOptions(objective="latency", execution="blocks", memory_model="sum")
    cpu = DeviceClass("cpu", "cpu", 1)
    whole = problem_of(chain(1.0, 2.0, 3.0), DEV, cpu).with_options(options)
    problem, said = latency_problem(whole), list[str]()
    found = latency.max_load(problem, MethodOptions(method="max-load"), heard(said))
    assert (found.method, said) == ("", [])

    def unproven(problem: SplitProblem, asked: MethodOptions, run: SearchContext) -> Solution:
        return replace(solve(problem, asked, run), bound=0.5, method="heuristic")

    monkeypatch.setattr(latency, "solve", unproven)
    found = latency.max_load(problem, MethodOptions(method="max-load"), heard(said))
    assert found.method == "heuristic"
    assert len(said) == 1
    assert "is not proven least (0.5)" in said[0]


def test_max_load_has_no_other_order() -> None:
    words = ("-k", "2", "--objective", "latency", "--method", "max-load", "--order", "dfs")
    done = dnnp("partition", *words, stdin=to_bytes(random_stream(1, 4)))
    assert done.status == UsageError.exit_status
    assert "method max-load knows --order published, not dfs" in done.err


def test_greedy_of_operators_has_no_order() -> None:
    words = ("-k", "2", "--objective", "latency", "--execution", "operators", "--method", "greedy")
    done = dnnp("partition", *words, "--order", "dfs", stdin=to_bytes(random_stream(1, 4)))
    assert done.status == UsageError.exit_status
    assert "are for --execution blocks" in done.err


def test_local_search_that_is_cut_short_says_so() -> None:
    said: list[str] = []
    problem = of(problem_of(chain(1.0, 2.0, 3.0), DEV), memory_model="sum")
    local_search(problem, MethodOptions(), heard(said))
    assert said == []
    local_search(problem, MethodOptions(), replace(heard(said), interrupted=lambda: True))
    assert said == ["local-search: stopped after 1 of 10 restarts"]


def test_local_search_that_sums_memory_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `peak`, where the only optimum of the first round does not fit."""
    fits = iter([False])
    monkeypatch.setattr(local_search_module, "_fits", lambda *_: next(fits, True))
    said: list[str] = []
    problem = problem_of(chain(1.0, 2.0, 3.0), DEV, memory_model="peak")
    local_search(problem, MethodOptions(), heard(said), restarts=1)
    assert said == ["local-search: no local optimum fits; again, with memory summed up"]


def test_pipedream_without_gpipe_says_so() -> None:
    said: list[str] = []
    problem = problem_of(chain(1.0, 2.0), DEV)
    pipedream(problem, MethodOptions(), heard(said))
    assert said == []
    pipedream(of(problem, objective="gpipe"), MethodOptions(), heard(said))
    assert said == ["pipedream: plans for the largest load, whatever gpipe would have"]


def test_pipedream_that_is_stopped_says_what_it_left_out() -> None:
    said: list[str] = []
    problem = of(problem_of(chain(1.0, 2.0), DEV), max_replicas=2)
    pipedream(problem, MethodOptions(), replace(heard(said), interrupted=lambda: True))
    assert said == [
        "pipedream: stopped before all orders of its chain were tried",
        "pipedream: stopped before replicas and clusters were tried",
    ]


def test_pipedream_that_is_left_with_a_slicing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipedream_module, "_longest", lambda problem, clusters: 2)
    monkeypatch.setattr(pipedream_module, "_cut", lambda *_: None)
    said: list[str] = []
    pipedream(
        of(problem_of(chain(1.0, 2.0, 3.0), DEV), max_replicas=2), MethodOptions(), heard(said)
    )
    assert said[1:] == [
        "pipedream: its program found nothing better than a slicing without replicas"
    ]


def test_partitioners_that_have_nothing_to_part_say_so() -> None:
    said: list[str] = []
    problem = problem_of(chain(1.0, 2.0, 3.0), DeviceClass("dev", count=1))
    if any(map(shutil.which, PROGRAMS)):
        scotch(problem, MethodOptions(), heard(said))
    else:
        tell_what_is_left(part_graph(problem), "scotch", heard(said))
    assert said == ["scotch: there is nothing to part, so that it was not run"]


def test_metis_with_a_device_for_each_says_so() -> None:
    pytest.importorskip("pymetis")
    said: list[str] = []
    metis(problem_of(chain(1.0, 2.0), DEV), MethodOptions(), heard(said))
    assert said == ["metis: as many devices as there is to part: each has one, metis was not run"]


def test_partitioners_say_what_a_cpu_has() -> None:
    graph = chain(1.0, 2.0, 3.0)
    times = {name: values.copy() for name, values in graph.times.items()}
    times["dev"][1] = np.inf
    problem = problem_of(replace(graph, times=times), DEV, DeviceClass("cpu", "cpu", 1))
    said: list[str] = []
    tell_what_is_left(part_graph(problem), "scotch", heard(said))
    assert said == ["scotch: a CPU has what no accelerator runs, 1 of 3"]
