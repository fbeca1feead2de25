"""What traces of any program need to become the layout of a step file: the world, process groups, streams, alike ranks.

A trace names ranks; a step file has groups of one size and stride that tile the world. A trace names any earlier work;
a stream knows what it has waited for already. A clock for each piece of work (how much of every stream has ended before
it) says which waits are left to be written.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from simnet.core.bounded_types import MAX_RANKS
from simnet.core.errors import SimnetError, cut, shown
from simnet.core.units import format_bytes
from simnet.strategies.step_file import RecordedGroup, RecordedLayout, RecordedOperation, RecordedStream

Ranks = tuple[int, ...]
WORLD = "world"
MAX_NAME = 80
_REPAIR = "a step has groups of one size, evenly spaced, that tile the world"


class WorldShape(Struct, frozen=True, kw_only=True):
    """How many nodes, and how many ranks in each."""

    num_nodes: int
    ranks_per_node: int

    @property
    def size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node


def world_shape(
    num_nodes: int | None, ranks_per_node: int | None, world_size: int | None, gpus: int | None, where: str
) -> WorldShape:
    """Return the world from nodes and ranks that the user gives, and from its ranks and GPUs of a node in the trace.

    Each of the four may be None; `where` is how messages call the trace.
    """
    if world_size == 1:
        num_nodes, ranks_per_node = num_nodes or 1, ranks_per_node or 1
    if ranks_per_node is None and gpus and world_size and num_nodes is None:
        # A node may have more GPUs than the run used.
        ranks_per_node = min(gpus, world_size)
    if world_size is not None:
        num_nodes = num_nodes or (world_size // ranks_per_node if ranks_per_node else None)
        ranks_per_node = ranks_per_node or (world_size // num_nodes if num_nodes else None)
    if not num_nodes or not ranks_per_node:
        tells = "a trace does not say" if world_size is None else f"the trace has {world_size} ranks and does not say"
        option = "--nodes N --ranks-per-node G" if world_size is None else "--ranks-per-node G"
        raise SimnetError(f"{where}: {tells} on how many nodes they are; add {option}")
    world = WorldShape(num_nodes=num_nodes, ranks_per_node=ranks_per_node)
    if world_size is not None and world.size != world_size:
        raise SimnetError(
            f"{where}: {num_nodes} nodes of {ranks_per_node} ranks: the trace has {world_size} ranks; "
            "give --nodes and --ranks-per-node whose product is that"
        )
    if world.size > MAX_RANKS:
        raise SimnetError(f"{where}: {num_nodes} nodes of {ranks_per_node} ranks: at most {MAX_RANKS} ranks")
    return world


def shape_of(ranks: Sequence[int], name: str, world: WorldShape, where: str) -> RecordedGroup:
    """Return the shape of a process group.

    Raises:
        SimnetError: the ranks are not evenly spaced, or groups of their shape do not tile the world.
    """
    ordered = sorted(ranks)
    stride = ordered[1] - ordered[0] if len(ordered) > 1 else 1
    is_even = ordered == list(range(ordered[0], ordered[0] + stride * len(ordered), stride)) if stride else False
    place = f"{where}: process group {name!r}: ranks {shown(list(ranks))}"
    if not is_even:
        raise SimnetError(f"{place}: not evenly spaced: {_REPAIR}")
    if ordered[-1] >= world.size:
        raise SimnetError(f"{place}: there are {world.size} ranks; give other --nodes and --ranks-per-node")
    block = stride * len(ordered)
    # Of a tiling, the first rank of each group stands in the first `stride` places of a block.
    if world.size % block or ordered[0] % block >= stride:
        raise SimnetError(f"{place}: do not tile {world.num_nodes} x {world.ranks_per_node} ranks: {_REPAIR}")
    return RecordedGroup(name=name, size=len(ordered), stride=stride)


def number_of_group(ranks: Sequence[int], name: str, world: WorldShape, groups: list[RecordedGroup], where: str) -> int:
    """Return the number among groups of the one of these ranks; one of a new shape is added."""
    group = shape_of(ranks, name, world, where)
    for number, known in enumerate(groups):
        if (known.size, known.stride) == (group.size, group.stride):
            return number
    groups.append(group)
    return len(groups) - 1


def members(group: RecordedGroup, rank: int) -> Ranks:
    """Return the ranks of the group of a shape that a rank is in."""
    block = group.size * group.stride
    first = rank // block * block + rank % group.stride
    return tuple(range(first, first + block, group.stride))


Clock = list[int]
"""How many operations of each stream have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWork:
    """A piece of work of a trace.

    Attributes:
        key: its number in the trace.
        rank_in_time: what the trace says of the order: of two that may run, the smaller one runs first.
        after: numbers of what must have ended.
        stream: key of the stream that runs it; "" for what is no work of the GPU and only passes on its waits.
        operation: what it does; None where there is no stream.
    """

    key: int
    rank_in_time: tuple[float, ...]
    after: frozenset[int]
    stream: str = ""
    operation: RecordedOperation | None = None


