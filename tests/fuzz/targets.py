"""Targets of fuzzing: every reader, with small valid seeds, and the commands behind them."""

from __future__ import annotations

import functools
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
from fuzz import calibrations, exports, mutate, onnx_models, own_graphs
from fuzz.mutate import Mutation
from fuzz.oracle import schema_fault
from onnx import TensorProto, helper, numpy_helper

from dnnp.core.check.graph import check_clustering, check_graph
from dnnp.core.check.plan import check_plan
from dnnp.core.model.errors import DnnpError, FormatError
from dnnp.core.model.graph import contract
from dnnp.formats.graph import clustering_of, graph_of, units_of
from dnnp.formats.inputs.cost_cache import load as load_costs
from dnnp.formats.inputs.devices import class_record, device_names, parse_device
from dnnp.formats.plan import plan_of, plan_records
from dnnp.formats.stream import read_bytes, write
from dnnp.formats.tensors import read_inputs
from support import seeds, training
from support.run import Result, dnnp


class DefectError(Exception):
    """The program did something that no input may make it do."""


@dataclass(frozen=True)
class Target:
    """One reader under test."""

    name: str
    mutations: tuple[Mutation, ...]
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes, Path], None]
    """Reads the data (also to be put into the folder); raises DnnpError or DefectError."""
    share: int = 1
    """Part of all mutations, relative to the other targets."""
    statuses: tuple[int, ...] = field(default=(3, 4))
    """Exit statuses that an error may have."""


@functools.cache
def _streams() -> list[bytes]:
    linked = [*seeds.planned(groups=True)]
    for end in ("acc", "cpu"):
        link = {"type": "link", "from": "acc/0", "to": end, "bandwidth_bytes_per_s": 8.0}
        linked.insert(3, link)
    linked.append({"type": "something", "of": {"a": [1]}, "id": 0})
    plain = [seeds.encode(records) for records in (seeds.planned(), linked, training.planned())]
    return [*plain, *_one_sample()]


def _one_sample() -> list[bytes]:
    """Plans of the objective latency, in both executions."""
    data = seeds.encode(seeds.graph_records())
    ways = (("blocks",), ("operators", "--transfers", "edge"))
    words = ("partition", "-q", "-k", "2", "--objective", "latency", "--method", "greedy")
    return [dnnp(*words, "--memory", "240", "--execution", *way, stdin=data).out for way in ways]


def read_stream(data: bytes, _: Path) -> None:
    """Stream reader, model types, checker and writer; the schema must not be stricter."""
    objection = schema_fault(data)
    try:
        stream = read_bytes(data, "fuzzed")
        if objection is not None:
            raise DefectError(f"the reader accepts what the schema rejects: {objection}")
        graph = graph_of(stream)
        clustering = clustering_of(stream, graph)
        plan = plan_of(stream, graph, check_digest=False)
    except FormatError:
        raise
    except DnnpError as error:
        if objection is not None:
            raise DefectError(f"status {error.exit_status} where the schema objects") from error
        raise
    faults = [*check_graph(graph)]
    if clustering is not None:
        faults += check_clustering(graph, clustering)
    if faults:
        raise DefectError(f"the reader let through: {faults[0]}")
    contract(graph, units_of(stream, graph))
    if plan is not None:
        check_plan(graph, clustering, plan)
        plan_records(plan)
    first, second = io.BytesIO(), io.BytesIO()
    write(stream, first)
    write(read_bytes(first.getvalue(), "written"), second)
    if first.getvalue() != second.getvalue():
        raise DefectError("writing, reading and writing gives other bytes")
    plan_of(stream, graph)


@functools.cache
def _bounded() -> list[bytes]:
    """Streams with a plan; one has a bound too."""
    bounded = dnnp("bound", "-q", "--method", "node-cut", stdin=_streams()[0])
    return [*_streams(), bounded.out]


