"""Docstrings say what something is: no clause without its noun, no person where code is meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.project import FOLDERS, ROOT, syntax_nodes

CLAUSE = re.compile(
    r"(What|Who|Whom|Which|How|Where|When|Why|That|Whose)(ever)?\b(?!-)|Whether\b", re.ASCII
)
"""A relative or indirect clause at the start: it has no noun that it belongs to."""

PERSON = re.compile(r"\b(nobody|somebody|anybody|everybody|who|whom|who(m?)ever)\b", re.IGNORECASE)
"""Words for people; code is named by its noun, users are called so."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, those of attributes and constants too."""
    for node in syntax_nodes(path):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield child.lineno, value.value


def unwanted(text: str) -> bool:
    """True if a docstring begins with a clause, or has a person in it."""
    return bool(CLAUSE.match(text) or PERSON.search(text))


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_docstrings_name_what_they_describe(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path)
        if unwanted(text)
    ]
    assert not found, "\n".join(found)


def test_it_finds_them() -> None:
    """The rule itself, on sentences that it is about."""
    for text in ("What is left.", "Whatever runs.", "Whether it fits.", "A call nobody asked for."):
        assert unwanted(text), text
    for text in ("Tensors whose size is known.", "True if it fits.", "The whole.", "Whatnot."):
        assert not unwanted(text), text
