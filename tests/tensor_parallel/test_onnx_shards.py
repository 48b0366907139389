"""Models whose nodes are cut by layouts compute what they computed before."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dnnp.core.model.shards import WHOLE
from dnnp.formats.onnx.stages import MODEL
from support import split_models
from support.sharded import check_all, cut, imported, laid_out, plan_of_stages, same, split
from support.split_models import array, feeds_of, graph, make, node, run_split, run_whole, value

RNG = np.random.default_rng(5)
Shape = tuple[int, ...]


def weight(name: str, *shape: int) -> TensorProto:
    """A weight of random numbers."""
    return array(name, RNG.standard_normal(shape))


def ints(name: str, *values: int) -> TensorProto:
    """A constant vector of integers."""
    return array(name, values, np.int64)


def one(op: str, shapes: list[Shape], out: Shape, *stored: TensorProto, opset: int = 17, **fields):
    """A model of one node between others that negate: its inputs, then its weights."""
    names = [f"x{i}" for i in range(len(shapes))]
    body = [node("Neg", [name], [f"{name}n"]) for name in names]
    reads = [f"{name}n" for name in names] + [tensor.name for tensor in stored]
    body += [node(op, reads, ["a"], name="it", **fields), node("Neg", ["a"], ["y"])]
    given = [value(name, shape) for name, shape in zip(names, shapes, strict=True)]
    made = [value("y", out)]
    return make(graph(body, op, given, made, list(stored)), opset=opset)


# fmt: off
CASES = {
    "column and row": (one("MatMul", [(2, 6, 4)], (2, 6, 8), weight("w", 4, 8)), 2),
    "by heads": (one("MatMul", [(2, 4, 3, 5), (2, 4, 5, 6)], (2, 4, 3, 6)), 2),
    "gemm": (one("Gemm", [(3, 4)], (3, 8), weight("w", 4, 8), weight("b", 8), alpha=0.5), 2),
    "gemm, transposed": (
        one("Gemm", [(3, 4)], (3, 8), weight("w", 8, 4), weight("b", 1, 8), transB=1, beta=2.0), 2),
    "gemm, scalar bias": (one("Gemm", [(3, 4)], (3, 8), weight("w", 4, 8), weight("b", 1)), 2),
    "conv": (one("Conv", [(1, 4, 5, 5)], (1, 8, 5, 5), weight("w", 8, 4, 3, 3),
                 weight("b", 8), pads=[1] * 4), 2),
    "conv without bias": (one("Conv", [(1, 4, 3, 3)], (1, 2, 3, 3), weight("w", 2, 4, 1, 1)), 2),
    "groups": (one("Conv", [(1, 4, 3, 3)], (1, 8, 3, 3), weight("w", 8, 1, 1, 1), group=4), 1),
    "pool": (one("MaxPool", [(2, 4, 4, 4)], (2, 4, 2, 2), kernel_shape=[2, 2], strides=[2, 2]), 2),
    "normalised": (
        one("BatchNormalization", [(2, 4, 3)], (2, 4, 3), weight("s", 4), weight("b", 4),
            weight("m", 4), array("v", [1, 2, 3, 4])), 2),
    "softmax": (one("Softmax", [(2, 4, 6)], (2, 4, 6)), 2),
    "softmax of old": (one("Softmax", [(2, 4, 6)], (2, 4, 6), opset=11, axis=2), 2),
    "layers": (
        one("LayerNormalization", [(2, 4, 6)], (2, 4, 6), weight("s", 6), weight("b", 6)), 2),
    "transpose": (one("Transpose", [(2, 4, 6, 8)], (2, 6, 4, 8), perm=[0, 2, 1, 3]), 4),
    "reshape": (one("Reshape", [(2, 6, 8)], (2, 6, 2, 4), ints("to", 0, -1, 2, 4)), 3),
    "flatten": (one("Flatten", [(2, 4, 6)], (2, 24), axis=1), 2),
    "unsqueeze": (one("Unsqueeze", [(4, 6)], (4, 1, 6), ints("at", 1)), 2),
    "squeeze": (one("Squeeze", [(1, 4, 1, 6)], (4, 6), ints("at", 0, 2)), 2),
    "sum": (one("Add", [(2, 4, 6), (4, 1)], (2, 4, 6)), 3),
    "choice": (one("Clip", [(2, 4)], (2, 4), array("low", -1.0), array("high", 1.0)), 2),
}
UNFIT = {
    "softmax along the cut": (one("Softmax", [(2, 4, 6)], (2, 4, 6), axis=1), "normalises axis"),
    "softmax of all": (
        one("Softmax", [(2, 4, 6)], (2, 4, 6), opset=11, axis=0), "normalises axis"),
    "squeeze of what may be 1": (one("Squeeze", [(1, 2, 6)], (2, 6)), "not stated"),
    "square, transposed": (
        one("Gemm", [(3, 4)], (3, 4), weight("w", 4, 4), transB=1), "attributes"),
    "transpose elsewhere": (one("Transpose", [(2, 6, 4)], (4, 6, 2), perm=[2, 1, 0]), None),
}
# fmt: on


def taken_apart(opset: int) -> onnx.ModelProto:
    """A product that a Split takes apart into three, and another one in two."""
    sizes = {"split": [4, 4, 4]} if opset < 13 else {}
    vector = ["sizes"] if opset >= 13 else []
    body = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "b"], ["c"]),
        node("Split", ["c", *vector], ["q", "k", "v"], axis=-1, **sizes),
        node("Mul", ["q", "k"], ["d"]),
        node("Add", ["d", "v"], ["e"]),
        node("Gemm", ["e", "u", "t"], ["f"]),
        node("Split", ["f"], ["g", "h"], axis=1),
        node("Add", ["g", "h"], ["y"]),
    ]
    stored = [weight("w", 6, 12), weight("b", 12), weight("u", 4, 8), weight("t", 8)]
    stored += [ints("sizes", 4, 4, 4)] * (opset >= 13)
    given, made = [value("x", (2, 6))], [value("y", (2, 4))]
    return make(graph(body, "apart", given, made, stored), opset=opset)


@pytest.mark.parametrize("opset", [11, 17])
def test_each_rule_of_what_is_cut_in_blocks(opset: int, tmp_path: Path) -> None:
    count, warned = check_all(taken_apart(opset), tmp_path, 2)
    assert count >= 19
    assert not warned


def gathered(rows: int = 7) -> onnx.ModelProto:
    """Rows of a table, and others of a table that are taken along its second axis."""
    body = [
        node("Gather", ["t", "i"], ["a"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("Relu", ["b"], ["y"]),
    ]
    stored = [weight("t", rows, 4), weight("w", 4, 6)]
    given = [value("i", (2, 3), TensorProto.INT64)]
    return make(graph(body, "rows", given, [value("y", (2, 3, 6))], stored))


@pytest.mark.parametrize("t", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_rule_of_an_operator(name: str, t: int, tmp_path: Path) -> None:
    model, least = CASES[name]
    count, warned = check_all(model, tmp_path, t)
    assert not warned
    if t == 2:
        # The nodes before and behind it can be cut along each of their axes, too.
        assert count >= least + 2


def test_each_rule_of_rows_of_a_table(tmp_path: Path) -> None:
    count, warned = check_all(gathered(), tmp_path, 2)
    assert count >= 5
    assert not warned
    # Seven rows are no two equal parts; six are, of which each has its own.
    more, warned = check_all(gathered(6), tmp_path, 2)
    assert more > count
    assert not warned


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize("t", [2, 4])
def test_rows_of_a_table_are_where_they_are(t: int, kind: int, tmp_path: Path) -> None:
    """From either end; and a number that no row has fails, as it does of the whole table."""
    rows = array("w", RNG.standard_normal((16, 8)))
    body = [node("Gather", ["w", "i"], ["a"]), node("Relu", ["a"], ["y"])]
    given, made = [value("i", (2, 5), kind)], [value("y", (2, 5, 8))]
    model = make(graph(body, "rows", given, made, [rows]))
    stream = imported(model, tmp_path)
    laid_out(stream, t, lambda v, seen, ways: next((r for r in ways if r.reduced), ways[0]))
    found, said = cut(stream, model, plan_of_stages([[0, 1]], [t]))
    assert not said
    assert len(found.made.slices) == t
    at = RNG.integers(-16, 16, (2, 5)).astype(np.int64 if kind == TensorProto.INT64 else np.int32)
    parts = split(stream, found)
    same(run_split(parts, found.made.model, {"i": at}), run_whole(model, {"i": at}))
    for strange in (16, -17, 100, -100):
        at[0, 0] = strange
        with pytest.raises(Exception, match="indices element out of data bounds"):
            run_split(parts, found.made.model, {"i": at})


@pytest.mark.parametrize("name", UNFIT)
def test_what_attributes_forbid_runs_whole(name: str, tmp_path: Path) -> None:
    model, reason = UNFIT[name]
    _, warned = check_all(model, tmp_path, 2)
    assert any(reason in text for text in warned) if reason else not warned


@pytest.mark.parametrize("name", split_models.MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_models_of_all_kinds(name: str, seed: int, tmp_path: Path) -> None:
    model = split_models.MODELS[name]()
    rng = random.Random(seed)
    free = {"n": 3} if name in FREE else None
    stream = imported(model, tmp_path, free)
    t = 2 + seed % 2
    rules = laid_out(stream, t, lambda v, seen, offered: rng.choice(offered[-2:]))
    order = [record["id"] for record in stream.get("node")]
    at = rng.randint(0, len(order))
    stages = [part for part in (order[:at], order[at:]) if part]
    found, _ = cut(stream, model, plan_of_stages(stages, [t] * len(stages)))
    feeds = feeds_of(model)
    whole = run_whole(model, feeds)
    parts = split(stream, found)
    same(run_whole(found.made.model, feeds), whole)
    same(run_split(parts, found.made.model, feeds), whole)
    assert all(rule.outputs for rule in rules)
    assert any(MODEL in part.sources.values() for part in parts)


FREE = {"stale_shapes"}


def layers() -> onnx.ModelProto:
    """Two layers with an activation, and an output on the way."""
    body = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Add", ["c", "x"], ["y"]),
    ]
    stored = [weight("w", 4, 6), weight("v", 6, 4)]
    outputs = [value("y", ("n", 4)), value("b", ("n", 6))]
    return make(graph(body, "layers", [value("x", ("n", 4))], outputs, stored))


def test_column_then_row_needs_one_sum(tmp_path: Path) -> None:
    """No tensor is put together between the products but what the model hands out."""
    model = layers()
    stream = imported(model, tmp_path, {"n": 5})
    laid_out(
        stream, 2, lambda v, seen, offered: next((r for r in offered if r.divided), offered[0])
    )
    wanted = {0: (WHOLE, 1), 2: (1, 0)}

    def choice(v, seen, offered):
        return next((r for r in offered if r.inputs == wanted.get(v, (1,))), offered[0])

    rules = laid_out(stream, 2, choice)
    assert rules[2].reduced
    found, _ = cut(stream, model, plan_of_stages([[0, 1, 2, 3]], [2]))
    ops = [item.op_type for item in found.made.model.graph.node]
    assert sorted(ops) == [
        "Add",
        "Add",
        "Concat",
        "MatMul",
        "MatMul",
        "MatMul",
        "MatMul",
        "Relu",
        "Relu",
    ]
    # The first device puts together what it needs of the second, after its own part.
    assert [part.device for part in found.parts] == ["acc/0", "acc/1", "acc/0"]
    feeds = {"x": RNG.standard_normal((5, 4)).astype(np.float32)}
    whole = run_whole(model, feeds)
    same(run_split(split(stream, found), found.made.model, feeds), whole)
    assert sum(part.compute_s for part in found.parts if part.device == "acc/0") == pytest.approx(1)


def test_parts_of_replicas_are_as_far_apart_as_there_are_shards(tmp_path: Path) -> None:
    model = layers()
    stream = imported(model, tmp_path, {"n": 5})
    laid_out(stream, 2, lambda v, seen, offered: offered[-1])
    plan = plan_of_stages([[0], [1, 2, 3]], [1, 2], replicas=2)
    found, _ = cut(stream, model, plan)
    devices = {(p.device, p.replicas, p.apart) for p in found.parts}
    assert devices == {("acc/0", 2, 1), ("acc/2", 2, 2), ("acc/3", 2, 2)}


def test_the_first_device_alone_draws_random_numbers(tmp_path: Path) -> None:
    body = [
        node("RandomNormalLike", ["x"], ["a"], seed=3.0),
        node("Sub", ["a", "x"], ["b"]),
        node("Sub", ["b", "a"], ["y"]),
    ]
    model = make(graph(body, "drawn", [value("x", (4, 4))], [value("y", (4, 4))]))
    stream = imported(model, tmp_path)
    laid_out(stream, 2, lambda v, seen, offered: offered[-1])
    found, said = cut(stream, model, plan_of_stages([[0, 1, 2]], [2]))
    assert not said
    drawn = [
        at for at in found.made.tasks if found.made.model.graph.node[at].op_type[:6] == "Random"
    ]
    assert [found.made.tasks[at].device for at in drawn] == [0]
    feeds = feeds_of(model)
    np.testing.assert_allclose(
        run_whole(found.made.model, feeds)["y"], -feeds["x"], rtol=1e-5, atol=1e-6
    )


def test_what_weights_alone_make_comes_before_all_that_read_it(tmp_path: Path) -> None:
    """`b`, which `y` alone reads, would run behind `c`; `a`, which both need, runs with `c`."""
    body = [
        node("Neg", ["w"], ["a"]),
        node("Abs", ["a"], ["b"]),
        node("Add", ["x", "a"], ["c"]),
        node("Sub", ["c", "b"], ["y"]),
    ]
    given, stored = [value("x", (4, 4))], [weight("w", 4, 4)]
    count, warned = check_all(
        make(graph(body, "g", given, [value("y", (4, 4))], stored)), tmp_path, 2
    )
    assert count > 4
    assert not warned
