"""What records of a plan and its stages hold."""

from __future__ import annotations

from dnnp.formats.fields import DIGEST, HEX, Field, ids, number, string, unique_id
from dnnp.formats.graph_fields import DEVICE

PLAN_LINK = {
    "from": string("device that sends", required=True),
    "to": string("device that receives", required=True),
    "bandwidth_bytes_per_s": number("bandwidth", required=True, positive=True),
    "latency_s": number("time that each transfer takes on top", required=True),
}

RECEIVED = {
    "tensors": ids("what moves"),
    "from": string("device that sends", required=True),
    "start_s": number("start", required=True),
    "end_s": number("arrival", required=True),
}

WAYS = ("whole", "replicas", "pipeline", "replicated-pipeline")
"""Ways to use the devices, the simplest first."""

WAY = {
    "way": string(
        "whole: the model on one device; replicas of it; pipeline: stages on a device each; "
        "replicated-pipeline: stages, some on several devices",
        required=True,
        enum=WAYS,
    ),
    "value": number("objective of the best one; absent: there is none to show"),
    "stages": Field("int", "its stages", positive=True),
    "devices": Field("int", "the devices that it uses", positive=True),
    "class": string("class of those that hold the whole model"),
    "reason": string(
        "why there is none: no device can hold the model, or none is faster than a simpler way"
    ),
}

TRIED = {
    "method": string("the method that was asked for", required=True),
    "value": number("objective of its plan; absent: it found none"),
    "bound": number("lower bound that it proved, for its validity"),
    "gap": number("(value - bound) / value"),
    "validity": string("of its plan", enum=("ordered", "convex", "free")),
    "status": string(
        "as of a plan; without a value: infeasible, or limit: it was stopped before; unavailable: "
        "something that it needs is missing",
        required=True,
        enum=("optimal", "feasible", "interrupted", "infeasible", "limit", "unavailable"),
    ),
    "made_by": string("method that made its plan, if that has another name"),
    "effort": number("effort of the search, where it was reduced"),
    "reason": string("why there is no plan"),
    "time_s": number("time it took, with --timings"),
}

POLICY = {
    "digest": Field("string", "SHA-256 of its sizes and weights", required=True, pattern=HEX),
    "trained": Field("int", "episodes of training, all in all; 0: random weights", required=True),
    "episodes": Field("int", "those of this run", required=True),
    "asked": Field("int", "those that were to be", required=True),
    "graphs": Field("int", "graphs that this run trained on", required=True),
    "hops": Field("int", "rounds of message passing", required=True, positive=True),
    "groups": Field("int", "groups that it placed", required=True, positive=True),
    "colors": Field(
        "int",
        "operators, or those that must be together as one; if more than the groups, merged",
        required=True,
        positive=True,
    ),
    "rounds": Field("int", "in each of which it visited all groups", required=True, positive=True),
}

PARALLEL = {
    "tensor_parallel": Field(
        "int", "devices that may hold a replica of a stage together", required=True, positive=True
    ),
    "data_parallel": Field("int", "replicas of a stage, at most", required=True, positive=True),
    "micro_batches": Field("int", "micro-batches in a batch", required=True, positive=True),
    "recompute": string(
        "stages that run their forward passes again", required=True, enum=("none", "full", "auto")
    ),
    "weight_sync": string("how replicas add up gradients", required=True, enum=("ring", "server")),
    "overlap_sync": Field("bool", "they do so while the stage computes", required=True),
    "shared_stages": Field(
        "int",
        "stages that all devices share, at most: bound and status are those of such plans; absent: "
        "0",
    ),
}