class RefusedError(DnnpError):
    """A refusal of a command, with its exit status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.exit_status = status


def command(name: str, *arguments: str) -> Callable[[bytes, Path], None]:
    """A command that reads a stream; what it writes must satisfy dnnp-check."""

    def run(data: bytes, _: Path) -> None:
        judge(name, dnnp(name, *arguments, stdin=data))

    return run


def judge(name: str, result: Result) -> None:
    """Check the messages of a command, and what it wrote; raises RefusedError if it failed."""
    rows = result.err.splitlines()
    if not all(row.startswith(f"dnnp-{name}: ") for row in rows):
        raise DefectError(f"dnnp-{name} printed something else than messages: {result.err!r}")
    if result.status:
        raise RefusedError(result.status, rows[-1] if rows else "")
    if result.out and name not in ("check", "export"):
        checked = dnnp("check", stdin=result.out)
        if checked.status != 0:
            raise DefectError(f"dnnp-check refuses the output of dnnp-{name}: {checked.err}")


def _written(data: bytes, folder: Path, name: str) -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


@functools.cache
def _device_files() -> list[bytes]:
    folder = files("dnnp.samples") / "devices"
    return [(folder / f"{name}.json").read_bytes() for name in device_names()[:4]]


def _device_lists() -> list[bytes]:
    rows = [
        {
            "type": "device",
            "class": "acc",
            "kind": "accelerator",
            "count": 3,
            "memory_bytes": 1e9,
            "bandwidth_bytes_per_s": 1e9,
        },
        {"class": "cpu", "kind": "cpu"},
    ]
    links = [
        {"type": "link", "from": "acc", "to": "acc", "bandwidth_bytes_per_s": 8.0},
        {
            "type": "link",
            "from": "acc/1",
            "to": "cpu/0",
            "bandwidth_bytes_per_s": 4,
            "back_bandwidth_bytes_per_s": 2.5,
            "latency_s": 0.5,
        },
    ]
    lines = [json.dumps(record).encode() for record in rows]
    linked = [*lines, *(json.dumps(record).encode() for record in links)]
    return [b"[" + b",".join(part) + b"]" for part in (lines, linked)] + [b"\n".join(lines) + b"\n"]


def read_device(data: bytes, _: Path) -> None:
    """A device file; what it says must make a valid record."""
    record = class_record(parse_device(data, "fuzzed"))
    objection = schema_fault(seeds.encode([seeds.header(), record]))
    if objection is not None:
        raise DefectError(f"the device makes an invalid record: {objection}")


def split_over_devices(data: bytes, folder: Path) -> None:
    """A list of devices, through dnnp-partition; classes without a price are usage errors."""
    path = _written(data, folder, "devices.json")
    command("partition", "--devices", path)(seeds.encode(seeds.graph_records()), folder)
    command("partition", "--devices", path, "--objective", "latency", "--method", "greedy")(
        seeds.encode(seeds.graph_records()), folder
    )


def _splits() -> list[bytes]:
    return [
        b'{"fpgas":[{"nodes":[0,1],"load":1.5},{"nodes":[2,3]}],"cpus":[{"nodes":[4,5]}]}',
        b"[[0,1],[2,3],[4,5]]",
        b'{"stages":[{"nodes":[0,1,2],"device":"acc/0"},{"nodes":[3,4,5],"device":"cpu/0"}]}',
    ]


def evaluate_split(data: bytes, folder: Path) -> None:
    """A user's split, through dnnp-partition --eval; unknown devices are usage errors."""
    path = _written(data, folder, "split.json")
    run = command("partition", "--eval", path)
    run(seeds.encode(seeds.graph_records()), folder)


@functools.cache
def _tensor_seeds() -> list[bytes]:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    npy, npz, packed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    np.savez(npz, x=array, y=np.array([1, 2], dtype=np.int64))
    np.savez_compressed(packed, x=array)
    tensors = [
        numpy_helper.from_array(array, "x"),
        helper.make_tensor("x", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]),
        helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"bc"]),
        helper.make_tensor("h", TensorProto.BFLOAT16, [2], [1.0, 2.0]),
    ]
    return [
        *(stream.getvalue() for stream in (npy, npz, packed)),
        *(tensor.SerializeToString() for tensor in tensors),
    ]


def read_tensors(data: bytes, folder: Path) -> None:
    """A tensor file; its ending follows from how the seed began, or is wrong."""
    endings = {b"\x93": ".npy", b"P": ".npz"}
    for ending in {endings.get(data[:1], ".pb"), ".pb"}:
        read_inputs(_written(data, folder, f"input{ending}"))


