"""Standard input is read once: by the stream, or by one option."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from dnnp import split
from dnnp.cmds.shell.overwrite import READ
from dnnp.graph import Graph
from support import seeds
from support.generating import random_decoder
from support.run import dnnp

COMMANDS = (
    "bound",
    "check",
    "coarsen",
    "export",
    "partition",
    "profile",
    "run",
    "schedule",
    "view",
)


def options_of(name: str) -> list[str]:
    """Options of a command that name a file to read."""
    parser: argparse.ArgumentParser = importlib.import_module(f"dnnp.cmds.{name}").COMMAND.parser()
    named = [a for a in parser._actions if a.dest in READ and a.option_strings]
    return [action.option_strings[-1] for action in named if not action.choices]


def test_no_option_shares_it_with_the_stream() -> None:
    stream, tried = seeds.encode(seeds.planned()), set[str]()
    for name in COMMANDS:
        for flag in options_of(name):
            if name == "schedule" and flag in ("--placement", "--devices"):
                continue  # takes the place of the stream; is a number
            done = dnnp(name, flag, "-", stdin=stream)
            said = f"dnnp-{name}: {flag} and the stream cannot both be standard input\n"
            assert (done.status, done.out, done.err) == (2, b"", said)
            tried.add(flag)
    assert {"--workload", "--prompts", "--eval", "--costs", "--inputs", "--policy"} <= tried


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("profile", "--costs", "-", "--costs", "-"), "--costs and --costs"),
        (("partition", "-k", "2", "--workload", "-", "--eval", "-"), "--workload and --eval"),
    ],
)
def test_no_two_options_share_it(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "s.dnnp").write_bytes(seeds.encode(seeds.planned()))
    done = dnnp(*words, tmp_path / "s.dnnp", stdin=b"")
    assert done.status == 2
    assert {*says.split(" and ")} == {word for word in done.err.split() if word[:2] == "--"}
    assert done.err.endswith("cannot both be standard input\n")


def test_lengths_from_standard_input(tmp_path: Path) -> None:
    stream = random_decoder(1, phased=True)
    path = tmp_path / "s.dnnp"
    Graph(stream).save(path)
    done = dnnp("partition", "-q", "-k", "2", "--workload", "-", path, stdin=b"8 6\n8 4\n")
    assert done.status == 0, done.err
    made = split(Graph(random_decoder(1, phased=True)), k=2, workload=[(8, 6), (8, 4)])
    assert done.one("plan")["workload"] == made.records("plan")[0]["workload"]
    several = dnnp("partition", "-k", "1,2", "-o", "{k}", "--workload", "-", path, stdin=b"8 6\n")
    assert several.status == 2
    assert "-k would read it several times" in several.err
