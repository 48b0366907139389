"""Limits of single devices, and rules by name of where nodes go."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from dnnp.callbacks import read_json
from dnnp.core.coarsen.layers import layer_paths, levels, paths_of, scope_path
from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.placing import cut_parts, fed_nodes, fewest_stages, positions, reached
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, Own, with_own
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import PARAMETER, Graph
from dnnp.core.model.placing import FORMS, Rule
from dnnp.core.model.text import counted, instead, scope_of_name
from dnnp.formats.inputs.amounts import parse_limits
from dnnp.formats.stream import Stream
from dnnp.options.split import DeviceOptions, SplitOptions

SINGLE = "single devices (--memory DEVICE=BYTES, --speed, --pin NAME=DEVICE)"


def limits_of(options: DeviceOptions, field: str) -> dict[str, Any]:
    """Device -> its limit, of the options `memory` or `speed`; "" stands for all others."""
    value = getattr(options, field)
    if isinstance(value, str):
        return parse_limits(value, options.rows[field].amount)
    return {} if value is None else {"": float(value)}


def capacity_of(device: DeviceClass, memory: float | str) -> float:
    """Bytes of a capacity, or of `fast` memory; UsageError: the class states none."""
    found = device.fast_memory_bytes if memory == "fast" else float(memory)
    if found is None:
        what = f"class '{device.name}' states no fast_memory_bytes; give --memory BYTES"
        raise UsageError(f"--memory fast: {what}")
    return found


def with_limits(
    devices: tuple[DeviceClass, ...], options: DeviceOptions, rules: Iterable[Rule], *, linked: bool
) -> tuple[DeviceClass, ...]:
    """Device classes, divided where limits or pins tell single devices from others.

    UsageError: there is no such device, a CPU gets a capacity, or there are clusters or links.
    """
    memory, speed = (_by_device(devices, limits_of(options, f)) for f in ("memory", "speed"))
    if "" in speed:
        raise UsageError(f"--speed {speed['']:g}: write DEVICE=X, such as a100/1=0.5")
    known = [d.name for d in devices]
    known += [f"{d.name}/{i}" for d in devices for i in range(min(d.count, 64))]
    own = {rule.device: Own(pinned=rule.device) for rule in rules if "/" in rule.device}
    for name in [name for name in {**memory, **speed} if name]:
        owner, _, number = name.rpartition("/")
        device = next((d for d in devices if d.name == owner), None)
        if device is None or not number.isdecimal() or int(number) >= device.count:
            flag = "--memory" if name in memory else "--speed"
            raise UsageError(f"{flag}: there is no device '{name}'{instead(name, known)}")
        if device.is_cpu and name in memory:
            raise UsageError(f"--memory {name}: a CPU has no capacity")
        room = capacity_of(device, memory[name]) if name in memory else None
        own[name] = Own(room, speed.get(name, 1.0), name * (name in own))
    divided = with_own(devices, own)
    if any(d.members and (d.cluster_size or linked) for d in divided):
        raise UsageError(f"{SINGLE} cannot be told from others in clusters and over links")
    return divided


def _by_device(devices: Iterable[DeviceClass], limits: Mapping[str, Any]) -> dict[str, Any]:
    """Device -> its limit, where that of a class is for each device without one of its own."""
    classes = {d.name: d for d in devices if d.name in limits}
    shared = {f"{c}/{i}": limits[c] for c, d in classes.items() for i in range(d.count)}
    return shared | {name: limit for name, limit in limits.items() if name not in classes}


PARTS = re.compile(r"[^./]+")


class Names:
    """Names of nodes, layers and weights, and the nodes that they stand for."""

    def __init__(self, stream: Stream, graph: Graph) -> None:
        self.graph, self.rows = graph, stream.get("node")
        static = graph.tensor_kind == PARAMETER
        own = [[r["name"], r.get("scope", ""), r.get("layer", "")] for r in self.rows]
        reads = (graph.reads(v) for v in range(graph.n))
        self.kinds = own, [[graph.tensor_names[t] for t in row[static[row]]] for row in reads]

    def find(self, name: str, flag: str) -> tuple[int, ...]:
        """Ids of the nodes, or else of those that read the weights, that a name stands for.

        Its parts, between dots and slashes, are whole parts of theirs, one after the other; `*`
        stands for any letters of a part. UsageError: there are none; it says the nearest names.
        """
        parts = PARTS.findall(name)
        inner = r"[./]+".join(re.escape(part).replace(r"\*", "[^./]*") for part in parts)
        match = re.compile(rf"(?:^|[./]){inner}(?![^./])").search
        for kind in self.kinds if parts else ():
            found = [v for v, names in enumerate(kind) if any(map(match, names))]
            if found:
                return tuple(self.graph.node_ids[found].tolist())
        given = {tuple(PARTS.findall(x)) for kind in self.kinds for row in kind for x in row}
        runs = {".".join(text[i : i + len(parts)]) for text in given for i in range(len(text))}
        near = difflib.get_close_matches(".".join(parts), sorted(runs), 3, 0.5)
        words = "; nearest: " * bool(near) + ", ".join(near)
        raise UsageError(f"{flag}: no node, layer or weight is called '{name}'{words}")

    def layers(self) -> dict[str, list[int]]:
        """Layer with a number -> ids of its nodes, in the order of the graph.

        Where no node tells its layer, the names of the weights that it reads do.
        """
        number, found = re.compile(r"\.\d+\."), dict[str, list[int]]()
        read = [next(filter(number.search, names), "") for names in self.kinds[1]]
        scopes = [scope_path(scope_of_name(name)) for name in read]
        by_weight = layer_paths(scopes, levels(self.graph))
        for paths in (paths_of(self.rows, self.graph, None), by_weight):
            for v in () if found else self.graph.order.tolist():
                if paths[v] and re.search(r"\d", paths[v][-1]):
                    found.setdefault("/".join(paths[v]), []).append(int(self.graph.node_ids[v]))
        return found


def split_by_ids(stream: Stream, graph: Graph, data: bytes, file: str) -> bytes:
    """A split by ids of nodes, of a list of lists of names, or of `{"cuts": [NAME, ...]}`.

    A node that no name stands for goes where it is read first, or else to the last stage; any other
    data stays as it is. UsageError: a name stands for nothing; FormatError: `file` holds no such
    lists, a node is in two stages, or a stage is empty.
    """
    rows, cuts = _named_rows(data, file)
    if not rows:
        return data
    names, home = Names(stream, graph), np.full(graph.n, -1, dtype=np.int64)
    home[fed_nodes(graph)] = 0 if cuts else -1
    for number, name in enumerate(cuts, 1):
        first = np.isin(graph.node_ids, names.find(str(name), "--eval"))
        home[reached(*graph.edges, first, graph.rank)] = number
    for number, row in enumerate(rows):
        for x in row:
            ids = names.find(x, "--eval") if isinstance(x, str) else (x,) * (type(x) is int)
            mine = np.isin(graph.node_ids, ids)
            if not mine.any():
                raise FormatError(f"{x!r} is no name and no node", file, field=f"[{number}]")
            for v in np.flatnonzero(mine & (home >= 0) & (home != number)).tolist():
                reason = f"{x!r}: '{graph.node_names[v]}' is also in [{home[v]}]"
                raise FormatError(reason, file, field=f"[{number}]")
            home[mine] = number
    for v in graph.order[::-1].tolist():
        readers = (home[u] for t in graph.writes(v) for u in graph.readers(t) if home[u] >= 0)
        if home[v] < 0 and not graph.backward[v]:
            home[v] = min(readers, default=len(rows) - 1)
    stages = [graph.node_ids[home == i].tolist() for i in range(len(rows))]
    if [] in stages:
        i = stages.index([])
        ends = ["the inputs", *cuts, "the outputs"]
        where = f" from {ends[i]} to {ends[i + 1]}; cuts go in the graph's order" if cuts else ""
        raise FormatError(f"stage [{i}] is empty{where}", file)
    return json.dumps(stages).encode()


def _named_rows(data: bytes, file: str) -> tuple[list[list[Any]], list[str]]:
    """Stages by name and cuts of a split; no stages: it is by ids, or refused where it is read."""
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError):
        return [], []
    if isinstance(rows, dict) and "cuts" in rows:
        cuts = rows["cuts"]
        if not isinstance(cuts, list) or not cuts or not all(isinstance(x, str) for x in cuts):
            raise FormatError("expected a list of names to cut before", file, field="cuts")
        return [[] for _ in range(len(cuts) + 1)], cuts
    rows = rows if isinstance(rows, list) else []
    if any(isinstance(row, str) for row in rows):
        raise FormatError("expected a list of lists of names, one for each stage", file)
    named = any(isinstance(x, str) for row in rows if isinstance(row, list) for x in row)
    return rows if named and all(isinstance(row, list) for row in rows) else [], []


def rules_of(stream: Stream, graph: Graph, options: SplitOptions) -> tuple[Rule, ...]:
    """The rules that options and their file state.

    UsageError: one is malformed, or a name stands for nothing; FormatError: as of `_rules_in`.
    """
    sources = [{kind: getattr(options, kind.replace("-", "_")) for kind in FORMS}]
    if options.rules is not None:
        data, file = read_json(options.caller, options.rules, "--rules")
        sources.append(_rules_in(data, file))
    texts = [(kind, text) for source in sources for kind, text in _texts(source)]
    names = Names(stream, graph) if texts else None
    return tuple(_rule(kind, text, names) for kind, text in texts if names is not None)


def _rules_in(data: bytes, file: str) -> dict[str, Any]:
    """The rules of a JSON file, as options would say them; raises FormatError."""
    try:
        pairs = json.loads(data, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}", file) from None
    if not isinstance(pairs, tuple):
        raise FormatError(f"expected an object with some of {', '.join(FORMS)}", file)
    for i, (kind, value) in enumerate(pairs):
        if kind not in FORMS or kind in dict(pairs[:i]):
            reason = "it is there twice" if kind in FORMS else f"no such rule{instead(kind, FORMS)}"
            raise FormatError(reason, file, field=kind)
        for x in value if isinstance(value, list) else [value]:
            if type(x) is not str and not (type(x) is int and FORMS[kind][-1] == "N"):
                reason = f"{json.dumps(x):.40} is not {FORMS[kind]}, nor a list of these"
                raise FormatError(reason, file, field=kind)
    return dict(pairs)


def _texts(source: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each rule by its kind and what the option of that name would say."""
    for kind, value in source.items():
        values = value if isinstance(value, list | tuple) else [value]
        if kind == "layers-per-stage" and values:
            values = [None if None in values else ",".join(map(str, values))]
        yield from ((kind, str(text)) for text in values if text is not None)


