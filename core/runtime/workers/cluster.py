"""The Ray cluster that stages run on: one that is there, or one of this machine alone."""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dnnp.core.model.errors import LimitError, UnavailableError
from dnnp.core.model.processors import available_cores
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


def resources(ray: Any, posts: Sequence[Post], note: Callable[[str], None]) -> list[dict[str, Any]]:
    """What each actor asks Ray for: processors, GPUs, and nodes by their labels.

    Where there are fewer processors than threads, actors share them.

    Raises
    ------
    LimitError
        No node has what an actor needs.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    wanted = sum(post.threads for post in posts)
    total = sum(node["Resources"].get("CPU", 0.0) for node in nodes)
    share = min(1.0, total / wanted) if wanted else 1.0
    if share < 1.0:
        note(f"{len(posts)} workers of {wanted} threads share {total:g} processors of Ray")
    return [_asked(post, nodes, share) for post in posts]


def _asked(post: Post, nodes: Sequence[Any], share: float) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    kind, _, number = post.device.rpartition("/")
    for label, value in ((DEVICE, f"{kind}.{number}"), (KIND, kind)):
        mine = [node for node in nodes if node.get("Labels", {}).get(label) == value]
        if mine and kind:
            nodes, asked["label_selector"] = mine, {label: value}
            break
    mine = [node for node in nodes if kind and node["Resources"].get(kind, 0.0) > 0]
    if mine and not asked:
        nodes, asked["resources"] = mine, {kind: 1}
    most = max((node["Resources"].get("CPU", 0.0) for node in nodes), default=0.0)
    cpus = min(post.threads * share, most)
    # Ray counts whole processors, or parts of one.
    asked["num_cpus"] = math.floor(cpus) if cpus >= 1 else math.floor(cpus * 1e4) / 1e4
    if post.gpus:
        asked["num_gpus"] = post.gpus
        if not any(node["Resources"].get("GPU", 0.0) >= post.gpus for node in nodes):
            raise LimitError(f"{post.name}: no node of the cluster has a GPU for it")
    if "label_selector" not in asked:
        asked["scheduling_strategy"] = "SPREAD"
    return asked
