"""Operators that the installed ONNX Runtime has no kernel for on CPUs."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

from dnnp.core.runtime.model.kernels import RARE
from dnnp.core.runtime.model.providers import ort_errors
from dnnp.formats.onnx.import_model import NEWEST_OPSET, OLDEST_OPSET
from support.run import dnnp

REFUSALS = ("NOT_IMPLEMENTED", "not a registered function")


def lacks(model: onnx.ModelProto) -> bool:
    """Test whether a session of the model fails for want of a kernel."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    provider = ["CPUExecutionProvider"]
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=provider)
    except ort_errors() as error:
        return any(why in str(error) for why in REFUSALS)
    return False


def swish(version: int, element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, element, [1, 4]) for name in "xy"]
    nodes = [
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Swish", ["i"], ["m"], name="act"),
        helper.make_node("Swish", ["m"], ["y"], name="again"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)


def said(model: onnx.ModelProto, folder: Path) -> str:
    onnx.save(model, folder / "m.onnx")
    result = dnnp("import", folder / "m.onnx")
    return result.err if result.status == 0 else "refused"


@pytest.mark.parametrize("version", [24, 25, 26])
def test_planning_names_node_and_operator_set(version: int, tmp_path: Path) -> None:
    line = (
        f"ONNX Runtime {onnxruntime.__version__} has no kernel on CPUs for Swish of operator set "
        f"{version}: node 'act' and 1 more"
    )
    assert (line in said(swish(version), tmp_path)) == lacks(swish(version)) == (version > 24)


def test_types_without_kernels_are_named(tmp_path: Path) -> None:
    half = TensorProto.BFLOAT16
    ends = [helper.make_tensor_value_info(name, half, [4, 4]) for name in "xy"]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    sets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    assert "for MatMul of operator set 21 with bfloat16: node" in said(model, tmp_path)
    assert "Transpose" not in said(model, tmp_path)


@pytest.mark.parametrize("where", ["branch", "function"])
def test_bodies_and_functions_are_searched(where: str, tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    act = helper.make_node("Swish", ["x"], ["o"], name="act")
    sets = [helper.make_opsetid("", 25), helper.make_opsetid("local", 1)]
    made, functions = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4]), []
    if where == "branch":
        other = helper.make_node("Neg", ["x"], ["o"])
        bodies = [helper.make_graph([node], node.op_type, [], [made]) for node in (act, other)]
        node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    else:
        node = helper.make_node("Inner", ["x"], ["y"], domain="local")
        functions = [helper.make_function("local", "Inner", ["x"], ["o"], [act], sets[:1])]
    graph = helper.make_graph([node], "g", [ends[0], flag], ends[1:])
    model = helper.make_model(graph, opset_imports=sets, ir_version=10, functions=functions)
    assert lacks(model)
    assert "for Swish of operator set 25: node 'act'" in said(model, tmp_path)


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniformLike", "Multinomial", "GlobalLpPool"])
@pytest.mark.parametrize("version", [21, 22])
def test_kernels_that_end_with_an_operator_set(op: str, version: int, tmp_path: Path) -> None:
    shape = [1, 2, 3, 3] if op == "GlobalLpPool" else [1, 4]
    given = {"shape": shape} if op == "RandomNormal" else {}
    reads = [] if op == "RandomNormal" else ["x"]
    node = helper.make_node(op, reads, ["y"], name="rare", **given)
    kind = TensorProto.INT32 if op == "Multinomial" else TensorProto.FLOAT
    made = [1, 2, 1, 1] if op == "GlobalLpPool" else [1, 1] if op == "Multinomial" else shape
    ends = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", [ends], [helper.make_tensor_value_info("y", kind, made)])
    sets = [helper.make_opsetid("", version)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    assert ("has no kernel" in said(model, tmp_path)) == lacks(model) == (version > 21)


def cases() -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.model is not None]


def test_it_agrees_with_sessions(tmp_path: Path) -> None:
    """A fifth of the node tests of the package onnx, and all of rare operators."""
    wrong, without = [], 0
    for number, case in enumerate(cases()):
        ops = {node.op_type for node in case.model.graph.node}
        if number % 5 and not ops & RARE:
            continue
        version = next((e.version for e in case.model.opset_import if not e.domain), 1)
        text = said(case.model, tmp_path)
        if text == "refused" or not OLDEST_OPSET <= version <= NEWEST_OPSET:
            continue
        real = lacks(case.model)
        without += real
        if ("has no kernel" in text) != real:
            wrong.append((case.name, real))
    # A body of other types than the model declares is not looked into.
    assert [name for name, real in wrong if not real] == []
    assert len(wrong) <= 2, wrong
    assert without >= 15
