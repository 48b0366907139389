"""Fusion rule files: which operators a backend runs as one.

A rule file is a JSON object:

    {
      "name": "example",
      "description": "free text",
      "sources": ["where the rules are documented"],
      "onnxruntime": ["1.32"],
      "sets": {"activation": ["Relu", "Tanh"]},
      "rules": [
        {"name": "conv-bn-act", "sequence": ["Conv", "BatchNormalization", "$activation"]},
        {"name": "silu", "as": "Silu", "pattern": ["s = Sigmoid(x)", "Mul(x, s)"]}
      ]
    }

`onnxruntime` lists the versions of ONNX Runtime that the rules were compared with, if any. Rules
apply in their order; sequences that stand together apply at once, the longest first. A
rule has a `name`, one of these keys, and perhaps `as`: the operator that later rules see in
place of what was fused (by default the names joined by `+`).

`sequence`
    A list of operators, each with one consumer, the next one.
`pattern`
    A list of lines `NAME = OPERATOR(INPUTS)`. A name stands for the operator's output; the
    last line needs none, and is the only one whose output others may read. Inputs are names of
    lines, or other names, which stand for any tensor, the same at each place; `@weight`,
    `@vector`, `@scalar`: a constant, one with one dimension above 1, one with one element;
    `NAME*`, at the end: all further inputs come from operators like line NAME; `...`, at the
    end: any further inputs. `shared` before a line: if others read its output too, the operator
    must be there but stays outside. The two inputs of Add, Mul and the like have no order.
    What was fused reads the named tensors, then those behind `...`, but no `@` constants.
    `where`, a list of conditions on shapes: `rank(NAME) = 2`, `shape(NAME) = shape(NAME)`,
    `swaps(NAME)`: the operator exchanges the last two dimensions.
`absorb`
    Operators that do nothing: each joins its consumer, or else its producer.
`fold`
    What is known before the model runs joins its only consumer, and counts as constant:
    operators of the list `shape`, where the shape of what they read is known, and all that read
    only constants, but not those in `except`.

A rule that can match nothing, because earlier ones leave it nothing or its conditions contradict
each other, is refused.

An operator is a name, several joined by `|`, `*` for any, or `$SET` for a list in `sets`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

from dnnp.core.model.errors import UsageError
from dnnp.core.model.rules import (
    ANY,
    Absorb,
    Argument,
    Condition,
    Fold,
    Line,
    Pattern,
    Rule,
    RuleSet,
    SequenceRule,
)
from dnnp.core.model.text import instead
from dnnp.formats.files import bundled_names, read_bundled, read_file
from dnnp.formats.inputs.checked_json import Fields, parse_json

_CONSTANTS = frozenset({"weight", "vector", "scalar"})


def futile(rules: Sequence[Rule]) -> tuple[int, str] | None:
    """The first rule that can never match, and why; None if there is none."""
    for i, rule in enumerate(rules):
        reason = _why_futile(rules, i)
        if reason is not None:
            return i, f"rule '{rule.name}' cannot match: {reason}"
    return None


def unknown_operators(rules: RuleSet) -> list[tuple[str, str]]:
    """(rule, operator) where an operator is in no operator set of ONNX or ONNX Runtime.

    It may be a custom operator, or a name that is misspelt. Operators that an earlier rule
    makes are known, and those of sequences that apply together.
    """
    from onnx import defs

    known = {schema.name for schema in defs.get_all_schemas_with_history()} | _RUNTIME
    found: list[tuple[str, str]] = []
    for kind, batch in groupby(rules.rules, type):
        together = list(batch)
        if kind is SequenceRule:
            known |= _made(together)
        for rule in together:
            found += [
                (rule.name, op)
                for op in dict.fromkeys(_operators(rule))
                if op not in known and op != ANY and "+" not in op
            ]
            known |= _made([rule])
    return found


_RUNTIME = frozenset(
    {"Attention", "BiasAdd", "BiasGelu", "BiasSoftmax", "BiasSplitGelu",
     "ConvTransposeWithDynamicPads", "DecoderMaskedMultiHeadAttention", "DequantizeLinear",
     "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization", "FastGelu",
     "FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "GemmFastGelu", "GroupNorm",
     "GroupQueryAttention", "Inverse", "MatMulInteger16", "MatMulIntegerToFloat",
     "MatMulNBits", "MultiHeadAttention", "NhwcConv", "NhwcMaxPool", "PackedAttention",
     "QAttention", "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool",
     "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul",
     "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuickGelu", "RotaryEmbedding",
     "SimplifiedLayerNormalization", "SkipGroupNorm", "SkipLayerNormalization",
     "SkipSimplifiedLayerNormalization", "Trilu"}
)  # fmt: skip
"""Operators of ONNX Runtime's own domain that models carry."""


