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
from typing import Any

import orjson

from dnnp.core.model.errors import FormatError, UsageError
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
from dnnp.formats.files import bundled_names, read_bundled, read_file, what_it_is
from dnnp.formats.limits import said
from dnnp.formats.rule_checks import futile

MAX_LINES = 64
"""Operators in one rule."""

VERSIONS = "onnxruntime"

CONSTANTS = ("weight", "vector", "scalar")
_KINDS = ("sequence", "pattern", "absorb", "fold")
_LINE = re.compile(r"(shared +)?(?:([A-Za-z_]\w*) *= *)?([^\s()=]+) *\(([^()]*)\)")
_RANK = re.compile(r"rank *\( *(\w+) *\) *= *(\d{1,3})")
_SHAPE = re.compile(r"shape *\( *(\w+) *\) *= *shape *\( *(\w+) *\)")
_SWAPS = re.compile(r"swaps *\( *(\w+) *\)")


def bundled() -> list[str]:
    """Names of the rule files that come with the package."""
    return bundled_names("rules")


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
    if name in bundled():
        return parse_rules(read_bundled("rules", name), f"{name}.json")
    plain = not name.endswith(".json") and os.path.basename(name) == name
    if plain and not os.path.exists(name):
        hint = instead(name, [*bundled(), "none", "ort"], "or the path of a rule file")
        raise UsageError(f"no rules named '{name}'{hint}")
    return parse_rules(read_file(name), name)


def parse_rules(data: bytes, file: str) -> RuleSet:
    """Parse a rule file; `file` is its name for messages."""
    try:
        table = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {said(str(error))}{what_it_is(data)}", file) from None
    return _Reader(file).rule_set(table)


