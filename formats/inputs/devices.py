"""Device files and lists: what a device can do, and the devices and links to split over.

A device file is one JSON object; `dnnp.samples` ships one for each known device. Rates are
what the vendor states, for dense operands; `efficiency` scales them to what is attained.

Options name devices as in `a100:4,t4:4`, and links as in `a100,t4=10G,5us`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dnnp.core.model.device_rates import FAMILIES, RATES, DeviceRates, Operators, OperatorSpec
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.text import instead, shown_bytes, table
from dnnp.formats.fields import MAX_ID, MIN_POSITIVE, describe_fault, shown
from dnnp.formats.files import bundled_names, read_bundled, read_file
from dnnp.formats.inputs.amounts import parse_latency, parse_rate
from dnnp.formats.inputs.checked_json import Fields, parse_json
from dnnp.formats.records import RECORDS

Record = dict[str, Any]

FACTORS = ("matrix", "vector", "memory")
"""Work that `efficiency` may scale: products and convolutions, everything else, and traffic."""
_KINDS = ("accelerator", "cpu")
_FIELDS = (
    "name", "description", "kind", "peak_flop_per_s", "memory_bytes", "overhead_bytes",
    "fast_memory_bytes", "memory_bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s",
    "launch_overhead_s", "efficiency", "caches", "channel_block", "operators", "fitted",
    "provider", "notes",
    "sources",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DeviceSpec(DeviceRates):
    """One device, as its file describes it."""

    name: str
    """Device class in streams."""
    kind: str
    """`accelerator`, or `cpu`: stages pay for compute only."""
    memory_bytes: float
    link_bandwidth_bytes_per_s: float
    """Link to other devices, one direction."""
    description: str = ""
    sources: tuple[str, ...] = ()
    overhead_bytes: float = 0.0
    """Memory that a process takes besides its stages."""
    fast_memory_bytes: float | None = None
    """On-chip memory that the whole device shares; None: not stated."""
    provider: str = ""
    """`cpu`: ONNX Runtime runs stages on a CPU, which says what tensors take in memory."""
    efficiency_fitted: bool = False
    """True if `efficiency` follows from what was measured, as all `operators` do."""

    @property
    def is_fitted(self) -> bool:
        """True if times follow from what was measured there."""
        return bool(self.operators) or self.efficiency_fitted


def device_names() -> list[str]:
    """Names of the devices that come with the package, sorted."""
    return bundled_names("devices")


def load_device(name_or_path: str) -> DeviceSpec:
    """Load a device that comes with the package by name, or any other from its file.

    Raises
    ------
    UsageError
        No device has this name.
    InputFileError
        The file is missing or cannot be read.
    FormatError
        The file is not a device file; the message names the field.
    """
    if "/" not in name_or_path and not name_or_path.endswith(".json"):
        known = device_names()
        if name_or_path not in known:
            hint = instead(name_or_path, known, "or the path of a device file")
            raise UsageError(f"unknown device {shown(name_or_path)}{hint}")
        return parse_device(read_bundled("devices", name_or_path), f"{name_or_path}.json")
    return parse_device(read_file(name_or_path), name_or_path)


def parse_device(data: bytes, file: str) -> DeviceSpec:
    """Check a device file's contents; see `load_device`."""
    record = parse_json(data, file)
    fields = Fields(record, "", file)
    fields.only(*_FIELDS)
    peaks = fields.fields("peak_flop_per_s")
    factors = Fields(fields.get("efficiency", {}), "efficiency", file)
    efficiency = _rates(factors, FACTORS)
    for key, value in efficiency.items():
        if value > 1:
            raise factors.fault(key, f"{shown(value)} is above 1")
    _above_zero(peaks, "float32")
    name, kind = fields.text("name"), fields.text("kind")
    if name.split() != [name] or "/" in name:
        raise fields.fault("name", f"{shown(name)} is not a name without spaces and slashes")
    if kind not in _KINDS:
        raise fields.fault("kind", f"{shown(kind)} is not one of {', '.join(_KINDS)}")
    return DeviceSpec(
        name=name,
        kind=kind,
        peak_flop_per_s=_rates(peaks, RATES),
        memory_bytes=_above_zero(fields, "memory_bytes"),
        overhead_bytes=float(fields.number("overhead_bytes", 0.0)),
        fast_memory_bytes=(
            _above_zero(fields, "fast_memory_bytes") if "fast_memory_bytes" in record else None
        ),
        memory_bandwidth_bytes_per_s=_above_zero(fields, "memory_bandwidth_bytes_per_s"),
        link_bandwidth_bytes_per_s=_above_zero(fields, "link_bandwidth_bytes_per_s"),
        launch_overhead_s=float(fields.number("launch_overhead_s")),
        efficiency=efficiency,
        description=fields.text("description", ""),
        sources=tuple(fields.texts("sources")),
        operators=parse_operators(record.get("operators", {}), file),
        caches=parse_caches(fields),
        channel_block=max(fields.count("channel_block", 1), 1),
        provider=fields.text("provider", ""),
        efficiency_fitted=fields.flag("fitted", False),
    )


def _above_zero(values: Fields, name: str, *default: float) -> float:
    value = values.number(name, *default)
    if value < MIN_POSITIVE:
        least = f"a number of at least {MIN_POSITIVE}" if value else "above 0"
        raise values.fault(name, f"{shown(value)} is not {least}")
    return float(value)


def _rates(values: Fields, keys: tuple[str, ...]) -> dict[str, float]:
    """Numbers above 0 by name, the names among `keys`."""
    values.only(*keys)
    return {key: _above_zero(values, key) for key in values.names()}


