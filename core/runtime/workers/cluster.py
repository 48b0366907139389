"""The Ray cluster that stages run on: one that is there, or one of this machine alone."""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from dnnp.core.model.errors import LimitError, UnavailableError
from dnnp.core.model.processors import available_cores
from dnnp.core.model.text import counted
from dnnp.core.runtime.workers.staff import Post, Rules

DEVICE, KIND = "dnnp-device", "dnnp-class"
"""Labels of nodes: the one device, or the kind of devices, whose stages belong there."""

_LONGEST = 24
"""Letters of a folder for temporary files; names of sockets in it must not be too long."""


@contextmanager
def connected(address: str | None, rules: Rules) -> Iterator[Any]:
    """The module `ray`, connected; a cluster that is started for it ends with the block.

    Parameters
    ----------
    address
        `host:port`, or `auto` for the one that runs here; None: one that is started.

    Raises
    ------
    UnavailableError
        Ray is not installed, or there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UnavailableError("--engine ray needs Ray: pip install 'dnnp[ray]'") from None
    if ray.is_initialized():  # by whoever calls us
        yield ray
        return
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    with _handlers_kept(), _silent(ray), _folder() as folder:
        try:
            if address is None:
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
    cores = len(available_cores())
    ray.init(num_cpus=cores, include_dashboard=False, _temp_dir=folder, **store, **_QUIET)


def _default_store() -> float:
    """Bytes of the object store where Ray itself decides, about."""
    with suppress(OSError, AttributeError):
        space = os.statvfs("/dev/shm")
        return 0.8 * space.f_bavail * space.f_frsize
    return math.inf


@contextmanager
def _folder() -> Iterator[str]:
    from dnnp.formats.unfinished import fresh_name, unfinished

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
    """Ray prints a paragraph about every actor that is lost, which no option of its own prevents.

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


class Seat(NamedTuple):
    """Where an actor goes, and what it asks for there."""

    node: str
    """The node's number in the cluster."""
    bound: bool
    """It belongs there, by a label or resource of the node; else it may go elsewhere too."""
    options: dict[str, Any]
    """Processors, GPUs and other resources."""


def seats(ray: Any, posts: Sequence[Post], note: Callable[[str], None]) -> list[Seat]:
    """A node for each actor: one for its device if there is any, else the one with most room.

    Where a node has fewer processors than its actors have threads, they share them.

    Raises
    ------
    LimitError
        No node has the GPU that an actor needs.
    """
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    mine = [_candidates(post, nodes) for post in posts]
    load = dict.fromkeys(nodes, 0)
    homes = [""] * len(posts)
    # Those that can go anywhere come last, so that they leave room for the others.
    for i in sorted(range(len(posts)), key=lambda i: not mine[i][1]):
        threads = posts[i].threads
        homes[i] = min(mine[i][0], key=lambda n: (load[n] + threads) / max(_cpus(nodes[n]), 1e-3))
        load[homes[i]] += threads
    if any(load[n] > _cpus(nodes[n]) for n in nodes):
        total = sum(map(_cpus, nodes.values()))
        note(f"{counted(len(posts), 'worker')} of {sum(load.values())} threads share processors of "
             f"Ray, {total:g} in all")  # fmt: skip
    found = []
    for post, home, (_, bound) in zip(posts, homes, mine, strict=True):
        share = post.threads * min(1.0, _cpus(nodes[home]) / load[home])
        # Ray counts whole processors, or parts of one.
        cpus = math.floor(share) if share >= 1 else math.floor(share * 1e4) / 1e4
        options: dict[str, Any] = {"num_cpus": cpus}
        if post.gpus:
            options["num_gpus"] = post.gpus
        found.append(Seat(home, bound, options))
    return found


def _cpus(node: Mapping[str, Any]) -> float:
    return float(node["Resources"].get("CPU", 0.0))


def _candidates(post: Post, nodes: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Nodes that an actor can go to, and whether they are for its device."""
    able = [n for n in nodes if nodes[n]["Resources"].get("GPU", 0.0) >= post.gpus]
    if not able:
        raise LimitError(f"{post.name}: no node of the cluster has a GPU for it")
    kind, _, number = post.device.rpartition("/")
    for label, value in ((DEVICE, f"{kind}.{number}"), (KIND, kind)):
        mine = [n for n in able if kind and nodes[n].get("Labels", {}).get(label) == value]
        if mine:
            return mine, True
    mine = [n for n in able if kind and nodes[n]["Resources"].get(kind, 0.0) > 0]
    return (mine, True) if mine else (able, False)
