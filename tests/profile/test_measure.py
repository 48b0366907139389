"""Timing models on ONNX Runtime, mapped back to the nodes they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.runtime import measure_operators as measure
from dnnp.core.runtime.measure_operators import Measurement, measure_groups, measure_nodes
from dnnp.formats.inputs import cost_files
from support.split_models import MODELS, array, make, value

FLOAT = TensorProto.FLOAT
QUICK = Measurement(repeats=3, warmup=1)
N = 192
node = helper.make_node


def matrix(name: str, n: int = N) -> TensorProto:
    return array(name, np.full((n, n), 1.0 / n))


def model(nodes: list[onnx.NodeProto], output: str, **extra: object) -> onnx.ModelProto:
    """A model with input x [N, N], weight w [N, N], and one output."""
    body = helper.make_graph(nodes, "g", [value("x", [N, N])], [value(output, None)], [matrix("w")])
    return make(body, ir=10, opset=21, **extra)  # type: ignore[arg-type]


def test_duplicate_and_empty_names_map_back(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="same"),
        node("ReduceSum", ["a"], ["b"], name="same", keepdims=0),
        node("Neg", ["b"], ["c"]),
        node("MatMul", ["a", "w"], ["d"], name=""),
        node("Add", ["d", "c"], ["y"], name="same"),
    ]
    built = model(nodes, "y")
    before = built.SerializeToString()
    times = measure_nodes(built, tmp_path, QUICK)
    assert built.SerializeToString() == before
    # Two products of 14 million operations; the negation of one number is next to nothing.
    assert len(times) == 5
    assert min(times[0], times[3]) > 5 * times[2] >= 0
    assert min(times[0], times[3]) > 2e-5


def test_what_the_profiler_adds_is_taken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every event of a node, and of those in its body; a tenth of a time remains at least."""
    told = measure.node_events

    def known(rows: list, path: str) -> tuple:
        events, runs = told(rows, path)
        for event in events:
            event.length = 100.0 if event.holds else 7.0
        return events, runs

    monkeypatch.setattr(measure, "node_events", known)
    body = [node("Neg", ["x"], ["p"]), node("Neg", ["p"], ["then"])]
    other = [node("Abs", ["x"], ["else"])]
    branches = {
        "then_branch": helper.make_graph(body, "then", [], [value("then", None)]),
        "else_branch": helper.make_graph(other, "else", [], [value("else", None)]),
    }
    nodes = [node("Neg", ["x"], ["a"]), node("If", ["yes"], ["b"], **branches)]
    nodes += [node("Add", ["a", "b"], ["y"])]
    body = helper.make_graph(
        nodes, "g", [value("x", [N, N])], [value("y", None)], [array("yes", True, bool)]
    )
    built = make(body)
    for charge, lone, held in (((0, 0), 7, 100), ((5, 2), 2, 100 - 15 - 4), ((9, 2), 0.7, 69)):
        monkeypatch.setattr(measure, "profiler_charge", lambda c=charge: measure.Charge(*c))
        found = measure_nodes(built, tmp_path, QUICK)
        assert [t * 1e6 for t in found] == pytest.approx([lone, held, lone])
    monkeypatch.setattr(measure, "profiler_charge", lambda: measure.Charge(5, 2))
    found = measure_groups(
        make(
            helper.make_graph(
                [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Tanh", ["b"], ["y"])],
                "g",
                [value("x", [N, N])],
                [value("y", [N, N])],
            )
        ),
        tmp_path,
        [[0, 1], [2]],
        QUICK,
    )
    assert [t * 1e6 for t in found] == pytest.approx([4, 2])


def test_what_the_profiler_adds_is_measured() -> None:
    within, between = measure.profiler_charge()
    assert within > 0
    assert between > 0


def test_bodies_belong_to_the_node_that_holds_them(tmp_path: Path) -> None:
    heavy = [node("MatMul", ["x", "w"], ["p"], name="n0")]
    heavy += [node("MatMul", ["p", "w"], ["then"], name="n0")]
    branches = {
        "then_branch": helper.make_graph(heavy, "then", [], [value("then", None)]),
        "else_branch": helper.make_graph(
            [node("Neg", ["x"], ["else"])], "else", [], [value("else", None)]
        ),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("IsNaN", ["a"], ["nans"]),
        node("Cast", ["nans"], ["ones"], to=FLOAT),
        node("ReduceMax", ["ones"], ["most"], keepdims=0),
        node("Cast", ["most"], ["any"], to=TensorProto.BOOL),
        node("Not", ["any"], ["fine"]),
        node("If", ["fine"], ["y"], **branches),
    ]
    times = measure_nodes(model(nodes, "y"), tmp_path, Measurement(repeats=7, warmup=2))
    # The branch does twice what the first node does; nothing of it may count for that node.
    assert times[6] > 1.3 * times[0]
    assert times[6] < 5 * times[0]


def test_functions_and_expanded_operators_belong_to_their_call(tmp_path: Path) -> None:
    """Names that ONNX Runtime makes up while inlining lead back to the calling node."""
    inner = helper.make_function(
        "local",
        "Inner",
        ["a", "w"],
        ["b"],
        [node("MatMul", ["a", "w"], ["t"], name="m"), node("Celu", ["t"], ["b"], name="m")],
        [helper.make_opsetid("", 21)],
    )
    outer = helper.make_function(
        "local",
        "Outer",
        ["a", "w"],
        ["b"],
        [
            node("Inner", ["a", "w"], ["c"], domain="local"),
            node("Inner", ["c", "w"], ["b"], domain="local"),
        ],
        [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)],
    )
    nodes = [
        node("Outer", ["x", "w"], ["o"], domain="local"),
        node("ReduceSum", ["o"], ["s"], keepdims=0),
        node("Outer", ["o", "w"], ["p"], domain="local"),
        node("Unsqueeze", ["p", "axes"], ["q"]),
        node("GroupNormalization", ["q", "scale", "shift"], ["y"], num_groups=2),
    ]
    built = model(nodes, "y", functions=[inner, outer])
    built.graph.initializer.extend(
        [array("axes", [0], np.int64), array("scale", [1.0] * N), array("shift", [0.0] * N)]
    )
    times = measure_nodes(built, tmp_path, QUICK)
    assert min(times[0], times[2]) > 5 * times[3]
    assert times[4] > times[3]
    assert max(times[0], times[2]) < 10 * min(times[0], times[2])


