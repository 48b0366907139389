"""Fields of the records of a graph: devices, links, tensors, nodes and groups."""

from __future__ import annotations

from dnnp.formats.fields import (
    HEX,
    TIMES,
    Field,
    boolean,
    ids,
    integer,
    number,
    record,
    records,
    string,
    unique_id,
)

MEASURED = record(
    "how times were measured, those in base_s where there are any; absent: they were not",
    {
        "provider": string("execution provider of ONNX Runtime"),
        "provider_options": Field(
            "list", "its options, NAME=VALUE; absent: none", items=Field("string", "")
        ),
        "fallback": Field(
            "list",
            "nodes that the provider left to the CPU, those that compute shapes apart",
            items=Field("string", ""),
        ),
        "threads": integer("threads of a stage", positive=True),
        "optimization": string("optimization level"),
        "beside": integer("parts of the model that ran beside each, on cores of their own"),
        "rounds": integer("how often, each time several runs", positive=True),
        "total_s": number("sum of the parts, with warm caches"),
        "cold_s": number("sum of the parts, with cold caches"),
        "spread": number(
            "half the width of the confidence interval (95 %) of total_s, relative to it; absent: "
            "too few rounds",
            optional=True,
        ),
        "taken": number(
            "share of the time that other processes took, of all parts together; absent: not known",
            optional=True,
        ),
        "disturbed": boolean(
            "other processes took enough from some measurement to make times too long",
            optional=True,
        ),
    },
    optional=True,
)

SPREAD = number(
    "half the width of the confidence interval (95 %) over the time, of the part of the model "
    "that was timed",
    optional=True,
)

DEVICE = {
    "class": string("device class; the key of time_s"),
    "kind": string("cpu: compute only, no capacity", enum=("accelerator", "cpu")),
    "name": string("what it is, in words", optional=True),
    "count": integer("number of devices; absent: decided by -k", optional=True),
    "fitted": boolean(
        "priced by rates fitted to operators that ran there; absent: by others, or otherwise",
        optional=True,
    ),
    "memory_bytes": number("capacity of one device for its stages", optional=True),
    "overhead_bytes": number(
        "what a process takes there besides its stages, such as code of the provider, and not a "
        "part of memory_bytes; absent: 0",
        optional=True,
    ),
    "fast_memory_bytes": number(
        "on-chip memory of one device, the capacity with --memory fast", optional=True
    ),
    "bandwidth_bytes_per_s": number("bandwidth of one device's link", positive=True, optional=True),
    "cluster_size": integer(
        "devices with equal number / cluster_size, rounded down, form a cluster; 0: none",
        optional=True,
    ),
    "inner_bandwidth_bytes_per_s": number(
        "bandwidth of a link inside a cluster; needed where there are clusters",
        positive=True,
        optional=True,
    ),
    "larger_clusters": records(
        "clusters of clusters, growing; each size is a multiple of the one before",
        {
            "cluster_size": integer("devices with equal number / cluster_size", positive=True),
            "bandwidth_bytes_per_s": number(
                "bandwidth of a link between smaller clusters in it", positive=True
            ),
        },
        optional=True,
    ),
}

LINK = {
    "from": string("device, v100/0, or a class for all its devices"),
    "to": string("device, or class, at the other end"),
    "bandwidth_bytes_per_s": number("bandwidth", positive=True),
    "back_bandwidth_bytes_per_s": number(
        "bandwidth of the other direction; absent: the same", positive=True, optional=True
    ),
    "latency_s": number("time that each transfer takes on top; absent: 0", optional=True),
}

TENSOR_SHARD = {
    "devices": integer("how many devices hold the stage", positive=True),
    "in_bytes": number(
        "what each of them moves when it enters the stage; absent: 0", optional=True
    ),
    "out_bytes": number(
        "what each of them moves before it leaves the stage; absent: 0", optional=True
    ),
}

