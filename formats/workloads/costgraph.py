"""Reader of TensorFlow's CostGraphDef as protobuf text, the format of the REGAL graphs.

Numbers are kept as they are and the time unit is `unknown`: TensorFlow writes `compute_cost`
in microseconds, while the REGAL graphs have costs and sizes without a unit. The device class
gets a bandwidth of one byte per unit of time, so that a tensor's size is also its transfer
time, as in MTPP (Archer et al. 2024, Appendix B.1); --bandwidth of later commands replaces it.
"""

from __future__ import annotations

import hashlib

from dnnp.core.model.errors import FormatError
from dnnp.formats.acyclic import find_cycle
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.header import new_header
from dnnp.formats.limits import Room
from dnnp.formats.stream import Record, Stream
from dnnp.formats.workloads.textproto import Message, parse_text

DEVICE_CLASS = "accelerator"
"""The one device class that such a graph has costs for."""

_MEMORY = (
    "temporary_memory_size",
    "persistent_memory_size",
    "host_temp_memory_size",
    "device_temp_memory_size",
    "device_persistent_memory_size",
)
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}

_Key = tuple[str, int]
"""Device and id of a node; the device is empty where ids alone are unique."""


def read_costgraph(
    data: bytes, path: str, name: str | None = None, one_tensor: bool = False
) -> Stream:
    """Read a CostGraphDef.

    Each port of a node becomes a tensor. Control inputs become tensors of no bytes. A port
    that is an alias of an input keeps its own size, or takes that input's if it has none.

    With `one_tensor` a node makes one tensor, its first port; who reads another port, reads that
    (MTPP, B.1). The other parameters are those of `msr.read_workload`.

    Raises
    ------
    FormatError
        Not such a graph; the message names line and field.
    """
    file = "<stdin>" if path == "-" else path
    document = parse_text(data, file)
    nodes = document.messages("node")
    if not nodes:
        raise FormatError("not a CostGraphDef: there are no nodes", file)
    keys = _keys(nodes)
    builder = _Builder(nodes, keys, one_tensor, Room(file, len(data)))
    records, tensors = builder.build()
    cycle = find_cycle(builder.edges, len(nodes))
    if cycle:
        shown = " -> ".join(f"{records[i]['id']} '{records[i]['name']}'" for i in cycle[:8])
        raise FormatError(f"the graph has a cycle: {shown}", file, nodes[cycle[0]].line)
    device = {
        "type": "device",
        "class": DEVICE_CLASS,
        "kind": "accelerator",
        "bandwidth_bytes_per_s": 1,
    }
    digest = hashlib.sha256(data).hexdigest()
    header = new_header("costgraph", path, digest, name, "unknown")
    kinds = {"device": [device], "tensor": tensors, "node": records}
    return Stream(header=header, records=kinds, name=file)


def _keys(nodes: list[Message]) -> list[_Key]:
    """Keys of the nodes: ids are unique in the graph, or else on each device."""
    ids = [node.integer("id") for node in nodes]
    devices = [node.text("device") if len(set(ids)) < len(ids) else "" for node in nodes]
    keys = list(zip(devices, ids, strict=True))
    first: dict[_Key, int] = {}
    for key, node in zip(keys, nodes, strict=True):
        if key in first:
            where = f" on device '{key[0]}'" if key[0] else ""
            reason = f"{key[1]} is already the id of the node in line {first[key]}{where}"
            raise node.fault("id", reason)
        first[key] = node.line
    return keys