@functools.cache
def _onnx_files() -> list[bytes]:
    return [model.SerializeToString() for model in onnx_models.models().values()]


ONNX = (*mutate.BYTES, onnx_models.dims, *[onnx_models.fields] * 10)


def import_model(data: bytes, folder: Path) -> None:
    """An ONNX model; a dimension without a size is the user's to give (status 2)."""
    result = dnnp("import", _written(data, folder, "model.onnx"))
    if result.status == 2 and "--dim" not in result.err:
        raise DefectError(f"usage error without a hint: {result.err}")
    judge("import", result)


COSTGRAPH = b"""
node { name: "a" device: "/cpu:0" id: 0 compute_cost: 10 is_final: false
  output_info { size: 16 alias_input_port: -1 dtype: DT_FLOAT
    shape { dim { size: 2 } dim { size: 2 } } }
  output_info { size: 8 alias_input_port: -1 shape { unknown_rank: true } } }
node { name: "b\\\\n\\"" id: 1 compute_cost: 20
  input_info { preceding_node: 0 preceding_port: 0 }
  output_info { size: 4 alias_input_port: 0 } temporary_memory_size: 3 }
node { name: 'c' id: 2 compute_cost: 30 is_final: true # a comment
  input_info: < preceding_node: 0 preceding_port: 1 >, input_info { preceding_node: 1 }
  control_input: [0, 1] output_info { size: 0x10 } }
cost { cost: 1.5e3 dimension: "x" }
"""

WORKLOAD = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 100.0,
    "nodes": [
        {
            "name": f"n{i}", "id": i, "supportedOnFpga": i != 2, "cpuLatency": 10.0 * i,
            "fpgaLatency": 1.0 * i, "isBackwardNode": i > 3, "colorClass": min(i, 6 - i),
            "size": 5.0,
        }
        for i in range(6)
    ],
    "edges": [
        {"sourceId": u, "destId": v, "cost": 1.5 if u else float(v), "size": 8.0}
        for u, v in ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5))
    ],
}  # fmt: skip


def import_text(kind: str, *options: str) -> Callable[[bytes, Path], None]:
    """A workload or cost graph on standard input."""

    def run(data: bytes, _: Path) -> None:
        judge("import", dnnp("import", "--from", kind, *options, "-", stdin=data))

    return run


def _rule_files() -> list[bytes]:
    folder = files("dnnp.samples") / "rules"
    own = {
        "name": "own",
        "sets": {"act": ["Relu", "Op"]},
        "rules": [
            {"name": "ops", "sequence": ["Op", "$act|Op"], "as": "Ops"},
            {
                "name": "pair",
                "pattern": ["s = Op(x)", "shared t = Op(s, @weight)", "Op(t, s, ...)"],
                "where": ["rank(s) = 2", "shape(s) = shape(x)", "swaps(t)"],
            },
            {"name": "gone", "absorb": ["Identity"]},
            {"name": "known", "fold": {"shape": ["Shape"], "except": ["Random*"]}},
        ],
    }
    own["rules"][3]["fold"]["except"] = ["RandomNormal"]  # type: ignore[index]
    return [json.dumps(own).encode(), *(f.read_bytes() for f in folder.iterdir())]


def coarsen_by_rules(data: bytes, folder: Path) -> None:
    """A rule file, through dnnp-coarsen."""
    path = _written(data, folder, "rules.json")
    command("coarsen", "--rules", path)(seeds.encode(seeds.graph_records()), folder)


PIPER = {
    "maxDevices": 3, "maxMemoryPerDevice": 60.0, "bandwidth": 4.0, "mbsInBatch": 4,
    "nodes": [
        {
            "id": i,
            "TMPCs": {
                t: [
                    {
                        "id": name, "timePerSample": time / int(t), "parameterSize": 3.0,
                        "memoryUsageA": 8.0 / (1 + j), "memoryUsageB": 5.0,
                        "syncTimeFw": {str(i - 1): 2.0} if i else {},
                        "syncTimeBw": {str(i + 1): 1.0} if i < 3 else {},
                    }
                    for j, (name, time) in enumerate((("plain", 6.0), ("again", 8.0)))
                ]
                for t in ("1", "2")
            },
        }
        for i in range(4)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "communicationCost": 4.0} for i in range(3)],
}  # fmt: skip
"""Four layers in a row."""


