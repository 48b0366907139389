"""Whether the devices of a plan are still those of the stream that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnp.core.check.violation import Violation

Record = Mapping[str, Any]

OPTIONS = {
    "count": ("-k", "--cpus"),
    "memory_bytes": ("--memory",),
    "bandwidth_bytes_per_s": ("--bandwidth",),
    "cluster_size": ("--cluster-size",),
    "inner_bandwidth_bytes_per_s": ("--inner-bandwidth",),
    "larger_clusters": ("--cluster-size", "--inner-bandwidth"),
}
"""What a plan takes from a device record -> options that override it."""


def check_made(header: Record, plan: Record, devices: Sequence[Record]) -> list[Violation]:
    """Return what a plan that a command made cannot state of its devices.

    Its k counts the accelerators, and its devices are those of the device records but for what an
    option asked for; records that were edited later have no effect on it. Where nothing says how it
    was made, nothing is known.
    """
    made = [entry["arguments"] for entry in header["provenance"] if _makes_plans(entry)]
    words = [word.partition("=")[0] for arguments in made for word in arguments]
    if not made:
        return []
    found = []
    count = sum(d.get("count", 0) for d in plan["devices"] if d["kind"] != "cpu")
    if plan["k"] != count:
        message = f"k is {plan['k']}, but {count} accelerators are offered"
        found.append(Violation("stages", "plan", message, count, plan["k"]))
    if "--devices" in words:
        return found
    mine = {device["class"]: device for device in plan["devices"]}
    for record in devices:
        device = mine.get(record["class"])
        if device is None:
            continue
        if device["kind"] == "cpu" != record["kind"] and any(w.startswith("--cpus") for w in words):
            continue  # counted as CPUs: what its record states of an accelerator does not hold
        for name, options in OPTIONS.items():
            free = any(word.startswith(options) for word in words)
            absent = name == "count" and name not in record
            inner = name.startswith("inner") and not record.get("cluster_size")
            if free or absent or inner or device.get(name) == record.get(name):
                continue
            if name == "cluster_size" and not (device.get(name) or record.get(name)):
                continue
            message = f"was made for devices with {name} {device.get(name)!r}, "
            message += f"the device record says {record.get(name)!r}"
            found.append(Violation("digest", "plan", message, record.get(name), device.get(name)))
    return found


def _makes_plans(entry: Record) -> bool:
    """Whether a command surely made a plan; without -k dnnp-bound may have found one, as it was."""
    asked = any(word.startswith("-k") for word in entry["arguments"])
    return entry["tool"] == "dnnp-partition" or (entry["tool"] == "dnnp-bound" and asked)
