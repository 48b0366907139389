"""Placeto (Addanki et al. 2019): a policy that improves placements, trained over graphs.

A state is a placement, the group that is current, and those that were visited (Placeto, section
3.1). Each step places the current group anew, by the policy; each group is visited once. The reward
of a step is by how much the cost of the placement falls: its latency, as transfers and tasks follow
each other in the order of upward ranks, plus a penalty for what the fullest device holds above its
capacity.

Training is REINFORCE over a family of graphs (section 3.3; Williams 1992). Each batch of episodes
is of one graph, drawn from the family. The gain of a step is what the cost falls from there to the
end of the episode, less a baseline of that step: the mean of what it was in the last batches of the
same graph. Entropy is rewarded, less and less. Weights follow by Adam, at a rate that falls.

*The policy*, on PyTorch: from a placement to the chance of each device (section 3.2).
Placeto groups operators before it places them, those that must be together first (section 4).
Here tasks of one colour are a group; where these are more than `MOST_GROUPS`, neighbours in a
topological order are merged, so that all groups have about the same work.

Features of every group go through a first network. Then messages pass along the edges, `hops`
times, in both directions (Eq. 1): x' = x0 + g(sum of f(x) of the neighbours), x0 where there is
none. For the group that is to be placed, all groups before it, after it and parallel to it are
pooled, each by h(mean of h'(x)), and all that, beside its own x, gives a number for each device.

Details that the paper leaves open. Features are times over the mean time of a group, as log(1 + .),
the size of the output as its time on the mean link; a time for each device, as they may differ;
memory as share of the smallest device (an option of the authors). x0 is added in each round, as
the authors do. Pools take means, so that graphs of other sizes look alike. Devices that do not run
a group have no chance. Numbers are drawn by numpy, so that PyTorch's own generator stays as it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.build import follow
from dnnp.core.latency.lists.net import (
    FlowNet,
    edge_moves,
    falling,
    mean_times,
    net_of,
    upward_rank,
)
from dnnp.core.latency.lists.schedule import (
    MemoryLimits,
    by_first,
    memory_limits,
    repaired,
    schedule_homes,
    schedule_order,
)
from dnnp.core.model.errors import UnavailableError, UsageError
from dnnp.core.model.graph import Bools, Floats, Ints, place_of, totals
from dnnp.core.model.search_context import Learned, MethodOptions, Policy, SearchContext
from dnnp.formats.inputs.policy import sizes_of

MOST_GROUPS = 128
"""Groups above which neighbours are merged: an episode visits all, and each may be related to
each."""

WIDTH = 8
"""Numbers of a message, about as many as a group has features."""

HOPS = 8
"""Rounds of message passing."""

MOST_MESSAGES = 16_384
"""Messages of a round that are derived at once; what fits a cache."""

SURE = 2.0
"""In place of a number drawn between 0 and 1: take the likeliest device."""

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
"""Cost of the messages of a group in a step, in tasks."""

LEAST, MOST = 8 * BATCH, 4096
"""Episodes at effort 1, whatever the size."""

ROUNDS = 8
"""In which the policy is applied, from the same placement: first always to the likeliest device,
then to those that are drawn. The best placement on the way is the answer."""

REPAIRED = "placeto-repaired"
"""Name of what stands in where no placement that was tried fits the memory."""


@contextmanager
def pytorch() -> Iterator[Any]:
    """PyTorch on one thread, so that sums do not depend on how many there are.

    Raises UnavailableError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise UnavailableError(
            "method placeto needs PyTorch: pip install 'dnnp[placeto]'"
        ) from None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)


def first_weights(devices: int, width: int, rng: np.random.Generator) -> Floats:
    """Weights of a policy that has learned nothing (Glorot and Bengio 2010), biases 0; f64[p].

    The last layer is 0: at first all devices are as likely.
    """
    parts: list[Floats] = []
    for a, b, c in sizes_of(devices, width):
        for rows, columns in ((a, b), (b, c)):
            edge = math.sqrt(6.0 / (rows + columns))
            parts += [rng.uniform(-edge, edge, rows * columns), np.zeros(columns)]
    parts[-2][:] = 0.0
    return np.concatenate(parts)


def untrained(devices: int, seed: int) -> Policy:
    """A policy that has learned nothing."""
    weights = first_weights(devices, WIDTH, np.random.default_rng([seed, 2]))
    return Policy(devices, HOPS, WIDTH, weights)


