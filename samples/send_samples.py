"""Send samples through stages that are served: `python -m dnnp.samples.send_samples DIR ...`.

The other end of `dnnp.samples.serve_stage`: samples go to the first stage, outputs come from the
last.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import dnnp
from dnnp import DnnpError, InputFileError, Stages
from dnnp.samples.arguments import status_of
from dnnp.samples.frames import Frame, address, connect, listen, receive, send


def through(
    stages: Stages,
    samples: Sequence[Mapping[str, Any]],
    first: tuple[str, int],
    server: socket.socket,
    patience_s: float = 60.0,
) -> list[dict[str, Any]]:
    """Outputs of the model for each sample, from stages elsewhere.

    Parameters
    ----------
    stages
        The export; no stage of it needs to be loaded.
    first
        Where the first stage listens.
    server
        What the last stage connects to.

    Raises
    ------
    FormatError
        A sample is not what the model asks for, or something else comes back.
    InputFileError
        A stage cannot be reached, or fails; its words are in the message.
    """
    checked = [stages.accept(sample) for sample in samples]
    failures: list[DnnpError] = []
    with connect(first, patience_s) as source:

        def feed() -> None:
            try:
                for number, values in enumerate(checked):
                    send(source, Frame(number, values))
                source.shutdown(socket.SHUT_WR)
            except DnnpError as error:
                failures.append(error)
            except OSError as error:
                failures.append(InputFileError(f"{first[0]}:{first[1]}: {error.strerror}"))

        # Outputs come back while samples are still being sent.
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        server.settimeout(patience_s)
        try:
            last, _ = server.accept()
        except TimeoutError:
            raise InputFileError("the last stage does not connect") from None
        with last:
            last.settimeout(None)
            found = [_outputs(stages, receive(last), number) for number in range(len(checked))]
        feeder.join()
    if failures:
        raise failures[0]
    return found


def _outputs(stages: Stages, frame: Frame | None, number: int) -> dict[str, Any]:
    """The outputs in a frame."""
    if frame is None:
        raise InputFileError(f"the connection ended before sample {number} came back")
    if frame.error:
        raise InputFileError(f"sample {frame.sample}: {frame.error}")
    missing = [name for name in stages.outputs if name not in frame.values]
    if frame.sample != number or missing:
        raise dnnp.FormatError(f"sample {number}: something else came back")
    return {name: frame.values[name] for name in stages.outputs}


def main(arguments: Sequence[str] | None = None) -> int:
    """Send files and save what comes back; exit status as of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.send_samples",
        description="Send samples through the stages of an export that are served elsewhere.",
    )
    parser.add_argument("folder", metavar="DIR", help="where the manifest is")
    parser.add_argument("samples", nargs="+", metavar="FILE", help="a sample each: input -> array")
    parser.add_argument("--first", required=True, metavar="HOST:PORT", help="the first stage")
    parser.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="where the last stage sends to"
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="outputs, as .npz")
    args = parser.parse_args(arguments)
    return status_of(parser.prog, lambda: _send_files(args))


def _send_files(args: argparse.Namespace) -> None:
    """Send the files that were named, and save what comes back."""
    stages = dnnp.load_stages(args.folder, stages=[])
    samples = [_load(path) for path in args.samples]
    with listen(address(args.listen)) as server:
        found = through(stages, samples, address(args.first), server)
    named = {f"{i}/{name}": value for i, row in enumerate(found) for name, value in row.items()}
    np.savez(args.output, **named)


def _load(path: str) -> dict[str, Any]:
    """The arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror or error}") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise dnnp.FormatError(f"not an .npz file of arrays: {error}", path) from None


if __name__ == "__main__":
    sys.exit(main())
