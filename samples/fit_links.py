"""Measure the links between the devices of this machine.

    python -m dnnp.samples.fit_links cpu-core:2 -o machine.dnnp
    dnnp-partition --objective latency --devices machine.dnnp priced.dnnp

Tensors of 64 bytes to 16 MiB go from every device to every other one, and latency and bandwidth are
fitted to what that takes. The file holds device and link records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import dnnp
from dnnp.fits.links import WAYS, measured_links, write_devices
from dnnp.samples.arguments import seconds, status_of


class _Said(dnnp.Callbacks):
    """Tells on standard error what is found."""

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.fit_links",
        description="Measure the links between the devices of this machine.",
    )
    parser.add_argument(
        "devices", metavar="DEVICES", help="classes with counts, such as cpu-core:2,t4:1"
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class that is a GPU, in the order of their numbers; the others are cores",
    )
    parser.add_argument(
        "--by",
        choices=WAYS,
        default="threads",
        help="how cores hand over: threads, as those of dnnp-run; or processes, through memory "
        "that they share or through a pipe (default: threads)",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=1.0,
        metavar="S",
        help="time for each direction of each link (default: 1)",
    )
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="FILE",
        help="devices file to write (default: standard output)",
    )
    args = parser.parse_args(arguments)

    def work() -> None:
        records = measured_links(
            args.devices, by=args.by, gpus=args.gpu, seconds=args.seconds, caller=_Said()
        )
        write_devices(records, args.output)

    return status_of(parser.prog, work)


if __name__ == "__main__":
    sys.exit(main())
