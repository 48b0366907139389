"""Work and traffic of single operators, against arithmetic done by hand."""

from __future__ import annotations

import random
from math import isfinite, prod

import onnx
import pytest
from onnx import TensorProto, helper

from dnnp.core.model.device_rates import RATES
from dnnp.core.profile.call import Cost
from dnnp.core.profile.ops import ModelFacts, node_cost
from dnnp.core.profile.table import CONTROL_FLOW, RULES
from dnnp.core.profile.work import work_of
from dnnp.formats.graph import graph_of
from support.op_graphs import op_stream

Shapes = dict[str, tuple[int, ...]]


def cost(
    node: onnx.NodeProto, shapes: Shapes, facts: ModelFacts | None = None, **item: int
) -> Cost:
    """Price a node whose tensors are float32, or of `item[name]` bytes an element."""

    def bytes_of(name: str) -> float:
        return prod(shapes[name]) * item.get(name, 4) if name in shapes else 0.0

    return node_cost(node, shapes.get, bytes_of, None, facts or ModelFacts())


def make(
    op: str, inputs: str, outputs: str = "y", domain: str = "", **attributes: object
) -> onnx.NodeProto:
    """A node; `-` stands for an absent input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain=domain, **attributes)


def test_conv_counts_multiply_adds_and_bias() -> None:
    shapes = {"x": (2, 3, 8, 8), "w": (16, 3, 3, 3), "b": (16,), "y": (2, 16, 6, 6)}
    # 2 * 16 * 6 * 6 = 1152 outputs, each 3 * 3 * 3 = 27 multiply-adds and one addition.
    found = cost(make("Conv", "x w b"), shapes)
    assert found.flop == 1152 * (2 * 27 + 1)
    # 384 + 432 + 16 + 1152 elements of 4 bytes.
    assert found.bytes == 4 * (384 + 432 + 16 + 1152)
    assert found.known


def test_grouped_conv_reads_fewer_channels() -> None:
    shapes = {"x": (1, 32, 10, 10), "w": (32, 1, 3, 3), "y": (1, 32, 10, 10)}
    assert cost(make("Conv", "x w", group=32), shapes).flop == 3200 * 2 * 9


def test_transposed_conv_scatters_every_input() -> None:
    shapes = {"x": (1, 4, 5, 5), "w": (4, 2, 3, 3), "y": (1, 2, 11, 11), "b": (2,)}
    # 100 inputs, each meets 2 * 3 * 3 weights; 242 outputs take the bias.
    assert cost(make("ConvTranspose", "x w b"), shapes).flop == 2 * 100 * 18 + 242


def test_quantized_convolutions() -> None:
    shapes = {"x": (1, 3, 4, 4), "w": (8, 3, 1, 1), "y": (1, 8, 4, 4)}
    assert cost(make("ConvInteger", "x w"), shapes).flop == 128 * 2 * 3
    node = make("QLinearConv", "x s z w s z s z b")
    assert cost(node, {**shapes, "b": (8,)}).flop == 128 * (2 * 3 + 1 + 4)


@pytest.mark.parametrize(
    ("a", "b", "y", "flop"),
    [
        ((5, 7), (7, 3), (5, 3), 2 * 5 * 3 * 7),
        ((4, 12, 128, 64), (4, 12, 64, 128), (4, 12, 128, 128), 2 * 4 * 12 * 128 * 128 * 64),
        ((8, 1, 5, 7), (3, 7, 2), (8, 3, 5, 2), 2 * 8 * 3 * 5 * 2 * 7),
        ((7,), (7, 3), (3,), 2 * 3 * 7),
        ((2, 5, 7), (7,), (2, 5), 2 * 10 * 7),
        ((7,), (7,), (), 2 * 7),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...], flop: int) -> None:
    assert cost(make("MatMul", "a b"), {"a": a, "b": b, "y": y}).flop == flop


def test_gemm_transposes_and_adds_c() -> None:
    shapes = {"a": (7, 5), "b": (3, 7), "c": (3,), "y": (5, 3)}
    assert cost(make("Gemm", "a b c", transA=1, transB=1), shapes).flop == 15 * (2 * 7 + 1)
    shapes["a"] = (5, 7)
    assert cost(make("Gemm", "a b", transB=1), shapes).flop == 15 * 2 * 7


@pytest.mark.parametrize(
    ("equation", "shapes", "flop"),
    [
        # i j k: 2 * 4 * 5 * 6.
        ("ij,jk->ik", [(4, 5), (5, 6)], 240),
        ("ij,jk", [(4, 5), (5, 6)], 240),
        # b h q k d: 2 * 2 * 3 * 4 * 5 * 6.
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 6), (2, 3, 5, 6)], 1440),
        # (ij,jk): 2 * 2 * 3 * 4 = 48, then (ik,kl): 2 * 2 * 4 * 5 = 80.
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], 128),
        # Ellipsis broadcasts: 2 * 7 * 2 * 3 * 4.
        ("...ij,...jk->...ik", [(7, 2, 3), (1, 3, 4)], 336),
        # One operand: each element once.
        ("ii->i", [(4, 4)], 4),
        ("ij->ji", [(4, 6)], 24),
        # Outer product.
        (" a , b -> a b ", [(3,), (5,)], 30),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], flop: int) -> None:
    names = [f"x{i}" for i in range(len(shapes))]
    node = make("Einsum", " ".join(names), equation=equation)
    assert cost(node, dict(zip(names, shapes, strict=True))).flop == flop


def test_einsum_that_does_not_fit_its_shapes_is_unknown() -> None:
    node = make("Einsum", "a b", equation="ij,jk->ik")
    assert not cost(node, {"a": (2,), "b": (2, 3)}).known


def test_lstm() -> None:
    # 10 steps, batch 2, input 6, hidden 4, both directions.
    shapes = {"x": (10, 2, 6), "w": (2, 16, 6), "r": (2, 16, 4), "b": (2, 32), "y": (10, 2, 2, 4)}
    # A cell: 4 gates of 2 * 4 * (6 + 4) = 80, that is 320. A unit: 3 sigmoids of 15, 2 tanh of
    # 10, 4 for cell and output; a gate adds W's and R's products and two biases: 3.
    cell = 320 + 4 * (3 * 15 + 2 * 10 + 4 + 4 * 3)
    assert cost(make("LSTM", "x w r b"), shapes).flop == 10 * 2 * 2 * cell


def test_gru_and_rnn_without_bias() -> None:
    gru = {"x": (5, 1, 3), "w": (1, 6, 3), "r": (1, 6, 2), "y": (5, 1, 1, 2)}
    assert cost(make("GRU", "x w r"), gru).flop == 5 * (2 * 3 * 2 * 5 + 2 * (3 + 2 * 15 + 10 + 5))
    rnn = {"x": (5, 1, 3), "w": (1, 2, 3), "r": (1, 2, 2), "y": (5, 1, 1, 2)}
    assert cost(make("RNN", "x w r"), rnn).flop == 5 * (2 * 2 * 5 + 2 * (1 + 10))


@pytest.mark.parametrize("packed", [False, True])
def test_attention_is_two_products_and_a_softmax(packed: bool) -> None:
    # Batch 2, 4 heads of 8, 16 queries, 24 keys: 2 * (2 * 2 * 4 * 16 * 24 * 8) and 16 a score.
    q, kv = ((2, 16, 32), (2, 24, 32)) if packed else ((2, 4, 16, 8), (2, 4, 24, 8))
    attributes = {"q_num_heads": 4, "kv_num_heads": 4} if packed else {}
    node = make("Attention", "q k v", **attributes)
    scores = 2 * 4 * 16 * 24
    assert cost(node, {"q": q, "k": kv, "v": kv, "y": q}).flop == scores * (4 * 8 + 16)


def test_contrib_attention_projects_first() -> None:
    shapes = {"x": (2, 16, 32), "w": (32, 96), "b": (96,), "y": (2, 16, 32)}
    node = make("Attention", "x w b", domain="com.microsoft", num_heads=4)
    assert cost(node, shapes).flop == 32 * 96 * 65 + 2 * 4 * 16 * 16 * (4 * 8 + 16)


def test_pooling_and_reduction() -> None:
    shapes = {"x": (1, 8, 6, 6), "y": (1, 8, 3, 3)}
    assert cost(make("MaxPool", "x", kernel_shape=[2, 2]), shapes).flop == 72 * 4
    assert cost(make("ReduceMean", "x"), {"x": (4, 9), "y": (4,)}).flop == 36


def test_resize_by_mode() -> None:
    shapes = {"x": (1, 2, 4, 4), "y": (1, 2, 8, 8)}
    assert cost(make("Resize", "x", mode="nearest"), shapes).flop == 0
    assert cost(make("Resize", "x", mode="linear"), shapes).flop == 2 * 128 * 4
    assert cost(make("Resize", "x", mode="cubic"), shapes).flop == 2 * 128 * 16


def test_gather_moves_only_what_it_gathers() -> None:
    shapes = {"table": (50_000, 64), "i": (1, 10), "y": (1, 10, 64)}
    found = cost(make("Gather", "table i"), shapes, i=8)
    assert found == (0.0, 2 * 640 * 4 + 80, True)


def test_views_cost_nothing_and_copies_move() -> None:
    shapes = {"x": (6, 4), "s": (2,), "y": (4, 6)}
    assert cost(make("Reshape", "x s"), shapes) == (0.0, 0.0, True)
    assert cost(make("Transpose", "x"), shapes) == (0.0, 2 * 24 * 4, True)
    assert cost(make("Slice", "x s s"), {**shapes, "y": (1, 4)}) == (0.0, 2 * 4 * 4, True)


def test_operand_that_comes_twice_is_read_once() -> None:
    assert cost(make("Mul", "x x"), {"x": (10,), "y": (10,)}) == (10.0, 80.0, True)


def test_transcendental_functions_weigh_more() -> None:
    shapes = {"x": (10,), "y": (10,)}
    flop = {op: cost(make(op, "x"), shapes).flop for op in ("Relu", "Sqrt", "Exp", "Sigmoid")}
    assert 0 < flop["Relu"] < flop["Sqrt"] < flop["Exp"] < flop["Sigmoid"]


def test_unknown_operator_is_priced_by_its_bytes() -> None:
    shapes = {"x": (10,), "y": (5,)}
    assert cost(make("Frobnicate", "x x", domain="org.example"), shapes) == (0.0, 60.0, False)


def test_missing_shape_is_priced_by_its_bytes() -> None:
    assert cost(make("MatMul", "a b"), {"a": (2, 3)}) == (0.0, 24.0, False)


def test_shapes_that_contradict_the_operator_are_no_error() -> None:
    assert not cost(make("Gemm", "a b"), {"a": (), "b": (), "y": (2,)}).known
    assert not cost(make("LSTM", "x w r"), {"x": (2,), "w": (), "r": (1,), "y": ()}).known


def _body(name: str, op: str, shape: list[int]) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, shape)
    return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_y"])], name, [], [out])


def test_if_costs_its_dearest_branch() -> None:
    node = make("If", "c", then_branch=_body("t", "Exp", [10]), else_branch=_body("e", "Neg", [10]))
    found = cost(node, {"x": (10,), "c": (), "y": (10,)})
    assert found == (100.0, 80.0, True)


@pytest.mark.parametrize(("trips", "times"), [(7, 7), (None, 1), (2**63 - 1, 1)])
def test_loop_costs_its_body_times_a_constant_trip_count(trips: int | None, times: int) -> None:
    def info(name: str, kind: int, shape: list[int] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            # Neither the state nor what is made of it declares a shape.
            helper.make_node("Add", ["state", "w"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["next"]),
        ],
        "body",
        [info("i", 7, []), info("go", 9, []), info("state", 1, None)],
        [info("go_on", 9, []), info("next", 1, None)],
    )
    node = make("Loop", "n - x", body=body)
    facts = ModelFacts(constant_of={"n": trips}.get)
    found = cost(node, {"x": (3, 4), "w": (4,), "y": (3, 4), "n": ()}, facts)
    # Add 12 and Relu 12 each round; 12 + 4 + 12 and 12 + 12 elements; the result once.
    assert found == (24.0 * times, 4.0 * (52 * times + 12), trips == 7)


def test_scan_costs_its_body_for_each_slice() -> None:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["out"])],
        "body",
        [info("s"), info("e")],
        [info("t"), info("out")],
    )
    node = make("Scan", "s0 xs", "s1 ys", body=body, num_scan_inputs=1)
    found = cost(node, {"s0": (4,), "xs": (9, 4), "s1": (4,), "ys": (9, 4)})
    assert found.flop == 9 * 4
    assert found.known


def test_local_function_costs_its_body_at_each_shape() -> None:
    function = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [
            helper.make_node("Exp", ["a"], ["e"]),
            helper.make_node("Inner", ["e"], ["b"], domain="local"),
        ],
        [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
    )
    inner = helper.make_function(
        "local",
        "Inner",
        ["a"],
        ["b"],
        [helper.make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    facts = ModelFacts(
        {("local", "Twice", ""): function, ("local", "Inner", ""): inner},
        [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
    )
    for size in (10, 20):
        found = cost(make("Twice", "x", domain="local"), {"x": (size,), "y": (size,)}, facts)
        assert found == (11.0 * size, 16.0 * size, True)


def test_function_attributes_reach_its_body() -> None:
    node = helper.make_node("Gemm", ["a", "b"], ["y"])
    node.attribute.add(name="transA", type=onnx.AttributeProto.INT, ref_attr_name="flip")
    function = helper.make_function(
        "local", "F", ["a", "b"], ["y"], [node], [helper.make_opsetid("", 18)], ["flip"]
    )
    facts = ModelFacts({("local", "F", ""): function}, [helper.make_opsetid("", 18)])
    call = make("F", "a b", domain="local", flip=1)
    assert cost(call, {"a": (7, 5), "b": (7, 3), "y": (5, 3)}, facts).flop == 2 * 15 * 7


def test_recursive_function_ends() -> None:
    function = helper.make_function(
        "local",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("F", ["a"], ["b"], domain="local")],
        [helper.make_opsetid("local", 1)],
    )
    facts = ModelFacts({("local", "F", ""): function}, [helper.make_opsetid("local", 1)])
    assert not cost(make("F", "x", domain="local"), {"x": (3,), "y": (3,)}, facts).known


def test_no_formula_breaks_on_shapes_it_never_expected() -> None:
    """Random ranks, sizes and attributes: a cost comes out, finite and of at least 0."""
    rng = random.Random(0)
    names = sorted({a for s in onnx.defs.get_all_schemas_with_history() for a in s.attributes})
    sizes = (0, 1, 2, 3, 7, 2**31, 2**53)
    values = (0, -1, 3, 2**40, 1.5, "linear", "ij,jk", [], [2, 2], [-3], ["a"])
    for key in [*RULES, *CONTROL_FLOW]:
        domain, _, op = key.rpartition(":")
        for _ in range(40):
            shapes = {
                f"t{i}": tuple(rng.choice(sizes) for _ in range(rng.randint(0, 5)))
                for i in range(12)
                if rng.random() < 0.9
            }
            picked = [*rng.sample(names, 6), "equation", "axis"]
            given = {name: rng.choice(values) for name in picked if rng.random() < 0.5}
            given = {name: v for name, v in given.items() if v != []}
            tensors = [f"t{rng.randrange(12)}" if rng.random() < 0.9 else "" for _ in range(9)]
            node = helper.make_node(
                op,
                tensors[: rng.randint(0, 9)],
                tensors[: rng.randint(0, 3)],
                domain=domain,
                **given,
            )
            found = cost(node, shapes, ModelFacts(constant_of=lambda _: rng.choice([None, -5, 4])))
            assert isfinite(found.flop), key
            assert found.flop >= 0, (key, found)
            assert found.bytes >= 0


def test_rotary_embedding_reads_the_rows_of_its_positions() -> None:
    shapes = {"x": (2, 3, 64), "c": (1000, 8), "s": (1000, 8), "p": (2, 3), "y": (2, 3, 64)}
    both = 4 * (384 + 384 + 6)
    found = cost(make("RotaryEmbedding", "x c s p", num_heads=4), shapes)
    assert found == (3 * 384, pytest.approx(both + 2 * 6 * 8 * 4), True)
    found = cost(make("RotaryEmbedding", "x p c s", domain="com.microsoft"), shapes)
    assert found.bytes == pytest.approx(both + 2 * 6 * 8 * 4)
    # Without positions, each sample has tables of its own.
    whole = {**shapes, "c": (2, 3, 8), "s": (2, 3, 8)}
    assert cost(make("RotaryEmbedding", "x c s"), whole).bytes == 4 * (768 + 2 * 48)


def test_attention_within_a_window_and_of_the_rows_it_rotates() -> None:
    shapes = {"q": (1, 2, 64), "k": (1, 2, 64), "v": (1, 2, 64), "y": (1, 2, 64)}
    shapes |= {"pk": (1, 4, 98, 16), "pv": (1, 4, 98, 16), "n": (1,), "t": ()}
    shapes |= {"prk": (1, 4, 100, 16), "prv": (1, 4, 100, 16), "c": (9000, 8), "s": (9000, 8)}
    names = "q k v pk pv n t c s", "y prk prv"
    attributes = {"num_heads": 4, "kv_num_heads": 4, "domain": "com.microsoft"}
    found = cost(make("GroupQueryAttention", *names, **attributes), shapes)
    assert found.flop == 100 * (4 * 2 * 64 + 16 * 8)
    rest = 4 * (4 * 128 + 2 * 64 * 198 + 2)
    assert found.bytes == pytest.approx(rest + 2 * 2 * 8 * 4)
    node = make("GroupQueryAttention", *names, **attributes, local_window_size=10)
    assert cost(node, shapes).flop == 10 * (4 * 2 * 64 + 16 * 8)
    plain = {"q": (1, 4, 50, 16), "k": (1, 4, 50, 16), "v": (1, 4, 50, 16), "y": (1, 4, 50, 16)}
    node = make("Attention", "q k v", left_window_size=4, is_causal=1)
    assert cost(node, plain).flop == 5 * (4 * 4 * 50 * 16 + 16 * 4 * 50)
    # Of 4 x 4 blocks of 25 keys a layout has 6; tokens of packed sequences attend to their own.
    sparse = {**shapes, "r": (1, 5), "cols": (1, 6), "pk": (1, 4, 100, 16), "pv": (1, 4, 100, 16)}
    node = make("SparseAttention", "q k v pk pv r cols t n", "y prk prv", **attributes)
    assert cost(node, sparse).flop == pytest.approx(100 * 6 / 16 * (4 * 2 * 64 + 16 * 8))
    packed = {"q": (30, 64), "o": (3, 12), "y": (30, 64)}
    node = make("PackedMultiHeadAttention", "q q q - o n", num_heads=4, domain="com.microsoft")
    assert cost(node, packed).flop == 12 * (4 * 30 * 64 + 16 * 30 * 4)


def test_paged_attention_reads_the_blocks_of_its_sequences() -> None:
    shapes = {"q": (3, 64), "k": (3, 64), "v": (3, 64), "y": (3, 64), "n": (4,), "p": (3,)}
    shapes |= {"kc": (100, 16, 4, 16), "vc": (100, 16, 4, 16), "t": (3, 2)}
    shapes |= {"ko": (100, 16, 4, 16), "vo": (100, 16, 4, 16)}
    node = make("PagedAttention", "q k v kc vc n p t", "y ko vo", "com.microsoft", num_heads=4)
    found = cost(node, shapes)
    assert found.flop == 32 * (4 * 3 * 64 + 16 * 3 * 4)
    # Queries, keys, values, output; 6 of 100 blocks; the new keys and values.
    fresh = 4 * (4 * 192 + 4 + 3 + 6 + 2 * 192)
    assert found.bytes == pytest.approx(fresh + 0.06 * 2 * 4 * 102400)


def test_a_mixture_reads_the_experts_that_are_chosen() -> None:
    shapes = {"x": (1, 64), "r": (1, 128), "f1": (128, 32, 64), "f2": (128, 64, 32), "y": (1, 64)}
    node = make("MoE", "x r f1 - f2", k=2, domain="com.microsoft")
    found = cost(node, shapes)
    assert found == (2 * 2 * 2 * 32 * 64, pytest.approx(4 * (64 + 128 + 64 + 2 * 4096)), True)
    many = {**shapes, "x": (100, 64), "r": (100, 128), "y": (100, 64)}
    assert cost(node, many).bytes == pytest.approx(4 * (6400 * 2 + 12800 + 128 * 4096))


@pytest.mark.parametrize("op", ["QOrderedMatMul", "TransposeMatMul", "PackedMultiHeadAttention"])
def test_products_are_priced_as_products(op: str) -> None:
    """At the rate of matrices, and of 8-bit integers where those are what is multiplied."""
    for name, rate in ((op, op.startswith("Q")), ("DynamicQuantizeMatMul", True)):
        graph = graph_of(op_stream(f"y = {name}(x, w)"))
        work = work_of(graph, [{}], [{"dtype": "float32"}] * graph.m)
        assert work.product.all()
        assert (work.rate[0] == RATES.index("int8")) == rate


def test_weights_in_attributes_are_read() -> None:
    shapes = {"x": (5, 4), "y": (5, 1)}
    node = make("LinearRegressor", "x", domain="ai.onnx.ml", coefficients=[1.0] * 4)
    assert cost(node, shapes) == (2 * 5 * 4, 4 * 25 + 16, True)