def class_record(spec: DeviceSpec) -> Record:
    """The stream's `device` record of a class, without a count."""
    record: Record = {
        "type": "device",
        "class": spec.name,
        "kind": spec.kind,
        "memory_bytes": max(spec.memory_bytes - spec.overhead_bytes, 0.0),
        "bandwidth_bytes_per_s": spec.link_bandwidth_bytes_per_s,
    }
    if spec.overhead_bytes:
        record["overhead_bytes"] = spec.overhead_bytes
    if spec.fast_memory_bytes is not None:
        record["fast_memory_bytes"] = spec.fast_memory_bytes
    if spec.description:
        record["name"] = spec.description
    return record


def load_cluster(path: str) -> tuple[list[Record], list[tuple[Record, int | None]]]:
    """Read the devices to split over: a JSON list, or JSON lines, of `device` and `link` records.

    `path` may also be the name of a class, or of a cluster, that comes with the package. Such a
    class may leave out everything but its name in a file too; the rest is filled in from its
    device file.

    Returns
    -------
    tuple
        The devices; the links, each with its line in the file where it has one.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read.
    FormatError
        The file is malformed; the message names the line and the field.
    UsageError
        There is no cluster or class of this name, or a class in the file is neither known nor
        described by at least its kind.
    """
    records: list[Record] = []
    links: list[tuple[Record, int | None]] = []
    known = device_names()
    if path in known and not os.path.exists(path):
        return [class_record(load_device(path))], []
    for line, record in _entries(_cluster_bytes(path), path):
        kind = record.get("type", "device")
        if kind not in ("device", "link"):
            raise FormatError(f"{shown(kind)} is neither 'device' nor 'link'", path, line, "type")
        name = record.get("class")
        if kind == "device" and isinstance(name, str) and name in known:
            record = {**class_record(load_device(name)), **record}
        elif kind == "device" and isinstance(name, str) and "kind" not in record:
            hint = instead(name, known)
            raise UsageError(
                f"{path}: unknown device class {shown(name)}{hint}; others need at least a kind"
            )
        for key in record:
            if key != "type" and key not in RECORDS[kind]:
                hint = instead(key, RECORDS[kind])
                raise FormatError(f"is not known{hint}", path, line, key)
        record = {"type": kind, **record}
        found = describe_fault(RECORDS[kind], record)
        if found is not None:
            raise FormatError(found[1], path, line, found[0])
        if kind == "link":
            links.append((record, line))
            continue
        if any(other["class"] == name for other in records):
            raise FormatError(f"{shown(name)} is there twice", path, line, "class")
        records.append(record)
    if not records:
        raise FormatError("no devices", path)
    return records, links


def _cluster_bytes(path: str) -> bytes:
    """Contents of a file, or of a cluster that comes with the package."""
    known = bundled_names("clusters")
    if not os.path.exists(path):
        if path in known:
            return read_bundled("clusters", path)
        if "/" not in path and "." not in path:
            hint = instead(path, [*known, *device_names()], "or the path of a file")
            raise UsageError(f"unknown devices {shown(path)}{hint}")
    return read_file(path)


def _entries(data: bytes, path: str) -> list[tuple[int | None, Record]]:
    """(line or None, object) of each entry of a JSON list or of JSON lines."""
    entries: list[tuple[int | None, Any]]
    try:
        whole = parse_json(data, path)
        entries = [(None, value) for value in (whole if isinstance(whole, list) else [whole])]
    except FormatError:
        if data.lstrip().startswith(b"["):
            raise
        lines = [(n, text) for n, text in enumerate(data.split(b"\n"), 1) if text.strip()]
        entries = [(number, _parse_line(text, path, number)) for number, text in lines]
    for line, value in entries:
        if not isinstance(value, dict):
            raise FormatError(f"{shown(value)} is not an object", path, line)
    return entries


def _parse_line(text: bytes, path: str, number: int) -> Any:
    try:
        return parse_json(text, path)
    except FormatError as error:
        raise FormatError(error.reason, path, number) from None


def parse_operators(record: Any, file: str) -> Operators:
    """Check the `operators` of a device file."""
    found: dict[str, dict[str, OperatorSpec]] = {}
    families = Fields(record, "operators", file)
    families.only(*FAMILIES)
    for family, entries in record.items():
        types = Fields(entries, families.place(family), file)
        types.only(*RATES)
        types.get("float32")
        found[family] = {
            dtype: _parse_rates(Fields(entry, types.place(dtype), file))
            for dtype, entry in entries.items()
        }
    return found


def _parse_rates(entry: Fields) -> OperatorSpec:
    entry.only("compute", "memory", "half_length", "launch")
    compute, memory = (_above_zero(entry, name, 1.0) for name in ("compute", "memory"))
    half_length, launch = entry.number("half_length", 0), entry.number("launch", 1)
    return OperatorSpec(compute, memory, float(half_length), float(launch))


def parse_caches(fields: Fields) -> tuple[tuple[float, float], ...]:
    """Check the `caches` of a device file: (bytes, bytes per second), from small to large."""
    found: list[tuple[float, float]] = []
    for entry in fields.objects("caches") if "caches" in fields else []:
        entry.only("bytes", "bandwidth_bytes_per_s")
        size = float(entry.number("bytes"))
        if found and size <= found[-1][0]:
            raise entry.fault("bytes", f"{shown(size)} is not above that of the cache before it")
        found.append((size, _above_zero(entry, "bandwidth_bytes_per_s")))
    return tuple(found)


def is_list(text: str) -> bool:
    """True if `--devices` names classes with counts, and no file.

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
    return table([""] * 5, rows, left=range(5))[1:]
