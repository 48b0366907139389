"""Fields of the records of a plan and its stages."""

from __future__ import annotations

from dnnp.formats.fields import (
    DIGEST,
    HEX,
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
from dnnp.formats.graph_fields import DEVICE

PLAN_LINK = {
    "from": string("device that sends"),
    "to": string("device that receives"),
    "bandwidth_bytes_per_s": number("bandwidth", positive=True),
    "latency_s": number("time that each transfer takes on top"),
}

RECEIVED = {
    "tensors": ids("what moves"),
    "from": string("device that sends"),
    "start_s": number("start"),
    "end_s": number("arrival"),
}

WAYS = ("whole", "replicas", "pipeline", "replicated-pipeline")
"""Ways to use the devices, the simplest first."""

WAY = {
    "way": string(
        "whole: the model on one device; replicas of it; pipeline: stages on a device each; "
        "replicated-pipeline: stages, some on several devices",
        enum=WAYS,
    ),
    "value": number("objective of the best one; absent: there is none to show", optional=True),
    "stages": integer("its stages", positive=True, optional=True),
    "devices": integer("the devices that it uses", positive=True, optional=True),
    "class": string("class of those that hold the whole model", optional=True),
    "reason": string(
        "why there is none: no device can hold the model, or none is faster than a simpler way",
        optional=True,
    ),
}

TRIED = {
    "method": string("the method that was asked for"),
    "value": number("objective of its plan; absent: it found none", optional=True),
    "bound": number("lower bound that it proved, for its validity", optional=True),
    "gap": number("(value - bound) / value", optional=True),
    "validity": string("of its plan", enum=("ordered", "convex", "free"), optional=True),
    "status": string(
        "as of a plan; without a value: infeasible, or limit: it was stopped before; unavailable: "
        "something that it needs is missing",
        enum=("optimal", "feasible", "interrupted", "infeasible", "limit", "unavailable"),
    ),
    "made_by": string("method that made its plan, if that has another name", optional=True),
    "reason": string("why there is no plan", optional=True),
    "time_s": number("time it took, with --timings", optional=True),
}

POLICY = {
    "digest": string("SHA-256 of its sizes and weights", pattern=HEX),
    "trained": integer("episodes of training, all in all; 0: random weights"),
    "episodes": integer("those of this run"),
    "asked": integer("those that were to be"),
    "graphs": integer("graphs that this run trained on"),
    "hops": integer("rounds of message passing", positive=True),
    "groups": integer("groups that it placed", positive=True),
    "colors": integer(
        "operators, or those that must be together as one; if more than the groups, merged",
        positive=True,
    ),
    "rounds": integer("in each of which it visited all groups", positive=True),
}

PARALLEL = {
    "tensor_parallel": integer(
        "devices that may hold a replica of a stage together", positive=True
    ),
    "data_parallel": integer("replicas of a stage, at most", positive=True),
    "micro_batches": integer("micro-batches in a batch", positive=True),
    "recompute": string(
        "stages that run their forward passes again", enum=("none", "full", "auto")
    ),
    "weight_sync": string("how replicas add up gradients", enum=("ring", "server")),
    "overlap_sync": boolean("they do so while the stage computes"),
    "shared_stages": integer(
        "stages that all devices share, at most: bound and status are those of such plans; "
        "absent: 0",
        optional=True,
    ),
}

PLAN = {
    "id": Field("int", "0", required=True, const=0),
    "k": integer("number of accelerators offered"),
    "method": string("method that found it"),
    "objective": string(
        "throughput: the largest load; gpipe: the largest forward load plus the largest backward "
        "load; latency: the time of one sample",
        enum=("throughput", "gpipe", "latency"),
    ),
    "validity": string(
        "ordered: the stages form a pipeline; convex: no path leaves a stage and comes back; "
        "free: no promise",
        enum=("ordered", "convex", "free"),
    ),
    "value": number("the objective"),
    "bound": number("proven lower bound of the value of any split of this validity"),
    "gap": number("(value - bound) / value"),
    "status": string(
        "optimal: proven; within_gap: the gap is at most max_gap, where the search need not go on; "
        "infeasible: capacities were ignored, and some device has too little",
        enum=("optimal", "within_gap", "feasible", "interrupted", "infeasible"),
    ),
    "max_gap": number("within_gap: the gap that was asked for", positive=True, optional=True),
    "excess_bytes": number(
        "infeasible: the most memory that a device needs beyond what it has",
        positive=True,
        optional=True,
    ),
    "spread": number(
        "half the width of the confidence interval (95 %) over the value, where costs were "
        "measured",
        optional=True,
    ),
    "unknown": record(
        "what its costs leave out; absent: nothing",
        {
            "time": number(
                "share of the time of its nodes that no formula covers, or only in part, or that "
                "was made from unknown sizes"
            ),
            "sizes": integer("tensors of unknown size, which count as 0 bytes"),
        },
        optional=True,
    ),
    "comm": string("how transfers count", enum=("sum", "overlap", "duplex")),
    "memory_model": string(
        "how memory counts; weights: for latency alone", enum=("sum", "peak", "weights")
    ),
    "memory_mode": string(
        "what happens above capacity; ignore: nothing, the plan is marked infeasible",
        enum=("hard", "overflow", "ignore"),
    ),
    "charge_io": boolean("model inputs and outputs cost transfers"),
    "max_replicas": integer(
        "devices that one stage may be replicated over; absent: 1", positive=True, optional=True
    ),
    "parallel": record("parallel plans: what they could use", PARALLEL, optional=True),
    "devices": records("the devices offered", DEVICE),
    "execution": string(
        "latency: blocks: accelerators are invoked for whole blocks; operators: every unit is "
        "placed by itself",
        enum=("blocks", "operators"),
        optional=True,
    ),
    "invocations": integer(
        "latency of blocks: how often a device may be invoked in a pass",
        positive=True,
        optional=True,
    ),
    "transfers": string(
        "latency: a tensor moves once to a device, or all of an edge for itself",
        enum=("tensor", "edge"),
        optional=True,
    ),
    "congestion": string(
        "latency of operators: transfers that wait for each other: those that one device sends, "
        "or receives; those of one channel; none",
        enum=("device", "channel", "none"),
        optional=True,
    ),
    "links": records(
        "the links between the devices, one direction each; absent: what the classes state",
        PLAN_LINK,
        optional=True,
    ),
    "planned_by": string(
        "classes: the method knew the best link of each class only, and the plan was then priced "
        "with the links; absent: it heeded all that there is",
        enum=("classes",),
        optional=True,
    ),
    "contiguous_bound": number(
        "clusters: proven lower bound of the value of ordered splits that give each cluster one "
        "contiguous segment of the pipeline; absent: no more than the bound",
        optional=True,
    ),
    "bound_method": string("latency: argument that proves the bound", optional=True),
    "policy": record("method placeto: the policy, and how it was trained", POLICY, optional=True),
    "ways": records(
        "--allow-replicas: the ways to use the devices that were compared, the simplest first; "
        "the plan is the fastest",
        WAY,
        optional=True,
    ),
    "tried": records(
        "--method a,b: the methods that were compared; the plan is the best, at ties the first",
        TRIED,
        optional=True,
    ),
    "digest": DIGEST,
}

STAGE = {
    "id": unique_id("position in the pipeline, from 0"),
    "device": string("class and number of the (first) device: cpu-core/0"),
    "class": string("device class"),
    "replicas": integer(
        "devices, from this one on, that share the samples; absent: 1", positive=True, optional=True
    ),
    "shards": integer(
        "devices that each replica takes, one after the other, its tensor-parallel degree; "
        "absent: 1",
        positive=True,
        optional=True,
    ),
    "nodes": ids("nodes in execution order"),
    "recomputed": ids(
        "forward nodes that the backward pass runs again; where nodes state what they take then, "
        "those that take it",
        optional=True,
    ),
    "in_flight": integer(
        "parallel plans: micro-batches under way on a device at once", positive=True, optional=True
    ),
    "shared": boolean(
        "parallel plans: all devices of the class hold it, one shard each, besides stages of "
        "their own; absent: false",
        optional=True,
    ),
    "collective_s": number(
        "the part of the compute that shards spend exchanging tensors; absent: 0", optional=True
    ),
    "load_s": number("load by the plan's comm model, divided by the replicas"),
    "in_s": number("transfers in of a sample"),
    "compute_s": number("compute of a sample"),
    "overflow_s": number("parameters streamed above capacity"),
    "out_s": number("transfers out of a sample"),
    "sync_s": number("weight synchronisation of replicas; absent: 0", optional=True),
    "forward_s": number("load of the forward nodes, when training", optional=True),
    "backward_s": number("load of the backward nodes, when training", optional=True),
    "memory_bytes": number("memory of each device, by the memory model"),
    "peak_bytes": number("the part of it that is live activations at their peak", optional=True),
    "peak_bound_bytes": number(
        "proven lower bound of that peak over all orders of the nodes", optional=True
    ),
    "begin_s": number("latency: when its first transfer or task starts", optional=True),
    "end_s": number("latency: when all of it is done", optional=True),
    "starts_s": Field(
        "list",
        "latency of operators: start of each group (or node, without groups), in the order of "
        "nodes",
        items=number("", optional=True),
    ),
    "receives": records(
        "latency of operators: what other devices send to this one, by start",
        RECEIVED,
        optional=True,
    ),
}
