"""Rule files: what is read, and what is refused with the name of the field."""

from __future__ import annotations

import copy

import orjson
import pytest

from dnnp.coarsening import installed_version
from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.core.model.rules import Absorb, Condition, Fold, Pattern, SequenceRule
from dnnp.formats.files import bundled_names
from dnnp.formats.inputs.rules import load_rules, parse_rules, unknown_operators
from support.graphs import to_bytes
from support.op_graphs import op_stream
from support.run import dnnp

GOOD = {
    "name": "good",
    "description": "one of each",
    "sets": {"act": ["Relu", "Tanh"]},
    "rules": [
        {"name": "s", "sequence": ["Conv|Gemm", "$act"], "as": "Done"},
        {
            "name": "p",
            "pattern": ["shared d = D(...)", "a = *(d, @scalar)", "b = $act|B(a, x, x, ...)"],
            "where": ["rank(a) = 2", "shape(x) = shape(b)", "swaps(a)"],
        },
        {"name": "r", "pattern": ["d = D(...)", "C(x, d*)"]},
        {"name": "a", "absorb": ["Identity"]},
        {"name": "f", "fold": {"shape": ["Shape"], "except": ["$act"]}},
    ],
}


def test_every_kind_is_read():
    s, p, r, a, f = parse_rules(orjson.dumps(GOOD), "good.json").rules
    assert s == SequenceRule("s", (("Conv", "Gemm"), ("Relu", "Tanh")), "Done")
    assert isinstance(p, Pattern)
    assert [line.ops for line in p.lines] == [("D",), ("*",), ("Relu", "Tanh", "B")]
    assert [(line.shared, line.open) for line in p.lines] == [
        (True, True),
        (False, False),
        (False, True),
    ]
    assert [(a.kind, a.line) for a in p.lines[1].arguments] == [("line", 0), ("scalar", -1)]
    assert p.conditions == (
        Condition("rank", ("a",), 2),
        Condition("shape", ("x", "b")),
        Condition("swaps", ("a",)),
    )
    assert isinstance(r, Pattern)
    assert r.lines[1].arguments[1].repeated
    assert a == Absorb("a", ("Identity",))
    assert f == Fold("f", ("Shape",), ("Relu", "Tanh"))


def test_bundled_files():
    assert {"cudnn", "moirai", "ort-cpu", "ort-cuda", "tensorrt"} <= set(bundled_names("rules"))
    for name in bundled_names("rules"):
        assert load_rules(name).name == name
    assert [[op for (op,) in rule.ops] for rule in load_rules("moirai").rules] == [
        ["Conv", "BatchNormalization"],
        ["Conv", "BatchNormalization", "Relu"],
        ["Conv", "BatchNormalization", "Add", "Relu"],
    ]


