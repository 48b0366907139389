"""Which devices a split may use: records of the stream, then what options override."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UsageError

if TYPE_CHECKING:
    from dnnp.core.model.link import Link
    from dnnp.formats.stream import Record, Stream


def platform_of(
    stream: Stream, args: argparse.Namespace
) -> tuple[tuple[DeviceClass, ...], tuple[Link, ...]]:
    """Device classes with counts, from the stream, `--devices`, `-k`, `--cpus` and limits; links.

    Raises
    ------
    UsageError
        Neither `-k` nor counted devices, no device at all, a class that is not priced, one
        without the fast memory that is asked for, or clusters that lack something.
    FormatError
        A link does not fit the devices.
    """
    from dnnp.core.model.errors import FormatError
    from dnnp.formats.devices import load_cluster
    from dnnp.formats.links import expand_links

    records = stream.get("device")
    lines = stream.lines.get("link", [])
    links: list[tuple[Record, int | None]] = [
        (record, lines[i] if lines else None) for i, record in enumerate(stream.get("link"))
    ]
    file = stream.name
    if args.devices is not None:
        records, links = load_cluster(args.devices)
        records, file = [{"count": 1, **r} for r in records], args.devices

    def fault(number: int, field: str, reason: str) -> FormatError:
        return FormatError(reason, file, links[number][1], field)

    devices = _chosen(stream, records, args)
    return devices, expand_links((record for record, _ in links), devices, fault)


def _chosen(
    stream: Stream, records: list[Record], args: argparse.Namespace
) -> tuple[DeviceClass, ...]:
    """The device classes of `records`, with what options override; see `platform_of`."""
    from dnnp.formats.graph import device_of

    priced = sorted({c for node in stream.get("node") for c in node.get("time_s", {})})
    counted = [r for r in records if "count" in r]
    devices = [device_of(r) for r in (counted or records)]
    known = {d.name for d in devices}
    if args.devices is None and not counted:
        devices += [DeviceClass(c, count=0) for c in priced if c not in known]
    accelerators = [d for d in devices if not d.is_cpu]
    cpus = [d for d in devices if d.is_cpu]
    if args.k is not None and len(accelerators) > 1 and counted:
        names = ", ".join(d.name for d in accelerators)
        raise UsageError(f"-k with several accelerator classes ({names}); give counts by --devices")
    if args.k is None and not counted:
        raise UsageError("how many devices? give -k N or --devices FILE")
    if not counted:
        # The class that was priced is the pipeline's device, whatever its file calls it.
        accelerators = [replace(d, kind="accelerator") for d in (accelerators or cpus)[:1]]
    if args.k is not None:
        accelerators = [replace(d, count=args.k) for d in accelerators[:1]]
    if args.cpus is not None:
        cpus = [replace(d, count=args.cpus) for d in _cpu_class(cpus, priced)]
    elif not counted:
        cpus = []
    accelerators = [d for d in accelerators if d.count > 0]
    accelerators = [
        replace(
            d,
            memory_bytes=_capacity(d, args),
            bandwidth_bytes_per_s=(
                d.bandwidth_bytes_per_s if args.bandwidth is None else args.bandwidth
            ),
        )
        for d in accelerators
    ]
    accelerators = [_clustered(d, args) for d in accelerators]
    if args.cluster_size is not None and not accelerators:
        raise UsageError("--cluster-size: there are no accelerators to form clusters")
    for cpu in cpus:
        if cpu.count > 0 and cpu.cluster_size:
            raise UsageError(
                f"class '{cpu.name}' is a CPU and cannot have a cluster_size; only accelerators "
                "form clusters"
            )
    chosen = tuple(d for d in (*accelerators, *cpus) if d.count > 0)
    if not chosen:
        raise UsageError("k is 0 and there are no CPUs: there is no device to run on")
    for device in chosen:
        if sum(device.name == other.name for other in chosen) > 1:
            raise UsageError(
                f"class '{device.name}' cannot be both accelerator and CPU; price another one, "
                f"such as dnnp-profile --device v100 --device {device.name}"
            )
        if device.name not in priced:
            raise UsageError(
                f"class '{device.name}' is not priced in the stream (priced: {', '.join(priced)}); "
                f"run dnnp-profile --device {device.name}"
            )
    return chosen


def _capacity(device: DeviceClass, args: argparse.Namespace) -> float:
    """Memory of an accelerator class: what `--memory` says, or its record."""
    if args.memory is None:
        return device.memory_bytes
    if args.memory != "fast":
        return float(args.memory)
    if device.fast_memory_bytes is None:
        raise UsageError(
            f"--memory fast: class '{device.name}' states no fast_memory_bytes; give --memory BYTES"
        )
    return device.fast_memory_bytes


def _cpu_class(cpus: list[DeviceClass], priced: list[str]) -> list[DeviceClass]:
    """The class that `--cpus` counts."""
    if cpus:
        return cpus[:1]
    for name in ("cpu", "cpu-core"):
        if name in priced:
            return [DeviceClass(name, kind="cpu")]
    raise UsageError("--cpus: the stream prices no CPU class; run dnnp-profile --device cpu-core")


def _clustered(device: DeviceClass, args: argparse.Namespace) -> DeviceClass:
    """An accelerator class with the clusters that the options, or its record, give it."""
    size = device.cluster_size if args.cluster_size is None else args.cluster_size
    outer, inner = device.bandwidth_bytes_per_s, device.inner_bandwidth_bytes_per_s
    inner = inner if args.inner_bandwidth is None else args.inner_bandwidth
    if not size:
        if args.inner_bandwidth is not None:
            raise UsageError("--inner-bandwidth needs clusters: give --cluster-size too")
        return device
    if math.isinf(inner):
        raise UsageError("--cluster-size needs --inner-bandwidth, of the links inside a cluster")
    if math.isinf(outer):
        raise UsageError("clusters need --bandwidth, of the links between them")
    if inner < outer:
        raise UsageError(
            f"the bandwidth inside a cluster of '{device.name}' ({inner:g}) is below the one "
            f"between clusters ({outer:g})"
        )
    return replace(device, cluster_size=size, inner_bandwidth_bytes_per_s=inner)
