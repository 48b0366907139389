"""Every rule of every bundled file, on a graph that is made for it; and all of them together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

import orjson
import pytest

from dnnp.core.coarsen.coarsen import coarsen
from dnnp.core.model.errors import FormatError
from dnnp.core.model.rules import ANY, Absorb, Pattern, Rule, RuleSet, SequenceRule
from dnnp.formats.files import bundled_names, read_bundled
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.rules import load_rules, parse_rules
from support.op_graphs import assert_valid, groups_by, op_stream, shapes_of

SHAPES = {1: (4,), 2: (3, 4), 3: (2, 3, 4), 4: (2, 2, 3, 4)}
SIZES: dict[str, tuple[int, ...]] = {"scalar": (), "vector": (4,), "weight": (3, 4)}
PLAIN = 3
"""Dimensions of tensors that no condition speaks of."""


class Made:
    """Lines of a graph that a rule matches, and the shapes of its tensors.

    Names get `prefix`; inputs of the rule are `read(name)`; each place has the operator number
    `pick` of those allowed, or its last.
    """

    def __init__(self, rule: Rule, prefix: str = "", pick: int = 0) -> None:
        self.prefix, self.pick = prefix, pick
        self.lines: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: list[str] = []
        self.last = ""
        self._fresh = count()
        if isinstance(rule, SequenceRule):
            self._path(rule.ops)
        elif isinstance(rule, Pattern):
            self._pattern(rule)
        elif isinstance(rule, Absorb):
            self._path((("Thing",), rule.ops, ("Thing",)))
        else:
            self._path((rule.shape_ops, ("Thing",)))

    def _op(self, ops: tuple[str, ...]) -> str:
        op = ops[min(self.pick, len(ops) - 1)]
        return "Thing" if op == ANY else op

    def _input(self, name: str = "") -> str:
        name = f"{self.prefix}i_{name or next(self._fresh)}"
        if name not in self.inputs:
            self.inputs.append(name)
            self.shapes[name] = SHAPES[PLAIN]
        return name

    def _write(self, name: str, op: str, read: list[str]) -> None:
        self.lines.append(f"{name} = {op}({', '.join(read)})")
        self.last = name.split(",")[0]
        self.shapes.setdefault(self.last, SHAPES[PLAIN])

    def _path(self, ops: tuple[tuple[str, ...], ...]) -> None:
        read = self._input()
        for place, allowed in enumerate(ops):
            name = f"{self.prefix}p{place}"
            self._write(name, self._op(allowed), [read])
            read = name

    def _pattern(self, rule: Pattern) -> None:
        names = [f"{self.prefix}{line.name or 'last'}" for line in rule.lines]
        # Scale and zero point are outputs of their own, which others read beside the values.
        further = {
            i: iter([names[i], f"{names[i]}_scale", f"{names[i]}_zero", f"{names[i]}_scale"])
            for i, line in enumerate(rule.lines)
            if line.ops == ("DynamicQuantizeLinear",)
        }
        for number, (line, name) in enumerate(zip(rule.lines, names, strict=True)):
            read = []
            for argument in line.arguments:
                if argument.kind == "line":
                    read.append(next(further.get(argument.line, iter([names[argument.line]]))))
                elif argument.kind == "tensor":
                    read.append(self._input(argument.name))
                else:
                    constant = f"w{self.prefix}{next(self._fresh)}"
                    self.shapes[constant] = {"scalar": (), "vector": (4,)}.get(
                        argument.kind, (3, 4)
                    )
                    read.append(constant)
            made = f"{name}, {name}_scale, {name}_zero" if number in further else name
            self._write(made, self._op(line.ops), read or [self._input()])
        own = {line.name: name for line, name in zip(rule.lines, names, strict=True)}
        for condition in rule.conditions:
            about = [own.get(name) or self._input(name) for name in condition.names]
            if condition.kind == "rank":
                self.shapes[about[0]] = SHAPES[condition.rank]
            elif condition.kind == "swaps":
                self.shapes[about[0]] = (2, 4, 3)


def rules_of(name: str) -> Iterator[tuple[int, Rule]]:
    yield from enumerate(load_rules(name).rules)


EACH = [
    pytest.param(rule, id=f"{name}-{i}-{rule.name}")
    for name in bundled_names("rules")
    for i, rule in rules_of(name)
]


@pytest.mark.parametrize("rule", EACH)
def test_every_rule_fires(rule: Rule) -> None:
    """Alone, with the first, the second and the last of the operators that it allows."""
    for pick in (0, 1, 99):
        made = Made(rule, pick=pick)
        stream = op_stream(*made.lines, shapes=made.shapes)
        assert rule.name in groups_by(stream, RuleSet("alone", (rule,))).values(), made.lines


@pytest.mark.parametrize("name", bundled_names("rules"))
def test_most_rules_fire_beside_all_others(name: str) -> None:
    """A group that one rule would fuse is fused by it, or by one before it."""
    rules = load_rules(name)
    for rule in rules.rules:
        made = Made(rule)
        assert groups_by(op_stream(*made.lines, shapes=made.shapes), rules), rule.name


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", bundled_names("rules"))
def test_no_group_closes_a_cycle(name: str, seed: int) -> None:
    """Graphs made for rules, one after the other, with edges between them at random."""
    rng = random.Random(seed)
    rules = load_rules(name)
    lines: list[str] = []
    shapes: dict[str, tuple[int, ...]] = {}
    outputs: list[str] = []
    for part in range(25):
        made = Made(rng.choice(rules.rules), f"n{part}_", rng.randrange(4))
        rename = {i: rng.choice(outputs) for i in made.inputs if outputs and rng.random() < 0.7}
        for line in made.lines:
            for old, new in rename.items():
                line = line.replace(f"({old},", f"({new},").replace(f"({old})", f"({new})")
                line = line.replace(f" {old},", f" {new},").replace(f" {old})", f" {new})")
            lines.append(line)
        shapes |= {k: v for k, v in made.shapes.items() if k not in rename}
        outputs += [rng.choice(made.lines).split(" = ")[0].split(",")[0], made.last]
    stream = op_stream(*lines, shapes=shapes)
    graph = graph_of(stream)
    result = coarsen(graph, shapes_of(stream), rules)
    assert_valid(graph, result)
    assert result.clustering.g < graph.n


@pytest.mark.parametrize("name", ["cudnn", "tensorrt"])
def test_rules_from_documents_name_them(name: str) -> None:
    table = orjson.loads(read_bundled("rules", name))
    assert all(source.startswith("https://docs.nvidia.com/") for source in table["sources"])
    assert table["sources"]
    assert "Not verified on a device" in table["description"]


def test_sources_are_a_list_of_strings() -> None:
    with pytest.raises(FormatError, match="is not a list of strings"):
        parse_rules(b'{"name": "a", "sources": "here", "rules": []}', "a.json")
