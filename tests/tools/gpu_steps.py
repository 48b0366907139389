"""One step of `tests/tools/gpu_check.py`.

    python tests/tools/gpu_steps.py STEP PROVIDER FOLDER

Prints rows of its table, as `ROW [what, found, whether that is right]`; everything else is for
people. The folder keeps models and streams from step to step. With the provider `cpu` the class
`rehearsal`, in truth a core, takes the part of the GPU.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gpu_parts import (
    FailedError,
    at_once,
    dnnp,
    mlp,
    records,
    reshaped,
    row,
    smallest,
    timed,
    tried,
)

CLASSES = ("h200", "h100", "a100", "v100", "t4", "p4", "p100", "rtx2080ti", "rtx3060ti")
"""Devices that come along; a GPU whose name has none of them in it counts as the first."""
OFF = 0.3
"""Largest difference of predicted and measured bottlenecks, as a share."""
DISTURBED = 0.1
"""Share of the time of a stage that other processes may take."""
SHARE = 0.8
"""Of the weights that the GPU may hold where a plan is to use the CPU too."""


@dataclass(frozen=True)
class Setting:
    """The machine on which the steps run."""

    provider: str
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.provider != "cpu"

    @property
    def kind(self) -> str:
        """The class that stands for the device."""
        if not self.on_gpu:
            return "rehearsal"
        from dnnp.core.runtime.model.providers import gpu_name

        name = gpu_name().lower().replace(" ", "")
        return next((kind for kind in CLASSES if kind in name), CLASSES[0])

    @property
    def device(self) -> str:
        """The same, as an option has it."""
        return self.kind if self.on_gpu else str(self.folder / "rehearsal.json")

    @property
    def placed(self) -> list[str]:
        """Options of dnnp-run that bring this class to the first GPU."""
        return ["--place", f"{self.kind}={self.provider}{':0' * self.on_gpu}"]

    @property
    def timed(self) -> list[str]:
        """Options of dnnp-profile that time the class."""
        words = ["--mode", "measure", "--no-cache", "--device", self.device]
        return [*words, "--provider", self.provider] if self.on_gpu else words

    def file(self, name: str) -> Path:
        return self.folder / name


# --- models


def models(setting: Setting) -> None:
    """Write the models, and import them."""
    from dnnp.samples.build import write

    if not setting.on_gpu:
        from dnnp.formats.files import read_bundled

        core = json.loads(read_bundled("devices", "cpu-core"))
        kept = {
            key: value
            for key, value in core.items()
            if key not in ("operators", "fitted", "caches")
        }
        changed = {**kept, "name": "rehearsal", "kind": "accelerator"}
        setting.file("rehearsal.json").write_text(json.dumps(changed))
    width, batch = (2048, 128) if setting.on_gpu else (192, 16)
    onnx.save(mlp(width, batch, np.float32), setting.file("mlp.onnx"))
    onnx.save(mlp(width, batch, np.float16), setting.file("half.onnx"))
    onnx.save(reshaped(), setting.file("shapes.onnx"))
    write("resnet50-small", setting.folder).rename(setting.file("conv.onnx"))
    for name, words in (("mlp", ()), ("half", ()), ("conv", ()), ("shapes", ("--dim", "n=8"))):
        dnnp("import", setting.file(f"{name}.onnx"), *words, "-o", setting.file(f"{name}.dnnp"))
        plan(setting, name, 1 if name == "shapes" else 2)
    row("models", "products in float32 and float16, convolutions, computed shapes")


def plan(setting: Setting, name: str, k: int) -> Path:
    """A plan for so many of the device, by formula."""
    priced, made = setting.file(f"{name}.priced"), setting.file(f"{name}.plan{k}")
    words = ("--device", setting.device)
    dnnp("profile", "-q", *words, setting.file(f"{name}.dnnp"), "-o", priced)
    dnnp("partition", "-q", "-k", str(k), priced, "-o", made)
    return made


# --- steps


def versions(setting: Setting) -> None:
    """Installed packages."""
    import onnxruntime

    from dnnp.core.runtime.model.providers import (
        count_gpus,
        gpu_name,
        load_libraries,
        require_provider,
    )

    row(
        "ONNX Runtime",
        f"{onnxruntime.__version__}; {', '.join(onnxruntime.get_available_providers())}",
    )
    require_provider(setting.provider)
    if setting.on_gpu:
        row("GPUs", f"{count_gpus()}, the first is {gpu_name()}")
        missing = load_libraries()
        row("libraries of CUDA", missing or "loaded", not missing)


def fallback(setting: Setting) -> None:
    """Nodes that the provider leaves to the CPU are named, those of shapes are not."""
    from onnxruntime import get_available_providers

    words = ("-n", "8", "--warmup", "1", "-o", os.devnull)
    for name in ("mlp", "half", "conv"):
        with tried(f"all nodes of {name} by the provider"):
            dnnp("run", *words, *setting.placed, setting.file(f"{name}.plan2"))
            row(f"provider of all nodes of {name}", setting.provider)
    if not setting.on_gpu and "AzureExecutionProvider" not in get_available_providers():
        row("a node without a kernel", "left out: this build has the CPU alone")
        return
    place = setting.placed if setting.on_gpu else ["--place", "rehearsal=azure"]
    stream = setting.file("shapes.plan1")
    said = dnnp("run", *words, *place, stream, status=7)
    line = said.strip().splitlines()[-1]
    row(
        "a node without a kernel is refused",
        line.split(": ", 1)[1],
        "Unique" in line or not setting.on_gpu,
    )
    row(
        "nodes of shapes are not",
        "none is named",
        not any(f"'{n}'" in line for n in ("shape", "rows", "target")),
    )
    dnnp("run", *words, *place, "--allow-fallback", stream)
    row("with --allow-fallback", "it runs")


def verify(setting: Setting) -> None:
    """Outputs against those of the CPU, to the tolerance that dnnp-run would take."""
    cases = [(name, ("default",)) for name in ("mlp", "half", "conv")]
    if setting.on_gpu:
        cases += [
            (name, ("use_tf32=0", "--provider-option", "use_tf32=0")) for name in ("mlp", "conv")
        ]
    for name in ("mlp", "half", "conv"):
        with tried(f"{name} on the CPU"):
            outputs(setting, name, "cpu", ["--place", f"{setting.kind}=cpu"])
    for name, (how, *options) in cases:
        with tried(f"{name}, {how}"):
            got = outputs(setting, name, how, [*setting.placed, *options])
            tf32 = setting.on_gpu and how == "default"
            agrees(setting, name, how, got, tf32=tf32)


def agrees(setting: Setting, name: str, how: str, got: Any, *, tf32: bool) -> None:
    """Compare outputs with those of the CPU."""
    from dnnp.core.runtime.report.verify import Tolerance, compare_values, tolerance_for

    expected = np.load(setting.file(f"{name}.cpu.npz"))
    model = onnx.load(setting.file(f"{name}.onnx"), load_external_data=False)
    limits = tolerance_for(model, tf32=tf32)
    differences = [compare_values(expected[key], got[key], limits) for key in expected.files]
    worst = max(d.max_rel for d in differences)
    fault = next((d.mismatch for d in differences if d.mismatch), "")
    said = f"largest error {worst:.2g} of the largest value; rtol {limits.rtol:g}, atol "
    row(f"{name}, {how}, against the CPU", f"{said}{limits.atol:g} {fault}".strip(), not fault)
    plain = Tolerance(1e-4, 1e-5)
    if tf32 and any(compare_values(expected[k], got[k], plain).mismatch for k in expected.files):
        row(f"{name}, {how}", "is beyond the tolerance of float32")


def outputs(setting: Setting, name: str, how: str, words: Sequence[str]) -> Any:
    target = setting.file(f"{name}.{how}.npz")
    options = ("-n", "4", "--warmup", "0", "--save-outputs", target, "-o", os.devnull)
    dnnp("run", *options, *words, setting.file(f"{name}.plan2"))
    return np.load(target)


def workers(setting: Setting) -> None:
    """Convolutions in threads and in processes, on the device alone and beside the CPU.

    Their algorithms are searched for by the first samples, while other stages run.
    """
    made = setting.file("workers.run")
    both = [f"{setting.kind}/0={setting.provider}{':0' * setting.on_gpu}", f"{setting.kind}/1=cpu"]
    beside = [word for place in both for word in ("--place", place)]
    for kind in ("thread", "process"):
        for name, how, words in (
            ("mlp", "alone", setting.placed),
            ("conv", "alone", setting.placed),
            ("conv", "beside the CPU", beside),
        ):
            what = f"{name}, 2 stages, {how}, a {kind} each"
            with tried(what):
                options = ("-n", "32", "--verify", "--workers", kind, *words, "-o", made)
                dnnp("run", *options, setting.file(f"{name}.plan2"))
                run = records(made, "run")[0]
                said = f"largest error {run['max_rel_error']:.2g} of the largest value; "
                said += f"{run['throughput_per_s']:.4g}/s"
                row(what, said, bool(run["verified"]))


def stages(setting: Setting) -> None:
    """One, two and four stages on one device, priced by measuring as they will run."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # parts that are measured take all GPUs in turn
    for name, k in (("mlp", 1), ("mlp", 2), ("mlp", 4), ("conv", 2)):
        with tried(f"{name}, {k} on one device"):
            on_one(setting, name, k)


