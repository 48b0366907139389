"""What a pipeline calls: a session wrapped to take and give tensors by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, ClassVar

import numpy as np

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.providers import MEMORIES, first_line, ort_errors
from dnnp.core.runtime.session import Place, SessionConfig
from dnnp.core.runtime.values import AS_BYTES, Values, is_added, to_device, to_numpy, to_ort_value

Memory = tuple[str, int] | str | None
"""Where the tensors of a stage lie: None for the host's own, a memory and the number of its device,
or `host` where a provider takes them from the host."""


@dataclass
class CpuStage:
    """Runs a session with tensors on the CPU: name -> array in, name -> array out."""

    session: Any
    outputs: tuple[str, ...]
    ahead: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Outputs that are copied to a device as soon as they are there: its memory and number."""
    memory: ClassVar[Memory] = None
    _options: Any = field(init=False)
    _boxed: bool = field(init=False)

    def __post_init__(self) -> None:
        import onnxruntime

        self._options = onnxruntime.RunOptions()
        types = {o.name: o.type for o in self.session.get_outputs()}
        self._boxed = any(name in types[n] for n in self.outputs for name in AS_BYTES)

    def __call__(self, feeds: Mapping[str, Any]) -> Values:
        """Run one sample; `InputFileError` with ONNX Runtime's reason if it fails."""
        names = list(self.outputs)
        try:
            if self._boxed:
                boxed = {name: to_ort_value(to_numpy(value)) for name, value in feeds.items()}
                values = self.session.run_with_ort_values(names, boxed, self._options)
            else:
                plain = {name: _for_numpy_run(value) for name, value in feeds.items()}
                values = self.session.run(names, plain, self._options)
        except ort_errors() as error:
            raise InputFileError(f"ONNX Runtime fails: {first_line(error)}") from None
        made = dict(zip(names, values, strict=True))
        return made | {n: to_device(made[n], *where) for n, where in self.ahead.items()}

    def stop(self) -> None:
        """Make a run that is under way end soon."""
        self._options.terminate = True


def _for_numpy_run(value: Any) -> Any:
    """Box arrays of types that ONNX Runtime takes from numpy only with a hint.

    What lies on a device comes to the host.
    """
    value = to_numpy(value)
    boxed = isinstance(value, np.ndarray) and is_added(value.dtype)
    return to_ort_value(value) if boxed else value


class _Gate:
    """Lets the runs of a device go side by side, and some of them alone."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def passed(self, alone: bool) -> Iterator[None]:
        """Wait until a run may begin; it ends with the context."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True
                self._changed.wait_for(lambda: not self._inside)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if alone:
                    self._alone = False
                self._changed.notify_all()


_GATES: defaultdict[tuple[str, int], _Gate] = defaultdict(_Gate)
"""Memory and number of a device -> what its runs pass through."""


@dataclass
class BoundStage:
    """Runs a session with inputs and outputs bound to a device.

    Outputs stay on the device, except those in `host`, which come to the CPU. An input that
    lies elsewhere, on the CPU or on another GPU, is copied when it is bound. Each session has a
    stream of its own, and a run ends when its stream is done: what another session, in another
    thread, reads is there. Nothing waits for the whole device, which others use too.

    The first run with inputs of some shapes has the device for itself: cuDNN tries convolutions
    then, by capturing graphs, which fails if another thread waits or allocates meanwhile, and by
    timing them.
    """

    session: Any
    outputs: tuple[str, ...]
    host: frozenset[str]
    device: str = "cuda"
    device_id: int = 0
    _options: Any = field(init=False)
    _gate: _Gate = field(init=False)
    _known: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)
    """Shapes of inputs that were run."""

    @property
    def memory(self) -> Memory:
        """Where its tensors lie."""
        return self.device, self.device_id

    def __post_init__(self) -> None:
        import onnxruntime

        self._options = onnxruntime.RunOptions()
        self._gate = _GATES[self.device, self.device_id]

    def __call__(self, feeds: Mapping[str, Any]) -> Values:
        """Run one sample; `InputFileError` with ONNX Runtime's reason if it fails."""
        try:
            held = {name: to_ort_value(value) for name, value in feeds.items()}
            shapes = tuple(tuple(value.shape()) for value in held.values())
            with self._gate.passed(alone=shapes not in self._known):
                values = self._run(held)
            self._known.add(shapes)
        except ort_errors() as error:
            raise InputFileError(f"ONNX Runtime fails: {first_line(error)}") from None
        return dict(zip(self.outputs, values, strict=True))

    def _run(self, held: Mapping[str, Any]) -> Sequence[Any]:
        binding = self.session.io_binding()
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            if name in self.host:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, self.device, self.device_id)
        self.session.run_with_iobinding(binding, self._options)
        return binding.get_outputs()

    def stop(self) -> None:
        """Make a run that is under way end soon."""
        self._options.terminate = True


@dataclass
class HostStage(CpuStage):
    """Runs a session of another provider than the CPU's with everything on the host in between.

    For providers whose memory ONNX Runtime lends nobody, and where inputs or outputs cannot be
    bound: strings, sequences.
    """

    memory: ClassVar[Memory] = "host"


def make_stage(
    session: Any,
    outputs: Sequence[str],
    host: Iterable[str],
    config: SessionConfig,
    place: Place,
    ahead: Mapping[str, tuple[str, int]] | None = None,
) -> CpuStage | BoundStage:
    """Wrap a session for its provider.

    `host` names the outputs that only the host reads, and `ahead` those that a stage on the CPU
    copies to a device by itself.
    """
    names, provider = tuple(outputs), config.at(place).provider
    if provider == "cpu":
        return CpuStage(session, names, ahead or {})
    types = [x.type for x in (*session.get_inputs(), *session.get_outputs())]
    bindable = all(t.startswith("tensor(") and t != "tensor(string)" for t in types)
    if provider in MEMORIES and bindable:
        return BoundStage(session, names, frozenset(host), MEMORIES[provider], place.device_id)
    return HostStage(session, names)
