"""What is asked of a split, and how it is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dnnp.choices import RECOMPUTE, WEIGHT_SYNC
from dnnp.core.methods import LATENCY, SPLITS
from dnnp.core.model.asked import Evolution
from dnnp.core.model.errors import UsageError
from dnnp.platform import DeviceOptions
from dnnp.step import option

_ORDERS = ("order", "sequence", "priorities")
"""Options of which each says what order to cut."""

_LEARNING = ("policy", "train_on", "episodes", "save_policy")
"""Options of methods that learn."""


_PARALLEL = (
    "tensor_parallel", "data_parallel", "micro_batches", "recompute", "weight_sync", "overlap_sync",
    "shared_stages",
)  # fmt: skip
"""Options that ask for a parallel plan."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions(DeviceOptions):
    """What is asked of a split, and how it is found."""

    method: str | Sequence[str] = option("auto")
    """One of the methods of dnnp-partition(1); `auto`: exact, or what finds the validity asked.
    Several, as a list or between commas, are compared: the best plan is kept."""
    eval: str | os.PathLike[str] | Sequence[Sequence[int]] | None = option(json=True)
    """Find nothing, price this split: lists of node ids, or the JSON file of a split."""
    validity: str | None = option(choices=("ordered", "convex", "free"))
    """`ordered`: the stages form a pipeline; `convex`: each stage is contiguous; `free`: nothing;
    None: what the method makes."""
    objective: str = option("throughput", choices=("throughput", "gpipe", "latency"))
    """`throughput`: the largest load; `gpipe`: for training, the largest forward load plus the
    largest backward load; `latency`: the time of one sample."""
    max_replicas: int | None = option(least=1)
    """Devices that one stage may run on, sharing the samples; None: 1."""
    allow_replicas: bool = option(False)
    """Compare the whole model, replicas of it, and pipelines with and without replicated stages;
    the plan is the fastest."""
    order: str | None = option(
        choices=("best", "kahn", "dfs", "kahn-reverse", "dfs-reverse", "published")
    )
    """Topological order to cut; None: the best of the first four, or `kahn`, as the method has it.
    `published`: that of the 2020 paper's programs as far as a stream tells it, by which greedy then
    fills; max-load takes one of the best splits by `ties`."""
    ties: Callable[..., Any] | None = option(None, "")
    """Method `max-load` in the order `published`: which of the best splits to take; such as
    `dnnp.samples.papers.ties.published_split`."""
    sequence: str | os.PathLike[str] | Sequence[int] | None = option(json=True)
    """Methods `slice` and `greedy`: order to cut, the ids of all groups, or the file of a JSON list
    of them."""
    priorities: str | os.PathLike[str] | Sequence[float] | None = option(json=True)
    """Method `slice`: priorities of the groups for Kahn's algorithm, or the file of a list."""
    solver: str | None = option(choices=("cbc", "highs"))
    """Solver of integer programs; None: `cbc`."""
    time_limit: float | None = option(least=0)
    """Seconds after which to keep the best split found; None: no limit."""
    effort: float | None = option(above=0)
    """Scales the work of searches that would not end; None: 1."""
    seed: int | None = option(least=0)
    """Of random choices; None: 0."""
    samples: int | None = option(least=1)
    """Orders that method `random` tries; None: 100."""
    population: int | None = option(least=1)
    """Orders of a generation; None: 100."""
    generations: int | None = option(least=1)
    """Generations; None: 100."""
    elite: float | None = option(least=0, most=1)
    """Share of a generation that stays; None: 0.2."""
    mutants: float | None = option(least=0, most=1)
    """Share of a generation that is drawn anew; None: 0.15."""
    bias: float | None = option(least=0, most=1)
    """Probability that a priority comes from the parent of the elite; None: 0.7."""
    policy: str | os.PathLike[str] | None = option()
    """Method `placeto`: file of the policy to start from, which is then applied as it is, unless
    there is something to train it on; None: one that has learned nothing is trained."""
    train_on: Sequence[str | os.PathLike[str]] | None = option()
    """Method `placeto`: files of streams to train on, in place of this one."""
    episodes: int | None = option(least=0)
    """Method `placeto`: episodes of training; None: by effort, 0 for a policy given alone."""
    save_policy: str | os.PathLike[str] | None = option()
    """Method `placeto`: file for the policy."""
    execution: str | None = option(choices=("blocks", "operators"))
    """Latency: `blocks`: accelerators are invoked for whole blocks; `operators`: every unit is
    placed by itself; None: `blocks` where there are CPUs beside accelerators and no links."""
    invocations: int | None = option(least=1)
    """Latency of blocks: blocks that an accelerator may hold, in each pass; None: 1."""
    transfers: str | None = option(choices=("tensor", "edge"))
    """Latency: what moves as one; None: `tensor`."""
    congestion: str | None = option(choices=("device", "channel", "none"))
    """Latency of operators: which transfers wait for each other; None: `device`."""
    tensor_parallel: int | None = option(least=1)
    """Parallel plans: devices that may hold a replica of a stage together; None: 1."""
    data_parallel: int | None = option(least=1)
    """Parallel plans: replicas of a stage, at most; None: 1."""
    micro_batches: int | None = option(least=1)
    """Parallel plans: micro-batches in a batch; None: what the stream says, or 32."""
    recompute: str | None = option(choices=RECOMPUTE)
    """Parallel plans: stages that run their forward pass again in the backward pass, to hold less:
    `none`, `full`: all, `auto`: those that gain by it; None: `none`."""
    weight_sync: str | None = option(choices=WEIGHT_SYNC)
    """Parallel plans: how replicas add up gradients; None: `ring`."""
    overlap_sync: bool = option(False)
    """Parallel plans: they do so while the stage computes."""
    shared_stages: int | None = option(least=1)
    """Parallel plans: stages that all devices share besides those that each has, at most; None:
    there are none."""
    comm: str = option("sum", choices=("sum", "overlap", "duplex"))
    """Transfers add to compute, overlap with it, or overlap in both directions."""
    memory_model: str | None = option(choices=("sum", "peak", "weights"))
    """Memory of a stage; None: `sum` where nodes state memory or there is a backward pass, else
    `peak`; for latency `weights` where they state none."""
    memory_mode: str = option("hard", choices=("hard", "overflow", "ignore"))
    """Above capacity: infeasible, or streamed over the link, or priced as if it fitted; then the
    plan is marked infeasible."""
    charge_io: bool = option(False)
    """Model inputs and outputs cost transfers too."""
    reprice: bool = option(False)
    """Groups whose cost no longer follows from their nodes cost the sum of these."""

    timings: bool = option(False, "")
    """Keep the time that each of several methods took."""

    def __post_init__(self) -> None:
        # Between commas, as commands take them.
        if not isinstance(self.method, str):
            object.__setattr__(self, "method", ",".join(self.method))

    @property
    def parallel(self) -> tuple[str, ...]:
        """The options given that ask for a parallel plan, as they are named."""
        given = [name for name in _PARALLEL if getattr(self, name) not in (None, False)]
        return tuple(f"--{name.replace('_', '-')}" for name in given)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are asked for, in their order."""
        return tuple(str(self.method).split(","))

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        known = {**SPLITS, **LATENCY}
        for name in self.methods:
            if name not in known:
                raise UsageError(f"--method {name!r}: must be one of {', '.join(known)}")
        if len(set(self.methods)) < len(self.methods):
            raise UsageError(f"--method {self.method}: a method is there twice")
        if self.eval is not None and self.method != "auto":
            raise UsageError("give --method or --eval, not both")
        if self.allow_replicas and self.eval is not None:
            raise UsageError("--allow-replicas finds a plan; --eval only prices one")
        if self.allow_replicas and self.objective == "latency":
            raise UsageError("--objective latency runs every sample once: no --allow-replicas")
        if self.allow_replicas and self.memory_mode == "ignore":
            raise UsageError("--allow-replicas finds what fits: no --memory-mode ignore")
        if self.parallel:
            self._check_parallel(self.parallel[0])
        orders = [name for name in _ORDERS if getattr(self, name) is not None]
        if len(orders) > 1:
            raise UsageError(f"give --{orders[0]} or --{orders[1]}, not both")
        if self.priorities is not None and "slice" not in self.methods:
            raise UsageError("--priorities are for --method slice")
        if self.sequence is not None and not {"slice", "greedy"} & set(self.methods):
            raise UsageError("--sequence is for --method slice and greedy")
        if "placeto" not in self.methods:
            for name in _LEARNING:
                if getattr(self, name) is not None:
                    raise UsageError(f"--{name.replace('_', '-')} is for --method placeto")
        if isinstance(self.train_on, str | os.PathLike):
            raise UsageError(f"--train-on {os.fspath(self.train_on)!r}: give a list of files")
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
        """How an order evolves."""
        names = ("population", "generations", "elite", "mutants", "bias")
        given = {name: getattr(self, name) for name in names}
        return Evolution(**{name: value for name, value in given.items() if value is not None})