def on_one(setting: Setting, name: str, k: int) -> None:
    """Measure, plan, and run so many stages on one device."""
    priced, planned, made = (setting.file(f"{name}.{part}{k}") for part in ("timed", "best", "run"))
    words = (*setting.timed, "--beside", str(k - 1), setting.file(f"{name}.dnnp"))
    dnnp("profile", *words, "-o", priced)
    dnnp("partition", "-q", "-k", str(k), priced, "-o", planned)
    dnnp("run", "--verify", "--compare", *setting.placed, planned, "-o", made)
    what = f"{name}, {k} stage{'s' * (k > 1)} on one device"
    compared(what, made)
    kinds = {link["how"] for link in records(made, "run")[0].get("links", ())}
    if kinds:
        right = kinds == {"device" if setting.on_gpu else "shared"}
        row(f"{what}: tensors between them", ", ".join(sorted(kinds)), right)


def compared(what: str, made: Path) -> None:
    """Predicted and measured bottleneck of a run, and the rates of other ways.

    A run that other processes disturbed is not judged by its times.
    """
    run, *others = records(made, "run")
    ends = [max(s[key] for s in run["stages"]) for key in ("predicted_s", "measured_s")]
    error, taken = ends[0] / ends[1] - 1, run.get("taken", 0.0)
    said = f"predicted {ends[0] * 1e3:.3f} ms, measured {ends[1] * 1e3:.3f} ms ({error:+.0%})"
    rates = [f"{run['throughput_per_s']:.4g}/s"]
    rates += [f"{other['mode']} {other['throughput_per_s']:.4g}/s" for other in others]
    disturbed = [f"not judged, as others took {taken:.0%} of a core"] * (taken > DISTURBED)
    right = abs(error) <= OFF or bool(disturbed)
    row(what, "; ".join([said, *rates, *disturbed]), right and run.get("verified", True))


