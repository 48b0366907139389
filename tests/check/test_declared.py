"""Nothing is agreed to that no check covers: every field and mode, and what goes together."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest

from dnnp.core.check import declared
from dnnp.core.check.violation import MEMORY
from dnnp.core.cost import load_formula as combine
from dnnp.formats.bounds import bound_digest
from dnnp.formats.fields import PARTS, Field, table
from dnnp.formats.records import RECORDS, covered
from support import seeds, shapes, training
from support.forgery import KINDS, records_in
from support.generating import random_decoder
from support.graphs import to_bytes
from support.ruled import decoder
from support.run import dnnp

UNREACHED = {
    ("plan", "status", "interrupted"),
    ("plan", "tried.status", "interrupted"),
    ("plan", "tried.status", "unavailable"),
    ("plan", "tried.status", "limit"),
    ("plan", "tried.status", "infeasible"),
    ("bound", "status", "interrupted"),
    ("bound", "tried.status", "failed"),
    ("bound", "tried.status", "limit"),
    ("schedule", "status", "interrupted"),
    ("schedule", "repetend.status", "interrupted"),
    ("schedule", "repetend.status", "feasible"),
    ("plan", "devices.fitted", True),
}
"""Kind, field and value that no command writes, or a signal, a limit or a missing solver alone."""


def fields_of(fields: Mapping[str, Field], within: str = "") -> Iterator[tuple[str, Field]]:
    """All fields of a kind of record, those of objects inside too."""
    for name, spec in fields.items():
        yield within + name, spec
        inner = spec if spec.items is None else spec.items
        yield from fields_of(inner.fields, f"{within}{name}.")


def modes_of(spec: Field) -> tuple[Any, ...]:
    """Values of a mode; whatever may be absent is not written where it is false."""
    if spec.type == "bool":
        return (False, True) if spec.required else (True,)
    return spec.enum


CASES = (*declared.STAGES, *declared.PARALLEL, *declared.BLOCKS, *declared.OPERATORS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_and_mode_of_the_format_is_covered(kind: str) -> None:
    """A new field, or value of one, is refused until a check covers it; then it is declared."""
    fields = dict(fields_of(RECORDS[kind]))
    for name, spec in fields.items():
        if name != "certificate.argument":
            assert spec.covered, name
            assert set(spec.covered) <= set(PARTS), name
    if kind not in ("plan", "stage"):
        return
    limits = [(case.part, case.plan if kind == "plan" else case.stage) for case in CASES]
    assert {part for part, _ in limits} == set(PARTS)
    for part, modes in limits:
        for name, values in modes.items():
            assert part in fields[name].covered, (part, name)
            assert set(values) <= {*modes_of(fields[name]), False} or name == "invocations"
    for name, spec in fields.items():
        known = [modes.get(name, modes_of(spec)) for part, modes in limits if part in spec.covered]
        assert set().union(*known) >= set(modes_of(spec)), name


def test_a_field_is_refused_until_it_says_what_covers_it() -> None:
    fields = table("old: int @blocks -- known")
    assert fields["old"].covered == ("blocks",)
    assert table("new: int -- not yet")["new"].covered == ()
    found = {part: covered("plan", part) for part in PARTS}
    assert all("ways" in tree for part, tree in found.items() if part == "stages")
    assert not any("ways" in tree for part, tree in found.items() if part != "stages")


def test_every_argument_has_its_certificate_declared() -> None:
    from dnnp.core.certificates.certificate import ARGUMENTS, LINKED

    assert set(declared.CERTIFICATES) == {*ARGUMENTS, LINKED}


def test_one_tolerance_of_memory() -> None:
    assert MEMORY == combine.MEMORY
    assert combine.ROOM == 1 + MEMORY


GRAPH = seeds.encode(seeds.graph_records())
DECODER = to_bytes(decoder())
PHASED = to_bytes(random_decoder(1, phased=True))
TRAINING = seeds.encode(training.graph_records())
FLAT = seeds.encode(
    [
        {k: v for k, v in r.items() if k not in ("cluster_size", "inner_bandwidth_bytes_per_s")}
        for r in training.graph_records()
    ]
)
CHAIN, WIDE, WIDER = (
    dnnp("import", "-q", "--synthetic", kind, "--nodes", n, "--seed", seed).out
    for kind, n, seed in (("layered", 6, 1), ("erdos-renyi", 10, 1), ("erdos-renyi", 14, 4))
)
SIMPLE = "bound --method simple"
CLUSTERS = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "12", "--seed", "2").out
CLUSTERED = "--bandwidth 20 --cluster-size 2 --inner-bandwidth 200"
LINKS = "--link acc/0,acc/1=9,1s --link acc/1,acc/2=3 --link acc/2,acc/0=6"


def options(**choices: tuple[str, ...]) -> list[str]:
    """All ways to choose one value of each option; one without a value is left out."""
    return [
        " ".join(f"--{name} {value}" for name, value in zip(choices, row, strict=True) if value)
        for row in product(*choices.values())
    ]


@cache
def written() -> list[tuple[str, bytes]]:
    """Streams by all commands that write these records, in all modes of their options."""
    comm = ("sum", "overlap", "duplex")
    cases: list[tuple[bytes, str, tuple[str, ...]]] = []
    for words in options(
        **{
            "memory-model": ("", "sum", "peak"),
            "memory-mode": ("hard", "overflow", "ignore"),
            "comm": comm,
            "memory": ("", "120"),
        }
    ):
        cases.append((GRAPH, f"-k 2 {words}", ()))
        cases.append((TRAINING, f"-k 3 --max-replicas 2 {words}", ()))
    for words in options(objective=("gpipe",), **{"memory-mode": ("hard", "overflow", "ignore")}):
        for memory in ("", "--memory 100"):
            cases.append((FLAT, f"-k 3 {words} {memory}", ("bound", "schedule -n 2")))
            cases.append((FLAT, f"-k 3 --allow-replicas {words} {memory}", ()))
    for words in options(
        **{
            "tensor-parallel": ("1",),
            "data-parallel": ("1", "2"),
            "recompute": ("none", "full", "auto"),
            "weight-sync": ("ring", "server"),
            "comm": comm,
            "memory-mode": ("hard", "ignore", "overflow"),
        }
    ):
        cases.append((FLAT, f"-k 3 --micro-batches 4 {words}", ()))
    cases.append((FLAT, "-k 3 --micro-batches 4 --overlap-sync", ("schedule -n 2",)))
    for words in options(
        execution=("blocks", "operators"),
        transfers=("tensor", "edge"),
        congestion=("", "device", "channel", "none"),
        **{"memory-model": ("sum", "weights"), "memory-mode": ("hard", "ignore")},
    ):
        late = f"--objective latency --effort 0.1 -k 2 {words}"
        cases += [(GRAPH, late + more, ()) for more in ("", " --charge-io", f" -k 3 {LINKS}")]
    cases += [
        (GRAPH, "-k 2", ("bound", "schedule -n 2 --pareto")),
        (WIDE, "-k 3 --bandwidth 100 --method anneal,slice", ("bound", "schedule -n 2")),
        (WIDER, "-k 4 --bandwidth 1e5 --effort 0.1 --method anneal,slice", (SIMPLE,)),
        (GRAPH, f"-k 3 {LINKS} --charge-io", ("bound --method links", "schedule -n 2")),
        (GRAPH, f"-k 3 --allow-replicas {LINKS}", ("bound",)),
        (GRAPH, f"-k 3 --method exact {LINKS}", ()),
        (GRAPH, "-k 3 --allow-replicas --bandwidth 1e9", ()),
        (GRAPH, "-k 3 --method slice,greedy,placeto --effort 0.01 --memory 90", ()),
        (WIDE, "-k 3 --bandwidth 100 --method slice --max-gap 0.9", (SIMPLE,)),
        (CLUSTERS, f"-k 6 {CLUSTERED}", ()),
        (GRAPH, "-k 3 --method slice,exact", ("schedule -n 2 --transfers non-blocking",)),
        (TRAINING, "-k 3", ("bound", "schedule -n 3 --split-backward")),
        (CHAIN, "--objective latency --execution operators", ("bound",)),
        (CHAIN, "-k 2 --method placeto --effort 0.01", (SIMPLE,)),
        (DECODER, "-k 2 --layers-per-stage 2,2 --speed gpu/1=0.5", ("bound", "schedule -n 2")),
        (DECODER, "-k 4 --cut-before layers.1 --pin lm_head=gpu/1 --together mask --exactly 3", ()),
        (DECODER, "-k 3 --apart layers.0,layers.3 --memory gpu/0=1K", ()),
        (PHASED, "-k 2 --objective latency", ()),
    ]
    found = []
    for graph, words, later in cases:
        data = graph
        for command in (f"partition {words}", *later):
            name, *rest = command.split()
            result = dnnp(name, "-q", *rest, stdin=data)
            if result.status:
                break
            data = result.out
        if data is not graph:
            found.append((f"{words} {later}", data))
    shared = dnnp("partition", "-q", "--shared-stages", "2", stdin=shapes.shape_stream("M"))
    found.append(("shared", dnnp("schedule", "-q", "-n", "3", stdin=shared.out).out))
    shape = dnnp("schedule", "-q", "--shape", "V", "--devices", "2", "-n", "3", "--transfers",
                 "blocking", "--split-backward", "--pareto")  # fmt: skip
    return [*found, ("shape", shape.out)]


def test_all_that_commands_write_is_covered() -> None:
    """And their streams have every mode of the format in them, but for what brings about itself."""
    seen = set()
    for words, data in written():
        result = dnnp("check", "-q", stdin=data)
        assert result.status in (0, 4), (words, result.err)
        for record in records_in(data):
            if record["type"] in KINDS:
                seen |= {(record["type"], *one) for one in modes_in(record)}
    wanted = {
        (kind, name, mode)
        for kind in KINDS
        for name, spec in fields_of(RECORDS[kind])
        for mode in modes_of(spec)
    }
    assert wanted - seen - UNREACHED == set()


def modes_in(record: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, str | bool):
                yield within + name, row
            elif isinstance(row, dict):
                yield from modes_in(row, f"{within}{name}.")


@pytest.mark.parametrize("kind", KINDS)
def test_other_fields_are_named_and_not_checkable(kind: str) -> None:
    """Of a record and of every object inside; those that begin with x_ are free."""
    counted = 0
    for where, data in written():
        if not any(mark in where for mark in ("bound", "shape", "shared", "operators", "slice,")):
            continue
        records = records_in(data)
        number = next((i for i, r in enumerate(records) if r["type"] == kind), None)
        if number is None:
            continue
        for path in set(objects_in(records[number])):
            if path[:1] == ("certificate",) and "checkable" in records[number]["certificate"]:
                continue
            if path[-1:] == ("weights",):  # by the names of devices
                continue
            assert with_field(records, number, path, "x_note").status in (0, 4), (where, path)
            result = with_field(records, number, path, "spill")
            assert result.status in (4, 9), (where, path)
            field = ".".join((*path, "spill"))
            assert f"not checkable: no check covers the field '{field}" in result.err
            counted += 1
    assert counted > 0


def objects_in(record: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths to the objects of a record, the first of each list."""
    yield path
    for name, value in record.items():
        row = value[0] if isinstance(value, list) and value else value
        if isinstance(row, dict):
            yield from objects_in(row, (*path, name))


