"""Options of what splits a graph, and of the devices that it is split over."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.errors import UnavailableError, UsageError
from dnnp.options.table import MAX_GAP, RECOMPUTE, WEIGHT_SYNC, Options, option

if TYPE_CHECKING:
    from dnnp.core.model.search_context import Evolution

METHODS = tuple({**SPLITS, **LATENCY})
SOLVERS = ("cbc", "highs")

_ORDERS = ("order", "sequence", "priorities")
"""Options of which each says what order to cut."""


PARALLEL = (
    "tensor_parallel", "data_parallel", "micro_batches", "recompute", "weight_sync", "overlap_sync",
    "shared_stages",
)  # fmt: skip
"""Options that ask for a parallel plan."""


class DeviceOptions(Options):
    """Options of devices."""

    # fmt: off
    k: int | None = option(
        least=0, metavar="N", group="devices", page=True,
        help="N identical devices of the priced class")
    cpus: int | None = option(least=0, metavar="L", help="CPUs in addition to the accelerators")
    memory: float | str | Sequence[float | str] | None = option(
        above=0, unit="size", each=True, words=("fast",), metavar="[DEVICE=]BYTES", page=True,
        help="capacity of a device, such as 16G or 16GiB; of a class or a single one: a100=9G, "
        "a100/0=9G, repeatable; fast: its on-chip memory")
    speed: float | str | Sequence[str] | None = option(
        unit="share_or_size", each=True, metavar="DEVICE=X",
        help="speed of a device, relative to what its class is priced for: a100/1=0.5 where it is "
        "half busy; a class stands for its devices; repeatable")
    bandwidth: float | str | None = option(
        above=0, unit="rate", metavar="BYTES/S", page=True,
        help="bandwidth of a device's link, such as 12G")
    cluster_size: str | int | None = option(
        metavar="N[,...]",
        help="every N accelerators form a cluster with faster links inside; 4,16: so do every "
        "16, clusters of clusters")
    inner_bandwidth: str | float | None = option(
        metavar="BYTES/S[,...]",
        help="bandwidth of a link inside a cluster, for each size")
    devices: str | None = option(
        metavar="FILE|LIST", page=True,
        help="device records, or classes with counts: a100:4,t4:4; in place of -k and what the "
        "stream says")
    link: Sequence[str] = option(
        (), metavar="A,B=RATE",
        help="a link between two devices or classes, such as a100,t4=10G or "
        "a100/0,t4/1=10G,5us; repeatable")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        if self.cluster_size is not None or self.inner_bandwidth is not None:
            self._check_clusters()
        if self.link:
            from dnnp.formats.inputs.devices import link_record

            for text in self.link:
                link_record(text)

    @property
    def cluster_sizes(self) -> list[int]:
        """Sizes of clusters, smallest first.

        Raises UsageError: they are no whole numbers.
        """
        if self.cluster_size is None:
            return []
        try:
            return [int(word) for word in str(self.cluster_size).split(",")]
        except ValueError:
            reason = f"--cluster-size {self.cluster_size!r}: give whole numbers, such as 4 or 4,16"
            raise UsageError(reason) from None

    @property
    def inner_bandwidths(self) -> list[float]:
        """Bandwidths inside clusters of each size, bytes per second.

        Raises UsageError: they are no bandwidths.
        """
        given = self.inner_bandwidth
        if not isinstance(given, str):
            return [] if given is None else [float(given)]
        from dnnp.formats.inputs.amounts import parse_rate

        try:
            return [parse_rate(word) for word in given.split(",")]
        except ValueError as error:
            raise UsageError(f"--inner-bandwidth {given!r}: {error}") from None

    def _check_clusters(self) -> None:
        """Refuse clusters that lack something, or do not lie in one another."""
        from dnnp.core.model.device import unnested

        sizes, bandwidths = self.cluster_sizes, self.inner_bandwidths
        if self.cluster_size is not None and not all(size >= 1 for size in sizes):
            raise UsageError(f"--cluster-size {self.cluster_size}: must be at least 1")
        if unnested(sizes):
            raise UsageError(f"--cluster-size {self.cluster_size}: {unnested(sizes)}")
        if not all(bandwidth > 0 for bandwidth in bandwidths):
            raise UsageError(f"--inner-bandwidth {self.inner_bandwidth}: must be above 0")
        if sizes and bandwidths and len(sizes) != len(bandwidths):
            raise UsageError(
                f"--cluster-size {self.cluster_size} and --inner-bandwidth {self.inner_bandwidth}: "
                "give a bandwidth for each size"
            )


class SplitOptions(DeviceOptions):
    """Options of a split: what is asked, and how it is found."""

    # fmt: off
    method: str | Sequence[str] = option(
        "auto", choices=METHODS, several=True, apart="method", metavar="NAME[,NAME...]",
        group="method", page=True,
        help="how to split (default: auto); of several methods the best plan is kept, at ties "
        "that of the first, and all are in its record")
    eval: str | os.PathLike[str] | Sequence[Sequence[int | str]] | None = option(
        json=True, apart="method", metavar="FILE", page=True,
        help="evaluate the split in FILE instead of searching; JSON with fpgas and cpus, or a "
        "list of lists of node ids or names, or names to cut before")
    validity: str | None = option(
        choices=("ordered", "convex", "free"), page=True,
        help="ordered, convex or free; ordered: the stages form a pipeline; convex: each stage "
        "is contiguous; free: nothing (default: what the method makes; ordered for auto and ip)")
    objective: str = option(
        "throughput", choices=("throughput", "gpipe", "latency"), page=True,
        help="throughput (default), gpipe or latency; throughput: the largest load; gpipe: for "
        "training, the largest forward load plus the largest backward load; latency: the time "
        "of one sample, or sequence")
    max_replicas: int | None = option(
        least=1, metavar="R",
        help="devices that may share a stage's samples (default: 1)")
    allow_replicas: bool = option(
        False, page=True,
        help="the fastest of replicas and pipelines; compares the whole model on one device, "
        "replicas of it, and pipelines without and with replicated stages, by prediction")
    cut_before: Sequence[str] = option(
        (), metavar="NAME", page=True,
        help="no stage holds NAME and what comes before it; NAME is that of nodes, of a layer or "
        "of weights: layers.16 means whole parts of it, * any letters within one; repeatable")
    pin: Sequence[str] = option(
        (), metavar="NAME=DEVICE", page=True,
        help="NAME is on a device, or a class: lm_head=a100/1; repeatable")
    together: Sequence[str] = option(
        (), metavar="NAME[,NAME...]", help="all of these are on one device; repeatable")
    apart: Sequence[str] = option(
        (), metavar="NAME,NAME[,...]",
        help="no device holds two of these names; repeatable")
    layers_per_stage: str | None = option(
        metavar="N,N[,...]",
        help="so many layers in each stage, in their order, and no other stages: 10,10,12")
    exactly: int | None = option(
        least=1, metavar="N",
        help="exactly N stages, none of them empty; a note says what one fewer would cost")
    rules: str | os.PathLike[str] | None = option(
        json=True, metavar="FILE",
        help="such rules in a JSON file: an object with --cut-before to --exactly by their names, "
        "each as it is given here, or a list of these")
    order: str | None = option(
        choices=("best", "kahn", "dfs", "kahn-reverse", "dfs-reverse", "published"), apart="order",
        help="topological order to cut: breadth or depth first, from inputs or from outputs; "
        "best: the best of these four (default; kahn for the methods that cut one without "
        "search); published: that of the 2020 paper's programs as far as a stream tells it, by "
        "which greedy then fills; max-load takes the split that theirs returns")
    sequence: str | os.PathLike[str] | Sequence[int] | None = option(
        needs=("--method slice|greedy",), json=True, apart="order", metavar="FILE",
        help="order to slice, or to fill greedily: a JSON list of the ids of all groups, or of "
        "all nodes where there are no groups")
    priorities: str | os.PathLike[str] | Sequence[float] | None = option(
        needs=("--method slice",), json=True, apart="order", metavar="FILE",
        help="slice the order of Kahn's algorithm by these priorities: a JSON list of a number "
        "for each group or node")
    solver: str | None = option(
        choices=SOLVERS,
        help="solver of integer programs (default: cbc; but highs for splits by integer programs "
        "where that extra is installed)")
    time_limit: float | None = option(
        least=0, unit="duration", metavar="T", page=True,
        help="time, then the best split found; seconds, or such as 2m (default: none)")
    max_gap: float = option(
        MAX_GAP, least=0, most=1, metavar="X",
        help="stop at this relative gap; the plan is then within the gap, not "
        "optimal (default: 0.0001; for 0.01 %; 0: go on to the end)")
    effort: float | None = option(
        above=0, metavar="X",
        help="scale the work of searches that would not end (default: 1)")
    seed: int | None = option(least=0, metavar="N", help="seed of random choices (default: 0)")
    tensor_parallel: int | None = option(
        least=1, metavar="T", group="parallel plans (any of these asks for one)", page=True,
        help="devices that may hold a stage together (default: 1); by what nodes state of that "
        "(dnnp-profile --tensor-parallel)")
    data_parallel: int | None = option(
        least=1, metavar="D", page=True,
        help="replicas that share the micro-batches (default: 1)")
    micro_batches: int | None = option(
        least=1, metavar="N",
        help="micro-batches in a batch, which replicas share equally and after which they "
        "synchronise weights (default: as the stream says, or 32)")
    recompute: str | None = option(
        choices=RECOMPUTE,
        help="none (default), full or auto; stages that run their forward pass again in the "
        "backward pass, to hold less: none, all, or those that gain by it")
    weight_sync: str | None = option(
        choices=WEIGHT_SYNC,
        help="how replicas add up their gradients: around a ring (default), or by parameter "
        "servers among them, as Piper has it")
    overlap_sync: bool = option(False, help="they do so while the stage computes")
    shared_stages: int | None = option(
        least=1, metavar="S",
        help="up to S stages are shared: all devices hold them together, besides the stage that "
        "each has of its own, as embeddings over large vocabularies need it (default: none)")
    samples: int | None = option(
        least=1, metavar="T", group="search over orders (random, brkga, mla, mla-weighted)",
        tuning=True,
        help="orders that random tries (default: 100)")
    population: int | None = option(
        least=1, metavar="P", tuning=True,
        help="orders of a generation (default: 100)")
    generations: int | None = option(
        least=1, metavar="G", tuning=True,
        help="generations (default: 100)")
    elite: float | None = option(
        least=0, most=1, metavar="X", tuning=True,
        help="share of a generation that stays (default: 0.2)")
    mutants: float | None = option(
        least=0, most=1, metavar="X", tuning=True,
        help="share of a generation that is drawn anew (default: 0.15)")
    bias: float | None = option(
        least=0, most=1, metavar="X", tuning=True,
        help="probability that a priority comes from the parent of the elite (default: 0.7)")
    execution: str | None = option(
        needs=("--objective latency",), choices=("blocks", "operators"),
        group="latency of one sample (--objective latency)",
        help="blocks: an accelerator is invoked for a contiguous block, through the memory of "
        "the host, beside a pool of CPUs; operators: every unit is placed by itself, devices "
        "send to each other (default: blocks where there are CPUs beside accelerators and no "
        "links)")
    invocations: int | None = option(
        needs=("--objective latency",), least=1, metavar="Q",
        help="blocks: an accelerator may hold up to Q blocks, in each pass (default: 1)")
    transfers: str | None = option(
        needs=("--objective latency",), choices=("tensor", "edge"),
        help="what moves: a tensor, once to each device; or all that goes from one unit to "
        "another, for each pair by itself (default: tensor)")
    congestion: str | None = option(
        needs=("--objective latency",), choices=("device", "channel", "none"),
        help="operators: a device sends one thing at a time, and receives one (default); or "
        "transfers wait for others from and to the same devices; or for none")
    policy: str | os.PathLike[str] | None = option(
        needs=("--method placeto",), metavar="FILE", group="learning (placeto)",
        help="start from the policy in FILE; it is applied as it is, unless --train-on or "
        "--episodes asks for training (default: one that has learned nothing is trained)")
    train_on: Sequence[str | os.PathLike[str]] | None = option(
        needs=("--method placeto",), metavar="FILE",
        help="train on the graph of the stream in FILE, not on the one that is placed; "
        "repeatable")
    episodes: int | None = option(
        needs=("--method placeto",), least=0, metavar="N", tuning=True,
        help="episodes of training (default: by effort and size)")
    save_policy: str | os.PathLike[str] | None = option(
        needs=("--method placeto",), metavar="FILE",
        help="write the policy that placed the graph to FILE")
    comm: str = option(
        "sum", choices=("sum", "overlap", "duplex"), group="cost model", page=True,
        help="sum (default), overlap or duplex; transfers add to compute, overlap with it, or "
        "overlap in both directions")
    memory_model: str | None = option(
        choices=("sum", "peak", "weights"),
        help="memory of a stage: node memory added up, or parameters plus peak activations "
        "(default: sum where nodes state memory or the graph has a backward pass, else peak); "
        "peak, if given, also orders the nodes of each stage for a small peak; latency: peak, by "
        "the times of the plan, where nodes state no memory; weights, for latency: parameters "
        "alone")
    memory_mode: str = option(
        "hard", choices=("hard", "overflow", "ignore"),
        help="hard (default), overflow or ignore; above capacity: infeasible, or streamed over "
        "the link; ignore: no capacity counts, and a plan that exceeds one is priced and marked "
        "infeasible")
    charge_io: bool = option(False, help="model inputs and outputs cost transfers too")
    in_flight: int | None = option(
        least=1, metavar="N",
        help="sequences under way, each of which keeps its states (caches) on the devices that "
        "use them (default: those of one pass, as imported)")
    workload: str | os.PathLike[str] | Sequence[Sequence[int]] | None = option(
        metavar="LENGTHS|FILE", page=True,
        help="sequences to plan for, where the graph has phases; prompt=512,tokens=256, or a "
        "file with the tokens of a prompt and those that follow a line (default: what the phases "
        "are priced for)")
    max_ttft: float | str | None = option(
        above=0, unit="latency", metavar="T", page=True,
        help="the longest time to first token, such as 200ms; of a sequence that is alone")
    max_tpot: float | str | None = option(
        above=0, unit="latency", metavar="T",
        help="the longest time of each later token of such a sequence, such as 30ms")
    max_length: int | None = option(
        least=1, metavar="TOKENS",
        help="tokens of the longest sequence: states have room for so many (default: those of "
        "one pass, as imported)")
    reprice: bool = option(
        False,
        help="groups whose cost no longer follows from their nodes, since costs were edited, "
        "cost the sum of their nodes (default: refuse them)")
    ties: Callable[..., Any] | None = option(
        flag="",
        help="method max-load in the order published: which of the best splits to take; without "
        "it dnnp.samples.papers.ties.published_split")
    timings: bool = option(False, flag="", help="keep the time that each of several methods took")
    # fmt: on

    @property
    def parallel(self) -> tuple[str, ...]:
        """The options given that ask for a parallel plan, as they are named."""
        given = [name for name in PARALLEL if getattr(self, name) not in (None, False)]
        return tuple(f"--{name.replace('_', '-')}" for name in given)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are asked for, in their order."""
        return tuple(str(self.method).split(","))

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        if len(set(self.methods)) < len(self.methods):
            raise UsageError(f"--method {self.method}: a method is there twice")
        if self.allow_replicas and self.eval is not None:
            raise UsageError("--allow-replicas finds a plan; --eval only prices one")
        if self.allow_replicas and self.objective == "latency":
            raise UsageError("--objective latency runs every sample once: no --allow-replicas")
        if self.allow_replicas and self.memory_mode == "ignore":
            raise UsageError("--allow-replicas finds what fits: no --memory-mode ignore")
        if self.parallel:
            self._check_parallel(self.parallel[0])
        self.evolution.check()

    def _check_parallel(self, asked: str) -> None:
        """Refuse what parallel plans do not know; `asked` is an option that asks for one."""
        others = {
            "--method": self.method != "auto",
            "--eval": self.eval is not None,
            "--allow-replicas": self.allow_replicas,
            "--max-replicas (it is --data-parallel)": self.max_replicas is not None,
            "--validity": self.validity not in (None, "ordered"),
            **{f"--{name}": getattr(self, name) is not None for name in _ORDERS},
        }
        for name, given in others.items():
            if given:
                raise UsageError(f"{asked} asks for a parallel plan: no {name}")

    @property
    def evolution(self) -> Evolution:
        """Parameters of the evolution of orders."""
        from dnnp.core.model.search_context import Evolution

        names = ("population", "generations", "elite", "mutants", "bias")
        given = {name: getattr(self, name) for name in names}
        return Evolution(**{name: value for name, value in given.items() if value is not None})


def check_highs() -> None:
    """Fail early where HiGHS is asked for and is not there."""
    from importlib.util import find_spec

    if "PMIP_HIGHS_LIBRARY" not in os.environ and not any(map(find_spec, ("highspy", "highsbox"))):
        from dnnp.core.solver.slices import missing

        raise UnavailableError(missing("highs", ""))


def usual_solver(options: SplitOptions) -> str:
    """The solver where none is named: for splits by `ip` HiGHS, which was measured to prove them
    sooner, if python-mip can call the one that is installed; else CBC."""
    by_program = "ip" in options.methods or options.validity == "convex"
    if by_program and options.objective != "latency":
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError, ValueError):
            found = tuple(map(int, version("highspy").split(".")))
            if (1, 9) <= found < (1, 16) and found != (1, 14, 0):
                return "highs"
    return "cbc"