def _operators(rule: Rule) -> Iterator[str]:
    if isinstance(rule, SequenceRule):
        yield from (op for allowed in rule.ops for op in allowed)
    elif isinstance(rule, Pattern):
        yield from (op for line in rule.lines for op in line.ops)
    elif isinstance(rule, Absorb):
        yield from rule.ops
    else:
        yield from (*rule.shape_ops, *rule.excluded)


def _made(rules: Sequence[Rule]) -> set[str]:
    """Operators that rules put in place of others."""
    return {r.result for r in rules if isinstance(r, SequenceRule | Pattern) and r.result}


def _why_futile(rules: Sequence[Rule], i: int) -> str | None:
    rule = rules[i]
    if isinstance(rule, Absorb | Fold):
        return None
    absorbed = _absorbed_before(rules, i)
    places = _needed(rule)
    for ops in places:
        if ops and ANY not in ops and absorbed.issuperset(ops):
            return f"'{'|'.join(ops)}' has been absorbed before"
    if isinstance(rule, SequenceRule):
        return _taken(rules, i, rule)
    return _repeated(rules, i, rule) or _contradiction(rule) or _folded(rules, i, rule)


def _needed(rule: SequenceRule | Pattern) -> list[tuple[str, ...]]:
    """Operators allowed for each member that others do not share."""
    if isinstance(rule, SequenceRule):
        return list(rule.ops)
    return [line.ops for line in rule.lines if not line.shared]


def _absorbed_before(rules: Sequence[Rule], i: int) -> set[str]:
    """Operators that are gone when rule `i` applies, with all that have one neighbour to join."""
    gone: set[str] = set()
    for rule in rules[:i]:
        if isinstance(rule, Absorb):
            gone |= set(rule.ops)
        gone -= _made([rule])
    return gone


def _taken(rules: Sequence[Rule], i: int, rule: SequenceRule) -> str | None:
    """An earlier sequence of those that stand together wins wherever this one matches."""
    for earlier in reversed(rules[:i]):
        if not isinstance(earlier, SequenceRule):
            return None
        if len(earlier.ops) == len(rule.ops) and all(
            set(mine) <= set(theirs) for mine, theirs in zip(rule.ops, earlier.ops, strict=True)
        ):
            return f"rule '{earlier.name}', of the same length, takes all that it would"
    return None


def _repeated(rules: Sequence[Rule], i: int, rule: Pattern) -> str | None:
    """An earlier rule is the same, and nothing since then makes what it looks for."""
    used = set(_operators(rule))
    for j in range(i - 1, -1, -1):
        earlier = rules[j]
        if used & (_made([earlier]) | {ANY}) or isinstance(earlier, Absorb | Fold):
            return None
        if (
            isinstance(earlier, Pattern)
            and earlier.lines == rule.lines
            and earlier.conditions == rule.conditions
        ):
            return f"rule '{earlier.name}' is the same and has taken all"
    return None


def _contradiction(rule: Pattern) -> str | None:
    """Conditions that no shape meets."""
    ranks: dict[str, int] = {}
    for condition in rule.conditions:
        if condition.kind == "rank":
            name = condition.names[0]
            if ranks.setdefault(name, condition.rank) != condition.rank:
                return f"'{name}' has {ranks[name]} and {condition.rank} dimensions"
    for condition in rule.conditions:
        name = condition.names[0]
        if condition.kind == "swaps" and ranks.get(name, 2) < 2:
            return f"'{name}' has {ranks[name]} dimensions, none to swap"
        known = {ranks[n] for n in condition.names if n in ranks}
        if condition.kind == "shape" and len(known) > 1:
            return f"'{name}' and '{condition.names[1]}' differ in their dimensions"
    return None


def _folded(rules: Sequence[Rule], i: int, rule: Pattern) -> str | None:
    """A member that reads constants only has been folded by an earlier rule."""
    for earlier in rules[:i]:
        if isinstance(earlier, Fold):
            for line in rule.lines[:-1]:
                if _reads_constants(line) and not {*earlier.excluded, ANY} & set(line.ops):
                    return (
                        f"'{line.name}' reads only constants: rule '{earlier.name}' has folded it"
                    )
    return None


def _reads_constants(line: Line) -> bool:
    kinds = {a.kind for a in line.arguments}
    return bool(kinds) and kinds <= _CONSTANTS and not line.open and not line.shared


