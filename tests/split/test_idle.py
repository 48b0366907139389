"""Idle devices: what ties nodes together, what else is the reason, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.run import dnnp

LAYERS = 4


def lines_of(data: bytes, *words: str) -> list[str]:
    result = dnnp("partition", "-k", "4", *words, stdin=data)
    assert result.status == 0, result.err
    return [line for line in result.err.splitlines() if " idle (" in line]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Training of layers between two readers of one parameter."""
    head = f"y = Gemm <transB = 1> (x{LAYERS}, emb)"
    return trained(head, tmp_path_factory.mktemp("tied") / "m.onnx")


def trained(head: str, path: Path) -> bytes:
    """Training of layers between an embedding and a head."""
    weights = {"emb": (50, 32)} | {f"w{i}": (32, 32) for i in range(LAYERS)}
    body = "x0 = Gather (emb, ids)"
    for i in range(LAYERS):
        body += f" m{i} = MatMul (x{i}, w{i}) x{i + 1} = Relu (m{i})"
    body += f" {head}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>g (int64[8] ids) => (float[8, 50] y) {{ {body} }}'
    )
    for name, shape in weights.items():
        values = np.ones(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return dnnp("profile", "-q", stdin=dnnp("import", "-q", "--training", path).out).out


@pytest.mark.parametrize("validity", ["ordered", "convex"])
def test_a_shared_parameter_is_named_with_what_helps(tied: bytes, validity: str) -> None:
    (line,) = lines_of(tied, "--bandwidth", "1T", "--validity", validity)
    assert "/1, cpu-core/2, cpu-core/3): 100 % of the largest load is " in line
    assert " share the parameter 'emb'" in line
    assert f"{validity} split keeps what lies between them" in line
    for help_ in ("--validity free", "--allow-replicas", "a copy of the parameter"):
        assert help_ in line.partition("may help: ")[2]


def test_groups_that_tie_are_named(tmp_path: Path) -> None:
    """A transposed parameter is folded into the group of its reader, at the other end."""
    head = f"t = Transpose <perm = [1, 0]> (emb) y = MatMul (x{LAYERS}, t)"
    data = trained(head, tmp_path / "m.onnx")
    grouped = dnnp("profile", "-q", stdin=dnnp("coarsen", "-q", stdin=data).out).out
    assert not lines_of(data, "--bandwidth", "1T")
    (line,) = lines_of(grouped, "--bandwidth", "1T")
    assert "share the parameter 'emb'" in line
    assert "no groups (dnnp-coarsen)" in line.partition("may help: ")[2]


def test_what_helps_does_help(tied: bytes) -> None:
    before = dnnp("partition", "-q", "-k", "4", "--bandwidth", "1T", stdin=tied).one("plan")
    for words in (("--validity", "free"), ("--allow-replicas",)):
        result = dnnp("partition", "-k", "4", "--bandwidth", "1T", *words, stdin=tied)
        assert result.one("plan")["value"] < 0.9 * before["value"]
        assert " idle (" not in result.err


def test_memory_of_what_a_parameter_ties_is_refused_with_its_name(tied: bytes) -> None:
    result = dnnp("partition", "-k", "4", "--memory", "40K", stdin=tied)
    assert result.status == 4
    assert "share the parameter 'emb', needs" in result.err


def own(rows: str, edges: str, tmp_path: Path) -> bytes:
    """A graph of one's own."""
    (tmp_path / "n.csv").write_text(f"name,time_s,color\n{rows}")
    (tmp_path / "e.csv").write_text(f"from,to,size_bytes\n{edges}")
    return dnnp("import", "-q", "--edges", tmp_path / "e.csv", tmp_path / "n.csv").out


ROWS = "a,1,{0}\nb,1,\nc,1,\nd,1,\ne,1,{0}\n"
CHAIN = "a,b,{0}\nb,c,{0}\nc,d,{0}\nd,e,{0}\n"


@pytest.mark.parametrize(
    ("color", "pin", "why"),
    [(7, (), "'a' and 'e' have one colour"), ("", ("--pin", "*=accelerator/0"), "--pin *=")],
)
def test_a_colour_or_rule_is_named(color: object, pin: Sequence[str], why: str, tmp_path: Path):
    (line,) = lines_of(own(ROWS.format(color), CHAIN.format(1), tmp_path), *pin)
    assert f"5 nodes that stay together: {why}" in line
    assert ("--validity free" in line, "may help" in line) == (not pin, not pin)
    assert "copy of the parameter" not in line


def test_transfers_are_the_reason_where_nothing_is_tied(tmp_path: Path) -> None:
    data = own(ROWS.format(""), CHAIN.format(10**12), tmp_path)
    (line,) = lines_of(data, "--bandwidth", "1G")
    assert "/3): transfers of a second stage cost more than it saves" in line
    assert "--bandwidth" in line.partition("may help: ")[2]
    assert not lines_of(data, "--bandwidth", "1000T")


def test_a_node_that_is_the_largest_load_is_named(tmp_path: Path) -> None:
    rows = "a,1,\nb,1,\nc,100,\nd,1,\ne,1,\n"
    (line,) = lines_of(own(rows, CHAIN.format(1), tmp_path), "--bandwidth", "10")
    assert "of the largest load is node 'c' alone; it may help: --allow-replicas" in line


def test_nothing_is_said_where_no_device_is_idle_or_there_are_too_few_nodes(tmp_path: Path) -> None:
    data = own(ROWS.format(""), CHAIN.format(1), tmp_path)
    assert not lines_of(data)
    assert not lines_of(data, "-k", "9")
