"""Write sample models: ``python -m dnnp.samples.build [NAMES...] -o DIR``.

Runnable models come small (a few MB, fractions of a second a run) and full (the published
hyperparameters); their weights are random. Giants are for planning only: their weights are
declared in a data file that is never written, and every tensor's shape is stated. Decoders have
caches, and free dimensions to be given by `dnnp-import --phase`; some are for planning only.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from dnnp.samples.weights import Sample

SIZES = ("small", "full", "giant", "decoder")


@dataclass(frozen=True)
class Entry:
    """One model of the catalog, a row of catalog.csv."""

    family: str
    """The architecture, a name that stands for all of its sizes, and for its module."""
    size: str
    """One of `SIZES`."""
    attribute: str
    """Name of the size in its module; with `key`, of a table of sizes."""
    key: str
    nodes: int
    """Nodes of the main graph."""
    parameters: int
    """Trained parameters, shared ones counted once."""
    paper_parameters: float | None
    """Parameters stated by Table IV of the Moirai paper."""
    paper_operators: int | None
    """Operators of the original graph stated by that table."""
    description: str

    def build(self, seed: int = 0) -> Sample:
        """Return the model for a seed; imports its module, and with it onnx."""
        model = importlib.import_module(f"dnnp.samples.models.{self.family.replace('-', '_')}")
        size = getattr(model, self.attribute)
        sample: Sample = model.build(size[self.key] if self.key else size, seed)
        return sample


def _catalog() -> dict[str, Entry]:
    with Path(__file__).with_name("catalog.csv").open(encoding="utf-8", newline="") as file:
        return {
            name: Entry(
                family, size, attribute, key, int(nodes), int(parameters),
                float(stated) if stated else None, int(operators) if operators else None, what,
            )
            for name, family, size, attribute, key, nodes, parameters, stated, operators, what
            in list(csv.reader(file))[1:]
        }  # fmt: skip


CATALOG = _catalog()


def make_sample(name: str, seed: int = 0) -> Sample:
    """Build the model called `name`, a key of `CATALOG`, with its weights not yet drawn."""
    entry = CATALOG[name]
    sample = entry.build(seed)
    facts = {
        "dnnp.description": entry.description,
        "dnnp.paper_parameters": entry.paper_parameters,
        "dnnp.paper_operators": entry.paper_operators,
    }
    for key, fact in facts.items():
        if fact is not None:
            sample.proto.metadata_props.add(
                key=key, value=f"{fact:.0f}" if isinstance(fact, float) else str(fact)
            )
    return sample


def make(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build a runnable model in memory, weights included.

    Raises
    ------
    KeyError
        No such model.
    ValueError
        The model is for planning only and has no weights.
    """
    from dnnp.samples.weights import with_weights

    if CATALOG[name].size == "giant":
        raise ValueError(f"{name} is for planning only: it has no weights")
    return with_weights(make_sample(name, seed))


def write(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the model called `name` into `folder`, and return the path of the ONNX file.

    Raises
    ------
    OSError
        The folder cannot be created or written.
    """
    from dnnp.samples.weights import save

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    save(make_sample(name, seed), path)
    return path


def select(names: Sequence[str], size: str | None) -> list[str]:
    """Return the models that `names` (of models or families) and `size` stand for.

    Raises
    ------
    KeyError
        A name that is neither a model nor a family, or a family that lacks the size.
    """
    if not names:
        return [name for name, entry in CATALOG.items() if entry.size == (size or "small")]
    chosen: list[str] = []
    for name in names:
        if name in CATALOG and size in (None, CATALOG[name].size):
            found = [name]
        else:
            members = {key: e.size for key, e in CATALOG.items() if e.family == name}
            usual = (each for each in ("small", "giant", "decoder") if each in members.values())
            wanted = size or next(usual, "small")
            found = [key for key, member in members.items() if member == wanted]
        if not found:
            raise KeyError(name)
        chosen.extend(key for key in found if key not in chosen)
    return chosen


def _count(number: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return str(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.build", description="Write sample ONNX models."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="models or families of models (see --list); default: all of the given size",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("build/models"),
        metavar="DIR",
        help="folder for the models, created if missing (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="list the models and stop")
    parser.add_argument(
        "--size", choices=SIZES, help="only models of this size (default: small, if no NAME says)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the weights (default: 0)"
    )
    args = parser.parse_args(arguments)
    if args.seed < 0:
        parser.error("--seed: must not be negative")
    try:
        if args.list and not args.names and args.size is None:
            names = list(CATALOG)
        else:
            names = select(args.names, args.size)
    except KeyError as error:
        size = f" of size {args.size}" if args.size else ""
        parser.error(f"no model called {error.args[0]!r}{size}; --list shows all")
    if args.list:
        print(f"{'name':<20} {'size':<6} {'nodes':>6} {'params':>7}  what it is")
        for name in names:
            one = CATALOG[name]
            counts = f"{one.nodes:>6} {_count(one.parameters):>7}"
            print(f"{name:<20} {one.size:<6} {counts}  {one.description}")
        return 0
    for name in names:
        try:
            path = write(name, args.output, args.seed)
        except OSError as error:
            where = error.filename or args.output
            print(f"{parser.prog}: {where}: {error.strerror}", file=sys.stderr)
            return 1
        total = sum(file.stat().st_size for file in (path, Path(f"{path}.data")) if file.exists())
        print(f"{path}  {total / 1e6:.1f} MB", flush=True)
    return 0


if __name__ == "__main__":
    if os.name == "posix":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
