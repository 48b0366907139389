"""Fields of the records of results: bounds, runs, schedules and their blocks."""

from __future__ import annotations

from dnnp.formats.fields import HEX, Field, boolean, ids, integer, number, record, records, string

_PROCESS = {
    "process": string(
        "how samples arrive: poisson: at random; uniform: at equal distances",
        enum=("poisson", "uniform"),
    ),
    "seed": integer("seed of arrivals at random", optional=True),
}

_RATE = {
    "rate_per_s": number("samples that arrive a second", positive=True),
    "samples": integer("samples that arrived and went through", positive=True),
    "span_s": number("time from the first to the last arrival"),
    "throughput_per_s": number("samples per second, from the first arrival to the last output"),
    "latency_mean_s": number(
        "mean time of a sample from its arrival to its last output, waiting included"
    ),
    "latency_p50_s": number("its median"),
    "latency_p90_s": number("its 90th percentile"),
    "latency_p99_s": number("its 99th percentile"),
    "latency_p999_s": number("its 99.9th percentile"),
    "latency_max_s": number("its maximum"),
    "backlog": integer("samples that had arrived, but were not through, when the last one arrived"),
    "saturated": boolean(
        "the pipeline does not keep up: the backlog exceeds the replicas of all stages by more "
        "than 5 % of the samples, and by more than the root of their number"
    ),
}

ARRIVALS = {**_PROCESS, **_RATE}
"""Of a run whose samples arrive at one rate."""

SWEEP = {
    **_PROCESS,
    "capacity_per_s": number(
        "samples per second where each is there as soon as there is room for it"
    ),
    "knee_per_s": number("rate at which throughput over mean latency is largest", optional=True),
    "sustained_per_s": number(
        "highest rate below the first one with which the pipeline does not keep up; absent: none "
        "is",
        optional=True,
    ),
    "rates": records(
        "the rates that were tried, the lowest first",
        {"share": number("the rate over the capacity"), **_RATE},
    ),
}
"""Of a run with a sweep of rates."""

FILES = {
    "written": integer("inputs that went through, each once"),
    "skipped": integer("inputs whose outputs were there before"),
    "failed": integer(
        "inputs that cannot be read, that the model does not take, or on which a stage failed"
    ),
}
"""Of a run of files."""


BOUND = {
    "method": string("the argument that proves it: simple, chain, node-cut, ..."),
    "value": number("proven lower bound of the objective of any split of this validity"),
    "gap": number("(value of the plan - bound) / value of the plan"),
    "status": string(
        "optimal: no split is better than the plan; interrupted: by a signal",
        enum=("optimal", "proven", "interrupted"),
    ),
    "validity": string(
        "the splits it holds for; those of a stronger validity are among them",
        enum=("ordered", "convex", "free"),
    ),
    "tried": records(
        "every argument that was tried, in order",
        {
            "method": string("the argument"),
            "status": string(
                "solved: it gave all it can; limit: it was stopped before, what it proved holds; "
                "refused: it does not apply here; failed: its solver did",
                enum=("solved", "limit", "refused", "failed"),
            ),
            "value": number("bound that it proves; absent: none", optional=True),
            "reason": string("why it was stopped, was refused or failed", optional=True),
            "time_s": number("time it took, with --timings", optional=True),
        },
    ),
    "certificate": Field(
        "object",
        "with what another program verifies the bound",
        fields={"argument": string("what kind of certificate")},
        open=True,
    ),
    "digest": string("digest of the plan, its devices and its cost model", pattern=HEX),
}

MODES = ("pipeline", "whole", "replicas")
"""What may run: the stages of the plan, or the whole model in one session or several."""

WORKERS = ("process", "ray")
"""What computes stages, if it is no thread."""

