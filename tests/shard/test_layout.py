"""The choice of rules, and that parts put together are the whole."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from dnnp.core.shard.layout import choose
from dnnp.core.shard.rules import WHOLE, Operator, Rule, rules


def brute(
    inputs: list[list[int]], outputs: list[list[int]], ways: list[tuple[Rule, ...]],
    cost: dict[tuple[int, Rule], float], gather: float,
) -> float:  # fmt: skip
    """Least cost over all combinations; what is split and read otherwise is gathered once."""
    best = float("inf")
    for chosen in itertools.product(*ways):
        total = sum(cost[v, rule] for v, rule in enumerate(chosen))
        state = {
            x: s for v, r in enumerate(chosen) for x, s in zip(outputs[v], r.outputs, strict=True)
        }
        needs = {
            x
            for v, r in enumerate(chosen)
            for x, s in zip(inputs[v], r.inputs, strict=True)
            if state.get(x, WHOLE) not in (WHOLE, s)
        }
        best = min(best, total + gather * len(needs))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    inputs, outputs, ways = [], [], []
    for v in range(n):
        read = sorted({rng.randint(0, v) for _ in range(rng.randint(1, 2))})
        offered = [Rule((WHOLE,) * len(read), (WHOLE,), divided=False)]
        for _ in range(rng.randint(0, 2)):
            states = tuple(rng.choice((WHOLE, 0, 1)) for _ in read)
            offered.append(Rule(states, (rng.choice((WHOLE, 0, 1)),)))
        inputs.append(read)
        outputs.append([v + 1])
        ways.append(tuple(dict.fromkeys(offered)))
    cost = {(v, r): float(rng.randint(1, 9)) for v, way in enumerate(ways) for r in way}
    found = choose(inputs, outputs, ways, lambda v, r: cost[v, r], lambda x: 2.0)
    assert found.cost == brute(inputs, outputs, ways, cost, 2.0)
    narrow = choose(inputs, outputs, ways, lambda v, r: cost[v, r], lambda x: 2.0, width=1)
    assert found.cost <= narrow.cost <= sum(cost[v, way[0]] for v, way in enumerate(ways))


Array = NDArray[np.float64]


def compute(op: str, given: list[Array], out: tuple[int, ...]) -> Array:
    """An operator, as far as the cases below need it."""
    if op == "MatMul":
        return np.asarray(given[0] @ given[1])
    if op == "Gemm":
        return np.asarray(given[0] @ given[1] + given[2])
    if op == "Add":
        return np.asarray(given[0] + given[1])
    if op == "Softmax":
        powers = np.exp(given[0])
        return np.asarray(powers / powers.sum(-1, keepdims=True))
    if op == "Transpose":
        return given[0].transpose(0, 2, 1, 3)
    if op == "Gather":
        return np.asarray(given[0][given[1].astype(np.int64)])
    if op == "Conv":  # of 1 x 1
        groups = given[0].shape[1] // given[1].shape[1]
        pairs = zip(np.split(given[0], groups, 1), np.split(given[1], groups, 0), strict=True)
        return np.concatenate([np.einsum("bihw,oixy->bohw", x, w) for x, w in pairs], 1)
    return given[0].reshape(out)


CASES: list[tuple[str, list[tuple[int, ...]], tuple[int, ...], int]] = [
    ("MatMul", [(2, 3, 8), (8, 4)], (2, 3, 4), 2),
    ("MatMul", [(2, 4, 3, 8), (2, 4, 8, 5)], (2, 4, 3, 5), 2),
    ("Gemm", [(3, 8), (8, 4), (4,)], (3, 4), 2),
    ("Add", [(2, 3, 4), (4,)], (2, 3, 4), 2),
    ("Add", [(2, 1, 4), (2, 6, 4)], (2, 6, 4), 3),
    ("Softmax", [(2, 4, 3)], (2, 4, 3), 2),
    ("Transpose", [(1, 3, 4, 5)], (1, 4, 3, 5), 1),
    ("Reshape", [(2, 3, 8)], (2, 3, 4, 2), 2),
    ("Reshape", [(2, 3, 4, 2)], (6, 8), 1),
    ("Gather", [(7, 4), (2, 3)], (2, 3, 4), 1),
    ("Conv", [(1, 4, 3, 3), (6, 4, 1, 1)], (1, 6, 3, 3), 2),
    ("Conv", [(1, 4, 3, 3), (4, 1, 1, 1)], (1, 4, 3, 3), 1),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "out", "least"), CASES)
def test_parts_make_the_whole(
    op: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], least: int
) -> None:
    rng = np.random.default_rng(0)
    given = [rng.normal(size=shape) for shape in shapes]
    if op == "Gather":
        given[1] = rng.integers(0, 7, size=shapes[1]).astype(np.float64)
    whole = compute(op, given, out)
    stored = (op == "Gather", op != "Add" and len(shapes[1:] and shapes[1]) != 0, True)
    if op == "MatMul" and len(shapes[1]) > 2:
        stored = (False, False, False)
    node = Operator(op, tuple(shapes), (out,), stored[: len(shapes)])
    found = rules(node, 2)[1:]
    assert len(found) >= least
    for rule in found:
        parts = []
        for i in range(2):
            mine = [
                x if s == WHOLE else np.split(x, 2, s)[i]
                for x, s in zip(given, rule.inputs, strict=True)
            ]
            if rule.reduced and i and len(mine) > 2:
                mine[2] = np.zeros_like(mine[2])  # a bias is added once
            (axis,) = rule.outputs
            shape = tuple(d // 2 if a == axis else d for a, d in enumerate(out))
            parts.append(compute(op, mine, shape))
        (axis,) = rule.outputs
        made = sum(parts) if rule.reduced else np.concatenate(parts, axis)
        np.testing.assert_allclose(made, whole, rtol=1e-9, atol=1e-9)


def test_nothing_is_known_of_others() -> None:
    node = Operator("NonZero", ((4, 4),), ((2, 4),), (False,))
    assert rules(node, 2) == (Rule((WHOLE,), (WHOLE,), divided=False),)
