"""What records hold of what is known of a plan: a bound, a run."""

from __future__ import annotations

from dnnp.formats.fields import HEX, Field, number, string

_PROCESS = {
    "process": string(
        "how samples arrive: poisson: at random; uniform: at equal distances",
        required=True,
        enum=("poisson", "uniform"),
    ),
    "seed": Field("int", "seed of arrivals at random"),
}

_RATE = {
    "rate_per_s": number("samples that arrive a second", required=True, positive=True),
    "samples": Field("int", "samples that arrived and went through", required=True, positive=True),
    "span_s": number("time from the first to the last arrival", required=True),
    "throughput_per_s": number(
        "samples per second, from the first arrival to the last output", required=True
    ),
    "latency_mean_s": number(
        "mean time of a sample from its arrival to its last output, waiting included",
        required=True,
    ),
    "latency_p50_s": number("its median", required=True),
    "latency_p90_s": number("its 90th percentile", required=True),
    "latency_p99_s": number("its 99th percentile", required=True),
    "latency_p999_s": number("its 99.9th percentile", required=True),
    "latency_max_s": number("its maximum", required=True),
    "backlog": Field(
        "int",
        "samples that had arrived, but were not through, when the last one arrived",
        required=True,
    ),
    "saturated": Field(
        "bool",
        "the pipeline does not keep up: the backlog exceeds the replicas of all stages by more "
        "than 5 % of the samples, and by more than the root of their number",
        required=True,
    ),
}

ARRIVALS = {**_PROCESS, **_RATE}
"""Of a run whose samples arrive at one rate."""

SWEEP = {
    **_PROCESS,
    "capacity_per_s": number(
        "samples per second where each is there as soon as there is room for it", required=True
    ),
    "knee_per_s": number("rate at which throughput over mean latency is largest"),
    "sustained_per_s": number(
        "highest rate below the first one with which the pipeline does not keep up; absent: none is"
    ),
    "rates": Field(
        "list",
        "the rates that were tried, the lowest first",
        required=True,
        items=Field(
            "object",
            "",
            fields={"share": number("the rate over the capacity", required=True), **_RATE},
        ),
    ),
}
"""Of a run with a sweep of rates."""

FILES = {
    "written": Field("int", "inputs that went through, each once", required=True),
    "skipped": Field("int", "inputs whose outputs were there before", required=True),
    "failed": Field(
        "int",
        "inputs that cannot be read, that the model does not take, or on which a stage failed",
        required=True,
    ),
}
"""Of a run of files."""


BOUND = {
    "method": string("the argument that proves it: simple, chain, node-cut, ...", required=True),
    "value": number(
        "proven lower bound of the objective of any split of this validity", required=True
    ),
    "gap": number("(value of the plan - bound) / value of the plan", required=True),
    "status": string(
        "optimal: no split is better than the plan; interrupted: by a signal",
        required=True,
        enum=("optimal", "proven", "interrupted"),
    ),
    "validity": string(
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
                "method": string("the argument", required=True),
                "status": string(
                    "solved: it gave all it can; limit: it was stopped before, what it proved "
                    "holds; refused: it does not apply here; failed: its solver did",
                    required=True,
                    enum=("solved", "limit", "refused", "failed"),
                ),
                "value": number("bound that it proves; absent: none"),
                "reason": string("why it was stopped, was refused or failed"),
                "time_s": number("time it took, with --timings"),
            },
        ),
    ),
    "certificate": Field(
        "object",
        "with what another program verifies the bound",
        fields={"argument": string("what kind of certificate", required=True)},
        open=True,
    ),
    "digest": Field(
        "string",
        "digest of the plan, its devices and its cost model",
        required=True,
        pattern=HEX,
    ),
}

MODES = ("pipeline", "whole", "replicas")
"""What may run: the stages of the plan, or the whole model in one session or several."""

WORKERS = ("process", "ray")
"""What computes stages, if it is no thread."""

CHOICE = {
    "mode": string("what to deploy: the fastest of those that ran", required=True, enum=MODES),
    "ratio": number("its throughput over that of the pipeline", required=True),
    "predicted_ratio": number(
        "what was predicted of that; absent: nothing, where sessions do not have a device of the "
        "plan each"
    ),
    "second": string("the next best; absent: there is none", enum=MODES),
    "lead": number("throughput over that of the next best"),
    "clear": Field(
        "bool",
        "the next best is slower by more than rounds differ, or there is none",
        required=True,
    ),
    "reason": string("why, in words", required=True),
    "ruled_out": Field(
        "list",
        "what did not run, since no device of the plan can hold the whole model",
        items=Field(
            "object",
            "",
            fields={
                "mode": string("what", required=True, enum=MODES),
                "reason": string("why", required=True),
            },
        ),
    ),
}

