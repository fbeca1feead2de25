"""Chakra execution traces read as a recorded step, and a recorded step as Chakra execution traces.

Read: nodes become streams of operations. Compute is stream 0 and each process group has one, as on a GPU with NCCL,
unless nodes say their stream. Where a trace has compute of a GPU, its nodes of the CPU launch that and only pass on
what they wait for.

Written: one trace of every rank, all alike but for the names of their groups. What Chakra has no field for is kept in
attributes that its feeders pass over: the layout as an attribute of the trace, part, bucket and dtype as attributes of
nodes, and amounts that Chakra's whole numbers cannot hold.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
from msgspec.structs import replace

from simnet.core import files
from simnet.core.bounded_types import MAX_RANKS
from simnet.core.errors import SimnetError, cut, did_you_mean, shown
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
from simnet.traces import layouts
from simnet.traces.chakra_file import (
    COLLECTIVES,
    LAYOUT_ATTRIBUTE,
    REPAIR,
    VERSIONS,
    Attributes,
    AttributeValue,
    ChakraNode,
    ChakraTrace,
)
from simnet.traces.layouts import MAX_NAME, WORLD, Ranks, TracedWork, WorldShape

COMPUTE_STREAM, MEMORY_STREAM, NUMBERED = "compute", "memory", "stream "
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
MAX_TRACES = 4096
"""More ranks are more files than somebody wants by accident."""


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
    exported: RecordedLayout | None
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

    `comm_groups` has the ranks of process groups that the traces do not tell.

    Raises:
        SimnetError: a trace holds what is no step of symmetric ranks, or two ranks differ.
    """
    layout = layouts.joined([_layout(rank, world, comm_groups) for rank in ranks], [rank.where for rank in ranks])
    layout = layouts.with_bytes(layout, ranks[0].where, "comm_size")
    computed = [operation for operation in layout.operations if operation.kind == "compute"]
    if any(operation.seconds for operation in computed):
        return layout, "timed"
    return layout, "counted" if any(operation.flops or operation.num_bytes for operation in computed) else "none"


def own_layout(trace: ChakraTrace, where: str) -> RecordedLayout | None:
    """Return the layout, without its operations, that simnet's own export has written into a trace."""
    text = trace.attributes.get(LAYOUT_ATTRIBUTE)
    return decode(RecordedLayout, str(text).encode(), f"{where}: {LAYOUT_ATTRIBUTE}") if text is not None else None


def pg_ranks(trace: ChakraTrace, where: str) -> dict[str, Ranks]:
    """Return the process groups that a trace which was converted from PyTorch tells, by name; () are all ranks."""
    ranks_by_name: dict[str, Ranks] = {}
    for node in trace.nodes:
        text = node.input_values
        if node.type != "METADATA_NODE" or '"pg_name"' not in text:
            continue
        place = f"{where}: node {node.id}: process groups"
        # The text of a Python list that holds one string of JSON.
        groups = parse_json(text[text.find("[{") : text.rfind("}]") + 2].encode(), place, unique=False)
        for entry in groups if isinstance(groups, list) else ():
            group: dict[str, Any] = entry if isinstance(entry, dict) else {}
            ranks = group.get("ranks", [])
            if ranks != []:
                check_ranks(ranks, place)
            ranks_by_name[str(group.get("pg_name", ""))] = tuple(ranks)
    return ranks_by_name


def _layout(rank: ChakraRank, world: WorldShape, comm_groups: Mapping[str, Ranks]) -> RecordedLayout:
    nodes = rank.trace.nodes
    exported = own_layout(rank.trace, rank.where)
    reader = _Reader(
        where=rank.where,
        rank=rank.rank,
        world=world,
        pg_ranks={**pg_ranks(rank.trace, rank.where), **comm_groups},
        exported=exported,
        skips_cpu=any(node.type == "COMP_NODE" and not node.attributes.get("is_cpu_op") for node in nodes),
        keys=frozenset(node.id for node in nodes),
        groups=list(exported.groups) if exported else [],
    )
    work = [_work(node, reader) for node in nodes]
    if not any(span.operation for span in work):
        raise SimnetError(f"{rank.where}: holds neither compute nor a collective; give the trace of a training step")
    streams = layouts.in_streams(work, _stream_names(work, exported), rank.where)
    if exported is not None:
        return replace(exported, streams=streams)
    notes = []
    for what, (number, seconds) in reader.left_out.items():
        time = f" of {format_seconds(seconds)}" if seconds else ""
        notes.append(f"{rank.where}: {number} {what}{time} are left out; what they wait for is kept")
    if reader.num_unnamed:
        notes.append(
            f"{rank.where}: {reader.num_unnamed} nodes do not name their part of the step: they count as forward"
        )
    return RecordedLayout(
        num_nodes=world.num_nodes,
        ranks_per_node=world.ranks_per_node,
        groups=tuple(reader.groups),
        streams=streams,
        notes=tuple(notes),
    )


