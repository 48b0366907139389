"""The cheapest rule for every node: a search along the topological order.

A state of the beam search is a position and the states of tensors with later readers; of equal
states the cheapest stays, and of all states the cheapest, some of them for each state of the
tensors that are read much later. Without a limit the result is optimal for the rules. A split
tensor with readers of another state is gathered once.

With a backward pass the gradient of a tensor has the state of the tensor: split along the same
axis, or whole. Each reader makes one of its part of the tensor. If that is a part of a whole
tensor, its gradient is a part of the whole (`APART`); if parts of its arithmetic take all of the
tensor, each has an addend (`ADDENDS`). The gradients of the readers are added up, and exchanged
once: missing parts count as addends of zero. So f and g of Shoeybi et al. 2019
("Megatron-LM") come out: an all-reduce forward or backward wherever a product begins or ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from dnnp.core.model.shards import WHOLE
from dnnp.core.tensor_parallel.rules import ADDED, ON_ALL, Rule

COMPLETE, APART, ADDENDS = 0, 1, 2
"""Lacks of gradients of a tensor: nothing, parts that other devices have, or the sum."""

CLASSES = 4
"""Multiple of `width` that is kept in all, where there are more states."""
FAR = 32
"""Nodes from which on that is much later."""


@dataclass(frozen=True)
class Backward:
    """Backward pass: the parts that affect the layout."""

    gradients: tuple[frozenset[int], ...]
    """Of each node its inputs with gradients by its backward node."""
    trained: frozenset[int]
    """Parameters among them: each is stored as the first node that reads it needs it."""
    exchange: Callable[[int, int, bool], float]
    """Seconds to complete the gradient of a tensor, by what it lacks; True: whole, False: split."""


@dataclass(frozen=True)
class Layout:
    """The rule of every node on t devices."""

    rules: tuple[Rule, ...]
    gathered: tuple[tuple[int, ...], ...]
    """Of each node the tensors that are gathered for it, for the first time."""
    state: dict[int, int]
    """Tensor -> its state when it has been made; of what nodes make, and trained parameters."""
    cost: float
    """Seconds in all."""
    lacking: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Tensor -> node with the backward node that exchanges its gradient, and what it lacks: the
    first reader with an incomplete one, as that runs last in the backward pass."""


class _Path(NamedTuple):
    cost: float
    rule: Rule | None
    before: _Path | None


class _Stand(NamedTuple):
    """The state of a tensor in the search."""

    state: int = WHOLE
    gathered: bool = False
    lacks: int = COMPLETE


_Stands = dict[int, _Stand]
_Key = tuple[tuple[int, _Stand], ...]


def lacks(rule: Rule, need: int, have: int) -> int:
    """Lack of the gradient that a reader of a tensor makes.

    Parameters
    ----------
    rule
        How the reader runs.
    need
        State that it takes the tensor in.
    have
        State of the tensor when it was made.
    """
    if need == ADDED:  # what is added to a sum has the gradient of the sum
        return COMPLETE
    if need != WHOLE:
        return COMPLETE if need == have else APART
    return ADDENDS if rule.divided and not rule.reduced else COMPLETE


@dataclass(frozen=True)
class _Graph:
    """The graph and its prices, which do not change during a search."""

    inputs: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    gather: Callable[[int], float]
    backward: Backward
    made: frozenset[int]
    begins: dict[int, int]
    """Trained parameter -> the first node that reads it."""

    def after(
        self, v: int, rule: Rule, stands: _Stands
    ) -> tuple[_Stands, list[int], list[tuple[int, int]], float]:
        """Node v by a rule.

        Returns
        -------
        States of its tensors afterwards, tensors gathered for it, gradients that lack more than
        before, and the seconds of both.
        """
        made = self.made
        new: _Stands = {}
        gathered: list[int] = []
        lacking: list[tuple[int, int]] = []
        cost = 0.0
        for x, need in zip(self.inputs[v], rule.inputs, strict=True):
            if x not in made and x not in self.begins:
                continue
            stand = new.get(x) or stands.get(x) or _Stand()
            have = need if self.begins.get(x) == v and x not in new else stand.state
            was_gathered, lacked = stand.gathered, stand.lacks
            if WHOLE != have != need and not was_gathered:
                gathered.append(x)
                summed = have == ADDED
                cost += self.backward.exchange(x, ADDENDS, True) if summed else self.gather(x)
                was_gathered = True
            if x in self.backward.gradients[v]:
                more = lacks(rule, need, have)
                if more > lacked:
                    becomes_whole = have in ON_ALL
                    cost += self.backward.exchange(x, more, becomes_whole)
                    if lacked:
                        cost -= self.backward.exchange(x, lacked, becomes_whole)
                    lacking.append((x, more))
                    lacked = more
            new[x] = _Stand(have, was_gathered, lacked)
        for x, state in zip(self.outputs[v], rule.outputs, strict=True):
            new[x] = _Stand(state)
        return new, gathered, lacking, cost


