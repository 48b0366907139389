"""Small ONNX models as text, saved and imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from support.run import Result, dnnp

HEAD = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'


class Imported:
    """A stream with its records by name."""

    def __init__(self, result: Result) -> None:
        assert result.status == 0, result.err
        self.err, self.raw = result.err, result.out
        self.header = result.one("header")
        self.nodes: list[dict[str, Any]] = result.records("node")
        self.tensors: list[dict[str, Any]] = result.records("tensor")
        self.names = {t["id"]: t["name"] for t in self.tensors}

    def tensor(self, name: str) -> dict[str, Any]:
        """The only tensor of a name."""
        (found,) = [t for t in self.tensors if t["name"] == name]
        return found

    def node(self, op: str) -> dict[str, Any]:
        """The only node of an operator type."""
        (found,) = [n for n in self.nodes if n["op"] == op]
        return found

    def ends(self, op: str) -> tuple[list[str], list[str]]:
        """Names that the only node of a type reads and writes."""
        node = self.node(op)
        return [self.names[i] for i in node["inputs"]], [self.names[i] for i in node["outputs"]]


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a model, given as text without its head or as a proto; returns its path."""

    def write(model: str | onnx.ModelProto, name: str = "m.onnx") -> Path:
        if isinstance(model, str):
            text = model if model.lstrip().startswith("<") else HEAD + model
            model = onnx.parser.parse_model(text)
        path = tmp_path / name
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture
def load(save: Callable[..., Path]) -> Callable[..., Imported]:
    """Import a model that must be good."""

    def run(model: str | onnx.ModelProto, *arguments: str) -> Imported:
        return Imported(dnnp("import", save(model), *arguments))

    return run


@pytest.fixture
def refuse(save: Callable[..., Path]) -> Callable[..., str]:
    """Import a model that must be refused with a status; returns the message."""

    def run(status: int, model: str | onnx.ModelProto, *arguments: str) -> str:
        result = dnnp("import", save(model), *arguments)
        assert result.status == status, result.err
        assert result.out == b""
        (line,) = result.err.splitlines()
        assert line.startswith("dnnp-import: ")
        return line

    return run
