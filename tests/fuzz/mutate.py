"""Seeded mutations of bytes, of lines and of JSON values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]


class Raw(str):
    """Text that goes into JSON as it stands."""


def dumps(value: Any) -> str:
    """JSON of a value that may hold `Raw` text."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)


SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-320, 1e100, 1e308, -1e308,
    2**31, 2**53, 2**53 - 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40,
    Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("-1e999"), Raw("1e400000"),
    Raw("9" * 5000), Raw("-0"), Raw("-0.0"), Raw("01"), Raw("1.0"), Raw("1e0"), Raw("0x10"),
    Raw("undefined"), Raw("'a'"), Raw('"\\ud800"'), Raw('"\\u0000"'), Raw(""),
    "", "a", "1", "NaN", "\u0000", "\u2028\u202e", "\U0001f600", "a\nb", "x" * 5000, "acc", "-",
    "/etc/passwd", "input", "activation", "parameter", "constant", "free", "unknown",
    "a" * 64, "acc/0", "acc/99999999999999999999", "[" * 300,
)  # fmt: skip
"""Values to put in place of another."""


def nested(depth: int, pair: str = "[]") -> Raw:
    """Brackets inside brackets."""
    if pair == "{}":
        return Raw('{"a":' * depth + "1" + "}" * depth)
    return Raw("[" * depth + "]" * depth)


def value(random_: random.Random) -> Any:
    """Some JSON value, often a nasty one."""
    choice = random_.random()
    if choice < 0.8:
        return random_.choice(SCALARS)
    if choice < 0.9:
        return random_.choice(
            [
                [],
                {},
                [[]],
                [None],
                [0],
                [0, 0],
                [-1],
                ["a"],
                [1.5],
                [True],
                {"a": 1},
                {"": None},
                {"acc": 1},
                {"acc": -1},
                {"acc": "1"},
                {"acc": None},
                list(range(50)),
                [0, [1]],
            ]
        )
    depth = random_.choice([3, 200, 250, 254, 300, 1000, 1023, 1025, 3000, 100_000])
    return nested(depth, random_.choice(["[]", "{}"]))


def flip(data: bytes, random_: random.Random) -> bytes:
    """Change one to four bytes."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        if changed:
            changed[random_.randrange(len(changed))] = random_.choice(
                (random_.randrange(256), ord(random_.choice('{}[]",:0-9eE.+tfn \t\r\n\\')))
            )
    return bytes(changed)


def truncate(data: bytes, random_: random.Random) -> bytes:
    """Cut the end off."""
    return data[: random_.randrange(len(data) + 1)]


def splice(data: bytes, random_: random.Random) -> bytes:
    """Remove, repeat or insert a run of bytes."""
    start = random_.randrange(len(data) + 1)
    end = min(len(data), start + random_.choice((1, 2, 4, 16, 100)))
    strange = (
        b"\x00",
        b"\xff\xfe",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\n\n",
    )
    middle = random_.choice(
        (b"", data[start:end] * 2, random_.choice(strange), random_.randbytes(8))
    )
    return data[:start] + middle + data[end:]


def wrap(data: bytes, random_: random.Random) -> bytes:
    """Change the whole file: encoding, line ends, repetition, emptiness."""
    whole: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: b"\n",
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.replace(b"\n", b"\r"),
        lambda: data + data,
        lambda: data + b"\n",
        lambda: data.rstrip(b"\n"),
        lambda: data.decode("latin-1").encode("utf-16"),
        lambda: b"[" * 50_000 + data,
        lambda: random_.randbytes(random_.randrange(200)),
        lambda: b"\x1f\x8b" + data,
    )
    return random_.choice(whole)()


def lines(data: bytes, random_: random.Random) -> bytes:
    """Delete, repeat, swap or shuffle lines."""
    rows = data.splitlines(keepends=True)
    if not rows:
        return b"\n"
    i, j = random_.randrange(len(rows)), random_.randrange(len(rows))
    action = random_.randrange(6)
    if action == 0:
        del rows[i]
    elif action == 1:
        rows.insert(j, rows[i])
    elif action == 2:
        rows[i], rows[j] = rows[j], rows[i]
    elif action == 3:
        rows = [rows[0], *random_.sample(rows[1:-1], max(len(rows) - 2, 0)), rows[-1]]
    elif action == 4:
        del rows[min(i, j) : max(i, j) + 1]
    else:
        rows[i] = rows[i].rstrip(b"\n") + rows[j]
    return b"".join(rows)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Path of every value inside a decoded JSON value, itself included."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [here, *(path for key, item in items for path in _paths(item, (*here, key)))]


def change(document: Any, random_: random.Random) -> Any:
    """Change a decoded JSON value in one place; returns the new value."""
    document = copy.deepcopy(document)
    path = random_.choice(_paths(document))
    if not path:
        return value(random_) if random_.random() < 0.2 else document
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    action = random_.randrange(10)
    if action < 6:
        parent[key] = value(random_)
    elif action == 6:
        del parent[key]
    elif action == 7 and isinstance(parent, dict):
        name = random_.choice((key.upper(), key + "x", "", "id", "type", "nodes", "\u00e9"))
        parent[name] = parent.pop(key)
    elif action == 8 and isinstance(parent[key], int | float):
        parent[key] = random_.choice((-parent[key], parent[key] + 1, parent[key] * 1.5, str(key)))
    elif isinstance(parent, list):
        parent.insert(random_.randrange(len(parent) + 1), parent[key])
    else:
        parent[random_.choice(("extra", "null", "x" * 300))] = value(random_)
    return document


def _changed(text: bytes, random_: random.Random) -> bytes:
    """Change one to three values of a JSON text; text that is no longer JSON stays."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        try:
            text = dumps(change(json.loads(text), random_)).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            break
    return text


