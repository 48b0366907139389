"""Serve one stage of an export over TCP: `python -m dnnp.samples.serve_stage DIR STAGE ...`.

A pipeline over several machines, without containers: each has a copy of `manifest.json` and of the
folder of its stage, and runs this program with the address of the next stage; the last stage sends
to the client (`dnnp.samples.send_samples`). What later stages need goes along through those
between. While a stage runs a sample, the one before it runs the next.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence

import dnnp
from dnnp import DnnpError, Stages
from dnnp.samples.arguments import count, status_of
from dnnp.samples.frames import Frame, address, connect, listen, receive, send


def serve(stages: Stages, number: int, source: socket.socket, target: socket.socket) -> int:
    """Run a stage on every sample that comes, until there are no more; how many came."""
    count = 0
    while (frame := receive(source)) is not None:
        count += 1
        if not frame.error:
            try:
                frame = Frame(frame.sample, stages.pass_on(number, frame.values))
            except DnnpError as error:
                frame = Frame(frame.sample, {}, f"stage {number}: {error}")
        send(target, frame)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; exit status as of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.serve_stage",
        description="Run a stage of an export on samples that come over TCP, and pass them on.",
    )
    parser.add_argument("folder", metavar="DIR", help="the manifest, and the folder of the stage")
    parser.add_argument("stage", metavar="STAGE", type=int, help="its number")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where samples come")
    parser.add_argument("--next", required=True, metavar="HOST:PORT", help="where they go")
    parser.add_argument("--provider", default="cpu", help="of ONNX Runtime (default: cpu)")
    parser.add_argument(
        "--threads", type=count, default=1, metavar="N", help="of the stage (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="end after the first connection")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="seconds to wait for the next "
        "one to listen (default: 60)",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    return status_of(parser.prog, lambda: _serve_all(args))


def _serve_all(args: argparse.Namespace) -> None:
    """Load the stage, and serve one connection after the other."""
    here, there = address(args.listen), address(args.next)
    stages = dnnp.load_stages(
        args.folder, stages=[args.stage], provider=args.provider, threads=args.threads
    )
    with listen(here) as server:
        host, port = server.getsockname()[:2]
        print(f"stage {args.stage} listens on {host}:{port}", file=sys.stderr, flush=True)
        while True:
            source, _ = server.accept()
            try:
                with source, connect(there, args.patience) as target:
                    served = serve(stages, args.stage, source, target)
                print(f"stage {args.stage}: {served} samples", file=sys.stderr, flush=True)
            except DnnpError as error:
                if args.once:
                    raise
                print(f"stage {args.stage}: {error}", file=sys.stderr, flush=True)
            if args.once:
                return


if __name__ == "__main__":
    sys.exit(main())
