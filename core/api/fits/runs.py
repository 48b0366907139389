"""Learn factors from runs, write them to a file, and price a stream with them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dnnp.callbacks import Callbacks
from dnnp.core.extras.calibrate import DEPTHWISE, FOLDED, calibrate, corrected, factor_of
from dnnp.core.model.calibration import Calibration, CalibrationFile, RunSeen, Setting, StageSeen
from dnnp.core.model.errors import LimitError, UsageError
from dnnp.core.model.text import counted, operator_name
from dnnp.core.runtime.report.statistics import tells_nothing
from dnnp.core.runtime.usage import DISTURBED
from dnnp.formats.edited_costs import basis_of
from dnnp.formats.files import KINDS, whole_file
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.calibration import calibration_bytes, parse_calibration
from dnnp.formats.plan import plan_digest, plan_of
from dnnp.formats.stream import Record, Stream, read_bytes

GIVEN = "given"
"""Costs from files of other programs."""

_NAMED = 8
"""Operator types that a message lists."""


def calibration_of(stream: Stream) -> CalibrationFile:
    """Factors from the run of a stream, and what it tells of its stages.

    Raises
    ------
    UsageError
        There is no run, it was interrupted, or its stages are on devices of several classes.
    LimitError
        Other processes took too much from a stage.
    FormatError
        The plan, or the run, does not fit the stream.
    """
    setting, run = _seen(stream)
    _refuse_disturbed([run], stream.name)
    return CalibrationFile(setting, _calibrated([run], stream.name), (run,))


def refuse_several_classes(stream: Stream) -> None:
    """Raise a UsageError if stages are planned for devices of several classes: all ran on one."""
    classes = sorted({stage["class"] for stage in stream.get("stage")})
    if len(classes) != 1:
        names = ", ".join(classes) or "none"
        raise UsageError(
            f"{stream.name}: factors are learned for one device class, the stages are planned for "
            f"several ({names})"
        )


def _refuse_disturbed(runs: Iterable[RunSeen], source: str) -> None:
    """Raise a LimitError if other processes took too much from a stage."""
    taken = max((stage.taken for run in runs for stage in run.stages), default=0.0)
    if reason := tells_nothing(taken):
        raise LimitError(f"{source}: nothing is learned: {reason}")


def save_calibration(path: str, stream: Stream, caller: Callbacks) -> None:
    """Write the measurements of a run atomically."""
    found = calibration_of(stream)
    run = next(record for record in stream.get("run") if record["mode"] == "pipeline")
    if not any("taken" in stage for stage in run.get("stages", ())):
        caller.warn("nobody knows what other processes took from the stages: factors may be wrong")
    taken = max(stage.taken for stage in found.runs[0].stages)
    if taken > DISTURBED:
        caller.warn(
            f"other processes took up to {taken:.0%} of a stage's time: {path} counts such stages "
            "for less, but factors may be too high"
        )
    with whole_file(path) as file:
        file.write(calibration_bytes(found))


def read_calibrations(paths: Sequence[str], caller: Callbacks) -> CalibrationFile:
    """Join what files tell: calibrations, or streams with a run.

    The factors of a single file are taken as they stand there; those of several files are learned
    again, from all of their runs.

    Raises
    ------
    InputFileError
        A file cannot be read.
    FormatError
        It is malformed, or neither a calibration nor a stream.
    UsageError
        They are for different settings, or hold no run.
    """
    files = []
    for path in paths:
        data = caller.read_input(path)
        if re.match(KINDS["stream"][0], data):
            files.append(calibration_of(read_bytes(data, path)))
        else:
            files.append(parse_calibration(data, path))
            _refuse_disturbed(files[-1].runs, path)
    first = files[0]
    for path, file in zip(paths, files, strict=True):
        for name, own, other in zip(
            first.setting._fields, first.setting, file.setting, strict=True
        ):
            if own != other:
                raise UsageError(
                    f"--from-run {path}: its {name} is {other}, that of {paths[0]} is {own}; "
                    "factors hold for one setting"
                )
    if len(files) == 1:
        return first
    runs = tuple(run for file in files for run in file.runs)
    return CalibrationFile(first.setting, _calibrated(runs, ", ".join(paths)), runs)


def _calibrated(runs: Sequence[RunSeen], source: str) -> Calibration:
    try:
        return calibrate(runs)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None


def price_by_runs(stream: Stream, paths: Sequence[str], caller: Callbacks) -> None:
    """Multiply the costs of a stream that was just priced by the factors of some files.

    Raises UsageError: the factors are for another class, or for costs that were found in another
    way.
    """
    found = read_calibrations(paths, caller)
    setting, factors = found.setting, found.factors
    name, costs = setting.device, _costs_of(stream)
    nodes = stream.get("node")
    if not any(name in record.get("time_s", {}) for record in nodes):
        priced = ", ".join(sorted({c for r in nodes for c in r.get("time_s", {})})) or "none"
        raise UsageError(f"--from-run: the runs were on '{name}', the stream prices {priced}")
    if setting.costs != costs:
        mode = {"measured": "measure"}.get(setting.costs, setting.costs)
        how = "--costs" if setting.costs == GIVEN else f"--mode {mode}"
        raise UsageError(
            f"--from-run: the factors are for {setting.costs} costs, these are {costs}: use {how}"
        )
    operators = operators_of(stream)
    factor = {op: factor_of(factors, op) for op in set(operators.values())}
    multiply = {v: factor[op] for v, op in operators.items()}
    node = {record["id"]: record for record in nodes}
    shares = [list(_shares(record, node, name)) for record in stream.get("group")]
    for record in nodes:
        time = _base(record, name)
        _correct(record, name, corrected(factors, multiply[record["id"]] * time, time > 0))
    for record, parts in zip(stream.get("group"), shares, strict=True):
        time = _base(record, name) * sum(share * multiply[v] for v, share in parts)
        launched = sum(share > 0 for _, share in parts) if time > 0 else 0
        _correct(record, name, corrected(factors, time, launched))
        record["cost"] = "calibrated"
        record["basis"] = basis_of([node[v] for v in record["nodes"]])
    for record in stream.get("device"):
        for field in ("bandwidth_bytes_per_s", "inner_bandwidth_bytes_per_s"):
            if record["class"] == name and field in record:
                record[field] /= factors.transfer
        for larger in record.get("larger_clusters", ()) if record["class"] == name else ():
            larger["bandwidth_bytes_per_s"] /= factors.transfer
    stream.header["calibration"] = {
        "class": name,
        "costs": costs,
        "models": len({run.model for run in found.runs}),
        "stages": sum(len(run.stages) for run in found.runs),
        "transfer": factors.transfer,
        **({} if factors.spread is None else {"spread": factors.spread}),
    }
    _tell(operators.values(), found, factor, caller)


def _tell(
    operators: Iterable[str], found: CalibrationFile, factor: dict[str, float], caller: Callbacks
) -> None:
    """Say what the factors are, and for which operators they are guesses."""
    models = {run.model for run in found.runs}
    stages = sum(len(run.stages) for run in found.runs)
    spread = found.factors.spread
    low, high = min(factor.values(), default=1.0), max(factor.values(), default=1.0)
    caller.note(
        f"costs times {low:.2f} to {high:.2f}, learned from {counted(stages, 'stage')} of "
        f"{counted(len(models), 'model')}, and {found.factors.launch_s * 1e6:+.2f} us an operator"
        + ("" if spread is None else f"; {spread:.1%} off for a model that is left out")
    )
    seen = {op for run in found.runs for stage in run.stages for op in stage.operators}
    unseen = Counter(op for op in operators if op not in seen)
    if unseen:
        listed = ", ".join(f"{op} ({count})" for op, count in unseen.most_common(_NAMED))
        more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
        caller.note(f"no run has these operators, others of their family stand in: {listed}{more}")


def _correct(record: Record, name: str, time_s: float) -> None:
    """Replace a time; the one before is kept beside it."""
    times = record.get("time_s", {})
    if name in times:
        record["base_s"] = {name: times[name]}
        record["time_s"] = {**times, name: time_s}


def _costs_of(stream: Stream) -> str:
    """Source of the costs, before factors were learned."""
    known = stream.header.get("calibration")
    if known is not None:
        return str(known["costs"])
    if "costs" in stream.header:
        return GIVEN
    for record in stream.get("group"):
        if record.get("cost") not in (None, "summed"):
            return str(record["cost"])
    return "analytic" if "work" in stream.header else "measured"


def operators_of(stream: Stream) -> dict[int, str]:
    """Operator type of each node, as factors know it; `domain:type` outside the default domain."""
    shape = {record["id"]: record.get("shape", []) for record in stream.get("tensor")}
    convolved: dict[int, str] = {}
    """Tensors that a convolution makes, with what is part of it."""
    found = {}
    for record in stream.get("node"):
        domain, op = record.get("domain", ""), record["op"]
        if op == "Conv" and not domain:
            image, kernel = ([*(shape.get(t, []) for t in record["inputs"]), [], []])[:2]
            if len(image) > 2 and len(kernel) > 2 and image[1] > 1 and kernel[1] == 1:
                op = DEPTHWISE
        folded = op in FOLDED and record["inputs"] and record["inputs"][0] in convolved
        if folded:
            op = convolved[record["inputs"][0]]
        if folded or op in ("Conv", DEPTHWISE):
            convolved.update(dict.fromkeys(record["outputs"], op))
        found[record["id"]] = operator_name(op, domain)
    return found


def _base(record: Record, name: str) -> float:
    """Base cost of a node, or of a group that has its own; seconds."""
    times: dict[str, float] = record["base_s"] if "base_s" in record else record.get("time_s", {})
    return float(times.get(name, 0.0))


def _shares(group: Record, node: Mapping[int, Record], name: str) -> Iterable[tuple[int, float]]:
    """Nodes of a group, each with its share of the group's time: that of the nodes' times."""
    times = {v: _base(node[v], name) for v in group["nodes"]}
    total = math.fsum(times.values())
    for v, t in times.items():
        yield v, t / total if total > 0 else 1 / len(times)


def _seen(stream: Stream) -> tuple[Setting, RunSeen]:
    """Collect what the run of a stream tells of its stages."""
    runs = [record for record in stream.get("run") if record["mode"] == "pipeline"]
    if not runs:
        raise UsageError(f"{stream.name}: no run of a plan to learn from; dnnp-run makes one")
    run = runs[0]
    if run.get("interrupted"):
        raise UsageError(f"{stream.name}: the run was interrupted, nothing is learned from it")
    if any("shard" in record for record in run.get("stages", ())):
        raise UsageError(
            f"{stream.name}: several devices held stages of the run together: nothing is learned "
            "of operators that are cut"
        )
    plan_of(stream, graph_of(stream))
    if run.get("digest") != plan_digest(stream.get("plan")[0], stream.get("stage")):
        raise stream.fault_at("run", 0, "digest", "the run was of another plan")
    stages = {record["id"]: record for record in stream.get("stage")}
    measured: dict[int, list[Record]] = {}
    for i, record in enumerate(run.get("stages", [])):
        if record["stage"] not in stages:
            raise stream.fault_at("run", 0, f"stages[{i}].stage", "there is no such stage")
        measured.setdefault(record["stage"], []).append(record)
    refuse_several_classes(stream)
    operators = operators_of(stream)
    seen = [
        _stage(stream, stages[number], rows, operators) for number, rows in sorted(measured.items())
    ]
    setting = Setting(
        stream.get("stage")[0]["class"], _costs_of(stream), run["provider"], run.get("threads", 1),
        run.get("optimization", "all"),
    )  # fmt: skip
    return setting, RunSeen(stream.header["model"], tuple(s for s in seen if s.measured_s > 0))


def _stage(
    stream: Stream, stage: Record, rows: Sequence[Record], operators: Mapping[int, str]
) -> StageSeen:
    """Collect what a run tells of one stage, which may have run in several parts."""
    name, members = stage["class"], set(stage["nodes"])
    parts: dict[str, float] = dict.fromkeys(operators.values(), 0.0)
    node = {record["id"]: record for record in stream.get("node")}
    grouped = [g for g in stream.get("group") if members.issuperset(g["nodes"])]
    alone = members.difference(*(g["nodes"] for g in grouped))
    launched = 0
    for v in sorted(alone):
        parts[operators[v]] += _base(node[v], name)
        launched += _base(node[v], name) > 0
    for group in grouped:
        total = _base(group, name)
        if "base_s" not in group and "calibration" in stream.header:
            total = math.fsum(_base(node[v], name) for v in group["nodes"])
        for v, share in _shares(group, node, name):
            parts[operators[v]] += share * total
            launched += share * total > 0
    replicas = stage.get("replicas", 1)
    # Whatever the plan charges on top of computing, by its way to count transfers.
    charged = stage["load_s"] * replicas - stage["compute_s"] - stage.get("overflow_s", 0.0)
    charged /= stream.header.get("calibration", {}).get("transfer", 1.0)
    return StageSeen(
        {op: t for op, t in sorted(parts.items()) if t > 0},
        launched,
        max(charged, 0.0) if charged > 1e-9 * stage["load_s"] else 0.0,
        math.fsum(row.get("measured_s", 0.0) for row in rows) * replicas,
        max(row.get("taken", 0.0) for row in rows),
    )
