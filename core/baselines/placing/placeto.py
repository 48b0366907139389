"""A policy gradient over devices, after Placeto (Addanki et al. 2019).

As in Placeto, a network sees every task through its own features and those of its neighbours,
visits the tasks one after the other, and knows where those before it are; it is trained by
REINFORCE, with the latency of the whole placement as the reward. Smaller than the original: one
round of message passing instead of several, one visit to each task instead of improving a given
placement, and one graph, for which it is trained from scratch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.net import (
    Net,
    downward_rank,
    falling,
    mean_times,
    mean_transfers,
    net_of,
    upward_rank,
)
from dnnp.core.latency.lists.room import Room, attempts, room_of
from dnnp.core.latency.lists.schedule import follow, schedule_homes
from dnnp.core.model.asked import Asked
from dnnp.core.model.graph import Bools, Floats, Ints, totals
from dnnp.core.model.run import Run

HIDDEN = 16

BATCH = 8
"""Placements between two steps; the mean of their latencies is the baseline."""

TASKS = 4_000_000
"""Tasks that are placed at effort 1, in all samples together."""

LEAST_SAMPLES, MOST_SAMPLES = 64, 6400

RATE = 0.02
"""Of Adam (Kingma and Ba 2015)."""

ENTROPY = 0.01
"""Weight of the entropy, which keeps the policy from settling too early."""


@kernel
def _sample(
    net: Net,
    order: Ints,
    logits: Floats,
    near: float,
    home: Ints,
    able: Bools,
    memory: Floats,
    limit: Floats,
    chance: Floats,
    push: Floats,
    spread: float,
) -> tuple[int, float]:
    """Draw a device for every colour without one, at its first task in `order`.

    Parameters
    ----------
    logits
        f64[c, D]; `near` is added times the share of a task's flows that a device has made.
    home
        i64[c], filled in.
    chance
        f64[c], uniform numbers; one above 1 takes the most likely device.
    push
        f64[c, D], filled with the derivative of the log-probability by the logits.
    spread
        Weight of the entropy in `push`.

    Returns
    -------
    -1 or a colour without a place, and the derivative by `near`.
    """
    count, devices = logits.shape
    room = limit.copy()
    for c in range(count):
        if home[c] >= 0:
            room[home[c]] -= memory[c]
    share, weight = np.zeros(devices), np.zeros(devices)
    by_near = 0.0
    for v in order:
        c = net.color[v]
        if home[c] >= 0:
            continue
        share[:] = 0.0
        reads = 0
        for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
            u = net.maker[net.in_idx[a]]
            if u >= 0 and home[net.color[u]] >= 0:
                share[home[net.color[u]]] += 1.0
                reads += 1
        high, best = -np.inf, -1
        for d in range(devices):
            share[d] /= max(reads, 1)
            if able[d, c] and memory[c] <= room[d]:
                weight[d] = logits[c, d] + near * share[d]
                if weight[d] > high:
                    high, best = weight[d], d
            else:
                weight[d] = -np.inf
        if best < 0:
            return c, by_near
        whole = 0.0
        for d in range(devices):
            weight[d] = math.exp(weight[d] - high) if weight[d] > -np.inf else 0.0
            whole += weight[d]
        if chance[c] <= 1.0:
            left = chance[c] * whole
            for d in range(devices):
                if weight[d] > 0.0:
                    best = d
                    left -= weight[d]
                    if left < 0.0:
                        break
        entropy = 0.0
        for d in range(devices):
            weight[d] /= whole
            if weight[d] > 0.0:
                entropy -= weight[d] * math.log(weight[d])
        for d in range(devices):
            p = weight[d]
            push[c, d] = (1.0 if d == best else 0.0) - p
            by_near += push[c, d] * share[d]
            if p > 0.0:
                push[c, d] -= spread * p * (math.log(p) + entropy)
        home[c] = best
        room[best] -= memory[c]
    return -1, by_near


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What the network reads."""

    features: Floats
    """f64[n, F], each of mean 0 and deviation 1."""
    slowness: Floats
    """f64[n, D], time on a device over the mean, less 1."""
    before: Any
    after: Any
    """f64[n, n], sparse: mean over the tasks that a task reads from, or that read from it."""
    part: Any
    """f64[c, n], sparse: mean over the tasks of a colour."""


