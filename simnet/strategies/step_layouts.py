"""A recorded step on other numbers of nodes and ranks than those that it was recorded on.

Groups of a mesh follow the cluster: the world, a node and the rails between nodes stay what they are; of other groups
inner sizes stay, and the outermost takes the rest. Messages follow the law that two or more recordings show; of one
recording they are assumed to stay, but for an all-gather whose group grows, which may hold a part of each rank or a
whole.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

from msgspec.structs import replace

from simnet.core.errors import SimnetError
from simnet.strategies.step_file import RecordedGroup, RecordedLayout, RecordedOperation, RecordedStream, StepFile

KEEPS_WHOLE = ("all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce")
"""Collectives whose message is that of a rank, which more ranks do not make longer."""
CODEC_PARTS = ("encode", "decode")
# A law holds exactly but for rounding; messages may be padded by some elements a rank, compute by a little of its own.
ROUNDING = 1e-9
PADDING_ELEMENTS = 32
COMPUTE_TOLERANCE = 0.02
BYTES_OF: dict[str, int] = {
    "int64": 8, "fp64": 8, "int32": 4, "fp32": 4, "int16": 2, "fp16": 2, "bf16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element; of other formats as many as of the widest."""
Law = Callable[[RecordedLayout], float]
"""How an amount grows: its factor on a layout."""


def at_layout(step: StepFile, num_nodes: int, ranks_per_node: int, where: str) -> RecordedLayout:
    """Return what rank 0 does on a number of nodes and ranks.

    Args:
        step: the recordings.
        num_nodes: wanted nodes.
        ranks_per_node: wanted ranks of each.
        where: how messages call the file.

    Raises:
        SimnetError: the recordings do not tell, or differ in more than sizes.
    """
    for layout in step.recordings:
        if (layout.num_nodes, layout.ranks_per_node) == (num_nodes, ranks_per_node):
            return layout
    first, *others = step.recordings
    for other in others:
        _check_same(first, other, where)
    wanted = replace(first, num_nodes=num_nodes, ranks_per_node=ranks_per_node)
    groups = tuple(_group_at(group, first, wanted, where) for group in first.groups)
    return _Resized(step.recordings, replace(wanted, groups=groups), where).layout()


def _group_at(group: RecordedGroup, recorded: RecordedLayout, wanted: RecordedLayout, where: str) -> RecordedGroup:
    """Return a process group on other nodes and ranks."""
    mesh = group.size, group.stride
    # Of equals the first: on one node the ranks of the node are the world.
    if mesh == (recorded.world_size, 1):
        size, stride = wanted.world_size, 1
    elif mesh == (recorded.ranks_per_node, 1):
        size, stride = wanted.ranks_per_node, 1
    elif mesh == (recorded.num_nodes, recorded.ranks_per_node):
        size, stride = wanted.num_nodes, wanted.ranks_per_node
    elif group.size == 1:
        size, stride = 1, 1
    elif group.size * group.stride == recorded.world_size:
        size, stride = wanted.world_size // group.stride, group.stride
    else:
        size, stride = mesh
    if size < 1 or wanted.world_size % (size * stride):
        raise SimnetError(
            f"{where}: group {group.name!r}: size {group.size}, stride {group.stride} on {recorded.text}: does not "
            f"tile {wanted.text}; choose other nodes, or record this layout"
        )
    return replace(group, size=size, stride=stride)


def _check_same(first: RecordedLayout, other: RecordedLayout, where: str) -> None:
    """Check that two recordings differ in nothing but sizes."""
    for key in ("num_steps", "micro_batches"):
        here, two = getattr(first, key), getattr(other, key)
        if here != two:
            raise _differ(f"{where}: {key}", first, str(here), other, str(two))
    # The groups of the first recording, moved to the ranks of the other, have to be those of the other.
    wanted = replace(other, groups=first.groups)
    groups = [replace(_group_at(group, first, wanted, where), name="") for group in first.groups]
    actual = [replace(group, name="") for group in other.groups]
    if groups != actual:
        raise _differ(f"{where}: groups", first, _groups_text(first.groups), other, _groups_text(other.groups))
    for stream, (of_first, theirs) in enumerate(zip_longest(first.streams, other.streams, fillvalue=RecordedStream())):
        for place, (left, right) in enumerate(zip_longest(of_first.operations, theirs.operations)):
            here, two = _kind_text(first, left), _kind_text(other, right)
            if here != two:
                raise _differ(f"{where}: streams.{stream}.operations.{place}", first, here, other, two)


