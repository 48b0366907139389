"""Views of plans with rules, and of those that leave devices idle."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from support.graphs import to_bytes
from support.ruled import decoder
from support.run import dnnp

RULE = "--exactly 2"
BEST = "no split that keeps them is better"


def planned(*words: str, k: int = 3) -> bytes:
    done = dnnp("partition", "-k", str(k), "--bandwidth", "1K", *words, stdin=to_bytes(decoder()))
    assert done.status == 0, done.err
    return done.out


def shown(stream: bytes, *words: str) -> str:
    done = dnnp("view", *words, stdin=stream)
    assert done.status == 0, done.err
    return " ".join(done.out.decode().split())


@pytest.mark.parametrize("form", ["text", "svg", "html"])
def test_rules_are_named_and_what_is_proven_of_them(form: str) -> None:
    ruled, free = (shown(planned(*words), "--as", form) for words in (RULE.split(), ()))
    assert f"rules: {RULE}: {BEST}" in ruled
    assert "rules: " not in free
    if form == "html":
        assert "proven: no split that keeps the rules is better" in ruled
        assert "no split is better" not in ruled
        assert "proven: no split is better" in free


def test_plans_that_are_not_proven_say_of_what_their_bound_is() -> None:
    stream = planned(*RULE.split(), "--method", "random")
    stream = stream.replace(b'"status":"optimal"', b'"status":"feasible"')
    assert f"rules: {RULE}: bound and gap are those of splits that keep them" in shown(stream)
    assert BEST not in shown(stream, "--as", "html")


@pytest.mark.parametrize("table", ["plans", "tried"])
def test_tables_have_a_column_of_rules(table: str) -> None:
    seen = []
    for words in (RULE.split(), ()):
        done = dnnp("view", "--as", "csv", "--table", table, "--raw", stdin=planned(*words))
        text = done.out.decode()
        seen += [row["rules"] for row in csv.DictReader(io.StringIO(text))]
    assert seen == [RULE, ""]


def test_comparisons_have_a_column_of_rules(tmp_path: Path) -> None:
    """A plan without rules that is better does not make one with rules less than the best."""
    for name, words in (("ruled", ("--pin", "layers.0=gpu/1", *RULE.split())), ("free", ())):
        (tmp_path / f"{name}.dnnp").write_bytes(planned(*words))
    files = [tmp_path / f"{name}.dnnp" for name in ("ruled", "free")]
    lines = dnnp("view", *files).out.decode().splitlines()
    (head,) = [line for line in lines if line.startswith("plan ")]
    ruled, free = ([x for x in lines if x.startswith(name)] for name in ("ruled", "free"))
    assert "rules" in head
    assert "--pin layers.0=gpu/1 --exactly 2" in ruled[0]
    assert "--" not in free[0]
    assert "*" in ruled[0]
    assert "*" in free[0]


@pytest.mark.parametrize("form", ["text", "svg", "html"])
def test_idle_devices_are_named_with_the_reason(form: str) -> None:
    stream = planned("--speed", "gpu/1=0.001", k=2)
    reason = "1 device is idle (gpu/1): there is no faster plan that uses more"
    assert reason in shown(stream, "--as", form)
    assert dnnp("check", stdin=stream).status == 0
    assert "idle (" not in shown(planned(k=2), "--as", form)