CHOICE = {
    "mode": string("what to deploy: the fastest of those that ran", enum=MODES),
    "ratio": number("its throughput over that of the pipeline"),
    "predicted_ratio": number(
        "what was predicted of that; absent: nothing, where sessions do not have a device of the "
        "plan each",
        optional=True,
    ),
    "second": string("the next best; absent: there is none", enum=MODES, optional=True),
    "lead": number("throughput over that of the next best", optional=True),
    "clear": boolean(
        "the next best is slower by more than rounds differ, and others took no more than 10 % of "
        "the time of anything that was compared; or there is none"
    ),
    "taken": number("the largest share that they took; absent: nothing to compare", optional=True),
    "reason": string("why, in words"),
    "ruled_out": records(
        "what did not run, since no device of the plan can hold the whole model",
        {"mode": string("what", enum=MODES), "reason": string("why")},
        optional=True,
    ),
}

TRANSFERS = {
    "how": string(
        "copied: every tensor, from a GPU to the host; emulated: nothing moved, and each transfer "
        "took as long as the schedule says, or longer",
        enum=("copied", "emulated"),
    ),
    "share_predicted": number(
        "by the schedule: share of the makespan that devices with blocking transfers, and the "
        "links of the others, are occupied by transfers"
    ),
    "share_measured": number("the same, of the makespan that was measured"),
    "moves": records(
        "the transfers, in the order of the passes",
        {
            "pass": integer("position in the passes of the schedule"),
            "blocking": boolean("devices were occupied, not links"),
            "bytes": number("what moved, for each sample"),
            "predicted_s": number("time by the schedule"),
            "measured_s": number("median time of a sample"),
        },
    ),
}

WAYS = ("shared", "device", "peer", "host")
"""How tensors may move between stages."""

LINKED = {
    "from": integer("position in stages of the one that sends"),
    "to": integer("position of the one that receives"),
    "how": string(
        "shared: in the memory of the host, where both compute; device: they stay on one GPU; "
        "peer: from one GPU to another; host: through the memory of the host",
        enum=WAYS,
    ),
}

