"""Workers elsewhere for a stage of a model: staffs by name; bytes and weights go out once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.runtime.model_files import model_bytes, supplied_weights
from dnnp.core.runtime.relay import Remote
from dnnp.core.runtime.session import Place, SessionConfig
from dnnp.core.runtime.stages import Memory
from dnnp.core.runtime.steps import Step, Worker
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.weights import use_weights
from dnnp.core.runtime.workers.recipes import MODEL, Recipe, SessionRecipe
from dnnp.core.runtime.workers.staff import Post, Rules, Staff

if TYPE_CHECKING:
    from pathlib import Path

    from dnnp.formats.onnx_stages import StageModel


class Common(NamedTuple):
    """What the stages of a model have in common."""

    folder: Path
    """Where the model's external data are."""
    config: SessionConfig
    weights: Mapping[str, NDArray[np.generic]]
    """Values for initializers."""


def hire_step(
    staff: Staff, name: str, part: StageModel, places: Sequence[Place], device: str, common: Common
) -> Step:
    """Workers for one stage, a replica at each place; `staff.ready` waits for them."""
    folder, config, weights = common
    model = use_weights(part.model, weights) if weights else part.model
    supplied = supplied_weights(model, folder, weights)
    shared = staff.share({MODEL: np.frombuffer(model_bytes(model), dtype=np.uint8), **supplied})
    workers = []
    for j, place in enumerate(map(staff.place, places)):
        shown = f"replica {j} of {name}" if len(places) > 1 else name
        recipe = SessionRecipe(part.outputs, os.path.realpath(folder), config, place)
        post = Post(shown, place, device, config.threads, int(bool(place.memory)))
        workers.append(worker_of(staff, post, recipe, shared))
    return Step(name, part.inputs, part.outputs, tuple(workers))


def worker_of(staff: Staff, post: Post, recipe: Recipe, shared: Any) -> Worker:
    """A worker for a post."""
    remote = staff.hire(post, recipe, shared)
    here = staff.kind == "process" and not post.place.memory
    call = _Call(remote, None if here else "host")
    return Worker(post.name, call, post.place.cores, remote.stop, remote=remote)


@dataclass(frozen=True)
class _Call:
    """One sample at a time, while no pipeline runs."""

    remote: Remote
    memory: Memory
    """Where its tensors lie: in memory of the host that all stages share, or one of its own."""

    def __call__(self, values: Values) -> Values:
        return self.remote.call(values)


THREAD, PROCESS, RAY = "thread", "process", "ray"


@contextmanager
def staff_of(kind: str, rules: Rules, address: str | None = None) -> Iterator[Staff | None]:
    """A staff, closed after the block; None for threads, which need none.

    `address` is that of a Ray cluster; None: one that is started.
    """
    if kind == THREAD:
        yield None
        return
    staff: Staff
    if kind == RAY:
        from dnnp.core.runtime.workers.ray_staff import RayStaff

        staff = RayStaff(rules, address)
    else:
        from dnnp.core.runtime.workers.process import ProcessStaff

        staff = ProcessStaff(rules)
    try:
        yield staff
    finally:
        staff.close()