def choose(
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    ways: Sequence[Sequence[Rule]],
    time: Callable[[int, Rule], float],
    gather: Callable[[int], float],
    width: int = 16,
    backward: Backward | None = None,
) -> Layout:
    """Choose rules.

    Parameters
    ----------
    inputs, outputs
        Tensors of each node, in topological order.
    ways
        Rules of each node, of which the first takes and gives whole tensors.
    time
        Seconds of a node by a rule, its all-reduce and its backward node included.
    gather
        Seconds to gather a tensor.
    width
        A quarter of the states that are kept.
    backward
        The backward pass, if there is one.

    Notes
    -----
    Never dearer than the first rule of each node.
    """
    last = {x: v for v, read in enumerate(inputs) for x in read}
    if backward is None:
        backward = Backward((frozenset(),) * len(inputs), frozenset(), lambda *_: 0.0)
    begins = {x: v for v in reversed(range(len(inputs))) for x in inputs[v]}
    graph = _Graph(
        inputs,
        outputs,
        gather,
        backward,
        frozenset(x for given in outputs for x in given),
        {x: begins[x] for x in sorted(backward.trained) if x in begins},
    )
    whole = _Path(0.0, None, None)
    beam: dict[_Key, _Path] = {(): whole}
    for v, offered in enumerate(ways):
        prices = [(rule, time(v, rule)) for rule in offered]
        near = frozenset(inputs[v])
        steps: dict[_Key, list[tuple[float, Rule, _Key]]] = {}
        found: dict[_Key, _Path] = {}
        for key, path in beam.items():
            touched = tuple(one for one in key if one[0] in near)
            rest = tuple(one for one in key if one[0] not in near) if touched else key
            if touched not in steps:
                steps[touched] = _steps(graph, v, prices, touched, last)
            for seconds, rule, changed in steps[touched]:
                cost = path.cost + seconds
                after = tuple(sorted(rest + changed)) if changed else rest
                if after not in found or cost < found[after].cost:
                    found[after] = _Path(cost, rule, path)
        beam = _cheapest(found, partial(_is_far, last, v), width)
        whole = _Path(whole.cost + prices[0][1], prices[0][0], whole)
    return _layout(graph, min((*beam.values(), whole), key=lambda path: path.cost))


def _is_far(last: dict[int, int], v: int, x: int) -> bool:
    return last[x] > v + FAR


def _steps(
    graph: _Graph,
    v: int,
    prices: Sequence[tuple[Rule, float]],
    touched: _Key,
    last: dict[int, int],
) -> list[tuple[float, Rule, _Key]]:
    """Ways to go on with node v: seconds, rule, and how its tensors stand that are read later.

    `touched` are those that it reads. Of several ways to the same end the cheapest is left.
    """
    plain = _Stand()
    found: dict[_Key, tuple[float, Rule, _Key]] = {}
    for rule, seconds in prices:
        new, _, _, more = graph.after(v, rule, dict(touched))
        ended = tuple((x, s) for x, s in new.items() if s != plain and last.get(x, -1) > v)
        if ended not in found or seconds + more < found[ended][0]:
            found[ended] = seconds + more, rule, ended
    return list(found.values())


def _cheapest(
    found: dict[_Key, _Path], far: Callable[[int], bool], width: int
) -> dict[_Key, _Path]:
    """The `width` cheapest states, and more of every way that tensors stand which are read later.

    How these stand may pay only then: a table of words that scores read at the end, or words that
    all experts of a mixture read. The cheapest of each way go first, then the second ones, and so
    on, until there are `CLASSES` times as many.
    """
    ranked = sorted(found.items(), key=lambda item: item[1].cost)
    if len(ranked) <= CLASSES * width:
        return dict(ranked)
    seen: Counter[_Key] = Counter()
    others = []
    for place, (key, _) in enumerate(ranked):
        way = tuple(one for one in key if far(one[0]))
        if place >= width:
            others.append((seen[way], place))
        seen[way] += 1
    more = sorted(others)[: (CLASSES - 1) * width]
    return dict([*ranked[:width], *(ranked[place] for _, place in more)])


def _layout(graph: _Graph, best: _Path) -> Layout:
    """Replay a path of the search."""
    taken: list[Rule] = []
    path: _Path | None = best
    while path is not None and path.rule is not None:
        taken.append(path.rule)
        path = path.before
    taken.reverse()
    gathered = []
    lacking: dict[int, tuple[int, int]] = {}
    stands: _Stands = {}
    for v, rule in enumerate(taken):
        new, missing, lacked, _ = graph.after(v, rule, stands)
        stands |= new
        gathered.append(tuple(missing))
        for x, what in lacked:
            first, _ = lacking.get(x, (v, what))
            lacking[x] = first, what
    state = {x: stands[x].state for x in sorted(stands)}
    return Layout(tuple(taken), tuple(gathered), state, best.cost, lacking)
