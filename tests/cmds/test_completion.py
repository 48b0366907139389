"""Completion for shells: what follows what, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dnnp.cmds.shell.arguments import SHELLS
from dnnp.formats.files import bundled_names
from dnnp.formats.inputs.devices import device_names
from support.project import ROOT, command_names, pyproject
from support.run import dnnp, ended

SCRIPTS = ROOT / "man" / "completions"
NAMES = {"bash": "dnnp-{}", "zsh": "_dnnp-{}", "fish": "dnnp-{}.fish", "tcsh": "dnnp-{}"}


def needs(shell: str) -> pytest.MarkDecorator:
    """Skip a test where a shell is not installed."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


def answer(words: list[str], text: str, folder: Path) -> str:
    """Output of a shell that runs `text` in a folder."""
    done = ended([*words, text], cwd=folder, stdin=subprocess.DEVNULL)
    assert done.stderr == ""
    return done.stdout


def in_bash(line: list[str], folder: Path) -> list[str]:
    """Completions that bash offers for the last word of a line."""
    words = " ".join(f"'{word}'" for word in line)
    return answer(
        ["bash", "--norc", "-c"],
        f"source {SCRIPTS / 'bash' / line[0]}; COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; "
        f"_{line[0].replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        folder,
    ).split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file."""
    (tmp_path / "plan.dnnp").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["dnnp-partition", "--meth"], ["--method"]),
        (["dnnp-partition", "--method", "exa"], ["exact"]),
        (["dnnp-partition", "--method", "=", "exa"], ["exact"]),
        (["dnnp-partition", "--method", "exact", "--validity", ""], ["ordered", "convex", "free"]),
        (["dnnp-partition", "--devices", "moirai-"], ["moirai-inter", "moirai-intra"]),
        (
            ["dnnp-partition", "--devices", ""],
            [*bundled_names("clusters"), *device_names(), "plan.dnnp"],
        ),
        (["dnnp-partition", "-k", ""], []),
        (["dnnp-partition", "-k", "2", ""], ["plan.dnnp"]),
        (["dnnp-profile", "--device", "a"], ["a100"]),
        (["dnnp-profile", "--from", "h"], ["h100", "h200"]),
        (["dnnp-coarsen", "--rules", ""], [*bundled_names("rules"), "none", "ort", "plan.dnnp"]),
        (["dnnp-schedule", "--method", "1f"], ["1f1b", "1f1b+"]),
        (["dnnp-schedule", "--devices", ""], []),
        (["dnnp-import", "--synthetic", "reg"], ["regal"]),
        (["dnnp-check", "-o", "pl"], ["plan.dnnp"]),
        (["dnnp-check", "--json", ""], ["plan.dnnp"]),
        (["dnnp-coarsen", "--provider", ""], ["cpu", "cuda"]),
    ],
)
def test_bash_offers(line: list[str], offered: list[str], folder: Path) -> None:
    assert in_bash(line, folder) == offered


@needs("fish")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dnnp-partition --method exa", ["exact"]),
        ("dnnp-profile --device a1", ["a100"]),
        ("dnnp-coarsen --rules mo", ["moirai"]),
        ("dnnp-check pl", ["plan.dnnp"]),
        ("dnnp-check --js", ["--json"]),
    ],
)
def test_fish_offers(line: str, offered: list[str], folder: Path) -> None:
    name = line.split()[0]
    text = f"source {SCRIPTS / 'fish' / name}.fish; complete -C '{line}'"
    found = answer(["fish", "--no-config", "-c"], text, folder).splitlines()
    assert [row.split("\t")[0] for row in found] == offered


@needs("zsh")
@pytest.mark.parametrize("name", command_names())
def test_zsh_reads_its_script(name: str, folder: Path) -> None:
    script = SCRIPTS / "zsh" / f"_dnnp-{name}"
    text = f"_arguments() {{ print -l -- $@ }}; source {script}"
    specs = answer(["zsh", "-f", "-c"], text, folder).splitlines()
    assert specs[:2] == ["-s", ":"]
    assert any(spec.startswith("*--quiet[") for spec in specs)


@needs("tcsh")
@pytest.mark.parametrize("name", command_names())
def test_tcsh_reads_its_script(name: str, folder: Path) -> None:
    text = f"source {SCRIPTS / 'tcsh'}/dnnp-{name}; complete dnnp-{name}"
    assert "print-completion" in answer(["tcsh", "-f", "-c"], text, folder)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", command_names())
def test_a_command_prints_the_script_that_is_installed(name: str, shell: str) -> None:
    result = dnnp(name, "--print-completion", shell)
    assert result.status == 0
    assert result.out == (SCRIPTS / shell / NAMES[shell].format(name)).read_bytes()


def test_scripts_are_installed() -> None:
    sources = [
        pattern
        for patterns in pyproject()["tool"]["setuptools"]["data-files"].values()
        for pattern in patterns
    ]
    for shell in ("bash", "zsh", "fish"):
        assert f"man/completions/{shell}/*" in sources
