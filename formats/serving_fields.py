"""What records of a run hold about samples that arrive at their own pace, and about files."""

from __future__ import annotations

from dnnp.formats.fields import Field
from dnnp.formats.record_fields import number, string

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
