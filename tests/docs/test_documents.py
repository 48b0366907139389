"""README, tutorial and cookbook do what they say: commands run and print what stands below."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.documents import DOCUMENTS, STAND_INS, pictures, rendered, words
from support.project import ROOT
from support.run import dnnp, ended
from support.served import served

PAGES = (
    *DOCUMENTS,
    ROOT / "man" / "methods.md",
    ROOT / "BENCHMARKS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "samples" / "papers" / "RESULTS.md",
)
LARGER = {
    "gpt3-13b": "gpt3-330m",
    "--device cpu-here": "--device cpu-core",
    "--choose -n 20": "--choose -n 6",
    "--duration 2": "--duration 0.5",
    "--time-limit 2": "--time-limit 0.5",
}
"""Parts of the documents that take long, and their stand-ins here."""

IDS = [path.stem for path in DOCUMENTS]
CUTS = ("## An operator too heavy", "## Make and CI")
"""Headings at which a document is cut, so that no test takes long."""


def parts() -> Iterator[tuple[Path, str]]:
    """Documents in parts; each begins with the first section, which makes the files of all."""
    for path in DOCUMENTS:
        text = path.read_text()
        first = "".join(re.split(r"^(?=## )", text, flags=re.M)[:2])
        cut = re.split(f"^(?={'|'.join(CUTS)})", text, flags=re.M)
        yield path, cut[0]
        yield from ((path, first + part) for part in cut[1:])


PARTS = [*parts()]


@cache
def anchors(path: Path) -> set[str]:
    """Targets of links: headings, as GitHub names them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.skipif(shutil.which("jq") is None, reason="the documents use jq")
@pytest.mark.parametrize(("path", "text"), PARTS, ids=[path.stem for path, _ in PARTS])
def test_snippets(path: Path, text: str, tmp_path: Path) -> None:
    assert text.count("```sh\n") >= 2
    printed = rendered(text, tmp_path, served() / "bin", all_blocks=False, shorter=LARGER)
    assert printed == text, "run make docs"
    for picture in pictures(path, text):
        assert (tmp_path / picture.name).read_bytes() == picture.read_bytes(), "run make docs"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_contributing_names_what_is_there() -> None:
    names = re.findall(r"`((?:cmds|core|formats|samples|tests|man)/[^` ]*)`", PAGES[-2].read_text())
    assert len(names) > 20
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_options_exist(path: Path) -> None:
    """Those of commands that do not run, too."""
    typed = re.sub(r"^```text.*?^```$", "", path.read_text(), flags=re.M | re.S)
    script = re.sub(r"\\\n", " ", typed)
    named = re.findall(r"\b(dnnp-[a-z]+)([^|`\n]*)", script)
    assert named
    for command, rest in named:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest):
            assert option in help_of(command), f"{command} {option}"


@cache
def help_of(command: str) -> set[str]:
    """The options of a command."""
    done = dnnp(command.removeprefix("dnnp-"), "--help-all")
    return {"--help", *re.findall(r"--[a-z][a-z-]+", done.out.decode() + done.err)}


def test_words_are_compared_without_numbers() -> None:
    assert words("a 1.5e-3 b\nlast 7 %\n") == words("last 12,5 %\na   2 b\n")
    assert words("a 1\n") != words("b 1\n")


def test_stand_ins_refuse_what_they_do_not_do() -> None:
    for program in STAND_INS.iterdir():
        done = ended([program, "--unknown", "more", ":::"])
        assert done.returncode != 0
