"""Rules that can match nothing, whatever the graph; and operators that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from dnnp.core.model.rules import ANY, Absorb, Fold, Line, Pattern, Rule, RuleSet, SequenceRule

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