MAX_LINES = 64
"""Operators in one rule."""

VERSIONS = "onnxruntime"

CONSTANTS = ("weight", "vector", "scalar")
_KINDS = ("sequence", "pattern", "absorb", "fold")
_LINE = re.compile(r"(shared +)?(?:([A-Za-z_]\w*) *= *)?([^\s()=]+) *\(([^()]*)\)")
_RANK = re.compile(r"rank *\( *(\w+) *\) *= *(\d{1,3})")
_SHAPE = re.compile(r"shape *\( *(\w+) *\) *= *shape *\( *(\w+) *\)")
_SWAPS = re.compile(r"swaps *\( *(\w+) *\)")


def load_rules(name: str) -> RuleSet:
    """Read a bundled rule file by its name, or any by its path.

    Raises
    ------
    UsageError
        Neither a bundled name nor a path.
    InputFileError
        The file cannot be read.
    FormatError
        The file is not a rule file; the message names the field.
    """
    if name in bundled_names("rules"):
        return _bundled(name)
    plain = not name.endswith(".json") and os.path.basename(name) == name
    if plain and not os.path.exists(name):
        hint = instead(name, [*bundled_names("rules"), "none", "ort"], "or the path of a rule file")
        raise UsageError(f"no rules named '{name}'{hint}")
    return parse_rules(read_file(name), name)


@cache
def _bundled(name: str) -> RuleSet:
    return parse_rules(read_bundled("rules", name), f"{name}.json")


def parse_rules(data: bytes, file: str) -> RuleSet:
    """Parse a rule file; `file` is its name for messages."""
    return _Reader().rule_set(Fields(parse_json(data, file), "", file))