class Groups(NamedTuple):
    """`q` groups of `n` tasks on `D` devices."""

    label: Ints
    """i64[n], group of each task."""
    features: Floats
    """f64[q, D + 2]: time on each device; time to send what others read; memory."""
    able: Bools
    """bool[q, D]: the device runs all of the group, and holds it if it is empty."""
    memory: Floats
    """f64[q], bytes."""
    limit: Floats
    """f64[D], bytes that each device holds."""
    reads: Floats
    """f64[q, q], 1 where the row's group reads from the column's."""
    related: Bools
    """bool[3, q, q]: [p, v, u] is whether there is a path from u to v (p = 0; also on cycles), only
    one from v to u (1), or neither (2)."""
    visits: Ints
    """i64[q], the order in which an episode visits them: topological as far as there is one."""


def groups_of(problem: LatencyProblem, net: FlowNet, room: MemoryLimits) -> Groups:
    """Group a problem; complexity O(q^3 log q + edges)."""
    tasks = problem.tasks
    colors = len(room.memory)
    group_of = _merged(net, room) if colors > MOST_GROUPS else np.arange(colors)
    label = group_of[tasks.together]
    q = int(label.max(initial=-1)) + 1
    memory = totals(group_of, room.memory, q)
    time = np.array([totals(group_of, work, q) for work in room.work]).T
    tail, head, move = edge_moves(net)
    apart = label[tail] != label[head]
    mean = totals(label, mean_times(tasks.time), q)
    send = totals(label[tail], np.where(apart, move, 0.0), q)
    reads = np.zeros((q, q))
    reads[label[head[apart]], label[tail[apart]]] = 1.0
    scale = float(mean.mean()) if q and mean.any() else 1.0
    known = np.where(np.isfinite(time), time, mean[:, None])
    held = np.minimum(memory / max(float(room.limit.min()), 1.0), 1.0)
    return Groups(
        label=label,
        features=np.column_stack([np.log1p(known / scale), np.log1p(send / scale), held]),
        able=np.isfinite(time) & (memory[:, None] <= room.limit),
        memory=memory,
        limit=room.limit,
        reads=reads,
        related=_related(reads),
        visits=by_first(label[net.order]),
    )


