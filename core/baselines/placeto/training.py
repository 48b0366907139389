"""REINFORCE over a family of graphs (Placeto, section 3.3; Williams 1992).

Each batch of episodes is of one graph, drawn from the family. The gain of a step is what the cost
falls from there to the end of the episode, less a baseline of that step: the mean of what it was
in the last batches of the same graph. Entropy is rewarded, less and less. Weights follow by Adam,
at a rate that falls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from dnnp.core.baselines.placeto.episode import Scene, Seen, new_seen, play
from dnnp.core.baselines.placeto.groups import Groups, groups_of
from dnnp.core.baselines.placeto.policy import State, Weights
from dnnp.core.baselines.placeto.slope import add_slopes
from dnnp.core.baselines.placeto.tape import Tape, tape_of
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.net import falling, net_of, upward_rank
from dnnp.core.latency.lists.room import room_of
from dnnp.core.latency.lists.schedule import follow
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.run import Run

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


@dataclass(frozen=True, eq=False)
class Ground:
    """A graph to learn from, and what was earned there lately."""

    problem: LatencyProblem
    scene: Scene
    groups: Groups
    home: Ints
    """i64[q], the placement that episodes start from."""
    state: State
    playing: Tape
    earned: deque[Floats] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """f64[q] each, mean of a batch: what the cost fell from each step on."""

    @property
    def q(self) -> int:
        """Groups."""
        return len(self.home)

    def episode(self, weights: Weights, start: Ints, drawn: Floats) -> Seen:
        """Play an episode from a placement; `drawn` as for `play`."""
        seen = new_seen(self.q)
        self.state.home[:] = start
        play(self.scene, self.groups, weights, self.playing, self.state, drawn, seen)
        return seen


def ground_of(problem: LatencyProblem, rng: np.random.Generator, hops: int, width: int) -> Ground:
    """Lay out a problem of at least one task; where it starts from is drawn.

    Raises
    ------
    InfeasibleError, LimitError
        As for `room_of`.
    """
    net = net_of(problem)
    groups = groups_of(problem, net, room_of(problem))
    order = falling(net, upward_rank(problem, net))
    q, devices = groups.able.shape
    drawn = np.where(groups.able, rng.random((q, devices)), -1.0)
    home = np.argmax(drawn, axis=1).astype(np.int64)
    # So that entropy weighs as much where transfers take long as where they do not.
    unit = follow(net, home[groups.label], order, False)[0] or 1.0
    groups = groups._replace(unit=float(unit))
    return Ground(
        problem,
        Scene(net, order),
        groups,
        home,
        State(np.zeros(q, dtype=np.int64), np.zeros((q, 2))),
        tape_of(groups, hops, width, kept=False),
    )


class Adam:
    """Steps uphill (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self, count: int) -> None:
        self.first, self.second = np.zeros(count), np.zeros(count)
        self.steps = 0

    def step(self, slopes: Floats, rate: float) -> Floats:
        """What to add to the weights; f64[p]."""
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * slopes
        self.second = 0.999 * self.second + 0.001 * slopes**2
        mean = self.first / (1 - 0.9**self.steps)
        square = self.second / (1 - 0.999**self.steps)
        moved: Floats = rate * mean / (np.sqrt(square) + 1e-8)
        return moved


def train(
    grounds: Sequence[Ground],
    weights: Weights,
    episodes: int,
    run: Run,
    seen_one: Callable[[Ground, Seen], None],
) -> tuple[Weights, int, int]:
    """Train weights on graphs; the new ones, with how many episodes, and on how many graphs.

    `seen_one` is told of every episode. It ends early where `run` says so.
    """
    rng = np.random.default_rng([run.seed, 1])
    adam, done, used = Adam(len(weights.flat)), 0, set[int]()
    kept: dict[int, Tape] = {}
    while grounds and done < episodes and not run.stop():
        run.stands("training", share=done / episodes)
        number = int(rng.integers(len(grounds)))
        ground = grounds[number]
        if number not in kept:
            kept = {
                number: tape_of(ground.groups, weights.hops, ground.playing.x.shape[1], kept=True)
            }
        batch = []
        for _ in range(min(BATCH, episodes - done)):
            batch.append(ground.episode(weights, ground.home, rng.random(ground.q)))
            seen_one(ground, batch[-1])
            if run.stop():
                break
        left = 1.0 - done / episodes
        slopes = _slopes(ground, weights, kept[number], batch, SPREAD * left, run)
        rate = LAST_RATE + (RATE - LAST_RATE) * left
        weights = weights._replace(flat=weights.flat + adam.step(slopes, rate))
        done += len(batch)
        used.add(number)
    return weights, done, len(used)


def _slopes(
    ground: Ground, weights: Weights, tape: Tape, batch: Sequence[Seen], spread: float, run: Run
) -> Floats:
    """Where the weights should go for the sake of a batch; f64[p]."""
    fallen = np.array([seen.cost[:-1] - seen.cost[-1] for seen in batch])
    ground.earned.append(fallen.mean(axis=0))
    usual = np.mean(ground.earned, axis=0)
    slopes = np.zeros(len(weights.flat))
    for seen, fell in zip(batch, fallen, strict=True):
        ground.state.home[:] = ground.home
        gain, part = (fell - usual) / len(batch), spread / len(batch)
        add_slopes(ground.groups, weights, tape, ground.state, seen.taken, gain, part, slopes)
    norm = float(np.linalg.norm(slopes))
    return slopes * min(1.0, STEEPEST / norm) if 0 < norm < inf else np.zeros(len(slopes))
