"""The small networks that the policy consists of: where their weights are, and what they do.

Each has one hidden layer, max(0, .) behind it, and, but for the first and the last, behind its
output: the message functions f and g of both directions, the functions inside and outside of the
three pools (Placeto, Eq. 1 and Fig. 3). All weights are one flat array.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import callee
from dnnp.core.model.graph import Floats, Ints

WIDTH = 8
"""Numbers of a message, about as many as a group has features."""

HOPS = 8
"""Rounds of message passing."""

HIDDEN = 32
"""Width of the hidden layer of the network that chooses a device."""


class Part(IntEnum):
    """The networks; the three pools take groups before, after, and parallel."""

    BEGIN = 0
    SEND, TAKE = 1, 2
    """f and g from parents to children; the next two from children to parents."""
    INSIDE, OUTSIDE = 5, 8
    """Of the first pool; the next two of the others."""
    CHOOSE = 11


BEGIN, SEND, TAKE, INSIDE, OUTSIDE, CHOOSE = (int(part) for part in Part)


def features_of(devices: int) -> int:
    """Features of a group: those of `Groups`, where it is, and whether it is the current one, or
    was visited."""
    return 2 * devices + 4


def shape_of(devices: int, width: int = WIDTH) -> Ints:
    """First weight, inputs, hidden and outputs of every network; i64[13, 4].

    The first entry of the last row is the number of weights.
    """
    both = 2 * width
    sizes = [
        (features_of(devices), width, width),
        *[(width, width, width)] * 4,
        *[(both, both, both)] * 6,
        (4 * both, HIDDEN, devices),
    ]
    shape = np.zeros((len(sizes) + 1, 4), dtype=np.int64)
    for k, (a, b, c) in enumerate(sizes):
        shape[k, 1:] = a, b, c
        shape[k + 1, 0] = shape[k, 0] + a * b + b + b * c + c
    return shape


def first_weights(shape: Ints, rng: np.random.Generator) -> Floats:
    """Weights of a policy that has learned nothing (Glorot and Bengio 2010), biases 0; f64[p].

    The last layer is 0: at first all devices are as likely.
    """
    weights = np.zeros(int(shape[-1, 0]))
    for k, (at, a, b, c) in enumerate(shape[:-1].tolist()):
        edge = math.sqrt(6.0 / (a + b))
        weights[at : at + a * b] = rng.uniform(-edge, edge, a * b)
        edge = 0.0 if k == CHOOSE else math.sqrt(6.0 / (b + c))
        at += a * b + b
        weights[at : at + b * c] = rng.uniform(-edge, edge, b * c)
    return weights


@callee
def apply(
    shape: Ints, k: int, weights: Floats, x: Floats, i: int, hidden: Floats, y: Floats, j: int
) -> None:
    """Row `j` of `hidden` and `y` from row `i` of `x`, by network `k`; its output as it is."""
    at, a, b, c = shape[k, 0], shape[k, 1], shape[k, 2], shape[k, 3]
    for r in range(b):
        hidden[j, r] = weights[at + a * b + r]
    for p in range(a):
        v = x[i, p]
        if v != 0.0:
            for r in range(b):
                hidden[j, r] += v * weights[at + p * b + r]
    at += a * b + b
    for r in range(c):
        y[j, r] = weights[at + b * c + r]
    for p in range(b):
        v = hidden[j, p]
        if v > 0.0:
            for r in range(c):
                y[j, r] += v * weights[at + p * c + r]
        else:
            hidden[j, p] = 0.0


@callee
def rectify(y: Floats, j: int) -> None:
    """max(0, .) of row `j`."""
    for r in range(y.shape[1]):
        if not y[j, r] > 0.0:
            y[j, r] = 0.0


@callee
def unrectify(y: Floats, j: int, slope: Floats, s: int) -> None:
    """The derivative by what was rectified, in place: row `s` of `slope`, for row `j` of `y`."""
    for r in range(y.shape[1]):
        if not y[j, r] > 0.0:
            slope[s, r] = 0.0


class Uphill(NamedTuple):
    """What derivatives by weights are made of."""

    shape: Ints
    turned: Floats
    """f64[p], the weights, each matrix transposed: sums then run over what lies side by side."""
    slopes: Floats
    """f64[p], the derivatives."""
    inside: Floats
    """Scratch, for the hidden layer."""


@callee
def turn(shape: Ints, weights: Floats, turned: Floats) -> None:
    """Fill `turned`, as `Uphill` has it."""
    for k in range(len(shape) - 1):
        at, a, b, c = shape[k, 0], shape[k, 1], shape[k, 2], shape[k, 3]
        for p in range(a):
            for r in range(b):
                turned[at + r * a + p] = weights[at + p * b + r]
        at += a * b + b
        for p in range(b):
            for r in range(c):
                turned[at + r * b + p] = weights[at + p * c + r]


@callee
def unapply(
    up: Uphill,
    k: int,
    x: Floats,
    i: int,
    hidden: Floats,
    j: int,
    by_y: Floats,
    s: int,
    by_x: Floats,
    t: int,
) -> None:
    """Derivatives by the weights and row `t` of `by_x`, which are added, from row `s` of `by_y`.

    The other rows are those of `apply`.
    """
    slopes, turned, inside = up.slopes, up.turned, up.inside
    at, a, b, c = up.shape[k, 0], up.shape[k, 1], up.shape[k, 2], up.shape[k, 3]
    middle, last = at + a * b, at + a * b + b
    for p in range(b):
        inside[p] = 0.0
    for r in range(c):
        v = by_y[s, r]
        if v != 0.0:
            slopes[last + b * c + r] += v
            for p in range(b):
                inside[p] += v * turned[last + r * b + p]
    for p in range(b):
        v = hidden[j, p]
        if v > 0.0:
            slopes[middle + p] += inside[p]
            for r in range(c):
                slopes[last + p * c + r] += v * by_y[s, r]
        else:
            inside[p] = 0.0
    for r in range(b):
        v = inside[r]
        if v != 0.0:
            for p in range(a):
                by_x[t, p] += v * turned[at + r * a + p]
    for p in range(a):
        v = x[i, p]
        if v != 0.0:
            for r in range(b):
                slopes[at + p * b + r] += v * inside[r]
