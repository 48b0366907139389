"""A plan: an assignment of every node to a stage, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.graph import Ints
from dnnp.core.model.phases import Sequences
from dnnp.core.model.placing import Rule
from dnnp.core.model.text import counted, shown_share, shown_time

OBJECTIVES = {
    "throughput": "largest load",
    "gpipe": "forward plus backward load",
    "latency": "latency",
    "sequence": "latency",
}
"""Meaning of the value of a plan, by its objective."""

CLOSED = 1e-9
"""Relative gap between value and bound up to which a plan counts as optimal."""

WITHIN = "within_gap"
"""Status of plans whose gap is not closed, but as small as was asked for."""


VALIDITIES = ("free", "convex", "ordered")
"""Validities of a split, weakest first."""

RECOMPUTE = ("none", "full", "auto")
"""Stages that run their forward passes again: none, all, or those that gain by it."""

WEIGHT_SYNC = {"ring": 2.0, "server": 4.0}
"""Sum of gradients over replicas -> bytes that a device moves for each byte of weights, times
(d - 1) / d: around a ring, or by parameter servers on the same devices, as in Piper's planner."""


@dataclass(frozen=True)
class HybridOptions:
    """Limits of a parallel plan, and how it is priced."""

    tensor_parallel: int = 1
    """Devices that may hold a replica of a stage together, at most."""
    data_parallel: int = 1
    """Replicas of a stage, at most."""
    micro_batches: int = 32
    """Micro-batches in a batch; replicas share them equally."""
    recompute: str = "none"
    """One of `RECOMPUTE`."""
    weight_sync: str = "ring"
    """One of `WEIGHT_SYNC`."""
    overlap_sync: bool = False
    """True if weights are synchronised while the stage computes."""
    shared_stages: int = 0
    """Stages that all devices share, at most."""


@dataclass(frozen=True)
class CostOptions:
    """The choices that fix what a split costs."""

    comm: str = "sum"
    """`sum`, `overlap` or `duplex`: how transfers and compute combine."""
    memory_model: str = "peak"
    """`sum` of node memory, or `peak`: parameters once plus peak live activations. Of latency
    parameters count once for each unit, alone with `weights`, and activations by its times."""
    memory_mode: str = "hard"
    """`hard`: above capacity is infeasible; `overflow`: the excess is streamed (MTPP Eq. 2);
    `ignore`: capacities do not count, and a plan that exceeds one is marked."""
    charge_io: bool = False
    """True if model inputs and outputs cost transfers too."""
    objective: str = "throughput"
    """`throughput`: the largest load; `gpipe`: the largest forward load plus the largest
    backward load (2020 paper, section 5.3); `latency`: the time of one sample; `sequence`: with
    phases, that of one sequence, the sum of all loads."""
    max_replicas: int = 1
    """Devices that one stage may be replicated over (2020 paper, Appendix C.2)."""
    execution: str = "operators"
    """Latency: `blocks`, accelerators are invoked for whole blocks (2020 paper, section 4), or
    `operators`, every unit is placed by itself (Moirai)."""
    invocations: int = 1
    """Latency of `blocks`: blocks that one accelerator may hold, in each pass."""
    transfers: str = "tensor"
    """Latency: what moves as one, a `tensor` to a device, or all that an `edge` carries."""
    congestion: str = "device"
    """Latency of `operators`: transfers that wait for each other, see `core.cost.latency`."""
    in_flight: int | None = None
    """Sequences under way, whose states are kept; None: those of one pass."""
    max_length: int | None = None
    """Tokens that a state has room for, of each sequence; None: those of one pass."""
    workload: Sequences | None = None
    """Sequences that the plan is for, where the graph has phases; None: it has none."""


def without_memory(options: CostOptions) -> CostOptions:
    """The same options where memory neither costs nor constrains, as far as nets and work go."""
    return replace(options, memory_model="sum", memory_mode="overflow")


class Block(NamedTuple):
    """A stage to be: what a solver returns, before it is priced."""

    nodes: Ints
    """Node positions in execution order."""
    device: DeviceClass
    replicas: int = 1
    number: int = -1
    """Number of its first device; -1: the next that is free."""
    peak_bound_bytes: float = 0.0
    """No order of the nodes has a smaller peak of live activations; 0: nothing is proven."""


