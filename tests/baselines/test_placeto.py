"""Placeto: its policy against plain numpy, its slopes against differences, and that it learns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.cost.load_formula import SAFE_ROOM
from dnnp.core.latency.lists.build import follow
from dnnp.core.latency.lists.schedule import memory_limits
from dnnp.core.model.errors import UsageError
from dnnp.core.model.search_context import PLAIN, MethodOptions, Policy, SearchContext, Training
from dnnp.samples.papers import placeto as network
from dnnp.samples.papers.placeto import (
    PENALTY,
    SURE,
    Ground,
    Network,
    first_weights,
    ground_of,
    placeto,
    train,
)
from support.latency_cases import random_problem
from support.placeto import chances, worth
from support.placing import layered, problem_of

torch = pytest.importorskip("torch", reason="placeto needs PyTorch")

HOPS, WIDTH = 3, 4


def ground(problem: LatencyProblem, seed: int = 0) -> Ground:
    return ground_of(torch, problem, np.random.default_rng(seed))


def policy_for(devices: int, seed: int, *, noise: float = 0.1) -> Policy:
    """Random weights, those of the last layer too."""
    rng = np.random.default_rng(seed)
    weights = first_weights(devices, WIDTH, rng)
    return Policy(devices, HOPS, WIDTH, weights + noise * rng.normal(size=len(weights)))


def case(seed: int, n: int = 8, *, tight: bool = True) -> Ground:
    """A small problem, with colours or a tight memory or devices that cannot run everything."""
    tight = tight and seed % 2 == 0
    problem = random_problem(
        random.Random(seed), n, tight=tight, colors=seed % 3 == 1, links=seed % 4 == 0
    )
    return ground(problem, seed)


@pytest.mark.parametrize("seed", range(12))
def test_steps_are_those_of_plain_numpy(seed: int) -> None:
    where, rng = case(seed), np.random.default_rng(seed)
    policy = policy_for(where.groups.able.shape[1], seed)
    drawn = rng.random((2, where.q))
    drawn[:, ::3] = SURE
    for row, seen in zip(drawn, where.episodes(Network(torch, policy), drawn), strict=True):
        home, done = where.home.copy(), np.zeros(where.q)
        for step, v in enumerate(where.groups.visits.tolist()):
            chance = chances(where.groups, policy, home, done, v)
            sure = row[step] == SURE
            wanted = np.argmax(chance) if sure else np.searchsorted(np.cumsum(chance), row[step])
            assert seen.taken[step] == wanted
            home[v], done[v] = wanted, 1.0
        assert (seen.last == home).all()


@pytest.mark.parametrize("seed", range(12))
def test_rewards_are_those_of_the_cost_model(seed: int) -> None:
    where = case(seed)
    policy = policy_for(where.groups.able.shape[1], seed)
    drawn = np.random.default_rng(seed).random((1, where.q))
    (seen,) = where.episodes(Network(torch, policy), drawn)
    home, best = where.home.copy(), np.inf
    limit = memory_limits(where.problem).limit
    for step in range(where.q + 1):
        if step:
            home[where.groups.visits[step - 1]] = seen.taken[step - 1]
        value = follow(where.net, home[where.groups.label], where.order, False)[0]
        held = np.bincount(home, where.groups.memory, len(limit))
        excess = float(np.max(np.maximum(held - limit, 0.0) / np.maximum(limit, 1.0)))
        assert seen.cost[step] == pytest.approx(value / where.unit + PENALTY * excess, rel=1e-12)
        if excess == 0:
            best = min(best, value)
    assert seen.value == best
    if best < np.inf:
        assert where.latency(seen.best) == best


@pytest.mark.parametrize(("seed", "messages"), [(0, 10**4), (1, 10**4), (2, 1), (3, 60)])
def test_slopes_are_differences(seed: int, messages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes are derived in several pieces if few messages may be derived at once."""
    monkeypatch.setattr(network, "MESSAGES", messages)
    where, rng = case(seed), np.random.default_rng(seed)
    policy = policy_for(where.groups.able.shape[1], seed)
    learner = Network(torch, policy)
    taken = learner.play(where.board, where.home, rng.random((2, where.q)))
    gain = rng.normal(size=taken.shape)
    slopes = learner.slopes(where.board, where.home, taken, gain, 0.3)
    step = 1e-6

    def total(weights: np.ndarray) -> float:
        changed = replace(policy, weights=weights)
        return sum(
            worth(where.groups, changed, where.home, own, part, 0.3)
            for own, part in zip(taken, gain, strict=True)
        )

    for i in rng.choice(len(slopes), 40, replace=False):
        moved = np.zeros(len(slopes))
        moved[i] = step
        above, below = total(policy.weights + moved), total(policy.weights - moved)
        assert slopes[i] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-7)
    assert np.count_nonzero(slopes) > len(slopes) / 4


