"""The policy of Placeto once more: plain numpy, every step from scratch, dense matrices."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.search_context import Policy
from dnnp.formats.inputs.policy import sizes_of
from dnnp.samples.papers.placeto import Groups


def _network(policy: Policy, k: int, x: Floats) -> Floats:
    sizes = sizes_of(policy.devices, policy.width)
    at = sum(a * b + b + b * c + c for a, b, c in sizes[:k])
    a, b, c = sizes[k]
    parts = np.split(policy.weights[at:], np.cumsum([a * b, b, b * c, c]))
    hidden = np.maximum(x @ parts[0].reshape(a, b) + parts[1], 0.0)
    made: Floats = hidden @ parts[2].reshape(b, c) + parts[3]
    return made


def chances(groups: Groups, policy: Policy, home: Ints, done: Floats, v: int) -> Floats:
    """Chance of each device for group `v`; `done`: f64[q], 1 where a group was visited."""
    q, devices = groups.able.shape
    current = np.eye(q)[v]
    said = np.column_stack([groups.features, np.eye(devices)[home], current, done])
    begin = _network(policy, 0, said)
    ends = []
    for direction, reads in enumerate((groups.reads, groups.reads.T)):
        x = begin
        for _ in range(policy.hops):
            sent = np.maximum(_network(policy, 1 + 2 * direction, x), 0.0)
            got = np.maximum(_network(policy, 2 + 2 * direction, reads @ sent), 0.0)
            x = begin + got * (reads.sum(axis=1) > 0)[:, None]
        ends.append(x)
    both = np.column_stack(ends)
    reach = np.linalg.matrix_power(np.eye(q) + groups.reads, q) > 0
    before, after = reach[v] & (np.arange(q) != v), reach[:, v] & (np.arange(q) != v)
    joined = []
    for pool, member in enumerate((before, after & ~before, ~reach[v] & ~reach[:, v])):
        inside = np.maximum(_network(policy, 5 + pool, both), 0.0)
        mean = inside[member].sum(axis=0) / max(member.sum(), 1)
        joined.append(np.maximum(_network(policy, 8 + pool, mean[None]), 0.0)[0])
    logits = _network(policy, 11, np.concatenate([*joined, both[v]])[None])[0]
    weight = np.where(groups.able[v], np.exp(logits - logits.max()), 0.0)
    chance: Floats = weight / weight.sum()
    return chance


def worth(
    groups: Groups, policy: Policy, home: Ints, taken: Ints, gain: Floats, spread: float
) -> float:
    """Sum of gain * log(chance taken) + spread * entropy over the steps of an episode."""
    home, done, total = home.copy(), np.zeros(len(home)), 0.0
    for step, v in enumerate(groups.visits.tolist()):
        chance = chances(groups, policy, home, done, v)
        total += gain[step] * np.log(chance[taken[step]])
        some = chance[chance > 0]
        total -= spread * float((some * np.log(some)).sum())
        home[v], done[v] = taken[step], 1.0
    return float(total)
