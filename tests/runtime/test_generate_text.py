"""Text in and out: pieces of it are whole characters, and together what all tokens say."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from dnnp import load, profile, split
from dnnp.core.model.errors import FormatError, UnavailableError, UsageError
from dnnp.core.runtime.generate.text import Text
from dnnp.generating import generate_stream, read_prompts
from dnnp.graph import Graph
from dnnp.options.run import RunOptions
from support.decoder_models import WORDS, grouped_decoder
from support.run import dnnp

tokenizers = pytest.importorskip("tokenizers")

WIDE = "naïve 日本語 🙂 é"


def in_words() -> str:
    """A tokenizer of words."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w3")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return str(made.to_str())


def in_bytes(words: int = 256) -> str:
    """A tokenizer of bytes, a few of which are merged; `words`: how many it has at most."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=words, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    made.train_from_iterator([WIDE, "a naïve text"] * 3, trainer)
    return str(made.to_str())


def in_pieces() -> str:
    """A tokenizer whose first space is dropped, with bytes for what is no piece."""
    words = ["<unk>", "▁a", "▁b", "c", *(f"<0x{i:02X}>" for i in range(256))]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True)
    )
    d = tokenizers.decoders
    made.decoder = d.Sequence(
        [d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(content=" ", left=1)]
    )
    return str(made.to_str())


@pytest.mark.parametrize("make", [in_words, in_bytes, in_pieces])
def test_pieces_are_the_whole(make: Any) -> None:
    data = make()
    plain = tokenizers.Tokenizer.from_str(data)
    text, rng = Text(lambda _: data.encode(), "t", True), random.Random(1)
    several = 0
    for number in range(60):
        if make is in_bytes and number % 2:
            ids = plain.encode("".join(rng.choices(WIDE, k=12))).ids
        elif make is in_pieces:  # it decodes a run of bytes at once, which so must be characters
            said = "".join(rng.choices("日本語🙂é", k=5)).encode()
            ids = [rng.choice([1, 2, 3]), *(4 + byte for byte in said), rng.choice([1, 2, 3])]
        else:
            ids = [rng.randrange(plain.get_vocab_size()) for _ in range(12)]
        pieces = [text.piece(number, t, i == len(ids) - 1) for i, t in enumerate(ids)]
        whole = plain.decode(ids)
        assert "".join(pieces) == text.texts[number] == whole
        if "\ufffd" not in whole:
            assert not any("\ufffd" in piece for piece in pieces)
            several += sum(map(bool, pieces)) > 1
    assert several > 20


def planned(tmp_path: Path) -> Graph:
    phases = ["prompt:batch=1,seq=4..40", "token:batch=3,past=4..60"]
    priced = profile(load(grouped_decoder(tmp_path / "m.onnx"), phase=phases))
    return split(priced, k=2, workload=[(8, 12)], in_flight=6)


def test_text_of_prompts_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(in_words())
    prompts, tokens = tmp_path / "p.jsonl", tmp_path / "t.jsonl"
    rows: list[dict[str, Any]] = [{"text": "w5 w9 w11"}, {"ids": [5, 9, 11]}, {"text": "w7 no w8"}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stream = planned(tmp_path).stream()
    options = RunOptions(generate=6, prompts=str(prompts), tokens=str(tokens), verify=True)
    generate_stream(stream, options)
    found: dict[int, list[dict[str, Any]]] = {}
    for row in map(json.loads, tokens.read_text().splitlines()):
        found.setdefault(row["sequence"], []).append(row)
    assert [len(found[i]) for i in range(3)] == [6, 6, 6]
    assert [r["token"] for r in found[0]] == [r["token"] for r in found[1]]
    texts = stream.get("generation")[0]["texts"]
    for number, each in found.items():
        assert texts[number] == " ".join(f"w{row['token']}" for row in each)
        assert texts[number] == "".join(row["text"] for row in each)


def test_the_command(tmp_path: Path) -> None:
    planned(tmp_path).save(tmp_path / "plan.dnnp")
    (tmp_path / "p.jsonl").write_text('{"text": "w5 w9"}\n')
    words = ("run", "--generate", "4", "--prompts", tmp_path / "p.jsonl")
    ends = (tmp_path / "plan.dnnp", "-o", tmp_path / "ran.dnnp")
    none = dnnp(*words, *ends)
    assert (none.status, "such file or directory (--tokenizer" in none.err) == (1, True)
    (tmp_path / "own.json").write_text(in_words())
    ran = dnnp(*words, "--tokenizer", tmp_path / "own.json", *ends)
    assert ran.status == 0, ran.err
    assert '"texts"' in (tmp_path / "ran.dnnp").read_text()
    assert dnnp("check", tmp_path / "ran.dnnp").status == 0
    (tmp_path / "own.json").write_text("[]")
    bad = dnnp(*words, "--tokenizer", tmp_path / "own.json", *ends)
    assert (bad.status, "own.json: no tokenizer" in bad.err) == (3, True)
    (tmp_path / "own.json").write_text(in_words())
    lost = dnnp(*words, "--tokenizer", tmp_path / "own.json", tmp_path / "plan.dnnp", "-o",
                tmp_path / "own.json")  # fmt: skip
    assert (lost.status, "would overwrite" in lost.err) == (2, True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [('{"text": 3}', "'ids'"), ('{"text": ""}', "no list of ids"), ("{}", "'ids'"),
     ('{"text": "high"}', "is no word")],
)  # fmt: skip
def test_malformed_text(line: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_prompts(line.encode(), "p", 4, WORDS, lambda text: [WORDS] if text else [])


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnavailableError, match=r"pip install 'dnnp\[text\]'"):
        Text(lambda _: b"{}", "t", True).ids("a")
    with pytest.raises(UsageError, match="--tokenizer is for --generate"):
        RunOptions(tokenizer="t").check()
