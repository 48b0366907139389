"""Every command explains itself: help, version, completion, manual page; and starts fast."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys

import pytest

from dnnp.cmds.dnnp import COMMANDS as MODULES
from dnnp.cmds.dnnp import command
from dnnp.cmds.shell.overwrite import READ, WRITTEN
from support.manual import literal_blocks
from support.project import ROOT, command_names, pyproject
from support.run import PATIENCE_S, dnnp, dnnp_process, executable, output_of

COMMANDS = command_names()
HEAVY = ("numpy", "onnx", "onnxruntime", "numba", "scipy", "mip", "sympy", "orjson", "dataclasses")
"""Packages that a command may import only when it works."""


def actions(name: str) -> list[argparse.Action]:
    """Every argument of a command that help lists."""
    return [a for a in command(name).parser()._actions if a.help != argparse.SUPPRESS]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_help(name: str) -> None:
    assert command(name).name == f"dnnp-{name}"
    summary = command(name).summary
    assert summary[0].islower(), "summaries start small and have no full stop"
    assert not summary.endswith(".")
    without = [a.dest for a in actions(name) if not a.help]
    assert not without
    ends = [a.dest for a in actions(name) if (a.help or "").endswith(".")]
    assert not ends, "help lines have no full stop"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_with_a_file_is_kept_from_being_overwritten(name: str) -> None:
    files = {"FILE", "PATH", "DIR", "MODEL", "STREAM", "RULES"}
    named = {a.dest for a in actions(name) if files & set(str(a.metavar).split("|"))}
    assert named <= {*READ, *WRITTEN, "cache"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_option(name: str) -> None:
    result = dnnp(name, "--help-all")
    assert result.status == 0
    assert result.err == ""
    text = result.out.decode()
    assert command(name).summary in " ".join(text.split())
    for action in actions(name):
        for option in action.option_strings:
            assert option in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_one_page(name: str) -> None:
    """The most used options, in groups, and two examples that can be parsed."""
    page = dnnp(name, "--help")
    assert (page.status, page.err) == (0, "")
    assert page == dnnp(name, "-h") == dnnp(name, "-q", "--help")
    lines = page.out.decode().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    examples = lines[lines.index("Examples:") + 1 : -2]
    assert len(examples) == 2
    for example in examples:
        for first, *words in (re.split(r" [<>]", part)[0].split() for part in example.split("|")):
            command(first.removeprefix("dnnp-")).parser().parse_args(words)
    for line in lines:
        for option in re.findall(r"^  (-[^ ,]+)(?:, (-[^ ]+))?", line):
            assert set(filter(None, option)) <= set(command(name).parser()._option_string_actions)


@pytest.mark.parametrize("name", COMMANDS)
def test_version(name: str) -> None:
    result = dnnp(name, "--version")
    version = pyproject()["project"]["version"]
    assert (result.status, result.out.decode()) == (0, f"dnnp-{name} {version}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_completion(name: str) -> None:
    result = dnnp(name, "--print-completion", "bash")
    assert result.status == 0
    script = result.out.decode()
    assert f"dnnp-{name}" in script
    assert "--quiet" in script
    if name == COMMANDS[0]:
        subprocess.run(["bash", "-n"], input=result.out, check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_option_is_usage(name: str) -> None:
    result = dnnp(name, "--no-such-option")
    assert result.status == 2


def test_help_imports_nothing_heavy() -> None:
    modules = [f"dnnp.cmds.{MODULES[name]}" for name in COMMANDS]
    program = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name).COMMAND.parser().format_help()\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))\n"
    )
    assert json.loads(output_of([sys.executable, "-c", program])) == []


def test_installed_command_answers() -> None:
    name = COMMANDS[0]
    assert os.access(executable(name), os.X_OK)
    assert dnnp_process(name, "--version").out.startswith(f"dnnp-{name} ".encode())


def test_manual_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "man" / "build.py", "--check"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_manual_page(name: str) -> None:
    page = (ROOT / "man" / "man1" / f"dnnp-{name}.1").read_text()
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f"\n.SH {heading}\n" in page
    plain = page.replace("\\-", "-")
    for action in actions(name):
        if "--help" in action.option_strings:
            continue
        for option in action.option_strings:
            assert f"\\fB{option}\\fR" in plain
    used = set(re.findall(r"\\fB(--[a-z-]+)|^\.BR? (?:\"?)(--[a-z-]+)", plain, re.M))
    known = {o for other in COMMANDS for o in command(other).parser()._option_string_actions}
    assert {a or b for a, b in used} <= known


def test_manual_pages_use_known_requests() -> None:
    known = {
        ".TH",
        ".SH",
        ".SS",
        ".TP",
        ".PP",
        ".IP",
        ".RS",
        ".RE",
        ".nf",
        ".fi",
        ".B",
        ".BR",
        ".I",
        ".IR",
        ".BI",
        ".RB",
        ".RI",
        ".UR",
        ".UE",
    }
    pages = sorted((ROOT / "man").glob("man*/*"))
    assert len(pages) == len(COMMANDS) + 6
    for page in pages:
        for line in page.read_text().splitlines():
            assert not line.startswith("'"), f"{page.name}: {line}"
            if line.startswith("."):
                assert line.split()[0] in known, f"{page.name}: {line}"


def test_example_stream_is_one() -> None:
    stream = (ROOT / "man" / "sections" / "example.jsonl").read_bytes()
    result = dnnp("check", stdin=stream)
    assert (result.status, result.err.startswith("dnnp-check: ok")) == (0, True), result.err


def commands_in(text: str) -> list[list[str]]:
    """Words of every `dnnp-...` command in the literal blocks of a manual page."""
    found = []
    for line in "\n".join(literal_blocks(text)).replace("\\\n", "").split("\n"):
        for part in re.split(r"[|;]|&&", re.sub(r"'[^']*'", "QUOTED", line)):
            words = part.split()
            if words and words[0].startswith("dnnp-"):
                found.append([w for w in words if not w.startswith((">", "<"))])
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_options_that_exist(name: str) -> None:
    used = commands_in((ROOT / "man" / "man1" / f"dnnp-{name}.1").read_text())
    assert [f"dnnp-{name}"] in [words[:1] for words in used]
    for first, *words in used:
        known = {o: a for a in actions(first.removeprefix("dnnp-")) for o in a.option_strings}
        for word, value in itertools.zip_longest(words, words[1:]):
            if not re.match(r"--?[a-z]", word):
                continue
            option = word if word in known else word.partition("=")[0]
            assert option in known, f"{first} {word}"
            choices = known[option].choices
            if choices and not str(value).startswith("$"):
                assert set(str(value).split(",")) <= set(choices), f"{first} {word} {value}"