def json_document(data: bytes, random_: random.Random) -> bytes:
    """Change values of a JSON document."""
    return _changed(data, random_)


def json_lines(data: bytes, random_: random.Random) -> bytes:
    """Change values in one to three records of a stream of JSON lines."""
    rows = data.splitlines()
    for i in random_.choices(range(len(rows)), k=random_.choice((1, 1, 1, 2, 3))):
        rows[i] = _changed(rows[i], random_)
    return b"\n".join(rows) + b"\n"


def duplicate_key(data: bytes, random_: random.Random) -> bytes:
    """Repeat a key of one record with another value."""
    rows = data.splitlines()
    i = random_.randrange(len(rows))
    try:
        record = json.loads(rows[i])
    except (ValueError, RecursionError):
        return data
    if not isinstance(record, dict) or not record:
        return data
    key = random_.choice(list(record))
    extra = f"{json.dumps(key)}:{dumps(value(random_))}".encode("utf-8", "surrogatepass")
    body = rows[i].strip()
    rows[i] = (
        b"{" + extra + b"," + body[1:]
        if random_.random() < 0.5
        else body[:-1] + b"," + extra + b"}"
    )
    return b"\n".join(rows) + b"\n"


def rewire(data: bytes, random_: random.Random) -> bytes:
    """Change what the nodes, groups or stages of a stream refer to: cycles, repeats, gaps."""
    rows = [json.loads(row) for row in data.splitlines()]
    wanted = [r for r in rows if r.get("type") in ("node", "group", "stage", "tensor")]
    for _ in range(random_.choice((1, 1, 2, 4))):
        record = random_.choice(wanted)
        other = random_.choice(wanted)
        lists = [k for k, v in record.items() if isinstance(v, list)]
        action = random_.randrange(5)
        if action == 0 or not lists:
            record["id"] = other["id"]
        elif action == 1:
            name = random_.choice(lists)
            record[name] = other.get(name, [])
        elif action == 2:
            name = random_.choice(lists)
            record[name] = [*record[name], random_.randrange(12)]
        elif action == 3:
            name = random_.choice(lists)
            record[name] = random_.sample(record[name], len(record[name]))
        elif record["type"] == "node" and other["type"] == "node":
            record["inputs"] = list(dict.fromkeys([*record["inputs"], *other["outputs"]]))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


EXTREMES = (0, 0.0, 5e-324, 1e-300, 1e-9, 1, 3.7, 1e15, 2**53 - 1, 1e17, 1e50, 1e100, 10**100)
"""Numbers that every field for numbers admits, zero perhaps excepted."""

_WHOLE = ("id", "version", "color", "count", "records", "k")


def extremes(data: bytes, random_: random.Random) -> bytes:
    """Put valid but extreme numbers in place of one to six others."""
    rows = [json.loads(row) for row in data.splitlines()]
    places = [
        (holder, name)
        for row in rows
        for holder in (row, row.get("time_s", {}), *row.get("devices", []))
        for name, value in holder.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in ("id", "version", "color", "records")
    ]
    for holder, name in random_.choices(places, k=random_.randint(1, 6)):
        number = random_.choice(EXTREMES)
        if name in _WHOLE:
            number = random_.choice((0, 1, 2, 3, 1000, 2**53 - 1))
        holder[name] = number
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


BYTES: tuple[Mutation, ...] = (flip, flip, truncate, splice, wrap)
TEXT: tuple[Mutation, ...] = (*BYTES, lines)
DOCUMENT: tuple[Mutation, ...] = (flip, truncate, splice, wrap, *[json_document] * 6)
STREAM: tuple[Mutation, ...] = (
    flip, truncate, splice, wrap, lines, lines, duplicate_key, rewire, rewire, rewire,
    *[extremes] * 5, *[json_lines] * 10,
)  # fmt: skip