def in_streams(work: Sequence[TracedWork], names: Mapping[str, str], where: str) -> tuple[RecordedStream, ...]:
    """Return all the work of a trace as streams, whose names stand by their keys in their order."""
    numbers = {name: number for number, name in enumerate(names)}
    streams: list[list[RecordedOperation]] = [[] for _ in names]
    clocks: dict[int, Clock] = {}
    # The clock of each operation by its place, for what another one implies; the last one is the stream's own.
    ended: list[list[Clock]] = [[] for _ in names]
    for span in _in_order(work, where):
        # Clocks merge as vector clocks do: whoever waits for two knows what both knew.
        needed = _latest([clocks[key] for key in span.after], len(names))
        if span.operation is None:
            clocks[span.key] = needed
            continue
        stream = numbers[span.stream]
        stream_clock = ended[stream][-1] if streams[stream] else [0] * len(names)
        waits = tuple(_waits(needed, stream_clock, stream, ended))
        streams[stream].append(replace(span.operation, after=waits))
        clock = _latest([stream_clock, needed], len(names))
        # Who waits for it later knows that it has ended, too.
        clock[stream] = len(streams[stream])
        ended[stream].append(clock)
        clocks[span.key] = clock
    pairs = zip(names.values(), streams, strict=True)
    return tuple(RecordedStream(name=name, operations=tuple(operations)) for name, operations in pairs)


def _latest(clocks: Sequence[Clock], length: int) -> Clock:
    return [max(counts) for counts in zip(*clocks, strict=True)] if clocks else [0] * length


def _waits(
    needed: Clock, stream_clock: Clock, stream: int, ended: Sequence[Sequence[Clock]]
) -> Iterator[tuple[int, int]]:
    """Yield what is left to wait for: of each other stream the latest, unless another of these waits for that."""
    # What the stream has waited for before is said by its order.
    left = {other: count for other, count in enumerate(needed) if other != stream and count > stream_clock[other]}
    for other, count in left.items():
        if not any(third != other and ended[third][many - 1][other] >= count for third, many in left.items()):
            yield other, count - 1


def _in_order(work: Sequence[TracedWork], where: str) -> Iterator[TracedWork]:
    """Yield the work so that all comes after what it waits for, else in the order of the trace."""
    by_key = {span.key: span for span in work}
    followers: dict[int, list[int]] = {key: [] for key in by_key}
    missing = {span.key: len(span.after) for span in work}
    for span in work:
        for key in span.after:
            followers[key].append(span.key)
    ready = [(span.rank_in_time, span.key) for span in work if not span.after]
    # A heap, so that the order of the trace decides between what may run at once, and not that of the file.
    heapq.heapify(ready)
    while ready:
        _, key = heapq.heappop(ready)
        del missing[key]
        yield by_key[key]
        for follower in followers[key]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (by_key[follower].rank_in_time, follower))
    if missing:
        raise SimnetError(f"{where}: {_circle(by_key, missing)}: waits must not form a circle; make the trace again")


def _circle(by_key: Mapping[int, TracedWork], stuck: Mapping[int, int]) -> str:
    """Return a circle of waits for people: "node 3 waits for 5, for 3"."""
    # Every node that is stuck waits for one that is stuck, so that the walk must come back to itself.
    chain = [min(stuck)]
    while (following := min(key for key in by_key[chain[-1]].after if key in stuck)) not in chain:
        chain.append(following)
    circle = [*chain[chain.index(following) :], following]
    first, *others = map(str, circle)
    return cut(f"node {first} waits for {', for '.join(others)}", 120)


def merged(streams: Sequence[RecordedStream]) -> tuple[RecordedStream, ...]:
    """Return the streams with neighbours joined that compute in one part of the step, with no wait between them."""
    waited_for = {wait for stream in streams for operation in stream.operations for wait in operation.after}
    places: dict[tuple[int, int], tuple[int, int]] = {}
    joined: list[list[RecordedOperation]] = []
    for number, stream in enumerate(streams):
        operations: list[RecordedOperation] = []
        for position, operation in enumerate(stream.operations):
            # A wait for the first of two must not become one for both.
            if operations and (number, position - 1) not in waited_for and _is_same(operations[-1], operation):
                operations[-1] = _sum(operations[-1], operation)
            else:
                operations.append(operation)
            places[number, position] = (number, len(operations) - 1)
        joined.append(operations)
    return tuple(
        RecordedStream(
            name=stream.name,
            operations=tuple(
                replace(operation, after=tuple(places[wait] for wait in operation.after)) for operation in operations
            ),
        )
        for stream, operations in zip(streams, joined, strict=True)
    )