RUN = {
    "mode": string("what ran", enum=MODES),
    "provider": string("execution provider; several are joined by +"),
    "provider_options": Field(
        "list", "its options, NAME=VALUE; absent: none", items=Field("string", "")
    ),
    "links": records("how tensors moved from stage to stage", LINKED, optional=True),
    "overlap": boolean(
        "what goes to and from GPUs was copied by the threads of stages on the CPU; absent: by "
        "those of the stages on the GPUs, whose loads contain it",
        optional=True,
    ),
    "k": integer("stages, or copies of the model", optional=True),
    "samples": integer("samples that went through and were measured, of all rounds"),
    "discarded": integer(
        "samples that went through but do not count: until the rate was steady, the warm-up, and "
        "measurements that other processes disturbed more",
        optional=True,
    ),
    "rounds": integer(
        "how often they did, to be compared; absent: 1", positive=True, optional=True
    ),
    "elapsed_s": number(
        "time of a round, the median: to its last output, from the last one of the warm-up, or "
        "from the first start",
        optional=True,
    ),
    "throughput_per_s": number(
        "samples per second: samples over rounds over elapsed_s", optional=True
    ),
    "latency_p50_s": number("median time of one sample", optional=True),
    "latency_p99_s": number("99th percentile of the time of one sample", optional=True),
    "latency_predicted_s": number(
        "time of one sample by a plan of the objective latency", optional=True
    ),
    "makespan_predicted_s": number(
        "time of all samples by the schedule that was followed", optional=True
    ),
    "makespan_measured_s": number(
        "first start to last end of all samples of the schedule", optional=True
    ),
    "bubble": number(
        "idle share of the stages, each between its first start and last end; of a schedule, idle "
        "share of its devices over its makespan",
        optional=True,
    ),
    "taken": number(
        "largest share of its time that other processes, or the host of a virtual machine, took "
        "from a stage or a copy of the model: it could have run, but its processor ran something "
        "else; absent: not known",
        optional=True,
    ),
    "threads": integer("threads of a session", optional=True),
    "optimization": string("graph optimization level", optional=True),
    "verified": boolean("outputs equal those of the whole model, if that was asked", optional=True),
    "max_abs_error": number("largest difference from the whole model", optional=True),
    "max_rel_error": number("the same, relative to the largest value of its output", optional=True),
    "rtol": number("allowed error relative to each value", optional=True),
    "atol": number("allowed error relative to the largest value of an output", optional=True),
    "self_rel_error": number(
        "the same where outputs differ by more: how much the whole model differs from itself, with "
        "other tensors handed out or without optimisation",
        optional=True,
    ),
    "interrupted": boolean("not all samples went through", optional=True),
    "stages": records(
        "predicted and measured load of each stage",
        {
            "stage": Field(
                "id", "id of the stage; several entries where it ran in parts", required=True
            ),
            "device": string("device of the plan, the first if replicated"),
            "replicas": integer("devices that shared the samples; absent: 1", optional=True),
            "shard": integer(
                "which of the shards of the stage it is, or is a part of; absent: there are none",
                optional=True,
            ),
            "provider": string("execution provider; absent: that of the run", optional=True),
            "gpus": Field("list", "numbers of its GPUs", items=integer("", optional=True)),
            "fallback": Field(
                "list",
                "nodes that its provider left to the CPU, those that compute shapes apart",
                items=Field("string", ""),
            ),
            "predicted_s": number("load by the plan"),
            "measured_s": number(
                "median time of a sample over the number of replicas", optional=True
            ),
            "bubble": number("idle share, over all replicas", optional=True),
            "taken": number("share of its time that others took from it", optional=True),
            "memory_bytes": number(
                "memory of the stage by the plan, in a process with the overhead of its class",
                optional=True,
            ),
            "resident_bytes": number(
                "memory that was measured, of the largest replica: what its process held beyond an "
                "empty session at the end; of a thread, what its session took before it ran; "
                "absent: not known",
                optional=True,
            ),
        },
        optional=True,
    ),
    "transfers": record("what the transfers of the schedule took", TRANSFERS, optional=True),
    "workers": string(
        "what computed a stage: a process, or an actor of Ray; absent: a thread of the process "
        "that ran all",
        enum=WORKERS,
        optional=True,
    ),
    "restarts": records(
        "workers that were lost and started again; what they had was computed again",
        {
            "worker": string("which: stage 2, or replica 1 of stage 2"),
            "sample": integer("what it computed, in its pass through the pipeline"),
            "reason": string("how it was lost"),
        },
        optional=True,
    ),
    "choice": record("--choose: what to deploy, and why", CHOICE, optional=True),
    "duration_s": number("time in which samples set out, if that was asked for", optional=True),
    "files": record("what became of inputs that went through once each", FILES, optional=True),
    "arrivals": record(
        "--rate: what became of samples that arrived at their own pace", ARRIVALS, optional=True
    ),
    "sweep": record(
        "--rate sweep: the same at rates up to more than can be done", SWEEP, optional=True
    ),
    "digest": string("digest of the plan that ran", pattern=HEX),
}


UNIT = {
    "name": string("device, as in the plan, or link"),
    "link": boolean("it carries transfers; absent: no", optional=True),
    "memory_bytes": number("most that it may hold; absent: no limit", optional=True),
    "fixed_bytes": number("what it always holds, such as parameters; absent: 0", optional=True),
    "peak_bytes": number("most that it holds in this schedule"),
    "busy_s": number("time that it runs blocks"),
}

