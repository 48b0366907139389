"""The choice of rules, and that parts put together are the whole."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from dnnp.core.model.shards import WHOLE, axis_of, block_state, blocks_of
from dnnp.core.tensor_parallel.layout import ADDENDS, COMPLETE, Backward, choose, lacks
from dnnp.core.tensor_parallel.rules import ADDED, Operator, Rule, rules, with_blocks


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


def brute_training(
    inputs: list[list[int]], outputs: list[list[int]], ways: list[tuple[Rule, ...]],
    cost: dict[tuple[int, Rule], float], backward: Backward,
) -> float:  # fmt: skip
    """Least cost over all combinations with both passes.

    A parameter is stored as its first reader needs it. The gradient of a tensor is exchanged if
    some reader computes but a part of it: its own part, or what its part of the work adds.
    """
    readers: dict[int, list[int]] = {}
    for v, read in enumerate(inputs):
        for x in read:
            readers.setdefault(x, []).append(v)
    best = float("inf")
    for chosen in itertools.product(*ways):
        total = sum(cost[v, rule] for v, rule in enumerate(chosen))
        state = {
            x: s for v, r in enumerate(chosen) for x, s in zip(outputs[v], r.outputs, strict=True)
        }

        def need(v: int, x: int, chosen: tuple[Rule, ...] = chosen) -> int:
            return chosen[v].inputs[inputs[v].index(x)]

        state |= {x: need(readers[x][0], x) for x in backward.trained if x in readers}
        for x, have in state.items():
            taken = [need(v, x) for v in readers.get(x, [])]
            gather = backward.exchange(x, 2, True) if have == ADDED else 2.0
            total += gather * (have != WHOLE and any(n != have for n in taken))
            partial = split = False
            for v in readers.get(x, []):
                if x not in backward.gradients[v] or need(v, x) == ADDED:
                    continue
                if need(v, x) == WHOLE:
                    partial |= chosen[v].divided and not chosen[v].reduced
                else:
                    split |= need(v, x) != have
            if partial or split:
                total += backward.exchange(x, 2 if partial else 1, have in (WHOLE, ADDED))
        best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_both_passes_equal_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 5)
    inputs, outputs, ways, gradients = [], [], [], []
    for v in range(n):
        read = sorted({rng.randint(0, v) for _ in range(rng.randint(1, 2))})
        read += [10 + rng.randint(0, 1)] * (rng.random() < 0.6)
        offered = [Rule((WHOLE,) * len(read), (WHOLE,), divided=False)]
        for _ in range(rng.randint(0, 2)):
            states = tuple(rng.choice((WHOLE, 0, 1, ADDED)) for _ in read)
            made = rng.choice((WHOLE, 0, ADDED))
            offered.append(Rule(states, (made,), reduced=rng.random() < 0.3))
        inputs.append(read)
        outputs.append([v + 1])
        ways.append(tuple(dict.fromkeys(offered)))
        gradients.append(frozenset(x for x in read if x and rng.random() < 0.8))
    cost = {(v, r): float(rng.randint(1, 9)) for v, way in enumerate(ways) for r in way}
    price = {(x, what): float(rng.randint(what, 2 * what)) for x in range(12) for what in (1, 2)}
    backward = Backward(
        tuple(gradients),
        frozenset(x for some in gradients for x in some if x >= 10),
        lambda x, what, whole: price[x, what] * (2 if whole else 1),
    )
    found = choose(
        inputs, outputs, ways, lambda v, r: cost[v, r], lambda x: 2.0, width=999, backward=backward
    )
    assert found.cost == brute_training(inputs, outputs, ways, cost, backward)
    # What is said to be exchanged adds up to the cost.
    again = sum(cost[v, rule] for v, rule in enumerate(found.rules))
    for x in itertools.chain(*found.gathered):
        again += backward.exchange(x, 2, True) if found.state[x] == ADDED else 2.0
    for x, (v, what) in found.lacking.items():
        again += backward.exchange(x, what, found.state[x] in (WHOLE, ADDED))
        assert x in gradients[v]
    assert again == found.cost


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
        rows = given[1].astype(np.int64)
        mine = (rows >= 0) & (rows < len(given[0]))
        return np.where(mine[..., None], given[0][np.where(mine, rows, 0)], 0.0)
    if op == "Conv":  # of 1 x 1
        groups = given[0].shape[1] // given[1].shape[1]
        pairs = zip(np.split(given[0], groups, 1), np.split(given[1], groups, 0), strict=True)
        return np.concatenate([np.einsum("bihw,oixy->bohw", x, w) for x, w in pairs], 1)
    return given[0].reshape(out)


def part_of(x: Array, state: int, i: int) -> Array:
    """The part of a tensor on the i-th of two devices."""
    if state == WHOLE:
        return x
    parts = np.split(x, 2 * blocks_of(state), axis_of(state))
    return np.concatenate(parts[i::2], axis_of(state))


def put_together(parts: list[Array], state: int) -> Array:
    """The whole tensor, from what two devices have of it."""
    pieces = [np.split(x, blocks_of(state), axis_of(state)) for x in parts]
    return np.concatenate([x for pair in zip(*pieces, strict=True) for x in pair], axis_of(state))


CASES: list[tuple[str, list[tuple[int, ...]], tuple[int, ...], int, tuple[int, ...]]] = [
    ("MatMul", [(2, 3, 8), (8, 4)], (2, 3, 4), 2, ()),
    ("MatMul", [(2, 3, 8), (8, 12)], (2, 3, 12), 4, (2, 3)),
    ("MatMul", [(2, 4, 3, 8), (2, 4, 8, 5)], (2, 4, 3, 5), 2, ()),
    ("Gemm", [(3, 8), (8, 4), (4,)], (3, 4), 2, ()),
    ("Gemm", [(3, 8), (8, 12), (12,)], (3, 12), 3, (3,)),
    ("Add", [(2, 3, 4), (4,)], (2, 3, 4), 2, ()),
    ("Add", [(2, 3, 12), (12,)], (2, 3, 12), 3, (3,)),
    ("Add", [(2, 1, 4), (2, 6, 4)], (2, 6, 4), 3, ()),
    ("Softmax", [(2, 4, 3)], (2, 4, 3), 2, ()),
    ("Transpose", [(1, 3, 4, 5)], (1, 4, 3, 5), 1, ()),
    ("Reshape", [(2, 3, 8)], (2, 3, 4, 2), 2, ()),
    ("Reshape", [(2, 3, 4, 2)], (6, 8), 1, ()),
    ("Gather", [(7, 4), (2, 3)], (2, 3, 4), 1, ()),
    ("Gather", [(6, 4), (2, 3)], (2, 3, 4), 2, ()),
    ("Conv", [(1, 4, 3, 3), (6, 4, 1, 1)], (1, 6, 3, 3), 2, ()),
    ("Conv", [(1, 4, 3, 3), (4, 1, 1, 1)], (1, 4, 3, 3), 1, ()),
]  # fmt: skip


def drawn(rng: np.random.Generator, op: str, shapes: list[tuple[int, ...]]) -> list[Array]:
    """Random inputs of an operator."""
    given: list[Array] = [rng.normal(size=shape) for shape in shapes]
    if op == "Gather":
        given[1] = rng.integers(0, shapes[0][0], size=shapes[1]).astype(np.float64)
    return given


@pytest.mark.parametrize(("op", "shapes", "out", "least", "blocks"), CASES)
def test_parts_make_the_whole(
    op: str,
    shapes: list[tuple[int, ...]],
    out: tuple[int, ...],
    least: int,
    blocks: tuple[int, ...],
) -> None:
    given = drawn(np.random.default_rng(0), op, shapes)
    whole = compute(op, given, out)
    stored = (op == "Gather", op != "Add" and len(shapes[1:] and shapes[1]) != 0, True)
    if op == "MatMul" and len(shapes[1]) > 2:
        stored = (False, False, False)
    node = Operator(op, tuple(shapes), (out,), stored[: len(shapes)], blocks)
    found = rules(node, 2)[1:]
    assert len(found) >= least
    for rule in found:
        parts = []
        (state,) = rule.outputs
        for i in range(2):
            mine = [part_of(x, s, i) for x, s in zip(given, rule.inputs, strict=True)]
            if op == "Gather" and rule.reduced:
                mine[1] = mine[1] - i * len(mine[0])
            elif rule.reduced and i and len(mine) > 2:
                mine[2] = np.zeros_like(mine[2])  # a bias is added once
            shape = tuple(
                d // 2 if state != WHOLE and a == axis_of(state) else d for a, d in enumerate(out)
            )
            parts.append(compute(op, mine, shape))
        made = sum(parts) if rule.reduced else put_together(parts, state)
        np.testing.assert_allclose(made, whole, rtol=1e-9, atol=1e-9)


def slope(op: str, given: list[Array], out: tuple[int, ...], at: int, dy: Array) -> Array:
    """Gradient of the sum of dy times the output, by an input; by an imaginary step."""
    found = np.zeros(given[at].shape)
    for index in np.ndindex(*found.shape):
        moved = [x.astype(complex) if i == at else x for i, x in enumerate(given)]
        moved[at][index] += 1e-30j
        found[index] = (dy * compute(op, moved, out)).sum().imag / 1e-30
    return found


@pytest.mark.parametrize(("op", "shapes", "out", "least", "blocks"), CASES)
def test_gradients_lack_what_is_said(
    op: str,
    shapes: list[tuple[int, ...]],
    out: tuple[int, ...],
    least: int,
    blocks: tuple[int, ...],
) -> None:
    """Two devices, each with its part: their gradients are parts of the whole, or addends."""
    rng = np.random.default_rng(1)
    given = drawn(rng, op, shapes)
    stored = (
        op == "Gather",
        (op != "Add" and len(shapes[1:] and shapes[1]) == 2) or op == "Conv",
        True,
    )
    dy = rng.normal(size=out)
    node = Operator(op, tuple(shapes), (out,), stored[: len(shapes)], blocks)
    said = set()
    for rule in rules(node, 2):
        (state,) = rule.outputs
        shape = tuple(
            d // 2 if state != WHOLE and a == axis_of(state) else d for a, d in enumerate(out)
        )
        for at, need in enumerate(rule.inputs):
            if op == "Gather" and at == 1:
                continue
            whole = slope(op, given, out, at, dy)
            found = []
            for i in range(2):
                mine = [part_of(x, s, i) for x, s in zip(given, rule.inputs, strict=True)]
                if op == "Gather" and rule.reduced:
                    mine[1] = mine[1] - i * len(mine[0])
                found.append(slope(op, mine, shape, at, part_of(dy, state, i)))
            what = lacks(rule, need, need)
            said.add(what)
            if what == ADDENDS:
                np.testing.assert_allclose(sum(found), whole, rtol=1e-9, atol=1e-9)
            else:
                assert what == COMPLETE
                for i, own in enumerate(found):
                    np.testing.assert_allclose(own, part_of(whole, need, i), rtol=1e-9, atol=1e-9)
    assert COMPLETE in said


def test_what_is_taken_apart_is_split_in_blocks() -> None:
    node = Operator("Split", ((2, 12),), ((2, 4),) * 3, (False,))
    found = rules(node, 2)[1:]
    assert found == (Rule((0,), (0,) * 3), Rule((block_state(1, 3),), (1,) * 3))
    x = np.arange(24.0).reshape(2, 12)
    for i in range(2):
        mine = np.split(part_of(x, block_state(1, 3), i), 3, 1)
        for taken, whole in zip(mine, np.split(x, 3, 1), strict=True):
            np.testing.assert_array_equal(taken, part_of(whole, 1, i))
    # A product and the sum after it learn of it; what comes before the product does not.
    before = Operator("Relu", ((2, 5),), ((2, 5),), (False,))
    product = Operator("MatMul", ((2, 5), (5, 12)), ((2, 12),), (False, True))
    shift = Operator("Add", ((2, 12), (12,)), ((2, 12),), (False, True))
    reads, writes = [[0], [1, 2], [3, 4], [5]], [[1], [3], [5], [6, 7, 8]]
    informed = with_blocks([before, product, shift, node], reads, writes)
    assert [one.blocks for one in informed] == [(), (3,), (3,), ()]


def test_nothing_is_known_of_others() -> None:
    node = Operator("NonZero", ((4, 4),), ((2, 4),), (False,))
    assert rules(node, 2) == (Rule((WHOLE,), (WHOLE,), divided=False),)
