"""A recorded step as Chakra execution traces: one of every rank, all alike but for the names of their groups.

What Chakra has no field for is kept in attributes that its feeders pass over: the layout as an attribute of the trace,
part, bucket and dtype as attributes of nodes, and amounts that Chakra's whole numbers cannot hold.
"""

import json
from collections.abc import Iterator

import msgspec

from simnet.core.errors import SimnetError
from simnet.strategies.step_file import RecordedLayout, RecordedOperation, RecordedStream
from simnet.traces import process_groups
from simnet.traces.chakra_node import (
    COLLECTIVES,
    LAYOUT_ATTRIBUTE,
    VERSIONS,
    Attributes,
    AttributeValue,
    ChakraNode,
    ChakraTrace,
)
from simnet.traces.process_groups import Ranks

MAX_TRACES = 4096
"""More ranks are more files than somebody wants by accident."""


def comm_groups(layout: RecordedLayout) -> dict[str, Ranks]:
    """Return the ranks of every process group by its number from 1, as ASTRA-sim's file of communicator groups does.

    The world is none of them: there a collective without a group is one of all ranks.
    """
    found: dict[str, Ranks] = {}
    for _, ranks in _instances(layout):
        found[str(len(found) + 1)] = ranks
    return found


def _instances(layout: RecordedLayout) -> Iterator[tuple[int, Ranks]]:
    """Yield every process group with the number of its shape."""
    for number, group in enumerate(layout.groups):
        if group.size < layout.world_size:
            firsts = dict.fromkeys(process_groups.members(group, rank) for rank in range(layout.world_size))
            yield from ((number, ranks) for ranks in firsts)


def traces(layout: RecordedLayout, where: str) -> Iterator[tuple[int, ChakraTrace]]:
    """Yield the trace of every rank, with its number.

    Args:
        layout: one of a step file.
        where: how messages call it.

    Raises:
        SimnetError: there are too many ranks.
    """
    if layout.world_size > MAX_TRACES:
        raise SimnetError(
            f"{where}: {layout.text}: {layout.world_size} ranks are as many files: at most {MAX_TRACES} are written; "
            "record the step on fewer ranks"
        )
    pg_names: dict[tuple[int, int], str] = {}
    for name, (number, ranks) in enumerate(_instances(layout), start=1):
        pg_names |= {(number, rank): str(name) for rank in ranks}
    attributes: Attributes = {LAYOUT_ATTRIBUTE: _layout_text(layout)}
    nodes = list(_nodes(layout))
    for rank in range(layout.world_size):
        named = tuple(_with_group(node, rank, pg_names) for node in nodes)
        yield rank, ChakraTrace(nodes=named, version=VERSIONS[0], attributes=attributes)


def _layout_text(layout: RecordedLayout) -> str:
    empty = msgspec.structs.replace(layout, streams=tuple(RecordedStream(name=one.name) for one in layout.streams))
    known = {key: value for key, value in msgspec.to_builtins(empty).items() if value}
    return json.dumps(known, separators=(",", ":"))


def _with_group(node: ChakraNode, rank: int, pg_names: dict[tuple[int, int], str]) -> ChakraNode:
    number = node.attributes.get("group")
    name = pg_names.get((number, rank)) if isinstance(number, int) else None
    if name is None:
        return node
    return _replaced(node, {**node.attributes, "pg_name": name})


def _replaced(node: ChakraNode, attributes: Attributes) -> ChakraNode:
    return ChakraNode(
        id=node.id,
        name=node.name,
        type=node.type,
        data_deps=node.data_deps,
        duration_micros=node.duration_micros,
        attributes=attributes,
    )


def _nodes(layout: RecordedLayout) -> Iterator[ChakraNode]:
    """Yield the operations as nodes, numbered so that each comes after what it waits for."""
    keys = {place: key for key, place in enumerate(_in_order(layout.streams))}
    for (stream, position), key in keys.items():
        one = layout.streams[stream].operations[position]
        before = [(stream, position - 1)] if position else []
        deps = tuple(sorted(keys[wait] for wait in [*before, *one.after]))
        yield _node(one, key, stream, deps, layout)


def _in_order(streams: tuple[RecordedStream, ...]) -> Iterator[tuple[int, int]]:
    """Yield the places of all operations, none before what it waits for."""
    ended = [0] * len(streams)
    moved = True
    while moved:
        moved = False
        for number, stream in enumerate(streams):
            while ended[number] < len(stream.operations):
                if any(ended[other] <= place for other, place in stream.operations[ended[number]].after):
                    break
                yield number, ended[number]
                ended[number] += 1
                moved = True


def _node(one: RecordedOperation, key: int, stream: int, deps: tuple[int, ...], layout: RecordedLayout) -> ChakraNode:
    is_compute = one.kind == "compute"
    known = _compute(one) if is_compute else _collective(one, layout)
    kept = {"part": one.part, "bucket": one.bucket, "dtype": one.dtype or None}
    return ChakraNode(
        id=key,
        name=one.name or f"{one.part if is_compute else one.kind}_{key}",
        type="COMP_NODE" if is_compute else "COMM_COLL_NODE",
        data_deps=deps,
        duration_micros=round(one.seconds * 1e6),
        attributes={
            "is_cpu_op": False,
            "stream": stream,
            **known,
            **{name: value for name, value in kept.items() if value is not None},
        },
    )


def _compute(one: RecordedOperation) -> dict[str, AttributeValue]:
    """Return the amounts of compute: ASTRA-sim's roofline divides by both of them, so that none may be 0."""
    found: dict[str, AttributeValue] = {}
    if one.flops or one.num_bytes:
        found |= {"num_ops": max(1, round(one.flops)), "tensor_size": max(1, round(one.num_bytes))}
        found |= {"flops": one.flops, "bytes": one.num_bytes}
    return found | ({"seconds": one.seconds} if one.seconds else {})


def _collective(one: RecordedOperation, layout: RecordedLayout) -> dict[str, AttributeValue]:
    """Return type and size: Chakra gives the input of a rank, of an all-gather its part of the whole array."""
    parts = layout.groups[one.group].size if one.kind == "all_gather" else 1
    size = round(one.message_bytes / parts)
    found: dict[str, AttributeValue] = {
        "comm_type": COLLECTIVES.index(one.kind),
        "comm_size": size,
        "group": one.group,
    }
    return found | ({} if size * parts == one.message_bytes else {"message_bytes": one.message_bytes})