def with_field(records: list[Any], number: int, path: tuple[str, ...], name: str) -> Any:
    """Message of dnnp-check if the object at a path has one field more."""
    changed = copy.deepcopy(records)
    place = changed[number]
    for step in path:
        place = place[step][0] if isinstance(place[step], list) else place[step]
    place[name] = {"deep": [1, "two"]}
    return dnnp("check", "-q", stdin=seeds.encode(changed))


def test_records_of_other_types_are_free() -> None:
    records = [*records_in(written()[0][1]), {"type": "note", "text": "mine"}]
    assert dnnp("check", stdin=seeds.encode(records)).status == 0


TOGETHER = {
    "links": {"links": [{"from": "acc/0", "to": "acc/1", "bandwidth_bytes_per_s": 1.0,
                         "latency_s": 9.0}]},
    "ways": {"ways": [{"way": "whole", "reason": "none"}]},
    "memory_mode": {"memory_mode": "overflow"},
    "memory_model": {"memory_model": "peak"},
    "charge_io": {"charge_io": True},
    "objective": {"objective": "gpipe"},
    "execution": {"execution": "blocks"},
    "max_replicas": {"max_replicas": 2},
    "planned_by": {"planned_by": "classes"},
}  # fmt: skip


@pytest.mark.parametrize("field", TOGETHER)
def test_what_parallel_plans_do_not_price_is_not_checkable(field: str) -> None:
    """Each field is one of the format, and of other plans; with status 9, or 3 where false, too."""
    made = dnnp("partition", "-q", "-k", "3", "--micro-batches", "4", stdin=FLAT)
    records = [{**r, **TOGETHER[field]} if r["type"] == "plan" else r for r in records_in(made.out)]
    result = dnnp("check", "-q", stdin=seeds.encode(records))
    assert result.status in (3, 9)
    assert f"no check covers the field '{field}'" in result.err
    assert "of a parallel plan" in result.err