PASS = {
    "name": string("unique among the passes"),
    "kind": string(
        "weight: the part of a backward pass that only weights need",
        enum=("forward", "backward", "weight", "transfer"),
    ),
    "stage": integer("stage of the plan that it is a pass of; absent: none", optional=True),
    "nodes": ids(
        "nodes of its stage that it runs, in order; absent: all, of its direction when training",
        optional=True,
    ),
    "homes": Field(
        "list",
        "positions of its units; micro-batch n runs on all of entry n modulo their number",
        required=True,
        items=Field("list", "", items=integer("", optional=True)),
    ),
    "time_s": number("time on all of its units"),
    "memory_bytes": Field(
        "number", "added to each of its units when it starts; absent: 0", signed=True
    ),
    "after": records(
        "passes of the same micro-batch that end before it starts",
        {
            "pass": integer("position in the passes"),
            "delay_s": number("time that must lie between; absent: 0", optional=True),
        },
    ),
}

FOUND_BY = string(
    "what found it: orders: the search over orders of blocks; list: list scheduling alone; "
    "sequential: one block after the other; tessel; tessel-fast",
    optional=True,
)

REPETEND = {
    "unroll": integer("u, micro-batches in a period", positive=True),
    "period_s": number(
        "pass i of micro-batch n starts at starts_s[n % u][i] + (n // u) * period_s"
    ),
    "period_bound_s": number("no repetend of u micro-batches is shorter"),
    "memory_bytes": number(
        "most that a unit holds while it repeats; those apart that every micro-batch leaves "
        "something on"
    ),
    "memory_bound_bytes": number("no repetend of this period needs less"),
    "span_s": number("first start to last end of u micro-batches"),
    "span_bound_s": number("none of this period and memory is shorter"),
    "status": string(
        "optimal: all three equal their bounds", enum=("optimal", "feasible", "interrupted")
    ),
    "method": FOUND_BY,
    "starts_s": Field(
        "list",
        "start of each pass, for each of the u micro-batches",
        required=True,
        items=Field("list", "", items=number("", optional=True)),
    ),
}

POINT = {
    "memory_bytes": number("most that a unit may hold"),
    "unroll": integer("micro-batches in a period", positive=True),
    "period_s": number("least period for each micro-batch"),
    "period_bound_s": number("proven lower bound of it"),
    "method": FOUND_BY,
    "starts_s": Field(
        "list",
        "starts of a repetend that has this period, as in the repetend",
        items=Field("list", "", items=number("", optional=True)),
    ),
}

SCHEDULE = {
    "method": string(
        "method that made it: auto, where it is made of the repetend; the name of a recipe, "
        "optimal or in-turn (each unit runs all of a micro-batch before the next), where that is "
        "shorter or all there is"
    ),
    "micro_batches": integer("N, how many run", positive=True),
    "makespan_s": number("time from the first start to the last end"),
    "bound_s": number("no schedule of N micro-batches is shorter"),
    "status": string(
        "optimal: the makespan equals its bound", enum=("optimal", "feasible", "interrupted")
    ),
    "bubble": number("share of the makespan that devices are idle, over all that have blocks"),
    "rate_s": number("time for each of many micro-batches; absent: not known", optional=True),
    "rate_bound_s": number("no schedule takes less time for each of many micro-batches"),
    "units": records("the devices, and the links if transfers are scheduled", UNIT),
    "passes": records("the blocks of every micro-batch", PASS),
    "repetend": record(
        "the best one found: what repeats in longer schedules, and in this one where its method "
        "is auto, tessel or tessel-fast",
        REPETEND,
        optional=True,
    ),
    "pareto": records(
        "with --pareto: the least period for each memory limit", POINT, optional=True
    ),
    "digest": string(
        "digest of the plan that it is for; absent: there is none", pattern=HEX, optional=True
    ),
}

BLOCK = {
    "pass": integer("position in the passes of the schedule"),
    "micro_batch": integer("from 0"),
    "units": Field(
        "list",
        "positions in the units of the schedule; it runs on all of them",
        required=True,
        unique=True,
        items=integer("", optional=True),
    ),
    "start_s": number("start"),
    "end_s": number("end"),
}