TENSOR = {
    "id": unique_id("unique among tensors"),
    "name": string("name in the source; need not be unique"),
    "kind": string("where it comes from", enum=("input", "activation", "parameter", "constant")),
    "size_bytes": number("size"),
    "memory_bytes": number(
        "what it takes in the memory of a device that holds it; absent: size_bytes", optional=True
    ),
    "dtype": string("element type, or sequence, optional, map", optional=True),
    "shape": Field("list", "dimensions, when known", items=integer("", optional=True)),
    "transfer_s": number("time to move it once; replaces size over bandwidth", optional=True),
    "output": boolean("an output of the model", optional=True),
    "size_unknown": boolean("no inference found the size, which is 0 here", optional=True),
    "shards": records(
        "what moves besides where a stage on several devices at once makes or reads it",
        TENSOR_SHARD,
        optional=True,
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
        items=integer("", positive=True, optional=True),
    ),
    "output_blocks": Field(
        "list", "the same of each output", items=integer("", positive=True, optional=True)
    ),
    "reduced": boolean("the outputs are added up over the devices; absent: no", optional=True),
}

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""What devices that hold one stage together do with a tensor that is split among them."""

NODE_SHARD = {
    "devices": integer("how many devices run the node at once", positive=True),
    "time_s": TIMES,
    "memory_bytes": number("its memory on each of them, held_bytes included", optional=True),
    "held_bytes": number(
        "the part of that which each micro-batch under way holds; absent: 0", optional=True
    ),
    "weight_bytes": number(
        "weights on each of them, which replicas synchronise; absent: 0", optional=True
    ),
    "collectives": records(
        "what they exchange when it has run, or before",
        {
            "kind": string("what it is", enum=COLLECTIVES),
            "bytes": number("size of the whole tensor"),
        },
        optional=True,
    ),
    "layout": record(
        "what each device takes of its tensors, for dnnp-run and dnnp-export; absent: unknown",
        LAYOUT,
        optional=True,
    ),
    "recomputed": record(
        "the same where its backward pass repeats its forward pass; absent: it follows from the "
        "graph",
        {
            "time_s": TIMES,
            "memory_bytes": number("memory on each device"),
            "held_bytes": number("the part that each micro-batch holds; absent: 0", optional=True),
        },
        optional=True,
    ),
}

NODE = {
    "id": unique_id("unique among nodes; the index in the ONNX graph"),
    "name": string("name in the source; need not be unique"),
    "op": string("operator type"),
    "domain": string("operator domain, when not the default one", optional=True),
    "inputs": ids("tensors read, captures of subgraph bodies included"),
    "outputs": ids("tensors written"),
    "captures": ids("inputs that only subgraph bodies read", optional=True),
    "flop": number("floating point operations; absent: unknown", optional=True),
    "bytes": number("bytes moved to and from memory", optional=True),
    "partial": boolean(
        "flop and bytes leave out operators of bodies, or all trips of a loop but one, that are "
        "unknown",
        optional=True,
    ),
    "time_s": TIMES,
    "spread": SPREAD,
    "base_s": BASE,
    "memory_bytes": number("memory of the node, where the source gives it", optional=True),
    "held_bytes": number(
        "the part of it that each micro-batch holds from its forward to its backward pass; "
        "absent: 0",
        optional=True,
    ),
    "shards": records(
        "the node on several devices at once, each with a part of it; 1: on one device",
        NODE_SHARD,
        optional=True,
    ),
    "folded": boolean(
        "computed from constants alone, once, when a session is made; what it makes counts as "
        "constant in memory; absent: no",
        optional=True,
    ),
    "backward": boolean("belongs to the backward pass", optional=True),
    "of": Field("id", "backward: the node whose gradient it computes"),
    "color": Field("id", "nodes of one colour share a device"),
    "layer": string("layer in the source", optional=True),
    "scope": string("name scope in the source", optional=True),
}

GROUP = {
    "id": unique_id("unique among groups"),
    "name": string("what the group is"),
    "nodes": ids("members in topological order"),
    "rule": string("rule that made it", optional=True),
    "time_s": TIMES,
    "spread": SPREAD,
    "base_s": BASE,
    "cost": string(
        "where time_s comes from; absent: from the group itself",
        enum=("summed", "analytic", "measured", "scaled", "calibrated"),
        optional=True,
    ),
    "basis": string(
        "digest of the times of its nodes when it was priced as a unit; absent: unknown",
        pattern=HEX,
        optional=True,
    ),
    "flop": number("floating point operations", optional=True),
    "bytes": number("bytes moved to and from memory", optional=True),
}