@pytest.mark.parametrize(
    ("graph", "words", "changes"),
    [
        (TRAINING, "-k 2", {"memory_model": "peak"}),
        (GRAPH, "-k 2", {"memory_model": "weights"}),
        (GRAPH, "-k 2", {"bound_method": "simple"}),
        (FLAT, "-k 3 --objective gpipe --memory 200", {"memory_mode": "overflow"}),
        (GRAPH, "-k 2 --objective latency --execution operators", {"comm": "duplex"}),
        (GRAPH, "-k 2 --objective latency --execution blocks", {"congestion": "none"}),
        (GRAPH, "-k 2 --objective latency --execution blocks", {"max_replicas": 2}),
        (GRAPH, "-k 2 --objective latency --execution operators", {"charge_io": True}),
    ],
)
def test_what_others_do_not_price(graph: bytes, words: str, changes: dict[str, Any]) -> None:
    made = dnnp("partition", "-q", *words.split(), stdin=graph)
    assert made.status == 0, made.err
    records = [{**r, **changes} if r["type"] == "plan" else r for r in records_in(made.out)]
    result = dnnp("check", "-q", stdin=seeds.encode(records))
    assert result.status in (3, 9)
    assert f"no check covers the field '{next(iter(changes))}'" in result.err


def test_fields_of_stages_of_other_plans_are_not_checkable() -> None:
    records = records_in(dnnp("partition", "-q", "-k", "2", stdin=GRAPH).out)
    for field, value in {"shards": 2, "in_flight": 3, "begin_s": 0.0, "recomputed": []}.items():
        changed = [{**r, field: value} if r["type"] == "stage" else r for r in records]
        result = dnnp("check", "-q", stdin=seeds.encode(changed))
        assert f"no check covers the field '{field}'" in result.err
        assert result.status == 9
        assert len(result.err.splitlines()) == 1


