"""The linear programs of m-SCT and GETF: their optimum, and what is said where they are not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.baselines.placing import baechi, getf
from dnnp.core.baselines.placing.getf import alike
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.net import edge_moves, mean_times, net_of
from dnnp.core.latency.lists.schedule import memory_limits
from dnnp.core.methods.splits import LATENCY
from dnnp.core.model.errors import LimitError
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.solver.program import Outcome, Program, Sparse
from dnnp.core.solver.slices import ask, ask_sparse
from support.latency_cases import random_problem
from support.placing import layered, problem_of


def least_of(program: Program) -> float:
    """The optimum, by CBC."""
    outcome = ask(program, patience=60.0)
    assert outcome.status == "optimal"
    return outcome.bound


@pytest.mark.parametrize("seed", range(6))
def test_favourites_cost_what_they_cost_row_by_row(seed: int) -> None:
    """The same program, written edge by edge and solved by CBC."""
    problem = layered(40, 2.0, seed)
    work = mean_times(problem.tasks.time)
    tail, head, move = edge_moves(net_of(problem))
    program = Program()
    x = [program.column() for _ in tail]
    start = [program.column(np.inf) for _ in work]
    last = program.column(np.inf, cost=1.0)
    for e, (i, j) in enumerate(zip(tail, head, strict=True)):
        program.row([start[i], start[j], x[e]], [1, -1, move[e]], "<", -work[i])
    for i in range(len(work)):
        program.row([start[i], last], [1, -1], "<", -work[i])
        for ends in (tail, head):
            mine = [x[e] for e in np.flatnonzero(ends == i)]
            if mine:
                program.row(mine, [1.0] * len(mine), ">", len(mine) - 1)
    outcome = ask_sparse(baechi.program_of(work, tail, head, move), patience=60.0)
    scale = np.mean([*work, *move])
    assert outcome.bound * scale == pytest.approx(least_of(program), rel=1e-6)


def shares_by_rows(problem: LatencyProblem) -> float:
    """Optimum of GETF's relaxation, written task by task and solved by CBC."""
    tasks, room = problem.tasks, memory_limits(problem)
    program, last = Program([1.0], [0.0], [np.inf], [False]), 0
    x = [[program.column(float(able)) for able in row] for row in room.able]
    end = [program.column(np.inf) for _ in range(tasks.n)]
    for c in range(len(room.memory)):
        program.row([row[c] for row in x], [1.0] * len(x), "=", 1.0)
    for j, c in enumerate(tasks.together.tolist()):
        on = [d for d in range(len(x)) if room.able[d, c]]
        mine = [x[d][c] for d in on], [tasks.time[d, j] for d in on]
        program.row([*mine[0], end[j]], [*mine[1], -1.0], "<", 0.0)
        program.row([end[j], last], [1.0, -1.0], "<", 0.0)
        for i in tasks.edges[0][tasks.edges[1] == j].tolist():
            program.row([end[i], *mine[0], end[j]], [1.0, *mine[1], -1.0], "<", 0.0)
    for d, row in enumerate(x):
        on = np.flatnonzero(room.able[d]).tolist()
        program.row([*(row[c] for c in on), last], [*room.work[d, on], -1.0], "<", 0.0)
        if np.isfinite(room.limit[d]):
            program.row([row[c] for c in on], [*room.memory[on]], "<", room.limit[d])
    return least_of(program)


@pytest.mark.parametrize("seed", range(12))
def test_shares_cost_what_they_cost_row_by_row(seed: int) -> None:
    """With colours, memory that binds, and devices that cannot run all."""
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 12), colors=seed % 2 == 0, tight=seed % 3 == 0)
    room = memory_limits(problem)
    program, column = getf.program_of(problem, room, integer=False)
    outcome = ask_sparse(program, patience=60.0)
    assert outcome.values is not None
    scale = mean_times(problem.tasks.time).sum() / problem.tasks.n
    assert outcome.bound * scale == pytest.approx(shares_by_rows(problem), rel=1e-6, abs=1e-9)
    share = np.append(outcome.values, 0.0)[column]
    assert share.sum(axis=0) == pytest.approx(np.ones(len(room.memory)))
    assert not share[~room.able].any()


def heads(count: int) -> LatencyProblem:
    """A task, `count` chains of two that are alike, and a task that reads all."""
    edges = [(0, 1 + h) for h in range(count)]
    edges += [(1 + h, 1 + count + h) for h in range(count)]
    edges += [(1 + count + h, 1 + 2 * count) for h in range(count)]
    time = [[1.0, *[2.0] * count, *[3.0] * count, 1.0]] * 2
    return problem_of(time, edges, [1.0] * len(edges))


def test_heads_are_alike() -> None:
    label = alike(heads(5).tasks)
    assert len(set(label.tolist())) == 4
    assert len(set(label[1:6].tolist())) == len(set(label[6:11].tolist())) == 1
    program, column = getf.program_of(heads(5), memory_limits(heads(5)), integer=False)
    assert len(np.unique(column)) == 8
    assert ask_sparse(program, patience=60.0).bound * 27 / 12 == pytest.approx(13.5)
    whole, column = getf.program_of(heads(5), memory_limits(heads(5)), integer=True)
    assert len(np.unique(column)) == 24
    assert whole.integer.sum() == 24


