"""Inputs of decoders as exporters write them: known by what they tell, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from dnnp import load, profile, split
from dnnp.core.model.errors import FormatError
from dnnp.formats.onnx.value_types import describe
from dnnp.graph import Graph
from support.decode_runs import generated
from support.decoder_models import eager_decoder, grouped_decoder

PHASES = ["prompt:seq=4..40", "token:past=4..60"]
Change = Callable[[onnx.GraphProto], None]


def _positions(graph: onnx.GraphProto) -> onnx.ValueInfoProto:
    return next(value for value in graph.input if value.name == "position_ids")


def renamed(graph: onnx.GraphProto) -> None:
    """Positions are one row for all sequences, of another name."""
    flat(graph)
    _positions(graph).name = "cache_position"
    for node in graph.node:
        node.input[:] = ["cache_position" if x == "position_ids" else x for x in node.input]


def flat(graph: onnx.GraphProto) -> None:
    """Positions are one row for all sequences."""
    del _positions(graph).type.tensor_type.shape.dim[0]


def one_sequence(graph: onnx.GraphProto) -> None:
    """A batch of one, and sizes that are written as names."""
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch_size":
                dim.dim_value = 1
            elif dim.HasField("dim_value"):
                dim.dim_param = str(dim.dim_value)


def kept(graph: onnx.GraphProto) -> None:
    """An input says how many logits are wanted."""
    graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    product = graph.node[-1]
    product.output[0] = "all"
    graph.initializer.append(helper.make_tensor("far", TensorProto.INT64, [1], [2**40]))
    graph.node.append(helper.make_node("Neg", ["num_logits_to_keep"], ["before"]))
    graph.node.append(helper.make_node("Unsqueeze", ["before", "zeroth"], ["first"]))
    graph.initializer.append(helper.make_tensor("zeroth", TensorProto.INT64, [1], [0]))
    graph.node.append(helper.make_node("Slice", ["all", "first", "far", "axis"], ["logits"]))


def nothing(graph: onnx.GraphProto) -> None:
    """The model as it is."""


def planned(path: Path, change: Change, make: Callable[[Path], Path] = eager_decoder) -> Graph:
    model = onnx.load(make(path))
    change(model.graph)
    onnx.save(model, path)
    return split(profile(load(path, phase=PHASES)), k=2, workload=[(8, 12)], in_flight=4)


@pytest.mark.parametrize("change", [renamed, flat, one_sequence, kept])
def test_the_same_tokens(tmp_path: Path, change: Change) -> None:
    right, _ = generated(planned(tmp_path / "a.onnx", nothing), tmp_path, verify=True)
    found, record = generated(planned(tmp_path / "b.onnx", change), tmp_path, verify=True)
    assert found == right
    assert record["tokens"] == 8 * 12


def test_a_size_that_is_written_as_a_name() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "64", 3])
    assert describe(value.type).shape == ("n", 64, 3)


def stepped(graph: onnx.GraphProto) -> None:
    """Lengths in a cache by row, and positions that are one row for all."""
    graph.input.append(
        helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["sequence_length"])
    )
    graph.initializer.append(helper.make_tensor("turns", TensorProto.FLOAT, [256, 1], range(256)))
    first = graph.node[0]
    first.output[0] = "words.alone"
    graph.node.insert(1, helper.make_node("Gather", ["turns", "cache_position"], ["turn"]))
    graph.node.insert(2, helper.make_node("Add", ["words.alone", "turn"], ["x0"]))


def test_positions_of_all_rows_are_of_one_sequence_a_pass(tmp_path: Path) -> None:
    graph = planned(tmp_path / "m.onnx", stepped, grouped_decoder)
    _, record = generated(graph, tmp_path, pass_rows=3, verify=True)
    assert (record["rows"], record["tokens"], record["ties"]) == (1, 96, 0)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "reason"),
    [
        ("use_cache_branch", TensorProto.BOOL, [1], "--set-input use_cache_branch=true"),
        ("attention_mask", TensorProto.FLOAT, ["batch_size", 1, "sequence_length", "t"],
         "has rank 4: .* rank 2"),
        ("num_logits_to_keep", TensorProto.INT64, [1], "has rank 1: .* rank 0"),
        ("encoder_hidden_states", TensorProto.FLOAT, ["batch_size", "s", 8],
         "does not know the input 'encoder_hidden_states'"),
    ],
)  # fmt: skip
def test_what_is_refused(
    tmp_path: Path, name: str, kind: int, shape: list[object], reason: str
) -> None:
    def more(graph: onnx.GraphProto) -> None:
        graph.input.append(helper.make_tensor_value_info(name, kind, shape))

    with pytest.raises(FormatError, match=reason):
        generated(planned(tmp_path / "m.onnx", more), tmp_path)
