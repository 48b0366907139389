"""What records of a graph hold: devices, links, tensors, nodes and groups."""

from __future__ import annotations

from dnnp.formats.fields import HEX, TIMES, Field, ids, number, string, unique_id

MEASURED = Field(
    "object",
    "how times were measured, those in base_s where there are any; absent: they were not",
    fields={
        "provider": string("execution provider of ONNX Runtime", required=True),
        "provider_options": Field(
            "list", "its options, NAME=VALUE; absent: none", items=Field("string", "")
        ),
        "fallback": Field(
            "list",
            "nodes that the provider left to the CPU, those that compute shapes apart",
            items=Field("string", ""),
        ),
        "threads": Field("int", "threads of a stage", required=True, positive=True),
        "optimization": string("optimization level", required=True),
        "beside": Field(
            "int", "parts of the model that ran beside each, on cores of their own", required=True
        ),
        "rounds": Field("int", "how often, each time several runs", required=True, positive=True),
        "total_s": number("sum of the parts, with warm caches", required=True),
        "cold_s": number("sum of the parts, with cold caches", required=True),
        "spread": number(
            "half the width of the confidence interval (95 %) of total_s, relative to it; absent: "
            "too few rounds"
        ),
        "taken": number(
            "share of the time that other processes took, of all parts together; absent: not known"
        ),
        "disturbed": Field(
            "bool", "other processes took enough from some measurement to make times too long"
        ),
    },
)

SPREAD = number(
    "half the width of the confidence interval (95 %) over the time, of the part of the model that "
    "was timed"
)

DEVICE = {
    "class": string("device class; the key of time_s", required=True),
    "kind": string("cpu: compute only, no capacity", required=True, enum=("accelerator", "cpu")),
    "name": string("what it is, in words"),
    "count": Field("int", "number of devices; absent: decided by -k"),
    "fitted": Field(
        "bool",
        "priced by rates fitted to operators that ran there; absent: by others, or otherwise",
    ),
    "memory_bytes": number("capacity of one device"),
    "fast_memory_bytes": number("on-chip memory of one device, the capacity with --memory fast"),
    "bandwidth_bytes_per_s": number("bandwidth of one device's link", positive=True),
    "cluster_size": Field(
        "int", "devices with equal number / cluster_size, rounded down, form a cluster; 0: none"
    ),
    "inner_bandwidth_bytes_per_s": number(
        "bandwidth of a link inside a cluster; needed where there are clusters", positive=True
    ),
    "larger_clusters": Field(
        "list",
        "clusters of clusters, growing; each size is a multiple of the one before",
        items=Field(
            "object",
            "",
            fields={
                "cluster_size": Field(
                    "int", "devices with equal number / cluster_size", required=True, positive=True
                ),
                "bandwidth_bytes_per_s": number(
                    "bandwidth of a link between smaller clusters in it",
                    required=True,
                    positive=True,
                ),
            },
        ),
    ),
}

LINK = {
    "from": string("device, v100/0, or a class for all its devices", required=True),
    "to": string("device, or class, at the other end", required=True),
    "bandwidth_bytes_per_s": number("bandwidth", required=True, positive=True),
    "back_bandwidth_bytes_per_s": number(
        "bandwidth of the other direction; absent: the same", positive=True
    ),
    "latency_s": number("time that each transfer takes on top; absent: 0"),
}

TENSOR_SHARD = {
    "devices": Field("int", "how many devices hold the stage", required=True, positive=True),
    "in_bytes": number("what each of them moves when it enters the stage; absent: 0"),
    "out_bytes": number("what each of them moves before it leaves the stage; absent: 0"),
}

TENSOR = {
    "id": unique_id("unique among tensors"),
    "name": string("name in the source; need not be unique", required=True),
    "kind": string(
        "where it comes from",
        required=True,
        enum=("input", "activation", "parameter", "constant"),
    ),
    "size_bytes": number("size", required=True),
    "dtype": string("element type, or sequence, optional, map"),
    "shape": Field("list", "dimensions, when known", items=Field("int", "")),
    "transfer_s": number("time to move it once; replaces size over bandwidth"),
    "output": Field("bool", "an output of the model"),
    "shards": Field(
        "list",
        "what moves besides where a stage on several devices at once makes or reads it",
        items=Field("object", "", fields=TENSOR_SHARD),
    ),
}

