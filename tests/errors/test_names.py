"""Names that hold control characters: shown as escapes wherever text leaves the program."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dnnp.core.model.text import printable, table
from support import seeds
from support.graphs import random_stream, to_bytes
from support.run import dnnp, dnnp_process

NASTY = "a\x1b[2Jb\x07\x7f\x9b31mc\u202ed\u200fe\u2066\x00\n\u2028f"
SHOWN = r"a\x1b[2Jb\x07\x7f\x9b31mc\u202ed\u200fe\u2066\x00\n\u2028f"


def assert_harmless(text: str) -> None:
    """Nothing in it but lines of text."""
    strange = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert strange <= {"\n"}, text


def test_every_control_character_is_shown_as_an_escape() -> None:
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        bidirectional = unicodedata.bidirectional(chr(code)) in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )
        if category in ("Cc", "Cs", "Zl", "Zp") or bidirectional:
            assert printable(chr(code)).isascii(), hex(code)
            assert printable(chr(code)).startswith("\\")
    assert printable(NASTY) == SHOWN == printable(SHOWN)
    assert printable("Größe 層/0 👩‍🔬") == "Größe 層/0 👩‍🔬"


def test_names_in_messages() -> None:
    records = seeds.planned()
    for record in records:
        if record["type"] in ("node", "tensor", "device"):
            record["name" if "name" in record else "class"] = NASTY
    result = dnnp("check", "-v", stdin=seeds.encode(records))
    assert result.status == 3
    assert_harmless(result.err)
    nodes = [r for r in records if r["type"] == "node"]
    nodes[0]["inputs"] = nodes[0]["inputs"] + nodes[0]["outputs"]
    assert_harmless(dnnp("partition", "-k", "2", stdin=seeds.encode(records)).err)


@pytest.mark.parametrize(
    "arguments",
    [(f"/tmp/{NASTY[:-4]}",), ("--comm", NASTY), (f"--{NASTY}",), ("-k", "2", "-o", f"no/{NASTY}")],
)
def test_arguments_in_messages(arguments: tuple[str, ...]) -> None:
    result = dnnp("partition", *arguments, stdin=to_bytes(random_stream(1, 4)))
    assert result.status in (1, 2)
    assert r"\x1b[2J" in result.err
    assert_harmless(result.err)


def test_a_file_name_that_is_not_text() -> None:
    result = dnnp_process("check", "/nowhere/\udc9b\udcff")
    assert result.err == "dnnp-check: /nowhere/\\udc9b\\udcff: No such file or directory\n"


def test_names_in_charts_and_pictures(tmp_path: Path) -> None:
    placement = tmp_path / "p.json"
    block = {"name": NASTY, "devices": [0], "time_s": 1}
    placement.write_text(
        json.dumps({"devices": [{"name": NASTY}, {"name": "\ufffe"}], "blocks": [block]})
    )
    picture = tmp_path / "p.svg"
    arguments = ("--placement", placement, "-n", "2", "--chart", "--svg", picture)
    result = dnnp("schedule", *arguments)
    assert result.status == 0, result.err
    assert_harmless(result.err)
    rows = [line for line in result.err.splitlines() if " |" in line]
    assert [row.index(" |") for row in rows] == [len(SHOWN)] * 2
    texts = [e.text for e in ElementTree.parse(picture).iter() if e.text]
    assert SHOWN in texts
    assert any(text.startswith(f"{SHOWN} of micro-batch 1") for text in texts)


def test_names_in_tables() -> None:
    lines = table(["stage", "device"], [["0", NASTY], ["1", "cpu/0"]])
    assert [len(line) for line in lines] == [7 + len(SHOWN)] * 3
    assert_harmless("\n".join(lines))
