"""What every record of the stream holds: one table for the reader, the schema and the manual.

`formats.stream` enforces the table, `json_schema` renders it as JSON Schema, and
dnnp-graph(5) prints it.
"""

from __future__ import annotations

from typing import Any

from dnnp.formats.fields import Field, object_schema

FORMAT = "dnnp"
VERSION = 1


def _id(doc: str) -> Field:
    return Field("id", doc, required=True)


def _ids(doc: str, *, required: bool = True, unique: bool = True) -> Field:
    return Field("list", doc, required=required, unique=unique, items=Field("id", ""))


def _number(doc: str, *, required: bool = False, positive: bool = False) -> Field:
    return Field("number", doc, required=required, positive=positive)


def _string(doc: str, *, required: bool = False, enum: tuple[str, ...] = ()) -> Field:
    return Field("string", doc, required=required, enum=enum)


_TIMES = Field(
    "map",
    "seconds by device class; a class that is absent cannot run it",
    items=Field("number", ""),
)
_HEX = "^[0-9a-f]{64}$"
_DIGEST = Field("string", "digest of what it was computed from", required=True, pattern=_HEX)

_DEVICE = {
    "class": _string("device class; the key of time_s", required=True),
    "kind": _string("cpu: compute only, no capacity", required=True, enum=("accelerator", "cpu")),
    "name": _string("what it is, in words"),
    "count": Field("int", "number of devices; absent: decided by -k"),
    "memory_bytes": _number("capacity of one device"),
    "fast_memory_bytes": _number("on-chip memory of one device, the capacity with --memory fast"),
    "bandwidth_bytes_per_s": _number("bandwidth of one device's link", positive=True),
    "cluster_size": Field(
        "int", "devices with equal number / cluster_size, rounded down, form a cluster; 0: none"
    ),
    "inner_bandwidth_bytes_per_s": _number(
        "bandwidth of a link inside a cluster; needed where there are clusters", positive=True
    ),
}

_PLAN_LINK = {
    "from": _string("device that sends", required=True),
    "to": _string("device that receives", required=True),
    "bandwidth_bytes_per_s": _number("bandwidth", required=True, positive=True),
    "latency_s": _number("time that each transfer takes on top", required=True),
}

_RECEIVED = {
    "tensors": _ids("what moves"),
    "from": _string("device that sends", required=True),
    "start_s": _number("start", required=True),
    "end_s": _number("arrival", required=True),
}

_UNIT = {
    "name": _string("device, as in the plan, or link", required=True),
    "link": Field("bool", "it carries transfers; absent: no"),
    "memory_bytes": _number("most that it may hold; absent: no limit"),
    "fixed_bytes": _number("what it always holds, such as parameters; absent: 0"),
    "peak_bytes": _number("most that it holds in this schedule", required=True),
    "busy_s": _number("time that it runs blocks", required=True),
}

_PASS = {
    "name": _string("unique among the passes", required=True),
    "kind": _string(
        "weight: the part of a backward pass that only weights need",
        required=True,
        enum=("forward", "backward", "weight", "transfer"),
    ),
    "stage": Field("int", "stage of the plan that it is a pass of; absent: none"),
    "nodes": _ids("nodes of its stage that it runs, in order; absent: all of them", required=False),
    "homes": Field(
        "list",
        "positions of its units; micro-batch n runs on all of entry n modulo their number",
        required=True,
        items=Field("list", "", items=Field("int", "")),
    ),
    "time_s": _number("time on all of its units", required=True),
    "memory_bytes": Field(
        "number", "added to each of its units when it starts; absent: 0", signed=True
    ),
    "after": Field(
        "list",
        "passes of the same micro-batch that end before it starts",
        required=True,
        items=Field(
            "object",
            "",
            fields={
                "pass": Field("int", "position in the passes", required=True),
                "delay_s": _number("time that must lie between; absent: 0"),
            },
        ),
    ),
}

_FOUND_BY = _string(
    "what found it: orders: the search over orders of blocks; grid: that on whole ticks; list: "
    "list scheduling alone; sequential: one block after the other; tessel"
)