class _Reader:
    """Checks a parsed rule file and builds its rules."""

    def __init__(self) -> None:
        self._sets: dict[str, tuple[str, ...]] = {}

    def rule_set(self, table: Fields) -> RuleSet:
        """The whole file."""
        table.only("name", "rules", "description", "sources", "sets", VERSIONS)
        table.texts("sources")
        if "sets" in table:
            sets = table.fields("sets")
            self._sets = {name: tuple(sets.texts(name)) for name in sets.names()}
        made = tuple(map(self._rule, table.objects("rules")))
        useless = futile(made)
        if useless is not None:
            raise table.fault(f"rules[{useless[0]}]", useless[1])
        return RuleSet(_word(table, "name"), made, tuple(table.texts(VERSIONS)))

    def _rule(self, table: Fields) -> Rule:
        table.only("name", *_KINDS, "as", "where")
        name = _word(table, "name")
        given = [kind for kind in _KINDS if kind in table]
        if len(given) != 1:
            raise table.fault("", f"needs one of {', '.join(_KINDS)}, has {len(given)}")
        kind = given[0]
        for word, kinds in (("where", ("pattern",)), ("as", ("sequence", "pattern"))):
            if word in table and kind not in kinds:
                raise table.fault(word, f"does not go with {kind}")
        result = _word(table, "as") if "as" in table else ""
        if kind == "sequence":
            items = _several(table, kind, "operators")
            ops = tuple(self._ops(text, table, f"{kind}[{i}]") for i, text in enumerate(items))
            if any(ANY in allowed for allowed in ops):
                raise table.fault(kind, "'*' goes with patterns only")
            return SequenceRule(name, ops, result)
        if kind == "absorb":
            return Absorb(name, self._list_of_ops(table, kind))
        if kind == "fold":
            body = table.fields(kind)
            body.only("shape", "except")
            return Fold(name, self._list_of_ops(body, "shape"), self._list_of_ops(body, "except"))
        lines = self._lines(table)
        return Pattern(name, lines, self._conditions(table, lines), result)

    def _lines(self, table: Fields) -> tuple[Line, ...]:
        """The lines of a pattern."""
        items = _several(table, "pattern", "lines")
        numbers: dict[str, int] = {}
        lines: list[Line] = []
        used: set[int] = set()
        for i, text in enumerate(items):
            here = f"pattern[{i}]"
            match = _LINE.fullmatch(text.strip())
            if match is None:
                raise table.fault(here, f"'{text}' is not NAME = OPERATOR(INPUTS)")
            shared, name, ops, inputs = match.groups()
            last = i == len(items) - 1
            if name is None and not last:
                raise table.fault(here, "needs a name, as only the last line may do without")
            if shared and last:
                raise table.fault(here, "the last line cannot be shared")
            if name is not None and name in numbers:
                raise table.fault(here, f"the name '{name}' is taken by line {numbers[name]}")
            words = [w.strip() for w in inputs.split(",")] if inputs.strip() else []
            is_open = bool(words) and words[-1] == "..."
            plain = words[:-1] if is_open else words
            arguments = self._arguments(plain, lines, numbers, table, here)
            if is_open and arguments and arguments[-1].repeated:
                raise table.fault(here, "'...' after a repeated input")
            used.update(a.line for a in arguments)
            if name is not None:
                numbers[name] = i
            operators = self._ops(ops, table, here)
            lines.append(Line(name or "", operators, arguments, is_open, bool(shared)))
        for i, line in enumerate(lines[:-1]):
            if i not in used:
                raise table.fault(f"pattern[{i}]", f"no later line reads '{line.name}'")
        return tuple(lines)

    def _arguments(
        self,
        words: list[str],
        lines: list[Line],
        numbers: dict[str, int],
        table: Fields,
        at: str,
    ) -> tuple[Argument, ...]:
        arguments = []
        for place, word in enumerate(words):
            name, repeated = word.removesuffix("*"), word.endswith("*")
            if name.startswith("@") and not repeated and name[1:] in CONSTANTS:
                arguments.append(Argument(name[1:]))
                continue
            if not name.isidentifier():
                raise table.fault(at, f"'{word}' is not an input")
            line = numbers.get(name, -1)
            if repeated:
                plain = line >= 0 and not lines[line].arguments and lines[line].open
                if not plain or place != len(words) - 1:
                    raise table.fault(
                        at, f"'{word}' must come last and stand for a line that ends in (...)"
                    )
            arguments.append(Argument("line" if line >= 0 else "tensor", name, line, repeated))
        return tuple(arguments)

    def _conditions(self, table: Fields, lines: tuple[Line, ...]) -> tuple[Condition, ...]:
        """The conditions of a pattern."""
        known = {line.name for line in lines} | {a.name for x in lines for a in x.arguments}
        repeated = {a.name for x in lines for a in x.arguments if a.repeated}
        operators = {x.name for x in lines if x.arguments}
        conditions = []
        for i, text in enumerate(table.texts("where")):
            here = f"where[{i}]"
            rank, shape, swaps = (p.fullmatch(text.strip()) for p in (_RANK, _SHAPE, _SWAPS))
            if rank:
                condition = Condition("rank", (rank[1],), int(rank[2]))
            elif shape:
                condition = Condition("shape", (shape[1], shape[2]))
            elif swaps:
                condition = Condition("swaps", (swaps[1],))
            else:
                raise table.fault(here, f"'{text}' is not a condition")
            for name in condition.names:
                if not name or name not in known or name in repeated:
                    raise table.fault(here, f"'{name}' names nothing in the pattern")
                if swaps and name not in operators:
                    raise table.fault(here, f"'{name}' is not an operator with inputs")
            conditions.append(condition)
        return tuple(conditions)

    def _ops(self, text: str, table: Fields, at: str) -> tuple[str, ...]:
        """Operators of a text like `Relu|$activation`."""
        ops: list[str] = []
        for word in text.split("|"):
            if word.startswith("$"):
                if word[1:] not in self._sets:
                    raise table.fault(at, f"there is no set '{word[1:]}'")
                ops += self._sets[word[1:]]
            elif not word or not all(c.isalnum() or c in "_.-:*" for c in word):
                raise table.fault(at, f"'{word}' is not an operator")
            elif "*" in word and word != ANY:
                raise table.fault(at, f"'{word}': '*' stands alone")
            else:
                ops.append(word)
        if not ops:
            raise table.fault(at, f"'{text}' is no operator, as the set is empty")
        return tuple(dict.fromkeys(ops))

    def _list_of_ops(self, table: Fields, name: str) -> tuple[str, ...]:
        table.get(name)  # must be there
        ops = [op for text in table.texts(name) for op in self._ops(text, table, name)]
        if ANY in ops:
            raise table.fault(name, "'*' goes with patterns only")
        return tuple(dict.fromkeys(ops))


def _several(table: Fields, name: str, what: str) -> list[str]:
    """The texts of a rule of several operators or lines."""
    found = table.texts(name)
    if not 2 <= len(found) <= MAX_LINES:
        raise table.fault(name, f"expected 2 to {MAX_LINES} {what}")
    return found


def _word(table: Fields, name: str) -> str:
    found = table.text(name)
    if not found:
        raise table.fault(name, "expected a string that is not empty")
    return found