def test_a_file_by_its_name(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(orjson.dumps(GOOD))
    assert load_rules(str(path)).name == "good"


@pytest.mark.parametrize("name", ["nosuch", "", "x" * 5000, "a\0b"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(
        UsageError, match=r"; known: cudnn, moirai, ort-cpu, ort-cuda, tensorrt, none, ort, or"
    ):
        load_rules(name)


def test_a_misspelt_name_is_told_apart():
    with pytest.raises(UsageError, match="no rules named 'ort_cpu'; did you mean 'ort-cpu'"):
        load_rules("ort_cpu")


@pytest.mark.parametrize("name", ["nosuch.json", "no/such", "/", "a\0b.json", "x" * 5000 + ".json"])
def test_a_missing_file(name):
    with pytest.raises(InputFileError):
        load_rules(name)


def broken(*path: object, value: object) -> bytes:
    """The good file with one value replaced, or removed if the new value is `...`."""
    table = copy.deepcopy(GOOD)
    *way, last = path
    place = table
    for key in way:
        place = place[key]  # type: ignore[index]
    if value is ...:
        del place[last]  # type: ignore[attr-defined]
    else:
        place[last] = value  # type: ignore[index]
    return orjson.dumps(table)


P = ("rules", 1)
BAD = [
    (("name",), ..., "name", "is missing"),
    (("name",), 3, "name", "a string"),
    (("rules",), ..., "rules", "is missing"),
    (("rules",), {}, "rules", "a list"),
    (("rulez",), [], "rulez", "is not known"),
    (("sets",), [], "sets", "an object"),
    (("sets", "act"), "Relu", "sets.act", "a list of strings"),
    (("rules", 0), [], "rules[0]", "an object"),
    (("rules", 0, "name"), "", "rules[0].name", "not empty"),
    (("rules", 0, "absorb"), ["A"], "rules[0]", "needs one of"),
    (("rules", 0, "sequence"), ..., "rules[0]", "has 0"),
    (("rules", 0, "sequence"), ["A"], "rules[0].sequence", "2 to"),
    (("rules", 0, "sequence"), ["A"] * 65, "rules[0].sequence", "2 to"),
    (("rules", 0, "sequence"), ["A", 3], "rules[0].sequence", "list of strings"),
    (("rules", 0, "sequence"), ["A", "B C"], "rules[0].sequence[1]", "'B C' is not an operator"),
    (("rules", 0, "sequence"), ["A", "$no"], "rules[0].sequence[1]", "no set 'no'"),
    (("rules", 0, "sequence"), ["A", "*"], "rules[0].sequence", "patterns only"),
    (("rules", 0, "sequence"), ["A", "B*"], "rules[0].sequence[1]", "stands alone"),
    (("rules", 0, "where"), [], "rules[0].where", "does not go with sequence"),
    (("rules", 0, "as"), None, "rules[0].as", "a string"),
    (("rules", 3, "as"), "X", "rules[3].as", "does not go with absorb"),
    (("rules", 3, "absorb"), ["*"], "rules[3].absorb", "patterns only"),
    (("rules", 4, "fold"), ["Shape"], "rules[4].fold", "an object"),
    (("rules", 4, "fold", "shape"), ..., "rules[4].fold.shape", "is missing"),
    ((*P, "pattern"), ["A(x)"], "rules[1].pattern", "2 to"),
    ((*P, "pattern"), ["a = A(x", "B(a)"], "rules[1].pattern[0]", "is not NAME"),
    ((*P, "pattern"), ["A(x)", "B(x)"], "rules[1].pattern[0]", "needs a name"),
    ((*P, "pattern"), ["a = A(x)", "B(y)"], "rules[1].pattern[0]", "no later line reads 'a'"),
    ((*P, "pattern"), ["a = A(x)", "a = B(a)"], "rules[1].pattern[1]", "taken by line 0"),
    ((*P, "pattern"), ["a = A(x)", "shared b = B(a)"], "rules[1].pattern[1]", "cannot be shared"),
    ((*P, "pattern"), ["a = A(@big)", "B(a)"], "rules[1].pattern[0]", "'@big' is not an input"),
    ((*P, "pattern"), ["a = A(x, )", "B(a)"], "rules[1].pattern[0]", "'' is not an input"),
    ((*P, "pattern"), ["a = A(..., x)", "B(a)"], "rules[1].pattern[0]", "'...' is not an input"),
    ((*P, "pattern"), ["a = A(x)", "B(a*)"], "rules[1].pattern[1]", "must come last"),
    ((*P, "pattern"), ["a = A(...)", "B(a*, x)"], "rules[1].pattern[1]", "must come last"),
    ((*P, "pattern"), ["a = A(...)", "B(a*, ...)"], "rules[1].pattern[1]", "after a repeated"),
    ((*P, "where"), "rank(a) = 2", "rules[1].where", "list of strings"),
    ((*P, "where"), ["rank(a) > 2"], "rules[1].where[0]", "is not a condition"),
    ((*P, "where"), ["rank(q) = 2"], "rules[1].where[0]", "'q' names nothing"),
    ((*P, "where"), ["swaps(x)"], "rules[1].where[0]", "not an operator"),
    ((*P, "where"), ["swaps(d)"], "rules[1].where[0]", "not an operator"),
    (("rules", 2, "where"), ["rank(d) = 2"], "rules[2].where[0]", "'d' names nothing"),
]


@pytest.mark.parametrize(("path", "value", "field", "reason"), BAD)
def test_faults_name_the_field(path, value, field, reason):
    with pytest.raises(FormatError) as error:
        parse_rules(broken(*path, value=value), "bad.json")
    assert str(error.value).startswith(f"bad.json: field '{field}': ")
    assert reason in str(error.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_not_json(data):
    with pytest.raises(FormatError, match=r"bad\.json(:1)?: not JSON"):
        parse_rules(data, "bad.json")


@pytest.mark.parametrize("data", [b"null", b"[]", b"3", b'"x"', b"NaN"])
def test_not_an_object(data):
    with pytest.raises(FormatError, match=r"bad\.json: .* is not an object"):
        parse_rules(data, "bad.json")


def rule_file(*rules: dict, **sets: list[str]) -> bytes:
    return orjson.dumps({"name": "x", "sets": sets, "rules": list(rules)})


def seq(name: str, *ops: str, **more: str) -> dict:
    return {"name": name, "sequence": list(ops), **more}


def pat(name: str, *lines: str, **more: object) -> dict:
    return {"name": name, "pattern": list(lines), **more}


FOLD = {"name": "fold", "fold": {"shape": ["Shape"], "except": ["Rand"]}}
GONE = {"name": "gone", "absorb": ["Identity"]}
FUTILE = [
    ([seq("a", "Conv", "Relu|Tanh"), seq("b", "Conv", "Tanh")], 1,
     "rule 'a', of the same length, takes all that it would"),
    ([seq("a", "Conv", "Relu"), seq("c", "Gemm", "Relu"), seq("b", "Conv", "Relu")], 2,
     "rule 'a', of the same length, takes all that it would"),
    ([pat("a", "m = MatMul(x, y)", "Add(m, z)"), seq("c", "Conv", "Relu"),
      pat("b", "m = MatMul(x, y)", "Add(m, z)")], 2, "rule 'a' is the same and has taken all"),
    ([GONE, seq("b", "Conv", "Identity")], 1, "'Identity' has been absorbed before"),
    ([GONE, pat("b", "i = Identity(x)", "Add(i, x)")], 1, "'Identity' has been absorbed before"),
    ([FOLD, pat("b", "t = Transpose(@weight)", "MatMul(x, t)")], 1,
     "'t' reads only constants: rule 'fold' has folded it"),
    ([pat("b", "m = MatMul(x, y)", "Add(m, z)", where=["rank(m) = 2", "rank(m) = 3"])], 0,
     "'m' has 2 and 3 dimensions"),
    ([pat("b", "t = Transpose(x)", "Add(t, z)", where=["rank(t) = 1", "swaps(t)"])], 0,
     "'t' has 1 dimensions, none to swap"),
    ([pat("b", "m = MatMul(x, y)", "Add(m, z)",
          where=["rank(x) = 2", "rank(y) = 3", "shape(x) = shape(y)"])], 0,
     "'x' and 'y' differ in their dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "which", "reason"), FUTILE)
def test_a_rule_that_cannot_match_is_named(rules, which, reason):
    with pytest.raises(FormatError) as error:
        parse_rules(rule_file(*rules), "bad.json")
    assert str(error.value) == (
        f"bad.json: field 'rules[{which}]': rule 'b' cannot match: {reason}"
    )


@pytest.mark.parametrize(
    "rules",
    [
        [seq("a", "Conv", "Relu"), seq("b", "Conv", "Relu", "Add")],
        [seq("a", "Conv", "Relu"), seq("b", "Conv", "Relu|Tanh")],
        [seq("a", "Conv", "Relu"), FOLD, seq("b", "Conv", "Relu")],
        [
            pat("a", "m = MatMul(x, y)", "Add(m, z)", **{"as": "MatMul"}),
            pat("b", "m = MatMul(x, y)", "Add(m, z)"),
        ],
        [
            pat("a", "g = Gelu(x)", "Add(g, z)"),
            seq("c", "Erf", "Mul", **{"as": "Gelu"}),
            pat("b", "g = Gelu(x)", "Add(g, z)"),
        ],
        [GONE, pat("b", "shared i = Identity(x)", "Add(i, x)")],
        [GONE, seq("a", "Conv", "Relu", **{"as": "Identity"}), seq("b", "Identity", "Add")],
        [GONE, seq("b", "Conv", "Identity|Relu")],
        [FOLD, pat("b", "t = Rand(@weight)", "MatMul(x, t)")],
        [FOLD, pat("b", "t = Transpose(@weight, ...)", "MatMul(x, t)")],
        [pat("b", "t = Transpose(@weight)", "MatMul(x, t)"), FOLD],
        [pat("b", "m = *(x)", "*(m)"), pat("c", "m = *(x)", "*(m)")],
    ],
)
def test_rules_that_may_match_are_read(rules):
    assert len(parse_rules(rule_file(*rules), "good.json").rules) == len(rules)


def test_an_empty_set_is_no_operator():
    with pytest.raises(FormatError, match=r"'\$no' is no operator, as the set is empty"):
        parse_rules(rule_file(seq("a", "Conv", "$no"), no=[]), "bad.json")


def test_unknown_operators_are_found():
    rules = parse_rules(
        rule_file(
            seq("a", "Conv", "Rellu", **{"as": "ConvRelu"}),
            seq("b", "ConvRelu", "Add"),
            pat("c", "m = FusedMatMul|Matmul(x)", "*(m)"),
        ),
        "x.json",
    )
    assert unknown_operators(rules) == [("a", "Rellu"), ("c", "Matmul")]
    assert not [
        found for name in bundled_names("rules") for found in unknown_operators(load_rules(name))
    ]


def test_the_command_names_file_rule_and_operator(tmp_path):
    stream = to_bytes(op_stream("a = Conv(x)", "b = Relu(a)"))
    path = tmp_path / "mine.json"
    path.write_bytes(rule_file(seq("a", "Conv", "Relu"), seq("b", "Conv", "Relu")))
    result = dnnp("coarsen", "--rules", path, stdin=stream)
    assert (result.status, result.out) == (3, b"")
    assert result.err == (
        f"dnnp-coarsen: {path}: field 'rules[1]': rule 'b' cannot match: rule 'a', of the same "
        "length, takes all that it would\n"
    )
    path.write_bytes(rule_file(seq("a", "Conv", "Rellu")))
    result = dnnp("coarsen", "--rules", path, stdin=stream)
    assert result.status == 0
    assert "rule 'a' of x: there is no operator 'Rellu' in ONNX or ONNX Runtime" in result.err


def test_versions_that_rules_were_compared_with(monkeypatch):
    """A note says if another version is installed; nothing is said if none is."""
    stream = to_bytes(op_stream("y = Relu(x)"))
    versions = load_rules("ort-cpu").versions
    assert versions
    assert load_rules("moirai").versions == ()
    for installed, noted in ((f"{versions[0]}.7", False), ("", False), ("9.87.6", True)):
        monkeypatch.setattr("dnnp.coarsening.installed_version", lambda text=installed: text)
        result = dnnp("coarsen", stdin=stream)
        assert result.status == 0, result.err
        note = f"compared with ONNX Runtime {', '.join(versions)}; 9.87.6 is installed"
        assert (note in result.err) == noted
        assert "compared with" not in dnnp("coarsen", "--rules", "moirai", stdin=stream).err


def test_the_version_that_is_installed():
    onnxruntime = pytest.importorskip("onnxruntime")
    assert installed_version() == onnxruntime.__version__