@pytest.mark.parametrize("seed", range(30))
def test_relations_are_paths(seed: int) -> None:
    where = case(seed, 1 + seed % 9, tight=False)
    q = where.q
    reach = np.linalg.matrix_power(np.eye(q) + where.groups.reads, q) > 0
    for v in range(q):
        for u in range(q):
            wanted = u != v and reach[v, u], u != v and reach[u, v] and not reach[v, u]
            neither = not reach[v, u] and not reach[u, v]
            assert where.groups.related[:, v, u].tolist() == [*wanted, neither]


@pytest.mark.parametrize("most", [3, 10, 40])
def test_many_operators_are_merged(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MOST_GROUPS", most)
    problem = layered(200, 1.0)
    where = ground(problem)
    assert 2 <= where.q <= most + 1
    assert sorted(set(where.groups.label.tolist())) == list(range(where.q))
    work = np.bincount(where.groups.label, problem.tasks.time.mean(axis=0))
    assert work.max() <= problem.tasks.time.mean(axis=0).max() + work.sum() / most * 1.0001
    warned: list[str] = []
    found = placeto(
        problem, MethodOptions("placeto"), SearchContext(effort=0.001, warn=warned.append)
    )
    assert found.learned is not None
    assert (found.learned.groups, found.learned.colors) == (where.q, 200)
    assert warned == [f"placeto: 200 operators were merged to {where.q} groups"]
    home = found.split.device
    for group in range(where.q):
        assert len(set(home[where.groups.label == group].tolist())) == 1


def test_merged_groups_have_a_device() -> None:
    """Two kinds of tasks that no device runs both, and memory for few of them at once."""
    n = 400
    time = np.ones((2, n))
    time[0, 1::4] = np.inf
    time[1, 3::4] = np.inf
    edges = [(i, i + 1) for i in range(n - 1)]
    problem = problem_of(
        time, edges, [0.1] * (n - 1), memory=[1.0] * n, capacity=[0.6 * n, 0.6 * n]
    )
    where = ground(problem)
    assert where.groups.able.any(axis=1).all()
    solution = placeto(problem, MethodOptions("placeto"), SearchContext(effort=0.01))
    assert np.isfinite(problem.value(solution.split))


def costs(grounds: Sequence[Ground], network: Network) -> float:
    """Mean cost after one round to the likeliest devices."""
    ends = [g.episodes(network, np.full((1, g.q), SURE))[0].cost[-1] for g in grounds]
    return float(np.mean(ends))


def branches(seed: int) -> LatencyProblem:
    """Two chains that are joined at their ends, devices alike, and transfers that take long: a
    device for each is best, and times differ from graph to graph."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(3, 5))
    edges, n = [], 2 * length + 2
    for chain in range(2):
        first = 1 + chain * length
        edges += [(0, first), (first + length - 1, n - 1)]
        edges += [(v, v + 1) for v in range(first, first + length - 1)]
    work = rng.uniform(0.5, 1.5, n)
    return problem_of(np.tile(work, (2, 1)), edges, rng.uniform(0.5, 1.0, len(edges)))


EPISODES = 1200


def test_training_beats_chance_and_transfers() -> None:
    """A policy of four graphs of a family, on those, and on six that it has not seen."""
    family, others = ([ground(branches(s), s) for s in r] for r in (range(4), range(50, 56)))
    policy = Policy(2, HOPS, WIDTH, first_weights(2, WIDTH, np.random.default_rng(0)))
    fresh, trained = Network(torch, policy), Network(torch, policy)
    drawn: list[float] = []
    done, graphs = train(
        family, trained, EPISODES, PLAIN, lambda _, seen: drawn.append(seen.cost[-1])
    )
    assert done == len(drawn) == EPISODES
    assert graphs == len(family)
    chance, last = np.mean(drawn[:80]), np.mean(drawn[-80:])
    random_start = np.mean([g.episodes(fresh, np.full((1, g.q), SURE))[0].cost[0] for g in others])
    assert last < 0.8 * chance
    assert costs(family, trained) < costs(family, fresh)
    assert costs(others, trained) < min(costs(others, fresh), 0.8 * random_start)


def solve(problem: LatencyProblem, asked: Training = Training(), **run: object) -> LatencySolution:  # noqa: B008
    found = placeto(
        problem, replace(MethodOptions("placeto"), training=asked), replace(PLAIN, **run)
    )
    assert np.isfinite(problem.value(found.split))
    return found


def test_a_policy_is_trained_unless_one_is_given() -> None:
    problem = branches(1)
    first = solve(problem, Training(episodes=40))
    assert first.learned is not None
    policy = first.learned.policy
    assert (first.learned.episodes, first.learned.asked, first.learned.graphs) == (40, 40, 1)
    assert (policy.episodes, policy.graphs) == (40, 1)
    applied = solve(branches(2), Training(policy)).learned
    assert applied is not None
    assert (applied.episodes, applied.graphs, applied.policy.digest) == (0, 0, policy.digest)
    more = solve(branches(2), Training(policy, episodes=8)).learned
    assert more is not None
    assert (more.episodes, more.policy.episodes, more.policy.graphs) == (8, 48, 2)
    assert more.policy.digest != policy.digest
    family = solve(branches(2), Training(policy, (branches(3), branches(4)), 48)).learned
    assert family is not None
    assert (family.episodes, family.graphs, family.policy.episodes) == (48, 2, 88)


def test_the_same_seed_learns_the_same_whatever_others_do_with_pytorch() -> None:
    problem, digests = layered(20, 1.0), []
    for seed, threads in ((0, 1), (0, 2), (1, 1)):
        torch.set_num_threads(threads)
        torch.manual_seed(len(digests))
        before = torch.get_rng_state()
        found = solve(problem, Training(episodes=16), seed=seed)
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), before)
        assert found.learned is not None
        digests.append(found.learned.policy.digest)
    assert digests[0] == digests[1] != digests[2]


def test_training_that_is_stopped_says_so() -> None:
    warned: list[str] = []
    asked = iter([False] * 12 + [True] * 1000)
    found = solve(
        branches(1), Training(episodes=64), interrupted=lambda: next(asked), warn=warned.append
    )
    assert found.learned is not None
    assert 0 < found.learned.episodes < found.learned.asked == 64
    assert warned == [f"placeto: training ended after {found.learned.episodes} of 64 episodes"]


def test_what_is_found_is_kept_at_once() -> None:
    problem = layered(20, 1.0)
    kept: list[tuple[float, float]] = []
    found = solve(
        problem,
        Training(episodes=24),
        keep=lambda split, value, name: kept.append((value, problem.value(split))),
    )
    values = [value for value, _ in kept]
    assert values == [again for _, again in kept]
    assert len(values) > 1
    assert problem.value(found.split) <= min(values)


def test_other_devices_are_refused() -> None:
    policy = solve(branches(1), Training(episodes=0)).learned
    assert policy is not None
    with pytest.raises(UsageError, match="for 2 devices, not for 4"):
        solve(layered(20, 1.0), Training(policy.policy))
    with pytest.raises(UsageError, match="graph 1 to train on uses 4 devices, not 2"):
        solve(branches(1), Training(family=(layered(20, 1.0),)))


def test_a_placement_that_does_not_fit_is_repaired_under_another_name() -> None:
    """One of the two ways that six groups fit two devices is not met by chance."""
    memory = [float(x) for x in (7, 8, 2, 6, 4, 5)]
    problem = problem_of(
        [[1.0] * 6] * 2, [(0, 1)], [1.0], memory=memory, capacity=[16.0 / SAFE_ROOM] * 2
    )
    warned: list[str] = []
    names = {
        solve(problem, Training(episodes=0), seed=seed, warn=warned.append).method
        for seed in range(6)
    }
    assert "placeto-repaired" in names
    assert any("one was repaired" in line for line in warned)
