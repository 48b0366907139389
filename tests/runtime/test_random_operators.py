"""Random operators: what replicas and stages draw, and that nothing is verified of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import dnnp as package
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import drawing_nodes, named, seeded
from support.run import dnnp
from support.running import planned
from support.split_models import TRUE, array, graph, make, node, value

Model = Callable[[], onnx.ModelProto]
NO = array("no", False, bool)


def chain(*draws: onnx.NodeProto, made: str = "r", stored: Sequence = (), **how: object):
    """Draw, add to the input, and three nodes more."""
    nodes = [
        *draws,
        node("Add", ["x", made], ["a"]),
        *(node("Relu", [p], [q]) for p, q in (("a", "b"), ("b", "c"), ("c", "y"))),
    ]
    return make(graph(nodes, "noise", [value("x")], [value("y")], [*stored]), **how)


def draw(**seed: float) -> onnx.NodeProto:
    return node("RandomUniform", [], ["r"], shape=[4], low=0.5, high=1.0, name="rnd", **seed)


def branch(made: str, op: str, *inputs: str, **how: object) -> onnx.GraphProto:
    return graph([node(op, inputs, [made], **how)], made, [], [value(made)])


def in_a_body() -> onnx.ModelProto:
    then, other = branch("t", "RandomUniform", shape=[4], low=0.5), branch("e", "Abs", "x")
    held = node("If", ["yes"], ["r"], then_branch=then, else_branch=other)
    return chain(held, stored=(TRUE,))


def in_a_function() -> onnx.ModelProto:
    opsets = [onnx.helper.make_opsetid("", 17)]
    nodes = [node("RandomUniformLike", ["v"], ["w"], low=0.5)]
    function = onnx.helper.make_function("local", "Noise", ["v"], ["w"], nodes, opsets)
    return chain(node("Noise", ["x"], ["r"], domain="local"), functions=[function])


def with_bernoulli() -> onnx.ModelProto:
    half = array("half", [0.5] * 4)
    return chain(node("Bernoulli", ["half"], ["r"]), stored=(half,), opset=15)


MODELS: dict[str, Model] = {
    "plain": lambda: chain(draw()),
    "seeded": lambda: chain(draw(seed=3.0)),
    "body": in_a_body,
    "function": in_a_function,
    "Bernoulli": with_bernoulli,
}


def outputs(folder: Path, plan: Path, name: str, *options: str) -> list[list[float]]:
    """Outputs of twelve samples of zeros."""
    (folder / "in").mkdir(exist_ok=True)
    for i in range(12):
        np.savez(folder / f"in/{i:02}.npz", x=np.zeros(4, np.float32))
    made = folder / name
    done = dnnp("run", "-q", "--inputs", folder / "in", "--outputs", made, *options, plan)
    assert done.status == 0, done.err
    return [np.load(file)["y"].tolist() for file in sorted(made.iterdir())]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("kind", MODELS)
def test_replicas_draw_each_their_own(kind: str, workers: str, tmp_path: Path) -> None:
    plan = tmp_path / "p.dnnp"
    count = len(MODELS[kind]().graph.node)
    stages = [[*range(count - 2)], [count - 2, count - 1]]
    plan.write_bytes(planned(MODELS[kind](), tmp_path, stages, replicas=[3, 1]))
    first = outputs(tmp_path, plan, "first", "--workers", workers)
    # Bernoulli draws zeros and ones, of which some samples may be the same by chance.
    assert len({*map(tuple, first)}) >= (4 if kind == "Bernoulli" else 12)
    assert any(first[i] != first[i + 1] for i in range(0, 12, 3))
    again = outputs(tmp_path, plan, "again", "--workers", workers)
    assert (first == again) == (workers == "thread" or kind == "seeded") or kind == "Bernoulli"


def test_stages_of_one_process_draw_each_their_own(tmp_path: Path) -> None:
    """Nodes at the same position of their stages draw different numbers, with seeds or without."""
    nodes = [
        node("RandomUniform", [], ["r"], shape=[4]),
        node("Add", ["x", "r"], ["y"]),
        node("RandomUniform", [], ["s"], shape=[4]),
        node("Add", ["x", "s"], ["z"]),
    ]
    model = make(graph(nodes, "twins", [value("x")], [value("y"), value("z")]))
    plan = tmp_path / "p.dnnp"
    plan.write_bytes(planned(model, tmp_path, [[0, 1], [2, 3]]))
    feeds = {"x": np.zeros(4, np.float32)}
    ran = tmp_path / "o.npz"
    done = dnnp("run", "-q", "-n", "1", "--warmup", "0", "--save-outputs", ran, plan)
    assert done.status == 0, done.err
    drawn = np.load(ran)
    parts = {name: value for name, value in drawn.items() if name.split("/")[-1] in "yz"}
    assert len({v.tobytes() for v in parts.values()}) == len(parts) > 1
    package.export(package.load(plan), tmp_path / "out")
    found = [package.load_stages(tmp_path / "out").run(feeds) for _ in range(2)]
    assert len({v.tobytes() for one in found for v in one.values()}) == 4


def test_loaded_stages_heed_the_seed_of_onnx_runtime(tmp_path: Path) -> None:
    plan = tmp_path / "p.dnnp"
    plan.write_bytes(planned(chain(draw()), tmp_path, 2))
    package.export(package.load(plan), tmp_path / "out")
    found = []
    for seed in (5, 6, 5):
        onnxruntime.set_seed(seed)
        stages = package.load_stages(tmp_path / "out")
        found.append(stages.run({"x": np.zeros(4, np.float32)})["y"].tolist())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("kind", MODELS)
def test_one_sample_verifies_nothing(kind: str, tmp_path: Path) -> None:
    """A new session may draw what the stages drew."""
    plan = planned(MODELS[kind](), tmp_path, 2)
    done = dnnp("run", "--verify", "--warmup", "0", "-n", "1", stdin=plan)
    assert done.status == 6, done.err
    assert "cannot be verified: the whole model draws other numbers each time (" in done.err
    (ran,) = (json.loads(line) for line in done.out.splitlines() if b'"type":"run"' in line)
    assert ran["verified"] is False


def test_files_verify_nothing_either(tmp_path: Path) -> None:
    plan = tmp_path / "p.dnnp"
    plan.write_bytes(planned(chain(draw()), tmp_path, 2))
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in/0.npz", x=np.zeros(4, np.float32))
    words = ["--inputs", tmp_path / "in", "--outputs", tmp_path / "o", "--warmup", "0"]
    done = dnnp("run", "--verify", *words, plan)
    assert done.status == 6, done.err
    assert "cannot be verified" in done.err


def test_draws_that_do_not_matter_verify(tmp_path: Path) -> None:
    nodes = [
        draw(),
        node("Mul", ["r", "x"], ["n"]),
        node("Mul", ["n", "zero"], ["m"]),
        node("Add", ["x", "m"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    stored = [array("zero", [0.0])]
    model = make(graph(nodes, "silent", [value("x")], [value("y")], stored))
    done = dnnp("run", "--verify", "-n", "3", stdin=planned(model, tmp_path, 2))
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("nodes", "stored", "found"),
    [
        ([node("Dropout", ["x"], ["y"])], [], []),
        ([node("Dropout", ["x", "half", "no"], ["y"])], [NO], []),
        ([node("Dropout", ["x", "half", "yes"], ["y"])], [TRUE], ["Dropout 'y'"]),
        ([node("Dropout", ["x", "half", "t"], ["y"])], [], ["Dropout 'y'"]),
        (
            [
                node("Constant", [], ["c"], value=array("", False, bool)),
                node("Dropout", ["x", "half", "c"], ["y"]),
            ],
            [],
            [],
        ),
        (
            [
                node("Constant", [], ["c"], value=array("", True, bool)),
                node("Dropout", ["x", "half", "c"], ["y"], name="d"),
            ],
            [],
            ["Dropout 'd'"],
        ),
        ([draw()], [], ["RandomUniform 'rnd'"]),
    ],
)
def test_nodes_that_draw(nodes: list, stored: list, found: list[str]) -> None:
    model = make(graph(nodes, "m", [value("x")], [value("y")], stored))
    assert named(drawing_nodes(model)) == found


def test_only_seeds_of_replicas_change() -> None:
    config = SessionConfig()
    stored = [array("half", 0.5), TRUE]
    drop = node("Dropout", ["x", "half", "yes"], ["r"], seed=3)
    for model in (chain(draw(seed=3.0)), chain(drop, stored=stored)):
        assert seeded(config, model, 7)[1] is model
        made = [seeded(config, model, 7 + j, j) for j in range(1, 4096)]
        seeds = {a.f or a.i for _, m in made for a in m.graph.node[0].attribute if a.name == "seed"}
        assert len(seeds) == len({own.seed for own, _ in made}) == 4095
        assert 3 not in seeds
    plain = chain(draw())
    assert seeded(config, plain, 1, 1)[1] is plain
    model = make(graph([node("Relu", ["x"], ["y"])], "m", [value("x")], [value("y")]))
    assert seeded(config, model, 1, 1) == (config, model)


def test_other_models_leave_the_seed_of_the_process_alone(tmp_path: Path) -> None:
    drawing = chain(draw()).SerializeToString()
    model = make(graph([node("Relu", ["x"], ["y"])], "m", [value("x")], [value("y")]))

    def drawn() -> list[float]:
        session = onnxruntime.InferenceSession(drawing, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": np.zeros(4, np.float32)})[0].tolist()

    onnxruntime.set_seed(11)
    before = drawn()
    assert dnnp("run", "-q", "-n", "2", stdin=planned(model, tmp_path, 1)).status == 0
    assert drawn() == before
