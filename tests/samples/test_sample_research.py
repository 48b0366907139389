"""Research methods below samples/papers: where they are missing, their options say so."""

from __future__ import annotations

import sys

import pytest

from support.run import dnnp

LATENCY = ("partition", "-k", "2", "--objective", "latency")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("placeto", (*LATENCY, "--method", "placeto")),
        ("ties", (*LATENCY, "--method", "max-load", "--order", "published")),
        ("regal", ("import", "--synthetic", "erdos-renyi")),
    ],
)
def test_an_option_names_the_missing_package(
    module: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dnnp("import", "--synthetic", "erdos-renyi", "--nodes", "8")
    name = f"dnnp.samples.papers.{module}"
    monkeypatch.setitem(sys.modules, name, None)
    result = dnnp(*words, stdin=made.out)
    assert (result.status, result.out) == (7, b"")
    assert f"the package {name} is not installed: pip install dnnp\n" in result.err
    assert dnnp("partition", "-k", "2", stdin=made.out).status == 0
