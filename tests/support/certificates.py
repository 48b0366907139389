"""Certificates in tests: what the checker says of one, and ways to spoil it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dnnp.core.bounds.lower_bound import LowerBound, Whole, whole_of
from dnnp.core.certificates.certificate import REFUTED, check_certificate
from support.cases import Case

UNKNOWN = 10**9
"""An id that nothing has."""

Json = Any


@dataclass
class Made:
    """A certificate with all that it speaks of."""

    case: Case
    validity: str
    record: dict[str, Json]

    @classmethod
    def of(cls, case: Case, validity: str, claim: LowerBound) -> Made:
        """Bound and certificate of a case as they would stand in a stream."""
        certificate = json.loads(json.dumps(claim.certificate))
        record = {"value": claim.value, "validity": validity, "certificate": certificate}
        return cls(case, validity, record)

    @property
    def certificate(self) -> dict[str, Json]:
        return self.record["certificate"]

    def altered(self, *path: int | str, to: Json) -> Json:
        """A copy of the record with another value at a path in its certificate."""
        record = deepcopy(self.record)
        place = record["certificate"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to
        return record

    def verdict(self, record: object) -> str:
        """The checker's verdict; one that is not bad has no violations, and vice versa."""
        case = self.case
        report = check_certificate(case.graph, case.units, case.devices, case.options, record)
        assert (report.verdict == REFUTED) == bool(report.violations)
        return report.verdict


def instance(made: Made) -> Whole:
    case = made.case
    return whole_of(case.problem, made.validity)


def above(made: Made, most: int) -> Iterator[Json]:
    """The value, and what is said to be proven, are more than the most that is proven."""
    one = made.certificate["quantum"]
    yield {**deepcopy(made.record), "value": made.record["value"] + one}
    yield {**made.altered("units", to=most + 1), "value": (most + 1) * one}
    # Half the quantum makes the same number of quanta worth half of the value.
    yield made.altered("quantum", to=one / 2)


def malformed(made: Made) -> Iterator[Json]:
    """Fields of another type, missing, or out of range."""
    for name in list(made.certificate):
        record = deepcopy(made.record)
        del record["certificate"][name]
        yield record
        for value in (None, "1", [], {}, -1, math.nan, True):
            if isinstance(value, list) and isinstance(made.certificate[name], list):
                continue  # what an empty list leaves out is looked at elsewhere
            yield made.altered(name, to=value)
    for name, value in (
        ("value", math.nan),
        ("value", math.inf),
        ("value", "1"),
        ("value", None),
        ("validity", "strong"),
        ("validity", None),
        ("certificate", 7),
        ("certificate", [[]]),
    ):
        yield {**deepcopy(made.record), name: value}
    yield made.altered("argument", to="none of them")


def bad_flows(
    made: Made, flows_of: Callable[[Json], Json], source: int | None = None
) -> Iterator[Json]:
    """Flows that break a rule; `source`: the item whose push is all of the bound beside its work.

    `flows_of` finds them in a certificate.
    """
    whole = instance(made)
    always = dict(zip(whole.tensors.tolist(), whole.nets.always.tolist(), strict=True))
    for number, (tensor, amounts) in enumerate(flows_of(made.certificate)):

        def changed(change: Callable[[Json], object], number: int = number) -> Json:
            record = deepcopy(made.record)
            change(flows_of(record["certificate"])[number])
            return record

        def more(row: Json) -> None:
            row[1][0][1] += 2**50  # above any cost; or in and out differ

        def rename(row: Json) -> None:
            row[1][0][0] = UNKNOWN

        def fraction(row: Json) -> None:
            row[1][0][1] += 0.5

        def repeat(row: Json) -> None:
            row[1].append(row[1][0])

        def lose(row: Json) -> None:
            row[1].pop()  # in and out differ by what it was, not 0

        def turn(row: Json) -> None:
            row[1] = [[item, -amount] for item, amount in row[1]]

        yield changed(more)
        yield changed(rename)
        yield changed(fraction)
        yield changed(repeat)
        yield changed(lambda row: row.__setitem__(0, UNKNOWN))
        if not always[tensor]:
            yield changed(lose)
        record = deepcopy(made.record)
        flows_of(record["certificate"]).append(flows_of(record["certificate"])[number])
        yield record  # listed twice: it would be paid twice
        if source is not None and dict(map(tuple, amounts)).get(source, 0) > 0:
            # The source pushes less; the bound was exact.
            yield changed(turn)
            record = deepcopy(made.record)
            del flows_of(record["certificate"])[number]
            yield record


ODD = (
    None, True, -1, 0, 1, 2**64, -(2**70), 10**400, 10**5_000, 0.5, math.nan, math.inf, "", "dev",
    [], {}, [[]], [0, 0],
)  # fmt: skip


def places(value: Json) -> Iterator[tuple[Json, Json]]:
    """Every (container, key) inside a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def spoiled(made: Made, rng: random.Random) -> Json:
    """The record with one or more things in it changed or left out."""
    record = deepcopy(made.record)
    for _ in range(rng.choice((1, 1, 2, 4))):
        container, key = rng.choice(list(places(record)))
        odd = rng.choice(ODD)
        if rng.random() < 0.3:
            del container[key]
        elif isinstance(container[key], int) and rng.random() < 0.6:
            container[key] += rng.choice((-1, 1, 2**40))
        else:
            container[key] = deepcopy(odd)
        if not record:
            break
    return record
