"""Options, and values of options, that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn


def size(text: str) -> float:
    """A size in bytes, with or without suffix and unit: `16G`, `512MiB`, `1.5e9`."""
    from dnnp.formats.amounts import parse_size

    return _parsed(parse_size, text)


def rate(text: str) -> float:
    """A bandwidth in bytes per second, with or without suffix and unit: `10G`, `10GB/s`."""
    from dnnp.formats.amounts import parse_rate

    return _parsed(parse_rate, text)


def share_or_size(text: str) -> float:
    """A share up to 1, or a size in bytes above that: `0.9`, `14Gi`."""
    from dnnp.formats.amounts import parse_share_or_size

    return _parsed(parse_share_or_size, text)


def frequency(text: str) -> float:
    """A number a second: `100/s`."""
    from dnnp.formats.amounts import parse_frequency

    return _parsed(parse_frequency, text)


def duration(text: str) -> float:
    """A time with its unit: `50ms`."""
    from dnnp.formats.amounts import parse_latency

    return _parsed(parse_latency, text)


def _parsed(parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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


def sizes(text: str) -> int | str:
    """Whole numbers from 1; several, with commas between, stay a text."""
    found = [positive(word) for word in text.split(",")]
    return text if len(found) > 1 else found[0]


def rates(text: str) -> float | str:
    """Bandwidths as of `rate`; several, with commas between, stay a text."""
    found = [rate(word) for word in text.split(",")]
    return text if len(found) > 1 else found[0]


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
        type=sizes,
        metavar="N[,...]",
        help="every N accelerators form a cluster with faster links inside; 4,16: so do every 16, "
        "clusters of clusters",
    )
    devices.add_argument(
        "--inner-bandwidth",
        type=rates,
        metavar="BYTES/S[,...]",
        help="bandwidth of a link inside a cluster, for each size",
    )
    devices.add_argument(
        "--devices",
        metavar="FILE|LIST",
        help="device records to use instead, or a list of classes with counts, such as a100:4,t4:4",
    )
    devices.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="A,B=RATE",
        help="a link between two devices or classes, such as a100,t4=10G or a100/0,t4/1=10G,5us; "
        "repeatable",
    )
    list_option(devices)


def list_option(group: argparse._ActionsContainer) -> None:
    """Declare `--list-devices`."""
    group.add_argument(
        "--list-devices",
        action=_ListDevices,
        nargs=0,
        help="print the devices that come with the package (name, kind, memory, bandwidth of the "
        "link) and exit",
    )


class _ListDevices(argparse.Action):
    """`--list-devices`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        from dnnp.formats.device_list import listed_devices

        parser.exit(0, "".join(f"{line}\n" for line in listed_devices()))


def limit_options(parser: argparse.ArgumentParser, title: str = "limits") -> None:
    """Declare the options; `set_limits` puts them into force."""
    limits = parser.add_argument_group(title)
    limits.add_argument(
        "--stage-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end with status 5 when one run of a stage, or of the model, or the making of its "
        "session takes longer; 0: never (default: 600)",
    )
    limits.add_argument(
        "--max-memory",
        type=size,
        metavar="BYTES",
        help="end with status 5 when more memory is needed (suffixes K, M, G, Ki..; default: 90 %% "
        "of what is free)",
    )


def set_limits(args: argparse.Namespace) -> None:
    """Limit this process from now on."""
    from dnnp.core.runtime import limits

    limits.set_limits(args.stage_timeout, args.max_memory)
