"""The cheapest rule for every node: a search along the topological order.

A state of the search is how far it came, and how tensors that are still read stand; of those with
equal states the cheapest stays, and of all states the `width` cheapest. With no more states
the result is optimal for the rules. What is split and read otherwise is gathered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dnnp.core.shard.rules import WHOLE, Rule


@dataclass(frozen=True)
class Layout:
    """How every node runs on t devices."""

    rules: tuple[Rule, ...]
    gathered: tuple[tuple[int, ...], ...]
    """Of each node the tensors that are gathered for it, for the first time."""
    state: dict[int, int]
    """Tensor -> its state when it has been made; of what nodes make."""
    cost: float
    """Seconds in all."""


@dataclass(frozen=True)
class _Path:
    cost: float
    rule: Rule | None = None
    gathered: tuple[int, ...] = ()
    before: _Path | None = None


_GATHERED = 1 << 16
"""Added to the state of a tensor that has been gathered besides."""


def choose(
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    ways: Sequence[Sequence[Rule]],
    time: Callable[[int, Rule], float],
    gather: Callable[[int], float],
    width: int = 64,
) -> Layout:
    """Choose rules.

    Parameters
    ----------
    inputs, outputs
        Tensors of each node, in topological order.
    ways
        Rules of each node, of which the first takes and gives whole tensors.
    time
        Seconds of a node by a rule, its all-reduce included.
    gather
        Seconds to gather a tensor.
    width
        States that are kept.

    Notes
    -----
    Never dearer than the first rule of each node.
    """
    last = {x: v for v, read in enumerate(inputs) for x in read}
    made = {x for given in outputs for x in given}
    whole = _Path(0.0)
    beam: dict[tuple[tuple[int, int], ...], _Path] = {(): whole}
    for v, offered in enumerate(ways):
        prices = [(rule, time(v, rule)) for rule in offered]
        found: dict[tuple[tuple[int, int], ...], _Path] = {}
        for key, path in beam.items():
            for rule, seconds in prices:
                states = dict(key)
                missing = []
                for x, need in zip(inputs[v], rule.inputs, strict=True):
                    have = states.get(x, WHOLE)
                    if x in made and WHOLE != have < _GATHERED and have != need:
                        missing.append(x)
                        states[x] = have + _GATHERED
                for x, state in zip(outputs[v], rule.outputs, strict=True):
                    states[x] = state
                cost = path.cost + seconds + sum(map(gather, missing))
                after = tuple(
                    sorted((x, s) for x, s in states.items() if s != WHOLE and last.get(x, -1) > v)
                )
                if after not in found or cost < found[after].cost:
                    found[after] = _Path(cost, rule, tuple(missing), path)
        kept = sorted(found.items(), key=lambda item: item[1].cost)
        beam = dict(kept[:width])
        whole = _Path(whole.cost + prices[0][1], prices[0][0], (), whole)
    best = min((*beam.values(), whole), key=lambda path: path.cost)
    return _layout(best, outputs)


def _layout(best: _Path, outputs: Sequence[Sequence[int]]) -> Layout:
    taken: list[Rule] = []
    gathered: list[tuple[int, ...]] = []
    path: _Path | None = best
    while path is not None and path.rule is not None:
        taken.append(path.rule)
        gathered.append(path.gathered)
        path = path.before
    taken.reverse()
    gathered.reverse()
    state = {
        x: s
        for rule, given in zip(taken, outputs, strict=True)
        for x, s in zip(given, rule.outputs, strict=True)
    }
    return Layout(tuple(taken), tuple(gathered), state, best.cost)
