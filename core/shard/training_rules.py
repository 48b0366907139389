"""Rules for training alone, besides those of `dnnp.core.shard.rules`.

Sums that are left split, reductions along other axes, and experts of a mixture: each device may
have experts of its own (Shazeer et al. 2017, "Outrageously large neural networks"). What belongs to
an expert is with one device then, its share of the time and memory is that of the average device,
and what experts add to all words is summed up once, when all have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dnnp.core.model.shards import WHOLE
from dnnp.core.shard.rules import Operator, Rule, Shape, part

ADDED, OWNED = -2, -3
"""States of tensors: each device has an addend of it; one device has it, others have those of their
own experts."""

ON_ALL = (WHOLE, ADDED)
"""States of which the gradient is whole on every device."""

_REDUCED = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")
_JOIN = "ScatterND"
_EXPERT = re.compile(r"(.*?experts?)[./](\d+)(?:/.*)?")


def share_of(state: int, t: int) -> float:
    """Share of a tensor that each of `t` devices has."""
    return 1.0 if state == ADDED else part(state, t)


def more_rules(node: Operator, own: Sequence[Rule], t: int) -> Iterator[Rule]:
    """Further rules of a node that has some.

    A rule that ends with a sum may leave it split along an axis but the last. What reduces axes may
    be split along another one, which shapes tell.
    """
    for rule in own:
        for shape in node.outputs if rule.reduced and len(node.outputs) == 1 else ():
            yield from (
                replace(rule, outputs=(axis,)) for axis in _divisible((shape or ())[:-1], t)
            )
    if node.op in _REDUCED and len(node.outputs) == 1:
        shape, out = node.inputs[0], node.outputs[0]
        if shape is None or out is None or len(shape) != len(out):
            return
        others = (WHOLE,) * (len(node.inputs) - 1)
        for axis in _divisible(out, t):
            if shape[axis] == out[axis]:
                yield Rule((axis, *others), (axis,))


def _divisible(shape: Shape, t: int) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size > 0 and size % t == 0]


class _Expert(NamedTuple):
    """What an operator belongs to."""

    mixture: str
    number: int


class Mixtures:
    """Experts that may be divided among devices, by their name scopes (`.../experts.3/...`).

    A mixture is one if its experts do the same, as many for each device, and none reads what
    another makes, but to add to it.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, Operator]],
        reads: Sequence[Sequence[int]],
        writes: Sequence[Sequence[int]],
        t: int,
    ) -> None:
        """Find them; `nodes`: name scope and operator of each, in topological order."""
        self._reads = reads
        self._ops = [operator.op for _, operator in nodes]
        self._stored = [operator.stored for _, operator in nodes]
        found = {i: one for i, (scope, _) in enumerate(nodes) if (one := _expert_of(scope))}
        self._maker = {x: i for i, given in enumerate(writes) for x in given}
        self._of = _even(found, [operator for _, operator in nodes], t)
        broken = {self._of[i].mixture for i in self._of if self._depends(i)}
        self._of = {i: one for i, one in self._of.items() if one.mixture not in broken}
        self._readers: dict[int, set[_Expert | None]] = {}
        for i, taken in enumerate(reads):
            for x in taken:
                self._readers.setdefault(x, set()).add(self._of.get(i))

    def __bool__(self) -> bool:
        return bool(self._of)

    def _depends(self, i: int) -> bool:
        """Whether a node of an expert reads what another expert makes, but to add to it."""
        own = self._of[i]
        for position, x in enumerate(self._reads[i]):
            other = self._of.get(self._maker.get(x, -1))
            if other is None or other.mixture != own.mixture or other == own:
                continue
            joins = self._ops[self._maker[x]] == _JOIN == self._ops[i] and position == 0
            if not joins:
                return True
        return False

    def rules(self, i: int, outputs: int) -> Iterator[Rule]:
        """The rule of a node of an expert, if it is one."""
        own = self._of.get(i)
        if own is None:
            return
        joins = self._ops[i] == _JOIN
        states = []
        for position, x in enumerate(self._reads[i]):
            maker = self._maker.get(x)
            if joins and position == 0:
                states.append(ADDED)
            elif maker is None:
                alone = self._stored[i][position] and self._readers[x] == {own}
                states.append(OWNED if alone else WHOLE)
            else:
                mine = self._of.get(maker) == own and self._ops[maker] != _JOIN
                states.append(OWNED if mine else WHOLE)
        yield Rule(tuple(states), (ADDED if joins else OWNED,) * outputs)

    def balanced(self, rules: Sequence[Rule]) -> bool:
        """Whether all experts of each mixture run alike, so that devices have as much to do."""
        ways: dict[_Expert, list[bool]] = {}
        for i, one in self._of.items():
            ways.setdefault(one, []).append(rules[i].outputs[:1] in ((ADDED,), (OWNED,)))
        alike: dict[str, list[bool]] = {}
        return all(alike.setdefault(one.mixture, way) == way for one, way in ways.items())


def _expert_of(scope: str) -> _Expert | None:
    match = _EXPERT.fullmatch(scope)
    return None if match is None else _Expert(match[1], int(match[2]))


def _even(found: Mapping[int, _Expert], nodes: Sequence[Operator], t: int) -> dict[int, _Expert]:
    """Those of mixtures whose experts do the same, as many on each device."""
    work: dict[str, dict[int, list[tuple[str, tuple[Shape | None, ...]]]]] = {}
    for i, (mixture, number) in found.items():
        work.setdefault(mixture, {}).setdefault(number, []).append((nodes[i].op, nodes[i].outputs))
    even = {
        mixture
        for mixture, experts in work.items()
        if len(experts) % t == 0
        and all(one == next(iter(experts.values())) for one in experts.values())
    }
    return {i: one for i, one in found.items() if one.mixture in even}
