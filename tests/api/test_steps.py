"""The functions of Python give the same streams and errors as the commands."""

from __future__ import annotations

import inspect
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import dnnp
from dnnp.callbacks import Callbacks
from dnnp.cmds import bound, check, coarsen, export, partition, profile, run, schedule
from dnnp.options.graph import CoarsenOptions, ProfileOptions
from dnnp.options.run import ExportOptions, RunOptions
from dnnp.options.schedule import BoundOptions, ScheduleOptions
from dnnp.options.split import SplitOptions
from dnnp.options.table import Options
from dnnp.samples import build
from support.run import dnnp as command


class Listening(Callbacks):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, message: str) -> None:
        self.heard.append(message)

    note = warn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.write("two-tower-small", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def priced(model: Path) -> dnnp.Graph:
    return dnnp.profile(dnnp.coarsen(dnnp.load(model)))


@pytest.fixture(scope="module")
def planned(priced: dnnp.Graph) -> dnnp.Graph:
    return dnnp.split(priced, k=2, method="slice")


def test_a_model_is_read_as_by_the_command(model: Path) -> None:
    assert dnnp.load(model).to_bytes() == command("import", model).out


def test_random_graphs_are_those_of_the_command() -> None:
    made = dnnp.generate("layered", nodes=12, ratio=2.0, seed=3)
    words = ["--synthetic", "layered", "--nodes", "12", "--ratio", "2.0", "--seed", "3"]
    assert made.to_bytes() == command("import", *words).out


STEPS: dict[str, tuple[Callable[..., dnnp.Graph], dict[str, object], tuple[str, ...]]] = {
    "coarsen": (
        dnnp.coarsen,
        {"chains": True, "max_share": 0.1},
        ("--chains", "--max-share", "0.1"),
    ),
    "profile": (dnnp.profile, {"device": ["v100"]}, ("--device", "v100")),
    "partition": (dnnp.split, {"k": 2, "comm": "overlap"}, ("-k", "2", "--comm", "overlap")),
    "bound": (dnnp.bound, {"method": "chain"}, ("--method", "chain")),
    "schedule": (
        dnnp.schedule,
        {"micro_batches": 4, "method": "1f1b"},
        ("--micro-batches", "4", "--method", "1f1b"),
    ),
}
"""Command -> the step, its options, and those of the command."""


@pytest.mark.parametrize("name", STEPS)
def test_a_step_writes_what_the_command_writes(name: str, planned: dnnp.Graph) -> None:
    step, options, words = STEPS[name]
    before, caller = planned.to_bytes(), Listening()
    found = step(planned, caller=caller, **options)
    expected = command(name, *words, stdin=before)
    assert (expected.status, found.to_bytes()) == (0, expected.out)
    said = [line.removeprefix(f"dnnp-{name}: ") for line in expected.err.splitlines()]
    heard = [line for line in caller.heard if not line.startswith("compiling kernels")]
    assert heard == [line for line in said if not line.startswith("compiling kernels")]
    assert planned.to_bytes() == before, "the graph that was given is another one now"


def test_latency_too(priced: dnnp.Graph) -> None:
    words = ("-k", "2", "--objective", "latency", "--method", "m-etf")
    expected = command("partition", *words, stdin=priced.to_bytes())
    found = dnnp.split(priced, k=2, method="m-etf", objective="latency")
    assert found.records("plan") == tuple(expected.records("plan"))
    assert found.records("stage") == tuple(expected.records("stage"))
    bounded = dnnp.bound(found, method="simple")
    assert bounded.bound is not None
    simple = command("bound", "--method", "simple", stdin=found.to_bytes())
    assert bounded.bound.record == simple.one("bound")


def test_orders_are_lists(priced: dnnp.Graph, tmp_path: Path) -> None:
    wanted = [group["id"] for group in reversed(priced.groups)]
    file = tmp_path / "order.json"
    file.write_bytes(orjson.dumps(wanted))
    with pytest.raises(dnnp.FormatError) as error:
        dnnp.split(priced, k=2, method="slice", sequence=wanted)
    with pytest.raises(dnnp.FormatError) as other:
        dnnp.split(priced, k=2, method="slice", sequence=str(file))
    assert str(other.value).removeprefix(str(file)) == str(error.value).removeprefix("--sequence")
    priorities = [float(i) for i in range(len(wanted))]
    assert dnnp.split(priced, k=2, method="slice", priorities=priorities).plan is not None


def test_splits_made_elsewhere(priced: dnnp.Graph, planned: dnnp.Graph, tmp_path: Path) -> None:
    parts = [list(stage.nodes) for stage in planned.stages]
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps(parts))
    expected = command("partition", "-k", "2", "--eval", str(file), stdin=priced.to_bytes())
    assert dnnp.split(priced, k=2, eval=file).to_bytes() == expected.out
    given = dnnp.split(priced, k=2, eval=parts)
    assert given.plan == dnnp.split(priced, k=2, eval=str(file)).plan
    assert given.plan is not None
    assert planned.plan is not None
    assert (given.plan.method, given.plan.value) == ("given", planned.plan.value)