TRANSFERS = {
    "how": string(
        "copied: every tensor, from a GPU to the host; emulated: nothing moved, and each transfer "
        "took as long as the schedule says, or longer",
        required=True,
        enum=("copied", "emulated"),
    ),
    "share_predicted": number(
        "by the schedule: share of the makespan that devices with blocking transfers, and the "
        "links of the others, are occupied by transfers",
        required=True,
    ),
    "share_measured": number("the same, of the makespan that was measured", required=True),
    "moves": Field(
        "list",
        "the transfers, in the order of the passes",
        required=True,
        items=Field(
            "object",
            "",
            fields={
                "pass": Field("int", "position in the passes of the schedule", required=True),
                "blocking": Field("bool", "devices were occupied, not links", required=True),
                "bytes": number("what moved, for each sample", required=True),
                "predicted_s": number("time by the schedule", required=True),
                "measured_s": number("median time of a sample", required=True),
            },
        ),
    ),
}

WAYS = ("shared", "device", "peer", "host")
"""How tensors may move between stages."""

LINKED = {
    "from": Field("int", "position in stages of the one that sends", required=True),
    "to": Field("int", "position of the one that receives", required=True),
    "how": string(
        "shared: in the memory of the host, where both compute; device: they stay on one GPU; "
        "peer: from one GPU to another; host: through the memory of the host",
        required=True,
        enum=WAYS,
    ),
}

RUN = {
    "mode": string("what ran", required=True, enum=MODES),
    "provider": string("execution provider; several are joined by +", required=True),
    "provider_options": Field(
        "list", "its options, NAME=VALUE; absent: none", items=Field("string", "")
    ),
    "links": Field(
        "list",
        "how tensors moved from stage to stage",
        items=Field("object", "", fields=LINKED),
    ),
    "overlap": Field(
        "bool",
        "what goes to and from GPUs was copied by the threads of stages on the CPU; absent: by "
        "those of the stages on the GPUs, whose loads contain it",
    ),
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
    "elapsed_s": number(
        "time of a round, the median: to its last output, from the last one of the warm-up, or "
        "from the first start"
    ),
    "throughput_per_s": number("samples per second: samples over rounds over elapsed_s"),
    "latency_p50_s": number("median time of one sample"),
    "latency_p99_s": number("99th percentile of the time of one sample"),
    "latency_predicted_s": number("time of one sample by a plan of the objective latency"),
    "makespan_predicted_s": number("time of all samples by the schedule that was followed"),
    "makespan_measured_s": number("first start to last end of all samples of the schedule"),
    "bubble": number(
        "idle share of the stages, each between its first start and last end; of a schedule, "
        "idle share of its devices over its makespan"
    ),
    "taken": number(
        "largest share of its time that other processes, or the host of a virtual machine, "
        "took from a stage or a copy of the model: it could have run, but its processor ran "
        "something else; absent: not known"
    ),
    "threads": Field("int", "threads of a session"),
    "optimization": string("graph optimization level"),
    "verified": Field("bool", "outputs equal those of the whole model, if that was asked"),
    "max_abs_error": number("largest difference from the whole model"),
    "max_rel_error": number("the same, relative to the largest value of its output"),
    "rtol": number("allowed error relative to each value"),
    "atol": number("allowed error relative to the largest value of an output"),
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
                "device": string("device of the plan, the first if replicated", required=True),
                "replicas": Field("int", "devices that shared the samples; absent: 1"),
                "shard": Field(
                    "int",
                    "which of the shards of the stage it is, or is a part of; absent: there are "
                    "none",
                ),
                "provider": string("execution provider; absent: that of the run"),
                "gpus": Field("list", "numbers of its GPUs", items=Field("int", "")),
                "fallback": Field(
                    "list",
                    "nodes that its provider left to the CPU, those that compute shapes apart",
                    items=Field("string", ""),
                ),
                "predicted_s": number("load by the plan", required=True),
                "measured_s": number("median time of a sample over the number of replicas"),
                "bubble": number("idle share, over all replicas"),
                "taken": number("share of its time that others took from it"),
            },
        ),
    ),
    "transfers": Field("object", "what the transfers of the schedule took", fields=TRANSFERS),
    "workers": string(
        "what computed a stage: a process, or an actor of Ray; absent: a thread of the process "
        "that ran all",
        enum=WORKERS,
    ),
    "restarts": Field(
        "list",
        "workers that were lost and started again; what they had was computed again",
        items=Field(
            "object",
            "",
            fields={
                "worker": string("which: stage 2, or replica 1 of stage 2", required=True),
                "sample": Field(
                    "int", "what it computed, in its pass through the pipeline", required=True
                ),
                "reason": string("how it was lost", required=True),
            },
        ),
    ),
    "choice": Field("object", "--choose: what to deploy, and why", fields=CHOICE),
    "duration_s": number("time in which samples set out, if that was asked for"),
    "files": Field("object", "what became of inputs that went through once each", fields=FILES),
    "arrivals": Field(
        "object", "--rate: what became of samples that arrived at their own pace", fields=ARRIVALS
    ),
    "sweep": Field(
        "object", "--rate sweep: the same at rates up to more than can be done", fields=SWEEP
    ),
    "digest": Field("string", "digest of the plan that ran", required=True, pattern=HEX),
}
