"""Places of the project's sources, and the contents of pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cmds", "core", "formats", "samples")
"""The top-level folders that are packages."""

DOOR = ROOT / "core" / "api"
"""The package `dnnp` itself."""


def pyproject() -> dict[str, Any]:
    """The contents of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def command_names() -> list[str]:
    """Every command, without `dnnp-`; not `dnnp`, which is all of them."""
    names = pyproject()["project"]["scripts"]
    return [name.removeprefix("dnnp-") for name in names if name != "dnnp"]


def sources() -> list[Path]:
    """Every Python file of the packages."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@cache
def syntax_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of the syntax tree of a file, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def module_of(path: Path) -> str:
    """Name of the module that a source file is."""
    base = DOOR if DOOR in path.parents else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(("dnnp", *(parts[:-1] if parts[-1] == "__init__" else parts)))
