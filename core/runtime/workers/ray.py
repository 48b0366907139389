"""Workers that are actors of a Ray cluster, and where they go.

The runner holds references only. A tensor goes from the node where it was made to the node where it
is read; of an actor that is lost the inputs are still there, unless their node is lost too.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import InputFileError, LimitError, UnavailableError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import counted
from dnnp.core.runtime.model.providers import Place
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.core.runtime.pipeline.steps import Answer
from dnnp.core.runtime.workers.messages import Failed, Recipe, StageRunner, error_of, failure_of
from dnnp.core.runtime.workers.pool import (
    LostError,
    RemoteWorker,
    Rules,
    Sent,
    WorkerPool,
    WorkerSpec,
    finite,
)
from dnnp.formats.files import fresh_name, unfinished

_BOOT = "/proc/sys/kernel/random/boot_id"


class Home(NamedTuple):
    """Address and machine of an actor."""

    node: str
    """Its address."""
    machine: str
    """Name shared by processes with one clock; empty: unknown."""


def machine() -> str:
    """Name of this machine that is unique while it runs."""
    with suppress(OSError), open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
    return ""


class StageActor:
    """Stages; what it returns first of each call is `Failed`, or figures.

    Ray calls it from several threads, so that values come and go while one thread computes, which
    takes the jobs by their numbers.
    """

    def __init__(
        self,
        path: Sequence[str],
        spec: WorkerSpec,
        parts: Sequence[tuple[bytes, Sequence[str]]],
        *values: Any,
    ) -> None:
        """`path`: search path of the starter; `parts`: recipes of stages and names of their values,
        which follow."""
        sys.path += [folder for folder in path if folder not in sys.path]
        self._cores, rest = spec.place.cores, iter(values)
        self._parts = [(recipe, {n: next(rest) for n in names}) for recipe, names in parts]
        self._next = 0
        self._changed = Condition()
        self._thread = ThreadPoolExecutor(1)

    def make(self) -> Failed | Home:
        """Make the stages."""
        return self._thread.submit(self._make).result()

    def _make(self) -> Failed | Home:
        import ray

        try:
            self._runner = StageRunner()
            for recipe, values in self._parts:
                self._runner.make(recipe, values, self._cores)
        except Exception as error:  # a stage may be foreign code
            return failure_of(error)
        return Home(ray.util.get_node_ip_address(), machine())

    def clock(self) -> int:
        """Clock of the actor."""
        return time.perf_counter_ns()

    def compute(
        self, number: int, part: int, names: Sequence[str], outputs: Sequence[str], *values: Any
    ) -> Any:
        """(start, end, waited) in nanoseconds, then the outputs; of one sample in a stage."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
            given = dict(zip(names, values, strict=True))
            future = self._thread.submit(self._compute, part, given)
            self._next += 1
            self._changed.notify_all()
        figures, found = future.result()
        return (figures, *(to_numpy(found.get(name)) for name in outputs))

    def _compute(self, part: int, values: Values) -> tuple[Failed | tuple[int, int, int], Values]:
        start_ns = time.perf_counter_ns()
        try:
            found = self._runner.stages[part](values)
        except Exception as error:  # as above
            return failure_of(error), {}
        end_ns = time.perf_counter_ns()
        return (start_ns, end_ns, self._runner.waited_ns(end_ns)), found


_CLOCK_ROUNDS = 5


class Stored:
    """A value in the object store, kept while referenced."""

    __slots__ = ("_ray", "ref")

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray, self.ref = ray, ref

    def fetch(self) -> Any:
        """The value, in memory of its own."""
        value = self._ray.get(self.ref)
        return value.copy() if isinstance(value, np.ndarray) else value


@dataclass
class _Sent(Sent):
    """A job, and what Ray has promised for it: figures, then outputs."""

    refs: list[Any] = field(default_factory=list)


