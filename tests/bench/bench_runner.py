"""The runner: known-time stages against their bottleneck, and real models against other ways."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import onnx.backend.test

from dnnp.core.model.text import shown_seconds
from dnnp.core.runtime.pipeline.steps import Step
from dnnp.core.runtime.report.statistics import summarize
from support.bench import table
from support.run import Result, dnnp
from support.running import known_time, run_pipeline, step_of

ROUNDS = 5
SAMPLES = 100
WARMUP = 10
TARGET = 0.97
SHAPES: dict[str, Sequence[float]] = {
    "2 equal": (10, 10),
    "4 equal": (10,) * 4,
    "8 equal": (10,) * 8,
    "slow first": (10, 2, 2, 2),
    "slow in the middle": (2, 4, 10, 3),
    "slow last": (2, 2, 2, 10),
}
"""Milliseconds of each stage; stage i feeds stage i + 1 and, past it, the last one."""
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
MODELS = ("light_squeezenet", "light_resnet50", "light_densenet121", "light_inception_v1")


def steps_of(times_ms: Sequence[float]) -> list[Step]:
    """Sleeping stages in a chain with skip connections to the last one."""
    last = len(times_ms) - 1
    steps = []
    for i, ms in enumerate(times_ms):
        inputs = [f"t{i}"] if i < last else [f"t{j}" for j in range(1, i + 1)]
        outputs = [f"t{i + 1}"]
        steps.append(step_of(f"stage {i}", inputs, outputs, known_time(ms / 1e3, outputs)))
    return steps


def known() -> str:
    """Share of the bottleneck's rate that known-time stages reach."""
    rows = []
    for name, times_ms in SHAPES.items():
        nominal, measured = [], []
        for _ in range(ROUNDS):
            steps = steps_of(times_ms)
            trace = run_pipeline(steps, [{"t0": 0}], SAMPLES + WARMUP, [f"t{len(steps)}"])
            timing = summarize(trace, WARMUP)
            nominal.append(timing.throughput_per_s * max(times_ms) / 1e3)
            measured.append(timing.throughput_per_s * max(timing.loads_s))
        listed = ", ".join(f"{ms:g}" for ms in times_ms)
        shares = (f"{statistics.median(x):.1%}" for x in (nominal, measured))
        rows.append((name, listed, *shares))
    header = ("stages", "times (ms)", "of the nominal rate", "of the measured rate")
    return table(header, rows)


def must(result: Result) -> bytes:
    """Output of a command that has to succeed."""
    if result.status != 0:
        raise SystemExit(result.err)
    return result.out


def real() -> str:
    """Models of the onnx package on two cores: split, whole, replicated."""
    rows = []
    for name in MODELS:
        stream = must(dnnp("import", LIGHT / f"{name}.onnx"))
        plan = must(dnnp("partition", "-k", "2", stdin=must(dnnp("profile", stdin=stream))))
        result = dnnp("run", "--compare", "--random-weights", "1", "-n", "40", stdin=plan)
        must(result)
        runs = {r["mode"]: r for r in result.records("run")}
        pipeline = runs["pipeline"]
        slowest = max(s["measured_s"] for s in pipeline["stages"])
        rows.append(
            (
                f"`{name}`",
                " / ".join(shown_seconds(s["measured_s"]) for s in pipeline["stages"]),
                f"{pipeline['throughput_per_s']:.1f}/s",
                f"{pipeline['throughput_per_s'] * slowest:.1%}",
                f"{runs['whole']['throughput_per_s']:.1f}/s",
                f"{runs['replicas']['throughput_per_s']:.1f}/s",
                shown_seconds(pipeline["latency_p50_s"]),
                shown_seconds(runs["whole"]["latency_p50_s"]),
            )
        )
    header = (
        "model",
        "measured loads",
        "pipeline",
        "share of slowest stage",
        "whole model",
        "2 replicas",
        "latency, pipeline",
        "latency, whole",
    )
    return table(header, rows)


def main() -> None:
    """Measure and print the tables."""
    print(
        f"Stages that sleep a known time, one thread each, queues of 2; {SAMPLES} samples, median "
        f"of {ROUNDS} runs. Throughput as a share of the slowest stage's rate: by the time it is "
        f"told to sleep, and by the time it took. Target: {TARGET:.0%}.\n"
    )
    print(known())
    print(
        "\nModels of the onnx package with random weights, `dnnp-partition -k 2` on analytic "
        "costs, then `dnnp-run --compare -n 40`: the whole model runs in one session on all "
        "cores, replicas on one core each; medians of 3 alternating rounds.\n"
    )
    print(real())


if __name__ == "__main__":
    main()