def _rule(kind: str, text: str, names: Names) -> Rule:
    flag, form = f"--{kind} {text}", FORMS[kind]
    name, _, device = text.rpartition("=") if kind == "pin" else (text, "", "")
    words = name.split(",") if "," in form else [name]
    bad = not all(words) or len(words) < 1 + (kind == "apart") or (kind == "pin" and not device)
    if bad or (form[-1] == "N" and not all(x.isdecimal() and int(x) for x in words)):
        raise UsageError(f"{flag}: write --{kind} {form}")
    if kind == "exactly":
        return Rule(kind, stages=int(text))
    if kind == "layers-per-stage":
        known, ends = names.layers(), np.cumsum([0, *map(int, words)]).tolist()
        layers, some = [*known.values()], ", ".join([*known][:3]) or "--cut-before takes any name"
        if ends[-1] != len(layers):
            what = f"the model has {len(layers)} with a number: {some}{', ...' * (len(known) > 3)}"
            raise UsageError(f"{flag}: these are {ends[-1]} layers; {what}")
        parts = [tuple(v for row in layers[a:b] for v in row) for a, b in pairwise(ends)]
        return Rule(kind, tuple(words), tuple(parts), stages=len(parts))
    parts = [names.find(word, flag) for word in words]
    if kind == "together":
        parts = [tuple(sorted({v for part in parts for v in part}))]
    part = positions(names.graph, parts[0])
    if kind == "cut-before" and not all(map(len, cut_parts(names.graph, part))):
        raise UsageError(f"{flag}: it cuts nothing, as nothing comes before")
    if both := [x for a, b in combinations(map(set, parts), 2) for x in a & b]:
        raise UsageError(f"{flag}: node {min(both)} has both names")
    return Rule(kind, tuple(words), tuple(parts), device)


