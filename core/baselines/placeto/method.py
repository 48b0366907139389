"""Method `placeto`: train a policy, or take one that was trained, and apply it.

A state is a placement, the group that is current, and those that were visited (Placeto, section
3.1). Each step places the current group anew, by the policy; each group is visited once. The reward
of a step is by how much the cost of the placement falls: its latency, as transfers and tasks follow
each other in the order of upward ranks, plus a penalty for what the fullest device holds above its
capacity.

Training is REINFORCE over a family of graphs (section 3.3; Williams 1992). Each batch of episodes
is of one graph, drawn from the family. The gain of a step is what the cost falls from there to the
end of the episode, less a baseline of that step: the mean of what it was in the last batches of the
same graph. Entropy is rewarded, less and less. Weights follow by Adam, at a rate that falls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.baselines.placeto.policy import (
    SURE,
    Board,
    Groups,
    Network,
    groups_of,
    pytorch,
    untrained,
)
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.build import follow
from dnnp.core.latency.lists.net import TaskNet, falling, net_of, upward_rank
from dnnp.core.latency.lists.schedule import repaired, room_of, schedule_homes, schedule_order
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.request import Learned, Policy, Request
from dnnp.core.model.search_context import Run

PENALTY = 2.0
"""Cost, in units of `Ground.unit`, of exceeding the memory by all that a device has; the authors
take two seconds a gigabyte."""

BATCH = 4
"""Episodes between two steps of the weights; the authors have four to eight workers."""

REMEMBERED = 10
"""Batches that the baseline is the mean of."""

RATE, LAST_RATE = 5e-3, 5e-4
"""Of Adam (Kingma and Ba 2015), at first and at last."""

SPREAD = 0.01
"""Weight of the entropy at first; at last it is 0."""

STEEPEST = 1.25
"""Norm that slopes are cut to."""

WORK = 240_000_000
"""Tasks that are scheduled in episodes of training at effort 1."""

MESSAGES = 170
"""What the messages of a group count in a step, in tasks."""

LEAST, MOST = 8 * BATCH, 4096
"""Episodes at effort 1, whatever the size."""

ROUNDS = 8
"""In which the policy is applied, from the same placement: first always to the likeliest device,
then to those that are drawn. The best placement on the way is the answer."""

REPAIRED = "placeto-repaired"
"""Name of what stands in where no placement that was tried fits the memory."""


class Seen(NamedTuple):
    """What an episode comes to."""

    taken: Ints
    """i64[q], device that each step took."""
    cost: Floats
    """f64[q + 1], before the first step and after each, in units of `Ground.unit`."""
    last: Ints
    """i64[q], the placement at its end."""
    best: Ints
    """i64[q], the best placement within all memory; only where `value` is finite."""
    value: float
    """Its latency."""


@dataclass(frozen=True, eq=False)
class Ground:
    """A graph to learn from, and what was earned there lately."""

    problem: LatencyProblem
    net: TaskNet
    order: Ints
    """i64[n], by upward rank."""
    groups: Groups
    board: Board
    home: Ints
    """i64[q], the placement that episodes start from."""
    unit: float
    """Its latency, so that entropy weighs as much where transfers take long as elsewhere."""
    earned: deque[Floats] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """f64[q] each, mean of a batch: what the cost fell from each step on."""

    @property
    def q(self) -> int:
        """Groups."""
        return len(self.home)

    def latency(self, home: Ints) -> float:
        """Of a placement, i64[q]."""
        return float(follow(self.net, home[self.groups.label], self.order, False)[0])

    def episodes(self, network: Network, drawn: Floats) -> list[Seen]:
        """Play some side by side; `drawn` (f64[B, q]) as for `Network.play`."""
        return [self._seen(taken) for taken in network.play(self.board, self.home, drawn)]

    def _seen(self, taken: Ints) -> Seen:
        """Price the placements of an episode."""
        groups, homes = self.groups, self.board.placements(self.home, taken)
        cost, best, least = np.empty(len(homes)), self.home, inf
        for step, home in enumerate(homes):
            if step and (home == homes[step - 1]).all():
                cost[step] = cost[step - 1]
                continue
            held = np.bincount(home, groups.memory, len(groups.limit))
            excess = np.maximum(held - groups.limit, 0.0) / np.maximum(groups.limit, 1.0)
            value = self.latency(home)
            cost[step] = value / self.unit + PENALTY * float(excess.max())
            if value < least and (held <= groups.limit).all():
                best, least = home, value
        return Seen(taken, cost, homes[-1], best, least)


def ground_of(torch: Any, problem: LatencyProblem, rng: np.random.Generator) -> Ground:
    """Lay out a problem of at least one task; where it starts from is drawn.

    Raises
    ------
    InfeasibleError, LimitError
        As for `room_of`.
    """
    net = net_of(problem)
    groups = groups_of(problem, net, room_of(problem))
    order = falling(net, upward_rank(net))
    drawn = np.where(groups.able, rng.random(groups.able.shape), -1.0)
    home = np.argmax(drawn, axis=1).astype(np.int64)
    made = Ground(problem, net, order, groups, Board(torch, groups), home, 1.0)
    return replace(made, unit=made.latency(home) or 1.0)


def train(
    grounds: Sequence[Ground],
    network: Network,
    episodes: int,
    run: Run,
    seen_one: Callable[[Ground, Seen], None],
) -> tuple[int, int]:
    """Train a network on graphs; with how many episodes, and on how many graphs.

    `seen_one` is told of every episode. It ends early where `run` says so.
    """
    rng, done, used = np.random.default_rng([run.seed, 1]), 0, set[int]()
    adam = network.torch.optim.Adam([network.flat], maximize=True)
    while grounds and done < episodes and not run.stop():
        run.stands("training", share=done / episodes)
        number = int(rng.integers(len(grounds)))
        ground = grounds[number]
        batch = ground.episodes(network, rng.random((min(BATCH, episodes - done), ground.q)))
        for seen in batch:
            seen_one(ground, seen)
        left = 1.0 - done / episodes
        slopes = _slopes(ground, network, batch, SPREAD * left)
        network.flat.grad = network.torch.from_numpy(slopes)
        adam.param_groups[0]["lr"] = LAST_RATE + (RATE - LAST_RATE) * left
        adam.step()
        done += len(batch)
        used.add(number)
    return done, len(used)


def _slopes(ground: Ground, network: Network, batch: Sequence[Seen], spread: float) -> Floats:
    """Where the weights should go for the sake of a batch; f64[p]."""
    fallen = np.array([seen.cost[:-1] - seen.cost[-1] for seen in batch])
    ground.earned.append(fallen.mean(axis=0))
    gain = (fallen - np.mean(ground.earned, axis=0)) / len(batch)
    taken = np.array([seen.taken for seen in batch])
    slopes = network.slopes(ground.board, ground.home, taken, gain, spread / len(batch))
    norm = float(np.linalg.norm(slopes))
    return slopes * min(1.0, STEEPEST / norm) if 0 < norm < inf else np.zeros(len(slopes))


def placeto(problem: LatencyProblem, asked: Request, run: Run) -> LatencySolution:
    """Place groups of operators by a policy, which is trained first unless one is given.

    The policy learns from the problem itself, or else from the family of others that is asked for.
    Placements that were seen in training count too where it was on this problem.

    Raises
    ------
    UnavailableError
        PyTorch is not installed.
    UsageError
        The policy is for another number of devices, or a graph of the family has another one.
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    with pytorch() as torch:
        room, training = room_of(problem), asked.training
        if not problem.tasks.n:
            return LatencySolution(schedule_homes(net_of(problem), np.zeros(0, dtype=np.int64)))
        policy = training.policy or untrained(len(room.limit), run.seed)
        _check(policy, problem, training.family)
        # What is drawn depends on neither the family nor the number of episodes.
        ground = ground_of(torch, problem, np.random.default_rng(run.seed))
        grounds = [
            ground_of(torch, other, np.random.default_rng([run.seed, 3, number]))
            for number, other in enumerate(training.family)
            if other.tasks.n
        ]
        grounds = grounds if training.family else [ground]
        given = training.policy is not None and not training.family
        count = training.episodes
        if count is None:
            count = 0 if given or not grounds else _episodes(grounds, run.effort)
        best, network = _Best(ground, run), Network(torch, policy)
        done, graphs = train(grounds, network, count, run, best.take)
        if done < count:
            run.warn(f"placeto: training ended after {done} of {count} episodes")
        rounds = best.apply(network)
    colors = len(room.memory)
    if ground.q < colors:
        run.warn(f"placeto: {colors} operators were merged to {ground.q} groups")
    total = {"episodes": policy.episodes + done, "graphs": policy.graphs + graphs}
    policy = replace(policy, weights=network.weights, **total)
    learned = Learned(policy, done, count, graphs, ground.q, colors, rounds)
    home, method = best.home[ground.groups.label], ""
    if best.value == inf:
        run.warn("placeto: no placement that its policy tried fits the memory: one was repaired")
        of_color, method = np.zeros(colors, dtype=np.int64), REPAIRED
        of_color[problem.tasks.together] = home
        home = repaired(room, of_color, run)[problem.tasks.together]
    return LatencySolution(schedule_homes(net_of(problem), home), method=method, learned=learned)


