"""Files of Chakra execution traces: nodes, attributes and versions, in protobuf and in JSON.

In protobuf a file is a GlobalMetadata and then its Nodes, each behind its length. JSON is what chakra_jsonizer prints
of that (one object after the other, in protobuf's mapping to JSON: whole numbers of 64 bits are text, defaults are left
out), or one object with a list `workload_graph`, as Chakra's feeder reads it.

Source: MLCommons Chakra, schema/protobuf/et_def.proto (numbers of fields), src/third_party/utils/protolib.py (lengths),
src/jsonizer/jsonizer.py and src/feeder/JSONNode.cpp.
"""

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import check_plain
from simnet.core.protobuf import (
    DamagedMessageError,
    WireValue,
    as_bytes,
    as_int,
    as_text,
    behind_length,
    delimited,
    encoded,
    encoded_varint,
    fields,
    numbers,
)

Plain = float | bool | str | bytes
AttributeValue = Plain | tuple[Plain, ...]
Attributes = Mapping[str, AttributeValue]

NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE",
)  # fmt: skip
"""By their number in the schema."""
COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
"""CollectiveCommType by its number in the schema, in simnet's words."""
VERSIONS = ("0.0.4", "1.0.0")
"""Of the schema: both have the same messages. Earlier ones had other fields, and no metadata in front."""
LAYOUT_ATTRIBUTE = "simnet_layout"
"""Attribute of a trace in which simnet's export keeps what Chakra has no field for: groups, streams, steps."""
REPAIR = "make the trace again"


class ChakraNode(Struct, frozen=True, kw_only=True):
    """A node of an execution trace.

    Attributes:
        id: unique in its trace.
        name: for people.
        type: one of `NODE_TYPES`.
        ctrl_deps: what called it.
        data_deps: what must have ended.
        start_time_micros: when it started [us].
        duration_micros: how long it took [us].
        input_values: its inputs as text.
        attributes: by name.
    """

    id: int
    name: str = ""
    type: str = NODE_TYPES[0]
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_time_micros: int = 0
    duration_micros: int = 0
    input_values: str = ""
    attributes: Attributes = field(default_factory=dict)


class ChakraTrace(Struct, frozen=True, kw_only=True):
    """The execution trace of one rank.

    Attributes:
        nodes: in the order of the file.
        version: of the schema; "" where the trace does not say it.
        attributes: of the trace, by name.
    """

    nodes: tuple[ChakraNode, ...]
    version: str = ""
    attributes: Attributes = field(default_factory=dict)


def check_version(trace: ChakraTrace, where: str) -> None:
    """Check that a trace is of a version of the schema that is read."""
    schema = str(trace.attributes.get("schema", ""))
    version = trace.version or schema.partition("chakra.")[2]
    if (version or schema) and version not in VERSIONS:
        raise SimnetError(
            f"{where}: version: {shown(version or schema)}: read are Chakra's schemas {' and '.join(VERSIONS)}; "
            "make the trace with a converter of one of these"
        )


def check_nodes(trace: ChakraTrace, where: str) -> None:
    """Check that the numbers of nodes are unique, and that there are some."""
    if not trace.nodes:
        raise SimnetError(f"{where}: has no node; {REPAIR}")
    seen: set[int] = set()
    for node in trace.nodes:
        if node.id in seen:
            raise SimnetError(f"{where}: node {node.id}: comes twice; {REPAIR}")
        seen.add(node.id)


def node_type(number: int, where: str) -> str:
    """Return a type of node by its number in the schema."""
    if not 0 <= number < len(NODE_TYPES):
        raise SimnetError(f"{where}: type: {number}: Chakra has types 0 to {len(NODE_TYPES) - 1}; {REPAIR}")
    return NODE_TYPES[number]


# Numbers of fields, by message.
_METADATA_VERSION, _METADATA_ATTR = 1, 2
_NODE_ID, _NODE_NAME, _NODE_TYPE, _NODE_CTRL_DEPS, _NODE_DATA_DEPS = 1, 2, 3, 4, 5
_NODE_START, _NODE_DURATION, _NODE_INPUTS, _NODE_ATTR = 6, 7, 8, 10
_IO_VALUES = 1
_ATTRIBUTE_NAME = 1
_DOUBLE, _INT64, _UINT64, _BOOL, _STRINGS, _RAW = 3, 9, 13, 27, 29, 31
# Fields of an AttributeProto that hold one number of fixed length; the next number is that of its list.
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_UNSIGNED, _ZIGZAG = (11, 13), (15, 17)
_VALUES = 1
_LAST_VALUE = 32
INT64_ATTRIBUTES = frozenset({"num_ops", "comm_type", "comm_size", "stream", "bucket", "group"})
"""Chakra's feeder reads these as int64, and other whole numbers as uint64."""