def check_rules(problem: SplitProblem, options: SplitOptions) -> None:
    """Refuse rules that contradict each other, or that what is asked for does not heed.

    Raises UsageError.
    """
    rules = problem.rules
    places = [name for device in problem.devices if rules for name in device.places]
    for rule in rules:
        unheeded = {
            "--shared-stages": options.shared_stages and rule.rule != "cut-before",
            "clusters of devices": "/" in rule.device and problem.clustered,
            "--allow-replicas": options.allow_replicas,
            "--execution operators; --execution blocks heeds it": rule.by_stage
            and (problem.options.objective, problem.options.execution) == ("latency", "operators"),
            "--objective latency": rule.by_stage and problem.options.objective == "sequence",
            "--max-replicas": rule.by_stage and problem.options.max_replicas > 1,
            "links": rule.by_stage and bool(problem.links),
        }
        for what in (name for name, given in unheeded.items() if given):
            raise UsageError(f"{rule.words}: not heeded with {what}")
        if rule.device not in ("", *places):
            raise UsageError(f"{rule.words}: no such device{instead(rule.device, places)}")
        if rule.stages > sum(d.count for d in problem.devices):
            raise UsageError(f"{rule.words}: there are fewer devices than {rule.stages} stages")
    counts = {rule.stages: rule.words for rule in rules if rule.stages}
    if len(counts) > 1:
        raise UsageError(" contradicts ".join(counts.values()))
    if not rules or options.shared_stages:
        return
    from dnnp.core.split.auto import validity_asked

    _check_line(problem, options, problem.line(problem.free_items))
    if options.objective == "latency" or options.eval is not None or len(problem.item_choices) > 1:
        return
    if all(validity_asked(m, options.validity) == "ordered" for m in options.methods):
        hint = "; --validity free may keep them" * (not options.parallel)
        _check_line(problem, options, problem.line(), f" in an ordered split{hint}")