_REPETEND = {
    "unroll": Field("int", "u, micro-batches in a period", required=True, positive=True),
    "period_s": _number(
        "pass i of micro-batch n starts at starts_s[n % u][i] + (n // u) * period_s", required=True
    ),
    "period_bound_s": _number("no repetend of u micro-batches is shorter", required=True),
    "memory_bytes": _number(
        "most that a unit holds while it repeats; those apart that every micro-batch leaves "
        "something on",
        required=True,
    ),
    "memory_bound_bytes": _number("no repetend of this period needs less", required=True),
    "span_s": _number("first start to last end of u micro-batches", required=True),
    "span_bound_s": _number("none of this period and memory is shorter", required=True),
    "status": _string(
        "optimal: all three equal their bounds",
        required=True,
        enum=("optimal", "feasible", "interrupted"),
    ),
    "method": _FOUND_BY,
    "starts_s": Field(
        "list",
        "start of each pass, for each of the u micro-batches",
        required=True,
        items=Field("list", "", items=_number("")),
    ),
}

_POINT = {
    "memory_bytes": _number("most that a unit may hold", required=True),
    "unroll": Field("int", "micro-batches in a period", required=True, positive=True),
    "period_s": _number("least period for each micro-batch", required=True),
    "period_bound_s": _number("proven lower bound of it", required=True),
    "method": _FOUND_BY,
    "starts_s": Field(
        "list",
        "starts of a repetend that has this period, as in the repetend",
        items=Field("list", "", items=_number("")),
    ),
}

