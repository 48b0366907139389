"""Write sample models: ``python -m dnnp.samples.build [NAMES...] -o DIR``.

Runnable models come small (a few MB, fractions of a second a run) and full (the published
hyperparameters); their weights are random. Giants are for planning only: their weights are
declared in a data file that is never written, and every tensor's shape is stated. Decoders have
caches, and free dimensions to be given by `dnnp-import --phase`; some are for planning only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from dnnp.samples.weights import Sample

SIZES = ("small", "full", "giant", "decoder")


@dataclass(frozen=True)
class Entry:
    """One model of the catalog."""

    family: str
    """The architecture, a name that stands for all of its sizes."""
    size: str
    """One of `SIZES`."""
    description: str
    build: Callable[[int], Sample]
    """Returns the model for a seed."""
    nodes: int
    """Nodes of the main graph."""
    parameters: int
    """Trained parameters, shared ones counted once."""
    paper_parameters: float | None = None
    """Parameters stated by Table IV of the Moirai paper."""
    paper_operators: int | None = None
    """Operators of the original graph stated by that table."""


def _builder(module: str, attribute: str, key: str | None = None) -> Callable[[int], Sample]:
    """Return a builder that imports its module, and with it onnx, when it is called."""

    def build(seed: int = 0) -> Sample:
        model = importlib.import_module(f"dnnp.samples.models.{module}")
        size = getattr(model, attribute)
        sample: Sample = model.build(size if key is None else size[key], seed)
        return sample

    return build


def _runnable(
    family: str, module: str, small: tuple[str, int, int], full: tuple[str, int, int]
) -> dict[str, Entry]:
    """Return the two entries of a family, each given by description, nodes and parameters."""
    return {
        f"{family}-{size}": Entry(family, size, what, _builder(module, size.upper()), *counts)
        for size, (what, *counts) in (("small", small), ("full", full))
    }


def _giants(
    family: str, description: str, *rows: tuple[str, int, int, float, int]
) -> dict[str, Entry]:
    """Return entries from rows of key, nodes, parameters, and the paper's two counts."""
    return {
        f"{family}-{row[0]}": Entry(
            family, "giant", description, _builder(family, "SIZES", row[0]), *row[1:]
        )
        for row in rows
    }


def _decoders(*rows: tuple[str, str, int, int]) -> dict[str, Entry]:
    """Return entries from rows of key, description, nodes and parameters."""
    return {
        f"llama-{key}": Entry(
            "llama", "decoder", f"decoder with caches, {what}", _builder("llama", "SIZES", key),
            nodes, parameters,
        )
        for key, what, nodes, parameters in rows
    }  # fmt: skip


CATALOG: dict[str, Entry] = {
    **_runnable(
        "bert", "bert",
        ("BERT encoder, 4 layers of 128, 128 tokens", 281, 1399936),
        ("BERT-base encoder, 128 tokens", 785, 109482240),
    ),
    **_runnable(
        "gpt", "gpt",
        ("GPT-2 decoder, 6 layers of 128, tied embedding, 128 tokens", 216, 1730560),
        ("GPT-2 (117M) decoder, tied embedding, 256 tokens", 426, 124439808),
    ),
    **_runnable(
        "resnet50", "resnet50",
        ("ResNet-50, a quarter of the channels, 224x224", 175, 1532276),
        ("ResNet-50, 224x224", 175, 25557032),
    ),
    **_runnable(
        "inception-v3", "inception_v3",
        ("Inception-v3, a quarter of the channels, 299x299", 313, 1419516),
        ("Inception-v3, 299x299", 313, 23834568),
    ),
    **_runnable(
        "gnmt", "gnmt",
        ("LSTM translation with attention, 4 + 4 layers of 96", 49, 1627072),
        ("LSTM translation with attention, 8 + 8 layers of 1024", 77, 244622912),
    ),
    **_runnable(
        "mobilenet-v2", "mobilenet_v2",
        ("MobileNet v2, half the channels, 224x224", 152, 564260),
        ("MobileNet v2, 224x224", 152, 3504872),
    ),
    **_runnable(
        "two-tower", "two_tower",
        ("image and text towers with a joint answer head, 3 inputs", 295, 1830053),
        ("CLIP ViT-B/32 towers with a joint answer head, 3 inputs", 815, 160836410),
    ),
    **_runnable(
        "raft", "raft",
        ("optical flow with Loop and If, 128x160, 4 iterations", 183, 366160),
        ("RAFT optical flow with Loop and If, 368x496, 12 iterations", 183, 5260416),
    ),
    **_runnable(
        "moe", "moe",
        ("transformer with 8 experts in every second of 4 layers, 128 tokens", 377, 1695744),
        ("transformer with 8 experts in every second of 12 layers, 384 tokens", 1125, 308278272),
    ),
    **_runnable(
        "dlrm", "dlrm",
        ("recommendation from 13 numbers and bags of 12 tables", 74, 841569),
        ("recommendation from 13 numbers and bags of 26 tables", 136, 168686913),
    ),
    **_runnable(
        "shufflenet-v2", "shufflenet_v2",
        ("ShuffleNet v2, fewer channels, 224x224", 230, 237316),
        ("ShuffleNet v2, 224x224", 230, 2278604),
    ),
    **_decoders(
        ("small", "4 layers of 128", 61, 1000576),
        ("full", "8 layers of 512, for runs of some seconds", 113, 31990272),
        ("405b", "126 layers of 16384, float16, planning only", 1647, 405853388800),
        ("experts", "61 layers of 256 experts, float16, planning only", 619, 696861684736),
    ),
    "gpt-1m-vocab": Entry(
        "gpt", "giant", "GPT decoder of 24 layers of 4096, vocabulary of a million, 1024 tokens",
        _builder("gpt", "VOCABULARY"), 846, 8933318656,
    ),
    "gpt-1m-vocab-untied": Entry(
        "gpt", "giant", "the same, with an output projection of its own",
        _builder("gpt", "UNTIED"), 845, 13029318656,
    ),
    "mt5-1m-vocab": Entry(
        "mt5", "giant", "T5 of 24 + 24 layers of 3072, a table of a million words, 1024 tokens",
        _builder("mt5", "VOCABULARY"), 1972, 9414537216,
    ),
    "flava-4096": Entry(
        "flava", "giant", "encoders of image and text, 12 layers of 4096 each, and 6 of both",
        _builder("flava", "LARGE"), 1125, 6205243392,
    ),
    **_giants(
        "gpt3", "GPT-3 shape, one node for each head's operators, 2048 tokens, float16",
        ("330m", 5462, 355871744, 330e6, 4872),
        ("1.3b", 10070, 1315723264, 1.3e9, 9480),
        ("2.7b", 13422, 2651553280, 2.7e9, 12640),
        ("13b", 20614, 12853386240, 13e9, 19640),
    ),
    **_giants(
        "swin", "Swin Transformer shape, one node for each head's operators, 1100x1100, float16",
        ("1.8b", 8108, 1791858664, 1.8e9, 6496),
        ("6.6b", 16918, 6520067944, 6.6e9, 14352),
        ("13b", 25326, 13198575336, 13e9, 22120),
    ),
    **_giants(
        "evoformer", "AlphaFold2-like Evoformer, 128 sequences of 256 residues, float32",
        ("87m", 13109, 87984215, 87e6, 5136),
        ("930m", 23093, 844675031, 930e6, 12992),
        ("2.4b", 51509, 2446763927, 2.4e9, 37920),
        ("3.2b", 68661, 3262160791, 3.2e9, 50560),
    ),
}  # fmt: skip


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
