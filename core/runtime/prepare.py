"""Sessions and workers for the stages of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import LimitError
from dnnp.core.model.plan import Stage
from dnnp.core.model.processes import available_cores
from dnnp.core.runtime.execute import Pipeline
from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.load import Watch
from dnnp.core.runtime.placing import copied_outputs, homes_of
from dnnp.core.runtime.providers import Left, note_provider
from dnnp.core.runtime.session import Place, SessionConfig, make_session
from dnnp.core.runtime.stages import make_stage
from dnnp.core.runtime.steps import Step, Worker
from dnnp.core.runtime.waits import with_threads
from dnnp.core.runtime.weights import use_weights
from dnnp.core.runtime.workers.hiring import Common, hire_step
from dnnp.core.runtime.workers.staff import Staff

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx_stages import StageModel
    from dnnp.formats.onnx_types import TensorType

MAX_SESSIONS = 4096
"""Sessions, and threads, of one pipeline."""


def count_sessions(stages: Sequence[Stage]) -> int:
    """Sessions that it takes to run stages, one for each replica.

    Raises
    ------
    LimitError
        Too many.
    """
    count = sum(stage.replicas for stage in stages if stage.nodes)
    if count > MAX_SESSIONS:
        raise LimitError(f"the plan needs {count} sessions; at most {MAX_SESSIONS} are made")
    return count


def prepare(
    model: ModelProto,
    folder: Path,
    stages: Sequence[Stage],
    config: SessionConfig,
    *,
    made: ModelProto | None = None,
    known: Mapping[str, TensorType] | None = None,
    weights: Mapping[str, NDArray[np.generic]] | None = None,
    watch: Watch | None = None,
    staff: Staff | None = None,
) -> Pipeline:
    """Split a model by a plan and make a session for every replica of every stage.

    `made`: the model that the nodes of the stages are in, if it is made of `model`, whose outputs
    it has. `staff` makes the workers; None: they are threads of this process.

    Raises
    ------
    FormatError
        The plan does not fit the model, or its stages depend on each other in a circle.
    LimitError
        Too many sessions.
    InputFileError, UnavailableError
        See `make_session`.
    """
    from dnnp.formats.onnx_stages import split_model

    watch = watch or Watch()
    used = [stage for stage in stages if stage.nodes]
    parts = split_model(made or model, [stage.nodes for stage in used], known)
    count_sessions(used)
    spread = sum({stage.device: stage.replicas for stage in used}.values())
    homes, notices = homes_of(used, config)
    for notice in notices:
        watch.note(notice)
    pipeline = Pipeline(
        model=model,
        made=made,
        folder=folder,
        config=config,
        weights=weights or {},
        parts=parts,
        steps=[],
        stages=used,
        outputs=tuple(value.name for value in model.graph.output),
        watch=watch,
        crowded=spread * config.threads > len(available_cores()),
        homes=homes,
        staff=staff,
    )
    for i, (part, spots) in enumerate(zip(parts, homes, strict=True)):
        name = f"stage {i}"
        if staff is None:
            step = make_step(pipeline, name, part, spots)
        else:
            common = Common(folder, config, pipeline.weights)
            step = hire_step(staff, name, part, spots, used[i].device, common)
            pipeline.left.append(Left())
        pipeline.steps.append(step)
    if staff is not None:
        staff.ready()
    return pipeline


def make_step(pipeline: Pipeline, name: str, part: StageModel, spots: Sequence[Place]) -> Step:
    """Sessions for one stage; an interruption leaves out replicas, as nothing will run."""
    config, weights = pipeline.config, pipeline.weights
    model = use_weights(part.model, weights) if weights else part.model
    host, ahead = copied_outputs(part.targets, pipeline.homes, overlap=config.overlap)
    workers = []
    for j, spot in enumerate(spots):
        if j and pipeline.watch.interrupted():
            break
        shown = f"replica {j} of {name}" if len(spots) > 1 else name
        with making_session(shown):
            session, threads = with_threads(
                partial(make_session, model, pipeline.folder, config, spot, weights)
            )
        stage = make_stage(session, part.outputs, host, config, spot, ahead)
        workers.append(Worker(shown, stage, spot.cores, stage.stop, threads))
    provider, options = config.at(spots[0]).provider, dict(config.options)
    left = note_provider(name, provider, session, model, options, pipeline.watch.note)
    pipeline.left.append(left)
    ready = f"{len(workers)} sessions" if len(spots) > 1 else "session"
    pipeline.watch.detail(f"{name}: {len(part.nodes)} nodes, {ready} ready")
    return Step(name, part.inputs, part.outputs, tuple(workers))