def test_inserted_casts_belong_to_the_node_they_serve(tmp_path: Path) -> None:
    half = np.full((64, 64), 0.01, dtype=np.float16)
    body = helper.make_graph(
        [node("MatMul", ["x", "w"], ["a"]), node("Neg", ["a"], ["b"]), node("Exp", ["b"], ["y"])],
        "g",
        [value("x", [64, 64], TensorProto.FLOAT16)],
        [value("y", [64, 64], TensorProto.FLOAT16)],
        [numpy_helper.from_array(half, "w")],
    )
    times = measure_nodes(make(body, ir=8, opset=17), tmp_path, QUICK)
    assert all(t > 0 for t in times)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_feature_can_be_timed(tmp_path: Path, name: str) -> None:
    built = MODELS[name]()
    times = measure_nodes(built, tmp_path, Measurement(repeats=2, warmup=0))
    assert len(times) == len(built.graph.node)
    assert all(np.isfinite(times))
    assert sum(times) > 0


def test_groups_are_timed_as_units_on_real_values(tmp_path: Path) -> None:
    # The indices that group 1 gathers with come from group 0; random ones would be out of range.
    nodes = [
        node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        node("Gather", ["w", "i"], ["a"], axis=0),
        node("MatMul", ["a", "w"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w"], ["d"]),
        node("Add", ["d", "a"], ["y"]),
    ]
    done: list[int] = []
    times = measure_groups(
        model(nodes, "y"), tmp_path, [[4, 5], [0], [1], [2, 3]], QUICK, progress=done.append
    )
    assert done == [1, 2, 3, 4]
    assert min(times[0], times[3]) > times[1] * 0.5
    assert all(t > 0 for t in times)


def test_groups_in_a_circle_are_refused(tmp_path: Path) -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    with pytest.raises(FormatError, match="circle"):
        measure_groups(model(nodes, "y"), tmp_path, [[0, 2], [1]], QUICK)


def test_absent_weights_are_named(tmp_path: Path) -> None:
    built = model([node("MatMul", ["x", "w"], ["y"])], "y")
    weight = built.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="gone.bin")
    with pytest.raises(InputFileError, match=r"gone\.bin: no such file.*'w'"):
        measure_nodes(built, tmp_path, QUICK)


def test_model_that_cannot_run(tmp_path: Path) -> None:
    built = model([node("Frobnicate", ["x", "w"], ["y"])], "y")
    with pytest.raises(InputFileError, match="cannot load"):
        measure_nodes(built, tmp_path, QUICK)


def test_shared_model(shared_models: Path) -> None:
    built = onnx.load(shared_models / "gnmt8.onnx", load_external_data=False)
    times = measure_nodes(built, shared_models, Measurement(repeats=3, warmup=1))
    lstm = [t for t, n in zip(times, built.graph.node, strict=True) if n.op_type == "LSTM"]
    assert len(lstm) > 1
    assert min(lstm) > 0.0
    constants = [t for t, n in zip(times, built.graph.node, strict=True) if n.op_type == "Constant"]
    assert set(constants) == {0.0}


def test_runs_that_others_disturb_are_repeated_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nine runs at most, the three that lost least count."""
    built = model([node("MatMul", ["x", "w"], ["y"])], "y")
    lost = {3: (0.0, 0.01, 0.02), 5: (0.5, 0.0, 0.6, 0.01, 0.02), 9: (0.4,) * 6 + (0.1, 0.2, 0.3)}
    for runs, shares in lost.items():
        left, told, kept = iter(shares), [], []
        real = measure._sums
        monkeypatch.setattr(measure, "_timed", lambda call, _, left=left: (call(), next(left)))
        monkeypatch.setattr(measure, "PATIENCE_S", 1e9)

        def spent_by(events, begun, charge):
            spent, seen = cost_files.spent_by(events, begun, charge)
            for one in spent.values():
                one.times[:] = np.arange(len(seen))
            return spent, seen

        def sums(spent, owners, count, real=real, kept=kept):
            kept += [sorted(one.times.tolist()) for one in spent.values()]
            return real(spent, owners, count)

        monkeypatch.setattr(measure, "profiler_charge", lambda: measure.Charge())
        monkeypatch.setattr(measure, "spent_by", spent_by)
        monkeypatch.setattr(measure, "_sums", sums)
        how = Measurement(repeats=3, warmup=1, taken=told.append)
        (time_s,) = measure_nodes(built, tmp_path, how)
        monkeypatch.setattr(measure, "_sums", real)
        assert time_s > 0
        best = sorted(sorted(range(runs), key=lambda i, shares=shares: shares[i])[:3])
        assert kept == [[1 + i for i in best]]
        assert told == [pytest.approx(np.mean([shares[i] for i in best]))]


def test_a_profile_may_end_before_the_runs_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profiler stops after a million events: the runs that it saw must do."""
    for seen in (1, 2, 5):

        def cut(rows: list, path: str, seen: int = seen) -> tuple:
            events, runs = cost_files.node_events(rows, path)
            return events[:seen], runs[:seen]

        monkeypatch.setattr(measure, "node_events", cut)
        built = model([node("MatMul", ["x", "w"], ["y"])], "y")
        (time_s,) = measure_nodes(built, tmp_path, Measurement(repeats=3, warmup=3))
        assert time_s > 0


def test_repeating_has_an_end() -> None:
    assert measure._is_wanted([0.5], 3, 1e9)
    assert not measure._is_wanted([0.5] * 3, 3, measure.PATIENCE_S)
    assert measure._is_wanted([0.5] * 3, 3, 0.0)
    assert not measure._is_wanted([0.5] * 9, 3, 0.0)
    assert not measure._is_wanted([0.0] * 3, 3, 0.0)