RECORDS: dict[str, dict[str, Field]] = {
    "header": {
        "format": Field("string", "the name of the format", required=True, const=FORMAT),
        "version": Field("int", "version of the format", required=True, const=VERSION),
        "model": _string("name of the model", required=True),
        "source": Field(
            "object",
            "the file the graph came from",
            fields={
                "kind": _string(
                    "file format", required=True, enum=("onnx", "msr-json", "costgraph")
                ),
                "path": _string("path as given to dnnp-import", required=True),
                "sha256": Field("string", "hash of the file", required=True, pattern=_HEX),
            },
        ),
        "units": Field(
            "object",
            "units of the numbers",
            required=True,
            fields={"time": _string("s, or unknown", required=True, enum=("s", "unknown"))},
        ),
        "training": Field("bool", "the graph holds a backward pass"),
        "work": Field(
            "string",
            "digest of flop and bytes of the nodes when they were priced by them; absent: unknown",
            pattern=_HEX,
        ),
        "provenance": Field(
            "list",
            "every command that touched the stream, in order",
            required=True,
            items=Field(
                "object",
                "",
                fields={
                    "tool": _string("command", required=True),
                    "version": _string("its version", required=True),
                    "arguments": Field(
                        "list", "its arguments", required=True, items=Field("string", "")
                    ),
                    "elapsed_s": _number("time it took, with --timings"),
                },
            ),
        ),
    },
    "device": _DEVICE,
    "link": {
        "from": _string("device, v100/0, or a class for all its devices", required=True),
        "to": _string("device, or class, at the other end", required=True),
        "bandwidth_bytes_per_s": _number("bandwidth", required=True, positive=True),
        "back_bandwidth_bytes_per_s": _number(
            "bandwidth of the other direction; absent: the same", positive=True
        ),
        "latency_s": _number("time that each transfer takes on top; absent: 0"),
    },
    "tensor": {
        "id": _id("unique among tensors"),
        "name": _string("name in the source; need not be unique", required=True),
        "kind": _string(
            "where it comes from",
            required=True,
            enum=("input", "activation", "parameter", "constant"),
        ),
        "size_bytes": _number("size", required=True),
        "dtype": _string("element type, or sequence, optional, map"),
        "shape": Field("list", "dimensions, when known", items=Field("int", "")),
        "transfer_s": _number("time to move it once; replaces size over bandwidth"),
        "output": Field("bool", "an output of the model"),
    },
    "node": {
        "id": _id("unique among nodes; the index in the ONNX graph"),
        "name": _string("name in the source; need not be unique", required=True),
        "op": _string("operator type", required=True),
        "domain": _string("operator domain, when not the default one"),
        "inputs": _ids("tensors read, captures of subgraph bodies included"),
        "outputs": _ids("tensors written"),
        "captures": _ids("inputs that only subgraph bodies read", required=False),
        "flop": _number("floating point operations"),
        "bytes": _number("bytes moved to and from memory"),
        "time_s": _TIMES,
        "memory_bytes": _number("memory of the node, where the source gives it"),
        "backward": Field("bool", "belongs to the backward pass"),
        "color": Field("id", "nodes of one colour share a device"),
        "layer": _string("layer in the source"),
        "scope": _string("name scope in the source"),
    },
    "group": {
        "id": _id("unique among groups"),
        "name": _string("what the group is", required=True),
        "nodes": _ids("members in topological order"),
        "rule": _string("rule that made it"),
        "time_s": _TIMES,
        "cost": _string(
            "where time_s comes from; absent: from the group itself",
            enum=("summed", "analytic", "measured", "scaled"),
        ),
        "basis": Field(
            "string",
            "digest of the times of its nodes when it was priced as a unit; absent: unknown",
            pattern=_HEX,
        ),
        "flop": _number("floating point operations"),
        "bytes": _number("bytes moved to and from memory"),
    },
    "plan": {
        "id": Field("int", "0", required=True, const=0),
        "k": Field("int", "number of accelerators offered", required=True),
        "method": _string("method that found it", required=True),
        "objective": _string(
            "throughput: the largest load; gpipe: the largest forward load plus the largest "
            "backward load; latency: the time of one sample",
            required=True,
            enum=("throughput", "gpipe", "latency"),
        ),
        "validity": _string(
            "ordered: the stages form a pipeline; convex: no path leaves a stage and comes back; "
            "free: no promise",
            required=True,
            enum=("ordered", "convex", "free"),
        ),
        "value": _number("the objective", required=True),
        "bound": _number(
            "proven lower bound of the value of any split of this validity", required=True
        ),
        "gap": _number("(value - bound) / value", required=True),
        "status": _string(
            "optimal: proven", required=True, enum=("optimal", "feasible", "interrupted")
        ),
        "comm": _string("how transfers count", required=True, enum=("sum", "overlap", "duplex")),
        "memory_model": _string(
            "how memory counts; weights: for latency alone",
            required=True,
            enum=("sum", "peak", "weights"),
        ),
        "memory_mode": _string(
            "what happens above capacity", required=True, enum=("hard", "overflow")
        ),
        "charge_io": Field("bool", "model inputs and outputs cost transfers", required=True),
        "max_replicas": Field(
            "int", "devices that one stage may be replicated over; absent: 1", positive=True
        ),
        "devices": Field(
            "list", "the devices offered", required=True, items=Field("object", "", fields=_DEVICE)
        ),
        "execution": _string(
            "latency: blocks: accelerators are invoked for whole blocks; operators: every unit "
            "is placed by itself",
            enum=("blocks", "operators"),
        ),
        "invocations": Field(
            "int", "latency of blocks: how often a device may be invoked in a pass", positive=True
        ),
        "transfers": _string(
            "latency: a tensor moves once to a device, or all of an edge for itself",
            enum=("tensor", "edge"),
        ),
        "congestion": _string(
            "latency of operators: transfers that wait for each other: those that one device "
            "sends, or receives; those of one channel; none",
            enum=("device", "channel", "none"),
        ),
        "links": Field(
            "list",
            "latency: the links between the devices, one direction each; absent: what the "
            "classes state",
            items=Field("object", "", fields=_PLAN_LINK),
        ),
        "bound_method": _string("latency: argument that proves the bound"),
        "digest": _DIGEST,
    },
    "stage": {
        "id": _id("position in the pipeline, from 0"),
        "device": _string("class and number of the (first) device: cpu-core/0", required=True),
        "class": _string("device class", required=True),
        "replicas": Field(
            "int", "devices, from this one on, that share the samples; absent: 1", positive=True
        ),
        "nodes": _ids("nodes in execution order"),
        "load_s": _number("load by the plan's comm model, divided by the replicas", required=True),
        "in_s": _number("transfers in of a sample", required=True),
        "compute_s": _number("compute of a sample", required=True),
        "overflow_s": _number("parameters streamed above capacity", required=True),
        "out_s": _number("transfers out of a sample", required=True),
        "sync_s": _number("weight synchronisation of replicas; absent: 0"),
        "forward_s": _number("load of the forward nodes, when training"),
        "backward_s": _number("load of the backward nodes, when training"),
        "memory_bytes": _number("memory of each device, by the memory model", required=True),
        "peak_bytes": _number("the part of it that is live activations at their peak"),
        "peak_bound_bytes": _number("proven lower bound of that peak over all orders of the nodes"),
        "begin_s": _number("latency: when its first transfer or task starts"),
        "end_s": _number("latency: when all of it is done"),
        "starts_s": Field(
            "list",
            "latency of operators: start of each group (or node, without groups), in the order of "
            "nodes",
            items=_number(""),
        ),
        "receives": Field(
            "list",
            "latency of operators: what other devices send to this one, by start",
            items=Field("object", "", fields=_RECEIVED),
        ),
    },
    "bound": {
        "method": _string(
            "the argument that proves it: simple, chain, node-cut, ...", required=True
        ),
        "value": _number(
            "proven lower bound of the objective of any split of this validity", required=True
        ),
        "gap": _number("(value of the plan - bound) / value of the plan", required=True),
        "status": _string(
            "optimal: no split is better than the plan; interrupted: by a signal",
            required=True,
            enum=("optimal", "proven", "interrupted"),
        ),
        "validity": _string(
            "the splits it holds for; those of a stronger validity are among them",
            required=True,
            enum=("ordered", "convex", "free"),
        ),
        "tried": Field(
            "list",
            "every argument that was tried, in order",
            required=True,
            items=Field(
                "object",
                "",
                fields={
                    "method": _string("the argument", required=True),
                    "status": _string(
                        "solved: it gave all it can; limit: it was stopped before, what it proved "
                        "holds; refused: it does not apply here; failed: its solver did",
                        required=True,
                        enum=("solved", "limit", "refused", "failed"),
                    ),
                    "value": _number("bound that it proves; absent: none"),
                    "reason": _string("why it was stopped, was refused or failed"),
                    "time_s": _number("time it took, with --timings"),
                },
            ),
        ),
        "certificate": Field(
            "object",
            "with what another program verifies the bound",
            fields={"argument": _string("what kind of certificate", required=True)},
            open=True,
        ),
        "digest": Field(
            "string",
            "digest of the plan, its devices and its cost model",
            required=True,
            pattern=_HEX,
        ),
    },
    "schedule": {
        "method": _string(
            "method that made it: auto, where it is made of the repetend; the name of a recipe, "
            "optimal or in-turn (each unit runs all of a micro-batch before the next), where that "
            "is shorter or all there is",
            required=True,
        ),
        "micro_batches": Field("int", "N, how many run", required=True, positive=True),
        "makespan_s": _number("time from the first start to the last end", required=True),
        "bound_s": _number("no schedule of N micro-batches is shorter", required=True),
        "status": _string(
            "optimal: the makespan equals its bound",
            required=True,
            enum=("optimal", "feasible", "interrupted"),
        ),
        "bubble": _number(
            "share of the makespan that devices are idle, over all that have blocks", required=True
        ),
        "rate_s": _number("time for each of many micro-batches; absent: not known"),
        "rate_bound_s": _number(
            "no schedule takes less time for each of many micro-batches", required=True
        ),
        "units": Field(
            "list",
            "the devices, and the links if transfers are scheduled",
            required=True,
            items=Field("object", "", fields=_UNIT),
        ),
        "passes": Field(
            "list",
            "the blocks of every micro-batch",
            required=True,
            items=Field("object", "", fields=_PASS),
        ),
        "repetend": Field(
            "object",
            "the best one found: what repeats in longer schedules, and in this one where its "
            "method is auto or tessel",
            fields=_REPETEND,
        ),
        "pareto": Field(
            "list",
            "with --pareto: the least period for each memory limit",
            items=Field("object", "", fields=_POINT),
        ),
        "digest": Field(
            "string",
            "digest of the plan that it is for; absent: there is none",
            pattern=_HEX,
        ),
    },
    "block": {
        "pass": Field("int", "position in the passes of the schedule", required=True),
        "micro_batch": Field("int", "from 0", required=True),
        "units": Field(
            "list",
            "positions in the units of the schedule; it runs on all of them",
            required=True,
            unique=True,
            items=Field("int", ""),
        ),
        "start_s": _number("start", required=True),
        "end_s": _number("end", required=True),
    },
    "run": {
        "mode": _string("what ran", required=True, enum=("pipeline", "whole", "replicas")),
        "provider": _string("execution provider", required=True),
        "k": Field("int", "stages, or copies of the model"),
        "samples": Field(
            "int", "samples that went through and were measured, of all rounds", required=True
        ),
        "discarded": Field(
            "int",
            "samples that went through but do not count: until the rate was steady, the warm-up, "
            "and measurements that other processes disturbed more",
        ),
        "rounds": Field("int", "how often they did, to be compared; absent: 1", positive=True),
        "elapsed_s": _number(
            "time of a round, the median: to its last output, from the last one of the warm-up, or "
            "from the first start"
        ),
        "throughput_per_s": _number("samples per second: samples over rounds over elapsed_s"),
        "latency_p50_s": _number("median time of one sample"),
        "latency_p99_s": _number("99th percentile of the time of one sample"),
        "latency_predicted_s": _number("time of one sample by a plan of the objective latency"),
        "makespan_predicted_s": _number("time of all samples by the schedule that was followed"),
        "makespan_measured_s": _number("first start to last end of all samples of the schedule"),
        "bubble": _number(
            "idle share of the stages, each between its first start and last end; of a schedule, "
            "idle share of its devices over its makespan"
        ),
        "taken": _number(
            "largest share of its time that other processes, or the host of a virtual machine, "
            "took from a stage or a copy of the model: it could have run, but its processor ran "
            "something else; absent: not known"
        ),
        "threads": Field("int", "threads of a session"),
        "optimization": _string("graph optimization level"),
        "verified": Field("bool", "outputs equal those of the whole model, if that was asked"),
        "max_abs_error": _number("largest difference from the whole model"),
        "max_rel_error": _number("the same, relative to the largest value of its output"),
        "rtol": _number("allowed error relative to each value"),
        "atol": _number("allowed error relative to the largest value of an output"),
        "interrupted": Field("bool", "not all samples went through"),
        "stages": Field(
            "list",
            "predicted and measured load of each stage",
            items=Field(
                "object",
                "",
                fields={
                    "stage": Field(
                        "id",
                        "id of the stage; several entries where it ran in parts",
                        required=True,
                    ),
                    "device": _string("device of the plan, the first if replicated", required=True),
                    "replicas": Field("int", "devices that shared the samples; absent: 1"),
                    "predicted_s": _number("load by the plan", required=True),
                    "measured_s": _number("median time of a sample over the number of replicas"),
                    "bubble": _number("idle share, over all replicas"),
                    "taken": _number("share of its time that others took from it"),
                },
            ),
        ),
        "digest": Field("string", "digest of the plan that ran", required=True, pattern=_HEX),
    },
    "end": {"records": Field("int", "number of records before this one", required=True)},
}

UNIQUE_IDS = ("tensor", "node", "group", "stage")
"""Record types whose ids must differ."""


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one record of the stream."""
    types = [
        {
            "if": {"properties": {"type": {"const": kind}}},
            "then": {"$ref": f"#/$defs/{kind}"},
        }
        for kind in RECORDS
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of the dnnp stream, version 1",
        "type": "object",
        "properties": {"type": {"type": "string"}},
        "required": ["type"],
        "allOf": types,
        "$defs": {kind: object_schema(fields) for kind, fields in RECORDS.items()},
    }
