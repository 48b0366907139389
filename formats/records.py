"""Every record of the stream, declared once.

From these tables follow what the reader refuses (`formats.stream`), what is written of plans and
schedules, the JSON Schema, the pages of dnnp-graph(5), what Python shows (`dnnp.graph`) and which
fields of results the checks cover. The names of fields say their units: `_s` seconds, `_bytes`,
`_per_s`. `formats.fields.table` says how a line reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnp.formats.fields import Field, object_schema, table

FORMAT, VERSION = "dnnp", 1
WITH_STATE = 2
"""Version of a stream with states, which readers of the first one would not heed."""
VERSIONS = (VERSION, WITH_STATE)

_HEADER = table(
    f"""
    format: = {FORMAT} -- the name of the format
    version: int to {WITH_STATE} -- version of the format: {VERSION}; {WITH_STATE} where there are
            states or phases
    model: string -- name of the model
    source?: object -- the file the graph came from
        kind: onnx|msr-json|piper|costgraph|csv|dot|graphml|gml|node-link|stg|wfcommons|dagbench --
                file format
        path: string -- path as given to dnnp-import
        sha256: digest -- hash of the file
        set_inputs?: map of string -- input of the model that has a fixed value -> this, as it was
                given; absent: none
        keep_outputs?: list of string -- outputs of the model that are kept, with what they need;
                absent: all
        ran?: bool -- onnx: sizes of tensors were found by running the model
        edges?: object -- csv: the file with the list of edges, if it is another
            path: string -- its path
            sha256: digest -- its hash
    units: object -- units of the numbers
        time: s|unknown -- s, or unknown
    training?: bool -- the graph holds a backward pass
    micro_batches?: positive int -- micro-batches in a batch; absent: dnnp-partition says
    work?: digest -- digest of flop and bytes of the nodes when they were priced by them; absent:
            unknown
    costs?: list of object -- files that prices were taken from, by dnnp-profile --costs, in order
        file: string -- its path
        kind: csv|onnxruntime|tensorrt -- what it is
        class: string -- device class that it prices
        nodes: int -- nodes that it prices
        idle: int -- nodes that did not run, at 0 s
        kept: int -- nodes that stay priced as they were
        unknown: int -- names in it that no node has
    measured?: object -- how times were measured, those in base_s where there are any; absent: they
            were not
        provider: string -- execution provider of ONNX Runtime
        provider_options?: list of string -- its options, NAME=VALUE; absent: none
        fallback?: list of string -- nodes that the provider left to the CPU, those that compute
                shapes apart
        threads: positive int -- threads of a stage
        optimization: string -- optimization level
        beside: int -- parts of the model that ran beside each, on cores of their own
        rounds: positive int -- how often, each time several runs
        total_s: number -- sum of the parts, with warm caches
        cold_s: number -- sum of the parts, with cold caches
        spread?: number -- half the width of the confidence interval (95 %) of total_s, relative to
                it; absent: too few rounds
        taken?: number -- share of the time that other processes took, of all parts together;
                absent: not known
        disturbed?: bool -- other processes took enough from some measurement to make times too long
    calibration?: object -- factors that were learned from runs and are part of all costs; absent:
            none are
        class: string -- device class they are for
        costs: string -- where the costs came from that they multiply
        models: int -- models that ran
        stages: int -- measured loads of stages
        transfer: positive number -- factor of times of transfers; bandwidths were divided by it
        spread?: number -- median error of the loads of models that were left out of a fit
    provenance: list of object -- every command that touched the stream, in order
        tool: string -- command
        version: string -- its version
        arguments: list of string -- its arguments
        elapsed_s?: number -- time it took, with --timings
    """,
)

_DEVICE = table(
    """
    class: string @all -- device class; the key of time_s
    kind: accelerator|cpu @all -- cpu: compute only, no capacity
    name?: string @all -- what it is, in words
    count?: int @all -- number of devices; absent: decided by -k
    fitted?: bool @all -- priced by rates fitted to operators that ran there; absent: by others, or
            otherwise
    memory_bytes?: number @all -- capacity of one device for its stages
    overhead_bytes?: number @all -- what a process takes there besides its stages, such as code of
            the provider, and not a part of memory_bytes; absent: 0
    fast_memory_bytes?: number @all -- on-chip memory of one device, the capacity with --memory fast
    bandwidth_bytes_per_s?: positive number @all -- bandwidth of one device's link
    cluster_size?: int @all -- devices with equal number / cluster_size, rounded down, form a
            cluster; 0: none
    inner_bandwidth_bytes_per_s?: positive number @all -- bandwidth of a link inside a cluster;
            needed where there are clusters
    larger_clusters?: list of object @all -- clusters of clusters, growing; each size is a multiple
            of the one before
        cluster_size: positive int @all -- devices with equal number / cluster_size
        bandwidth_bytes_per_s: positive number @all -- bandwidth of a link between smaller clusters
                in it
    """,
)

_LINK = table(
    """
    from: string -- device, v100/0, or a class for all its devices
    to: string -- device, or class, at the other end
    bandwidth_bytes_per_s: positive number -- bandwidth
    back_bandwidth_bytes_per_s?: positive number -- bandwidth of the other direction; absent: the
            same
    latency_s?: number -- time that each transfer takes on top; absent: 0
    """,
)

_TENSOR = table(
    """
    id: id -- unique among tensors
    name: string -- name in the source; need not be unique
    kind: input|activation|parameter|constant -- where it comes from
    size_bytes: number -- size
    memory_bytes?: number -- what it takes in the memory of a device that holds it; absent:
            size_bytes
    dtype?: string -- element type, or sequence, optional, map
    shape?: list of int -- dimensions, when known
    transfer_s?: number -- time to move it once; replaces size over bandwidth
    output?: bool -- an output of the model
    size_unknown?: bool -- no inference found the size, which is 0 here
    shards?: list of object -- what moves besides where a stage on several devices at once makes or
            reads it
        devices: positive int -- how many devices hold the stage
        in_bytes?: number -- what each of them moves when it enters the stage; absent: 0
        out_bytes?: number -- what each of them moves before it leaves the stage; absent: 0
    """,
)

_STATE = table(
    """
    id: id -- unique among states
    name: string -- name of the tensor that is its input
    input: id -- tensor of kind input that holds it before a pass
    output: id -- output of the model that holds it after the pass
    rows: positive int -- sequences of one pass
    sequence_bytes?: number -- bytes that each sequence takes whatever its length; absent: 0
    token_bytes?: number -- bytes that each of its tokens takes; absent: 0
    tokens?: int -- tokens of each sequence after the pass; absent: 0
    shared?: bool -- one buffer can be both input and output; absent: both are there in a pass
    """
)

_PHASE = table(
    """
    id: id -- position, from 0; the first has its costs on nodes, tensors and groups
    name: prompt|token -- what its passes do
    rows: positive int -- sequences of a pass
    seq: positive int -- tokens of each of them in the pass
    past: int -- tokens that each has before the pass
    sizes?: list of number -- bytes of each tensor, in the order of their records
    shapes?: list of list of signed int -- dimensions of each; [-1]: not known
    flop?: list of signed number -- floating point operations of each node; -1: unknown
    bytes?: list of number -- bytes that each moves to and from memory
    partial?: set of int -- positions of nodes whose flop and bytes leave out work
    times?: map of list of signed number -- seconds of each node by device class; -1: it cannot run
            there
    group_times?: map of list of signed number -- the same of each group; absent: the sum of its
            nodes
    basis?: digest -- digest of times when groups were priced as units; absent: they were not
    work?: digest -- digest of flop and bytes when they were priced by them; absent: unknown
    """
)

_TIMES = table(
    "time_s?: map of number -- seconds by device class; a class that is absent cannot run it"
)

_COSTS = _TIMES | table(
    """
    spread?: number -- half the width of the confidence interval (95 %) over the time, of the part
            of the model that was timed
    base_s?: map of number -- time_s before factors that were learned from runs; absent: there are
            none
    """
)

_NODE = table(
    """
    id: id -- unique among nodes; the index in the ONNX graph
    name: string -- name in the source; need not be unique
    op: string -- operator type
    domain?: string -- operator domain, when not the default one
    inputs: set of id -- tensors read, captures of subgraph bodies included
    outputs: set of id -- tensors written
    captures?: set of id -- inputs that only subgraph bodies read
    flop?: number -- floating point operations; absent: unknown
    bytes?: number -- bytes moved to and from memory
    partial?: bool -- flop and bytes leave out operators of bodies, or all trips of a loop but one,
            that are unknown
    + COSTS
    memory_bytes?: number -- memory of the node, where the source gives it
    held_bytes?: number -- the part of it that each micro-batch holds from its forward to its
            backward pass; absent: 0
    shards?: list of object -- the node on several devices at once, each with a part of it; 1: on
            one device
        devices: positive int -- how many devices run the node at once
        + TIMES
        memory_bytes?: number -- its memory on each of them, held_bytes included
        held_bytes?: number -- the part of that which each micro-batch under way holds; absent: 0
        weight_bytes?: number -- weights on each of them, which replicas synchronise; absent: 0
        collectives?: list of object -- what they exchange when it has run, or before
            kind: all-reduce|all-gather|reduce-scatter|all-to-all -- what it is
            bytes: number -- size of the whole tensor
        layout?: object -- what each device takes of its tensors, for dnnp-run and dnnp-export;
                absent: unknown
            inputs: list of signed int -- of each input the axis along which it is cut into a part
                    for each device, in order; -1: each has all of it
            outputs: list of signed int -- the same of each output
            input_blocks?: list of positive int -- of each input into how many equal parts the axis
                    is taken apart, of each of which a device has its part; absent: 1 each
            output_blocks?: list of positive int -- the same of each output
            reduced?: bool -- the outputs are added up over the devices; absent: no
        recomputed?: object -- the same where its backward pass repeats its forward pass; absent: it
                follows from the graph
            + TIMES
            memory_bytes: number -- memory on each device
            held_bytes?: number -- the part that each micro-batch holds; absent: 0
    folded?: bool -- computed from constants alone, once, when a session is made; what it makes
            counts as constant in memory; absent: no
    backward?: bool -- belongs to the backward pass
    of?: id -- backward: the node whose gradient it computes
    color?: id -- nodes of one colour share a device
    layer?: string -- layer in the source
    scope?: string -- name scope in the source
    """,
    TIMES=_TIMES,
    COSTS=_COSTS,
)

_GROUP = table(
    """
    id: id -- unique among groups
    name: string -- what the group is
    nodes: set of id -- members in topological order
    rule?: string -- rule that made it
    + COSTS
    cost?: summed|analytic|measured|scaled|calibrated -- where time_s comes from; absent: from the
            group itself
    basis?: digest -- digest of the times of its nodes when it was priced as a unit; absent: unknown
    flop?: number -- floating point operations
    bytes?: number -- bytes moved to and from memory
    """,
    COSTS=_COSTS,
)

_PLAN = table(
    """
    id: = 0 @all -- 0
    k: int @all -- number of accelerators offered
    method: string @all -- method that found it
    objective: throughput|gpipe|latency @all -- throughput: the largest load; gpipe: the largest
            forward load plus the largest backward load; latency: the time of one sample
    validity: ordered|convex|free @all -- ordered: the stages form a pipeline; convex: no path
            leaves a stage and comes back; free: no promise
    value: number @all -- the objective
    bound: number @all -- proven lower bound of the value of any split of this validity
    gap: number @all -- (value - bound) / value
    status: optimal|within_gap|feasible|interrupted|infeasible @all -- optimal: proven; within_gap:
            the gap is at most max_gap, where the search need not go on; infeasible: capacities were
            ignored, and some device has too little
    comm: sum|overlap|duplex @all -- how transfers count
    memory_model: sum|peak|weights @all -- how memory counts; weights: for latency alone
    memory_mode: hard|overflow|ignore @all -- what happens above capacity; ignore: nothing, the plan
            is marked infeasible
    charge_io: bool @all -- model inputs and outputs cost transfers
    devices: list of DEVICE @all -- the devices offered
    digest: digest @all -- digest of what it was computed from
    max_replicas?: positive int @stages -- devices that one stage may be replicated over; absent: 1
    in_flight?: positive int @stages,operators,blocks -- sequences under way, whose states are kept;
            absent: those of a pass
    max_length?: positive int @stages,operators,blocks -- tokens that the states have room for, of
            each sequence; absent: those of a pass
    workload?: object @stages -- sequences that it is for, where the graph has phases: means over
            them; times and transfers are those of a sequence
        prompt: positive number @stages -- tokens of a prompt
        tokens: positive number @stages -- tokens that are generated
        longest: positive int @stages -- tokens of the longest sequence, its prompt included
        prompt_past: number @stages -- tokens before a pass over a prompt in chunks; 0: in one pass
        token_past: number @stages -- tokens before a pass over a token
        rows: positive int @stages -- sequences of a pass over tokens
    tokens_per_s?: number @stages -- tokens that are generated in a second, with in_flight sequences
            under way
    ttft_s?: number @stages -- time to first token of a sequence that is alone
    tpot_s?: number @stages -- time of each later token of such a sequence
    execution?: blocks|operators @blocks,operators -- latency: blocks: accelerators are invoked for
            whole blocks; operators: every unit is placed by itself
    invocations?: positive int @blocks,operators -- latency of blocks: how often a device may be
            invoked in a pass
    transfers?: tensor|edge @blocks,operators -- latency: a tensor moves once to a device, or all of
            an edge for itself
    congestion?: device|channel|none @blocks,operators -- latency of operators: transfers that wait
            for each other: those that one device sends, or receives; those of one channel; none
    links?: list of object @stages,operators -- the links between the devices, one direction each;
            absent: what the classes state
        from: string @stages,operators -- device that sends
        to: string @stages,operators -- device that receives
        bandwidth_bytes_per_s: positive number @stages,operators -- bandwidth
        latency_s: number @stages,operators -- time that each transfer takes on top
    bound_method?: string @blocks,operators -- latency: argument that proves the bound
    contiguous_bound?: number @stages -- clusters: proven lower bound of the value of ordered splits
            that give each cluster one contiguous segment of the pipeline; absent: no more than the
            bound
    ways?: list of object @stages -- --allow-replicas: the ways to use the devices that were
            compared, the simplest first; the plan is the fastest
        way: whole|replicas|pipeline|replicated-pipeline @stages -- whole: the model on one device;
                replicas of it; pipeline: stages on a device each; replicated-pipeline: stages, some
                on several devices
        stages?: positive int @stages -- its stages
        devices?: positive int @stages -- the devices that it uses
        value?: number @stages -- objective of the best one; absent: there is none to show
        class?: string @stages -- class of those that hold the whole model
        reason?: string @stages -- why there is none: no device can hold the model, or none is
                faster than a simpler way
    tried?: list of object @all -- --method a,b: the methods that were compared; the plan is the
            best, at ties the first
        method: string @all -- the method that was asked for
        value?: number @all -- objective of its plan; absent: it found none
        bound?: number @all -- lower bound that it proved, for its validity
        gap?: number @all -- (value - bound) / value
        validity?: ordered|convex|free @all -- of its plan
        status: optimal|feasible|interrupted|infeasible|limit|unavailable @all -- as of a plan;
                without a value: infeasible, or limit: it was stopped before; unavailable: something
                that it needs is missing
        made_by?: string @all -- method that made its plan, if that has another name
        reason?: string @all -- why there is no plan
        time_s?: number @all -- time it took, with --timings
    planned_by?: classes @stages,operators -- classes: the method knew the best link of each class
            only, and the plan was then priced with the links; absent: it heeded all that there is
    policy?: object @all -- method placeto: the policy, and how it was trained
        digest: digest @all -- SHA-256 of its sizes and weights
        trained: int @all -- episodes of training, all in all; 0: random weights
        episodes: int @all -- those of this run
        asked: int @all -- those that were to be
        graphs: int @all -- graphs that this run trained on
        hops: positive int @all -- rounds of message passing
        groups: positive int @all -- groups that it placed
        colors: positive int @all -- operators, or those that must be together as one; if more than
                the groups, merged
        rounds: positive int @all -- in each of which it visited all groups
    max_gap?: positive number @all -- within_gap: the gap that was asked for
    excess_bytes?: positive number @all -- infeasible: the most memory that a device needs beyond
            what it has
    parallel?: object @parallel -- parallel plans: what they could use
        tensor_parallel: positive int @parallel -- devices that may hold a replica of a stage
                together
        data_parallel: positive int @parallel -- replicas of a stage, at most
        micro_batches: positive int @parallel -- micro-batches in a batch
        recompute: none|full|auto @parallel -- stages that run their forward passes again
        weight_sync: ring|server @parallel -- how replicas add up gradients
        overlap_sync: bool @parallel -- they do so while the stage computes
        shared_stages?: int @parallel -- stages that all devices share, at most: bound and status
                are those of such plans; absent: 0
    spread?: number @all -- half the width of the confidence interval (95 %) over the value, where
            costs were measured
    unknown?: object @all -- what its costs leave out; absent: nothing
        time: number @all -- share of the time of its nodes that no formula covers, or only in part,
                or that was made from unknown sizes
        sizes: int @all -- tensors of unknown size, which count as 0 bytes
    """,
    DEVICE=_DEVICE,
)

_STAGE = table(
    """
    id: id @all -- position in the pipeline, from 0
    device: string @all -- class and number of the (first) device: cpu-core/0
    class: string @all -- device class
    nodes: set of id @all -- nodes in execution order
    load_s: number @all -- load by the plan's comm model, divided by the replicas
    in_s: number @all -- transfers in of a sample
    compute_s: number @all -- compute of a sample
    overflow_s: number @all -- parameters streamed above capacity
    out_s: number @all -- transfers out of a sample
    memory_bytes: number @all -- memory of each device, by the memory model
    replicas?: positive int @all -- devices, from this one on, that share the samples; absent: 1
    sync_s?: number @all -- weight synchronisation of replicas; absent: 0
    shards?: positive int @parallel -- devices that each replica takes, one after the other, its
            tensor-parallel degree; absent: 1
    collective_s?: number @parallel -- the part of the compute that shards spend exchanging tensors;
            absent: 0
    recomputed?: set of id @parallel -- forward nodes that the backward pass runs again; where nodes
            state what they take then, those that take it
    in_flight?: positive int @parallel -- parallel plans: micro-batches under way on a device at
            once
    shared?: bool @parallel -- parallel plans: all devices of the class hold it, one shard each,
            besides stages of their own; absent: false
    forward_s?: number @stages -- load of the forward nodes, when training
    backward_s?: number @stages -- load of the backward nodes, when training
    peak_bytes?: number @stages,blocks,operators -- the part of it that is live activations at their
            peak
    peak_bound_bytes?: number @stages -- proven lower bound of that peak over all orders of the
            nodes
    begin_s?: number @blocks,operators -- latency: when its first transfer or task starts
    end_s?: number @blocks,operators -- latency: when all of it is done
    starts_s?: list of number @operators -- latency of operators: start of each group (or node,
            without groups), in the order of nodes
    receives?: list of object @operators -- latency of operators: what other devices send to this
            one, by start
        tensors: set of id @operators -- what moves
        from: string @operators -- device that sends
        start_s: number @operators -- start
        end_s: number @operators -- arrival
    """,
)

_BOUND = table(
    """
    method: string @all -- the argument that proves it: simple, chain, node-cut, ...
    value: number @all -- proven lower bound of the objective of any split of this validity
    gap: number @all -- (value of the plan - bound) / value of the plan
    status: optimal|proven|interrupted @all -- optimal: no split is better than the plan;
            interrupted: by a signal
    validity: ordered|convex|free @all -- the splits it holds for; those of a stronger validity are
            among them
    tried: list of object @all -- every argument that was tried, in order
        method: string @all -- the argument
        status: solved|limit|refused|failed @all -- solved: it gave all it can; limit: it was
                stopped before, what it proved holds; refused: it does not apply here; failed: its
                solver did
        value?: number @all -- bound that it proves; absent: none
        reason?: string @all -- why it was stopped, was refused or failed
        time_s?: number @all -- time it took, with --timings
    certificate?: open object @all -- with what another program verifies the bound
        argument: string -- what kind of certificate
    digest: digest @all -- digest of the plan, its devices and its cost model
    """,
)

_FOUND_BY = table(
    """
    method?: string @all -- what found it: orders: the search over orders of blocks; list: list
            scheduling alone; sequential: one block after the other; tessel; tessel-fast
    """
)

_SCHEDULE = table(
    """
    method: string @all -- method that made it: auto, where it is made of the repetend; the name of
            a recipe, optimal or in-turn (each unit runs all of a micro-batch before the next),
            where that is shorter or all there is
    micro_batches: positive int @all -- N, how many run
    makespan_s: number @all -- time from the first start to the last end
    bound_s: number @all -- no schedule of N micro-batches is shorter
    status: optimal|feasible|interrupted @all -- optimal: the makespan equals its bound
    bubble: number @all -- share of the makespan that devices are idle, over all that have blocks
    rate_bound_s: number @all -- no schedule takes less time for each of many micro-batches
    units: list of object @all -- the devices, and the links if transfers are scheduled
        name: string @all -- device, as in the plan, or link
        peak_bytes: number @all -- most that it holds in this schedule
        busy_s: number @all -- time that it runs blocks
        link?: bool @all -- it carries transfers; absent: no
        memory_bytes?: number @all -- most that it may hold; absent: no limit
        fixed_bytes?: number @all -- what it always holds, such as parameters; absent: 0
    passes: list of object @all -- the blocks of every micro-batch
        name: string @all -- unique among the passes
        kind: forward|backward|weight|transfer @all -- weight: the part of a backward pass that only
                weights need
        homes: list of list of int @all -- positions of its units; micro-batch n runs on all of
                entry n modulo their number
        time_s: number @all -- time on all of its units
        after: list of object @all -- passes of the same micro-batch that end before it starts
            pass: int @all -- position in the passes
            delay_s?: number @all -- time that must lie between; absent: 0
        memory_bytes?: signed number @all -- added to each of its units when it starts; absent: 0
        stage?: int @all -- stage of the plan that it is a pass of; absent: none
        nodes?: set of id @all -- nodes of its stage that it runs, in order; absent: all, of its
                direction when training
    rate_s?: number @all -- time for each of many micro-batches; absent: not known
    repetend?: object @all -- the best one found: what repeats in longer schedules, and in this one
            where its method is auto, tessel or tessel-fast
        unroll: positive int @all -- u, micro-batches in a period
        period_s: number @all -- pass i of micro-batch n starts at starts_s[n % u][i] + (n // u) *
                period_s
        period_bound_s: number @all -- no repetend of u micro-batches is shorter
        memory_bytes: number @all -- most that a unit holds while it repeats; those apart that every
                micro-batch leaves something on
        memory_bound_bytes: number @all -- no repetend of this period needs less
        span_s: number @all -- first start to last end of u micro-batches
        span_bound_s: number @all -- none of this period and memory is shorter
        status: optimal|feasible|interrupted @all -- optimal: all three equal their bounds
        + FOUND_BY
        starts_s: list of list of number @all -- start of each pass, for each of the u micro-batches
    pareto?: list of object @all -- with --pareto: the least period for each memory limit
        memory_bytes: number @all -- most that a unit may hold
        unroll: positive int @all -- micro-batches in a period
        period_s: number @all -- least period for each micro-batch
        period_bound_s: number @all -- proven lower bound of it
        + FOUND_BY
        starts_s?: list of list of number @all -- starts of a repetend that has this period, as in
                the repetend
    digest?: digest @all -- digest of the plan that it is for; absent: there is none
    """,
    FOUND_BY=_FOUND_BY,
)

_BLOCK = table(
    """
    pass: int @all -- position in the passes of the schedule
    micro_batch: int @all -- from 0
    units: set of int @all -- positions in the units of the schedule; it runs on all of them
    start_s: number @all -- start
    end_s: number @all -- end
    """,
)

_PROCESS = table(
    """
    process: poisson|uniform -- how samples arrive: poisson: at random; uniform: at equal distances
    seed?: int -- seed of arrivals at random
    """,
)

_RATE = table(
    """
    rate_per_s: positive number -- samples that arrive a second
    samples: positive int -- samples that arrived and went through
    span_s: number -- time from the first to the last arrival
    throughput_per_s: number -- samples per second, from the first arrival to the last output
    latency_mean_s: number -- mean time of a sample from its arrival to its last output, waiting
            included
    latency_p50_s: number -- its median
    latency_p90_s: number -- its 90th percentile
    latency_p99_s: number -- its 99th percentile
    latency_p999_s: number -- its 99.9th percentile
    latency_max_s: number -- its maximum
    backlog: int -- samples that had arrived, but were not through, when the last one arrived
    saturated: bool -- the pipeline does not keep up: the backlog exceeds the replicas of all stages
            by more than 5 % of the samples, and by more than the root of their number
    """,
)

_RUN = table(
    """
    mode: pipeline|whole|replicas -- what ran
    provider: string -- execution provider; several are joined by +
    provider_options?: list of string -- its options, NAME=VALUE; absent: none
    links?: list of object -- how tensors moved from stage to stage
        from: int -- position in stages of the one that sends
        to: int -- position of the one that receives
        how: shared|device|peer|host -- shared: in the memory of the host, where both compute;
                device: they stay on one GPU; peer: from one GPU to another; host: through the
                memory of the host
    overlap?: bool -- what goes to and from GPUs was copied by the threads of stages on the CPU;
            absent: by those of the stages on the GPUs, whose loads contain it
    k?: int -- stages, or copies of the model
    samples: int -- samples that went through and were measured, of all rounds
    discarded?: int -- samples that went through but do not count: until the rate was steady, the
            warm-up, and measurements that other processes disturbed more
    rounds?: positive int -- how often they did, to be compared; absent: 1
    elapsed_s?: number -- time of a round, the median: to its last output, from the last one of the
            warm-up, or from the first start
    throughput_per_s?: number -- samples per second: samples over rounds over elapsed_s
    latency_p50_s?: number -- median time of one sample
    latency_p99_s?: number -- 99th percentile of the time of one sample
    latency_predicted_s?: number -- time of one sample by a plan of the objective latency
    makespan_predicted_s?: number -- time of all samples by the schedule that was followed
    makespan_measured_s?: number -- first start to last end of all samples of the schedule
    bubble?: number -- idle share of the stages, each between its first start and last end; of a
            schedule, idle share of its devices over its makespan
    taken?: number -- largest share of its time that other processes, or the host of a virtual
            machine, took from a stage or a copy of the model: it could have run, but its processor
            ran something else; absent: not known
    threads?: int -- threads of a session
    optimization?: string -- graph optimization level
    verified?: bool -- outputs equal those of the whole model, if that was asked
    max_abs_error?: number -- largest difference from the whole model
    max_rel_error?: number -- the same, relative to the largest value of its output
    rtol?: number -- allowed error relative to each value
    atol?: number -- allowed error relative to the largest value of an output
    self_rel_error?: number -- the same where outputs differ by more: how much the whole model
            differs from itself, with other tensors handed out or without optimisation
    interrupted?: bool -- not all samples went through
    stages?: list of object -- predicted and measured load of each stage
        stage: id -- id of the stage; several entries where it ran in parts
        device: string -- device of the plan, the first if replicated
        replicas?: int -- devices that shared the samples; absent: 1
        shard?: int -- which of the shards of the stage it is, or is a part of; absent: there are
                none
        provider?: string -- execution provider; absent: that of the run
        gpus?: list of int -- numbers of its GPUs
        fallback?: list of string -- nodes that its provider left to the CPU, those that compute
                shapes apart
        predicted_s: number -- load by the plan
        measured_s?: number -- median time of a sample over the number of replicas
        bubble?: number -- idle share, over all replicas
        taken?: number -- share of its time that others took from it
        memory_bytes?: number -- memory of the stage by the plan, in a process with the overhead of
                its class
        resident_bytes?: number -- memory that was measured, of the largest replica: what its
                process held beyond an empty session at the end; of a thread, what its session took
                before it ran; absent: not known
    transfers?: object -- what the transfers of the schedule took
        how: copied|emulated -- copied: every tensor, from a GPU to the host; emulated: nothing
                moved, and each transfer took as long as the schedule says, or longer
        share_predicted: number -- by the schedule: share of the makespan that devices with blocking
                transfers, and the links of the others, are occupied by transfers
        share_measured: number -- the same, of the makespan that was measured
        moves: list of object -- the transfers, in the order of the passes
            pass: int -- position in the passes of the schedule
            blocking: bool -- devices were occupied, not links
            bytes: number -- what moved, for each sample
            predicted_s: number -- time by the schedule
            measured_s: number -- median time of a sample
    workers?: process|ray -- what computed a stage: a process, or an actor of Ray; absent: a thread
            of the process that ran all
    restarts?: list of object -- workers that were lost and started again; what they had was
            computed again
        worker: string -- which: stage 2, or replica 1 of stage 2
        sample: int -- what it computed, in its pass through the pipeline
        reason: string -- how it was lost
    choice?: object -- --choose: what to deploy, and why
        mode: pipeline|whole|replicas -- what to deploy: the fastest of those that ran
        ratio: number -- its throughput over that of the pipeline
        predicted_ratio?: number -- what was predicted of that; absent: nothing, where sessions do
                not have a device of the plan each
        second?: pipeline|whole|replicas -- the next best; absent: there is none
        lead?: number -- throughput over that of the next best
        clear: bool -- the next best is slower by more than rounds differ, and others took no more
                than 10 % of the time of anything that was compared; or there is none
        taken?: number -- the largest share that they took; absent: nothing to compare
        reason: string -- why, in words
        ruled_out?: list of object -- what did not run, since no device of the plan can hold the
                whole model
            mode: pipeline|whole|replicas -- what
            reason: string -- why
    duration_s?: number -- time in which samples set out, if that was asked for
    files?: object -- what became of inputs that went through once each
        written: int -- inputs that went through, each once
        skipped: int -- inputs whose outputs were there before
        failed: int -- inputs that cannot be read, that the model does not take, or on which a stage
                failed
    arrivals?: object -- --rate: what became of samples that arrived at their own pace
        + PROCESS
        + RATE
    sweep?: object -- --rate sweep: the same at rates up to more than can be done
        + PROCESS
        capacity_per_s: number -- samples per second where each is there as soon as there is room
                for it
        knee_per_s?: number -- rate at which throughput over mean latency is largest
        sustained_per_s?: number -- highest rate below the first one with which the pipeline does
                not keep up; absent: none is
        rates: list of object -- the rates that were tried, the lowest first
            share: number -- the rate over the capacity
            + RATE
    digest: digest -- digest of the plan that ran
    """,
    PROCESS=_PROCESS,
    RATE=_RATE,
)

_GENERATION = table(
    """
    sequences: int -- sequences that were generated
    tokens: int -- tokens of all of them
    rows: positive int -- sequences of a pass over tokens
    in_flight: positive int -- sequences under way, at most
    tokens_per_s: number -- tokens in a second, from the first prompt to the last token
    ttft_p50_s?: number -- median time from the begin of a sequence to its first token
    ttft_p99_s?: number -- 99th percentile of it
    tpot_p50_s?: number -- median time from a token to the next one
    tpot_p99_s?: number -- 99th percentile of it
    whole_tokens_per_s?: number -- --compare: the same of the whole model in one session
    ties?: int -- --verify: sequences that part from the whole model's at a tie; absent: not
            compared, and else they are equal
    digest: digest -- digest of the plan that ran
    """,
)

_END = table(
    """
    records: int -- number of records before this one
    """,
)

RECORDS: dict[str, dict[str, Field]] = {
    "header": _HEADER,
    "device": _DEVICE,
    "link": _LINK,
    "tensor": _TENSOR,
    "state": _STATE,
    "phase": _PHASE,
    "node": _NODE,
    "group": _GROUP,
    "plan": _PLAN,
    "stage": _STAGE,
    "bound": _BOUND,
    "schedule": _SCHEDULE,
    "block": _BLOCK,
    "run": _RUN,
    "generation": _GENERATION,
    "end": _END,
}

UNIQUE = {
    "tensor": "id", "state": "id", "phase": "id", "node": "id", "group": "id", "stage": "id",
    "device": "class",
}  # fmt: skip
"""Record types of which no two may have an equal field, and the field."""

SINGLE = ("plan", "bound", "schedule")
"""Records of which there is one at most."""


def covered(kind: str, part: str) -> dict[str, Any]:
    """Fields of a kind of record that a part of the checks covers; see `core.check.declared`."""
    return {"type": None, **_covered(RECORDS[kind], part)}


def _covered(fields: Mapping[str, Field], part: str) -> dict[str, Any]:
    """Field -> the covered fields of its objects, the values of a mode, or None for any value."""
    tree: dict[str, Any] = {}
    for name, spec in fields.items():
        if part in spec.covered:
            closed = spec.inner and not spec.open
            tree[name] = _covered(spec.inner, part) if closed else spec.modes or None
    return tree


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one record of the stream."""
    types = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": {"$ref": f"#/$defs/{kind}"}}
        for kind in RECORDS
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of the dnnp stream, version 1 or 2",
        "type": "object",
        "properties": {"type": {"type": "string"}},
        "required": ["type"],
        "allOf": types,
        "$defs": {kind: object_schema(fields) for kind, fields in RECORDS.items()},
    }
