"""Measure the links between the devices of this machine: a devices file for dnnp-partition.

Links are those of a machine, and not of a model: so they stand in a file of their own, which
`--devices` takes for any model, and no command that reads a stream measures them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dnnp.callbacks import CALLBACKS, Callbacks
from dnnp.core.extras.fit import LinkFit, fit_link
from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.search_context import Progress
from dnnp.core.model.text import instead, shown_bytes, shown_seconds
from dnnp.core.runtime import measure_links
from dnnp.core.runtime.measure_links import SIZES, Sweep, Transfer
from dnnp.formats.files import whole_file
from dnnp.formats.inputs.devices import listed_records
from dnnp.formats.stream import Record

WAYS = ("threads", "shared-memory", "pipe")
"""Ways in which cores hand over: threads of one process as those of dnnp-run, or processes."""

GOOD = 0.05
"""A fit whose points deviate by more, in the median, is made again with more rounds."""
_TRIES = 3


@dataclass(frozen=True)
class Spot:
    """One device of a list, and what of this machine it is."""

    name: str
    """Class and number, such as `t4/1`."""
    core: int
    """Logical processor; of the host's thread, for a GPU."""
    gpu: int | None = None
    """Number of the GPU; None: a core."""


def measured_link(
    transfer: Transfer,
    *,
    sizes: Sequence[int] = (),
    trips: int = 1,
    seconds: float = 1.0,
) -> LinkFit:
    """Sweep sizes over a link and fit its latency and its bandwidth.

    Parameters
    ----------
    transfer
        Moves so many bytes, and returns when they have arrived.
    sizes
        Bytes; none: 64 to 16 MiB.
    trips
        Messages, one after the other, that one call takes: 2 where an answer comes back.
    seconds
        Time to measure for; up to three times as long where the points are off the line.
    """
    sweep = Sweep(transfer, sizes or SIZES, trips)
    for _ in range(_TRIES):
        sweep.add(limit_s=seconds)
        fit = fit_link(*sweep.points())
        if fit.error <= GOOD:
            break
    return fit


def measured_links(
    devices: str,
    *,
    by: str = "threads",
    gpus: Sequence[str] = (),
    seconds: float = 1.0,
    caller: Callbacks = CALLBACKS,
) -> list[Record]:
    """Measure the links between every two devices of this machine.

    Parameters
    ----------
    devices
        Classes with counts, such as `cpu-core:2,t4:1`. Cores are taken in the order of their
        numbers, GPUs likewise.
    by
        How cores hand over; one of `WAYS`.
    gpus
        Classes that are GPUs; the others are cores.
    seconds
        Time for each direction of each link.

    Returns
    -------
    list
        Device records, then link records, as a devices file holds them.

    Raises
    ------
    UsageError
        A class is unknown, or there are more devices than this machine has cores.
    UnavailableError
        There are not so many GPUs, or ONNX Runtime cannot use them.
    """
    if by not in WAYS:
        raise UsageError(f"--by {by}: must be one of {', '.join(WAYS)}")
    records = listed_records(devices, {})
    pairs = list(itertools.combinations(_spots(records, gpus), 2))
    links = []
    with caller.progress("measuring links") as bar:
        for i, (a, b) in enumerate(pairs):
            bar.update(Progress(f"measuring links, {a.name} to {b.name}", share=i / len(pairs)))
            links.append(_link(a, b, by, seconds, caller))
    return [*records, *links]


def write_devices(records: Sequence[Record], path: str) -> None:
    """Write records as a devices file: lines of JSON; a file is replaced atomically.

    `-` is standard output.

    Raises InputFileError: it cannot be written.
    """
    import orjson

    data = b"".join(orjson.dumps(record) + b"\n" for record in records)
    if path != "-":
        with whole_file(path) as file:
            file.write(data)
        return
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror or error}") from None


def _spots(records: Sequence[Record], gpus: Sequence[str]) -> list[Spot]:
    """All devices, in order, with their cores and GPUs."""
    classes = [record["class"] for record in records]
    for name in gpus:
        if name not in classes:
            raise UsageError(f"--gpu {name}: no class of the devices{instead(name, classes)}")
    cores, spots, number = available_cores(), [], 0
    wanted = sum(record["count"] for record in records if record["class"] not in gpus)
    if wanted > len(cores):
        raise UsageError(f"{wanted} devices are cores, and there are {len(cores)}")
    free: Iterator[int] = iter(cores)
    for record in records:
        for i in range(record["count"]):
            name = f"{record['class']}/{i}"
            if record["class"] in gpus:
                spots.append(Spot(name, cores[0], number))
                number += 1
            else:
                spots.append(Spot(name, next(free)))
    if number:
        measure_links.require_gpus(number)
    return spots


def _link(a: Spot, b: Spot, by: str, seconds: float, caller: Callbacks) -> Record:
    """Measure the link between two devices, both ways where these may differ."""
    (forth, trips), *more = _ways(a, b, by)
    there = _fitted(forth, trips, seconds)
    record: Record = {
        "type": "link",
        "from": a.name,
        "to": b.name,
        "bandwidth_bytes_per_s": there.bandwidth_bytes_per_s,
    }
    fits = [there]
    for back, trips in more:
        fits.append(_fitted(back, trips, seconds))
        record["back_bandwidth_bytes_per_s"] = fits[-1].bandwidth_bytes_per_s
    # A record has one latency: of two directions the longer one.
    record["latency_s"] = max(fit.latency_s for fit in fits)
    for fit, arrow in zip(fits, ("to", "from"), strict=False):
        caller.note(f"{a.name} {arrow} {b.name}: {_in_words(fit)}")
    return record


Way = Callable[[], "AbstractContextManager[Transfer]"]


def _ways(a: Spot, b: Spot, by: str) -> list[tuple[Way, int]]:
    """Ways from one device to another, and back if that is another way; messages of each."""
    if a.gpu is not None and b.gpu is not None:
        one, other = a.gpu, b.gpu
        return [
            (lambda: measure_links.between_gpus(one, other), 1),
            (lambda: measure_links.between_gpus(other, one), 1),
        ]
    if a.gpu is not None or b.gpu is not None:
        core, gpu = (b.core, a.gpu) if a.gpu is not None else (a.core, b.gpu)
        number = gpu or 0
        ways: list[tuple[Way, int]] = [
            (lambda: measure_links.to_gpu(core, number), 1),
            (lambda: measure_links.from_gpu(core, number), 1),
        ]
        return ways[::-1] if a.gpu is not None else ways
    if by == "threads":
        return [(lambda: measure_links.between_threads(a.core, b.core), 2)]
    shared = by == "shared-memory"
    return [(lambda: measure_links.between_processes(a.core, b.core, max(SIZES), shared=shared), 2)]


def _fitted(way: Way, trips: int, seconds: float) -> LinkFit:
    with way() as transfer:
        return measured_link(transfer, trips=trips, seconds=seconds)


def _in_words(fit: LinkFit) -> str:
    least = "" if fit.bounded else "at least "
    return (
        f"{shown_seconds(fit.latency_s)}, {least}{shown_bytes(fit.bandwidth_bytes_per_s)}/s; "
        f"sizes are {fit.error:.1%} off in the median"
    )