def _workloads() -> list[bytes]:
    return [json.dumps(WORKLOAD).encode()]


def _piper() -> list[bytes]:
    return [json.dumps(PIPER).encode()]


def _sharded() -> list[bytes]:
    """Piper's form as a stream that states times of nodes on several devices."""
    return [dnnp("import", "--from", "piper", "-", stdin=json.dumps(PIPER).encode()).out]


def import_edges(data: bytes, folder: Path) -> None:
    """A list of edges beside one of nodes."""
    judge("import", dnnp("import", "--from", "csv", "--edges", _written(data, folder, "e.csv"), "-",
                         stdin=own_graphs.NODES))  # fmt: skip


def _tables() -> list[bytes]:
    return [own_graphs.NODES, own_graphs.EDGES]


def _graphs() -> list[bytes]:
    records = [r for r in seeds.graph_records() if r["type"] != "device"]
    plain = [{k: v for k, v in r.items() if k != "time_s"} for r in records]
    return [*_streams(), seeds.encode(plain)]


def export_stages(data: bytes, folder: Path) -> None:
    """An ONNX model all the way to stage models; their checker must accept them."""
    imported = dnnp("import", _written(data, folder, "model.onnx"))
    if imported.status:
        raise RefusedError(imported.status, imported.err.strip())
    planned = dnnp("partition", "-q", "-k", "2", stdin=imported.out)
    judge("partition", planned)
    out = folder / "stages"
    shutil.rmtree(out, ignore_errors=True)
    judge("export", dnnp("export", "-q", "--to", "stages", "-o", out, stdin=planned.out))


def bound_plan(data: bytes, _: Path) -> None:
    """dnnp-bound; it recomputes not all of a plan, so only what was right must stay so."""
    method = "simple" if b'"objective":"latency"' in data else "node-cut"
    result = dnnp("bound", "-q", "--method", method, stdin=data)
    if result.status or dnnp("check", stdin=data).status == 0:
        judge("bound", result)


PLACEMENT = {
    "name": "pair", "devices": [{"name": "a", "memory_bytes": 3, "fixed_bytes": 1}, {"name": "b"}],
    "memory_bytes": 4, "blocks": [
        {"name": "F0", "devices": [0], "time_s": 1, "memory_bytes": 1},
        {"name": "F1", "kind": "forward", "devices": ["b"], "time_s": 1.5, "after": [
            {"block": "F0", "delay_s": 0.25, "transfer_s": 1}]},
        {"name": "B1", "kind": "backward", "turns": [[1], [0]], "time_s": 2, "after": ["F1"]},
        {"name": "B0", "kind": "backward", "devices": [0], "time_s": 2, "memory_bytes": -1,
         "after": ["B1"]},
    ],
}  # fmt: skip


def _placements() -> list[bytes]:
    return [json.dumps(PLACEMENT).encode()]


def schedule_placement(data: bytes, folder: Path) -> None:
    """A placement file, through dnnp-schedule."""
    path = _written(data, folder, "placement.json")
    judge("schedule", dnnp("schedule", "-q", "-n", "3", "--effort", "0.1", "--placement", path))


@functools.cache
def _scheduled() -> list[bytes]:
    """Streams with a schedule: of a plan, and of a shape."""
    of_plan = dnnp("schedule", "-q", "-n", "2", stdin=_streams()[0])
    of_shape = dnnp("schedule", "-q", "-n", "2", "--shape", "V", "--devices", "2")
    return [of_plan.out, of_shape.out]


def _planned() -> list[bytes]:
    """Streams with a plan for many samples."""
    return [data for data in _bounded() if b'"objective":"latency"' not in data]


def schedule_plan(data: bytes, _: Path) -> None:
    """dnnp-schedule; what was wrong with the plan stays wrong."""
    result = dnnp("schedule", "-q", "-n", "3", stdin=data)
    if result.status or dnnp("check", stdin=data).status == 0:
        judge("schedule", result)


KEY = "0" * 64