class RayWorker(RemoteWorker[_Sent]):
    """Stages in an actor."""

    def __init__(self, spec: WorkerSpec, pool: RayPool) -> None:
        super().__init__(spec.name, pool)
        self.spec = spec
        self._outputs: list[tuple[str, ...]] = []
        """Output names of each stage."""
        self._ray = pool.ray
        self._placement = Placement("", False, {})
        self._actor: Any = None
        self._number = 0
        """Jobs that the actor was sent."""
        self._home: Any = None
        """Reference to the result of making the stages."""
        self._ahead_ns = 0
        """Offset of the actor's clock from the one here."""

    def add(self, recipe: Recipe, values: Mapping[str, Any]) -> int:
        self._outputs.append(tuple(recipe.outputs))
        return super().add(recipe, values)

    def begin(self, placement: Placement) -> None:
        """Start the actor there; `ready` waits for it."""
        self._placement = placement
        self._start()

    def _start(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._number, placement = 0, self._placement
        where = NodeAffinitySchedulingStrategy(placement.node, soft=not placement.bound)
        how = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": self.ahead + 1}
        kind = self._ray.remote(StageActor)
        kind = kind.options(**how, **placement.options, scheduling_strategy=where)
        refs = [value.ref for _, values in self._parts for value in values.values()]
        parts = [(recipe, list(values)) for recipe, values in self._parts]
        self._actor = kind.remote(sys.path, self.spec, parts, *refs)
        self._home = self._actor.make.remote()

    def _made(self, seconds: float) -> bool:
        if not self._ray.wait([self._home], timeout=seconds)[0]:
            return False
        home = self._get(self._home, math.inf)
        if isinstance(home, Failed):
            raise error_of(home)
        self._ahead_ns = 0
        if home.machine != machine():
            self._ahead_ns = min(map(self._clock_ahead, range(_CLOCK_ROUNDS)))[1]
        return True

    def _clock_ahead(self, _: int) -> tuple[int, int]:
        """(time of a call, how far the clock there is ahead), nanoseconds."""
        before_ns = time.perf_counter_ns()
        there_ns = self._ray.get(self._actor.clock.remote())
        after_ns = time.perf_counter_ns()
        return after_ns - before_ns, there_ns - (before_ns + after_ns) // 2

    def _job(self, sample: int, part: int, values: Mapping[str, Stored]) -> _Sent:
        return _Sent(sample, part, values)

    def _send(self, job: _Sent) -> None:
        refs = [value.ref for value in job.values.values()]
        outputs = self._outputs[job.part]
        call = self._actor.compute.options(num_returns=1 + len(outputs))
        found = call.remote(self._number, job.part, list(job.values), outputs, *refs)
        self._number += 1
        job.refs = list(found) if outputs else [found]

    def _answer(self, job: _Sent, seconds: float) -> Answer | None:
        figures = self._get(job.refs[0], seconds)
        if figures is None:
            return None
        if isinstance(figures, Failed):
            raise error_of(figures)
        start_ns, end_ns, waited_ns = figures
        stored = (Stored(self._ray, ref) for ref in job.refs[1:])
        values = dict(zip(self._outputs[job.part], stored, strict=True))
        return Answer(values, start_ns - self._ahead_ns, end_ns - self._ahead_ns, waited_ns)

    def _get(self, ref: Any, seconds: float) -> Any:
        """Wait for what Ray has promised; raises what `_answer` does."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=finite(seconds))
        except errors.GetTimeoutError:
            return None
        except (errors.RayActorError, errors.WorkerCrashedError):
            raise LostError("its actor has ended") from None
        except errors.RayError as error:
            self._kill()  # it waits for the job for ever
            raise InputFileError(f"Ray: {_first_line(error)}") from None

    def _kill(self) -> None:
        if self._actor is not None:
            with suppress(Exception):  # it may have ended, or the whole cluster
                self._ray.kill(self._actor)

    def _clear(self) -> None:
        self._kill()


class RayPool(WorkerPool[Stored]):
    """Actors of a Ray cluster."""

    kind = "ray"

    def __init__(self, rules: Rules, address: str | None = None) -> None:
        super().__init__(
            rules, Stored, lambda value: Stored(self.ray, self.ray.put(to_numpy(value)))
        )
        self._open = ExitStack()
        self.ray = self._open.enter_context(connected(address, rules))
        self._local = address is None

    def place(self, place: Place) -> Place:
        """Cores are known where the cluster is this machine; Ray shows an actor its own GPU."""
        return Place(0, place.cores if self._local else (), place.provider)

    def _worker(self, spec: WorkerSpec) -> RayWorker:
        return RayWorker(spec, self)

    def ready(self) -> None:
        found = placements(self.ray, [worker.spec for worker in self.workers], self._note)
        for worker, placement in zip(self.workers, found, strict=True):
            worker.begin(placement)
        super().ready()

    def _note(self, message: str) -> None:
        if not self._local:  # of this machine that was said before
            self.rules.note(message)

    def close(self) -> None:
        super().close()
        self._open.close()


DEVICE, KIND = "dnnp-device", "dnnp-class"
"""Labels of nodes: the one device, or the kind of devices, whose stages belong there."""

_LONGEST = 22
"""Letters of a folder for temporary files; names of sockets in it must not be too long."""
_HERE = "127.0.0.1"
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_WIDE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that, if false, lets Ray use the loopback address for this machine; otherwise it does so
on other systems alone."""


@contextmanager
def connected(address: str | None, rules: Rules) -> Iterator[Any]:
    """The module `ray`, connected; a cluster that is started for it ends with the block.

    `address`: `host:port`, or `auto` for the one that runs here; None: one that is started. Raises
    `UnavailableError` if Ray is not installed, or there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UnavailableError("--engine ray needs Ray: pip install 'dnnp[ray]'") from None
    if ray.is_initialized():  # by the caller
        yield ray
        return
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    with _handlers_kept(), _silent(ray), _folder() as folder, ExitStack() as stack:
        try:
            if address is None:
                stack.enter_context(_loopback(ray))
                _start(ray, folder, rules)
            else:
                ray.init(address=address, **_QUIET)
        except Exception as error:  # of any kind, from starting processes to wrong addresses
            with suppress(Exception):
                ray.shutdown()
            where = "a cluster of this machine" if address is None else address
            raise UnavailableError(f"Ray: {where}: {_first_line(error)}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


_QUIET: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}


def _start(ray: Any, folder: str, rules: Rules) -> None:
    store = {}
    if rules.memory_bytes < math.inf:
        store["object_store_memory"] = int(min(max(rules.memory_bytes, 80e6), _default_store()))
    store |= {"num_cpus": len(available_cores()), "include_dashboard": False}
    # Ray's folder is open to all users, so it lies in a private one, with private files.
    inner, mask = os.path.join(folder, "r"), os.umask(0o077)
    try:
        ray.init(_temp_dir=inner, _node_ip_address=_HERE, **store, **_QUIET)
    finally:
        os.umask(mask)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Restrict a cluster to the loopback interface, with a token that no file holds.

    Versions of Ray that know no tokens ignore it.
    """
    before = {name: os.environ.get(name) for name in (_MODE, _TOKEN, _WIDE)}
    constants: Any = getattr(getattr(ray, "_private", None), "ray_constants", None)
    wide = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    os.environ |= {_TOKEN: secrets.token_hex(16), _WIDE: "0"}
    if wide is not None:
        constants.ENABLE_RAY_CLUSTER = False
    _forget_token(ray)
    try:
        yield
    finally:
        if wide is not None:
            constants.ENABLE_RAY_CLUSTER = wide
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _forget_token(ray)


def _forget_token(ray: Any) -> None:
    """Clear Ray's cached token."""
    with suppress(Exception):
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _default_store() -> float:
    """Bytes of the object store where Ray itself decides, about."""
    with suppress(OSError, AttributeError):
        space = os.statvfs("/dev/shm")
        return 0.8 * space.f_bavail * space.f_frsize
    return math.inf


@contextmanager
def _folder() -> Iterator[str]:
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= _LONGEST else "/tmp"
    with unfinished(os.path.join(parent, fresh_name("dnnp-")[:13])) as folder:
        os.mkdir(folder, 0o700)
        yield folder


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray handles SIGTERM; so do we."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError, TypeError):  # not the main thread, or a handler of C
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Suppress Ray's paragraphs about lost actors, which no option prevents.

    Where a version of Ray prints otherwise, its words stand beside ours.
    """
    home: Any = getattr(getattr(ray, "_private", None), "worker", None)
    before = getattr(home, "print_to_stdstream", None)
    if before is None:
        yield
        return
    home.print_to_stdstream = lambda data, ignore_prefix=False: None
    try:
        yield
    finally:
        home.print_to_stdstream = before


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Placement(NamedTuple):
    """Node of an actor, and its resources there."""

    node: str
    """The node's number in the cluster."""
    bound: bool
    """It belongs there, by a label or resource of the node; else it may go elsewhere too."""
    options: dict[str, Any]
    """Processors, GPUs and other resources."""


def placements(
    ray: Any, specs: Sequence[WorkerSpec], note: Callable[[str], None]
) -> list[Placement]:
    """A node for each actor: one for its device if there is any, else the least loaded.

    Where a node has fewer processors than its actors have threads, they share them.

    Raises `LimitError` if no node has the GPU that an actor needs.
    """
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    mine = [_candidates(spec, nodes) for spec in specs]
    load = dict.fromkeys(nodes, 0)
    homes = [""] * len(specs)
    # Actors that any node can run come last: they fill what the others leave free.
    for i in sorted(range(len(specs)), key=lambda i: not mine[i][1]):
        threads = specs[i].threads
        homes[i] = min(mine[i][0], key=lambda n: (load[n] + threads) / max(_cpus(nodes[n]), 1e-3))
        load[homes[i]] += threads
    if any(load[n] > _cpus(nodes[n]) for n in nodes):
        total = sum(map(_cpus, nodes.values()))
        note(f"{counted(len(specs), 'worker')} of {sum(load.values())} threads share processors of "
             f"Ray, {total:g} in all")  # fmt: skip
    found = []
    for spec, home, (_, bound) in zip(specs, homes, mine, strict=True):
        share = spec.threads * min(1.0, _cpus(nodes[home]) / load[home])
        # Ray counts whole processors, or parts of one.
        cpus = math.floor(share) if share >= 1 else math.floor(share * 1e4) / 1e4
        options: dict[str, Any] = {"num_cpus": cpus}
        if spec.gpus:
            options["num_gpus"] = spec.gpus
        found.append(Placement(home, bound, options))
    return found


def _cpus(node: Mapping[str, Any]) -> float:
    return float(node["Resources"].get("CPU", 0.0))


def _candidates(spec: WorkerSpec, nodes: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Nodes that an actor can go to, and whether they are for its device."""
    able = [n for n in nodes if nodes[n]["Resources"].get("GPU", 0.0) >= spec.gpus]
    if not able:
        raise LimitError(f"{spec.name}: no node of the cluster has a GPU for it")
    kind, _, number = spec.device.rpartition("/")
    for label, value in ((DEVICE, f"{kind}.{number}"), (KIND, kind)):
        mine = [n for n in able if kind and nodes[n].get("Labels", {}).get(label) == value]
        if mine:
            return mine, True
    mine = [n for n in able if kind and nodes[n]["Resources"].get(kind, 0.0) > 0]
    return (mine, True) if mine else (able, False)
