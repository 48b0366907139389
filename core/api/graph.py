"""A graph as Python sees it: what a stream holds, with read-only views of its results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from dnnp.core.model.text import counted
from dnnp.formats.files import whole_file
from dnnp.formats.records import RECORDS
from dnnp.formats.rows import Rows
from dnnp.formats.stream import Stream, read_bytes, write

View = Mapping[str, Any]
"""An immutable record of the stream; its fields are those of dnnp-graph(5)."""

T = TypeVar("T", covariant=True)


class _Typed(Protocol[T]):
    """Attribute of type T that can only be read."""

    def __get__(self, view: object, owner: type | None = None) -> T: ...


def _field(path: str, kind: Callable[[Any], T], default: object = None) -> _Typed[T]:
    """Property that is one field of `record`, as a value of one type, by its declaration."""
    table, _, name = path.partition(".")
    says = RECORDS[table][name].doc
    made: Any = property(lambda view: kind(view.record.get(name, default)), doc=f"{says}.")
    return made


def _maybe(kind: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Read a field that may be absent, as None."""
    return lambda value: None if value is None else kind(value)


def _listed(kind: str, says: str) -> _Typed[tuple[View, ...]]:
    """Property that is all records of a type."""
    made: Any = property(lambda graph: graph.records(kind), doc=says)
    return made


@dataclass(frozen=True)
class Stage:
    """A stage of a plan."""

    record: View

    device = _field("stage.device", str)
    replicas = _field("stage.replicas", int, 1)
    nodes = _field("stage.nodes", tuple[int, ...])
    load = _field("stage.load_s", float)
    memory = _field("stage.memory_bytes", float)


@dataclass(frozen=True)
class Plan:
    """A split of the graph over devices."""

    record: View
    stages: tuple[Stage, ...]
    """In the order of the pipeline."""

    def __repr__(self) -> str:
        stages = counted(len(self.stages), "stage")
        return f"<plan of {stages}: {self.objective} {self.value:.6g}, {self.status}>"

    objective = _field("plan.objective", str)
    value = _field("plan.value", float)
    bound = _field("plan.bound", float)
    gap = _field("plan.gap", float)
    status = _field("plan.status", str)
    method = _field("plan.method", str)
    validity = _field("plan.validity", str)
    tokens_per_s = _field("plan.tokens_per_s", _maybe(float))
    ttft_s = _field("plan.ttft_s", _maybe(float))
    tpot_s = _field("plan.tpot_s", _maybe(float))
    in_flight = _field("plan.in_flight", _maybe(int))


@dataclass(frozen=True)
class Bound:
    """A lower bound for every split of the plan's validity."""

    record: View

    def __repr__(self) -> str:
        return f"<bound {self.value:.6g} by {self.method}: {self.status}>"

    value = _field("bound.value", float)
    gap = _field("bound.gap", float)
    method = _field("bound.method", str)
    status = _field("bound.status", str)


@dataclass(frozen=True)
class Schedule:
    """Start and end of every micro-batch in every stage."""

    record: View
    blocks: tuple[View, ...]
    """Records of the blocks."""

    def __repr__(self) -> str:
        return (
            f"<schedule of {self.micro_batches} micro-batches by {self.method}: makespan "
            f"{self.makespan:.6g}, bubble {self.bubble:.3g}>"
        )

    micro_batches = _field("schedule.micro_batches", int)
    makespan = _field("schedule.makespan_s", float)
    bound = _field("schedule.bound_s", float)
    bubble = _field("schedule.bubble", float)
    method = _field("schedule.method", str)


class Graph:
    """A model's graph, with what was found about it: costs, groups, a plan and so on.

    It is what the commands send each other; steps leave it alone and return another one.

    Parameters
    ----------
    stream
        Its records. They must not be changed afterwards.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __repr__(self) -> str:
        found = [counted(len(self.nodes), "node"), counted(len(self.groups), "group")]
        if self.plan is not None:
            found.append(f"plan of {counted(len(self.plan.stages), 'stage')}")
        return f"<dnnp.Graph {self.name}: {', '.join(found)}>"

    def _repr_html_(self) -> str:
        """Show the loads of the stages and their table in a notebook, or a line."""
        from dnnp.core.methods import imported

        return str(imported("dnnp.viewing:notebook")(self))

    def table(
        self, name: str = "stages", *, digits: int | None = None
    ) -> dict[str, list[str | int | float | None]]:
        """A table as columns, which pandas and polars take: `pandas.DataFrame(graph.table())`.

        Parameters
        ----------
        name
            `stages`, `nodes`, `cuts`, `bounds`, `runs`, `schedule`, `plans` or `tried`.
        digits
            Significant digits to which numbers are rounded; None: exact.

        Raises
        ------
        UsageError
            There is no such table.
        FormatError
            The graph is malformed.
        """
        from dnnp.core.methods import imported

        found: dict[str, list[str | int | float | None]]
        found = imported("dnnp.viewing:columns")(self._stream, name, digits)
        return found

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self._stream.header["model"])

    def records(self, kind: str) -> tuple[View, ...]:
        """Records of a type, such as `device` or `run`; see dnnp-graph(5)."""
        return tuple(map(MappingProxyType, self._stream.get(kind)))

    @property
    def header(self) -> View:
        """Source of the graph, and every step that it went through."""
        return MappingProxyType(self._stream.header)

    nodes = _listed("node", "The operators.")
    tensors = _listed("tensor", "Tensors that the operators read and write.")
    groups = _listed(
        "group", "Groups of nodes that stay together; empty where every node is one by itself."
    )

    @property
    def plan(self) -> Plan | None:
        """The split, if there is one."""
        return next((Plan(record, self.stages) for record in self.records("plan")), None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the plan; empty where there is none."""
        return tuple(map(Stage, self.records("stage")))

    @property
    def bound(self) -> Bound | None:
        """The proof about the plan, if there is one."""
        return next(map(Bound, self.records("bound")), None)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, if there is one."""
        blocks = self.records("block")
        return next((Schedule(record, blocks) for record in self.records("schedule")), None)

    runs = _listed("run", "Records of its runs.")

    def stream(self) -> Stream:
        """A copy of what it holds, to be changed."""
        own = self._stream
        return Stream(
            header=dict(own.header),
            records={
                kind: rows.copy() if isinstance(rows, Rows) else list(map(dict, rows))
                for kind, rows in own.records.items()
            },
            other=list(own.other),
            name=own.name,
            lines=dict(own.lines),
        )

    def to_bytes(self) -> bytes:
        """The stream, as a command writes it."""
        file = BytesIO()
        write(self._stream, file)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "<stream>") -> Graph:
        """The graph of a stream; `name` is for messages.

        Raises
        ------
        FormatError
            The stream is malformed; the message names line and field.
        """
        return cls(read_bytes(data, name))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stream to a file, atomically.

        Raises
        ------
        InputFileError
            The file cannot be written.
        """
        with whole_file(path) as file:
            file.write(self.to_bytes())
