"""Policies that are learned: their weights, what is asked of training, and what was done."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.graph import Floats


@dataclass(frozen=True, eq=False)
class Policy:
    """Weights of a network that places groups of operators, for a number of devices."""

    devices: int
    hops: int
    """Rounds of message passing."""
    width: int
    """Numbers by which a message describes a group."""
    weights: Floats
    """f64[p], all in one."""
    episodes: int = 0
    """With which they were trained."""
    graphs: int = 0
    """On which they were trained."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of devices, hops, width and weights."""
        sizes = np.array([self.devices, self.hops, self.width], dtype="<i8")
        plain = np.ascontiguousarray(self.weights, dtype="<f8")
        return hashlib.sha256(sizes.tobytes() + plain.tobytes()).hexdigest()


@dataclass(frozen=True)
class Training:
    """What is asked of a method that learns."""

    policy: Policy | None = None
    """Where to start from; None: weights are drawn."""
    family: tuple[Any, ...] = ()
    """Latency problems to train on; empty: the one that is to be solved."""
    episodes: int | None = None
    """Of training; None: by effort, and none for a given policy that no family comes with."""


class PolicyUsed(NamedTuple):
    """What a plan tells of the policy that made it."""

    digest: str
    """Of its weights."""
    trained: int
    """Episodes of training, all in all; 0: its weights are drawn."""
    episodes: int
    """Those of this run."""
    asked: int
    """Episodes that were to be; more than `episodes`: it was stopped."""
    graphs: int
    """On which those of this run were."""
    hops: int
    groups: int
    colors: int
    rounds: int
    """As in `Learned`."""


class Learned(NamedTuple):
    """How a policy came to be that made a split, and how it was applied."""

    policy: Policy
    episodes: int
    """Of training in this run."""
    asked: int
    """Episodes that were to be; more than `episodes`: it was stopped."""
    graphs: int
    """On which they were."""
    groups: int
    """Groups that were placed."""
    colors: int
    """Operators, or operators that must be together: if more than `groups`, they were merged."""
    rounds: int
    """In each of which all groups were visited by the policy that was then learned."""

    def told(self) -> PolicyUsed:
        """What a plan tells of it."""
        policy = self.policy
        return PolicyUsed(
            policy.digest,
            policy.episodes,
            self.episodes,
            self.asked,
            self.graphs,
            policy.hops,
            self.groups,
            self.colors,
            self.rounds,
        )
