"""Commands import only what they use: loading a library may take longer than the work."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from dnnp.cmds.dnnp import COMMANDS
from support.project import ROOT
from support.run import dnnp, output_of

LIBRARIES = {"mip", "onnx", "onnxruntime", "scipy.optimize", "sympy"}
"""No command on a small stream needs one of them."""

COMPILER = {
    "asyncio", "importlib.metadata", "logging", "multiprocessing", "numba", "numpy.ma",
    "scipy", "shutil", "socket", "tempfile", "unittest",
}  # fmt: skip
"""The compiler, and what it imports: what has no kernels needs none of it."""

OTHERS = {
    "dnnp.core.baselines.pipedream", "dnnp.core.split.cuts", "dnnp.core.cost.latency",
    "dnnp.core.split.clusters.hierarchy", "dnnp.core.split.annealing.anneal", "dnnp.core.solver",
    "dnnp.core.split.order_search", "dnnp.core.split.first",
    "dnnp.formats.inputs.devices",
}  # fmt: skip
"""Modules that other methods and options of dnnp-partition need."""

PROGRAM = """
import importlib, io, json, sys
module, *words = sys.argv[1:]
import numpy
before = {*sys.modules}
from dnnp.cmds.shell.context import Context
context = Context("dnnp-test", words, io.BytesIO(), io.BytesIO(), io.StringIO())
status = importlib.import_module(f"dnnp.cmds.{module}").COMMAND.invoke(words, context)
print(json.dumps([status, sorted({*sys.modules} - before)]))
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A stream after each step; the model that it is from is not needed."""
    folder = tmp_path_factory.mktemp("small")
    data = (ROOT / "man" / "sections" / "example.jsonl").read_bytes()
    files = {}
    for name, words in (
        ("coarsen", ()),
        ("profile", ()),
        ("partition", ("-k", "2")),
        ("schedule", ()),
    ):
        files[name] = folder / name
        files[name].write_bytes(data)
        done = dnnp(name, *words, files[name])
        assert done.status == 0, done.err
        data = done.out
    files["bound"] = files["schedule"]
    files["check"] = folder / "check"
    files["check"].write_bytes(data)
    return files


def imported(name: str, *words: str | Path) -> set[str]:
    """Modules that `dnnp-NAME` has imported when it is done, besides those of numpy."""
    done = output_of([sys.executable, "-c", PROGRAM, COMMANDS[name], *words])
    status, modules = json.loads(done)
    assert status == 0
    return {*modules}


@pytest.mark.parametrize(
    ("name", "words", "spared"),
    [
        ("coarsen", (), LIBRARIES | COMPILER),
        ("profile", (), LIBRARIES | COMPILER),
        ("partition", ("-k", "2"), LIBRARIES | OTHERS),
        ("partition", ("-k", "2", "--method", "slice"), LIBRARIES | OTHERS),
        ("schedule", (), LIBRARIES),
        ("bound", (), LIBRARIES),
        ("check", (), LIBRARIES | COMPILER),
    ],
)
def test_only_what_is_used(
    small: dict[str, Path], name: str, words: tuple[str, ...], spared: set[str]
) -> None:
    found = imported(name, *words, small[name]) & spared
    assert not found


def test_a_given_graph_is_imported_without_the_libraries_of_models() -> None:
    words = ("--synthetic", "erdos-renyi", "--nodes", "8", "--seed", "1")
    found = imported("import", *words) & (LIBRARIES | COMPILER)
    assert not found


def test_these_are_modules() -> None:
    """A name that is misspelt would never be found."""
    for name in LIBRARIES | COMPILER | OTHERS:
        assert importlib.util.find_spec(name) is not None, name