def _differ(where: str, first: RecordedLayout, of_first: str, other: RecordedLayout, two: str) -> SimnetError:
    rule = "must be the same for a step on other ranks; record it on the ranks that you want"
    return SimnetError(f"{where}: {of_first} on {first.text}, {two} on {other.text}: {rule}")


def _groups_text(groups: Sequence[RecordedGroup]) -> str:
    return " and ".join(f"size {group.size}, stride {group.stride}" for group in groups) or "none"


def _kind_text(layout: RecordedLayout, operation: RecordedOperation | None) -> str:
    """Return what tells an operation from others, without its sizes."""
    if operation is None:
        return "nothing"
    what = (
        f"compute of {operation.part}"
        if operation.kind == "compute"
        else f"{operation.kind} in group {layout.groups[operation.group].name!r}"
    )
    bucket = "" if operation.bucket is None else f" of bucket {operation.bucket}"
    return f"{what}{bucket}" + "".join(f", after {stream}.{position}" for stream, position in operation.after)


class _Resized:
    """A step on its way to another layout."""

    def __init__(self, recordings: Sequence[RecordedLayout], wanted: RecordedLayout, where: str) -> None:
        """Take recordings that differ in sizes alone, and the wanted layout with its groups."""
        self._recordings, self._wanted, self._where = recordings, wanted, where
        # By ratio: 16 ranks are as near to 8 as to 32.
        ratios = [abs(math.log(recording.world_size / wanted.world_size)) for recording in recordings]
        self._nearest = ratios.index(min(ratios))
        self._assumed: Counter[str] = Counter()

    def layout(self) -> RecordedLayout:
        """Return the wanted layout."""
        streams = tuple(
            replace(stream, operations=tuple(self._operation(number, place) for place in range(len(stream.operations))))
            for number, stream in enumerate(self._wanted.streams)
        )
        return replace(self._wanted, streams=streams, notes=(*self._wanted.notes, *self._notes()))

    def _operation(self, stream: int, place: int) -> RecordedOperation:
        each = [layout.streams[stream].operations[place] for layout in self._recordings]
        if each[0].kind == "compute":
            return self._compute(each)
        if each[0].kind == "barrier":
            return each[0]
        return replace(each[0], message_bytes=self._message_bytes(each, f"streams.{stream}.operations.{place}"))

    def _compute(self, each: Sequence[RecordedOperation]) -> RecordedOperation:
        if each[0].part in CODEC_PARTS and len(each) == 1:
            self._assumed["compute of " + str(each[0].part)] += 1
        amounts = {
            key: _compute_at([getattr(operation, key) for operation in each], self._recordings, self._wanted)
            for key in ("flops", "num_bytes")
        }
        # Seconds differ by chance, too: no line is drawn through them.
        return replace(each[0], **amounts, seconds=each[self._nearest].seconds)

    def _message_bytes(self, each: Sequence[RecordedOperation], place: str) -> float:
        first = each[0]
        amounts = [operation.message_bytes for operation in each]
        laws = _laws_of_message(amounts, first, self._recordings)
        sizes = [_unit(amounts, law, self._recordings) * law(self._wanted) for law in laws]
        # Several laws may fit the recordings: where all give one size, it does not matter which holds.
        if sizes and max(sizes) <= min(sizes) * (1 + ROUNDING):
            return sizes[0]
        if sizes and first.kind in KEEPS_WHOLE and _constant in laws:
            if self._wanted.groups[first.group].size != self._recordings[0].groups[first.group].size:
                self._assumed[first.kind] += 1
            return first.message_bytes
        raise SimnetError(f"{self._where}: {place}: {self._why_not(first, bool(sizes))}")

    def _why_not(self, operation: RecordedOperation, is_open: bool) -> str:
        group, wanted = self._recordings[0].groups[operation.group], self._wanted
        what = f"{operation.kind} in group {group.name!r} of {group.size} ranks"
        if is_open:
            if all(layout.ranks_per_node != wanted.ranks_per_node for layout in self._recordings):
                repair = f"record a step with simnet record --ranks-per-node {wanted.ranks_per_node}"
                return f"{what}: for {wanted.text} a message may grow with the ranks or stay; {repair}"
            nodes = sorted({wanted.num_nodes, *(layout.num_nodes for layout in self._recordings)})
            return (
                f"{what}: for {wanted.text} a message may grow with the ranks or stay; record a second layout, such as "
                f"simnet record --nodes {','.join(map(str, nodes))}"
            )
        return f"{what}: no law fits its messages on all recordings; record {wanted.text}, too"

    def _notes(self) -> list[str]:
        texts = ", ".join(f"{number} {kind}" for kind, number in self._assumed.items())
        recorded = " and ".join(layout.text for layout in self._recordings)
        notes = [f"the recorded step is of {recorded}, resized to {self._wanted.text}"]
        if texts:
            notes.append(f"sizes assumed from one recording to be the same on {self._wanted.text}: {texts}")
        if all(layout.ranks_per_node != self._wanted.ranks_per_node for layout in self._recordings):
            notes.append(
                f"no recording has {self._wanted.ranks_per_node} ranks per node: messages in nodes are assumed"
            )
        return notes


