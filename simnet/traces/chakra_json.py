"""Chakra execution traces in JSON: what chakra_jsonizer prints of a protobuf trace, and what its feeder reads.

The first is one object after the other, in protobuf's mapping to JSON: GlobalMetadata, then Nodes; whole numbers of 64
bits are text there, and defaults are left out. The second is one object with a list `workload_graph`.

Source: MLCommons Chakra, src/jsonizer/jsonizer.py and src/feeder/JSONNode.cpp.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import check_plain
from simnet.traces.chakra_node import NODE_TYPES, REPAIR, AttributeValue, ChakraNode, ChakraTrace, node_type

Object = Mapping[str, Any]
_GRAPH_ATTRIBUTES = ("is_cpu_op", "tensor_size", "num_ops", "comm_type", "comm_size", "comm_priority", "pg_name")
_INTEGERS = ("int", "uint", "sint", "fixed", "sfixed")


def looks_like(data: bytes) -> bool:
    """Tell JSON from protobuf, of which each file also may begin with a brace: text has no control characters."""
    head = data[:256].removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1] in (b"{", b"[") and all(byte >= 32 or byte in b"\t\r\n" for byte in head)


def objects(data: bytes, where: str) -> list[Object]:
    """Return the objects that stand one after the other in a file of JSON.

    Raises:
        SimnetError: it is no JSON, or holds something else.
    """
    try:
        text = data.decode("utf-8-sig")
        found = list(_objects(text))
    except UnicodeDecodeError as error:
        raise SimnetError(f"{where}: not UTF-8 text (byte {error.start}); copy the file again") from error
    except RecursionError as error:
        raise SimnetError(f"{where}: nested too deep; {REPAIR}") from error
    except ValueError as error:
        raise SimnetError(f"{where}: not JSON: {error}; copy the file again") from error
    check_plain(found, where)
    for one in found:
        if not isinstance(one, dict):
            raise SimnetError(f"{where}: {type(one).__name__}: must hold objects with keys; give a Chakra trace")
    return found


def _objects(text: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        found, place = decoder.raw_decode(text, place)
        yield found


def parse(given: Sequence[Object], where: str) -> ChakraTrace:
    """Return the trace that objects of a file hold.

    Raises:
        SimnetError: they are none.
    """
    if len(given) == 1 and isinstance(given[0].get("workload_graph"), list):
        graph = given[0]["workload_graph"]
        return ChakraTrace(nodes=tuple(_graph_node(one, f"{where}: {at}") for at, one in enumerate(graph)))
    if len(given) == 1 and isinstance(given[0].get("nodes"), list):
        raise SimnetError(
            f"{where}: a host trace of torch's ExecutionTraceObserver, without times of the GPU: convert it with "
            "chakra_trace_link and chakra_converter, or give the trace of torch.profiler"
        )
    if not given or set(given[0]) - {"version", "attr"}:
        raise SimnetError(
            f"{where}: no Chakra execution trace: does not begin with its GlobalMetadata; give what chakra_jsonizer "
            "prints, NAME.0.et, or a trace of torch.profiler"
        )
    head = given[0]
    return ChakraTrace(
        nodes=tuple(_node(one, f"{where}: object {at}") for at, one in enumerate(given[1:], start=1)),
        version=str(head.get("version", "")),
        attributes=_attributes(head.get("attr", []), where),
    )


def _node(given: Object, where: str) -> ChakraNode:
    inputs = given.get("inputs", {})
    return ChakraNode(
        id=_number(given.get("id", 0), f"{where}: id"),
        name=str(given.get("name", "")),
        type=_type(given.get("type", NODE_TYPES[0]), where),
        ctrl_deps=_numbers(given.get("ctrlDeps", []), f"{where}: ctrlDeps"),
        data_deps=_numbers(given.get("dataDeps", []), f"{where}: dataDeps"),
        start_time_micros=_number(given.get("startTimeMicros", 0), f"{where}: startTimeMicros"),
        duration_micros=_number(given.get("durationMicros", 0), f"{where}: durationMicros"),
        input_values=str(inputs.get("values", "")) if isinstance(inputs, dict) else "",
        attributes=_attributes(given.get("attr", []), where),
    )


def _graph_node(given: object, where: str) -> ChakraNode:
    if not isinstance(given, dict):
        raise SimnetError(f"{where}: {shown(given)}: must be an object with Id, Name, NodeType; {REPAIR}")
    return ChakraNode(
        id=_number(given.get("Id"), f"{where}: Id"),
        name=str(given.get("Name", "")),
        type=_type(given.get("NodeType"), where),
        ctrl_deps=_numbers(given.get("ctrl_deps", []), f"{where}: ctrl_deps"),
        data_deps=_numbers(given.get("data_deps", []), f"{where}: data_deps"),
        duration_micros=_number(given.get("runtime", 0), f"{where}: runtime"),
        attributes={name: given[name] for name in _GRAPH_ATTRIBUTES if name in given},
    )


def _type(given: object, where: str) -> str:
    """Return a type of node, given by its name or its number."""
    if isinstance(given, str) and given in NODE_TYPES:
        return given
    if type(given) is not int:
        raise SimnetError(f"{where}: type: {shown(given)}: must be one of {', '.join(NODE_TYPES)}; {REPAIR}")
    return node_type(given, where)


def _number(given: object, where: str) -> int:
    """Return a whole number from 0, given as such or, as protobuf's mapping does, as text."""
    found = int(given) if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 21 else given
    if type(found) is not int or not 0 <= found < 2**64:
        raise SimnetError(f"{where}: {shown(given)}: must be a whole number from 0 to 2^64; {REPAIR}")
    return found


def _numbers(given: object, where: str) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise SimnetError(f"{where}: {shown(given)}: must be a list of numbers of nodes; {REPAIR}")
    return tuple(_number(one, where) for one in given)


def _attributes(given: object, where: str) -> dict[str, AttributeValue]:
    if not isinstance(given, list):
        raise SimnetError(f"{where}: attr: {shown(given)}: must be a list; {REPAIR}")
    found: dict[str, AttributeValue] = {}
    for one in given:
        pairs = dict(one) if isinstance(one, dict) else {}
        name = str(pairs.pop("name", ""))
        pairs.pop("docString", None)
        for kind, value in pairs.items():
            found[name] = _value(kind, value, f"{where}: {name}")
    return found


def _value(kind: str, given: object, where: str) -> AttributeValue:
    """Return the value of an attribute: its key says its type, such as uint64Val or boolList."""
    if kind.endswith("List"):
        values = given.get("values", []) if isinstance(given, dict) else None
        if not isinstance(values, list):
            raise SimnetError(f"{where}: {shown(given)}: must be an object with values; {REPAIR}")
        return tuple(_value(f"{kind.removesuffix('List')}Val", one, where) for one in values)  # type: ignore[misc]
    if kind.startswith(_INTEGERS) and isinstance(given, str) and len(given) < 21:
        try:
            return int(given)
        except ValueError as error:
            raise SimnetError(f"{where}: {shown(given)}: must be a whole number; {REPAIR}") from error
    if kind == "bytesVal" and isinstance(given, str):
        return base64.b64decode(given, validate=False)
    if not isinstance(given, bool | int | float | str):
        raise SimnetError(f"{where}: {shown(given)}: must be a number, text or truth value; {REPAIR}")
    return given