def _caches() -> list[bytes]:
    cache = {"format": "dnnp-costs", "version": 1, "key": KEY, "facts": {}, "node_s": [1.0, 2]}
    return [json.dumps({**cache, "group_s": groups}).encode() for groups in (None, [3.0])]


def read_cache(data: bytes, folder: Path) -> None:
    """A file of measured costs; what is wrong with it counts as nothing found."""
    _written(data, folder, f"{KEY}.json")
    found = load_costs(folder, KEY, 2, 1)
    if found is not None and len(found.node_s) != 2:
        raise DefectError("costs for another number of nodes")


TABLE = b'name,class,seconds\nn0,acc,1e-3\nn1,acc,2\n"n2",cpu,0.5\nn3,,4\n'


def _profiles() -> list[bytes]:
    """A profile of ONNX Runtime, and layers of trtexec, of the seed graph."""
    run = [
        {"cat": "Node", "name": f"n{i}_kernel_time", "tid": 1, "ts": 10.0 * i, "dur": i + 1,
         "args": {"op_name": "Op", "provider": "CPUExecutionProvider"}}
        for i in range(6)
    ]  # fmt: skip
    ends = {"cat": "Session", "name": "model_run", "ts": 0, "dur": 70}
    kernel = {"cat": "Kernel", "name": "gemm", "ts": 5, "dur": 3}
    layers = [
        {"name": name, "timeMs": 4.0, "averageMs": 2.0, "medianMs": 2.0, "percentage": 50.0}
        for name in ("n0 + PWN(n1, n2)", "{ForeignNode[n3...n5]}", "Reformatting CopyNode for "
                     "Input Tensor 0 to n3")
    ]  # fmt: skip
    return [json.dumps(rows).encode() for rows in ([*run, kernel, ends], [{"count": 2}, *layers])]


def price_by_file(data: bytes, folder: Path) -> None:
    """A file of costs, through dnnp-profile."""
    path = _written(data, folder, "costs")
    command("profile", "--costs", path, "--device", "acc")(
        seeds.encode(seeds.graph_records()), folder
    )


OURS = ("--attribute", "op=shape,memory=time", "--attribute", "size=weight")
THEIRS = ("--attribute", "time=Weight,size=Bytes")
MEMORY = b"""#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations
n0_1234567890123456789,0,16,2048,0
n,1_42,2304,0,2048,100
n3_7,0,0,0,0
"""


def _task_graphs() -> list[bytes]:
    return [own_graphs.STG, own_graphs.STG_COSTS]


def _own_dot() -> list[bytes]:
    return [own_graphs.DOT]


def _workflows() -> list[bytes]:
    return [json.dumps(w).encode() for w in (own_graphs.WORKFLOW, own_graphs.OLD_WORKFLOW)]


def _instances() -> list[bytes]:
    return [json.dumps(own_graphs.INSTANCE).encode()]


def _node_links() -> list[bytes]:
    new = {**own_graphs.NODE_LINK, "edges": own_graphs.NODE_LINK["links"]}
    del new["links"]
    return [json.dumps(graph).encode() for graph in (own_graphs.NODE_LINK, new)]


def _any_json() -> list[bytes]:
    return [*_workflows(), *_instances(), *_node_links(), *_workloads(), *_piper()]


def import_json(data: bytes, folder: Path) -> None:
    """A graph in JSON of any format, told by its content."""
    judge("import", dnnp("import", _written(data, folder, "graph.json")))


CHECK = command("check", "--json")
COARSEN = command("coarsen")
LAYERS = command("coarsen", "--layers", "--chains")
PROFILE = command("profile")
EXPORT = command("export", "--to", "msr-split")
SLICE = command("partition", "-k", "2", "--method", "slice")
UNIFORM = command(
    "partition", "-k", "3", "--method", "uniform", "--comm", "overlap", "--charge-io"
)  # fmt: skip
STREAMED = command(
    "partition", "-k", "2", "--method", "slice", "--memory", "150", "--memory-mode", "overflow",
    "--comm", "duplex",
)  # fmt: skip

HYBRID = command(
    "partition", "--tensor-parallel", "2", "--data-parallel", "2", "--recompute", "auto",
)  # fmt: skip

USAGE = (2, 3, 4)
"""Also status 2: a stream may lack what a command was not told, such as a plan or a price."""

