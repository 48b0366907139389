"""CONTRIBUTING.md says what is there: files, tests, names, papers, packages."""

from __future__ import annotations

import ast
import re
import runpy
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from dnnp.core.methods import BOUNDS, LATENCY, LATENCY_BOUNDS, SCHEDULES, SPLITS
from support.project import ROOT, sources, syntax_nodes

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
"""The same without the picture."""

PAPERS = {
    "2020 paper": re.compile(r"2020 (device-placement )?paper|Tarnawski"),
    "MTPP": re.compile(r"MTPP|2024 paper|Archer"),
    "Moirai": re.compile(r"Moirai"),
    "Tessel": re.compile(r"Tessel"),
}
"""Heading of a table -> how files name the paper."""

OTHERS, OURS = "Other papers", "Without a paper"

QUESTIONS = (
    ("2020 paper", "weight synchronisation"), ("2020 paper", "virtual devices"),
    ("2020 paper", "orphaned backward nodes"), ("MTPP", "superblocks"), ("MTPP", "peak order"),
    ("MTPP", "segment cost"), ("Moirai", "GCOF"), ("Moirai", "congestion"),
    ("Tessel", "lazy completion"), ("Tessel", "compaction"), (OTHERS, "m-SCT"),
    (OTHERS, "ZB-H1"),
)  # fmt: skip
"""Paper, and what someone may look for."""

EXAMPLES = {
    "A method for throughput": "dpl",
    "A method for latency": "m-topo",
    "A recipe for schedules": "zb-h1",
    "A bound": "node-cut",
    "An input format": "costgraph",
    "A cost option": "charge_io",
}
"""How to add something -> one that is there, whose every place is to be named."""

TABLES = (SPLITS, LATENCY, BOUNDS, LATENCY_BOUNDS, SCHEDULES)
"""Every method there is."""

FILE = r"(?:cmds|core|formats|samples|tests|man|\.ci)/[\w./-]+"


class Row(NamedTuple):
    """One line of a table about algorithms."""

    paper: str
    what: str
    source: str
    """Where the paper has it; empty where there is no paper."""
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    """`path::name`; none where it is a benchmark."""


def part(heading: str, level: str = "##") -> str:
    """The text below a heading, up to the next one of its level or above."""
    stop = r"\Z|^#{1," + str(len(level)) + "} "
    found = re.search(rf"^{level} {re.escape(heading)}\n(.*?)(?={stop})", TEXT, re.M | re.S)
    assert found, f"no heading {heading}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """Cells of the lines of the table in a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(text: str) -> tuple[str, ...]:
    """What stands between backticks."""
    return tuple(re.findall(r"`([^`\n]+)`", text))


@cache
def rows() -> tuple[Row, ...]:
    """All lines of the tables about algorithms."""
    found = []
    for paper in (*PAPERS, OTHERS, OURS):
        for what, *source, modules, tests in table(part(paper, "###")):
            assert len(source) == (paper != OURS), what
            found.append(Row(paper, what, "".join(source), quoted(modules), quoted(tests)))
    return tuple(found)


def words_of(path: Path) -> str:
    """The text of a file in one line."""
    return " ".join(path.read_text().split())


def test_tables_are_filled() -> None:
    assert len(rows()) > 100
    for row in rows():
        assert row.what, row
        assert row.source or row.paper == OURS, row.what
        assert row.modules, row.what
        measured = all(module.startswith("tests/bench/") for module in row.modules)
        assert row.tests or measured, f"{row.what}: no test"
    assert len({(row.paper, row.what) for row in rows()}) == len(rows())


def test_files_exist() -> None:
    named = {name.partition("::")[0] for name in quoted(PROSE) if re.match(FILE, name)}
    assert len(named) > 200
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, missing
    for row in rows():
        assert all(re.fullmatch(FILE, name) for name in row.modules), row.what


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            headings = re.findall(r"^#+ (.*)$", TEXT, re.M)
            assert target[1:] in {h.lower().replace(" ", "-") for h in headings}, target
        else:
            assert (ROOT / target).exists(), target


def test_tests_exist() -> None:
    named = [name for name in quoted(PROSE) if "::" in name]
    assert len(named) > 100
    for name in named:
        path, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.M), name


