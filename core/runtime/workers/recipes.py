"""Recipes of stages for workers outside this process: a session from the bytes of a model."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.processes import available_cores, keep_on
from dnnp.core.runtime.model.providers import ort_errors
from dnnp.core.runtime.model.seeds import own_seed
from dnnp.core.runtime.model.session import (
    CpuStage,
    Place,
    SessionConfig,
    empty_session_bytes,
    make_stage,
    open_session,
)
from dnnp.core.runtime.values import Values, to_numpy
from dnnp.core.runtime.waits import WaitClock, with_threads
from dnnp.core.runtime.workers.messages import OtherwiseError

Array = NDArray[Any]

_NUMBERS = {
    "float": "f4", "double": "f8", "float16": "f2", "bool": "?", "int8": "i1", "int16": "i2",
    "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8",
}  # fmt: skip
"""Element type of ONNX Runtime -> of numpy, where these are the same numbers."""


class Form(NamedTuple):
    """Type and shape of an output, whatever the inputs hold."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Stage(Protocol):
    """Computes in a worker."""

    @property
    def forms(self) -> Mapping[str, Form] | None:
        """Of all outputs; None: not known before they are computed."""

    def __call__(self, values: Values) -> Values:
        """Compute; raises `DnnpError`."""

    def write(self, values: Values, outputs: Mapping[str, Array]) -> None:
        """Compute right into arrays of these forms; raises `DnnpError`, or `OtherwiseError`."""


class Recipe(Protocol):
    """Makes a stage in the process of its worker; it is pickled on the way there."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what the stage computes."""

    def make(self, values: Values) -> Stage:
        """The stage, of values that it keeps as long as it lives; raises `DnnpError`."""


MODEL = ""
"""Name of the bytes of a model among the values of `SessionRecipe`; the others are weights."""


@dataclass(frozen=True)
class SessionRecipe:
    """A session of ONNX Runtime."""

    outputs: tuple[str, ...]
    folder: str
    """Where the model's external data are."""
    config: SessionConfig
    place: Place

    def make(self, values: Values) -> Stage:
        """Make the session."""
        weights = {name: value for name, value in values.items() if name != MODEL}
        config = self.config
        if config.seed is not None:  # a process that is restarted draws other numbers
            config = replace(config, seed=config.seed + own_seed())
        session = open_session(
            values[MODEL].tobytes(), Path(self.folder), config, self.place, weights
        )
        stage = make_stage(session, self.outputs, self.outputs, self.config, self.place)
        return _SessionStage(stage, weights)


@dataclass
class _SessionStage:
    stage: Any
    weights: Values
    """The session uses their memory."""
    forms: Mapping[str, Form] | None = field(init=False)

    def __post_init__(self) -> None:
        self.forms = _forms(self.stage)

    def __call__(self, values: Values) -> Values:
        return {name: to_numpy(value) for name, value in self.stage(values).items()}

    def write(self, values: Values, outputs: Mapping[str, Array]) -> None:
        session = self.stage.session
        binding = session.io_binding()
        try:
            for name, value in values.items():
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            for name, into in outputs.items():
                binding.bind_output(name, "cpu", 0, into.dtype, into.shape, into.ctypes.data)
            session.run_with_iobinding(binding)
        except ort_errors():
            # A loop, for one, wants to make its outputs itself; what really fails fails again.
            self.forms = None
            raise OtherwiseError(self(values)) from None


def _forms(stage: Any) -> dict[str, Form] | None:
    """The forms of all outputs, if the session states them and can write where it is told to."""
    if not isinstance(stage, CpuStage) or stage.memory is not None:
        return None
    known: dict[str, Form] = {}
    types = {value.name: value for value in stage.session.get_outputs()}
    for name in stage.outputs:
        form = _form(types[name].type, types[name].shape)
        if form is None:
            return None
        known[name] = form
    plain = all(_form(value.type, ()) is not None for value in stage.session.get_inputs())
    return known if plain else None


def _form(kind: str, shape: Sequence[Any]) -> Form | None:
    element = _NUMBERS.get(kind.removeprefix("tensor(").removesuffix(")"))
    if not kind.startswith("tensor(") or element is None:
        return None
    if not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    return Form(np.dtype(element), tuple(shape))


class Computing:
    """Stages in the thread that makes them, which is bound to the first of its cores."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.base_bytes = empty_session_bytes()
        """Memory of the process before it makes any."""
        self._free = available_cores()
        self._threads: tuple[int, ...] = ()
        """Numbers of the threads that compute with the first one."""

    def make(self, recipe: bytes, values: Values, cores: Sequence[int]) -> None:
        """`recipe` is pickled; raises `DnnpError`, and whatever a stage of others raises."""
        made = pickle.loads(recipe)
        keep_on(self._free)  # threads that a session starts would be bound, too
        stage, threads = with_threads(lambda: made.make(values))
        self.stages.append(stage)
        self._threads += threads
        keep_on(cores[:1])
        self._waits = WaitClock()

    def waited_ns(self, now_ns: int) -> int:
        """Nanoseconds that the thread waited for its core since this was last more than 0."""
        return self._waits.at_times_ns(now_ns, self._threads)
