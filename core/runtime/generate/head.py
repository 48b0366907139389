"""The last position alone before the head of a model: nothing else of its logits is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

_AFTER = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Tanh"})
"""Operators on single logits that may follow the head."""

_HEADS = frozenset({"MatMul", "MatMulNBits"})

LAST = "dnnp.last"
"""Name of the index that is gathered, and beginning of the name of what is."""


def keep_last(model: ModelProto, logits: str) -> bool:
    """Gather the last position before the product that makes the logits, f[rows, seq, words].

    The model is changed; false: it is not, as there is no such product.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    output = next((value for value in graph.output if value.name == logits), None)
    if output is None or len(output.type.tensor_type.shape.dim) != 3:
        return False
    made = {name: i for i, node in enumerate(graph.node) for name in node.output}
    readers = [name for node in graph.node for name in node.input]
    passed, name = [logits], logits
    while name in made and graph.node[made[name]].op_type in _AFTER:
        name = next((x for x in graph.node[made[name]].input if x in made), "")
        passed.append(name)
    if name not in made or graph.node[made[name]].op_type not in _HEADS:
        return False
    if any(readers.count(each) > 1 for each in passed):
        return False
    head = graph.node[made[name]]
    last = f"{LAST}.{head.input[0]}"
    gather = helper.make_node("Gather", [head.input[0], LAST], [last], name=LAST, axis=1)
    head.input[0] = last
    graph.initializer.append(helper.make_tensor(LAST, TensorProto.INT64, [1], [-1]))
    graph.node.insert(made[name], gather)
    for value in [v for v in graph.value_info if v.name in passed]:
        graph.value_info.remove(value)
    output.type.tensor_type.shape.dim[1].dim_value = 1
    return True
