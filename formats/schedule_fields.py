"""What records of a schedule hold: its passes, what repeats, and its blocks."""

from __future__ import annotations

from dnnp.formats.fields import HEX, Field, boolean, ids, integer, number, record, records, string

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