def _constant(_: RecordedLayout) -> float:
    return 1.0


def _of_group(number: int, layout: RecordedLayout) -> float:
    """Return the factor of what every rank of a group adds to."""
    return float(layout.groups[number].size)


def _dimensions(layout: RecordedLayout) -> tuple[int, ...]:
    """Return every number that an amount may be shared out by: world, nodes, ranks of a node, groups."""
    return (layout.world_size, layout.num_nodes, layout.ranks_per_node, *(group.size for group in layout.groups))


def _share(index: int, layout: RecordedLayout) -> float:
    return 1.0 / _dimensions(layout)[index]


def _whole(share: Law, layout: RecordedLayout) -> float:
    return 1.0 / share(layout)


def _shares(recorded: Sequence[RecordedLayout]) -> Iterator[Law]:
    """Yield the laws of what is shared out by a dimension that differs between the recordings."""
    for index, sizes in enumerate(zip(*map(_dimensions, recorded), strict=True)):
        if len(set(sizes)) > 1:
            yield partial(_share, index)


def _unit(amounts: Sequence[float], law: Law, recorded: Sequence[RecordedLayout]) -> float:
    return min(amount / law(layout) for amount, layout in zip(amounts, recorded, strict=True))


def _laws_of_message(
    amounts: Sequence[float], message: RecordedOperation, recorded: Sequence[RecordedLayout]
) -> list[Law]:
    """Return the laws that the bytes of a message follow: those that hold to the byte, else the nearest one."""
    candidates: list[Law] = [_constant, partial(_of_group, message.group), *_shares(recorded)]
    misses = [_miss_bytes(amounts, message.dtype, law, recorded) for law in candidates]
    exact = [law for miss, law in zip(misses, candidates, strict=True) if miss <= ROUNDING * max(amounts)]
    padded = [(miss, number) for number, miss in enumerate(misses) if miss < math.inf]
    return exact or ([candidates[min(padded)[1]]] if padded else [])


def _miss_bytes(amounts: Sequence[float], dtype: str, law: Law, recorded: Sequence[RecordedLayout]) -> float:
    """Return the most bytes by which a message is larger than by a law; infinite beyond its padding."""
    unit, most = _unit(amounts, law, recorded), 0.0
    for amount, layout in zip(amounts, recorded, strict=True):
        miss = amount - unit * law(layout)
        # Slices of a node are padded for all nodes, so that every rank may round up.
        if miss > float(PADDING_ELEMENTS * BYTES_OF.get(dtype, 8) * layout.world_size):
            return math.inf
        most = max(most, miss)
    return most


def _compute_at(amounts: Sequence[float], recorded: Sequence[RecordedLayout], wanted: RecordedLayout) -> float:
    """Return an amount of compute on a layout: by a law, else along a line over the ranks, else as recorded nearest."""
    low, high = min(amounts), max(amounts)
    if high <= low * (1 + ROUNDING):
        return low
    known = tuple(_shares(recorded))
    laws: list[Law] = [*(partial(_whole, share) for share in known), *known]
    for law in laws:
        units = [amount / law(layout) for amount, layout in zip(amounts, recorded, strict=True)]
        if max(units) <= min(units) * (1 + COMPUTE_TOLERANCE):
            return sum(units) / len(units) * law(wanted)
    points = sorted(zip((layout.world_size for layout in recorded), amounts, strict=True))
    ranks = wanted.world_size
    (first, at_first), (second, at_second) = sorted(points, key=lambda point: abs(math.log(point[0] / ranks)))[:2]
    slope = (at_second - at_first) / (second - first) if second != first else 0.0
    return at_first + slope * (ranks - first) if slope > 0 else at_first
