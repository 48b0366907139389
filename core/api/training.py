"""From the graph of a model to that of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dnnp.core.model.text import counted
from dnnp.options.choices import OPTIMIZERS

if TYPE_CHECKING:
    from dnnp.formats.stream import Stream
    from dnnp.options.graph import TrainingOptions


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