def test_placements_are_scheduled_without_a_graph(tmp_path: Path) -> None:
    words = ("--shape", "V", "--devices", "2", "--micro-batches", "3")
    made = dnnp.schedule(None, micro_batches=3, shape="V", devices=2)
    again = command("schedule", *words)
    for kind in ("schedule", "block"):
        assert made.records(kind) == tuple(again.records(kind))
    file = tmp_path / "placement.json"
    block = {"name": "F0", "kind": "forward", "devices": [0], "time_s": 1}
    file.write_bytes(orjson.dumps({"devices": 1, "blocks": [block]}))
    expected = command("schedule", "--placement", str(file), "-n", "3")
    assert expected.status == 0, expected.err
    placed = dnnp.schedule(None, placement=file, micro_batches=3)
    assert placed.records("schedule") == tuple(expected.records("schedule"))


def test_views_say_what_the_records_say(planned: dnnp.Graph) -> None:
    plan = planned.plan
    assert plan is not None
    (record,) = planned.records("plan")
    fields = (plan.value, plan.bound, plan.gap, plan.status, plan.method, plan.objective)
    names = ("value", "bound", "gap", "status", "method", "objective")
    assert fields == tuple(record[name] for name in names)
    assert plan.value == max(stage.load for stage in planned.stages)
    assert sum(len(stage.nodes) for stage in plan.stages) == len(planned.nodes)
    with pytest.raises(TypeError):
        plan.record["value"] = 0.0  # type: ignore[index]
    assert (planned.bound, planned.schedule, planned.runs) == (None, None, ())


def test_check_and_files(planned: dnnp.Graph, tmp_path: Path) -> None:
    planned.save(tmp_path / "plan.dnnp")
    again = dnnp.load(tmp_path / "plan.dnnp")
    assert again.to_bytes() == planned.to_bytes()
    with (tmp_path / "plan.dnnp").open("rb") as file:
        assert dnnp.load(file).to_bytes() == planned.to_bytes()
    summary = orjson.loads(command("check", "--json", stdin=planned.to_bytes()).out)
    assert dnnp.check(again).summary() == summary
    assert dnnp.check(again).ok
    with pytest.raises(dnnp.GateError):
        dnnp.check(again, max_gap=0.0)
    with pytest.raises(dnnp.InputFileError):
        planned.save(tmp_path / "no" / "where")
    with pytest.raises(dnnp.UsageError, match="is a stream"):
        dnnp.load(tmp_path / "plan.dnnp", name="other")


def test_export_and_run(planned: dnnp.Graph, tmp_path: Path) -> None:
    dnnp.export(planned, tmp_path / "stages")
    assert (tmp_path / "stages" / "manifest.json").exists()
    dnnp.export(planned, tmp_path / "split.json", to="msr-split")
    expected = command("export", "--to", "msr-split", stdin=planned.to_bytes()).out
    assert (tmp_path / "split.json").read_bytes() == expected
    ran = dnnp.run(planned, samples=4, verify=True, save_outputs=str(tmp_path / "out.npz"))
    assert ran.runs[0]["verified"]
    assert (tmp_path / "out.npz").exists()
    assert dnnp.check(ran).ok