def _stream_names(work: Sequence[TracedWork], exported: RecordedLayout | None) -> dict[str, str]:
    """Return the streams in their order, by key: that which computes most is the first one, as in a step file."""
    if exported is not None:
        return {f"{NUMBERED}{number}": stream.name for number, stream in enumerate(exported.streams)}
    weights: dict[str, float] = {}
    for span in work:
        if span.operation is not None:
            computed = span.operation.kind == "compute"
            # A kernel counts even without a time: a stream that computes goes before those that only send.
            weight = 1e-9 + span.operation.seconds + 1e-12 * bytes_of_memory(span.operation) if computed else 0.0
            weights[span.stream] = weights.get(span.stream, 0.0) + weight
    first = max(weights, key=lambda key: weights[key], default=COMPUTE_STREAM)
    if not weights.get(first):
        first = COMPUTE_STREAM
    return {key: key for key in dict.fromkeys([first, *sorted(weights, key=_stream_number)])}


def _stream_number(key: str) -> float:
    """Return the number of a stream, to sort by; those without come last, in the order of the trace."""
    number = key.removeprefix(NUMBERED)
    return float(number) if key.startswith(NUMBERED) and number.isdigit() else math.inf


def _work(node: ChakraNode, reader: _Reader) -> TracedWork:
    if unknown := [key for key in node.data_deps if key not in reader.keys]:
        raise SimnetError(f"{reader.place(node)}: data_deps: {unknown[0]}: there is no such node; {REPAIR}")
    operation, stream = _operation(node, reader)
    return TracedWork(
        key=node.id,
        rank_in_time=(node.start_time_micros, node.id),
        # Converters drop callers that nothing waits for, and leave their numbers in ctrl_deps.
        after=reader.keys.intersection([*node.data_deps, *node.ctrl_deps]),
        stream=stream,
        operation=operation,
    )


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
    part_attribute = node.attributes.get("part")
    if part_attribute in get_args(IterationPart):
        return cast(IterationPart, part_attribute)
    # "optimizer" first: its kernels are often called "adam_grad_update" or the like.
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
    return operation, stream or str(node.attributes.get("pg_name", "")) or WORLD


def _kind(node: ChakraNode, reader: _Reader) -> OperationKind:
    number = node.attributes.get("comm_type")
    if type(number) is not int or not 0 <= number < len(COLLECTIVES):
        raise SimnetError(
            f"{reader.place(node)}: comm_type: {shown(number)}: must be 0 to {len(COLLECTIVES) - 1}; {REPAIR}"
        )
    kind = _OTHER_NAMES.get(COLLECTIVES[number], COLLECTIVES[number])
    if kind in _UNEVEN:
        raise SimnetError(
            f"{reader.place(node)}: comm_type: {kind!r}: one rank does more than the others, and a step file holds "
            "symmetric ranks; trace a run without it"
        )
    return cast(OperationKind, kind)


