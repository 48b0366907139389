"""Memory of tensors on a class whose stages ONNX Runtime runs on a CPU.

Facts of version 1.32 on x86-64, read off sessions (`tests/tools/memory_factors.py` measures them
again, `tests/profile/test_residence.py` compares the table with the installed version):

- A node that reads constants alone runs once, when a session is made, and what it makes is kept;
  what it read is dropped where no other node reads it. The rules `ort-cpu` name the exceptions.
- An Identity of a constant is taken out: what it makes is the constant itself.
- An operator without a kernel for float16 runs in float32: Casts are put around it, and those of
  constants are folded. So what it reads or makes takes twice its bytes; a constant that others read
  in float16 is kept as it is besides.
- All else takes the bytes that it has in the file: blocked layouts of convolutions and prepacked
  matrices replace it. Up to 7 % more are left out: of transposed and quantised convolutions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dnnp.core.model.text import operator_name

FLOAT16 = frozenset({
    "Attention", "BitCast", "Cast", "Clip", "Compress", "Concat", "ConstantOfShape",
    "DequantizeLinear", "DynamicSlice", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "If", "IsInf", "IsNaN", "LayerNormalization", "Loop", "Max", "Min",
    "Mod", "Optional", "OptionalGetElement", "OptionalHasElement", "QuantizeLinear",
    "RMSNormalization", "RandomNormalLike", "RandomUniformLike", "Reshape", "ReverseSequence",
    "RotaryEmbedding", "Round", "Scan", "ScatterElements", "ScatterND", "SequenceAt",
    "SequenceConstruct", "Shape", "Shrink", "Sign", "SimplifiedLayerNormalization", "Slice",
    "Split", "SplitToSequence", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze",
    "com.microsoft:BranchwiseRMSNorm", "com.microsoft:EngramGate", "com.microsoft:ExpandDims",
    "com.microsoft:GatedAdd", "com.microsoft:GatedDeltaNet", "com.microsoft:GatedRMSNorm",
    "com.microsoft:GatherBlockQuantized", "com.microsoft:GatherND", "com.microsoft:GatherPacked",
    "com.microsoft:GroupQueryAttention", "com.microsoft:HyperConnectionPostMix",
    "com.microsoft:HyperConnectionPreMix", "com.microsoft:Inverse",
    "com.microsoft:LinearAttentionGate", "com.microsoft:MRotaryEmbedding",
    "com.microsoft:MatMulNBits", "com.microsoft:MoEGroupRouter", "com.microsoft:QMoE",
    "com.microsoft:RotaryEmbedding", "com.microsoft:ScaledSiLU",
    "com.microsoft:SkipLayerNormalization", "com.microsoft:SkipSimplifiedLayerNormalization",
    "com.microsoft:SparseAttention", "com.microsoft:UnfoldTensor",
    "com.microsoft:VarlenCausalConvWithState",
})  # fmt: skip
"""Operators with a kernel for float16, those of ONNX at operator set 26."""


def folded_nodes(
    nodes: Sequence[Mapping[str, Any]],
    tensors: Sequence[Mapping[str, Any]],
    excluded: Collection[str],
) -> tuple[set[int], set[int]]:
    """Ids of the nodes that run once, when a session is made; and of tensors that take no memory.

    These are Identities of constants that one node reads, with which their Identity stays in a
    stage. `excluded`: operators that are never folded. Nodes may stand in any order.
    """
    uses = Counter(t for n in nodes for t in n["inputs"])
    uses.update(t["id"] for t in tensors if t.get("dtype") == "float16")  # these may be cast
    renamed: set[int] = set()
    known = {t["id"] for t in tensors if t["kind"] in ("parameter", "constant")}
    found: set[int] = set()
    left = [n for n in nodes if n["inputs"] and n["op"] not in excluded]
    while True:
        more = [n for n in left if known.issuperset(n["inputs"])]
        if not more:
            break
        for node in more:
            known.update(node["outputs"])
            if node["op"] == "Identity" and uses[node["outputs"][0]] == 1:
                renamed.update(node["outputs"])
            else:
                found.add(node["id"])
        left = [n for n in left if not known.issuperset(n["outputs"])]
    for node in reversed(nodes):
        # What a folded node reads is folded: it is no constant else.
        if node["id"] in found and (again := renamed.intersection(node["inputs"])):
            renamed -= again
            found.update(n["id"] for n in nodes if again.intersection(n["outputs"]))
    return found, renamed


def resident_bytes(
    nodes: Sequence[Mapping[str, Any]],
    tensors: Sequence[Mapping[str, Any]],
    folded: Collection[int],
) -> dict[int, float]:
    """Bytes that float16 tensors take where these are not their size, by id."""
    half = {t["id"] for t in tensors if t.get("dtype") == "float16"}
    native: set[int] = set()
    widened: set[int] = set()
    made: set[int] = set()
    for node in nodes if half else ():
        if node["id"] in folded:
            continue
        runs = operator_name(node["op"], node.get("domain", "")) in FLOAT16
        made.update(node["outputs"])
        (native if runs else widened).update((*node["inputs"], *node["outputs"]))
    return {
        t["id"]: t["size_bytes"] * (3 if t["id"] in native and t["id"] not in made else 2)
        for t in tensors
        if t["id"] in half and t["id"] in widened
    }
