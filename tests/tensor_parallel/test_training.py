"""dnnp-profile --tensor-parallel of graphs of training."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dnnp.core.cost.load_formula import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    moved_bytes,
)
from dnnp.core.model.shards import WHOLE
from dnnp.core.tensor_parallel.rules import ADDED, OWNED, Mixtures, Operator, Rule, more_rules
from dnnp.core.training import Optimizer, train
from dnnp.samples import build
from dnnp.samples.builder import Builder
from dnnp.samples.layers import gelu, linear
from dnnp.samples.models import gpt, moe
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import save
from support.graphs import node, tensor
from support.run import Result, dnnp
from support.seeds import encode, header

ROWS, INNER, WIDTH = 511, 4096, 4095
"""Neither rows nor the last width can be split in two."""


def perceptron(**changes: float) -> bytes:
    """Two products with a Relu between them, and their backward pass; a column can be split of the
    first alone."""
    of = {"dtype": "float32"}
    first, second = 4.0 * INNER * INNER, 4.0 * INNER * WIDTH
    middle, last = 4.0 * ROWS * INNER, 4.0 * ROWS * WIDTH
    tensors = [
        tensor(0, "input", middle, shape=[ROWS, INNER], **of),
        tensor(1, "parameter", first, shape=[INNER, INNER], **of),
        tensor(2, "parameter", second, shape=[INNER, WIDTH], **of),
        tensor(3, "activation", middle, shape=[ROWS, INNER], **of),
        tensor(4, "activation", middle, shape=[ROWS, INNER], **of),
        tensor(5, "activation", last, shape=[ROWS, WIDTH], output=True, **of),
    ]
    nodes = [
        node(0, "MatMul", [0, 1], [3], flop=2.0 * ROWS * INNER**2, bytes=2 * middle + first),
        node(1, "Relu", [3], [4], flop=ROWS * INNER, bytes=2 * middle),
        node(
            2, "MatMul", [4, 2], [5], flop=2.0 * ROWS * INNER * WIDTH, bytes=middle + last + second
        ),
    ]
    made = train(tensors, nodes, Optimizer("adam"))
    return encode([header(training=True), *made.tensors, *made.nodes])


def shards(result: Result, t: int) -> dict[str, dict]:
    """Statements of nodes and tensors for `t` devices, by name."""
    assert result.status == 0, result.err
    return {
        record["name"]: one
        for record in (*result.records("node"), *result.records("tensor"))
        for one in record.get("shards", ())
        if one["devices"] == t
    }


def test_two_layers_by_hand() -> None:
    result = dnnp("profile", "--device", "a100", "--tensor-parallel", "2", stdin=perceptron())
    nodes = {record["id"]: record for record in result.records("node")}
    one = {v: record["shards"][0] for v, record in nodes.items()}
    assert [record["op"] for record in nodes.values()] == [
        "MatMul", "Relu", "MatMul", "Loss", "MatMulGrad", "ReluGrad", "MatMulGrad",
    ]  # fmt: skip
    first, second = 4 * INNER * INNER, 4 * INNER * WIDTH
    middle, last = 4 * ROWS * INNER, 4 * ROWS * WIDTH
    # By columns, then by rows: one sum, forward, since the model's input has no gradient.
    assert [one[v].get("collectives", []) for v in one] == [
        [], [], [{"kind": ALL_REDUCE, "bytes": last}], [], [], [], [],
    ]  # fmt: skip
    # Relu keeps what it wrote, the loss reads the last output, which is whole.
    assert [one[v].get("held_bytes", 0) for v in one] == [0, middle / 2, last, 0, 0, 0, 0]
    assert [one[v].get("weight_bytes", 0) for v in one] == [first / 2, 0, second / 2, 0, 0, 0, 0]
    # Backward: a gradient and two numbers of Adam for each weight.
    assert [one[v]["memory_bytes"] for v in one] == [
        first / 2, middle / 2, second / 2 + last, 0, 3 * second / 2, 0, 3 * first / 2,
    ]  # fmt: skip
    launch, peak = 5e-6, 19.5e12
    for v, flop in (
        (0, 2 * ROWS * INNER**2),
        (6, 2 * ROWS * INNER**2),
        (4, 4 * ROWS * INNER * WIDTH),
    ):
        assert one[v]["time_s"]["a100"] == pytest.approx(launch + flop / 2 / peak)
    assert one[3]["time_s"] == nodes[3]["time_s"]
    moved = {
        r["name"]: r["shards"][0]["out_bytes"] for r in result.records("tensor") if "shards" in r
    }
    assert moved == dict.fromkeys(("t3", "t4", "t3.grad", "t4.grad"), middle / 2)  # fmt: skip


def test_what_is_stated_is_shared_out() -> None:
    """Memory of a node that was edited counts, and here none of it is of weights."""
    changed = perceptron().replace(b'"memory_bytes":0', b'"memory_bytes":8')
    result = dnnp("profile", "--device", "a100", "--tensor-parallel", "2", stdin=changed)
    relu = next(record for record in result.records("node") if record["op"] == "ReluGrad")
    assert relu["shards"][0]["memory_bytes"] == 8


HEADS, HIDDEN, LAYERS, T = 32, 4096, 3, 8


def decoder(folder: Path, length: int, device: str) -> Result:
    """GPT in training, on 1, 2, 4 and 8 devices."""
    size = gpt.Size(
        LAYERS, HIDDEN, HEADS, vocabulary=64_000, context=2048, length=length, planning=True
    )
    path = folder / "gpt.onnx"
    save(gpt.build(size), path)
    graph = dnnp("import", "-q", "--training", path)
    grouped = dnnp("coarsen", "-q", stdin=graph.out)
    return dnnp("profile", "--device", device, "--tensor-parallel", str(T), stdin=grouped.out)


def of_layers(result: Result, above: float) -> dict[str, Counter[tuple[bool, str, float]]]:
    """Collectives of each layer with more than so many bytes: whether backward, kind, bytes."""
    assert result.status == 0, result.err
    found: dict[str, Counter[tuple[bool, str, float]]] = {}
    for record in result.records("node"):
        layer = record["name"].removeprefix("/transformer").strip("/").split("/")[0]
        one = next(s for s in record["shards"] if s["devices"] == T)
        for each in one.get("collectives", ()):
            if each["bytes"] > above:
                key = bool(record.get("backward")), each["kind"], each["bytes"]
                found.setdefault(layer, Counter())[key] += 1
    return found


def test_a_layer_has_the_collectives_of_megatron(tmp_path: Path) -> None:
    """Two all-reduces forward and two backward; none besides, be it ever so small.

    Eight devices cannot split 1,023 words, so what is between the products is on all of them.
    """
    result = decoder(tmp_path, 1023, "t4")
    found = of_layers(result, 0)
    size = 4 * 1023 * HIDDEN
    for layer in range(LAYERS):
        assert found[f"h.{layer}"] == {(False, ALL_REDUCE, size): 2, (True, ALL_REDUCE, size): 2}
    # The table of words is split by vocabulary, and so are the scores, which the loss reads.
    assert found["wte"] == {(False, ALL_REDUCE, size): 1}
    rows = 4 * 1023
    assert found["lm_head"] == {(True, ALL_REDUCE, size): 1}
    assert found["logits.loss"] == {(True, ALL_REDUCE, rows): 3}
    table = 4 * 64_000 * HIDDEN
    words = shards(result, T)["/transformer/wte/Gather"]
    assert words["weight_bytes"] == table / T


def test_rows_are_split_between_products(tmp_path: Path) -> None:
    """Of 1,024 words: as many bytes move as by two all-reduces each way, and less is done twice."""
    result = decoder(tmp_path, 1024, "a100")
    size = 4 * 1024 * HIDDEN
    found = of_layers(result, 4 * 4 * HIDDEN)
    for layer in range(LAYERS):
        assert found[f"h.{layer}"] == {
            (False, ALL_GATHER, size): 2,
            (False, REDUCE_SCATTER, size): 2,
            (True, ALL_GATHER, size): 2,
            (True, REDUCE_SCATTER, size): 2,
        }
        moved = sum(
            count * moved_bytes(kind, b, T) for (_, kind, b), count in found[f"h.{layer}"].items()
        )
        assert moved == 4 * moved_bytes(ALL_REDUCE, size, T)
    norms = [r for r in result.records("node") if r["op"].startswith("LayerNorm")]
    for record in norms[:LAYERS]:
        one = next(s for s in record["shards"] if s["devices"] == T)
        assert one["time_s"]["a100"] < record["time_s"]["a100"] / 2


@pytest.mark.parametrize("name", ["bert-small", "moe-small"])
def test_from_a_model_to_a_schedule(name: str, tmp_path: Path) -> None:
    path = build.write(name, tmp_path)
    graph = dnnp("import", "-q", "--training", path)
    grouped = dnnp("coarsen", "-q", stdin=graph.out)
    priced = dnnp("profile", "-q", "--device", "v100", "--tensor-parallel", "4", stdin=grouped.out)
    assert priced.status == 0, priced.err
    total = sum(r["size_bytes"] for r in priced.records("tensor") if r["kind"] == "parameter")
    for t in (2, 4):
        entries = [(r, s) for r in priced.records("node") for s in r["shards"] if s["devices"] == t]
        assert len(entries) == len(priced.records("node"))
        for record, one in entries:
            assert one["time_s"]["v100"] <= record["time_s"]["v100"] * (1 + 1e-12)
            assert one["memory_bytes"] <= record["memory_bytes"]
            assert one.get("held_bytes", 0) <= one["memory_bytes"]
        assert total / t <= sum(s.get("weight_bytes", 0) for _, s in entries) <= total
    words = ("-k", "4", "--tensor-parallel", "4", "--data-parallel", "2", "--micro-batches", "8")
    plan = dnnp("partition", "-q", *words, "--recompute", "auto", stdin=priced.out)
    assert plan.status == 0, plan.err
    schedule = dnnp("schedule", "-q", "-n", "8", "--method", "1f1b+", stdin=plan.out)
    assert schedule.status == 0, schedule.err
    assert dnnp("check", stdin=schedule.out).status == 0


def mixture(folder: Path, *, apart: bool) -> Result:
    """A mixture of 8 experts; `apart`: all take words as they were before the first one."""

    def experts(b: Builder, size: moe.Size, x: Value) -> Value:
        scores = b.softmax(linear(b, x, size.experts, "gate", bias=False))
        gates, chosen = b.op_n(
            "TopK", b.transpose(scores, 1, 0), b.ints([size.capacity]), outputs=2, axis=-1, sorted=0
        )
        given = x
        for index in range(size.experts):
            with b.scope(f"experts.{index}"):
                own = b.const(index, INT64)
                tokens, gate = b.gather(chosen, own), b.gather(gates, own)
                taken = b.gather(given if apart else x, tokens)
                y = linear(b, gelu(b, linear(b, taken, 4 * size.hidden, "fc1")), size.hidden, "fc2")
                y = b.mul(y, b.unsqueeze(gate, 1))
                x = b.op("ScatterND", x, b.unsqueeze(tokens, 1), y, reduction="add")
        return x

    size = moe.Size(2, 1024, 16, experts=8, capacity=1023, vocabulary=1000, length=2047)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moe, "_experts", experts)
        sample = moe.build(size)
    path = folder / f"moe-{apart}.onnx"
    save(replace(sample, planning=True), path)
    graph = dnnp("import", "-q", "--training", path)
    return dnnp("profile", "--device", "t4", "--tensor-parallel", "4", stdin=graph.out)


def of_experts(result: Result, name: str = "/experts.") -> list[tuple[dict, dict]]:
    """Records of nodes of experts, or of others by name, with their entry for four devices."""
    assert result.status == 0, result.err
    return [
        (record, next(s for s in record["shards"] if s["devices"] == 4))
        for record in result.records("node")
        if name in record["name"]
    ]


def test_experts_are_on_devices_of_their_own(tmp_path: Path) -> None:
    """Their sum is taken once, and so is the gradient of what they read."""
    result = mixture(tmp_path, apart=True)
    words = 4 * 2047 * 1024
    for record, one in of_experts(result):
        assert one["time_s"]["t4"] == pytest.approx(record["time_s"]["t4"] / 4)
        if record["memory_bytes"] > 1e5 and record["op"] != "ScatterND":  # constants are shared
            assert one["memory_bytes"] == pytest.approx(record["memory_bytes"] / 4, rel=1e-4)
    exchanged = Counter(
        (bool(record.get("backward")), each["kind"], each["bytes"])
        for record, one in of_experts(result, "layers.1/feed_forward")
        for each in one.get("collectives", ())
        if each["bytes"] > words / 8
    )
    assert exchanged == {(False, ALL_REDUCE, words): 1, (True, ALL_REDUCE, words): 1}


def test_experts_that_read_one_another_are_not(tmp_path: Path) -> None:
    """They are split inside: an exchange forward and one backward for each."""
    result = mixture(tmp_path, apart=False)
    large = [
        (bool(record.get("backward")), each["bytes"])
        for record, one in of_experts(result)
        for each in one.get("collectives", ())
        if each["bytes"] > 4 * 8 * 1023
    ]
    assert Counter(large) == {(False, 4 * 1023 * 1024): 8, (True, 4 * 1023 * 1024): 8}


def experts_by_hand(t: int, **changes: str) -> Mixtures:
    """Two experts: a product of their own, added to what comes in."""
    nodes, reads, writes = [], [], []
    into = 0
    for i in range(2):
        scope = changes.get(f"scope{i}", f"/layer/experts.{i}/fc")
        op = changes.get(f"op{i}", "MatMul")
        nodes += [
            (scope, Operator(op, ((4, 4), (4, 4)), ((4, 4),), (False, True))),
            (f"/layer/experts.{i}", Operator("ScatterND", ((4, 4),) * 2, ((4, 4),), (False,) * 2)),
        ]
        reads += [[0, 10 + i], [into, 20 + i]]
        into = 30 + i
        writes += [[20 + i], [into]]
    return Mixtures(nodes, reads, writes, t)


def test_rules_of_experts() -> None:
    found = experts_by_hand(2)
    assert [list(found.rules(i, 1)) for i in range(4)] == [
        [Rule((WHOLE, OWNED), (OWNED,))],
        [Rule((ADDED, OWNED), (ADDED,))],
    ] * 2
    here = [next(found.rules(i, 1)) for i in range(4)]
    assert found.balanced(here)
    plain = Rule((WHOLE, WHOLE), (WHOLE,), divided=False)
    assert found.balanced([plain] * 4)
    assert not found.balanced([*here[:2], plain, plain])
    # Four devices for two experts, experts that differ, and two numbers of one.
    for other in (
        experts_by_hand(4),
        experts_by_hand(2, op1="Add"),
        experts_by_hand(2, scope1="/layer/experts.0/fc"),
    ):
        assert not other


def test_reductions_are_split_along_other_axes() -> None:
    node = Operator("ReduceMean", ((2, 6, 8), (1,)), ((2, 6, 1),), (False, True))
    assert list(more_rules(node, (), 2)) == [Rule((0, WHOLE), (0,)), Rule((1, WHOLE), (1,))]
    unknown = Operator("ReduceMean", ((2, 2),), ((2,),), (False,))
    assert list(more_rules(unknown, (), 2)) == []