def _group(node: ChakraNode, reader: _Reader) -> int:
    """Return the number of a collective's group: as simnet wrote it, by its name, by dimensions, or the world."""
    number = node.attributes.get("group")
    if reader.exported is not None and type(number) is int and 0 <= number < len(reader.groups):
        return number
    name, dimensions = str(node.attributes.get("pg_name", "")), node.attributes.get("involved_dim")
    everyone = tuple(range(reader.world.size))
    if name and (name in reader.pg_ranks or name != WORLD_NUMBER):
        if name not in reader.pg_ranks:
            raise SimnetError(
                f"{reader.place(node)}: pg_name: {name!r}: its ranks are not in the trace; give them with "
                f"--comm-groups FILE.{did_you_mean(name, reader.pg_ranks)}"
            )
        ranks = reader.pg_ranks[name] or everyone
    # A name says exactly which ranks; dimensions only stand in where there is none.
    elif isinstance(dimensions, tuple) and not name:
        ranks = of_dimensions([bool(is_spanned) for is_spanned in dimensions], reader.world, reader.place(node))
    else:
        ranks = everyone
    flags = "".join(str(int(bool(is_spanned))) for is_spanned in dimensions) if isinstance(dimensions, tuple) else ""
    title = name or (WORLD if len(ranks) == reader.world.size else f"involved_dim {flags}")
    if reader.rank is not None and reader.rank not in ranks and dimensions is None:
        raise SimnetError(
            f"{reader.place(node)}: rank {reader.rank} is not in its process group {title!r}, {shown(list(ranks))}; "
            "name the file of each rank NAME.RANK.et, and give --nodes and --ranks-per-node of all ranks"
        )
    return layouts.number_of_group(ranks, title, reader.world, reader.groups, reader.place(node))


def _bucket(node: ChakraNode) -> int | None:
    bucket = node.attributes.get("bucket")
    return bucket if type(bucket) is int else None


def _amount(node: ChakraNode, name: str, reader: _Reader) -> float | None:
    """Return a number that a node has, None if it has none."""
    amount = node.attributes.get(name)
    if amount is None:
        return None
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < MAX_AMOUNT:
        raise SimnetError(f"{reader.place(node)}: {name}: {shown(amount)}: must be a number from 0 to 2^63; {REPAIR}")
    return float(amount)


def of_dimensions(involved: Sequence[bool], world: WorldShape, where: str) -> Ranks:
    """Return the ranks of rank 0's group along dimensions of the network: ranks of a node first, then nodes.

    Raises:
        SimnetError: the network has further dimensions, along some of which the group does not reach.
    """
    sizes = (world.ranks_per_node, world.num_nodes)
    if all(involved):
        return tuple(range(world.size))
    if len(involved) > len(sizes) or not any(involved):
        raise SimnetError(
            f"{where}: involved_dim: {shown(list(involved))}: must say for ranks in a node and for nodes, two values, "
            "which of both a collective spans; give pg_name to the nodes, and --comm-groups"
        )
    # The group of rank 0 stands for all: a step file holds symmetric ranks.
    if involved[0]:
        return tuple(range(world.ranks_per_node))
    return tuple(range(0, world.size, world.ranks_per_node))


def read_comm_groups(path: Path) -> Mapping[str, Ranks]:
    """Read ASTRA-sim's file of communicator groups: the ranks of each, by its number."""
    where = files.label(path)
    data = files.read_json(path, unique=False)
    if not isinstance(data, dict):
        raise SimnetError(
            f"{where}: {type(data).__name__}: must hold one object, from names of groups to lists of ranks"
        )
    for name, ranks in data.items():
        check_ranks(ranks, f"{where}: {name}")
    return {name: tuple(ranks) for name, ranks in data.items()}


def check_ranks(ranks: object, where: str) -> None:
    """Check that a value is a list of ranks, each once."""
    is_list = isinstance(ranks, list) and bool(ranks)
    if not is_list or not all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks):  # type: ignore[attr-defined]
        raise SimnetError(f"{where}: {shown(ranks)}: must be a list of ranks, such as [0, 1]")
    if len(set(ranks)) < len(ranks):  # type: ignore[call-overload, arg-type]
        raise SimnetError(f"{where}: {shown(ranks)}: names a rank twice; drop one of both")


def comm_groups(layout: RecordedLayout) -> dict[str, Ranks]:
    """Return the ranks of every process group by its number from 1, as ASTRA-sim's file of communicator groups does.

    The world is none of them: there a collective without a group is one of all ranks.
    """
    ranks_by_number: dict[str, Ranks] = {}
    for _, ranks in _instances(layout):
        ranks_by_number[str(len(ranks_by_number) + 1)] = ranks
    return ranks_by_number