BAD: dict[str, tuple[Callable[[dnnp.Graph], object], str]] = {
    "k": (lambda graph: dnnp.split(graph, k=-1), "-k -1: must be at least 0"),
    "method": (lambda graph: dnnp.split(graph, k=2, method="x"), "--method 'x': must be one of"),
    "argument": (lambda graph: dnnp.bound(graph, method="x"), "--method 'x': must be one of"),
    "recipe": (lambda graph: dnnp.schedule(graph, method="x"), "--method 'x': must be one of"),
    "eval": (lambda graph: dnnp.split(graph, k=2, eval=[], method="slice"), "not both"),
    "orders": (
        lambda graph: dnnp.split(graph, k=2, method="slice", order="dfs", priorities=[]),
        "give --order or --priorities, not both",
    ),
    "shape": (lambda graph: dnnp.schedule(graph, shape="V"), "give one of these"),
    "nothing": (lambda graph: dnnp.schedule(None), "give one of these"),
    "comm": (lambda graph: dnnp.split(graph, k=2, comm="x"), "--comm 'x': must be one of"),
    "memory": (lambda graph: dnnp.split(graph, k=2, memory="16X"), "--memory: '16X' is not a size"),
    "rate": (lambda graph: dnnp.split(graph, k=2, bandwidth="1Gb/s"), "8 bits are a byte"),
    "latency": (lambda graph: dnnp.check(graph, max_latency="50"), "not a latency with its unit"),
    "depth": (lambda graph: dnnp.coarsen(graph, depth=2), "--depth is for --layers"),
    "text": (lambda graph: dnnp.profile(graph, device="v100"), r"'v100': must be list\[str\]"),
    "no plan": (lambda graph: dnnp.schedule(graph), "no plan to schedule"),
    "nothing to run": (lambda graph: dnnp.run(graph), "no plan to run"),
    "no devices": (lambda graph: dnnp.split(graph), "how many devices"),
    "to": (lambda graph: dnnp.export(graph, "x", to="y"), "--to 'y': must be one of"),
    "threads": (lambda graph: dnnp.run(graph, threads=0), "must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name: str, priced: dnnp.Graph) -> None:
    call, message = BAD[name]
    with pytest.raises(dnnp.UsageError, match=message.replace("(", "\\(")):
        call(priced)


UNITS: dict[str, tuple[Callable[..., object], dict[str, object], tuple[str, ...]]] = {
    "partition": (
        dnnp.split,
        {"k": 2, "memory": "1.5GiB", "bandwidth": "2GB/s", "method": "slice"},
        ("-k", "2", "--memory", "1.5GiB", "--bandwidth", "2GB/s", "--method", "slice"),
    ),
    "schedule": (
        dnnp.schedule,
        {"micro_batches": 4, "memory": "512Mi"},
        ("--micro-batches", "4", "--memory", "512Mi"),
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_numbers_with_units_are_read_as_by_the_command(name: str, planned: dnnp.Graph) -> None:
    step, options, words = UNITS[name]
    expected = command(name, *words, stdin=planned.to_bytes())
    found = step(planned, **options)
    assert isinstance(found, dnnp.Graph)
    assert expected.status == 0
    # All but the header, which has the arguments.
    assert found.to_bytes().splitlines()[1:] == expected.out.splitlines()[1:]


@pytest.mark.parametrize("gate", ["max_memory", "min_throughput", "max_latency"])
def test_gates_with_units_hold_as_by_the_command(gate: str, planned: dnnp.Graph) -> None:
    limits = {"max_memory": "1Ti 1K", "min_throughput": "1/s 1G/s", "max_latency": "9000s 1ns"}
    for limit, status in zip(limits[gate].split(), (0, 8), strict=True):
        flag = f"--{gate.replace('_', '-')}"
        assert command("check", flag, limit, stdin=planned.to_bytes()).status == status
        if status:
            with pytest.raises(dnnp.GateError):
                dnnp.check(planned, **{gate: limit})
        else:
            assert dnnp.check(planned, **{gate: limit}).ok


def test_warnings_are_pythons(model: Path, priced: dnnp.Graph) -> None:
    with pytest.warns(dnnp.DnnpWarning, match="only .* groups"):
        dnnp.coarsen(dnnp.load(model), to=100_000)


NOT_IN_PYTHON = {
    "profile": {"stage_timeout", "max_memory"},
    "run": {"stage_timeout", "max_memory"},
    "schedule": {"chart", "svg"},
    "check": {"json", "schema"},
}
"""Options that are for the command alone: its pictures, and limits of its own process."""

OPTIONS: dict[str, type[Options]] = {
    "coarsen": CoarsenOptions,
    "profile": ProfileOptions,
    "split": SplitOptions,
    "bound": BoundOptions,
    "schedule": ScheduleOptions,
    "export": ExportOptions,
    "run": RunOptions,
}

COMMON = {
    "help", "help_all", "stream", "output", "quiet", "verbose", "timings", "version",
    "print_completion", "list_devices", "set",
}  # fmt: skip


@pytest.mark.parametrize(
    "module", [bound, check, coarsen, export, partition, profile, run, schedule]
)
def test_options_are_those_of_the_command(module: object) -> None:
    """Each has the same name, default and choices."""
    parser = module.COMMAND.parser()  # type: ignore[attr-defined]
    name = parser.prog.removeprefix("dnnp-")
    call = {"partition": dnnp.split}.get(name) or getattr(dnnp, name)
    keywords = inspect.signature(call).parameters
    skipped = COMMON | NOT_IN_PYTHON.get(name, set())
    actions = {a.dest: a for a in parser._actions if a.dest not in skipped}
    mine = set(keywords) - {"graph", "path", "caller", "timings", "ties"}
    assert set(actions) == mine
    for dest, action in actions.items():
        default = keywords[dest].default
        assert (default or None) == (action.default or None) or dest == "to", dest
    for row in OPTIONS[call.__name__].rows.values() if call.__name__ in OPTIONS else ():
        assert not row.flag or set(row.flags) <= set(parser._option_string_actions), row.name


EIGHT = """
import dnnp, sys
graph = dnnp.load(sys.argv[1])
graph = dnnp.profile(dnnp.coarsen(graph))
graph = dnnp.bound(dnnp.split(graph, k=2))
assert dnnp.check(graph).ok and graph.bound.gap < 1e-9
dnnp.export(graph, "stages")
print(dnnp.run(graph, samples=4, verify=True).runs[0]["verified"], dnnp.__file__)
"""


def test_eight_lines_from_the_wheel_in_an_empty_folder(
    wheel: Path, model: Path, tmp_path: Path
) -> None:
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(installed)
    env = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    env["NUMBA_DISABLE_JIT"] = "1"  # nothing is compiled there yet, which takes half a minute
    done = subprocess.run(
        [sys.executable, "-c", EIGHT, model],
        cwd=empty,
        env=env,
        capture_output=True,
        check=True,
    )
    verified, where = done.stdout.split()
    assert verified == b"True"
    assert Path(where.decode()) == installed / "dnnp" / "__init__.py"
