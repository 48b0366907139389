"""Time of a pass in a stage besides its operators, by a model that has next to none."""

from __future__ import annotations

from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import median

import numpy as np

from dnnp.core.model.processes import available_cores
from dnnp.core.runtime.generate.decoder import IDS, Decoder, State
from dnnp.core.runtime.generate.loop import Generation, Prompt, StageRunner
from dnnp.core.runtime.generate.sampling import Sampling
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import make_session

_TOKENS, _WARM = 300, 50
"""Tokens of a sequence, and the first of them, whose times do not count."""


def pass_seconds(states: int, rows: int, *, shared: bool) -> float:
    """Measure seconds of a pass of `rows` in each of two busy stages, besides what operators take.

    Each has half of the `states`, which are bound in every pass unless they are `shared` buffers.
    """
    names, kind = [f"s{i}" for i in range(max(states, 1))], np.dtype(np.float32)
    held = [State(s, f"{s}_after", (1, 0, 1), kind, 0, 1, shared, padded=True) for s in names]
    decoder = Decoder({"x0": (IDS, np.dtype(np.int64))}, held, "x2")
    stages = [
        _stage("int64[r, n] x1", "Identity (x0)", names[::2], decoder, rows),
        _stage("float[r, n] x2", "Cast <to = 1> (x1)", names[1::2], decoder, rows),
    ]
    cores = available_cores()[:2]
    loop = Generation(stages, decoder, 2, rows, Sampling(), cores=cores if len(cores) > 1 else ())
    prompts = (Prompt(i, (0,), _TOKENS) for i in range(2 * rows))
    ended = [sequence for sequence, _, last in loop.run(prompts) if last]
    times = chain.from_iterable(islice(pairwise(s.times), _WARM, None) for s in ended)
    return median(b - a for a, b in times) / 2


def _stage(output: str, copy: str, states: list[str], decoder: Decoder, rows: int) -> StageRunner:
    """A stage that copies what it reads."""
    from onnx import parser

    name = output.split()[-1]
    reads = ", ".join([f"int64[r, n] {copy[-3:-1]}", *(f"float[r, t, 1] {s}" for s in states)])
    makes = ", ".join([output, *(f"float[r, t, 1] {s}_after" for s in states)])
    nodes = " ".join(f"{s}_after = Identity ({s})" for s in states)
    text = f'<ir_version: 8, opset_import: ["" : 13]> stage ({reads}) => ({makes})'
    model = parser.parse_model(f"{text} {{ {name} = {copy} {nodes} }}")
    session = make_session(model, Path(), SessionConfig("cpu", pin=False))
    return StageRunner(session, [v.name for v in model.graph.output], decoder, rows, _TOKENS + 1)