class _Reader:
    """Checks a parsed rule file and builds its rules."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._sets: dict[str, tuple[str, ...]] = {}

    def rule_set(self, table: Any) -> RuleSet:
        """The whole file."""
        self._object(table, "", ("name", "rules"), ("description", "sources", "sets", VERSIONS))
        self._strings(table.get("sources", []), "sources")
        sets = table.get("sets", {})
        self._require(isinstance(sets, dict), "sets", "an object of lists")
        for name, ops in sets.items():
            self._sets[name] = tuple(self._strings(ops, f"sets.{name}"))
        rules = table["rules"]
        self._require(isinstance(rules, list), "rules", "a list")
        made = tuple(self._rule(rule, f"rules[{i}]") for i, rule in enumerate(rules))
        useless = futile(made)
        if useless is not None:
            raise self._fault(f"rules[{useless[0]}]", useless[1])
        versions = tuple(self._strings(table.get(VERSIONS, []), VERSIONS))
        return RuleSet(self._string(table["name"], "name"), made, versions)

    def _rule(self, table: Any, at: str) -> Rule:
        self._object(table, at, ("name",), (*_KINDS, "as", "where"))
        name = self._string(table["name"], f"{at}.name")
        given = [kind for kind in _KINDS if kind in table]
        if len(given) != 1:
            raise self._fault(at, f"needs one of {', '.join(_KINDS)}, has {len(given)}")
        kind = given[0]
        if "where" in table and kind != "pattern":
            raise self._fault(f"{at}.where", f"does not go with {kind}")
        if "as" in table and kind in ("absorb", "fold"):
            raise self._fault(f"{at}.as", f"does not go with {kind}")
        result = self._string(table["as"], f"{at}.as") if "as" in table else ""
        body, where = table[kind], f"{at}.{kind}"
        if kind == "sequence":
            items = self._strings(body, where)
            self._require(2 <= len(items) <= MAX_LINES, where, f"2 to {MAX_LINES} operators")
            ops = tuple(self._ops(text, f"{where}[{i}]") for i, text in enumerate(items))
            if any(ANY in allowed for allowed in ops):
                raise self._fault(where, "'*' goes with patterns only")
            return SequenceRule(name, ops, result)
        if kind == "absorb":
            return Absorb(name, self._list_of_ops(body, where))
        if kind == "fold":
            self._object(body, where, ("shape", "except"), ())
            return Fold(
                name,
                self._list_of_ops(body["shape"], f"{where}.shape"),
                self._list_of_ops(body["except"], f"{where}.except"),
            )
        lines = self._lines(body, where)
        return Pattern(name, lines, self._conditions(table.get("where", []), lines, at), result)

    def _lines(self, texts: Any, at: str) -> tuple[Line, ...]:
        """The lines of a pattern."""
        items = self._strings(texts, at)
        self._require(2 <= len(items) <= MAX_LINES, at, f"2 to {MAX_LINES} lines")
        numbers: dict[str, int] = {}
        lines: list[Line] = []
        used: set[int] = set()
        for i, text in enumerate(items):
            here = f"{at}[{i}]"
            match = _LINE.fullmatch(text.strip())
            if match is None:
                raise self._fault(here, f"'{text}' is not NAME = OPERATOR(INPUTS)")
            shared, name, ops, inputs = match.groups()
            last = i == len(items) - 1
            if name is None and not last:
                raise self._fault(here, "needs a name, as only the last line may do without")
            if shared and last:
                raise self._fault(here, "the last line cannot be shared")
            if name is not None and name in numbers:
                raise self._fault(here, f"the name '{name}' is taken by line {numbers[name]}")
            words = [w.strip() for w in inputs.split(",")] if inputs.strip() else []
            is_open = bool(words) and words[-1] == "..."
            arguments = self._arguments(words[:-1] if is_open else words, lines, numbers, here)
            if is_open and arguments and arguments[-1].repeated:
                raise self._fault(here, "'...' after a repeated input")
            used.update(a.line for a in arguments)
            if name is not None:
                numbers[name] = i
            lines.append(Line(name or "", self._ops(ops, here), arguments, is_open, bool(shared)))
        for i, line in enumerate(lines[:-1]):
            if i not in used:
                raise self._fault(f"{at}[{i}]", f"no later line reads '{line.name}'")
        return tuple(lines)

    def _arguments(
        self, words: list[str], lines: list[Line], numbers: dict[str, int], at: str
    ) -> tuple[Argument, ...]:
        arguments = []
        for place, word in enumerate(words):
            name, repeated = word.removesuffix("*"), word.endswith("*")
            if name.startswith("@") and not repeated and name[1:] in CONSTANTS:
                arguments.append(Argument(name[1:]))
                continue
            if not name.isidentifier():
                raise self._fault(at, f"'{word}' is not an input")
            line = numbers.get(name, -1)
            if repeated:
                plain = line >= 0 and not lines[line].arguments and lines[line].open
                if not plain or place != len(words) - 1:
                    raise self._fault(
                        at, f"'{word}' must come last and stand for a line that ends in (...)"
                    )
            arguments.append(Argument("line" if line >= 0 else "tensor", name, line, repeated))
        return tuple(arguments)

    def _conditions(self, texts: Any, lines: tuple[Line, ...], at: str) -> tuple[Condition, ...]:
        """The conditions of a pattern."""
        known = {line.name for line in lines} | {a.name for x in lines for a in x.arguments}
        repeated = {a.name for x in lines for a in x.arguments if a.repeated}
        operators = {x.name for x in lines if x.arguments}
        conditions = []
        for i, text in enumerate(self._strings(texts, f"{at}.where")):
            here = f"{at}.where[{i}]"
            rank, shape, swaps = (p.fullmatch(text.strip()) for p in (_RANK, _SHAPE, _SWAPS))
            if rank:
                condition = Condition("rank", (rank[1],), int(rank[2]))
            elif shape:
                condition = Condition("shape", (shape[1], shape[2]))
            elif swaps:
                condition = Condition("swaps", (swaps[1],))
            else:
                raise self._fault(here, f"'{text}' is not a condition")
            for name in condition.names:
                if not name or name not in known or name in repeated:
                    raise self._fault(here, f"'{name}' names nothing in the pattern")
                if swaps and name not in operators:
                    raise self._fault(here, f"'{name}' is not an operator with inputs")
            conditions.append(condition)
        return tuple(conditions)

    def _ops(self, text: str, at: str) -> tuple[str, ...]:
        """Operators of a text like `Relu|$activation`."""
        ops: list[str] = []
        for word in text.split("|"):
            if word.startswith("$"):
                if word[1:] not in self._sets:
                    raise self._fault(at, f"there is no set '{word[1:]}'")
                ops += self._sets[word[1:]]
            elif not word or not all(c.isalnum() or c in "_.-:*" for c in word):
                raise self._fault(at, f"'{word}' is not an operator")
            elif "*" in word and word != ANY:
                raise self._fault(at, f"'{word}': '*' stands alone")
            else:
                ops.append(word)
        if not ops:
            raise self._fault(at, f"'{text}' is no operator, as the set is empty")
        return tuple(dict.fromkeys(ops))

    def _list_of_ops(self, value: Any, at: str) -> tuple[str, ...]:
        ops = [op for i, text in enumerate(self._strings(value, at)) for op in self._ops(text, at)]
        if ANY in ops:
            raise self._fault(at, "'*' goes with patterns only")
        return tuple(dict.fromkeys(ops))

    def _object(
        self, value: Any, at: str, required: tuple[str, ...], optional: tuple[str, ...]
    ) -> None:
        self._require(isinstance(value, dict), at, "an object")
        prefix = f"{at}." if at else ""
        for key in required:
            if key not in value:
                raise self._fault(f"{prefix}{key}", "is missing")
        for key in value:
            if key not in required and key not in optional:
                hint = instead(key, (*required, *optional))
                raise self._fault(f"{prefix}{key}", f"is not known{hint}")

    def _strings(self, value: Any, at: str) -> list[str]:
        fits = isinstance(value, list) and all(isinstance(v, str) for v in value)
        self._require(fits, at, "a list of strings")
        return list(value)

    def _string(self, value: Any, at: str) -> str:
        self._require(isinstance(value, str) and value != "", at, "a string that is not empty")
        return str(value)

    def _require(self, fits: bool, at: str, expected: str) -> None:
        if not fits:
            raise self._fault(at, f"expected {expected}")

    def _fault(self, at: str, reason: str) -> FormatError:
        return FormatError(reason, self._file, field=at or None)