def parse_protobuf(data: bytes, where: str) -> ChakraTrace:
    """Return the trace that a file holds.

    Raises:
        SimnetError: it is none, is cut short or damaged, or of another version.
    """
    messages = delimited(data)
    start = 0
    try:
        start, head = next(messages, (0, b""))
        version, attributes = _metadata(head)
        nodes = []
        for start, message in messages:
            nodes.append(_node(message, f"{where}: byte {start}"))
    except DamagedMessageError as error:
        at = error.start or start
        # Damage in the very first message: more likely it is another kind of file.
        if not at:
            raise SimnetError(
                f"{where}: no Chakra execution trace: does not begin with its GlobalMetadata; give a trace of schema "
                "0.0.4 or later, such as NAME.0.et, or of torch.profiler"
            ) from error
        raise SimnetError(f"{where}: cut short or damaged at byte {at} of {len(data)}; copy the file again") from error
    return ChakraTrace(nodes=tuple(nodes), version=version, attributes=attributes)


def _metadata(message: bytes) -> tuple[str, Attributes]:
    """Return version and attributes; a schema of 2024 had the attributes in the place of the version."""
    version, attributes = "", {}
    for number, value in fields(message):
        if number == _METADATA_ATTR or (number == _METADATA_VERSION and _is_attribute(as_bytes(value))):
            attributes.update(_attribute(as_bytes(value)))
        elif number == _METADATA_VERSION:
            version = as_text(value)
        else:
            raise DamagedMessageError
    return version, attributes


def _is_attribute(data: bytes) -> bool:
    return data[:1] == encoded(_ATTRIBUTE_NAME, "")[:1]


def _node(message: bytes, where: str) -> ChakraNode:
    by_number: dict[int, WireValue] = {}
    deps: dict[int, list[int]] = {_NODE_CTRL_DEPS: [], _NODE_DATA_DEPS: []}
    attributes: dict[str, AttributeValue] = {}
    for number, value in fields(message):
        if number in deps:
            deps[number] += numbers(value)
        elif number == _NODE_ATTR:
            attributes.update(_attribute(as_bytes(value)))
        else:
            by_number[number] = value
    return ChakraNode(
        id=_number(by_number, _NODE_ID),
        name=as_text(by_number.get(_NODE_NAME, b"")),
        type=node_type(_number(by_number, _NODE_TYPE), where),
        ctrl_deps=tuple(deps[_NODE_CTRL_DEPS]),
        data_deps=tuple(deps[_NODE_DATA_DEPS]),
        start_time_micros=_number(by_number, _NODE_START),
        duration_micros=_number(by_number, _NODE_DURATION),
        input_values=as_text(dict(fields(as_bytes(by_number.get(_NODE_INPUTS, b"")))).get(_IO_VALUES, b"")),
        attributes=attributes,
    )


def _number(by_number: dict[int, WireValue], number: int) -> int:
    value = by_number.get(number, 0)
    if not isinstance(value, int):
        raise DamagedMessageError
    return value


def _attribute(message: bytes) -> dict[str, AttributeValue]:
    """Return name and value of an attribute, as a table of one row; of none where it has no value of a known kind."""
    name, content = "", None
    for number, value in fields(message):
        if number == _ATTRIBUTE_NAME:
            name = as_text(value)
        elif _DOUBLE <= number <= _LAST_VALUE:
            is_list = number % 2 == 0
            content = tuple(_listed(number - 1, as_bytes(value))) if is_list else _plain(number, value)
    return {} if content is None else {name: content}


def _plain(kind: int, value: WireValue) -> Plain:
    """Return a value of the kind that a field of this number holds."""
    if kind in _FIXED:
        return next(_fixed(_FIXED[kind], as_bytes(value)))
    if kind in (_STRINGS, _RAW):
        return as_text(value) if kind == _STRINGS else as_bytes(value)
    number = as_int(value)
    if kind == _BOOL:
        return bool(number)
    # Signed numbers are folded, 0, -1, 1, -2 to 0, 1, 2, 3, so that small ones stay short.
    if kind in _ZIGZAG:
        unsigned = number % 2**64
        return unsigned >> 1 ^ -(unsigned & 1)
    return number % 2**64 if kind in _UNSIGNED else number


def _listed(kind: int, message: bytes) -> Iterator[Plain]:
    for number, value in fields(message):
        if number != _VALUES:
            raise DamagedMessageError
        if kind in _FIXED:
            yield from _fixed(_FIXED[kind], as_bytes(value))
        elif kind in (_STRINGS, _RAW):
            yield _plain(kind, value)
        else:
            yield from (_plain(kind, item) for item in numbers(value))


