"""Phases as `--phase` names them, and the dimensions that their batch, seq and past are."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import onnx

from dnnp.core.model.errors import UsageError
from dnnp.core.model.phases import NAMES, Point
from dnnp.core.model.text import instead
from dnnp.formats.onnx.dims import MAX_DIMENSION
from dnnp.formats.onnx.states import axis_names

ROLES = ("batch", "seq", "past")
"""Roles of dimensions: sequences of a pass, tokens of each in it, tokens of each before it."""

_BATCHES = re.compile(r"[0-9]{1,9}(?:\|[0-9]{1,9})+")
_RANGE = re.compile(r"([0-9]{1,16})(?:\.\.([0-9]{1,16}))?")


def parse_phases(texts: Sequence[str]) -> list[tuple[Point, dict[str, int]]]:
    """Points of phases, and the sizes of further dimensions at each.

    A phase is `NAME:KEY=VALUE,...`; one of seq and past may be a range `LOW..HIGH`, whose ends are
    two points.

    UsageError: another text, a name or key that is not known, or a phase that is there twice.
    """
    found: list[tuple[Point, dict[str, int]]] = []
    for text in texts:
        name, colon, rest = text.partition(":")
        if not colon or not rest:
            raise UsageError(f"--phase {text}: give NAME:batch=B,seq=S,past=P")
        if name not in NAMES:
            raise UsageError(f"--phase {text}: no phase is called '{name}'{instead(name, NAMES)}")
        if any(point.name == name for point, _ in found):
            raise UsageError(f"--phase {text}: phase '{name}' is there twice")
        found += _ends(text, name, rest)
    return found


def _ends(text: str, name: str, rest: str) -> Iterator[tuple[Point, dict[str, int]]]:
    """The points of one phase."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    batches = [1]
    for part in rest.split(","):
        key, equals, value = part.rpartition("=")
        if key == "batch" and "|" in value and name == "token" and _BATCHES.fullmatch(value):
            batches = [int(word) for word in value.split("|")]
            low["batch"] = high["batch"] = min(batches)
            continue
        match = _RANGE.fullmatch(value)
        if not equals or not key or match is None or key in low:
            raise UsageError(f"--phase {text}: '{part}' is no KEY=VALUE or KEY=LOW..HIGH")
        low[key] = int(match[1])
        high[key] = low[key] if match[2] is None else int(match[2])
        if not low[key] <= high[key] <= MAX_DIMENSION:
            raise UsageError(f"--phase {text}: {value} is no range")
    ranged = [key for key in low if low[key] < high[key]]
    if len(ranged) > 1 or any(key not in ("seq", "past") for key in ranged):
        raise UsageError(f"--phase {text}: one range, of seq or of past")
    for key in ("batch", "seq"):
        if low.get(key, 1) < 1:
            raise UsageError(f"--phase {text}: {key} must be at least 1")
    if name == "token" and high.get("seq", 1) > 1:
        raise UsageError(f"--phase {text}: a pass over tokens has one of each sequence: seq=1")
    batches = batches if len(batches) > 1 else [low.get("batch", 1)]
    for batch in dict.fromkeys(batches):
        for ends in (low, high) if ranged else (low,):
            point = Point(name, batch, ends.get("seq", 1), ends.get("past", 0))
            yield point, {key: size for key, size in ends.items() if key not in ROLES}


def sizes_at(graph: onnx.GraphProto, point: Point, more: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the free dimensions of a graph at a point, by name or address.

    `more`: sizes that are given, which come first. A further free dimension of an input of two
    axes, as masks have one, is past and seq together.

    UsageError: a role that a point needs is not recognised.
    """
    axes = axis_names(graph.input)
    keys = {
        name: [
            None if axis is None else axis or f"{name}:{i}" for i, axis in enumerate(row)
        ]
        for name, row in axes.items()
    }  # fmt: skip
    for role, set_ in _roles(keys, ()).items():
        for key in set_:
            if key in more:
                raise UsageError(f"--dim {key}: --phase sets it, as {role}")
    roles = _roles(keys, more)
    values = {"batch": point.rows, "seq": point.seq, "past": point.past}
    found = dict(more)
    for role, value in values.items():
        names = roles.get(role, ())
        if not names and value != {"batch": 1, "seq": 1, "past": 0}[role]:
            raise UsageError(f"--phase {point.name}: no dimension of the inputs is its {role}")
        for key in names:
            found.setdefault(key, value)
    whole = {row[1] for row in keys.values() if len(row) == 2 and row[1] is not None}
    whole |= {axis.dim_param for o in graph.output for axis in o.type.tensor_type.shape.dim
              if "total" in axis.dim_param}  # fmt: skip
    known = {key for names in roles.values() for key in names}
    for key in sorted(whole - known):
        if key.isidentifier() or ":" in key:
            found.setdefault(key, point.past + point.seq)
    return found


CACHE_WIDTH = "kv_cache_dim"
"""The axis that onnxruntime-genai's builder leaves free, though its configuration says its size."""


def cache_sizes(graph: onnx.GraphProto, path: str) -> dict[str, int]:
    """Size of the last axis of caches by the configuration beside a model; empty: it has none."""
    names = {axis for row in axis_names(graph.input).values() for axis in row}
    file = Path(path).with_name("genai_config.json")
    if CACHE_WIDTH not in names or not file.is_file():
        return {}
    try:
        size = json.loads(file.read_bytes())["model"]["decoder"]["head_size"]
    except (ValueError, KeyError, TypeError, OSError):
        return {}
    return {CACHE_WIDTH: size} if type(size) is int and size > 0 else {}


def _roles(
    keys: Mapping[str, Sequence[str | None]], given: Collection[str]
) -> dict[str, list[str]]:
    """Keys of the dimensions of each role: of the ids (or embeddings), and of caches.

    `given`: those that have a size, and no role.
    """
    roles: dict[str, list[str]] = {role: [] for role in ROLES}
    many = [row for row in keys.values() if 2 <= len(row) <= 3]
    main = next((row for row in many if row[0]), None) or next((r for r in many if r[1]), None)
    if main is None:
        return roles
    if main[0] is not None:
        roles["batch"].append(main[0])
    if main[1] is not None:
        roles["seq"].append(main[1])
    for row in keys.values():
        taken = {main[0], main[1], *given}
        free = [key for key in row if key is not None and key not in taken]
        if row and row[0] in free and (len(row) == 2 or ":0" in str(row[0])):
            roles["batch"].append(str(row[0]))
            free.remove(row[0])
        if len(row) >= 3 and len(free) == 1 and row is not main and free[0] not in roles["past"]:
            roles["past"].append(free[0])
    return roles