def _instances(layout: RecordedLayout) -> Iterator[tuple[int, Ranks]]:
    """Yield every process group with the number of its shape."""
    for number, group in enumerate(layout.groups):
        if group.size < layout.world_size:
            firsts = dict.fromkeys(layouts.members(group, rank) for rank in range(layout.world_size))
            yield from ((number, ranks) for ranks in firsts)


def traces(layout: RecordedLayout, where: str) -> Iterator[tuple[int, ChakraTrace]]:
    """Yield the trace of every rank, with its number."""
    if layout.world_size > MAX_TRACES:
        raise SimnetError(
            f"{where}: {layout.text}: {layout.world_size} ranks are as many files: at most {MAX_TRACES} are written; "
            "record the step on fewer ranks"
        )
    pg_names: dict[tuple[object, int], str] = {}
    for at, (number, ranks) in enumerate(_instances(layout), start=1):
        pg_names |= {(number, rank): str(at) for rank in ranks}
    empty = replace(layout, streams=tuple(RecordedStream(name=stream.name) for stream in layout.streams))
    known = {key: value for key, value in msgspec.to_builtins(empty).items() if value}
    attributes: Attributes = {LAYOUT_ATTRIBUTE: json.dumps(known, separators=(",", ":"))}
    # Ranks differ in the names of their groups alone, so that all else is made once.
    nodes = list(_nodes(layout))
    for rank in range(layout.world_size):
        named = [
            replace(node, attributes={**node.attributes, "pg_name": name})
            if (name := pg_names.get((node.attributes.get("group"), rank))) is not None
            else node
            for node in nodes
        ]
        yield rank, ChakraTrace(nodes=tuple(named), version=VERSIONS[0], attributes=attributes)


def _nodes(layout: RecordedLayout) -> Iterator[ChakraNode]:
    """Yield the operations as nodes, numbered so that each comes after what it waits for."""
    keys = {place: key for key, place in enumerate(_in_order(layout.streams))}
    for (stream, position), key in keys.items():
        operation = layout.streams[stream].operations[position]
        before = [(stream, position - 1)] if position else []
        deps = tuple(sorted(keys[wait] for wait in [*before, *operation.after]))
        yield _node(operation, key, stream, deps, layout)


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


def _node(
    operation: RecordedOperation, key: int, stream: int, deps: tuple[int, ...], layout: RecordedLayout
) -> ChakraNode:
    is_compute = operation.kind == "compute"
    known = _written_compute(operation) if is_compute else _written_collective(operation, layout)
    kept = {"part": operation.part, "bucket": operation.bucket, "dtype": operation.dtype or None}
    return ChakraNode(
        id=key,
        name=operation.name or f"{operation.part if is_compute else operation.kind}_{key}",
        type="COMP_NODE" if is_compute else "COMM_COLL_NODE",
        data_deps=deps,
        duration_micros=round(operation.seconds * 1e6),
        attributes={
            "is_cpu_op": False,
            "stream": stream,
            **known,
            **{name: value for name, value in kept.items() if value is not None},
        },
    )


def _written_compute(operation: RecordedOperation) -> dict[str, AttributeValue]:
    """Return the amounts of compute: ASTRA-sim's roofline divides by both of them, so that none may be 0."""
    attributes: dict[str, AttributeValue] = {}
    if operation.flops or operation.num_bytes:
        attributes |= {"num_ops": max(1, round(operation.flops)), "tensor_size": max(1, round(operation.num_bytes))}
        attributes |= {"flops": operation.flops, "bytes": operation.num_bytes}
    return attributes | ({"seconds": operation.seconds} if operation.seconds else {})


def _written_collective(operation: RecordedOperation, layout: RecordedLayout) -> dict[str, AttributeValue]:
    """Return type and size: Chakra gives the input of a rank, of an all-gather its part of the whole array."""
    parts = layout.groups[operation.group].size if operation.kind == "all_gather" else 1
    size = round(operation.message_bytes / parts)
    attributes: dict[str, AttributeValue] = {
        "comm_type": COLLECTIVES.index(operation.kind),
        "comm_size": size,
        "group": operation.group,
    }
    return attributes | ({} if size * parts == operation.message_bytes else {"message_bytes": operation.message_bytes})
