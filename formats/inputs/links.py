"""Links of a cluster: from records, which may speak of classes, to single directions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from math import isfinite

from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.errors import DnnpError
from dnnp.core.model.text import instead
from dnnp.formats.fields import shown
from dnnp.formats.stream import Record

MOST_DEVICES = 1024
"""Devices that links may join."""

Fault = Callable[[int, str, str], DnnpError]
"""Number of a record, field and reason -> the error that names its place."""


def expand_links(
    records: Iterable[Record], devices: Sequence[DeviceClass], fault: Fault
) -> tuple[Link, ...]:
    """Links between single devices, both directions of each record.

    An end that names a class stands for all its devices; no device is linked with itself. What a
    record says of single devices replaces what one says of their classes. Two devices of a class
    of which no record speaks have what their class states, if it does. So has a device, to and from
    CPUs of which no record speaks at all (`unnamed_cpus`): they are its host.

    Raises
    ------
    DnnpError
        That of `fault`: an end is not among the devices, a link leads from a device to itself, two
        records speak of the same two devices, or there are too many devices for links.
    """
    records = list(records)
    if not records:
        return ()
    if sum(d.count for d in devices) > MOST_DEVICES:
        raise fault(0, "from", f"links are for up to {MOST_DEVICES} devices")
    places = {d.name: [f"{d.name}/{i}" for i in range(d.count)] for d in devices}
    singles = {name: [name] for names in places.values() for name in names}
    found: dict[tuple[str, str], tuple[bool, Link]] = {}
    for i, record in enumerate(records):
        ends = []
        for field in ("from", "to"):
            name = record[field]
            if name not in places and name not in singles:
                known = [*places, *(singles if "/" in name else ())]
                reason = f"{shown(name)} is not among the devices{instead(name, known)}"
                raise fault(i, field, reason)
            ends.append(places.get(name) or singles[name])
        exact = record["from"] in singles and record["to"] in singles
        if exact and record["from"] == record["to"]:
            raise fault(i, "to", "a link from a device to itself")
        there = float(record["bandwidth_bytes_per_s"])
        back = float(record.get("back_bandwidth_bytes_per_s", there))
        latency = float(record.get("latency_s", 0.0))
        one_class = record["from"] == record["to"]
        for a in ends[0]:
            for b in ends[1]:
                if a == b or (one_class and a > b):
                    continue
                pairs = ((a, b, there), (b, a, back))
                for source, target, bandwidth in pairs:
                    before = found.get((source, target))
                    if before is not None and before[0] == exact:
                        reason = f"a second link between {source} and {target}"
                        raise fault(i, "to", reason)
                    if before is None or exact:
                        link = Link(source, target, bandwidth, latency)
                        found[source, target] = exact, link
    stated = [link for _, link in found.values()]
    hosts = unnamed_cpus(records, devices)
    return (*stated, *_by_class(devices, places, found.keys()), *_to_hosts(devices, places, hosts))


def unnamed_cpus(records: Iterable[Record], devices: Sequence[DeviceClass]) -> list[str]:
    """Classes of CPUs that no link names, where there are other devices; none without links."""
    named = {str(record[end]) for record in records for end in ("from", "to")}
    classes = named | {name.rpartition("/")[0] for name in named}
    if not named or all(d.is_cpu for d in devices):
        return []
    return [d.name for d in devices if d.is_cpu and d.name not in classes]


def _to_hosts(
    devices: Sequence[DeviceClass], places: Mapping[str, Sequence[str]], hosts: Sequence[str]
) -> Iterator[Link]:
    """Links between CPUs and all devices of other classes, over the smaller bandwidth of both."""
    for host in (d for d in devices if d.name in hosts):
        for device in devices:
            band = min(host.bandwidth_bytes_per_s, device.bandwidth_bytes_per_s)
            if device.name == host.name or not isfinite(band):
                continue
            for cpu in places[host.name]:
                for name in places[device.name]:
                    yield Link(cpu, name, band)
                    if device.name not in hosts:  # else it yields its own
                        yield Link(name, cpu, band)


def _by_class(
    devices: Sequence[DeviceClass],
    places: Mapping[str, Sequence[str]],
    spoken_of: Container[tuple[str, str]],
) -> Iterator[Link]:
    """Links within each class, over the bandwidth that it states, where no record speaks of one."""
    for device in devices:
        for i, source in enumerate(places[device.name]):
            for j, target in enumerate(places[device.name]):
                band = device.bandwidth_bytes_per_s
                for level in reversed(device.levels):
                    if i // level.size == j // level.size:
                        band = level.bandwidth_bytes_per_s
                if i != j and isfinite(band) and (source, target) not in spoken_of:
                    yield Link(source, target, band)
