"""ONNX Runtime's version of a model, read in a way of its own, to compare commands with."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnxruntime

from dnnp.core.model.graph import contract
from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.onnx.load_model import source_model
from dnnp.formats.onnx.stages import split_model
from dnnp.formats.onnx.value_types import types_of
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import read_bytes

LAYOUT = {
    "TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider", "NchwcTransformer",
    "NhwcTransformer",
}  # fmt: skip

LIGHT = {
    "Cast", "Concat", "ConstantOfShape", "DequantizeLinear", "Expand", "Gather", "Identity",
    "Reshape", "Shape", "Slice", "Squeeze", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""Operators that move data, make constants or are copied: what is left of them is no fusion."""


def optimised(model: onnx.ModelProto, folder: Path, level: str = "EXTENDED") -> onnx.ModelProto:
    """The graph that ONNX Runtime runs, with layout passes off; absent weights are zeros."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
    )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        sizes = [1]
        for tensor in copy.graph.initializer:
            fields = {entry.key: entry.value for entry in tensor.external_data}
            if fields and not (folder / fields["location"]).exists():
                sizes.append(int(fields["length"]))
                del tensor.external_data[:]
                tensor.external_data.add(key="location", value="zeros")
                tensor.external_data.add(key="length", value=fields["length"])
                folder = place
        with open(place / "zeros", "wb") as file:
            file.truncate(max(sizes))
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder.resolve())
        )
        options.optimized_model_filepath = str(place / "optimised.onnx")
        onnxruntime.InferenceSession(
            copy.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=LAYOUT,
        )
        return onnx.load(place / "optimised.onnx", load_external_data=False)


def operators(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """Number of each operator that runs."""
    return Counter(node.op_type for node in optimised(model, folder).graph.node)


def regions(original: onnx.ModelProto, fused: onnx.ModelProto) -> list[set[int]]:
    """Nodes that each optimised node stands for: back from its outputs to what still exists."""
    nodes = original.graph.node
    maker = {o: v for v, node in enumerate(nodes) for o in node.output}
    kept = {o for node in fused.graph.node for o in node.output}
    found = []
    for node in fused.graph.node:
        inside: set[int] = set()
        todo = [maker[o] for o in node.output if o in maker]
        while todo:
            v = todo.pop()
            if v not in inside:
                inside.add(v)
                todo += [maker[i] for i in nodes[v].input if i in maker and i not in kept]
        found.append({v for v in inside if nodes[v].op_type != "Constant"})
    return found


def stage_operators(planned: bytes) -> tuple[Counter[str], Counter[str], int]:
    """Operators that run in the whole model, and in the stages of its plan; how many stages."""
    stream = read_bytes(planned)
    plan = plan_of(stream, graph_of(stream))
    assert plan is not None
    model, path, _ = source_model(stream.header)
    parts = split_model(model, [s.nodes for s in plan.stages if s.nodes], types_of(stream))
    apart = (operators(part.model, path.parent) for part in parts)
    return operators(model, path.parent), sum(apart, Counter()), len(parts)


def lost_at_borders(grouped: bytes) -> tuple[int, dict[int, tuple[Counter[str], Counter[str]]]]:
    """Cut a grouped stream in two behind every group: number of cuts, and operators lost and new.

    Groups stand in a topological order; cuts that change no heavy operator are left out.
    """
    stream = read_bytes(grouped)
    graph = graph_of(stream)
    clustering = clustering_of(stream, graph)
    assert clustering is not None
    order = contract(graph, clustering).order.tolist()
    parts = [graph.node_ids[clustering.members(g)].tolist() for g in order]
    model, path, _ = source_model(stream.header)
    whole, types = operators(model, path.parent), types_of(stream)
    found = {}
    for cut in range(1, len(parts)):
        halves = [[v for part in half for v in part] for half in (parts[:cut], parts[cut:])]
        stages = split_model(model, halves, types)
        apart = sum((operators(s.model, path.parent) for s in stages), Counter())
        if heavy(whole - apart) or heavy(apart - whole):
            found[cut] = whole - apart, apart - whole
    return len(parts) - 1, found


def heavy(counts: Counter[str]) -> dict[str, int]:
    """Counts without operators that only move data or make constants."""
    return {op: n for op, n in counts.items() if op not in LIGHT}


def shown(counts: Iterable[tuple[str, int]]) -> str:
    """Counts in one line."""
    return ", ".join(f"{n} {op}" for op, n in sorted(counts)) or "none"
