"""Decode loops over stages that several devices hold: the tokens of the whole model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dnnp import check, export, load, profile, split
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.graph import Graph
from dnnp.samples.build import write
from support.decode_runs import PHASES, generated, prompts_file
from support.decoder_models import WORDS, eager_decoder, grouped_decoder

SLOW = {
    "name": "slow", "description": "little work a second, and a fast link", "kind": "accelerator",
    "provider": "cpu", "peak_flop_per_s": {"float32": 1e6}, "memory_bytes": 1e12,
    "memory_bandwidth_bytes_per_s": 1e6, "link_bandwidth_bytes_per_s": 1e12,
    "launch_overhead_s": 0,
}  # fmt: skip
GROUPED, EAGER = 4, 4


def masked_decoder(path: Path) -> Path:
    """Grouped attention of two heads of keys; lengths come from a mask."""
    return write("llama-small", path.parent, 0)


def few_bits(path: Path) -> Path:
    """The same with weights of 4 bits in blocks of 16."""
    model = onnx.load(masked_decoder(path))
    stored, rng = {t.name: t for t in model.graph.initializer}, np.random.default_rng(4)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            tensor = stored.pop(node.input[1])
            k, n = tensor.dims
            parts = rng.integers(0, 256, (n, k // 16, 8)).astype(np.uint8)
            scales = (rng.random((n, k // 16)) / (8 * np.sqrt(k))).astype(np.float32)
            for end, values in (("b", parts), ("s", scales)):
                stored[f"{tensor.name}.{end}"] = numpy_helper.from_array(
                    values, f"{tensor.name}.{end}"
                )
            node.input[1:] = [f"{tensor.name}.b", f"{tensor.name}.s"]
            node.op_type, node.domain = "MatMulNBits", "com.microsoft"
            node.attribute.extend(
                helper.make_attribute(name, value)
                for name, value in {"K": k, "N": n, "bits": 4, "block_size": 16}.items()
            )
    del model.graph.initializer[:]
    model.graph.initializer.extend(stored.values())
    onnx.save(model, path)
    return path


def packed_decoder(path: Path) -> Path:
    """Queries, keys and values are one product, which grouped attention takes apart."""
    model = onnx.load(grouped_decoder(path))
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        made = node.output[0]
        if node.op_type == "MatMul" and made[:1] in "kv":
            continue
        if node.op_type == "MatMul" and made[:1] == "q":
            joined = np.concatenate([stored[f"{w}{made[1:]}.w"] for w in "qkv"], axis=1)
            model.graph.initializer.append(numpy_helper.from_array(joined, f"{made}kv.w"))
            node.input[1] = f"{made}kv.w"
        if node.op_type == "GroupQueryAttention":
            node.input[1], node.input[2] = "", ""
        kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, path)
    return path


def standard_decoder(path: Path) -> Path:
    """Attention of opset 23, whose caches grow."""
    model = onnx.load(grouped_decoder(path))
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            q, k, v, key, value = node.input[:5]
            node.op_type, node.domain = "Attention", ""
            del node.input[:], node.attribute[:]
            node.input.extend((q, k, v, "", key, value))
            counts = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": 1}
            node.attribute.extend(helper.make_attribute(*pair) for pair in counts.items())
    for name in ("seqlens_k", "total_sequence_length"):
        model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
    model.opset_import[0].version, model.ir_version = 23, 10
    onnx.save(model, path)
    return path


def device(folder: Path) -> str:
    """The file of a device on which work is worth sharing."""
    path = folder / "slow.json"
    path.write_text(json.dumps(SLOW))
    return str(path)


def priced(path: Path, t: int) -> Graph:
    return profile(load(path, phase=PHASES), device=[device(path.parent)], tensor_parallel=t)


def joined(graph: Graph, stages: int, t: int) -> Graph:
    """A plan of so many stages, each on t devices, by what it costs on fewer being forbidden."""
    stream = graph.stream()
    for node in stream.get("node"):
        node["time_s"] = {"slow": 1e3}
        node["shards"] = [one for one in node["shards"] if one["devices"] == t]
    n = len(stream.get("node"))
    for phase in stream.get("phase")[1:]:
        count, at = len(phase["shard_times"]["slow"]) // n, {2: 0, 4: 1}[t]
        assert at < count
        phase["times"] = {"slow": [1e3] * n}
        phase["shard_times"] = {"slow": phase["shard_times"]["slow"][at * n : (at + 1) * n]}
        phase.pop("work", None)
    stream.header.pop("work", None)
    made = split(Graph(stream), k=stages * t, tensor_parallel=t, workload=[(8, 12)], in_flight=6)
    assert [stage["shards"] for stage in made.stream().get("stage")] == [t] * stages
    return made


@pytest.mark.parametrize(
    ("make", "stages", "t", "kept"),
    [
        (masked_decoder, 1, 2, 8), (masked_decoder, 2, 2, 8), (masked_decoder, 3, 2, 8),
        (grouped_decoder, 2, 2, 8), (few_bits, 2, 2, 8),
        (packed_decoder, 2, 2, 8), (standard_decoder, 2, 2, 8),
        (masked_decoder, 2, 4, 0),
    ],
)  # fmt: skip
def test_tokens_are_those_of_the_whole_model(
    make: Callable[[Path], Path], stages: int, t: int, kept: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`kept`: states of which each device has its heads; others are whole on each."""
    path = make(tmp_path / "m.onnx")
    graph = joined(priced(path, t), stages, t)
    stream = graph.stream()
    ends = {state["input"] for state in stream.get("state")}
    cut = [
        axis
        for node in stream.get("node")
        for x, axis in zip(node["inputs"], node["shards"][0]["layout"]["inputs"], strict=True)
        if x in ends
    ]
    assert (cut.count(1), cut.count(1) + cut.count(-1)) == (kept, len(cut))
    assert check(graph).ok
    rng = np.random.default_rng(stages)
    rows = [{"ids": rng.integers(0, WORDS, n).tolist()} for n in (5, 11, 4, 7, 9, 4, 6, 8)]
    prompts = prompts_file(tmp_path, rows)
    tokens, record = generated(graph, tmp_path, prompts=prompts, chunk=3, verify=True)
    whole = split(load(path, phase=PHASES), k=1, workload=[(8, 12)], in_flight=6)
    assert tokens == generated(whole, tmp_path, prompts=prompts, chunk=3)[0]
    assert (record["sequences"], record["tokens"], record["ties"]) == (8, 96, 0)
    assert record["rows"] == (1 if make is standard_decoder else 3)
    assert "run whole" not in capsys.readouterr().err
    stream.records["generation"] = [record | {"type": "generation"}]
    assert check(Graph(stream)).ok


