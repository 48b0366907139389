"""The policy of Placeto on PyTorch: from a placement to the chance of each device (section 3.2).

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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dnnp.core.baselines.placeto.groups import Groups
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.learned import Policy

WIDTH = 8
"""Numbers of a message, about as many as a group has features."""

HOPS = 8
"""Rounds of message passing."""

HIDDEN = 32
"""Width of the hidden layer of the network that chooses a device."""

MESSAGES = 16_384
"""Messages of a round that are derived at once; what fits a cache."""

SURE = 2.0
"""In place of a number drawn between 0 and 1: take the likeliest device."""


@contextmanager
def pytorch() -> Iterator[Any]:
    """PyTorch on one thread, so that sums do not depend on how many there are.

    Raises
    ------
    UnavailableError
        It is not installed.
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


def sizes_of(devices: int, width: int) -> list[tuple[int, int, int]]:
    """Inputs, hidden and outputs of the twelve networks, in the order of their weights.

    The first; f and g from parents to children, then from children to parents; h' and h of the
    three pools, h' first; the one that chooses. Each has weights, biases, weights, biases.
    """
    both = 2 * width
    features = 2 * devices + 4  # as in `Board.states`
    return [
        (features, width, width),
        *[(width, width, width)] * 4,
        *[(both, both, both)] * 6,
        (4 * both, HIDDEN, devices),
    ]


def count_of(devices: int, width: int) -> int:
    """Weights of a policy."""
    return sum(a * b + b + b * c + c for a, b, c in sizes_of(devices, width))


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


class Board:
    """Groups as PyTorch reads them."""

    def __init__(self, torch: Any, groups: Groups) -> None:
        self.groups = groups
        self.q = len(groups.visits)
        self.rank = np.empty(self.q, dtype=np.int64)
        """i64[q], the step in which each group is visited."""
        self.rank[groups.visits] = np.arange(self.q)
        both = np.array([groups.reads, groups.reads.T])
        member = groups.related.astype(np.float64)
        share = member / np.maximum(member.sum(axis=2, keepdims=True), 1.0)
        self.edges = torch.from_numpy(both)
        """f64[2, q, q], what is told to whom in either direction."""
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
        """What a policy is told: features, the device, whether the group is placed now, and whether
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
        copied: Floats = self.flat.detach().numpy().copy()
        return copied

    def layers(self) -> list[Layer]:
        """The first network; f, g of both directions; h', h of three pools; the last one."""
        made: list[Layer] = []
        at = 0
        for first, count, kinds in ((0, 1, 1), (1, 4, 2), (5, 6, 2), (11, 1, 1)):
            a, b, c = self.sizes[first]
            end = at + count * (a * b + b + b * c + c)
            rows = self.flat[at:end].view(count, -1).split([a * b, b, b * c, c], dim=1)
            shapes = (a, b), (1, b), (b, c), (1, c)
            part = [row.reshape(count, *s) for row, s in zip(rows, shapes, strict=True)]
            if first == 1:  # f and g take turns
                made += [tuple(x[kind::kinds] for x in part) for kind in range(kinds)]
            else:
                made += list(zip(*(x.chunk(kinds) for x in part), strict=True))
            at = end
        return made

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
        each = max(MESSAGES // board.q, 1)
        for first in range(0, len(step), each):
            some = slice(first, first + each)
            logs = self.chances(board, self.layers(), homes[some], step[some])
            logs = logs.masked_fill(logs == -math.inf, 0.0)  # such devices add no entropy
            entropy = -(logs.exp() * logs).sum()
            chosen = logs.gather(1, torch.from_numpy(taken.reshape(-1, 1)[some]))[:, 0]
            gains = torch.from_numpy(gain.reshape(-1)[some])
            ((chosen * gains).sum() + spread * entropy).backward()
        slopes: Floats = self.flat.grad.numpy().copy()
        return slopes
