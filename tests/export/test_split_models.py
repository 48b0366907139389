"""Contents of stage models, and refused splits."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dnnp.core.model.errors import FormatError
from dnnp.formats.onnx.stages import MODEL, boundary, split_model
from dnnp.formats.onnx.value_types import TensorType
from support.split_models import (
    MODELS,
    V,
    W,
    array,
    feeds_of,
    graph,
    make,
    node,
    run_split,
    run_whole,
    session,
    value,
    working_nodes,
)


def halves(model: onnx.ModelProto, at: int):
    nodes = working_nodes(model)
    return split_model(model, [nodes[:at], nodes[at:]])


def test_wiring_of_skip_connections() -> None:
    model = MODELS["skips_and_outputs"]()
    stages = split_model(model, [[0], [2, 3], [5, 6], [7, 8]])
    assert [stage.inputs for stage in stages] == [("x",), ("a",), ("b0", "e", "a"), ("a", "g")]
    assert stages[2].sources == {"b0": 1, "e": 1, "a": 0}
    assert stages[0].targets == {"a": (MODEL, 1, 2, 3), "c": (MODEL,), "V": (MODEL,)}
    assert stages[1].targets == {"b0": (MODEL, 2), "e": (2,)}
    assert stages[3].outputs == ("W", "h")
    assert stages[1].types["e"] == TensorType("float32", (2,))
    made_by = boundary(stages)
    assert made_by["a"] == 0
    assert made_by["x"] == MODEL
    assert "unused" not in made_by


def test_only_what_is_needed_travels() -> None:
    model = MODELS["functions"]()
    model.metadata_props.add(key="author", value="nobody")
    model.graph.metadata_props.add(key="kind", value="test")
    model.producer_name, model.model_version, model.domain = "maker", 7, "org.example"
    model.graph.value_info.extend([value("b"), value("n"), value("c")])
    first, last = split_model(model, [[0, 1, 2], [3, 4, 5]])
    assert [f.name for f in first.model.functions] == ["Scale", "Twice", "Over"]
    assert [f.overload for f in first.model.functions] == ["", "", "a"]
    assert [f.name for f in last.model.functions] == ["Scale", "Twice", "Shift", "Over"]
    assert [v.name for v in first.model.graph.value_info] == ["b"]
    assert [v.name for v in last.model.graph.value_info] == ["c"]
    for stage in (first, last):
        for field in ("producer_name", "model_version", "domain", "ir_version"):
            assert getattr(stage.model, field) == getattr(model, field)
        assert stage.model.metadata_props == model.metadata_props
        assert stage.model.graph.metadata_props == model.graph.metadata_props

    first, last = halves(MODELS["tied_weights"](), 2)
    assert [t.name for t in first.model.graph.initializer] == ["W"]
    assert [t.name for t in last.model.graph.initializer] == ["W", "V"]

    first, last = halves(MODELS["quantized"](), 4)
    assert not first.model.graph.quantization_annotation
    assert [a.tensor_name for a in last.model.graph.quantization_annotation] == ["md", "s"]


def test_device_configurations_travel() -> None:
    model = MODELS["tied_weights"]()
    if not hasattr(model, "configuration"):
        pytest.skip("this onnx knows no device configurations")
    model.ir_version = 11
    model.configuration.add(name="two", num_devices=2)
    model.graph.node[3].device_configurations.add(configuration_id="two", pipeline_stage=1)
    _, last = split_model(model, [[0, 1], [2, 3, 4]])
    assert last.model.configuration == model.configuration
    assert last.model.graph.node[1].device_configurations[0].pipeline_stage == 1


def test_defaults_stay_inputs_but_need_no_feed() -> None:
    first, last = split_model(MODELS["old_initializers"](), [[0], [1, 2]])
    assert first.inputs == ("x",)
    assert [v.name for v in first.model.graph.input] == ["x", "W"]
    assert [v.name for v in last.model.graph.input] == ["a", "V", "W"]
    overridable = session(split_model(MODELS["overridable"](), [[0], [1]])[1].model)
    assert [v.name for v in overridable.get_overridable_initializers()] == ["V"]


def test_empty_stages_are_dropped() -> None:
    model = MODELS["tied_weights"]()
    assert [s.nodes for s in split_model(model, [[], [0, 1], [], [2, 3, 4], []])] == [
        (0, 1),
        (2, 3, 4),
    ]
    assert split_model(make(graph([], "none", [value("x")], [value("x")])), []) == []


def test_a_stage_that_nobody_needs_still_loads() -> None:
    model = MODELS["skips_and_outputs"]()
    stages = split_model(model, [[0], [7], [2, 3, 5, 6, 8]])
    assert stages[1].targets == {"dead": ()}
    feeds = feeds_of(model)
    whole = run_whole(model, feeds)
    for name, result in run_split(stages, model, feeds).items():
        np.testing.assert_array_equal(result, whole[name])


def test_repeated_node_names_are_numbered() -> None:
    names = ["a", "a", "a_2", "", "a", ""]
    nodes = [node("Neg", [f"t{i}"], [f"t{i + 1}"], name=n) for i, n in enumerate(names)]
    model = make(graph(nodes, "names", [value("t0")], [value("t6")]))
    (stage,) = split_model(model, [range(6)])
    assert [n.name for n in stage.model.graph.node] == [
        "a",
        "a_3",
        "a_2",
        "Neg:t4",
        "a_4",
        "Neg:t6",
    ]
    session(stage.model)


def test_stale_sizes_are_forgotten() -> None:
    first, last = split_model(MODELS["stale_shapes"](), [[0, 1, 2], [3, 4]])
    assert first.types["b"] == TensorType("float32", (None, 4))
    assert last.types["where"].dtype == "int64"
    assert last.types["where"].shape[1] is None


def test_unknown_types_come_from_elsewhere_or_are_refused() -> None:
    nodes = [
        node("Gelu", ["x"], ["a"], domain="com.microsoft"),
        node("Relu", ["a"], ["y"]),
    ]
    model = make(graph(nodes, "contrib", [value("x")], [value("y")]))
    model.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(FormatError, match="element type of 'a'"):
        split_model(model, [[0], [1]])
    stages = split_model(model, [[0], [1]], {"a": TensorType("float32", (4,))})
    assert stages[0].types["a"] == TensorType("float32", (4,)), "all inputs have fixed sizes"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    stages = split_model(model, [[0], [1]], {"a": TensorType("float32", (7,))})
    assert stages[0].types["a"] == TensorType("float32", (None,)), "one of many choices"
    feeds = feeds_of(model)
    got = run_split(stages, model, feeds)
    np.testing.assert_array_equal(got["y"], run_whole(model, feeds)["y"])


def test_types_inside_functions_are_inferred() -> None:
    model = MODELS["functions"]()
    stages = split_model(model, [[v] for v in range(6)])
    assert stages[0].types["a"] == TensorType("float32", (4,))


def bad(change) -> onnx.ModelProto:
    model = MODELS["tied_weights"]()
    change(model)
    return model


ALL = [0, 1, 2, 3, 4]
REFUSED = {
    "cycle": (MODELS["tied_weights"], [[0, 2, 3, 4], [1]], "stages .* wait in a circle"),
    "order": (MODELS["tied_weights"], [[1, 0], [2, 3, 4]], r"runs node 1 \(Relu:b\) before node 0"),
    "missing": (MODELS["tied_weights"], [[0, 1], [3, 4]], r"node 2 \(Add:c\) is in no stage"),
    "twice": (MODELS["tied_weights"], [[0, 1], [1, 2, 3, 4]], "in stage 0 and in stage 1"),
    "number": (MODELS["tied_weights"], [[0, 1, 2, 3, 4, 5]], "node 5; the model has 5"),
    "free maker": (MODELS["weight_makers"], [[2, 4, 5, 7, 8]], r"node 6 \(ConstantOfShape:zeros\)"),
    "dangling": (lambda: bad(lambda m: m.graph.ClearField("initializer")), [ALL], "reads 'W'"),
    "no output": (lambda: bad(lambda m: m.graph.output.append(value("q"))), [ALL], "makes 'q'"),
    "two makers": (
        lambda: bad(lambda m: m.graph.node[2].output.append("a")), [ALL], "'a' has more than one"
    ),
    "no stage": (lambda: make(graph([], "g", [], [value("W")], [W])), [], "no stage to hand out"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    build, parts, message = REFUSED[name]
    with pytest.raises(FormatError, match=message):
        split_model(build(), parts)


def test_names_that_are_no_text_are_refused() -> None:
    model = onnx.ModelProto.FromString(
        MODELS["tied_weights"]().SerializeToString().replace(b"\x01a", b"\x01\xff")
    )
    with pytest.raises(FormatError, match="not UTF-8"):
        split_model(model, [ALL])


def test_other_text_may_be_anything() -> None:
    model = MODELS["tied_weights"]()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "PARAM"
    data = model.SerializeToString().replace(b"tied", b"t\xffed").replace(b"PARAM", b"P\xfdR\xffM")
    first, _ = split_model(onnx.ModelProto.FromString(data), [[0, 1], [2, 3, 4]])
    assert first.types["x"].shape == (None,)
    assert first.model.graph.name == "t\ufffded"


def test_recursive_functions_are_refused() -> None:
    opsets = [helper.make_opsetid("local", 1)]

    def function(name: str, calls: str):
        body = [node(calls, ["p"], ["q"], domain="local")]
        return helper.make_function("local", name, ["p"], ["q"], body, opsets)

    calls = [node("F", ["x"], ["y"], domain="local")]
    model = make(
        graph(calls, "g", [value("x")], [value("y")]),
        functions=[function("F", "G"), function("G", "F")],
    )
    with pytest.raises(FormatError, match="function 'F' calls itself"):
        split_model(model, [[0]])


UNARY, BINARY = ("Neg", "Abs", "Sin", "Relu"), ("Add", "Sub", "Mul", "Max")


def random_model(rng: random.Random) -> onnx.ModelProto:
    """A random graph of elementwise operators, some of them branches with captures."""
    known, nodes = ["x", "z", "W", "V"], []
    for i in range(rng.randint(4, 24)):
        made = f"t{i}"
        a, b, c = (rng.choice(known) for _ in range(3))
        choice = rng.random()
        if choice < 0.1:
            nodes.append(node("Constant", [], [made], value=array("", [i, 1, 0.5, -i])))
        elif choice < 0.25:
            then = graph([node("Add", [a, b], ["p"])], "p", [], [value("p")])
            orelse = graph([node("Mul", [b, c], ["q"])], "q", [], [value("q")])
            nodes.append(node("If", ["flag"], [made], then_branch=then, else_branch=orelse))
        elif choice < 0.5:
            nodes.append(node(rng.choice(UNARY), [a], [made]))
        else:
            nodes.append(node(rng.choice(BINARY), [a, b], [made]))
        known.append(made)
    outputs = dict.fromkeys([known[-1], *rng.sample(known, 2)])
    flag = value("flag", [], TensorProto.BOOL)
    inputs = [value("x"), value("z"), flag]
    return make(graph(nodes, "random", inputs, [value(n) for n in outputs], [W, V]))


def random_split(model: onnx.ModelProto, rng: random.Random) -> list[list[int]]:
    """Cut a random topological order; number the stages at random."""
    from dnnp.formats.onnx.scope import reads

    makers = {name: v for v, n in enumerate(model.graph.node) for name in n.output}
    left, order = working_nodes(model), []
    while left:
        waiting = set(left)
        ready = [
            v for v in left if not {makers.get(n) for n in reads(model.graph.node[v])} & waiting
        ]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    cuts = sorted(rng.sample(range(1, len(order)), min(len(order) - 1, rng.randint(1, 4))))
    parts = [order[i:j] for i, j in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    rng.shuffle(parts)
    return parts


@pytest.mark.parametrize("seed", range(60))
def test_random_splits_of_random_models(seed: int) -> None:
    rng = random.Random(seed)
    model = random_model(rng)
    while len(working_nodes(model)) < 2:
        model = random_model(rng)
    feeds = feeds_of(model, seed)
    stages = split_model(model, random_split(model, rng))
    got = run_split(stages, model, feeds)
    for name, expected in run_whole(model, feeds).items():
        np.testing.assert_array_equal(got[name], expected)