def _check(policy: Policy, problem: LatencyProblem, family: Sequence[LatencyProblem]) -> None:
    """Refuse a policy, or a family, for other devices; UsageError."""
    devices = problem.machine.count
    if policy.devices != devices:
        raise UsageError(f"the policy is for {policy.devices} devices, not for {devices}")
    for number, other in enumerate(family):
        if other.machine.count != devices:
            raise UsageError(
                f"graph {number + 1} to train on uses {other.machine.count} devices, not {devices}"
            )


def _episodes(grounds: Sequence[Ground], effort: float) -> int:
    """Episodes of training by effort."""
    work = np.mean([g.q * (g.problem.tasks.n + MESSAGES * g.q) for g in grounds])
    usual = min(max(WORK / float(work), LEAST), MOST)
    return max(BATCH, round(usual * effort))


class _Best:
    """The best placement of a graph that was seen; one that fits, if there was any."""

    def __init__(self, ground: Ground, run: Run) -> None:
        self.ground, self.run = ground, run
        self.value = inf
        self.home: Ints = ground.home

    def take(self, ground: Ground, seen: Seen) -> None:
        """Note the best of an episode, if it is of this graph, for whoever may want it soon."""
        if ground is not self.ground or not seen.value < self.value:
            return
        self.value, self.home = seen.value, seen.best
        problem = ground.problem
        split = schedule_order(ground.net, self.home[ground.groups.label], ground.order)
        self.run.keep(split, problem.value(split), "placeto")

    def apply(self, network: Network) -> int:
        """Apply a policy; in how many rounds."""
        self.run.stands("applying the policy", value=self.value)
        rng, shape = np.random.default_rng([self.run.seed, 4]), (ROUNDS - 1, self.ground.q)
        rounds = 0
        for drawn in (np.full((1, self.ground.q), SURE), rng.random(shape)):
            rounds += len(drawn)
            for seen in self.ground.episodes(network, drawn):
                self.take(self.ground, seen)
                if self.value == inf:
                    self.home = seen.last
            if self.run.stop():
                break
        return rounds