class Transfer(NamedTuple):
    """One tensor, or all that goes from one unit to another, on its way to a device."""

    tensors: tuple[int, ...]
    """Ids of the tensors."""
    source: str
    """Device that sends."""
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Stage:
    """One part of a plan; times in the stream's unit, memory in bytes."""

    device: str
    """Class and number of its (first) device: `cpu-core/0`."""
    device_class: str
    nodes: tuple[int, ...]
    """Node ids in execution order."""
    load_s: float
    in_s: float
    compute_s: float
    overflow_s: float
    out_s: float
    memory_bytes: float
    replicas: int = 1
    """Devices `class/i`, `class/i+1`, ... that share the samples among them."""
    sync_s: float = 0.0
    """Weight synchronisation of the replicas."""
    forward_s: float | None = None
    """Load of the forward nodes; None unless the graph has a backward pass."""
    backward_s: float | None = None
    peak_bytes: float | None = None
    """Peak of live activations, a part of the memory; None with the `sum` model."""
    peak_bound_bytes: float | None = None
    """No order of the nodes has a smaller peak; None: nothing is proven."""
    begin_s: float | None = None
    """Start of its first transfer or task; None unless the objective is latency."""
    end_s: float | None = None
    starts_s: tuple[float, ...] | None = None
    """Latency of `operators`: start of each unit, in the order of `nodes`."""
    receives: tuple[Transfer, ...] | None = None
    """Latency of `operators`: what is sent to this device, by start."""
    shards: int = 1
    """Devices that each replica takes, one after the other: its tensor-parallel degree."""
    collective_s: float = 0.0
    """The part of the compute that its shards spend exchanging tensors."""
    recomputed: tuple[int, ...] = ()
    """Parallel plans: ids of the forward nodes that the backward pass runs again; where nodes state
    what they take then, of those that take it."""
    in_flight: int | None = None
    """Parallel plans: micro-batches under way on a device at once; None of others."""
    shared: bool = False
    """Parallel plans: all devices of its class hold it, besides stages of their own."""
    apart: int = 1
    """From the number of a replica's device to that of the next: of what runs on one of the shards
    of a stage, their number."""

    @property
    def devices(self) -> int:
        """Devices that it takes, from `device` on."""
        return self.replicas * self.shards

    @property
    def homes(self) -> tuple[str, ...]:
        """Names of its replicas' (first) devices."""
        kind, _, first = self.device.rpartition("/")
        if first.isdecimal():
            return tuple(f"{kind}/{int(first) + j * self.apart}" for j in range(self.replicas))
        others = (f"{self.device}, replica {j}" for j in range(1, self.replicas))
        return (self.device, *others)

    @property
    def where(self) -> str:
        """Its devices in words: the first, x replicas, / shards of each of them; or all."""
        if self.shared:
            return f"all {self.shards}"
        shards = f" / {self.shards}" if self.shards > 1 else ""
        return self.device + (f" x{self.replicas}" if self.replicas > 1 else "") + shards


class Way(NamedTuple):
    """A way to use the devices, and the best that was found of it."""

    name: str
    """`whole`: the model on one device; `replicas` of it; `pipeline`: stages on a device each;
    `replicated-pipeline`: stages, some on several devices."""
    value: float | None = None
    """Its objective; None: there is nothing to show, for `reason`."""
    stages: int = 0
    devices: int = 0
    """Devices that it uses."""
    device_class: str = ""
    """Of those that hold the whole model; empty for stages."""
    reason: str = ""
    """The reason why there is nothing to show: no device can hold the model, or no such split is
    faster than a simpler one."""


class Tried(NamedTuple):
    """A method that was tried beside others, and what it found."""

    method: str
    """As it was asked for."""
    value: float | None = None
    """The objective; None: it found nothing, for `reason`."""
    bound: float = 0.0
    gap: float = 0.0
    validity: str = ""
    status: str = ""
    """As of a plan; of one that found nothing `infeasible`, `limit`, `unavailable` (something that
    it needs is missing) or `interrupted`."""
    made_by: str = ""
    """The method that made the split, if that has another name."""
    reason: str = ""
    time_s: float | None = None
    """Time that it took; None: not to be told."""


class PolicyUsed(NamedTuple):
    """The policy that made a plan, as the plan tells of it."""

    digest: str
    """Of its weights."""
    trained: int
    """Episodes of training, all in all; 0: its weights are drawn."""
    episodes: int
    """Those of this run."""
    asked: int
    """Episodes that were to be; more than `episodes`: it was stopped."""
    graphs: int
    """On which those of this run were."""
    hops: int
    groups: int
    colors: int
    rounds: int
    """As in `Learned`."""


