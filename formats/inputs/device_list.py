"""Devices and links as options name them: `a100:4,t4:4`, and `a100,t4=10G,5us`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import instead, shown_bytes
from dnnp.formats.fields import MAX_ID, shown
from dnnp.formats.inputs.amounts import parse_latency, parse_rate
from dnnp.formats.inputs.devices import class_record, device_names, load_device

Record = dict[str, Any]


def is_list(text: str) -> bool:
    """Test whether `--devices` names classes with counts, and no file.

    >>> is_list("a100:4,t4:4"), is_list("a100"), is_list("cluster.json")
    (True, False, False)
    """
    return (":" in text or "," in text) and not os.path.exists(text)


def listed_records(text: str, known: Mapping[str, Record]) -> list[Record]:
    """The device records of a list such as `a100:4,t4:4`; those that a devices file would make.

    A class may be one that the stream prices, one that comes with the package, or a device file.
    Without a count there is one of it.

    Parameters
    ----------
    known
        Classes that the stream prices, each with its device record where there is one.

    Raises
    ------
    UsageError
        A class is not known or there twice, or a count is none.
    InputFileError, FormatError
        A device file cannot be read, or is malformed.
    """
    records: list[Record] = []
    for word in text.split(","):
        name, _, number = word.rpartition(":") if ":" in word else (word, "", "1")
        if not name.strip():
            raise UsageError(f"--devices {text}: {shown(word)} names no class; write CLASS:COUNT")
        count = int(number) if number.isascii() and number.isdigit() and len(number) < 20 else 0
        if not 0 < count <= MAX_ID:
            raise UsageError(
                f"--devices {text}: no such file, and in {shown(word)} {shown(number)} is no "
                "number of devices; write CLASS:COUNT"
            )
        record = {**_record_of(name, known, text), "count": count}
        if any(record["class"] == other["class"] for other in records):
            raise UsageError(f"--devices {text}: class '{record['class']}' is there twice")
        records.append(record)
    return records


def _record_of(name: str, known: Mapping[str, Record], text: str) -> Record:
    """The device record of a class, without a count."""
    if "/" in name or name.endswith(".json"):
        return class_record(load_device(name))
    if known.get(name):
        return {key: value for key, value in known[name].items() if key != "count"}
    bundled = device_names()
    if name in bundled:
        return class_record(load_device(name))
    if name in known:
        return {"type": "device", "class": name, "kind": "accelerator"}
    names = sorted({*bundled, *known})
    raise UsageError(
        f"--devices {text}: unknown device class {shown(name)}"
        + instead(name, names, "or the path of a device file")
    )


def classes_of(devices: Iterable[Record], nodes: Iterable[Record]) -> dict[str, Record]:
    """Classes that a stream prices -> their device records; empty where it has none."""
    records = {record["class"]: record for record in devices}
    priced = dict.fromkeys(name for node in nodes for name in node.get("time_s", ()))
    return {name: records.get(name, {}) for name in priced}


def link_record(text: str) -> Record:
    """The link record of `A,B=RATE` or `A,B=RATE,LATENCY`.

    Raises
    ------
    UsageError
        It is malformed; the message names the part.
    """
    ends, equals, numbers = text.partition("=")
    names = [name.strip() for name in ends.split(",")]
    rate, comma, latency = numbers.partition(",")
    if len(names) != 2 or not all(names) or not equals:
        raise UsageError(
            f"--link {text}: write two devices or classes and a bandwidth, such as a100,t4=10G"
        )
    record: Record = {"type": "link", "from": names[0], "to": names[1]}
    try:
        record["bandwidth_bytes_per_s"] = parse_rate(rate)
        if comma:
            record["latency_s"] = parse_latency(latency)
    except ValueError as error:
        raise UsageError(f"--link {text}: {error}") from None
    return record


def listed_devices() -> list[str]:
    """A line about each device of the package: name, kind, memory, bandwidth of the link, words."""
    rows = []
    for name in device_names():
        spec = load_device(name)
        link = f"{shown_bytes(spec.link_bandwidth_bytes_per_s)}/s"
        rows.append((name, spec.kind, shown_bytes(spec.memory_bytes), link, spec.description))
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
