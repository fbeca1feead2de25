"""Chakra execution traces of one or several ranks, read as a recorded step: nodes become streams of operations.

Compute is stream 0 and each process group has one, as on a GPU with NCCL, unless nodes say their stream. Where a trace
has compute of a GPU, its nodes of the CPU launch that and only pass on what they wait for.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import msgspec

from simnet.core.errors import SimnetError, cut, shown
from simnet.core.parsing import parse_json
from simnet.core.schema import decode
from simnet.core.units import format_seconds
from simnet.strategies.program import IterationPart
from simnet.strategies.step_file import (
    OperationKind,
    RecordedGroup,
    RecordedLayout,
    RecordedOperation,
    RecordedStream,
    TimedBy,
    bytes_of_memory,
)
from simnet.traces import process_groups, trace_graph
from simnet.traces import symmetric_ranks as symmetric
from simnet.traces.chakra_node import COLLECTIVES, LAYOUT_ATTRIBUTE, REPAIR, ChakraNode, ChakraTrace
from simnet.traces.process_groups import Ranks, WorldShape
from simnet.traces.trace_graph import TracedWork

COMPUTE_STREAM, MEMORY_STREAM, NUMBERED, WORLD = "compute", "memory", "stream ", "world"
# ASTRA-sim takes process group "0", or none, for all ranks.
WORLD_NUMBER = "0"
MEMORY_NODES = ("MEM_LOAD_NODE", "MEM_STORE_NODE")
PASSED_OVER = ("METADATA_NODE", "INVALID_NODE")
POINT_TO_POINT = ("COMM_SEND_NODE", "COMM_RECV_NODE")
_PARTS_BY_NAME: tuple[tuple[IterationPart, re.Pattern[str]], ...] = (
    ("optimizer", re.compile(r"optim|adam|sgd|update", re.IGNORECASE)),
    ("backward", re.compile(r"bwd|backward|grad", re.IGNORECASE)),
    ("forward", re.compile(r"fwd|forward", re.IGNORECASE)),
)
"""Which part of a step a node computes, by its name: Chakra has no field for it."""
_OTHER_NAMES = {"reduce_scatter_block": "reduce_scatter"}
_UNEVEN = ("gather", "scatter")
"""Collectives in which one rank does more than all others."""
MAX_AMOUNT = 2**63
MAX_NAME = 80


@dataclass(frozen=True, kw_only=True)
class ChakraRank:
    """The trace of one rank.

    Attributes:
        trace: its content.
        rank: its number; None where the name of the file does not say it.
        where: how messages call the file.
    """

    trace: ChakraTrace
    rank: int | None
    where: str


@dataclass(kw_only=True)
class _Reader:
    """What is known while the nodes of one rank are read, and what was found."""

    where: str
    rank: int | None
    world: WorldShape
    pg_ranks: Mapping[str, Ranks]
    own: RecordedLayout | None
    skips_cpu: bool
    keys: frozenset[int]
    groups: list[RecordedGroup] = field(default_factory=list)
    left_out: dict[str, tuple[int, float]] = field(default_factory=dict)
    num_unnamed: int = 0

    def place(self, node: ChakraNode) -> str:
        """Return how messages call a node."""
        return f"{self.where}: node {node.id}"

    def leave_out(self, what: str, node: ChakraNode) -> None:
        """Count a node that becomes no operation."""
        number, seconds = self.left_out.get(what, (0, 0.0))
        self.left_out[what] = (number + 1, seconds + node.duration_micros / 1e6)


def layout_of(
    ranks: Sequence[ChakraRank], world: WorldShape, comm_groups: Mapping[str, Ranks]
) -> tuple[RecordedLayout, TimedBy]:
    """Return the step that symmetric ranks did, and what is known of its compute: seconds are the mean of the ranks.

    Args:
        ranks: one or several of the world.
        world: its nodes and ranks.
        comm_groups: ranks of process groups that the traces do not tell.

    Raises:
        SimnetError: a trace holds what is no step of symmetric ranks, or two ranks differ.
    """
    layout = symmetric.joined([_layout(one, world, comm_groups) for one in ranks], [one.where for one in ranks])
    return layout, _timed_by(layout)


def own_layout(trace: ChakraTrace, where: str) -> RecordedLayout | None:
    """Return the layout, without its operations, that simnet's own export has written into a trace.

    Raises:
        SimnetError: it is damaged.
    """
    text = trace.attributes.get(LAYOUT_ATTRIBUTE)
    return decode(RecordedLayout, str(text).encode(), f"{where}: {LAYOUT_ATTRIBUTE}") if text is not None else None


def pg_ranks(trace: ChakraTrace, where: str) -> dict[str, Ranks]:
    """Return the process groups that a trace which was converted from PyTorch tells, by name; () are all ranks.

    Raises:
        SimnetError: the node that tells them is damaged.
    """
    found: dict[str, Ranks] = {}
    for node in trace.nodes:
        text = node.input_values
        if node.type != "METADATA_NODE" or '"pg_name"' not in text:
            continue
        place = f"{where}: node {node.id}: process groups"
        # The text of a Python list that holds one string of JSON.
        groups = parse_json(text[text.find("[{") : text.rfind("}]") + 2].encode(), place, unique=False)
        found |= dict(_told_group(one, place) for one in groups) if isinstance(groups, list) else {}
    return found


def _told_group(given: object, place: str) -> tuple[str, Ranks]:
    group: dict[str, Any] = given if isinstance(given, dict) else {}
    ranks = group.get("ranks", [])
    if ranks != []:
        process_groups.check_ranks(ranks, place)
    return str(group.get("pg_name", "")), tuple(ranks)


def _timed_by(layout: RecordedLayout) -> TimedBy:
    computed = [one for one in layout.operations if one.kind == "compute"]
    if any(one.seconds for one in computed):
        return "timed"
    return "counted" if any(one.flops or one.num_bytes for one in computed) else "none"


def _layout(given: ChakraRank, world: WorldShape, comm_groups: Mapping[str, Ranks]) -> RecordedLayout:
    nodes = given.trace.nodes
    own = own_layout(given.trace, given.where)
    reader = _Reader(
        where=given.where,
        rank=given.rank,
        world=world,
        pg_ranks={**pg_ranks(given.trace, given.where), **comm_groups},
        own=own,
        skips_cpu=any(one.type == "COMP_NODE" and not one.attributes.get("is_cpu_op") for one in nodes),
        keys=frozenset(node.id for node in nodes),
        groups=list(own.groups) if own else [],
    )
    work = [_work(node, reader) for node in nodes]
    if not any(one.operation for one in work):
        raise SimnetError(f"{given.where}: holds neither compute nor a collective; give the trace of a training step")
    streams = trace_graph.in_streams(work, _stream_names(work, own), given.where)
    if own is not None:
        return _with_streams(own, streams)
    return RecordedLayout(
        num_nodes=world.num_nodes,
        ranks_per_node=world.ranks_per_node,
        groups=tuple(reader.groups),
        streams=streams,
        notes=tuple(_notes(reader)),
    )


def _with_streams(own: RecordedLayout, streams: tuple[RecordedStream, ...]) -> RecordedLayout:
    return msgspec.structs.replace(own, streams=streams)


def _stream_names(work: Sequence[TracedWork], own: RecordedLayout | None) -> dict[str, str]:
    """Return the streams in their order, by key: that which computes most is the first one, as in a step file."""
    if own is not None:
        return {f"{NUMBERED}{number}": stream.name for number, stream in enumerate(own.streams)}
    weights: dict[str, float] = {}
    for one in work:
        if one.operation is not None:
            computed = one.operation.kind == "compute"
            weight = 1e-9 + one.operation.seconds + 1e-12 * bytes_of_memory(one.operation) if computed else 0.0
            weights[one.stream] = weights.get(one.stream, 0.0) + weight
    first = max(weights, key=lambda key: weights[key], default=COMPUTE_STREAM)
    if not weights.get(first):
        first = COMPUTE_STREAM
    return {key: key for key in dict.fromkeys([first, *sorted(weights, key=_stream_number)])}


def _stream_number(key: str) -> float:
    """Return the number of a stream that nodes name so, to sort by; all others come last, in the order of the trace."""
    number = key.removeprefix(NUMBERED)
    return float(number) if key.startswith(NUMBERED) and number.isdigit() else math.inf


def _work(node: ChakraNode, reader: _Reader) -> TracedWork:
    operation, stream = _operation(node, reader)
    return TracedWork(
        key=node.id,
        rank_in_time=(node.start_time_micros, node.id),
        after=frozenset(_after(node, reader)),
        stream=stream,
        operation=operation,
    )


def _after(node: ChakraNode, reader: _Reader) -> Iterator[int]:
    for key in node.data_deps:
        if key not in reader.keys:
            raise SimnetError(f"{reader.place(node)}: data_deps: {key}: there is no such node; {REPAIR}")
        yield key
    # Converters drop callers that nothing waits for, and leave their numbers here.
    yield from (key for key in node.ctrl_deps if key in reader.keys)


def _operation(node: ChakraNode, reader: _Reader) -> tuple[RecordedOperation | None, str]:
    """Return what a node does, and the key of its stream; nothing for one that is no work of the GPU."""
    number = node.attributes.get("stream")
    stream = f"{NUMBERED}{number}" if isinstance(number, int) else ""
    if node.type in POINT_TO_POINT:
        raise SimnetError(
            f"{reader.place(node)}: {node.type}: ranks that send to single others, as stages of a pipeline do, are not "
            "alike, and a step file holds symmetric ranks; trace a run without pipeline parallelism"
        )
    if node.type == "COMM_COLL_NODE":
        return _collective(node, reader, stream)
    if node.type in MEMORY_NODES:
        return _compute(node, reader), stream or MEMORY_STREAM
    if node.type == "COMP_NODE" and not (reader.skips_cpu and node.attributes.get("is_cpu_op")):
        return _compute(node, reader), stream or COMPUTE_STREAM
    if node.type not in PASSED_OVER:
        reader.leave_out("nodes of the CPU" if node.type == "COMP_NODE" else f"nodes of type {node.type}", node)
    return None, ""


def _compute(node: ChakraNode, reader: _Reader) -> RecordedOperation:
    seconds = _amount(node, "seconds", reader)
    flops = _amount(node, "flops", reader)
    num_bytes = _amount(node, "bytes", reader)
    return RecordedOperation(
        kind="compute",
        part=_part(node, reader),
        flops=flops if flops is not None else _amount(node, "num_ops", reader) or 0.0,
        num_bytes=num_bytes if num_bytes is not None else _amount(node, "tensor_size", reader) or 0.0,
        seconds=seconds if seconds is not None else node.duration_micros / 1e6,
        name=cut(node.name, MAX_NAME),
        bucket=_bucket(node),
    )


def _part(node: ChakraNode, reader: _Reader) -> IterationPart:
    given = node.attributes.get("part")
    if given in get_args(IterationPart):
        return cast(IterationPart, given)
    for part, pattern in _PARTS_BY_NAME:
        if pattern.search(node.name):
            return part
    reader.num_unnamed += 1
    return "forward"


def _collective(node: ChakraNode, reader: _Reader, stream: str) -> tuple[RecordedOperation, str]:
    group = _group(node, reader)
    kind = _kind(node, reader)
    size = _amount(node, "comm_size", reader)
    message_bytes = _amount(node, "message_bytes", reader)
    if size is None and kind != "barrier":
        raise SimnetError(f"{reader.place(node)}: comm_size: missing: a collective must say its bytes; {REPAIR}")
    if message_bytes is None:
        # Chakra gives the input of a rank; a step file the whole array, which an all-gather puts together.
        message_bytes = (size or 0.0) * (reader.groups[group].size if kind == "all_gather" else 1)
    dtype = node.attributes.get("dtype", "")
    operation = RecordedOperation(
        kind=kind,
        group=group,
        message_bytes=0.0 if kind == "barrier" else message_bytes,
        dtype=dtype if isinstance(dtype, str) else "",
        bucket=_bucket(node),
        name=cut(node.name, MAX_NAME),
    )
    return operation, stream or _pg_name(node) or WORLD


def _kind(node: ChakraNode, reader: _Reader) -> OperationKind:
    given = node.attributes.get("comm_type")
    if type(given) is not int or not 0 <= given < len(COLLECTIVES):
        raise SimnetError(
            f"{reader.place(node)}: comm_type: {shown(given)}: must be 0 to {len(COLLECTIVES) - 1}; {REPAIR}"
        )
    kind = _OTHER_NAMES.get(COLLECTIVES[given], COLLECTIVES[given])
    if kind in _UNEVEN:
        raise SimnetError(
            f"{reader.place(node)}: comm_type: {kind!r}: one rank does more than the others, and a step file holds "
            "symmetric ranks; trace a run without it"
        )
    return cast(OperationKind, kind)


def _pg_name(node: ChakraNode) -> str:
    return str(node.attributes.get("pg_name", ""))


def _group(node: ChakraNode, reader: _Reader) -> int:
    """Return the number of a collective's group: as simnet wrote it, by its name, by dimensions, or the world."""
    number = node.attributes.get("group")
    if reader.own is not None and type(number) is int and 0 <= number < len(reader.groups):
        return number
    name, dimensions = _pg_name(node), node.attributes.get("involved_dim")
    everyone = tuple(range(reader.world.size))
    if name and (name in reader.pg_ranks or name != WORLD_NUMBER):
        ranks = process_groups.find(reader.pg_ranks, name, reader.place(node)) or everyone
    elif isinstance(dimensions, tuple) and not name:
        ranks = process_groups.of_dimensions([bool(one) for one in dimensions], reader.world, reader.place(node))
    else:
        ranks = everyone
    title = name or (WORLD if len(ranks) == reader.world.size else f"involved_dim {_digits(dimensions)}")
    if reader.rank is not None and reader.rank not in ranks and dimensions is None:
        raise SimnetError(
            f"{reader.place(node)}: rank {reader.rank} is not in its process group {title!r}, {shown(list(ranks))}; "
            "name the file of each rank NAME.RANK.et, and give --nodes and --ranks-per-node of all ranks"
        )
    shape = process_groups.shape_of(ranks, title, reader.world, reader.place(node))
    for place, known in enumerate(reader.groups):
        if (known.size, known.stride) == (shape.size, shape.stride):
            return place
    reader.groups.append(shape)
    return len(reader.groups) - 1


def _digits(flags: object) -> str:
    return "".join(str(int(bool(one))) for one in flags) if isinstance(flags, tuple) else ""


def _bucket(node: ChakraNode) -> int | None:
    given = node.attributes.get("bucket")
    return given if type(given) is int else None


def _amount(node: ChakraNode, name: str, reader: _Reader) -> float | None:
    """Return a number that a node has, None if it has none.

    Raises:
        SimnetError: it is no amount.
    """
    given = node.attributes.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < MAX_AMOUNT:
        raise SimnetError(f"{reader.place(node)}: {name}: {shown(given)}: must be a number from 0 to 2^63; {REPAIR}")
    return float(given)


def _notes(reader: _Reader) -> Iterator[str]:
    for what, (number, seconds) in reader.left_out.items():
        time = f" of {format_seconds(seconds)}" if seconds else ""
        yield f"{reader.where}: {number} {what}{time} are left out; what they wait for is kept"
    if reader.num_unnamed:
        yield f"{reader.where}: {reader.num_unnamed} nodes do not name their part of the step: they count as forward"