def test_names_are_in_their_files() -> None:
    named = re.findall(r"`(\w+)`\s+(?:in|of)\s+`([\w./-]+\.py)`", TEXT)
    assert len(named) > 20
    for name, path in named:
        defined = re.search(rf"^(?:def |class )?{name}\b", (ROOT / path).read_text(), re.M)
        assert defined, f"{path} has no {name}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([a-z-]+)", TEXT)
    assert len(targets) > 8
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize(("paper", "words"), QUESTIONS)
def test_questions_have_an_answer(paper: str, words: str) -> None:
    answers = [row for row in rows() if row.paper == paper and words in row.what]
    assert len(answers) == 1
    assert answers[0].source
    assert answers[0].tests


def test_modules_name_their_paper() -> None:
    """At least one of those in a line, so that the line is about what is in them."""
    for row in rows():
        said = " ".join(words_of(ROOT / module) for module in row.modules)
        if row.paper in PAPERS:
            assert PAPERS[row.paper].search(said), f"{row.paper}: {row.what}"
        elif row.paper == OTHERS:
            assert re.findall(r"\w+", row.source)[0] in said, row.what


@pytest.mark.parametrize("paper", PAPERS)
def test_every_module_with_a_paper_is_listed(paper: str) -> None:
    listed = {module for row in rows() if row.paper == paper for module in row.modules}
    citing = set()
    for path in sorted((ROOT / "core").rglob("*.py")):
        said = ast.get_docstring(syntax_nodes(path)[0]) or ""
        if PAPERS[paper].search(" ".join(said.split())):
            citing.add(str(path.relative_to(ROOT)))
    assert len(citing) > 3
    assert not citing - listed, f"not in the table {paper}: {sorted(citing - listed)}"


def test_every_method_is_listed() -> None:
    listed = {name for row in rows() for name in quoted(row.what)}
    offered = {name for table in TABLES for name in table}
    assert not offered - listed, sorted(offered - listed)


def test_sources_of_methods_are_those_of_the_tables() -> None:
    """A line about the method is in the table of the paper that its entry names."""
    for method in (method for table in TABLES for method in table.values()):
        about = [row for row in rows() if method.name in quoted(row.what)]
        agree = [
            row.paper in method.source or row.source.split(",")[0] in method.source
            for row in about
            if row.source
        ]
        assert any(agree) or not method.source, f"{method.name}: {method.source}"


@pytest.mark.parametrize("heading", EXAMPLES)
def test_every_place_of_an_example_is_named(heading: str) -> None:
    """Whoever adds another one finds all files that know this one by its name."""
    text, name = part(heading, "###"), EXAMPLES[heading]
    assert f"As `{name}` is" in text
    known = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
    pages = [ROOT / "README.md", ROOT / "man" / "methods.md"]
    files = [*sources(), *sorted((ROOT / "man" / "sections").iterdir()), *pages]
    # A hyphen of a manual page is escaped.
    where = [
        str(path.relative_to(ROOT))
        for path in files
        if known.search(path.read_text().replace("\\-", "-"))
    ]
    assert len(where) >= 2
    missing = [path for path in where if path not in text]
    assert not missing, f"{heading}: {name} stands in {missing} too"


def may_import() -> dict[str, set[str]]:
    """Package -> packages that it may import besides itself, as the layout's test has it."""
    layout = runpy.run_path(str(ROOT / "tests" / "docs" / "test_layout.py"))["MAY_IMPORT"]
    return {name: {*others} - {name} for name, others in layout.items()}


def test_packages_are_those_of_the_layout() -> None:
    everything = {name for name in may_import() if name.startswith("core.")}
    found = {}
    for name, _, others in table(part("Packages")):
        found[quoted(name)[0]] = set() if others == "nothing" else {*others.split(", ")}
    expected = may_import()
    assert found["cmds"] == expected["cmds"]
    assert everything <= found.keys()
    assert found == expected


def test_the_picture_points_down() -> None:
    drawn = re.search(r"```text\n(.*?)```", part("Packages"), re.S)
    assert drawn
    lines = [line.split() for line in drawn[1].splitlines()]
    level = {name: i for i, line in enumerate(reversed(lines)) for name in line}
    assert sum(map(len, lines)) == len(level), "a package stands twice"
    assert level.keys() == may_import().keys()
    for name, others in may_import().items():
        below = {o for o in level if any(o == p or o.startswith(f"{p}.") for p in others)}
        wrong = [other for other in below if level[other] >= level[name]]
        assert not wrong, f"{name} imports {wrong}, which is not below it"
