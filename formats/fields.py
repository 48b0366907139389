"""Typed fields of JSON records, declared once: for reader, writer, schema, manual and checks.

`table` reads a declaration. A `Field` says what a value must be. `fault` asks it about whole
columns of records at once, which is what makes reading fast; `describe_fault` finds the words for
one record that failed; `object_schema` says the same as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

MAX_ID = 2**53 - 1
"""Ids stay exact in tools that read JSON numbers as doubles."""
MAX_NUMBER = 1e100
"""Large enough for any unit, small enough that sums stay finite."""
MIN_POSITIVE = 1e-100
"""Least rate: small enough for any unit, large enough that quotients stay finite."""


@dataclass(frozen=True)
class Field:
    """One field of a record."""

    type: str
    """id, int, number, string, bool, list, map (of items, by name), object; a `size` is a number,
    a name, or null where neither is known; a `place` is an id or one of `enum`."""
    doc: str
    required: bool = False
    enum: tuple[str, ...] = ()
    const: int | str | None = None
    most_of: int | None = None
    """Numbers: the largest one; None: none beyond what all numbers have."""
    positive: bool = False
    """Numbers: at least `MIN_POSITIVE`; integers: at least 1."""
    signed: bool = False
    """Numbers: below zero is allowed."""
    pattern: str = ""
    unique: bool = False
    """Lists: no value twice."""
    items: Field | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    open: bool = False
    """Objects: what is not among the fields belongs to it, too."""
    covered: tuple[str, ...] = ()
    """Parts of the checks that compare it, or of which nothing follows; see `PARTS`."""

    @property
    def inner(self) -> Mapping[str, Field]:
        """Fields of the object that it is, or of each in its list."""
        return self.fields or (self.items.inner if self.items is not None else {})

    @property
    def modes(self) -> tuple[bool | str, ...]:
        """Its values, if there are few."""
        return (False, True) if self.type == "bool" else self.enum

    def admits(self, values: Iterable[Any]) -> bool:
        """Test whether every one of `values` fits; whole columns are cheap to ask about."""
        return _CHECKS[self.type](self, values if isinstance(values, list) else list(values))

    @property
    def least(self) -> float:
        """Least value of a number that has no sign."""
        if not self.positive:
            return 0
        return 1 if self.type == "int" else MIN_POSITIVE

    @property
    def most(self) -> float:
        """Largest value of a number."""
        if self.most_of is not None:
            return self.most_of
        return MAX_NUMBER if self.type == "number" else MAX_ID

    def refusal(self, value: Any) -> str:
        """The reason why a value does not fit, for messages."""
        numbers = {"int": (int,), "number": (int, float)}
        if type(value) in numbers.get(self.type, ()) and self.const is None:
            if value > self.most:
                return f"{shown(value)} is above the maximum {self.most}"
            if self.signed and value < -self.most:
                return f"{shown(value)} is below the minimum {-self.most}"
        return f"{shown(value)} is not {self.expected()}"

    def expected(self) -> str:
        """Description of a value that fits, for messages."""
        if self.const is not None:
            return repr(self.const)
        if self.type == "place":
            return "an id, or one of " + ", ".join(self.enum)
        if self.enum:
            return "one of " + ", ".join(self.enum)
        if self.type in ("number", "int"):
            name = "an integer" if self.type == "int" else "a number"
            return name if self.signed else f"{name} of at least {self.least}"
        if self.items is not None:
            many = "a list" if self.type == "list" else "an object"
            unique = ", none twice" if self.unique else ""
            return f"{many} whose values are each {self.items.expected()}{unique}"
        if self.pattern:
            return f"a string that matches {self.pattern}"
        names = {
            "id": f"an integer from 0 to {MAX_ID}",
            "size": "a size, a name or null",
            "string": "a string",
            "bool": "true or false",
        }
        return names.get(self.type, "an object")


def _check_size(spec: Field, values: list[Any]) -> bool:
    return _check_number(spec, [v for v in values if v is not None and type(v) is not str])


def _check_place(spec: Field, values: list[Any]) -> bool:
    return _check_number(spec, [v for v in values if type(v) is not str or v not in spec.enum])


def _check_number(spec: Field, values: list[Any]) -> bool:
    allowed = {int, float} if spec.type == "number" else {int}
    if not set(map(type, values)) <= allowed:
        return False
    if not values:
        return True
    least = min(values)
    low = -spec.most <= least if spec.signed else least >= spec.least
    return low and max(values) <= spec.most and (spec.const is None or set(values) == {spec.const})


def _check_string(spec: Field, values: list[Any]) -> bool:
    if not set(map(type, values)) <= {str}:
        return False
    if spec.pattern:
        import re

        return all(re.search(spec.pattern, v) for v in values)
    if spec.const is not None:
        return set(values) <= {spec.const}
    return not spec.enum or set(values) <= set(spec.enum)


def _check_bool(spec: Field, values: list[Any]) -> bool:
    return set(map(type, values)) <= {bool}


def _check_list(spec: Field, values: list[Any]) -> bool:
    if not set(map(type, values)) <= {list}:
        return False
    if spec.items is not None and not spec.items.admits(list(chain.from_iterable(values))):
        return False
    return not spec.unique or sum(map(len, map(set, values))) == sum(map(len, values))


def _check_map(spec: Field, values: list[Any]) -> bool:
    return set(map(type, values)) <= {dict} and (
        spec.items is None or spec.items.admits([x for v in values for x in v.values()])
    )


def _check_object(spec: Field, values: list[Any]) -> bool:
    return set(map(type, values)) <= {dict} and fault(spec.fields, values) is None


_CHECKS = {
    "id": _check_number,
    "size": _check_size,
    "place": _check_place,
    "int": _check_number,
    "number": _check_number,
    "string": _check_string,
    "bool": _check_bool,
    "list": _check_list,
    "map": _check_map,
    "object": _check_object,
}


def fault(
    fields: Mapping[str, Field],
    records: list[dict[str, Any]],
    present: set[str] | None = None,
    full: dict[str, list[Any]] | None = None,
) -> str | None:
    """Name of a field that some record lacks or has wrong; None if all records fit.

    `present` are the names in all records together, where the caller has them; to `full` the values
    of fields are added that all records have.
    """
    present = set().union(*records) if present is None else present
    for name, spec in fields.items():
        if not spec.required and name not in present:
            continue
        try:
            column = [r[name] for r in records]
            if full is not None:
                full[name] = column
        except KeyError:
            if spec.required:
                return name
            column = [r[name] for r in records if name in r]
        if not spec.admits(column):
            return name
    return None


def describe_fault(fields: Mapping[str, Field], record: dict[str, Any]) -> tuple[str, str] | None:
    """(field, reason) of the first fault of one record, or None; descends into objects."""
    name = fault(fields, [record])
    if name is None:
        return None
    spec = fields[name]
    if name not in record:
        return name, "is missing"
    value = record[name]
    if spec.type == "object" and isinstance(value, dict):
        inner = describe_fault(spec.fields, value)
        if inner is not None:
            return f"{name}.{inner[0]}", inner[1]
    if spec.items is not None and isinstance(value, list | dict):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in pairs:
            if spec.items.admits([item]):
                continue
            where = f"{name}.{key}" if isinstance(value, dict) else f"{name}[{key}]"
            if spec.items.type == "object" and isinstance(item, dict):
                inner = describe_fault(spec.items.fields, item)
                if inner is not None:
                    return f"{where}.{inner[0]}", inner[1]
            return where, spec.items.refusal(item)
    return name, spec.refusal(value)


def shown(value: object) -> str:
    """A value for a message: as JSON, cut to a readable length."""
    names = {None: "null (a NaN that went through jq?)", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return names[value]
    try:
        text = ascii(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def object_schema(fields: Mapping[str, Field]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _field_schema(spec) for name, spec in fields.items()},
    }
    required = [name for name, spec in fields.items() if spec.required]
    return {**schema, "required": required} if required else schema


def _field_schema(spec: Field) -> dict[str, Any]:
    schema: dict[str, Any]
    if spec.type == "object":
        schema = object_schema(spec.fields)
    elif spec.type == "list":
        schema = {"type": "array"}
        if spec.items is not None:
            schema["items"] = _field_schema(spec.items)
        if spec.unique:
            schema["uniqueItems"] = True
    elif spec.type == "map":
        schema = {"type": "object"}
        if spec.items is not None:
            schema["additionalProperties"] = _field_schema(spec.items)
    elif spec.type == "id":
        schema = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
    elif spec.type == "size":
        schema = {"type": ["integer", "string", "null"], "minimum": 0, "maximum": MAX_ID}
    elif spec.type == "place":
        schema = {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": list(spec.enum)}]}
    elif spec.type in ("int", "number"):
        schema = {"type": "integer" if spec.type == "int" else "number", "maximum": spec.most}
        schema["minimum"] = -spec.most if spec.signed else spec.least
    else:
        schema = {"type": {"string": "string", "bool": "boolean"}[spec.type]}
    if spec.enum and spec.type != "place":
        schema["enum"] = list(spec.enum)
    if spec.const is not None:
        schema["const"] = spec.const
    if spec.pattern:
        schema["pattern"] = spec.pattern
    if spec.doc:
        schema["description"] = spec.doc
    return schema


PARTS = ("stages", "parallel", "blocks", "operators")
"""Parts of the checks: plans with stages on devices of their own, parallel plans, and those
for the latency of blocks and of operators."""

HEX = "^[0-9a-f]{64}$"

DEEPER = 4
"""Spaces before the fields of an object, besides those before it; text that goes on has more."""


def table(text: str, **known: Mapping[str, Field]) -> dict[str, Field]:
    """Fields from lines `name: type @parts -- doc`, those of objects below them.

    A name that ends in `?` may be absent. `@` names the parts of the checks that cover the field,
    or all of them. Types are those of `Field`, `digest` (64 hexadecimal digits), `positive T`,
    `signed T`, `list of T`, `set of T` (a list with no value twice), `map of T`, `open object`,
    `int to N` (from 1), `= constant`, modes as `a|b|c`, and names in `known` of objects with these
    fields.
    A line `+ NAME` stands for the fields that are known by that name.

    >>> table("size?: positive number @all -- what it takes")["size"].expected()
    'a number of at least 1e-100'
    """
    rows: list[tuple[int, str]] = []
    for line in filter(str.strip, text.splitlines()):
        indent = len(line) - len(line.lstrip())
        if rows and indent > rows[-1][0] + DEEPER:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}"
        else:
            rows.append((indent, line.strip()))
    top: dict[str, Field] = {}
    inside = {rows[0][0]: top}
    for indent, row in rows:
        if row.startswith("+ "):
            inside[indent].update(known[row[2:]])
            continue
        head, _, doc = row.partition(" -- ")
        name, _, kind = head.partition(": ")
        kind, _, parts = kind.partition(" @")
        inner: dict[str, Field] = {}
        inside[indent][name.removesuffix("?")] = replace(
            _field(kind, inner, known),
            doc=doc,
            required=not name.endswith("?"),
            covered=PARTS if parts == "all" else tuple(filter(None, parts.split(","))),
        )
        inside[indent + DEEPER] = inner
    return top


def tables(text: str, **known: Mapping[str, Field]) -> dict[str, Mapping[str, Field]]:
    """Tables of a text, each below its name and parted by empty lines; later ones know the others.

    >>> list(tables("POINT\\n    x: number -- across\\n\\nline\\n    ends: list of POINT -- both"))
    ['POINT', 'line']
    """
    found: dict[str, Mapping[str, Field]] = {}
    for part in text.split("\n\n"):
        name, _, lines = part.partition("\n")
        found[name] = table(lines, **known, **found)
    return found


def _field(
    kind: str, inner: Mapping[str, Field], known: Mapping[str, Mapping[str, Field]]
) -> Field:
    """A field of a type; `inner` are the fields below it, if it is an object."""
    first, _, rest = kind.partition(" ")
    if kind in known:
        return Field("object", "", fields=known[kind])
    if kind in ("object", "open object"):
        return Field("object", "", fields=inner, open=kind == "open object")
    if first in ("list", "set", "map"):
        items = _field(rest.removeprefix("of "), inner, known)
        return Field("map" if first == "map" else "list", "", unique=first == "set", items=items)
    if kind.startswith("int to "):
        return Field("int", "", positive=True, most_of=int(kind.removeprefix("int to ")))
    if first in ("positive", "signed"):
        return Field(rest, "", positive=first == "positive", signed=first == "signed")
    if first == "=":
        number = rest.isdecimal()
        return Field("int" if number else "string", "", const=int(rest) if number else rest)
    if kind == "digest":
        return Field("string", "", pattern=HEX)
    if kind in _CHECKS:
        return Field(kind, "")
    modes = tuple(kind.split("|"))
    return (
        Field("place", "", enum=modes[1:]) if modes[0] == "id" else Field("string", "", enum=modes)
    )


ATTRIBUTES = {
    "class": "device_class", "cluster_size": "size", "from": "source", "parallel": "hybrid",
    "pass": "block", "policy": "learned", "starts_s": "start_s", "to": "target", "way": "name",
}  # fmt: skip
"""Field -> attribute of objects in Python, where that cannot or does not have the same name."""

T = TypeVar("T")


class Form(Generic[T]):
    """Records as objects of a class, and back.

    Parameters
    ----------
    kind
        A dataclass, or a tuple with names; its attributes are among the fields, or computed.
    fields
        The fields of its records. Optional ones are not written where they are as by default, or
        None.
    always
        Optional fields that are written though.
    parts
        Field -> the form of its objects.
    """

    def __init__(
        self,
        kind: type[T],
        fields: Mapping[str, Field],
        always: Sequence[str] = (),
        **parts: Form[Any],
    ) -> None:
        self._kind, self._parts, self._rows = kind, parts, []
        defaults = getattr(kind, "_field_defaults", vars(kind))
        for name, spec in fields.items():
            attribute = name if _has(kind, name) else ATTRIBUTES.get(name, name)
            if _has(kind, attribute):
                kept = spec.required or name in always
                default = _ALWAYS if kept else defaults.get(attribute)
                self._rows.append((name, attribute, spec, default))

    def read(self, record: Mapping[str, Any], **more: object) -> T:
        """The object of a record; `more` are attributes that no field has."""
        known = self._kind.__annotations__
        values = {
            attribute: self._value(name, spec, record[name])
            for name, attribute, spec, _ in self._rows
            if name in record and attribute in known
        }
        return self._kind(**values | more)

    def write(self, value: T, always: Sequence[str] = ()) -> dict[str, Any]:
        """The record of an object, but for its type and what the class does not have."""
        found = ((row, getattr(value, row[1])) for row in self._rows)
        return {
            name: self._plain(name, part)
            for (name, _, _, default), part in found
            if part is not None and (default is _ALWAYS or part != default or name in always)
        }

    def _value(self, name: str, spec: Field, value: Any) -> Any:
        """A value of a record as one of Python."""
        if name in self._parts:
            read = self._parts[name].read
            return read(value) if spec.type == "object" else tuple(map(read, value))
        if spec.type == "list" and spec.items is not None:
            if spec.items.type == "list":
                return tuple(map(tuple, value))
            return tuple(map(float, value)) if spec.items.type == "number" else tuple(value)
        return float(value) if spec.type == "number" else value

    def _plain(self, name: str, value: Any) -> Any:
        """A value of Python as one of a record."""
        part = self._parts.get(name)
        if hasattr(value, "tolist"):  # an array
            return value.tolist()
        if type(value) is not tuple:
            value = value if part is None else part.write(value)
            return value.tolist() if hasattr(value, "tolist") else value
        if part is not None:
            return list(map(part.write, value))
        return [list(x) if type(x) is tuple else x for x in value]


def _has(kind: type, attribute: str) -> bool:
    return attribute in kind.__annotations__ or hasattr(kind, attribute)


_ALWAYS = object()
"""Default of fields that are always written."""
