"""Measured costs kept between runs, one JSON file a measurement.

A cache only saves time: whatever is wrong with it, a file that cannot be read, a folder that
cannot be written, counts as nothing found.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from dnnp.formats.files import replacement
from dnnp.formats.records import RECORDS

FORMAT = "dnnp-costs"
VERSION = 3


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds by node and by group, in the order of the stream's records."""

    node_s: tuple[float, ...]
    group_s: tuple[float, ...] | None
    """None where there were no groups, or they could not be measured as units."""
    node_spread: tuple[float, ...] = ()
    """Relative spread of each of these times; empty: not known."""
    group_spread: tuple[float, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    """The field `measured` of the header."""


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/dnnp`, or `~/.cache/dnnp`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "dnnp"


def cpu_model() -> str:
    """Name of this machine's processor, as the kernel tells it."""
    import platform

    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        for line in file:
            name, _, value = line.decode(errors="replace").partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()

    return platform.processor() or platform.machine()


def key_of(facts: Mapping[str, Any]) -> str:
    """Digest of everything that a measurement depends on; the name of its file."""
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def load(folder: Path, key: str, nodes: int, groups: int) -> MeasuredCosts | None:
    """Costs stored under `key` for a graph of this size; None if there are none, or not whole."""
    try:
        record = orjson.loads((folder / f"{key}.json").read_bytes())
    except (OSError, ValueError):
        return None
    stated = {"format": FORMAT, "version": VERSION, "key": key}
    if not isinstance(record, dict) or any(record.get(name) != stated[name] for name in stated):
        return None
    node_s = _times(record.get("node_s"), nodes)
    stored = record.get("group_s")
    group_s = None if stored is None else _times(stored, groups)
    node_spread = _spreads(record.get("node_spread"), nodes)
    group_spread = _spreads(record.get("group_spread"), groups)
    if node_s is None or (stored is not None and group_s is None):
        return None
    if node_spread is None or group_spread is None:
        return None
    if not RECORDS["header"]["measured"].admits([record.get("how")]):
        return None
    return MeasuredCosts(node_s, group_s, node_spread, group_spread, record["how"])


def _times(values: Any, count: int) -> tuple[float, ...] | None:
    """A list of `count` finite numbers of at least 0, or None."""
    if not isinstance(values, list) or len(values) != count:
        return None
    if not all(type(v) in (int, float) and math.isfinite(v) and v >= 0 for v in values):
        return None
    return tuple(float(v) for v in values)


def _spreads(values: Any, count: int) -> tuple[float, ...] | None:
    """Spreads of `count` times, none, or None where they are not whole."""
    return () if values == [] else _times(values, count)


def store(folder: Path, key: str, costs: MeasuredCosts, facts: Mapping[str, Any]) -> bool:
    """Keep costs under `key`; False if the folder cannot be written."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "key": key,
        "facts": dict(facts),
        "node_s": list(costs.node_s),
        "group_s": None if costs.group_s is None else list(costs.group_s),
        "node_spread": list(costs.node_spread),
        "group_spread": list(costs.group_spread),
        "how": dict(costs.how),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacement(str(folder / f"{key}.json")) as file:
            file.write(orjson.dumps(record))
    except OSError:
        return False
    return True


def groups_digest(groups: Sequence[Sequence[int]]) -> str:
    """Digest of the members of all groups."""
    return hashlib.sha256(orjson.dumps([list(g) for g in groups])).hexdigest()