BASE = Field(
    "map",
    "time_s before factors that were learned from runs; absent: there are none",
    items=Field("number", ""),
)

AXES = Field("int", "", signed=True)
LAYOUT = {
    "inputs": Field(
        "list",
        "of each input the axis along which it is cut into a part for each device, in order; -1: "
        "each has all of it",
        required=True,
        items=AXES,
    ),
    "outputs": Field("list", "the same of each output", required=True, items=AXES),
    "input_blocks": Field(
        "list",
        "of each input into how many equal parts the axis is taken apart, of each of which a "
        "device has its part; absent: 1 each",
        items=Field("int", "", positive=True),
    ),
    "output_blocks": Field(
        "list", "the same of each output", items=Field("int", "", positive=True)
    ),
    "reduced": Field("bool", "the outputs are added up over the devices; absent: no"),
}

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""What devices that hold one stage together do with a tensor that is split among them."""

NODE_SHARD = {
    "devices": Field("int", "how many devices run the node at once", required=True, positive=True),
    "time_s": TIMES,
    "memory_bytes": number("its memory on each of them, held_bytes included"),
    "held_bytes": number("the part of that which each micro-batch under way holds; absent: 0"),
    "weight_bytes": number("weights on each of them, which replicas synchronise; absent: 0"),
    "collectives": Field(
        "list",
        "what they exchange when it has run, or before",
        items=Field(
            "object",
            "",
            fields={
                "kind": string("what it is", required=True, enum=COLLECTIVES),
                "bytes": number("size of the whole tensor", required=True),
            },
        ),
    ),
    "layout": Field(
        "object",
        "what each device takes of its tensors, for dnnp-run and dnnp-export; absent: unknown",
        fields=LAYOUT,
    ),
    "recomputed": Field(
        "object",
        "the same where its backward pass repeats its forward pass; absent: it follows from the "
        "graph",
        fields={
            "time_s": TIMES,
            "memory_bytes": number("memory on each device", required=True),
            "held_bytes": number("the part that each micro-batch holds; absent: 0"),
        },
    ),
}

NODE = {
    "id": unique_id("unique among nodes; the index in the ONNX graph"),
    "name": string("name in the source; need not be unique", required=True),
    "op": string("operator type", required=True),
    "domain": string("operator domain, when not the default one"),
    "inputs": ids("tensors read, captures of subgraph bodies included"),
    "outputs": ids("tensors written"),
    "captures": ids("inputs that only subgraph bodies read", required=False),
    "flop": number("floating point operations"),
    "bytes": number("bytes moved to and from memory"),
    "time_s": TIMES,
    "spread": SPREAD,
    "base_s": BASE,
    "memory_bytes": number("memory of the node, where the source gives it"),
    "held_bytes": number(
        "the part of it that each micro-batch holds from its forward to its backward pass; "
        "absent: 0"
    ),
    "shards": Field(
        "list",
        "the node on several devices at once, each with a part of it; 1: on one device",
        items=Field("object", "", fields=NODE_SHARD),
    ),
    "backward": Field("bool", "belongs to the backward pass"),
    "of": Field("id", "backward: the node whose gradient it computes"),
    "color": Field("id", "nodes of one colour share a device"),
    "layer": string("layer in the source"),
    "scope": string("name scope in the source"),
}

GROUP = {
    "id": unique_id("unique among groups"),
    "name": string("what the group is", required=True),
    "nodes": ids("members in topological order"),
    "rule": string("rule that made it"),
    "time_s": TIMES,
    "spread": SPREAD,
    "base_s": BASE,
    "cost": string(
        "where time_s comes from; absent: from the group itself",
        enum=("summed", "analytic", "measured", "scaled", "calibrated"),
    ),
    "basis": Field(
        "string",
        "digest of the times of its nodes when it was priced as a unit; absent: unknown",
        pattern=HEX,
    ),
    "flop": number("floating point operations"),
    "bytes": number("bytes moved to and from memory"),
}
