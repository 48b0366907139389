"""What records of a schedule hold: its passes, what repeats, and its blocks."""

from __future__ import annotations

from dnnp.formats.fields import HEX, Field, ids, number, string

UNIT = {
    "name": string("device, as in the plan, or link", required=True),
    "link": Field("bool", "it carries transfers; absent: no"),
    "memory_bytes": number("most that it may hold; absent: no limit"),
    "fixed_bytes": number("what it always holds, such as parameters; absent: 0"),
    "peak_bytes": number("most that it holds in this schedule", required=True),
    "busy_s": number("time that it runs blocks", required=True),
}

PASS = {
    "name": string("unique among the passes", required=True),
    "kind": string(
        "weight: the part of a backward pass that only weights need",
        required=True,
        enum=("forward", "backward", "weight", "transfer"),
    ),
    "stage": Field("int", "stage of the plan that it is a pass of; absent: none"),
    "nodes": ids("nodes of its stage that it runs, in order; absent: all of them", required=False),
    "homes": Field(
        "list",
        "positions of its units; micro-batch n runs on all of entry n modulo their number",
        required=True,
        items=Field("list", "", items=Field("int", "")),
    ),
    "time_s": number("time on all of its units", required=True),
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
                "delay_s": number("time that must lie between; absent: 0"),
            },
        ),
    ),
}

FOUND_BY = string(
    "what found it: orders: the search over orders of blocks; grid: that on whole ticks; list: "
    "list scheduling alone; sequential: one block after the other; tessel; tessel-fast"
)

REPETEND = {
    "unroll": Field("int", "u, micro-batches in a period", required=True, positive=True),
    "period_s": number(
        "pass i of micro-batch n starts at starts_s[n % u][i] + (n // u) * period_s", required=True
    ),
    "period_bound_s": number("no repetend of u micro-batches is shorter", required=True),
    "memory_bytes": number(
        "most that a unit holds while it repeats; those apart that every micro-batch leaves "
        "something on",
        required=True,
    ),
    "memory_bound_bytes": number("no repetend of this period needs less", required=True),
    "span_s": number("first start to last end of u micro-batches", required=True),
    "span_bound_s": number("none of this period and memory is shorter", required=True),
    "status": string(
        "optimal: all three equal their bounds",
        required=True,
        enum=("optimal", "feasible", "interrupted"),
    ),
    "method": FOUND_BY,
    "starts_s": Field(
        "list",
        "start of each pass, for each of the u micro-batches",
        required=True,
        items=Field("list", "", items=number("")),
    ),
}

POINT = {
    "memory_bytes": number("most that a unit may hold", required=True),
    "unroll": Field("int", "micro-batches in a period", required=True, positive=True),
    "period_s": number("least period for each micro-batch", required=True),
    "period_bound_s": number("proven lower bound of it", required=True),
    "method": FOUND_BY,
    "starts_s": Field(
        "list",
        "starts of a repetend that has this period, as in the repetend",
        items=Field("list", "", items=number("")),
    ),
}

SCHEDULE = {
    "method": string(
        "method that made it: auto, where it is made of the repetend; the name of a recipe, "
        "optimal or in-turn (each unit runs all of a micro-batch before the next), where that "
        "is shorter or all there is",
        required=True,
    ),
    "micro_batches": Field("int", "N, how many run", required=True, positive=True),
    "makespan_s": number("time from the first start to the last end", required=True),
    "bound_s": number("no schedule of N micro-batches is shorter", required=True),
    "status": string(
        "optimal: the makespan equals its bound",
        required=True,
        enum=("optimal", "feasible", "interrupted"),
    ),
    "bubble": number(
        "share of the makespan that devices are idle, over all that have blocks", required=True
    ),
    "rate_s": number("time for each of many micro-batches; absent: not known"),
    "rate_bound_s": number(
        "no schedule takes less time for each of many micro-batches", required=True
    ),
    "units": Field(
        "list",
        "the devices, and the links if transfers are scheduled",
        required=True,
        items=Field("object", "", fields=UNIT),
    ),
    "passes": Field(
        "list",
        "the blocks of every micro-batch",
        required=True,
        items=Field("object", "", fields=PASS),
    ),
    "repetend": Field(
        "object",
        "the best one found: what repeats in longer schedules, and in this one where its "
        "method is auto, tessel or tessel-fast",
        fields=REPETEND,
    ),
    "pareto": Field(
        "list",
        "with --pareto: the least period for each memory limit",
        items=Field("object", "", fields=POINT),
    ),
    "digest": Field(
        "string",
        "digest of the plan that it is for; absent: there is none",
        pattern=HEX,
    ),
}

BLOCK = {
    "pass": Field("int", "position in the passes of the schedule", required=True),
    "micro_batch": Field("int", "from 0", required=True),
    "units": Field(
        "list",
        "positions in the units of the schedule; it runs on all of them",
        required=True,
        unique=True,
        items=Field("int", ""),
    ),
    "start_s": number("start", required=True),
    "end_s": number("end", required=True),
}
