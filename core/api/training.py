"""From the graph of a model to that of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnp.choices import OPTIMIZERS
from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import counted
from dnnp.step import Options, option

if TYPE_CHECKING:
    from dnnp.formats.stream import Stream


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """Whether the graph is to train the model, and how."""

    training: bool = option(False)
    """Add the backward pass, for planning."""
    optimizer: str | None = option(choices=OPTIMIZERS)
    """What updates the weights, `adam`, `momentum` or `sgd`: it decides what training keeps; None:
    `adam`."""
    mixed_precision: bool = option(False)
    """Compute in float16 what the model computes in float32, with weights kept in float32 too."""
    loss: Sequence[str] = option(())
    """Outputs that are trained for; empty: all that have a gradient."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        given = {
            "--optimizer": self.optimizer,
            "--mixed-precision": self.mixed_precision,
            "--loss": self.loss,
        }
        for flag, value in given.items():
            if value and not self.training:
                raise UsageError(f"{flag} is for --training")


def add_training(stream: Stream, options: TrainingOptions) -> None:
    """Add the backward pass to a model that has just been imported.

    Raises
    ------
    UsageError
        There is nothing to train.
    """
    from dnnp.core.training.backward import train
    from dnnp.core.training.gradients import Optimizer, in_half_precision

    tensors = stream.get("tensor")
    if options.mixed_precision:
        tensors = in_half_precision(tensors)
    optimizer = Optimizer(options.optimizer or OPTIMIZERS[0])
    made = train(tensors, stream.get("node"), optimizer, options.loss)
    stream.records |= {"tensor": made.tensors, "node": made.nodes}
    stream.lines.clear()
    stream.header["training"] = True
    caller = options.caller
    losses = ", ".join(made.losses[:3]) + (", ..." if len(made.losses) > 3 else "")
    gradients = sum(bool(node.get("backward")) for node in made.nodes)
    caller.note(
        f"training: {counted(gradients, 'backward node')} for "
        f"{counted(made.parameters, 'parameter')}; trained for {losses}"
    )
    if made.unruled:
        names = ", ".join(f"{op} ({count})" for op, count in made.unruled.items())
        caller.warn(f"no rule for gradients of {names}: taken as twice the forward pass")