def test_caches_that_several_parts_read_are_refused(tmp_path: Path) -> None:
    graph = joined(priced(eager_decoder(tmp_path / "m.onnx"), 2), 2, 2)
    assert check(graph).ok
    with pytest.raises(FormatError, match=r"past_key_values\.0\.key' is read apart"):
        generated(graph, tmp_path)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("plan")
    return joined(priced(masked_decoder(folder / "m.onnx"), 2), 2, 2)


@pytest.mark.parametrize(
    ("more", "reason"), [({"workers": "process"}, "stages on several devices run in threads")]
)
def test_what_is_not_there_is_refused(more: dict, reason: str, plan: Graph, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        generated(plan, tmp_path, **more)


def test_it_runs_by_generating_alone(plan: Graph, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which dnnp-run --generate alone keeps"):
        export(plan, tmp_path / "out", to="stages")


def test_one_size_of_passes_is_too_few(tmp_path: Path) -> None:
    path = masked_decoder(tmp_path / "m.onnx")
    graph = profile(
        load(path, phase=["prompt:batch=1,seq=8"]), device=[device(tmp_path)], tensor_parallel=2
    )
    made = split(graph, k=2, tensor_parallel=2, workload=[(8, 1)])
    assert [stage["shards"] for stage in made.stream().get("stage")] == [2]
    with pytest.raises(UsageError, match="phases of two sizes"):
        generated(made, tmp_path)


@pytest.mark.parametrize("flag", ["data_parallel", "shared_stages"])
def test_other_parallel_plans_know_no_states(flag: str, tmp_path: Path) -> None:
    path = masked_decoder(tmp_path / "m.onnx")
    graph = priced(path, 2)
    name = flag.replace("_", "-")
    with pytest.raises(UsageError, match=f"--{name}: not known where"):
        split(graph, k=2, tensor_parallel=2, workload=[(8, 12)], **{flag: 2})


def test_layouts_that_tear_a_state_are_refused(plan: Graph) -> None:
    stream = plan.stream()
    node = next(n for n in stream.get("node") if n["op"] == "GroupQueryAttention")
    node["shards"][0]["layout"]["outputs"][1] = -1
    with pytest.raises(FormatError, match="cuts the tensors of state 0 along several axes"):
        check(Graph(stream))


def test_profiles_without_it_forget_it(tmp_path: Path) -> None:
    graph = priced(masked_decoder(tmp_path / "m.onnx"), 4)
    assert all(len(node["shards"]) == 2 for node in graph.stream().get("node"))
    again = profile(graph, device=[device(tmp_path)]).stream()
    assert not any("shards" in node for node in again.get("node"))
    assert not any("shard_times" in phase for phase in again.get("phase"))