def resealed(records: list[Any], **changes: Any) -> bytes:
    """The stream with other fields in its bound, and a digest that fits."""
    plan = next(r for r in records if r["type"] == "plan")
    stages = [r for r in records if r["type"] == "stage"]
    digest = {"digest": bound_digest(plan, stages)}
    return seeds.encode(
        [{**r, **digest, **changes} if r["type"] == "bound" else r for r in records]
    )


SHARDED = [
    {"devices": 1, "time_s": {"acc": 1.0}},
    {"devices": 2, "time_s": {"acc": 0.1}},
]


@cache
def parallel_bound() -> tuple[Any, ...]:
    """Two nodes that take 0.1 s each on two devices, split without, and a bound of such splits."""
    records = [
        seeds.header(),
        {"type": "device", "class": "acc", "kind": "accelerator", "bandwidth_bytes_per_s": 1e9},
        seeds.tensor(0, "input", 8),
        seeds.tensor(1, "activation", 8),
        seeds.tensor(2, "activation", 8),
        *(seeds.node(i, [i], [i + 1], 1.0, shards=SHARDED) for i in (0, 1)),
    ]
    plain = dnnp("partition", "-q", "-k", "2", stdin=seeds.encode(records))
    (bound,) = (
        r
        for r in records_in(dnnp("bound", "-q", "--method", "simple", stdin=plain.out).out)
        if r["type"] == "bound"
    )
    made = dnnp("partition", "-q", "-k", "2", "--micro-batches", "4", stdin=seeds.encode(records))
    plan = records_in(made.out)
    for record in plan:
        if record["type"] == "plan":
            record |= {"bound": bound["value"], "status": "feasible"}
            record["gap"] = (record["value"] - bound["value"]) / record["value"]
            record["parallel"] |= {"tensor_parallel": 2}
            bound |= {"gap": record["gap"], "status": "proven"}
    return (*plan, bound)