def formula(setting: Setting) -> None:
    """Whole models on the device, as prices by formula have them."""
    from dnnp.samples.build import write

    size = "full" if setting.on_gpu else "small"
    for family in ("bert", "gpt", "resnet50", "mobilenet-v2"):
        name = f"{family}-{size}"
        with tried(f"{name} by formula"):
            model, stream = write(name, setting.folder), setting.file(f"{name}.dnnp")
            dnnp("import", model, "-o", stream)
            planned, made = plan(setting, name, 1), setting.file(f"{name}.run")
            dnnp("run", "-n", "64", *setting.placed, planned, "-o", made)
            (stage,) = records(made, "run")[0]["stages"]
            said, took = stage["predicted_s"] * 1e3, stage["measured_s"] * 1e3
            row(f"{name}, whole", f"{said:.3f} ms by formula, {took:.3f} ms measured")


def mixed(setting: Setting) -> None:
    """The CPU and the device in one run: transfers in the loads of the device, then beside them."""
    priced = [setting.file(f"mlp.{part}") for part in ("on-cpu", "on-device", "on-both")]
    dnnp("profile", "--mode", "measure", "--no-cache", setting.file("mlp.dnnp"), "-o", priced[0])
    dnnp("profile", *setting.timed, setting.file("mlp.dnnp"), "-o", priced[1])
    costs = setting.file("costs.csv")
    times = [(r["name"], r["time_s"]["cpu-core"]) for r in records(priced[0], "node")]
    costs.write_text("name,class,seconds\n" + "".join(f"{n},cpu-core,{t:.9f}\n" for n, t in times))
    dnnp(
        "profile",
        "--costs",
        costs,
        "--device",
        "cpu-core",
        "--device",
        setting.device,
        priced[1],
        "-o",
        priced[2],
    )
    weights = sum(t["size_bytes"] for t in records(priced[2], "tensor") if t["kind"] == "parameter")
    devices = {r["class"]: r for r in records(priced[2], "device")}
    limits = {"cpu-core": 64 * 2**30, setting.kind: SHARE * weights}
    cluster = setting.file("devices.json")
    cluster.write_text(
        json.dumps([{**devices[kind], "count": 1, "memory_bytes": m} for kind, m in limits.items()])
    )
    for comm in ("sum", "overlap"):
        with tried(f"CPU and device, --comm {comm}"):
            on_both(setting, comm, cluster, priced[2])