TARGETS = [
    Target("stream", mutate.STREAM, _bounded, read_stream, 36),
    Target("check", mutate.STREAM, _bounded, CHECK, 4),
    Target("bound", mutate.STREAM, _bounded, bound_plan, 3, USAGE),
    Target("coarsen", mutate.STREAM, _graphs, COARSEN, 4),
    Target("layers", mutate.STREAM, _graphs, LAYERS, 2),
    Target("slice", mutate.STREAM, _graphs, SLICE, 6, USAGE),
    Target("uniform", mutate.STREAM, _graphs, UNIFORM, 3, USAGE),
    Target("overflow", mutate.STREAM, _graphs, STREAMED, 3, USAGE),
    Target("hybrid", mutate.STREAM, _sharded, HYBRID, 4, USAGE),
    Target("export", mutate.STREAM, _streams, EXPORT, 2, USAGE),
    Target("profile", mutate.STREAM, _graphs, PROFILE, 4),
    Target("schedule", mutate.STREAM, _planned, schedule_plan, 3, USAGE),
    Target("scheduled", mutate.STREAM, _scheduled, CHECK, 4),
    Target("placement", mutate.DOCUMENT, _placements, schedule_placement, 5, USAGE),
    Target("device-file", mutate.DOCUMENT, _device_files, read_device, 4),
    Target("device-list", mutate.DOCUMENT, _device_lists, split_over_devices, 4, USAGE),
    Target("split", mutate.DOCUMENT, _splits, evaluate_split, 4, USAGE),
    Target("rules", mutate.DOCUMENT, _rule_files, coarsen_by_rules, 5),
    Target("cost-table", mutate.TEXT, lambda: [TABLE], price_by_file, 3),
    Target("cost-profile", mutate.DOCUMENT, _profiles, price_by_file, 4),
    Target("calibration", mutate.DOCUMENT, calibrations.seeds, calibrations.read, 3),
    Target("cost-cache", mutate.DOCUMENT, _caches, read_cache, 2),
    Target("msr-json", mutate.DOCUMENT, _workloads, import_text("msr-json"), 5),
    Target("piper", mutate.DOCUMENT, _piper, import_text("piper"), 4),
    Target("costgraph", mutate.TEXT, lambda: [COSTGRAPH], import_text("costgraph"), 5),
    Target(
        "one-tensor", mutate.TEXT, lambda: [COSTGRAPH], import_text("costgraph", "--one-tensor"), 2
    ),
    Target("csv", mutate.TEXT, _tables, import_text("csv"), 2),
    Target("csv-edges", mutate.TEXT, lambda: [own_graphs.EDGES], import_edges, 2),
    Target("dot", mutate.TEXT, lambda: [own_graphs.DOT], import_text("dot"), 3),
    Target("graphml", mutate.TEXT, lambda: [own_graphs.GRAPHML], import_text("graphml"), 3),
    Target(
        "attributes", mutate.TEXT, lambda: [own_graphs.DOT], import_text("dot", *OURS), 2, USAGE
    ),
    Target("gml", mutate.TEXT, lambda: [own_graphs.GML], import_text("gml"), 3),
    Target("node-link", mutate.DOCUMENT, _node_links, import_text("node-link", *THEIRS), 3, USAGE),
    Target("stg", mutate.TEXT, _task_graphs, import_text("stg"), 3),
    Target("wfcommons", mutate.DOCUMENT, _workflows, import_text("wfcommons"), 4),
    Target("dagbench", mutate.DOCUMENT, _instances, import_text("dagbench"), 2),
    Target("json-kind", mutate.DOCUMENT, _any_json, import_json, 2, USAGE),
    Target("node-memory", mutate.TEXT, lambda: [MEMORY], price_by_file, 3),
    Target("onnx", ONNX, _onnx_files, import_model, 12, USAGE),
    Target("stages", ONNX, _onnx_files, export_stages, 3, USAGE),
    Target("manifest", mutate.DOCUMENT, exports.manifests, exports.read_manifests, 4),
    Target("frame", mutate.BYTES, exports.frames, exports.read_frames, 3, (1, 3)),
    Target("tensors", mutate.BYTES, _tensor_seeds, read_tensors, 5),
]