@pytest.mark.parametrize("seed", range(20))
def test_classes_are_equitable(seed: int) -> None:
    """Tasks of a class have as many predecessors and successors in every class."""
    rng = random.Random(seed)
    n = rng.randint(1, 14)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.25]
    time = [[rng.choice([1.0, 2.0]) for _ in range(n)]] * 2
    problem = problem_of(time, pairs, [1.0] * len(pairs))
    label = alike(problem.tasks)

    def around(v: int) -> tuple[object, ...]:
        back = sorted(label[i] for i, j in pairs if j == v)
        return back, sorted(label[j] for i, j in pairs if i == v), time[0][v]

    for u in range(n):
        for v in range(n):
            assert label[u] != label[v] or around(u) == around(v)


def test_tasks_that_share_a_device_are_like_no_other() -> None:
    problem = problem_of([[1.0] * 4] * 2, [], [], colors=[0, 0, 1, 2])
    label = alike(problem.tasks)
    assert len(set(label.tolist())) == 3
    assert label[2] == label[3]


def no_answer(*program: object, **how: object) -> Outcome:
    """The messages of a solver that is stopped."""
    return Outcome("limit")


def told(method: str, problem: LatencyProblem) -> tuple[str, list[str]]:
    """The name in the record, and the warnings."""
    said: list[str] = []
    run = SearchContext(warn=said.append)
    found = LATENCY[method].function("operators")(problem, MethodOptions(method), run)
    assert np.isfinite(problem.value(found.split))
    return found.method, said


def test_favourites_without_their_program_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered(60, 1.0)
    assert told("m-sct", problem) == ("", [])
    edges = len(problem.tasks.edges[0])
    monkeypatch.setattr(baechi, "MOST_EDGES", 3)
    reason = f"{edges} edges are too many for its linear program"
    instead = "what ran instead is m-sct-greedy"
    assert told("m-sct", problem) == ("m-sct-greedy", [f"m-sct: {reason}; {instead}"])
    child, why = baechi.favourite_children(problem)
    assert why == reason
    assert (child == baechi.greedy_children(problem)).all()
    monkeypatch.setattr(baechi, "MOST_EDGES", edges)
    monkeypatch.setattr(baechi, "ask_sparse", no_answer)
    reason = "its linear program was not solved in time"
    assert told("m-sct", problem) == ("m-sct-greedy", [f"m-sct: {reason}; {instead}"])


def test_shares_without_their_program_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered(60, 1.0)
    assert told("getf", problem) == ("", [])
    instead = "what ran instead is getf-fluid"
    monkeypatch.setattr(getf, "MOST_CHOICES", 239)
    reason = "240 choices are too many for its linear program"
    assert told("getf", problem) == ("getf-fluid", [f"getf: {reason}; {instead}"])
    monkeypatch.setattr(getf, "MOST_CHOICES", 240)
    monkeypatch.setattr(getf, "ask_sparse", no_answer)
    reason = "its linear program was not solved in time"
    assert told("getf", problem) == ("getf-fluid", [f"getf: {reason}; {instead}"])
    with pytest.raises(LimitError, match="the program of GETF has no solution yet"):
        told("getf-milp", problem)


def test_a_program_leaves_time_for_what_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the time that is left it has four fifths, and without a limit all that it takes."""
    left: list[float | None] = []

    def hurry(work: object, failed: object, run: SearchContext, kind: str) -> Outcome:
        left.append(run.time_left())
        return Outcome("limit")

    monkeypatch.setattr("dnnp.core.solver.slices.attempted", hurry)
    made = Sparse()
    made.put(made.rows(1, 0.0, 1.0), made.columns(1), 1.0)
    for run in (SearchContext().within(1000.0), SearchContext()):
        ask_sparse(made.program(), patience=9.0, run=run)
    assert left[0] == pytest.approx(800.0, rel=0.05)
    assert left[1] is None


def test_limits_are_above_200_000_edges_and_80_000_choices() -> None:
    assert baechi.MOST_EDGES >= 200_000
    assert getf.MOST_CHOICES >= 80_000


def test_a_sparse_program_by_hand() -> None:
    """Of 2 and 3 bytes as much as goes into 4, by pieces (1 + 2/3) or whole (1), and y = 2."""
    for integer, most in ((True, 1.0), (False, 1 + 2 / 3)):
        made = Sparse()
        x = made.columns(2, cost=-1.0, integer=integer)
        y = made.columns(1, 9.0, cost=-1.0)
        made.put(made.rows(1, -np.inf, 4.0), x, [2.0, 3.0])
        row = made.rows(1, 4.0, 4.0)
        made.put(row, y, 1.0)
        made.put(row, y, 1.0)  # entries that meet add up
        outcome = ask_sparse(made.program(), patience=60.0)
        assert outcome.status == "optimal"
        assert outcome.bound == pytest.approx(-most - 2)
        assert outcome.values is not None
        assert sum(outcome.values) == pytest.approx(most + 2)
    made.put(made.rows(1, 3.0, 3.0), y, 1.0)
    assert ask_sparse(made.program(), patience=60.0).status == "infeasible"