def _fixed(layout: str, data: bytes) -> Iterator[float]:
    """Yield the numbers of fixed length that stand one behind the other."""
    if not data or len(data) % struct.calcsize(layout):
        raise DamagedMessageError
    yield from (unpacked for (unpacked,) in struct.iter_unpack(layout, data))


def encode(trace: ChakraTrace) -> bytes:
    """Return a trace as its file holds it."""
    head = (encoded(_METADATA_VERSION, trace.version), *_attributes(_METADATA_ATTR, trace.attributes))
    return b"".join([behind_length(b"".join(head)), *(behind_length(_encoded_node(node)) for node in trace.nodes)])


def _encoded_node(node: ChakraNode) -> bytes:
    simple = (
        (_NODE_ID, node.id),
        (_NODE_NAME, node.name),
        (_NODE_TYPE, NODE_TYPES.index(node.type)),
        (_NODE_CTRL_DEPS, _packed(node.ctrl_deps)),
        (_NODE_DATA_DEPS, _packed(node.data_deps)),
        (_NODE_START, node.start_time_micros),
        (_NODE_DURATION, node.duration_micros),
    )
    # proto3 leaves out what has its default.
    parts = [encoded(number, value) for number, value in simple if value]
    if node.input_values:
        parts.append(encoded(_NODE_INPUTS, encoded(_IO_VALUES, node.input_values)))
    return b"".join([*parts, *_attributes(_NODE_ATTR, node.attributes)])


def _packed(keys: Iterable[int]) -> bytes:
    return b"".join(map(encoded_varint, keys))


def _attributes(number: int, attributes: Attributes) -> Iterator[bytes]:
    for name, value in attributes.items():
        yield encoded(number, encoded(_ATTRIBUTE_NAME, name) + _encoded_value(name, value))


def _encoded_value(name: str, value: AttributeValue) -> bytes:
    match value:
        # Before `int`, of which it is a kind.
        case bool():
            return encoded(_BOOL, value)
        case int():
            return encoded(_INT64 if name in INT64_ATTRIBUTES else _UINT64, value)
        case float():
            return encoded(_DOUBLE, value)
        case str():
            return encoded(_STRINGS, value)
        case _:
            raise TypeError(f"{name}: {type(value).__name__}: no such attribute is written")


Object = Mapping[str, Any]
_GRAPH_ATTRIBUTES = ("is_cpu_op", "tensor_size", "num_ops", "comm_type", "comm_size", "comm_priority", "pg_name")
_INTEGERS = ("int", "uint", "sint", "fixed", "sfixed")


def is_json(data: bytes) -> bool:
    """Tell JSON from protobuf, of which each file also may begin with a brace: text has no control characters."""
    head = data[:256].removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1] in (b"{", b"[") and all(byte >= 32 or byte in b"\t\r\n" for byte in head)


def json_objects(data: bytes, where: str) -> list[Object]:
    """Return the objects that stand one after the other in a file of JSON."""
    try:
        text = data.decode("utf-8-sig")
        objects = list(_objects(text))
    except UnicodeDecodeError as error:
        raise SimnetError(f"{where}: not UTF-8 text (byte {error.start}); copy the file again") from error
    except RecursionError as error:
        raise SimnetError(f"{where}: nested too deep; {REPAIR}") from error
    except ValueError as error:
        raise SimnetError(f"{where}: not JSON: {error}; copy the file again") from error
    check_plain(objects, where)
    for content in objects:
        if not isinstance(content, dict):
            raise SimnetError(
                f"{where}: {type(content).__name__}: must hold objects; give a Chakra trace, or one of "
                "torch.profiler as it exports it"
            )
    return objects


