"""Chakra execution traces in protobuf: a file is a GlobalMetadata and then its Nodes, each behind its length.

Source: MLCommons Chakra, schema/protobuf/et_def.proto (numbers of fields), src/third_party/utils/protolib.py (lengths).
"""

import struct
from collections.abc import Iterable, Iterator

from simnet.core.errors import SimnetError
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
from simnet.traces.chakra_node import (
    NODE_TYPES,
    Attributes,
    AttributeValue,
    ChakraNode,
    ChakraTrace,
    Plain,
    node_type,
)

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


def parse(data: bytes, where: str) -> ChakraTrace:
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
    found: dict[int, WireValue] = {}
    deps: dict[int, list[int]] = {_NODE_CTRL_DEPS: [], _NODE_DATA_DEPS: []}
    attributes: dict[str, AttributeValue] = {}
    for number, value in fields(message):
        if number in deps:
            deps[number] += numbers(value)
        elif number == _NODE_ATTR:
            attributes.update(_attribute(as_bytes(value)))
        else:
            found[number] = value
    return ChakraNode(
        id=_number(found, _NODE_ID),
        name=as_text(found.get(_NODE_NAME, b"")),
        type=node_type(_number(found, _NODE_TYPE), where),
        ctrl_deps=tuple(deps[_NODE_CTRL_DEPS]),
        data_deps=tuple(deps[_NODE_DATA_DEPS]),
        start_time_micros=_number(found, _NODE_START),
        duration_micros=_number(found, _NODE_DURATION),
        input_values=as_text(dict(fields(as_bytes(found.get(_NODE_INPUTS, b"")))).get(_IO_VALUES, b"")),
        attributes=attributes,
    )


def _number(found: dict[int, WireValue], number: int) -> int:
    value = found.get(number, 0)
    if not isinstance(value, int):
        raise DamagedMessageError
    return value


def _attribute(message: bytes) -> dict[str, AttributeValue]:
    """Return name and value of an attribute, as a table of one row; of none where it has no value of a known kind."""
    name, found = "", None
    for number, value in fields(message):
        if number == _ATTRIBUTE_NAME:
            name = as_text(value)
        elif _DOUBLE <= number <= _LAST_VALUE:
            is_list = number % 2 == 0
            found = tuple(_listed(number - 1, as_bytes(value))) if is_list else _plain(number, value)
    return {} if found is None else {name: found}


def _plain(kind: int, value: WireValue) -> Plain:
    """Return a value of the kind that a field of this number holds."""
    if kind in _FIXED:
        return next(_fixed(_FIXED[kind], as_bytes(value)))
    if kind in (_STRINGS, _RAW):
        return as_text(value) if kind == _STRINGS else as_bytes(value)
    number = as_int(value)
    if kind == _BOOL:
        return bool(number)
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
            yield from (_plain(kind, one) for one in numbers(value))


def _fixed(layout: str, data: bytes) -> Iterator[float]:
    """Yield the numbers of fixed length that stand one behind the other."""
    if not data or len(data) % struct.calcsize(layout):
        raise DamagedMessageError
    yield from (found for (found,) in struct.iter_unpack(layout, data))


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
