"""Layers: paths from names, and cuts where a layer would close a cycle."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.coarsen.layers import acyclic_labels, layer_paths, scope_path
from dnnp.core.model.text import scope_of_name
from dnnp.formats.graph import graph_of
from support.op_graphs import groups_by, op_stream


def layers(names: list[str], levels: list[int] | None = None, depth: int | None = None):
    paths = [scope_path(scope_of_name(name)) for name in names]
    found = layer_paths(paths, levels or list(range(len(names))), depth)
    return ["/".join(path) for path in found]


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("", ()),
        ("/", ()),
        ("/encoder/layer.3/attn", ("encoder", "layer.3", "attn")),
        ("encoder//layer.3/", ("encoder", "layer.3")),
        ("encoder.layer.3.attn", ("encoder", "layer.3", "attn")),
        ("encoder", ("encoder",)),
        ("3.attn", ("3", "attn")),
    ],
)
def test_scope_path(scope, path):
    assert scope_path(scope) == path


def test_scope_of_name():
    assert scope_of_name("/a/b/MatMul") == "/a/b"
    assert scope_of_name("MatMul_3") == ""
    assert scope_of_name("bert.encoder.MatMul") == "bert.encoder"
    assert scope_of_name("/a.b.c/MatMul.d.e") == "/a.b.c"
    assert scope_of_name("MatMul.1") == scope_of_name("onnx::Add_1.x") == ""


def test_transformer():
    names = ["/emb/Gather", "/emb/Add"]
    names += [f"/enc/layer.{i}/{part}/Op" for i in range(3) for part in ("q", "k", "v", "out")]
    names += ["/enc/norm/Mul", "/pool/Gemm"]
    expected = ["emb"] * 2 + [f"enc/layer.{i}" for i in range(3) for _ in range(4)]
    assert layers(names) == [*expected, "enc/norm", "pool"]


def test_blocks_in_stages():
    # The deepest numbered component with enough in it: blocks, not stages, not convolutions.
    names = [f"/stage{s}/block.{b}/conv{c}/Op" for s in (1, 2) for b in (0, 1) for c in range(4)]
    assert layers(names) == [
        f"stage{s}/block.{b}" for s in (1, 2) for b in (0, 1) for _ in range(4)
    ]


def test_heads_are_not_layers():
    # Heads of one layer run side by side: the same level in each.
    names, levels = [], []
    for i in range(3):
        for h in range(4):
            names += [f"/layer.{i}/head.{h}/Op"] * 5
            levels += [10 * i + j for j in range(5)]
    assert layers(names, levels) == [name.rsplit("/", 2)[0][1:] for name in names]


def test_two_norms_in_a_block_are_not_layers():
    names = []
    for i in range(3):
        names += [f"/h.{i}/ln_1/Op"] * 4 + [f"/h.{i}/attn/Op"] * 20
        names += [f"/h.{i}/ln_2/Op"] * 4 + [f"/h.{i}/mlp/Op"] * 20
    assert set(layers(names)) == {"h.0", "h.1", "h.2"}


def test_numbers_with_a_letter():
    names = [f"/{block}/conv/Op" for block in ("Mixed_5b", "Mixed_5c", "Mixed_6a") for _ in "1234"]
    assert set(layers(names)) == {"Mixed_5b", "Mixed_5c", "Mixed_6a"}


def test_small_layers_when_there_are_no_larger_ones():
    names = [f"/features/features.{i}/Op" for i in range(6)] + ["/classifier/Gemm"]
    assert layers(names) == [*(f"features/features.{i}" for i in range(6)), "classifier"]


def test_depth():
    names = ["/a/b/c/Op", "/a/Op", "Op"]
    assert layers(names, depth=1) == ["a", "a", ""]
    assert layers(names, depth=2) == ["a/b", "a", ""]


def named(*names: str, edges: str):
    """Nodes with given scopes and edges like `0-1 1-2`; groups as node positions -> layer."""
    pairs = [tuple(map(int, e.split("-"))) for e in edges.split()]
    lines = []
    for v in range(len(names)):
        reads = ", ".join(f"t{u}" for u, w in pairs if w == v) or "x"
        lines.append(f"t{v} = Op({reads})")
    stream = op_stream(*lines)
    for node, name in zip(stream.get("node"), names, strict=True):
        node["name"] = name
    return stream


def joined(stream, paths):
    """Members of the groups made by layers, as positions."""
    for i, node in enumerate(stream.get("node")):
        node["name"] = str(i)
    found = groups_by(stream, None, paths=[(p,) if p else () for p in paths])
    assert set(found.values()) <= {"layer"}
    return sorted(found)


def test_layers_are_joined():
    stream = named(*"abcd", edges="0-1 1-2 2-3")
    assert joined(stream, "AABB") == ["0 1", "2 3"]


def test_a_layer_around_another_is_cut():
    # A B A: the outer layer cannot stay whole.
    stream = named(*"abcd", edges="0-1 1-2 2-3")
    assert joined(stream, "ABBA") == ["1 2"]


def test_only_layers_in_a_cycle_are_cut():
    stream = named(*"abcdef", edges="0-1 1-2 2-3 3-4 4-5")
    assert joined(stream, "ABACCC") == ["3 4 5"]


def test_crossing_layers_are_cut_into_few_parts():
    # Two chains 0-1-2 and 3-4-5 with one edge each way; joining each level closes a cycle.
    stream = named(*"abcdef", edges="0-1 1-2 3-4 4-5 0-4 3-1")
    parts = joined(stream, "AAABBB")
    assert parts in (["0 1 2", "4 5"], ["1 2", "3 4 5"], ["0", "1 2", "4 5"], ["1 2", "4 5"])


def test_whole_layers_come_before_cut_ones():
    # Only A is cut; B and C, each in one piece, lie on its cycle.
    stream = named(*"abcdefg", edges="0-1 1-2 2-3 3-4 4-5 5-6")
    assert joined(stream, "ABBACCA") == ["1 2", "4 5"]


def test_a_node_without_a_layer_takes_that_of_its_neighbours():
    stream = named(*"abcd", edges="0-1 1-2 2-3")
    assert joined(stream, ["A", "", "A", "B"]) == ["0 1 2"]
    assert joined(stream, ["", "A", "A", "B"]) == ["0 1 2"]


def test_passes_and_devices_stay_apart():
    stream = named(*"abcd", edges="0-1 1-2 2-3")
    for node in stream.get("node")[2:]:
        node["backward"] = True
    assert joined(stream, "AAAA") == ["0 1", "2 3"]


def test_labels_that_are_acyclic_stay():
    graph = graph_of(named(*"abcd", edges="0-1 1-2 2-3"))
    label = acyclic_labels(graph, np.array([7, 7, 3, 3]))
    assert label.tolist() == [1, 1, 0, 0]