def on_both(setting: Setting, comm: str, cluster: Path, priced: Path) -> None:
    """Plan for the CPU and the device, and run that."""
    planned, made = setting.file(f"mixed.{comm}"), setting.file(f"mixed.{comm}.run")
    dnnp("partition", "-q", "--comm", comm, "--devices", cluster, priced, "-o", planned)
    dnnp("run", "--verify", *setting.placed, planned, "-o", made)
    compared(f"CPU and device, --comm {comm}", made)
    run = records(made, "run")[0]
    used = {s["device"].split("/")[0] for s in run["stages"]}
    row(
        f"--comm {comm}: classes that run",
        ", ".join(sorted(used)),
        used == {"cpu-core", setting.kind},
    )
    kinds = {link["how"] for link in run.get("links", ())}
    right = kinds == {"host" if setting.on_gpu else "shared"}
    row(f"--comm {comm}: tensors between them", ", ".join(sorted(kinds)), right)
    if setting.on_gpu:
        by_cpu = bool(run.get("overlap"))
        who = "those of the CPU's stages" if by_cpu else "those of the GPU's stages"
        row(f"--comm {comm}: threads that copy", who, by_cpu == (comm == "overlap"))


def overlap(setting: Setting) -> None:
    """Two sessions on one device, each with a stream and a thread of its own; copies too."""
    from dnnp.core.runtime.model.providers import MEMORIES, Place, SessionConfig
    from dnnp.core.runtime.model.session import make_session, make_stage, to_device

    model, place = onnx.load(setting.file("mlp.onnx")), Place(0, (), setting.provider)
    name, config = model.graph.output[0].name, SessionConfig(pin=False)
    calls = [
        make_stage(
            make_session(model, setting.folder, config.at(place)), (name,), (), config.at(place)
        )
        for _ in range(2)
    ]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    on_host = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    there = {"x": to_device(on_host["x"], MEMORIES.get(setting.provider, "cpu"), 0)}
    one = timed(lambda: calls[0](there))
    row("a sample, inputs on the device", f"{one * 1e3:.3f} ms")
    row("the same, inputs copied from the host", f"{timed(lambda: calls[0](on_host)) * 1e3:.3f} ms")
    for what, feeds in (("inputs on the device", there), ("inputs copied from the host", on_host)):
        both = at_once([partial(call, feeds) for call in calls])
        alone = timed(partial(calls[0], feeds))
        # Where starting kernels takes longer than they do, threads wait for the driver's lock.
        row(f"two sessions at once, {what}", f"{2 * alone / both:.2f} times the rate of one")


