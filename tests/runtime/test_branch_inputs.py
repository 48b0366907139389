"""Inputs that choose a branch: a run that fails on a value drawn for one says how to give it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnp.core.runtime.model.inputs import branch_inputs, random_inputs
from support.run import Result, dnnp
from support.split_models import graph, make, node, value

I64, BOOL = TensorProto.INT64, TensorProto.BOOL
ADVICE = "drawn at random: dnnp-import --set-input rate=VALUE"


def branches(condition: str) -> onnx.NodeProto:
    """An If whose first branch runs; the second takes 4 values for 7."""
    good = graph([node("Relu", ["h"], ["z"])], "good", [], [value("z", None)])
    bad = graph([node("Reshape", ["h", "seven"], ["z"])], "bad", [], [value("z", None)])
    return node("If", [condition], ["y"], then_branch=good, else_branch=bad)


def nested(condition: str) -> onnx.NodeProto:
    """The same in a branch of another If, on a weight."""
    inner = branches(condition)
    inner.output[0] = "inner"
    both = [graph([inner], name, [], [value("inner", None)]) for name in ("a", "b")]
    return node("If", ["true"], ["y"], then_branch=both[0], else_branch=both[1])


def model_of(nodes: list, kind: int = I64, **extra: object) -> onnx.ModelProto:
    values = {"seven": [7], "wanted": 16000, "true": True, "zero": 0}
    stored = [numpy_helper.from_array(np.array(v), name) for name, v in values.items()]
    inputs = [value("x", [4]), value("rate", [], kind)]
    return make(graph([node("Neg", ["x"], ["h"]), *nodes], "m", inputs, [value("y", [4])], stored),
                **extra)  # fmt: skip


def planned(imported: bytes) -> Result:
    """A plan of two stages."""
    priced = dnnp("profile", stdin=imported)
    return dnnp("partition", "-k", "2", "--method", "uniform", stdin=priced.out)


EQUAL = node("Equal", ["rate", "wanted"], ["same"])


@pytest.mark.parametrize("last", [branches, nested])
@pytest.mark.parametrize("more", [[], ["--workers", "process"]])
def test_a_run_names_the_input(tmp_path: Path, last, more: list[str]) -> None:
    path = tmp_path / "rates.onnx"
    onnx.save(model_of([EQUAL, last("same")]), path)
    made = dnnp("import", path)
    plan = planned(made.out)
    ran = dnnp("run", *more, stdin=plan.out)
    assert ran.status == 1
    assert ADVICE in ran.err.splitlines()[-1]
    right = dnnp("import", "--set-input", "rate=16000", path)
    plan = planned(right.out)
    assert dnnp("run", "--verify", "-n", "3", *more, stdin=plan.out).status == 0


def test_measuring_and_importing_name_it(tmp_path: Path) -> None:
    path = tmp_path / "rates.onnx"
    onnx.save(model_of([EQUAL, branches("same")]), path)
    made = dnnp("import", path)
    assert made.status == 0
    measured = dnnp("profile", "--mode", "measure", stdin=made.out)
    assert measured.status == 1
    assert ADVICE in measured.err
    del (model := onnx.load(path)).graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    ran = dnnp("import", "--shapes", "run", path)
    assert ran.status == 1
    assert ADVICE in ran.err
    tried = dnnp("import", path)
    assert tried.status == 0
    assert ADVICE in tried.err


def test_what_is_given_is_not_called_random(tmp_path: Path) -> None:
    path, data = tmp_path / "rates.onnx", tmp_path / "data.npz"
    onnx.save(model_of([EQUAL, branches("same")]), path)
    np.savez(data, x=np.ones(4, np.float32), rate=np.array(8000))
    plan = planned(dnnp("import", path).out)
    ran = dnnp("run", "--inputs", data, stdin=plan.out)
    assert ran.status == 1
    assert str(data) in ran.err
    assert "drawn" not in ran.err


def test_only_values_of_single_elements_count() -> None:
    single = ["rate"]
    shape = [node("Shape", ["rate"], ["r"]), node("ReduceSum", ["r"], ["n"], keepdims=0),
             node("Equal", ["n", "zero"], ["same"]), branches("same")]  # fmt: skip
    assert branch_inputs(model_of(shape), single) == []
    direct = model_of([branches("rate")], BOOL)
    assert random_inputs(direct, 0).switches == ["rate"]
    summed = [node("ReduceSum", ["x"], ["n"], keepdims=0), node("Cast", ["n"], ["c"], to=BOOL)]
    assert random_inputs(model_of([*summed, branches("c")]), 0).switches == []
    assert random_inputs(model_of([node("Relu", ["h"], ["y"])]), 0).switches == []


def test_functions_and_loops_are_followed() -> None:
    inside = [node("Equal", ["f_rate", "f_to"], ["same"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "Same", ["f_rate", "f_to"], ["same"], inside, opsets)
    call = helper.make_node("Same", ["rate", "wanted"], ["same"], domain="local")
    model = model_of([call, branches("same")])
    model.functions.append(function)
    assert branch_inputs(model, ["rate"]) == ["rate"]
    whole = helper.make_function(
        "local", "Same", ["h", "c", "seven"], ["y"], [branches("c")], opsets
    )
    held = helper.make_node("Same", ["h", "rate", "seven"], ["y"], domain="local")
    model = model_of([held], BOOL)
    model.functions.append(whole)
    assert branch_inputs(model, ["rate"]) == ["rate"]
    body = graph(
        [node("Identity", ["go"], ["on"]), node("Equal", ["r", "wanted"], ["c"]), branches("c")],
        "body", [value("i", [], I64), value("go", [], BOOL), value("r", [], I64)],
        [value("on", [], BOOL), value("r", [], I64), value("y", None)],
    )  # fmt: skip
    loop = node("Loop", ["zero", "true", "rate"], ["r2", "ys"], body=body)
    assert branch_inputs(model_of([loop, node("Relu", ["h"], ["y"])]), ["rate"]) == ["rate"]