def _inputs(problem: LatencyProblem, net: Net) -> _Inputs:
    from scipy.sparse import csr_array

    tasks = problem.tasks
    n = tasks.n
    mean = mean_times(tasks.time)
    up, down = upward_rank(problem, net), downward_rank(problem, net)
    tail, head = tasks.edges
    made = tasks.maker >= 0
    sent = totals(tasks.maker[made], mean_transfers(problem)[made], n)
    indegree, outdegree = np.bincount(head, minlength=n), np.bincount(tail, minlength=n)
    columns = [mean, tasks.memory, sent, up, down, up + down, indegree, outdegree]
    features = np.array([np.log1p(x / (x.mean() or 1.0)) for x in columns]).T
    deviation = features.std(axis=0)
    features = (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    safe = np.where(np.isfinite(tasks.time), tasks.time, 0.0)
    slowness = safe / np.where(mean > 0, mean, 1.0) - 1.0
    members = np.bincount(tasks.together)
    return _Inputs(
        features=features,
        slowness=np.clip(slowness, -1.0, 3.0).T.copy(),
        before=csr_array((1.0 / indegree[head], (head, tail)), shape=(n, n)),
        after=csr_array((1.0 / outdegree[tail], (tail, head)), shape=(n, n)),
        part=csr_array(
            (1.0 / members[tasks.together], (tasks.together, np.arange(n))),
            shape=(len(members), n),
        ),
    )


def _product(a: Floats, b: Floats) -> Floats:
    """a @ b, always with the sums in the same order, for any number of threads."""
    return np.einsum("ij,jk->ik", a, b)


class _Policy:
    """Two layers with one round of message passing; weights and their Adam moments."""

    def __init__(self, inputs: _Inputs, devices: int, rng: np.random.Generator) -> None:
        self.inputs = inputs
        width = inputs.features.shape[1]
        self.weights = [
            rng.normal(0, 1 / math.sqrt(width), (width, HIDDEN)),
            rng.normal(0, 1 / math.sqrt(3 * HIDDEN), (3 * HIDDEN, HIDDEN)),
            np.zeros((HIDDEN, devices)),
            np.zeros(devices),
            np.zeros(2),
        ]
        """Layers, bias of each device, and how much slowness and nearness count."""
        self.first = [np.zeros_like(w) for w in self.weights]
        self.second = [np.zeros_like(w) for w in self.weights]
        self.steps = 0

    @property
    def near(self) -> float:
        """How much the share of inputs that are on a device counts."""
        return float(self.weights[4][1])

    def logits(self) -> Floats:
        """f64[c, D] of the colours."""
        i, (a, b, c, bias, taste) = self.inputs, self.weights
        self.low = np.tanh(_product(i.features, a))
        self.seen = np.concatenate([self.low, i.before @ self.low, i.after @ self.low], axis=1)
        self.high = np.tanh(_product(self.seen, b))
        score = _product(self.high, c) + bias + taste[0] * i.slowness
        logits: Floats = np.ascontiguousarray(i.part @ score)
        return logits

    def learn(self, push: Floats, by_near: float) -> None:
        """Go uphill, given the derivatives by the logits of the last call, and by `near`."""
        i, (_, b, c, _, _) = self.inputs, self.weights
        at = i.part.T @ push
        high = _product(at, c.T.copy()) * (1 - self.high**2)
        seen = _product(high, b.T.copy())
        low = (
            seen[:, :HIDDEN]
            + i.before.T @ seen[:, HIDDEN : 2 * HIDDEN]
            + i.after.T @ seen[:, 2 * HIDDEN :]
        ) * (1 - self.low**2)
        slopes = [
            _product(i.features.T.copy(), low),
            _product(self.seen.T.copy(), high),
            _product(self.high.T.copy(), at),
            at.sum(axis=0),
            np.array([float((at * i.slowness).sum()), by_near]),
        ]
        self.steps += 1
        for k, slope in enumerate(slopes):
            self.first[k] = 0.9 * self.first[k] + 0.1 * slope
            self.second[k] = 0.999 * self.second[k] + 0.001 * slope**2
            mean = self.first[k] / (1 - 0.9**self.steps)
            square = self.second[k] / (1 - 0.999**self.steps)
            self.weights[k] = self.weights[k] + RATE * mean / (np.sqrt(square) + 1e-8)


def placeto(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Train a policy on this problem, and return the best placement that it drew.

    A device that is full is not drawn; where the rest then fits nowhere, the largest tasks are
    packed beforehand, for this sample and all that follow.

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    net, room = net_of(problem), room_of(problem)
    if not problem.tasks.n:
        return LatencySolution(schedule_homes(problem, net.order))
    order = falling(net, upward_rank(problem, net))
    rng = np.random.default_rng(run.seed)
    policy = _Policy(_inputs(problem, net), len(room.limit), rng)
    samples = min(max(TASKS // max(problem.tasks.n, 1), LEAST_SAMPLES), MOST_SAMPLES)
    batches = max(1, round(samples * run.effort / BATCH))
    drawer = _Drawer(net, room, order, run)
    for number in range(batches):
        run.stands("drawing placements", value=drawer.value, share=number / batches)
        logits = policy.logits()
        chances = rng.random((BATCH, len(room.memory)))
        drawn = [drawer.draw(logits, policy.near, chance) for chance in chances]
        value = np.array([x[0] for x in drawn])
        gain = (value.mean() - value) / (value.std() or 1.0) / BATCH
        push = np.zeros(logits.shape)
        for g, (_, each, _) in zip(gain.tolist(), drawn, strict=True):
            push += g * each
        by_near = float(sum(g * x[2] for g, x in zip(gain.tolist(), drawn, strict=True)))
        policy.learn(push, by_near)
        if run.stop():
            break
    drawer.draw(policy.logits(), policy.near, np.full(len(room.memory), 2.0))
    return LatencySolution(schedule_homes(problem, drawer.best[problem.tasks.together]))


class _Drawer:
    """Draws placements, and keeps the best one."""

    def __init__(self, net: Net, room: Room, order: Ints, run: Run) -> None:
        self.net, self.room, self.order = net, room, order
        self.fixed = attempts(room, run)
        self.home = next(self.fixed)
        self.value = math.inf
        self.best = self.home

    def draw(self, logits: Floats, near: float, chance: Floats) -> tuple[float, Floats, float]:
        """Latency, and the derivatives by the logits and by `near`."""
        room = self.room
        while True:
            home, push = self.home.copy(), np.zeros(logits.shape)
            lost, by_near = _sample(
                self.net,
                self.order,
                logits,
                near,
                home,
                room.able,
                room.memory,
                room.limit,
                chance,
                push,
                ENTROPY,
            )
            if lost < 0:
                break
            # The last of these leaves nothing to be drawn.
            self.home = next(self.fixed)
        value = follow(self.net, home[self.net.color], self.order, False)[0]
        if value < self.value:
            self.value, self.best = value, home
        return value, push, by_near