def links(setting: Setting) -> None:
    """Latency and bandwidth, by `dnnp.samples.fit_links`."""
    target, words = setting.file("links.jsonl"), ["cpu-core:2"]
    if setting.on_gpu:
        from dnnp.core.runtime.model.providers import count_gpus

        count = min(count_gpus(), 2)
        words = [f"cpu-core:1,{setting.kind}:{count}", "--gpu", setting.kind]
    module = [
        sys.executable,
        "-m",
        "dnnp.samples.fit_links",
        *words,
        "--seconds",
        "1",
        "-o",
        target,
    ]
    done = subprocess.run(module, capture_output=True, text=True)
    print(done.stderr, file=sys.stderr)
    if done.returncode:
        raise FailedError(f"fit_links ends with {done.returncode}")
    for line in done.stderr.strip().splitlines():
        row("link " + line.split(": ")[0], line.split(": ", 1)[1])


def memory(setting: Setting) -> None:
    """Memory of a stage beside its plan's, above that of the smallest model."""
    from dnnp.core.runtime.model.inputs import random_inputs
    from dnnp.core.runtime.model.providers import Place, SessionConfig
    from dnnp.core.runtime.model.session import make_session, make_stage

    place, held = Place(0, (), setting.provider), []
    same = (("arena_extend_strategy", "kSameAsRequested"),) if setting.on_gpu else ()
    config = SessionConfig(options=same, pin=False).at(place)

    def load(model: onnx.ModelProto) -> None:
        names = [value.name for value in model.graph.output]
        stage = make_stage(make_session(model, setting.folder, config), names, (), config)
        held.append((stage, stage(random_inputs(model, 0))))

    load(smallest())
    before = used_bytes(setting)
    load(onnx.load(setting.file("mlp.onnx")))
    taken = used_bytes(setting) - before
    (stage,) = records(plan(setting, "mlp", 1), "stage")
    said = stage["memory_bytes"]
    row(
        "memory of the whole model as one stage",
        f"{said / 2**20:.1f} MiB predicted, {taken / 2**20:.1f} taken: {taken / said:.2f} times",
        0.5 * said <= taken <= (2.0 * said + 512 * 2**20 if setting.on_gpu else 8 * said),
    )


def used_bytes(setting: Setting) -> int:
    """Memory in use: of the GPU, or of this process."""
    if not setting.on_gpu:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) * 2**20


def failures(setting: Setting) -> None:
    """An error is one line, with the right status."""
    stream, kind = setting.file("mlp.plan2"), setting.kind
    option = setting.placed if setting.on_gpu else ["--provider", "cpu"]
    for what, words, status in (
        ("a GPU that is not there", ["--place", f"{kind}=cuda:99"], 7),
        ("an option misspelt", [*option, "--provider-option", "devise_id=0"], 2),
        ("a provider misspelt", ["--provider", "cudda"], 2),
        ("a class that the plan does not use", ["--place", "t5=cpu"], 2),
        ("a value that is none", [*option, "--provider-option", "use_tf32=perhaps"], 2),
    ):
        said = dnnp("run", "-q", *words, stream, "-o", os.devnull, status=status).strip()
        row(what, f"status {status}: {said.split(': ', 1)[-1]}", said.count("\n") == 0)


def main() -> int:
    """Run a step."""
    name, provider, folder = sys.argv[1:]
    try:
        globals()[name](Setting(provider, Path(folder)))
    except FailedError as error:
        row(f"{name} stopped", str(error), ok=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
