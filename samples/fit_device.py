"""Fit a device file to this machine: ``python -m dnnp.samples.fit_device [-o FILE]``.

Small chains of operators run with ONNX Runtime on the CPU, some 200 of them: products,
convolutions, recurrent layers, normalisation, arithmetic, data movement, in several sizes and
element types. The rates of families of operators are fitted to their times. It takes a minute or
two; with one thread other processes may run meanwhile, but fewer are better.

Alone and warm, operators take less than in a model. Streams of whole models that ``dnnp-profile
--mode measure`` priced on this machine (``--stream FILE``, for each) have times of groups as stages
run them, and make a better file: rates are then fitted to those above all.

The notes of the file say what was fitted, on what, and how well. ``dnnp-profile --device FILE``
prices with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dnnp.fits.device import FitOptions, fit_device, write_device
from dnnp.samples.arguments import count, seconds, status_of


def _tell(done: int, total: int, title: str) -> None:
    """Report the progress of the measurement, on one line of a terminal or every tenth."""
    if sys.stderr.isatty():
        print(f"\r\x1b[Kmeasuring {done} of {total}: {title}", end="", file=sys.stderr, flush=True)
        if done == total:
            print("\r\x1b[Kfitting", file=sys.stderr)
    elif done * 10 // total > (done - 1) * 10 // total:
        print(f"measured {done} of {total}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.fit_device",
        description="Measure operators on this machine's CPU, and write a device file.",
    )
    parser.add_argument(
        "--name", default="my-cpu", help="name of the device (default: %(default)s)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the device file "
        "(default: the name of the device, .json, in this folder)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=count, default=1, metavar="N",
        help="threads of a stage; the device is as many cores (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=seconds, default=0.1, metavar="S",
        help="time that each point is measured (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--beside", type=count, default=1, metavar="N",
        help="other threads that run the same meanwhile, as stages do (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--stream", action="append", default=[], metavar="FILE",
        help="a stream that dnnp-profile --mode measure priced here: fit its groups as well, "
        "which were timed as stages run; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help="a few small points only, to try things: not for real models",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    args = parser.parse_args(arguments)
    if args.name.split() != [args.name] or "/" in args.name:
        parser.error(f"--name {args.name!r}: not a name without spaces and slashes")
    options = FitOptions(
        args.name, args.threads, args.seconds, args.beside, args.quick, args.stream
    )
    path = args.output or f"{args.name}.json"
    if not Path(path).resolve().parent.is_dir():
        parser.error(f"-o {path}: there is no such folder")

    def work() -> None:
        record = fit_device(options, *([] if args.quiet else [_tell]))
        write_device(record, path)
        print(f"{path}: {record['notes'][2]}", file=sys.stderr)

    return status_of(parser.prog, work)


if __name__ == "__main__":
    sys.exit(main())
