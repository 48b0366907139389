"""Method `placeto`: train a policy, or take one that was trained, and apply it (Placeto)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from dnnp.core.baselines.placeto.episode import SURE, Seen
from dnnp.core.baselines.placeto.layers import HOPS, WIDTH, first_weights, shape_of
from dnnp.core.baselines.placeto.policy import Weights
from dnnp.core.baselines.placeto.training import BATCH, Ground, ground_of, train
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.lists.room import Room, repaired, room_of
from dnnp.core.latency.lists.schedule import schedule_homes, schedule_order
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Ints
from dnnp.core.model.learned import Learned, Policy
from dnnp.core.model.run import Run

WORK = 240_000_000
"""Tasks that are scheduled in episodes of training at effort 1; about eight seconds."""

MESSAGES = 170
"""What the messages of a group count in a step, in tasks."""

REPAIRED = "placeto-repaired"
"""Name of what stands in where no placement that was tried fits the memory."""

LEAST, MOST = 8 * BATCH, 4096
"""Episodes at effort 1, whatever the size."""

ROUNDS = 8
"""In which the policy is applied, from the same placement: first always to the likeliest device,
then to those that are drawn. The best placement on the way is the answer."""


def placeto(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Place groups of operators by a policy, which is trained first unless one is given.

    The policy learns from the problem itself, or else from the family of others that is asked for.
    Placements that were seen in training count too where it was on this problem.

    Raises
    ------
    UsageError
        The policy is for another number of devices, or a graph of the family has another one.
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    training = asked.training
    room = room_of(problem)
    if not problem.tasks.n:
        return LatencySolution(schedule_homes(problem, net_of(problem).order))
    policy = training.policy or _untrained(len(room.limit), run.seed)
    _check(policy, problem, training.family)
    # What is drawn depends on neither the family nor the number of episodes.
    ground = ground_of(problem, np.random.default_rng(run.seed), policy.hops, policy.width)
    grounds = _grounds(training.family, run.seed, policy) if training.family else [ground]
    count = training.episodes
    if count is None:
        given = training.policy is not None and not training.family
        count = 0 if given else _episodes(grounds, run.effort)
    weights = Weights(
        shape_of(policy.devices, policy.width), policy.hops, policy.weights.astype(np.float64)
    )
    best = _Best(ground, run)
    weights, done, graphs = train(grounds, weights, count, run, best.take)
    if done < count:
        run.warn(f"placeto: training ended after {done} of {count} episodes")
    rounds, colors = best.apply(weights), len(room.memory)
    if ground.q < colors:
        run.warn(f"placeto: {colors} operators were merged to {ground.q} groups")
    learned = Learned(
        replace(
            policy,
            weights=weights.flat,
            episodes=policy.episodes + done,
            graphs=policy.graphs + graphs,
        ),
        episodes=done,
        asked=count,
        graphs=graphs,
        groups=ground.q,
        colors=colors,
        rounds=rounds,
    )
    home, method = best.home[ground.groups.label], ""
    if best.value == inf:
        run.warn("placeto: no placement that its policy tried fits the memory: one was repaired")
        home, method = _repaired(problem, room, home, run), REPAIRED
    return LatencySolution(schedule_homes(problem, home), method=method, learned=learned)


def _repaired(problem: LatencyProblem, room: Room, home: Ints, run: Run) -> Ints:
    """Devices of tasks near those given (i64[n]) that fit the memory; errors as in `repaired`."""
    of_color = np.zeros(len(room.memory), dtype=np.int64)
    of_color[problem.tasks.together] = home
    return repaired(room, of_color, run)[problem.tasks.together]


def _untrained(devices: int, seed: int) -> Policy:
    """A policy that has learned nothing."""
    weights = first_weights(shape_of(devices), np.random.default_rng([seed, 2]))
    return Policy(devices, HOPS, WIDTH, weights)


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


def _grounds(family: Sequence[LatencyProblem], seed: int, policy: Policy) -> list[Ground]:
    """The graphs of a family that have anything to place."""
    return [
        ground_of(other, np.random.default_rng([seed, 3, number]), policy.hops, policy.width)
        for number, other in enumerate(family)
        if other.tasks.n
    ]


def _episodes(grounds: Sequence[Ground], effort: float) -> int:
    """Episodes of training by effort."""
    if not grounds:
        return 0
    work = np.mean([g.q * (len(g.groups.label) + MESSAGES * g.q) for g in grounds])
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
        if ground is not self.ground or not seen.value[0] < self.value:
            return
        self.value, self.home = float(seen.value[0]), seen.best.copy()
        problem = ground.problem
        split = schedule_order(problem, self.home[ground.groups.label], ground.scene.order)
        self.run.keep(split, problem.value(split), "placeto")

    def apply(self, weights: Weights) -> int:
        """Apply a policy; in how many rounds."""
        ground, run = self.ground, self.run
        rng = np.random.default_rng([run.seed, 4])
        rounds = 0
        for rounds in range(1, ROUNDS + 1):
            run.stands("applying the policy", value=self.value)
            drawn = np.full(ground.q, SURE) if rounds == 1 else rng.random(ground.q)
            self.take(ground, ground.episode(weights, ground.home, drawn))
            if self.value == inf:
                self.home = ground.state.home.copy()
            if run.stop():
                break
        return rounds