def _merged(net: FlowNet, room: MemoryLimits) -> Ints:
    """Group of each colour: runs of a topological order with about equal work; i64[c].

    A run ends, too, where no device could take more of it.
    """
    work = np.where(np.isfinite(room.work), room.work, 0.0).mean(axis=0)
    most = max(float(work.sum()) / MOST_GROUPS, 0.0)
    each = max(len(work) // MOST_GROUPS, 1)
    group_of = np.empty(len(work), dtype=np.int64)
    group, done, members = 0, 0.0, 0
    fits, held = np.ones(len(room.limit), dtype=bool), 0.0
    for c in by_first(net.together[net.order]).tolist():
        both = fits & np.isfinite(room.work[:, c])
        wide = (held + room.memory[c] <= room.limit / 2)[both].any()
        full = done >= most * (group + 1) if most else members >= each
        if members and (full or not wide):
            group, members, held = group + 1, 0, 0.0
            both = np.isfinite(room.work[:, c])
        group_of[c], fits = group, both
        members, done, held = members + 1, done + work[c], held + room.memory[c]
    return group_of


def _related(reads: Floats) -> Bools:
    """Relations by paths of any length, as in `Groups`."""
    reach = reads + np.eye(len(reads)) > 0
    for _ in range(len(reads).bit_length()):  # the length of the paths doubles each time
        reach = reach.astype(np.float64) @ reach > 0
    before = reach & ~np.eye(len(reads), dtype=np.bool_)
    after = before.T & ~before
    return np.array([before, after, ~reach & ~reach.T])


class Board:
    """Groups as PyTorch reads them."""

    def __init__(self, torch: Any, groups: Groups) -> None:
        self.groups, self.q = groups, len(groups.visits)
        self.rank = place_of(groups.visits)
        """i64[q], the step in which each group is visited."""
        both = np.array([groups.reads, groups.reads.T])
        member = groups.related.astype(np.float64)
        share = member / np.maximum(member.sum(axis=2, keepdims=True), 1.0)
        self.edges = torch.from_numpy(both)
        """f64[2, q, q], which groups send messages to which in either direction."""
        self.told = torch.from_numpy(both.max(axis=2, keepdims=True))
        """f64[2, q, 1], 1 for those that are told anything."""
        self.share = torch.from_numpy(share)
        """f64[3, q, q], share of each in the mean of a pool."""
        self.never = torch.from_numpy(~groups.able)
        """bool[q, D]."""

    def placements(self, home: Ints, taken: Ints) -> Ints:
        """Devices before the first step of an episode from `home` and after each; i64[q + 1, q]."""
        visited = self.rank < np.arange(self.q + 1)[:, None]
        return np.where(visited, taken[self.rank], home)

    def states(self, home: Ints, step: Ints) -> Floats:
        """Inputs of a policy: features, the device, whether the group is placed now, and whether
        it was before; f64[q, S, F]. Arguments as of `Network.chances`."""
        rank, devices = self.rank[:, None], np.eye(self.groups.able.shape[1])
        flags = np.stack([rank == step, rank < step], axis=2)
        known = np.repeat(self.groups.features[:, None], len(step), axis=1)
        return np.concatenate([known, devices[home.T], flags], axis=2)


Layer = tuple[Any, ...]
"""Weights, biases, weights and biases of some networks, one after the other."""


class Network:
    """The weights of a policy, and what follows from them."""

    def __init__(self, torch: Any, policy: Policy) -> None:
        self.torch, self.hops, self.width = torch, policy.hops, policy.width
        self.sizes = sizes_of(policy.devices, policy.width)
        self.flat = torch.tensor(policy.weights, dtype=torch.float64, requires_grad=True)

    @property
    def weights(self) -> Floats:
        """A copy of all weights; f64[p]."""
        return np.array(self.flat.detach().numpy())

    def layers(self) -> list[Layer]:
        """The first network; f, g of both directions; h', h of three pools; the last one."""
        each = [((a, b), (1, b), (b, c), (1, c)) for a, b, c in self.sizes]
        parts = iter(self.flat.split([x * y for shapes in each for x, y in shapes]))
        networks = [[next(parts).view(shape) for shape in shapes] for shapes in each]
        kinds = (
            slice(0, 1),
            slice(1, 5, 2),
            slice(2, 5, 2),
            slice(5, 8),
            slice(8, 11),
            slice(11, 12),
        )
        stacks = (zip(*networks[kind], strict=True) for kind in kinds)
        return [tuple(self.torch.stack(same) for same in stack) for stack in stacks]

    def chances(self, board: Board, layers: list[Layer], home: Ints, step: Ints) -> Any:
        """Logarithms of the chance of each device for the group that each state places; [S, D].

        Parameters
        ----------
        home
            i64[S, q], device of each group in each state.
        step
            i64[S], groups that were visited before.
        """
        torch, q, states, w = self.torch, board.q, len(step), self.width
        begin, send, take, inside, outside, choose = layers
        place = torch.from_numpy(board.groups.visits[step])
        said = torch.from_numpy(board.states(home, step))
        start = self._apply(begin, said.view(1, q * states, -1))
        x = start.expand(2, -1, -1)
        for _ in range(self.hops):
            sent = self._apply(send, x).relu().view(2, q, states * w)
            got = torch.bmm(board.edges, sent).view(2, q * states, w)
            taken = self._apply(take, got).relu().view(2, q, states * w)
            x = start + (taken * board.told).view(2, q * states, w)
        both = torch.cat([x[0], x[1]], dim=1)
        added = self._apply(inside, both.expand(3, -1, -1)).relu().view(3, q, states, 2 * w)
        pooled = torch.einsum("psu,pusw->psw", board.share[:, place], added)
        pools = self._apply(outside, pooled).relu()
        own = both.view(q, states, 2 * w)[place, torch.arange(states)]
        logits = self._apply(choose, torch.cat([*pools, own], dim=1)[None])[0]
        return logits.masked_fill(board.never[place], -math.inf).log_softmax(dim=1)

    def _apply(self, layer: Layer, x: Any) -> Any:
        """Networks with one hidden layer, on x[networks, rows, inputs]."""
        hidden = self.torch.baddbmm(layer[1], x, layer[0]).relu()
        return self.torch.baddbmm(layer[3], hidden, layer[2])

    def play(self, board: Board, home: Ints, drawn: Floats) -> Ints:
        """The devices that some episodes take, step by step; i64[B, q].

        Parameters
        ----------
        home
            i64[q], the placement from which all start.
        drawn
            f64[B, q], between 0 and 1, decides what each step takes; see `SURE`.
        """
        now, taken = np.tile(home, (len(drawn), 1)), np.empty(drawn.shape, dtype=np.int64)
        with self.torch.no_grad():
            layers = self.layers()
            for step, v in enumerate(board.groups.visits.tolist()):
                steps, draw = np.full(len(drawn), step), drawn[:, step]
                chance = self.chances(board, layers, now, steps).exp().numpy()
                below = (np.cumsum(chance, axis=1) <= draw[:, None]).sum(axis=1)
                some = np.minimum(below, np.flatnonzero(board.groups.able[v])[-1])
                now[:, v] = taken[:, step] = np.where(draw == SURE, chance.argmax(axis=1), some)
        return taken

    def slopes(self, board: Board, home: Ints, taken: Ints, gain: Floats, spread: float) -> Floats:
        """Derivative of the sum of gain * log(chance taken) + spread * entropy; f64[p].

        `taken` is what `play` returns, and `gain` (f64[B, q]) belongs to each of its steps.
        """
        torch = self.torch
        step = np.tile(np.arange(board.q), len(taken))
        homes = np.concatenate([board.placements(home, row)[:-1] for row in taken])
        self.flat.grad = None
        each = max(MOST_MESSAGES // board.q, 1)
        for first in range(0, len(step), each):
            some = slice(first, first + each)
            logs = self.chances(board, self.layers(), homes[some], step[some])
            logs = logs.masked_fill(logs == -math.inf, 0.0)  # such devices add no entropy
            entropy = -(logs.exp() * logs).sum()
            chosen = logs.gather(1, torch.from_numpy(taken.reshape(-1, 1)[some]))[:, 0]
            gains = torch.from_numpy(gain.reshape(-1)[some])
            ((chosen * gains).sum() + spread * entropy).backward()
        return np.array(self.flat.grad.numpy())


class Seen(NamedTuple):
    """Result of an episode."""

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
    net: FlowNet
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
        """Latency of a placement, i64[q]."""
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
        As for `memory_limits`.
    """
    net = net_of(problem)
    groups = groups_of(problem, net, memory_limits(problem))
    order = falling(net, upward_rank(net))
    drawn = np.where(groups.able, rng.random(groups.able.shape), -1.0)
    home = np.argmax(drawn, axis=1).astype(np.int64)
    made = Ground(problem, net, order, groups, Board(torch, groups), home, 1.0)
    return replace(made, unit=made.latency(home) or 1.0)


def train(
    grounds: Sequence[Ground],
    network: Network,
    episodes: int,
    run: SearchContext,
    seen_one: Callable[[Ground, Seen], None],
) -> tuple[int, int]:
    """Train a network on graphs; with how many episodes, and on how many graphs.

    `seen_one` is told of every episode. It ends early where `run` says so.
    """
    rng, done, used = np.random.default_rng([run.seed, 1]), 0, set[int]()
    adam = network.torch.optim.Adam([network.flat], maximize=True)
    while grounds and done < episodes and not run.stop():
        run.report_progress("training", share=done / episodes)
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
    """Clipped gradient of the weights for a batch; f64[p]."""
    fallen = np.array([seen.cost[:-1] - seen.cost[-1] for seen in batch])
    ground.earned.append(fallen.mean(axis=0))
    gain = (fallen - np.mean(ground.earned, axis=0)) / len(batch)
    taken = np.array([seen.taken for seen in batch])
    slopes = network.slopes(ground.board, ground.home, taken, gain, spread / len(batch))
    norm = float(np.linalg.norm(slopes))
    return slopes * min(1.0, STEEPEST / norm) if 0 < norm < inf else np.zeros(len(slopes))


def placeto(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
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
        room, training = memory_limits(problem), asked.training
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

    def __init__(self, ground: Ground, run: SearchContext) -> None:
        self.ground, self.run = ground, run
        self.value = inf
        self.home: Ints = ground.home

    def take(self, ground: Ground, seen: Seen) -> None:
        """Report the best placement of an episode, if it is of this graph."""
        if ground is not self.ground or not seen.value < self.value:
            return
        self.value, self.home = seen.value, seen.best
        problem = ground.problem
        split = schedule_order(ground.net, self.home[ground.groups.label], ground.order)
        self.run.report_incumbent(split, problem.value(split), "placeto")

    def apply(self, network: Network) -> int:
        """Apply a policy; in how many rounds."""
        self.run.report_progress("applying the policy", value=self.value)
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