class _Builder:
    """Turns nodes into records."""

    def __init__(
        self, nodes: list[Message], keys: list[_Key], one_tensor: bool, room: Room
    ) -> None:
        self._nodes = nodes
        self._room = room
        self._one_tensor = one_tensor
        self._keys = keys
        self._positions = {key: i for i, key in enumerate(keys)}
        self._unique = len({number for _, number in keys}) == len(keys)
        self._tensors: list[Record] = []
        self._ports: list[list[int]] = []
        """Tensor of each port of each node; of all its ports where it makes one."""
        self._control: dict[int, int] = {}
        """Node position -> its control tensor."""
        self.edges: list[tuple[int, int]] = []

    def build(self) -> tuple[list[Record], list[Record]]:
        """Node and tensor records."""
        records = [self._node(i) for i in range(len(self._nodes))]
        for i, record in enumerate(records):
            record["inputs"] = self._inputs(i, records)
            self._size_aliases(i, record["inputs"])
        return records, self._tensors

    def _node(self, position: int) -> Record:
        node = self._nodes[position]
        number = self._keys[position][1]
        name, final = node.text("name"), node.flag("is_final")
        outputs = node.messages("output_info")
        ports: list[int] = []
        for port, output in enumerate(outputs):
            if port and self._one_tensor:
                ports.append(ports[0])
                continue
            self._room.take(len(name), output.line)
            tensor: Record = {
                "type": "tensor",
                "id": len(self._tensors),
                "name": name if self._one_tensor or len(outputs) == 1 else f"{name}:{port}",
                "kind": "activation",
                "size_bytes": output.number("size"),
            }
            dtype = output.word("dtype").removeprefix("DT_").removesuffix("_REF").lower()
            if dtype and dtype != "invalid":
                tensor["dtype"] = _DTYPES.get(dtype, dtype)
            shape = _shape(output)
            if shape is not None:
                tensor["shape"] = shape
            if final:
                tensor["output"] = True
            ports.append(tensor["id"])
            self._tensors.append(tensor)
        self._ports.append(ports)
        record: Record = {
            "type": "node",
            "id": number if self._unique else position,
            "name": name,
            "op": "",
            "inputs": [],
            "outputs": list(dict.fromkeys(ports)),
            "time_s": {DEVICE_CLASS: node.number("compute_cost")},
        }
        memory = sum(node.number(field) for field in _MEMORY)
        if memory:
            record["memory_bytes"] = min(memory, MAX_NUMBER)
        return record

    def _inputs(self, position: int, records: list[Record]) -> list[int]:
        """Tensors a node reads; makes control tensors as they are needed."""
        node = self._nodes[position]
        found: dict[int, None] = {}
        for entry in node.messages("input_info"):
            number = entry.integer("preceding_node")
            producer = self._find(entry, "preceding_node", number, position)
            port = entry.integer("preceding_port")
            if port >= len(self._ports[producer]):
                name, count = records[producer]["name"], len(self._ports[producer])
                raise entry.fault("preceding_port", f"{port}; node '{name}' has {count} outputs")
            found[self._ports[producer][port]] = None
        for number in node.integers("control_input"):
            producer = self._find(node, "control_input", number, position)
            if producer not in self._control:
                self._control[producer] = len(self._tensors)
                records[producer]["outputs"].append(len(self._tensors))
                self._tensors.append(
                    {
                        "type": "tensor",
                        "id": len(self._tensors),
                        "name": f"^{records[producer]['name']}",
                        "kind": "activation",
                        "size_bytes": 0,
                    }
                )
            found[self._control[producer]] = None
        return list(found)

    def _find(self, message: Message, field: str, number: int, reader: int) -> int:
        """Position of the node with an id, on the reader's device where ids repeat."""
        key = self._keys[reader][0], number
        if key not in self._positions:
            raise message.fault(field, f"there is no node {number}")
        producer = self._positions[key]
        if producer == reader:
            raise message.fault(field, "a node reads its own output")
        self.edges.append((producer, reader))
        return producer

    def _size_aliases(self, position: int, inputs: list[int]) -> None:
        node = self._nodes[position]
        entries = node.messages("input_info")
        for port, output in enumerate(node.messages("output_info")):
            if port and self._one_tensor:
                break
            alias = output.integer("alias_input_port", -1, -1)
            tensor = self._tensors[self._ports[position][port]]
            if 0 <= alias < len(entries) and not tensor["size_bytes"]:
                entry = entries[alias]
                key = self._keys[position][0], entry.integer("preceding_node")
                source = self._ports[self._positions[key]][entry.integer("preceding_port")]
                tensor["size_bytes"] = self._tensors[source]["size_bytes"]


def _shape(output: Message) -> list[int] | None:
    """A shape whose dimensions are all known, or None."""
    shape = output.message("shape")
    if shape is None or shape.flag("unknown_rank"):
        return None
    sizes = [dim.integer("size", 0, -1) for dim in shape.messages("dim")]
    return None if -1 in sizes else sizes