@dataclass(frozen=True)
class Plan:
    """A split of the graph into stages."""

    stages: tuple[Stage, ...]
    k: int
    """Number of accelerators that could be used."""
    method: str
    validity: str
    """`ordered`, `convex` or `free`."""
    value: float
    """The objective."""
    bound: float
    """A proven lower bound of the value over all splits of this validity."""
    status: str
    """`optimal`, `within_gap` (see `max_gap`), `feasible`, `interrupted`, or `infeasible`: see
    `excess_bytes`."""
    options: CostOptions
    devices: tuple[DeviceClass, ...]
    digest: str
    """Digest of the graph, costs and groups the plan was made from."""
    links: tuple[Link, ...] = ()
    """Links between the devices; none: what their classes state."""
    bound_method: str = ""
    """Argument that proves the bound, where it is worth a name."""
    ways: tuple[Way, ...] = ()
    """Ways that were compared, the simplest first; empty: none were."""
    tried: tuple[Tried, ...] = ()
    """Methods that were compared, as they were named; empty: there was one. The plan is the best,
    at ties the first; its bound is the best that one of them proved of such splits."""
    contiguous_bound: float = 0.0
    """Clusters: no split that gives each of them one contiguous segment of the pipeline has a
    smaller value; 0: no more than `bound` is proven of these."""
    planned_by: str = ""
    """`classes`: the method knew the best link of each class only, and the plan was then priced
    with the links; empty: it heeded all that there is."""
    learned: PolicyUsed | None = None
    """The policy that made it, if one did."""
    excess_bytes: float = 0.0
    """If capacities are ignored: the most memory that a device needs beyond what it has; 0: all
    fits."""
    max_gap: float = 0.0
    """Within the gap: the one that was asked for. 0 of all others."""
    hybrid: HybridOptions | None = None
    """Options of a parallel plan; None: it is none, and all stages have one shard."""
    rules: tuple[Rule, ...] = ()
    """Rules that it keeps; bound and status are those of such plans."""
    tokens_per_s: float | None = None
    """Tokens that are generated in a second; None: the graph has no phases."""
    ttft_s: float | None = None
    """Time to first token of a sequence that is alone."""
    tpot_s: float | None = None
    """Time of each later token of such a sequence."""

    @property
    def objective(self) -> str:
        """The quantity that `value` is."""
        return self.options.objective

    @property
    def own(self) -> tuple[Stage, ...]:
        """Stages on devices of their own; those that all devices share are left out."""
        return tuple(stage for stage in self.stages if not stage.shared)

    @property
    def shared_s(self) -> float:
        """Time that every device takes for stages that all share."""
        return sum(stage.load_s for stage in self.stages if stage.shared)

    @property
    def gap(self) -> float:
        """(value - bound) / value; 0 when the value is 0."""
        return (self.value - self.bound) / self.value if self.value > 0 else 0.0


def within(plan: Plan, max_gap: float) -> Plan:
    """Mark a plan that is not proven optimal, but has a gap of at most `max_gap`."""
    near = plan.status in ("feasible", "interrupted") and plan.gap <= max_gap
    return replace(plan, status=WITHIN, max_gap=max_gap) if near and max_gap > 0 else plan


def with_contiguous(plan: Plan, bound: float) -> Plan:
    """State the bound of splits with contiguous clusters, where it is above that of all."""
    bound = plan.value if bound >= plan.value * (1 - CLOSED) else bound
    return replace(plan, contiguous_bound=bound) if bound > plan.bound else plan


def contiguous_words(plan: Plan, in_seconds: bool) -> str:
    """Words on what is proven of splits with contiguous clusters alone; empty: nothing."""
    among = plan.contiguous_bound
    if among <= plan.bound:
        return ""
    gap = shown_share(replace(plan, bound=among).gap)
    proven = f"bound {shown_time(among, in_seconds)}, gap {gap}"
    proven = "optimal" if among >= plan.value else proven
    return f", {proven} among splits contiguous in clusters"


def generation_words(plan: Plan) -> str:
    """Say how fast a plan generates."""
    words = f"{plan.tokens_per_s:.4g} tokens/s"
    if plan.options.in_flight is not None and plan.objective != "sequence":
        words += f" with {counted(plan.options.in_flight, 'sequence')} under way"
    if plan.ttft_s is not None:
        words += (
            f", TTFT {shown_time(plan.ttft_s, True)}, TPOT {shown_time(plan.tpot_s or 0, True)}"
        )
    return words


def status_words(plan: Plan) -> str:
    """The status of a plan, for messages; a gap that was asked for stands for itself."""
    return within_words(plan.max_gap) if plan.status == WITHIN else plan.status


def within_words(max_gap: float) -> str:
    """A gap that was asked for, in words: `within 0.01 %`."""
    return f"within {100 * max_gap:g} %"
