"""`dnnp COMMAND`: the same as dnnp-COMMAND, help, and what is wrong."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dnnp.cmds.dnnp import COMMAND, COMMANDS, chosen
from dnnp.cmds.shell.arguments import SHELLS
from dnnp.cmds.shell.context import Context
from support.graphs import random_stream, to_bytes
from support.project import ROOT, command_names, pyproject
from support.run import PATIENCE_S, Result, dnnp, ended, output_of
from support.served import served

GRAPH = to_bytes(random_stream(3, 7))


def front(*words: str) -> Result:
    """Output of `dnnp` without the name of a command, in this process."""
    out, err = io.BytesIO(), io.StringIO()
    status = COMMAND.invoke(words, Context("dnnp", list(words), io.BytesIO(), out, err))
    return Result(status, out.getvalue(), err.getvalue())


def typed(*words: str, stdin: bytes = b"") -> Result:
    """The program `dnnp`."""
    done = subprocess.run(
        [served() / "bin" / "dnnp", *words], input=stdin, capture_output=True, timeout=PATIENCE_S
    )
    return Result(done.returncode, done.stdout, done.stderr.decode())


def test_there_is_one_list() -> None:
    assert command_names() == list(COMMANDS)
    scripts = pyproject()["project"]["scripts"]
    targets = {f"dnnp-{name}": f"dnnp.cmds.{at}:main" for name, at in COMMANDS.items()}
    assert scripts == {"dnnp": "dnnp.cmds.dnnp:main", **targets}


def test_a_command_is_the_same_by_either_name() -> None:
    """Also what it writes of itself into the stream, and its messages."""
    words = ("partition", "-k", "2", "--method", "slice")
    found, expected = typed(*words, stdin=GRAPH), dnnp(*words, stdin=GRAPH)
    assert found == expected
    assert found.one("header")["provenance"][-1]["tool"] == "dnnp-partition"
    wrong = typed("partition", "--meth", "slice", stdin=GRAPH)
    assert wrong == dnnp("partition", "--meth", "slice", stdin=GRAPH)
    assert wrong.err.startswith("dnnp-partition: unknown option '--meth'")


def test_help() -> None:
    listed = front("--help")
    assert (listed.status, listed.err) == (0, "")
    for other in (front("help"), front("-h")):
        assert other == listed
    for name in COMMANDS:
        assert f"\n  {name}" in listed.out.decode()
    assert typed("help", "check") == dnnp("check", "--help")
    assert chosen(["help", "dnnp-check"]) == ("check", ["--help"])
    assert front("--version").out.decode() == f"dnnp {metadata.version('dnnp')}\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("partitoin", "-k", "2"), "unknown command 'partitoin'; did you mean 'partition'?"),
        (("dnnp-imports",), "unknown command 'dnnp-imports'; did you mean 'import'?"),
        (("help", "chekc"), "unknown command 'chekc'; did you mean 'check'?"),
        (("xyz",), f"unknown command 'xyz'; known: {', '.join(COMMANDS)}"),
        (("",), "unknown command ''"),
        (("--vers",), "unknown option '--vers'; did you mean '--version'?"),
        (("--print-completion", "ksh"), "invalid choice: 'ksh'"),
        (("--",), "give a command"),
    ],
)
def test_what_is_none(words: tuple[str, ...], reason: str) -> None:
    result = front(*words)
    assert (result.status, result.out) == (2, b"")
    (line,) = result.err.splitlines()
    assert line.startswith("dnnp: ")
    assert reason in line


def test_without_words_all_commands_are_shown() -> None:
    result = typed()
    assert (result.status, result.out) == (2, b"")
    assert "\n  partition" in result.err
    assert result.err.endswith("dnnp: give a command\n")


def test_only_what_is_called_is_imported() -> None:
    """Not the other commands, nor what takes long."""
    code = (
        "import sys, dnnp.cmds.dnnp as front\n"
        "name, _ = front.chosen(['check', '--help'])\n"
        "front.command(name).parser()\n"
        "print(*sys.modules)"
    )
    modules = set(output_of([sys.executable, "-c", code]).split())
    assert "dnnp.cmds.check" in modules
    assert not modules & {f"dnnp.cmds.{at}" for at in COMMANDS.values() if at != "check"}
    assert not modules & {"numpy", "onnx", "numba", "onnxruntime", "orjson"}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["dnnp", "par"], ["partition"]),
        (["dnnp", "help", "ch"], ["check"]),
        (["dnnp", "--ver"], ["--version"]),
        (["dnnp", "--print-completion", "z"], ["zsh"]),
        (["dnnp", "partition", "--method", "exa"], ["exact"]),
        (["dnnp", "partition", "--meth"], ["--method"]),
        (["dnnp", "check", "pl"], ["plan.dnnp"]),
        (["dnnp", "nothing", "pl"], []),
    ],
)
def test_bash_offers_commands_and_what_they_take(
    line: list[str], offered: list[str], tmp_path: Path
) -> None:
    (tmp_path / "plan.dnnp").touch()
    words = " ".join(f"'{word}'" for word in line)
    text = (
        f"source {ROOT / 'man' / 'completions' / 'bash' / 'dnnp'}; COMP_WORDS=({words}); "
        f"COMP_CWORD={len(line) - 1}; _dnnp; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    path = os.pathsep.join([str(served() / "bin"), os.environ["PATH"]])
    words = ["bash", "--norc", "-c", text]
    done = ended(words, cwd=tmp_path, env={**os.environ, "PATH": path})
    assert done.stderr == ""
    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_it_prints_the_script_that_is_installed(shell: str) -> None:
    name = {"zsh": "_dnnp", "fish": "dnnp.fish"}.get(shell, "dnnp")
    printed = front("--print-completion", shell)
    assert printed.status == 0
    assert printed.out == (ROOT / "man" / "completions" / shell / name).read_bytes()
