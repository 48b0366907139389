"""Fusion by rules: sequences of operators (GCOF), and patterns with forks inside.

`fuse_sequences` is GCOF, graph coarsening with operator fusion (Moirai, Section III.B, Algorithm
1). A rule is an ordered list of operator types. Operators may be fused over a direct connection
or into a join, but not out of a fork (Fig. 6): the producer has one consumer. So every vertex
has at most one successor to fuse with, and what a rule can match is a path. A path is bound
while it is the beginning of a rule, fused as far as it is the longest complete rule, and the
bound rest is released.

Algorithm 1 binds any part of a rule in the order of its depth-first search, so that a part
bound early can block a complete rule. Here vertices are taken in topological order, the
reverse post-order of that search, and a rule is bound from its first operator on. The result
does not depend on which branch comes first, except where two rules compete for one operator:
then the one that starts earlier in the order has it. Time O(V + E) for rules of bounded length.

`fuse_pattern` fuses small graphs, such as a normalisation written out. A pattern is matched
backwards from its last line. Every other matched unit must be read inside the match only, so the
last one is the exit, and merging them one by one, consumers first, is a sequence of the safe steps
of `merge`. A match costs time in the size of the pattern; a rule, in the number of nodes with the
operator of its last line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dnnp.core.coarsen.merge import NONE, Shape, Units
from dnnp.core.model.rules import ANY, Argument, Condition, Line, Pattern, SequenceRule


def fuse_sequences(units: Units, rules: Sequence[SequenceRule]) -> None:
    """Fuse what matches the rules; the longest match wins, then the earlier rule."""
    starts: dict[str, list[SequenceRule]] = {}
    for rule in rules:
        for op in rule.ops[0]:
            starts.setdefault(op, []).append(rule)
    results = {rule.result for rule in rules}
    candidates = units.order if results & starts.keys() else units.having(starts)
    for vertex in candidates:
        if units.ops[vertex] in starts and units.find(vertex) == vertex:
            _fuse_from(units, vertex, starts[units.ops[vertex]])


def _fuse_from(units: Units, start: int, rules: list[SequenceRule]) -> None:
    """Bind the longest path from `start` that begins a rule, and fuse its longest full match."""
    path, fused = [start], 0
    match: SequenceRule | None = None
    while True:
        complete = next((r for r in rules if len(r.ops) == len(path)), None)
        if complete is not None:
            match, fused = complete, len(path)
        rules = [r for r in rules if len(r.ops) > len(path)]
        successor = units.consumer(path[-1]) if rules else NONE
        if successor == NONE or not units.compatible([*path, successor]):
            break
        rules = [r for r in rules if units.ops[successor] in r.ops[len(path)]]
        if not rules:
            break
        path.append(successor)
    if match is not None:
        fuse(units, path[:fused], match.name, match.result)


def fuse(units: Units, members: list[int], name: str, result: str) -> None:
    """Merge units, producers before consumers, into the last one, and give it its operator."""
    exit_ = members[-1]
    reads: list[int] = []
    for unit in members:
        reads += [t for t in units.reads[unit] if units.maker(t) not in members]
    joined = "+".join(units.ops[u] for u in members)
    for unit in reversed(members[:-1]):
        units.merge(unit, exit_)
    units.reads[exit_] = list(dict.fromkeys(reads))
    units.rename(exit_, result or joined)
    units.rules[exit_] = name


COMMUTATIVE = frozenset({"Add", "Mul", "Sum", "Max", "Min", "And", "Or", "Xor", "Equal"})

MAX_STEPS = 10_000
"""Steps after which the search for a match in one place gives up; real rules need dozens."""


@dataclass
class _Match:
    """Units that the lines and names of a pattern stand for in one place."""

    bound: dict[int, int] = field(default_factory=dict)
    """Line -> unit."""
    named: dict[str, int] = field(default_factory=dict)
    """Name of a tensor -> tensor."""
    more: list[int] = field(default_factory=list)
    """Units behind repeated arguments."""
    todo: list[tuple[int, int]] = field(default_factory=list)
    """Lines and units that are still to be compared."""

    def copy(self) -> _Match:
        return _Match({**self.bound}, {**self.named}, [*self.more], [*self.todo])


def fuse_pattern(units: Units, rule: Pattern, shapes: Sequence[Shape]) -> None:
    """Fuse every match of `rule`; exits in topological order, each until it matches no more."""
    matcher = _Matcher(units, rule, shapes)
    for exit_ in matcher.candidates():
        while units.find(exit_) == exit_ and matcher.is_plausible(exit_):
            match = matcher.match(exit_)
            members = None if match is None else _closed(units, rule, match)
            if match is None or members is None or len(members) < 2:
                break
            reads = _operands(units, rule, match, members)
            fuse(units, members, rule.name, rule.result)
            units.reads[exit_] = reads


def _closed(units: Units, rule: Pattern, match: _Match) -> list[int] | None:
    """Matched units that may be fused, producers first; None if one is read elsewhere too."""
    last = match.bound[len(rule.lines) - 1]
    optional = {unit for line, unit in match.bound.items() if rule.lines[line].shared}
    optional |= {*match.more}
    inside = {last}
    rest = {*match.bound.values(), *match.more} - inside
    backwards = sorted(rest, key=units.rank.__getitem__, reverse=True)
    for unit in backwards:
        if units.read_only_in(unit, inside) and units.compatible([*inside, unit]):
            inside.add(unit)
        elif unit not in optional:
            return None
    return [*(u for u in reversed(backwards) if u in inside), last]


def _operands(units: Units, rule: Pattern, match: _Match, members: list[int]) -> list[int]:
    """Tensors that the fused unit reads: named ones, then others but for the `@` constants."""
    named: list[int] = []
    others: list[int] = []
    for number, line in enumerate(rule.lines):
        unit = match.bound.get(number, NONE)
        if unit in members:
            names = [a.name for a in line.arguments if a.kind == "tensor"]
            named += [match.named[name] for name in names]
            others += [t for t in units.reads[unit] if line.open or not units.constant[t]]
    others += [t for unit in match.more if unit in members for t in units.reads[unit]]
    found = dict.fromkeys([*named, *others])
    return [t for t in found if units.maker(t) not in members]


class _Matcher:
    """Search for one match of a rule, with backtracking over the order of operands."""

    def __init__(self, units: Units, rule: Pattern, shapes: Sequence[Shape]) -> None:
        self._units = units
        self._rule = rule
        self._steps = 0
        self._shapes = shapes
        many = {a.line for line in rule.lines for a in line.arguments if a.repeated}
        self._wanted = len(rule.lines) - len(many - {-1})
        self._ops = [frozenset(line.ops) for line in rule.lines]
        self._read_by_last = [self._ops[a.line] for a in rule.lines[-1].arguments if a.line >= 0]
        wanted = {c.names[0]: c.rank for c in rule.conditions if c.kind == "rank"}
        self._ranks = [
            (self._ops[a.line], wanted[a.name])
            for a in rule.lines[-1].arguments
            if a.line >= 0 and a.name in wanted
        ]
        """Operators of lines that the last one reads, and the dimensions they must have."""

    def candidates(self) -> list[int]:
        """Units where a match may end: by their own operator, or by a rarer one before them."""
        units, last = self._units, self._ops[-1]
        if any(ANY not in ops and not units.count(ops) for ops in self._ops):
            return []
        # Of operators that this rule makes itself, there will be more.
        fixed = [ops for ops in self._read_by_last if ops.isdisjoint((ANY, self._rule.result))]
        rarest = min(fixed, key=units.count, default=None)
        if rarest is not None and (ANY in last or units.count(rarest) < units.count(last)):
            return units.readers_of(rarest)
        return units.order if ANY in last else units.having(last)

    def is_plausible(self, exit_: int) -> bool:
        """True if the operators around `exit_` are those of the rule; quick to ask."""
        units = self._units
        if not self._fits(len(self._ops) - 1, exit_):
            return False
        around = {units.ops[m] for t in units.reads[exit_] if (m := units.maker(t)) != NONE}
        if not all(ANY in ops or not ops.isdisjoint(around) for ops in self._read_by_last):
            return False
        return all(self._has_rank(exit_, ops, rank) for ops, rank in self._ranks)

    def _has_rank(self, exit_: int, ops: frozenset[str], rank: int) -> bool:
        """True if `exit_` reads from one of the operators, with so many dimensions."""
        units = self._units
        for tensor in units.reads[exit_]:
            maker = units.maker(tensor)
            if maker != NONE and (ANY in ops or units.ops[maker] in ops):
                shape = self._shapes[units.writes[maker][0]]
                if shape is not None and len(shape) == rank:
                    return True
        return False

    def _fits(self, number: int, unit: int) -> bool:
        ops = self._ops[number]
        return self._units.ops[unit] in ops or ANY in ops

    def match(self, exit_: int) -> _Match | None:
        """One match that ends in `exit_`."""
        self._steps = 0
        return self._solve(_Match(todo=[(len(self._rule.lines) - 1, exit_)]))

    def _solve(self, match: _Match) -> _Match | None:
        """Bind lines to units until nothing is left to do."""
        while match.todo:
            self._steps += 1
            if self._steps > MAX_STEPS:
                return None
            number, unit = match.todo.pop()
            if number in match.bound:
                if match.bound[number] != unit:
                    return None
                continue
            if not self._fits(number, unit) or unit in match.bound.values():
                return None
            match.bound[number] = unit
            line = self._rule.lines[number]
            orders = _operand_orders(line, self._units.reads[unit], self._units.ops[unit])
            for reads in orders[:-1]:
                trial = match.copy()
                if self._bind(line, reads, trial):
                    found = self._solve(trial)
                    if found is not None:
                        return found
            if not orders or not self._bind(line, orders[-1], match):
                return None
        if len(match.bound) < self._wanted or not self._holds(match):
            return None
        return match

    def _bind(self, line: Line, reads: list[int], match: _Match) -> bool:
        """Compare one line's arguments with tensors; add the lines they lead to."""
        units = self._units
        for place, argument in enumerate(line.arguments):
            for tensor in reads[place:] if argument.repeated else reads[place : place + 1]:
                if argument.kind == "tensor":
                    if match.named.setdefault(argument.name, tensor) != tensor:
                        return False
                elif argument.kind == "line":
                    unit = units.maker(tensor)
                    if unit == NONE or tensor not in units.writes[unit]:
                        return False
                    if not argument.repeated:
                        match.todo.append((argument.line, unit))
                    elif self._fits(argument.line, unit):
                        match.more.append(unit)
                    else:
                        return False
                elif not self._is_constant(argument, tensor):
                    return False
        return True

    def _is_constant(self, argument: Argument, tensor: int) -> bool:
        """True if a tensor is known in advance and of the wanted size."""
        if not self._units.constant[tensor]:
            return False
        if argument.kind == "weight":
            return True
        shape = self._shapes[tensor]
        if shape is None:
            return False
        above = sum(d != 1 for d in shape)
        return above == (0 if argument.kind == "scalar" else 1)

    def _holds(self, match: _Match) -> bool:
        """True if all conditions of the rule hold."""
        names = {line.name: number for number, line in enumerate(self._rule.lines)}

        def shape_of(name: str) -> Shape:
            if name in match.named:
                return self._shapes[match.named[name]]
            writes = self._units.writes[match.bound[names[name]]]
            return self._shapes[writes[0]] if writes else None

        def holds(condition: Condition) -> bool:
            shapes = [shape_of(name) for name in condition.names]
            if condition.kind == "swaps":
                unit = match.bound[names[condition.names[0]]]
                shapes.append(self._shapes[self._units.reads[unit][0]])
            first = shapes[0]
            if first is None or None in shapes:
                return False
            if condition.kind == "rank":
                return len(first) == condition.rank
            if condition.kind == "swaps":
                return shapes[1] == (*first[:-2], *first[-2:][::-1])
            return shapes[1] == first

        return all(holds(c) for c in self._rule.conditions)


def _operand_orders(line: Line, reads: list[int], op: str) -> list[list[int]]:
    """Orders in which a unit's inputs may meet the arguments of a line; none if too few."""
    wanted = len(line.arguments)
    repeated = wanted > 0 and line.arguments[-1].repeated
    if wanted == 2 and len(reads) == 1 and line.arguments[0] == line.arguments[1]:
        # One tensor read twice is listed once.
        return [reads * 2]
    if len(reads) < wanted or (len(reads) > wanted and not (line.open or repeated)):
        return []
    if len(reads) == 2 and wanted and op in COMMUTATIVE:
        return [reads, reads[::-1]]
    return [reads]