def _is_same(first: RecordedOperation, second: RecordedOperation) -> bool:
    return first.kind == second.kind == "compute" and first.part == second.part and not second.after


def _sum(first: RecordedOperation, second: RecordedOperation) -> RecordedOperation:
    return replace(
        first,
        flops=first.flops + second.flops,
        num_bytes=first.num_bytes + second.num_bytes,
        seconds=first.seconds + second.seconds,
    )


def joined(layouts: Sequence[RecordedLayout], places: Sequence[str]) -> RecordedLayout:
    """Return the layout of all ranks: that of the first one, with the mean of the seconds of compute of all.

    `places` are how messages call the trace of each.
    """
    # Symmetric ranks differ by noise alone, which the mean evens out; structure is taken from the first.
    first = layouts[0]
    for layout, place in zip(layouts[1:], places[1:], strict=True):
        _check_alike(first, layout, places[0], place)
    streams = tuple(
        RecordedStream(
            name=stream.name,
            operations=tuple(
                _mean([layout.streams[number].operations[position] for layout in layouts])
                for position in range(len(stream.operations))
            ),
        )
        for number, stream in enumerate(first.streams)
    )
    return replace(first, streams=streams)


def _mean(operations: Sequence[RecordedOperation]) -> RecordedOperation:
    seconds = sum(operation.seconds for operation in operations) / len(operations)
    return replace(operations[0], seconds=seconds) if len(operations) > 1 else operations[0]


def _check_alike(first: RecordedLayout, other: RecordedLayout, first_place: str, place: str) -> None:
    rule = "a step file holds symmetric ranks; give traces of ranks that are alike"
    if len(first.streams) != len(other.streams):
        raise SimnetError(f"{place}: has {len(other.streams)} streams, {first_place} has {len(first.streams)}: {rule}")
    for number, (stream, other_stream) in enumerate(zip(first.streams, other.streams, strict=True)):
        pairs = list(zip(stream.operations, other_stream.operations, strict=False))
        for position, (expected, differing) in enumerate(pairs):
            if _essence(expected, first) != _essence(differing, other):
                raise SimnetError(
                    f"{place}: operation {position} of stream {number} is {_text(differing, other)}, in {first_place} "
                    f"{_text(expected, first)}: {rule}"
                )
        if len(stream.operations) != len(other_stream.operations):
            raise SimnetError(
                f"{place}: stream {number} has {len(other_stream.operations)} operations, in {first_place} "
                f"{len(stream.operations)}: {rule}"
            )


def _essence(operation: RecordedOperation, layout: RecordedLayout) -> tuple[object, ...]:
    """Return what must be alike; work of the GPU alone may differ."""
    if operation.kind == "compute":
        return operation.kind, operation.after
    group = layout.groups[operation.group]
    return operation.kind, group.size, group.stride, operation.message_bytes, operation.after


def _text(operation: RecordedOperation, layout: RecordedLayout) -> str:
    waits = f" after {[list(wait) for wait in operation.after]}" if operation.after else ""
    if operation.kind == "compute":
        return f"compute{waits}"
    group = layout.groups[operation.group]
    shape = f"{group.size} ranks" + (f", stride {group.stride}" if group.stride > 1 else "")
    return f"{operation.kind} of {format_bytes(operation.message_bytes)} on {shape}{waits}"


def with_bytes(layout: RecordedLayout, where: str, says: str) -> RecordedLayout:
    """Return the layout of a step, with a note where some collectives carry nothing; the trace says bytes by `says`.

    Raises:
        SimnetError: none carries anything: then the trace does not say the bytes.
    """
    sent = [operation for operation in layout.operations if operation.kind not in {"compute", "barrier"}]
    empty = sum(operation.message_bytes == 0 for operation in sent)
    if empty and empty == len(sent):
        raise SimnetError(
            f"{where}: {says}: 0 in all {empty} collectives: a collective must say its bytes; make the trace again"
        )
    if not empty:
        return layout
    note = f"{where}: {empty} of {len(sent)} collectives carry 0 bytes, as the trace says: they take latency"
    return replace(layout, notes=(*layout.notes, note))
