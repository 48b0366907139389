"""Options, and values of options, that several commands take."""

from __future__ import annotations

import argparse

_FACTORS = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def size(text: str) -> float:
    """A size in bytes, with or without suffix and unit: `16G`, `512MiB`, `1.5e9`."""
    return _amount(text, "", "a size", "16G or 512MiB")


def rate(text: str) -> float:
    """A bandwidth in bytes per second, with or without suffix and unit: `10G`, `10GB/s`."""
    return _amount(text, "/s", "a bandwidth in bytes per second", "12G or 12GB/s")


def _amount(text: str, ending: str, what: str, examples: str) -> float:
    """A number of bytes with a prefix; `B` and the ending may follow."""
    plain = text.removesuffix(ending).removesuffix("B")
    digits = plain.rstrip("kKMGTi")
    try:
        factor, value = _FACTORS[plain[len(digits) :]], float(digits)
    except (KeyError, ValueError):
        bits = "; 8 bits are a byte" if ending and text.endswith(("b/s", "bit/s", "bps")) else ""
        raise argparse.ArgumentTypeError(
            f"'{text}' is not {what}, such as {examples}{bits}"
        ) from None
    from dnnp.formats.fields import MAX_NUMBER, MIN_POSITIVE

    value *= factor
    if not MIN_POSITIVE <= value <= MAX_NUMBER:
        fault = "is not above 0" if not value > 0 else f"is not from {MIN_POSITIVE} to {MAX_NUMBER}"
        raise argparse.ArgumentTypeError(f"'{text}' {fault}")
    return value


def capacity(text: str) -> float | str:
    """A size, or `fast`: the fast memory that the device's class states."""
    return text if text == "fast" else size(text)


def count(text: str) -> int:
    """A whole number from 0."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    from dnnp.formats.fields import MAX_ID

    if not 0 <= value <= MAX_ID:
        fault = "is below 0" if value < 0 else "is too large"
        raise argparse.ArgumentTypeError(f"{text} {fault}")
    return value


def positive(text: str) -> int:
    """A whole number from 1."""
    value = count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is too small; at least 1")
    return value


def seconds(text: str) -> float:
    """A time from 0, in seconds."""
    return _number(text, 0.0)


def factor(text: str) -> float:
    """A factor above 0."""
    value = _number(text, 0.0)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is too small; above 0")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, 0.0, 1.0)


def _number(text: str, least: float, most: float = 1e9) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not least <= value <= most:
        limit = "1e9" if most == 1e9 else f"{most:g}"
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least:g} to {limit}")
    return value


def device_options(parser: argparse.ArgumentParser, title: str = "devices") -> None:
    """Declare the options that say what devices there are."""
    devices = parser.add_argument_group(title)
    devices.add_argument(
        "-k", type=count, metavar="N", help="N identical devices of the priced class"
    )
    devices.add_argument("--cpus", type=count, metavar="L", help="L CPUs beside them")
    devices.add_argument(
        "--memory",
        type=capacity,
        metavar="BYTES",
        help="capacity of a device, such as 16G or 16GiB; fast: its on-chip memory",
    )
    devices.add_argument(
        "--bandwidth",
        type=rate,
        metavar="BYTES/S",
        help="bandwidth of a device's link, such as 12G",
    )
    devices.add_argument(
        "--cluster-size",
        type=positive,
        metavar="N",
        help="every N accelerators form a cluster with faster links inside",
    )
    devices.add_argument(
        "--inner-bandwidth",
        type=rate,
        metavar="BYTES/S",
        help="bandwidth of a link inside a cluster",
    )
    devices.add_argument("--devices", metavar="FILE", help="device records to use instead")