def test_certificates_that_know_no_parallel_plans_are_not_accepted_for_them() -> None:
    data = resealed(list(parallel_bound()))
    result = dnnp("check", stdin=data)
    assert result.status == 0, result.err
    assert "(bound stated, not checked)" in result.err
    result = dnnp("check", "--certificate", stdin=data)
    assert result.status == 9
    assert "is not checkable; there are no certificates for such plans" in result.err
    bare = [{k: v for k, v in r.items() if k != "certificate"} for r in records_in(data)]
    result = dnnp("check", "--certificate", stdin=seeds.encode(bare))
    assert result.status == 6
    assert "is no bound: there is a plan with the value 0.2" in result.err


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_parallel": 4},
        {"micro_batches": 8},
        {"weight_sync": "server"},
        {"recompute": "auto"},
    ],
)
def test_a_bound_is_of_what_parallel_plans_may_use(change: dict[str, Any]) -> None:
    records = records_in(resealed(list(parallel_bound())))
    for record in records:
        if record["type"] == "plan":
            record["parallel"] |= change
    result = dnnp("check", "-q", stdin=seeds.encode(records))
    assert result.status == 3
    assert "bound: was proven for another plan" in result.err


@pytest.mark.parametrize("over", [1e-13, 1e-11, 1e-10])
def test_memory_fits_for_the_checker_as_for_the_search(over: float) -> None:
    """Memory that a search may not fill is no plan's: else a bound is above an accepted split."""
    need = 100.0
    records = [
        seeds.header(),
        {"type": "device", "class": "acc", "kind": "accelerator", "count": 2,
         "memory_bytes": need / (1 + over), "bandwidth_bytes_per_s": 1.0},
        seeds.tensor(0, "activation", 9.0),
        seeds.node(0, [], [0], 1.0, memory_bytes=need / 2),
        seeds.node(1, [0], [], 1.0, memory_bytes=need / 2),
    ]  # fmt: skip
    found, free = (
        records_in(dnnp("partition", "-q", "--memory-mode", mode, stdin=seeds.encode(records)).out)
        for mode in ("hard", "ignore")
    )
    fits = sum(r["type"] == "stage" for r in found) == 1
    assert fits == (over < MEMORY)
    (plan,) = (r for r in free if r["type"] == "plan")
    assert fits == ("excess_bytes" not in plan) == (plan["status"] == "optimal")
    plan.pop("excess_bytes", None)
    plan |= {"memory_mode": "hard", "status": "optimal", "bound": plan["value"], "gap": 0.0}
    assert dnnp("check", stdin=seeds.encode(free)).status == (0 if fits else 4)


def test_what_a_stage_on_one_device_does_not_exchange_is_not_stated() -> None:
    made = dnnp("partition", "-q", "-k", "3", "--data-parallel", "2", stdin=FLAT)
    records = [
        {**r, "collective_s": 5.0} if r["type"] == "stage" else r for r in records_in(made.out)
    ]
    result = dnnp("check", "-q", stdin=seeds.encode(records))
    assert result.status == 3
    assert "collective_s is 5.0, recomputed 0" in result.err