def _check_line(
    problem: SplitProblem, options: SplitOptions, line: LinearizedItems, hint: str = ""
) -> None:
    """Refuse rules that no split of these items keeps; raises UsageError."""
    barred = ~np.isfinite(line.work).any(axis=0)
    if options.parallel:  # several devices may run what none can
        barred = (line.labels < 0).any(axis=0)
    for item in np.flatnonzero(barred).tolist():
        nodes = line.nodes[line.node_ptr[item] : line.node_ptr[item + 1]]
        held = {*problem.graph.node_ids[nodes].tolist()}
        mine = [rule.words for rule in problem.rules if any(held & {*p} for p in rule.parts)]
        if mine:
            what = f"'{problem.graph.node_names[nodes[0]]}', and what must be with it"
            clash = " contradict each other" * (len(mine) > 1)
            raise UsageError(f"{' and '.join(mine)}{clash}: no device may have {what}{hint}")
    needed, words = fewest_stages(line.labels, problem.rules)
    for rule in (rule for rule in problem.rules if rule.stages):
        if rule.stages > line.n:
            raise UsageError(f"{rule.words}: there are {counted(line.n, 'group')} of nodes{hint}")
        if rule.stages < needed:
            raise UsageError(f"{rule.words} contradicts {words}, which need {needed} stages")
