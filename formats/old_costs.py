"""What a stream says about its costs, which no longer holds when others take their place."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dnnp.formats.stream import Record, Stream

OF_HEADER = ("work", "costs", "measured", "calibration")
"""Fields of the header: what costs were made from, and how."""

OF_RECORDS = ("basis", "spread", "base_s")
"""Fields of nodes and groups, besides the costs themselves."""

OF_DEVICES = ("fitted",)
"""Fields of device records, of the classes whose costs are replaced."""


def forget_old_costs(
    stream: Stream, classes: Collection[str], *, keep: Collection[str] = ()
) -> None:
    """Drop everything that is said about the costs of a stream; the costs themselves stay.

    Whatever replaces costs calls this, then says what holds of the new ones.

    Parameters
    ----------
    classes
        Device classes whose costs are replaced.
    keep
        Fields of the header that hold on.
    """
    gone = set(OF_HEADER).difference(keep)
    stream.header = {name: v for name, v in stream.header.items() if name not in gone}
    for kind in ("node", "group"):
        forget_of_records(stream.get(kind))
    for device in stream.get("device"):
        if device["class"] in classes:
            _drop(device, OF_DEVICES)


def forget_of_records(records: Sequence[Record]) -> None:
    """The same for some nodes or groups alone."""
    for record in records:
        _drop(record, OF_RECORDS)


def _drop(record: Record, names: Sequence[str]) -> None:
    for name in names:
        record.pop(name, None)