def _objects(text: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        content, place = decoder.raw_decode(text, place)
        yield content


def parse_json(objects: Sequence[Object], where: str) -> ChakraTrace:
    """Return the trace that objects of a file hold."""
    if len(objects) == 1 and isinstance(objects[0].get("workload_graph"), list):
        graph = objects[0]["workload_graph"]
        return ChakraTrace(nodes=tuple(_graph_node(node, f"{where}: {at}") for at, node in enumerate(graph)))
    if len(objects) == 1 and isinstance(objects[0].get("nodes"), list):
        raise SimnetError(
            f"{where}: a host trace of torch's ExecutionTraceObserver, without times of the GPU: convert it with "
            "chakra_trace_link and chakra_converter, or give the trace of torch.profiler"
        )
    if not objects or set(objects[0]) - {"version", "attr"}:
        raise SimnetError(
            f"{where}: no Chakra execution trace: does not begin with its GlobalMetadata; give what chakra_jsonizer "
            "prints, NAME.0.et, or a trace of torch.profiler"
        )
    head = objects[0]
    return ChakraTrace(
        nodes=tuple(_json_node(node, f"{where}: object {at}") for at, node in enumerate(objects[1:], start=1)),
        version=str(head.get("version", "")),
        attributes=_json_attributes(head.get("attr", []), where),
    )


def _json_node(node: Object, where: str) -> ChakraNode:
    inputs = node.get("inputs", {})
    return ChakraNode(
        id=_json_number(node.get("id", 0), f"{where}: id"),
        name=str(node.get("name", "")),
        type=_type(node.get("type", NODE_TYPES[0]), where),
        ctrl_deps=_numbers(node.get("ctrlDeps", []), f"{where}: ctrlDeps"),
        data_deps=_numbers(node.get("dataDeps", []), f"{where}: dataDeps"),
        start_time_micros=_json_number(node.get("startTimeMicros", 0), f"{where}: startTimeMicros"),
        duration_micros=_json_number(node.get("durationMicros", 0), f"{where}: durationMicros"),
        input_values=str(inputs.get("values", "")) if isinstance(inputs, dict) else "",
        attributes=_json_attributes(node.get("attr", []), where),
    )


def _graph_node(node: object, where: str) -> ChakraNode:
    if not isinstance(node, dict):
        raise SimnetError(f"{where}: {shown(node)}: must be an object with Id, Name, NodeType; {REPAIR}")
    return ChakraNode(
        id=_json_number(node.get("Id"), f"{where}: Id"),
        name=str(node.get("Name", "")),
        type=_type(node.get("NodeType"), where),
        ctrl_deps=_numbers(node.get("ctrl_deps", []), f"{where}: ctrl_deps"),
        data_deps=_numbers(node.get("data_deps", []), f"{where}: data_deps"),
        duration_micros=_json_number(node.get("runtime", 0), f"{where}: runtime"),
        attributes={name: node[name] for name in _GRAPH_ATTRIBUTES if name in node},
    )


def _type(kind: object, where: str) -> str:
    """Return a type of node, given by its name or its number."""
    if isinstance(kind, str) and kind in NODE_TYPES:
        return kind
    if type(kind) is not int:
        raise SimnetError(f"{where}: type: {shown(kind)}: must be one of {', '.join(NODE_TYPES)}; {REPAIR}")
    return node_type(kind, where)


def _json_number(value: object, where: str) -> int:
    """Return a whole number from 0, given as such or, as protobuf's mapping does, as text."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 21 else value
    if type(number) is not int or not 0 <= number < 2**64:
        raise SimnetError(f"{where}: {shown(value)}: must be a whole number from 0 to 2^64; {REPAIR}")
    return number


def _numbers(keys: object, where: str) -> tuple[int, ...]:
    if not isinstance(keys, list):
        raise SimnetError(f"{where}: {shown(keys)}: must be a list of numbers of nodes; {REPAIR}")
    return tuple(_json_number(key, where) for key in keys)


def _json_attributes(entries: object, where: str) -> dict[str, AttributeValue]:
    if not isinstance(entries, list):
        raise SimnetError(f"{where}: attr: {shown(entries)}: must be a list; {REPAIR}")
    attributes: dict[str, AttributeValue] = {}
    for entry in entries:
        pairs = dict(entry) if isinstance(entry, dict) else {}
        name = str(pairs.pop("name", ""))
        # What is left is the one value, under the name of its type.
        pairs.pop("docString", None)
        for kind, value in pairs.items():
            attributes[name] = _json_value(kind, value, f"{where}: {name}")
    return attributes


def _json_value(kind: str, value: object, where: str) -> AttributeValue:
    """Return the value of an attribute: its key says its type, such as uint64Val or boolList."""
    if kind.endswith("List"):
        values = value.get("values", []) if isinstance(value, dict) else None
        if not isinstance(values, list):
            raise SimnetError(f"{where}: {shown(value)}: must be an object with values; {REPAIR}")
        return tuple(_json_value(f"{kind.removesuffix('List')}Val", item, where) for item in values)  # type: ignore[misc]
    if kind.startswith(_INTEGERS) and isinstance(value, str) and len(value) < 21:
        try:
            return int(value)
        except ValueError as error:
            raise SimnetError(f"{where}: {shown(value)}: must be a whole number; {REPAIR}") from error
    # The mapping of protobuf to JSON writes bytes in base64.
    if kind == "bytesVal" and isinstance(value, str):
        return base64.b64decode(value, validate=False)
    if not isinstance(value, bool | int | float | str):
        raise SimnetError(f"{where}: {shown(value)}: must be a number, text or truth value; {REPAIR}")
    return value