PLAN = {
    "id": Field("int", "0", required=True, const=0),
    "k": Field("int", "number of accelerators offered", required=True),
    "method": string("method that found it", required=True),
    "objective": string(
        "throughput: the largest load; gpipe: the largest forward load plus the largest "
        "backward load; latency: the time of one sample",
        required=True,
        enum=("throughput", "gpipe", "latency"),
    ),
    "validity": string(
        "ordered: the stages form a pipeline; convex: no path leaves a stage and comes back; "
        "free: no promise",
        required=True,
        enum=("ordered", "convex", "free"),
    ),
    "value": number("the objective", required=True),
    "bound": number("proven lower bound of the value of any split of this validity", required=True),
    "gap": number("(value - bound) / value", required=True),
    "status": string(
        "optimal: proven; infeasible: capacities were ignored, and some device has too little",
        required=True,
        enum=("optimal", "feasible", "interrupted", "infeasible"),
    ),
    "excess_bytes": number(
        "infeasible: the most memory that a device needs beyond what it has", positive=True
    ),
    "spread": number(
        "half the width of the confidence interval (95 %) over the value, where costs were measured"
    ),
    "effort": number(
        "effort of the search, where it was reduced because its kernels were not compiled"
    ),
    "comm": string("how transfers count", required=True, enum=("sum", "overlap", "duplex")),
    "memory_model": string(
        "how memory counts; weights: for latency alone",
        required=True,
        enum=("sum", "peak", "weights"),
    ),
    "memory_mode": string(
        "what happens above capacity; ignore: nothing, the plan is marked infeasible",
        required=True,
        enum=("hard", "overflow", "ignore"),
    ),
    "charge_io": Field("bool", "model inputs and outputs cost transfers", required=True),
    "max_replicas": Field(
        "int", "devices that one stage may be replicated over; absent: 1", positive=True
    ),
    "parallel": Field("object", "parallel plans: what they could use", fields=PARALLEL),
    "devices": Field(
        "list", "the devices offered", required=True, items=Field("object", "", fields=DEVICE)
    ),
    "execution": string(
        "latency: blocks: accelerators are invoked for whole blocks; operators: every unit "
        "is placed by itself",
        enum=("blocks", "operators"),
    ),
    "invocations": Field(
        "int", "latency of blocks: how often a device may be invoked in a pass", positive=True
    ),
    "transfers": string(
        "latency: a tensor moves once to a device, or all of an edge for itself",
        enum=("tensor", "edge"),
    ),
    "congestion": string(
        "latency of operators: transfers that wait for each other: those that one device "
        "sends, or receives; those of one channel; none",
        enum=("device", "channel", "none"),
    ),
    "links": Field(
        "list",
        "the links between the devices, one direction each; absent: what the classes state",
        items=Field("object", "", fields=PLAN_LINK),
    ),
    "planned_by": string(
        "classes: the method knew the best link of each class only, and the plan was then priced "
        "with the links; absent: it heeded all that there is",
        enum=("classes",),
    ),
    "bound_method": string("latency: argument that proves the bound"),
    "policy": Field("object", "method placeto: the policy, and how it was trained", fields=POLICY),
    "ways": Field(
        "list",
        "--allow-replicas: the ways to use the devices that were compared, the simplest first; the "
        "plan is the fastest",
        items=Field("object", "", fields=WAY),
    ),
    "tried": Field(
        "list",
        "--method a,b: the methods that were compared; the plan is the best, at ties the first",
        items=Field("object", "", fields=TRIED),
    ),
    "digest": DIGEST,
}

STAGE = {
    "id": unique_id("position in the pipeline, from 0"),
    "device": string("class and number of the (first) device: cpu-core/0", required=True),
    "class": string("device class", required=True),
    "replicas": Field(
        "int", "devices, from this one on, that share the samples; absent: 1", positive=True
    ),
    "shards": Field(
        "int",
        "devices that each replica takes, one after the other, its tensor-parallel degree; absent: "
        "1",
        positive=True,
    ),
    "nodes": ids("nodes in execution order"),
    "recomputed": ids(
        "forward nodes that the backward pass runs again; where nodes state what they take then, "
        "those that take it",
        required=False,
    ),
    "in_flight": Field(
        "int", "parallel plans: micro-batches under way on a device at once", positive=True
    ),
    "shared": Field(
        "bool",
        "parallel plans: all devices of the class hold it, one shard each, besides stages of their "
        "own; absent: false",
    ),
    "collective_s": number(
        "the part of the compute that shards spend exchanging tensors; absent: 0"
    ),
    "load_s": number("load by the plan's comm model, divided by the replicas", required=True),
    "in_s": number("transfers in of a sample", required=True),
    "compute_s": number("compute of a sample", required=True),
    "overflow_s": number("parameters streamed above capacity", required=True),
    "out_s": number("transfers out of a sample", required=True),
    "sync_s": number("weight synchronisation of replicas; absent: 0"),
    "forward_s": number("load of the forward nodes, when training"),
    "backward_s": number("load of the backward nodes, when training"),
    "memory_bytes": number("memory of each device, by the memory model", required=True),
    "peak_bytes": number("the part of it that is live activations at their peak"),
    "peak_bound_bytes": number("proven lower bound of that peak over all orders of the nodes"),
    "begin_s": number("latency: when its first transfer or task starts"),
    "end_s": number("latency: when all of it is done"),
    "starts_s": Field(
        "list",
        "latency of operators: start of each group (or node, without groups), in the order of "
        "nodes",
        items=number(""),
    ),
    "receives": Field(
        "list",
        "latency of operators: what other devices send to this one, by start",
        items=Field("object", "", fields=RECEIVED),
    ),
}
