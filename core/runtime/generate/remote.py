"""Stages of a decode loop in workers: a pass goes there, its tensors come back, states stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.generate.decoder import Decoder
from dnnp.core.runtime.generate.loop import Array, Pass, StageRunner
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.steps import Worker
from dnnp.core.runtime.workers.messages import SessionRecipe, SessionStage

PASS = ""
"""Name of the pass, with what the stage is fed, among the tensors that it reads."""


@dataclass(frozen=True)
class DecodeRecipe:
    """A stage of a decoder, made where its states stay."""

    session: SessionRecipe
    decoder: Decoder
    rows: int
    tokens: int

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that are no states."""
        return self.session.outputs

    def make(self, values: Values) -> _DecodeStage:
        """Make the session, and its states as passes need them."""
        made = self.session.make(values)
        session, rows, tokens = made.stage.session, self.rows, self.tokens
        return _DecodeStage(made, StageRunner(session, self.outputs, self.decoder, rows, tokens))


@dataclass
class _DecodeStage:
    """Computes passes in a worker."""

    made: SessionStage
    """It has the memory of the weights."""
    runner: StageRunner
    forms: None = None

    def __call__(self, values: Values) -> Values:
        """Run a pass; what it reads is copied, as a binding outlives the memory of a message."""
        item: Pass = values[PASS]
        read = item.feeds | {name: value for name, value in values.items() if name != PASS}
        item.feeds = {name: np.array(value) for name, value in read.items()}
        return self.runner.run(item)

    def write(self, values: Values, outputs: Mapping[str, Array]) -> None:
        """Never called: forms are unknown before a pass."""
        raise NotImplementedError


@dataclass
class RemoteStage:
    """A stage in a worker, with its states."""

    worker: Worker
    reads: frozenset[str]
    rows: int
    tokens: int

    def run(self, item: Pass) -> Mapping[str, Any]:
        """Have one pass run: its outputs that are no states; raises `DnnpError`."""
        feeds = {name: array for name, array in item.feeds.items() if name in self.reads}
        sent = {name: value for name, value in item.values.items() if name in self.reads}
        try:
            return self.worker.call({PASS: replace(item, feeds=feeds, values={}), **sent})
        except DnnpError as error:
            raise type(error)(f"{self.worker.name}: {error}") from None
