"""Are ranks alike? A step file holds what one rank does, so the traces of several must tell the same step."""

from collections.abc import Sequence

import msgspec

from simnet.core.errors import SimnetError
from simnet.core.units import format_bytes
from simnet.strategies.step_file import RecordedLayout, RecordedOperation, RecordedStream


def joined(layouts: Sequence[RecordedLayout], places: Sequence[str]) -> RecordedLayout:
    """Return the layout of all ranks: that of the first one, with the mean of the seconds of compute of all.

    Args:
        layouts: of one rank each.
        places: how messages call the trace of each.

    Raises:
        SimnetError: two ranks differ in more than seconds.
    """
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
    return msgspec.structs.replace(first, streams=streams)


def _mean(operations: Sequence[RecordedOperation]) -> RecordedOperation:
    seconds = sum(one.seconds for one in operations) / len(operations)
    return msgspec.structs.replace(operations[0], seconds=seconds) if len(operations) > 1 else operations[0]


def _check_alike(first: RecordedLayout, other: RecordedLayout, first_place: str, place: str) -> None:
    rule = "a step file holds symmetric ranks; give traces of ranks that are alike"
    if len(first.streams) != len(other.streams):
        raise SimnetError(f"{place}: has {len(other.streams)} streams, {first_place} has {len(first.streams)}: {rule}")
    for number, (stream, given) in enumerate(zip(first.streams, other.streams, strict=True)):
        pairs = list(zip(stream.operations, given.operations, strict=False))
        for position, (expected, found) in enumerate(pairs):
            if _essence(expected, first) != _essence(found, other):
                raise SimnetError(
                    f"{place}: operation {position} of stream {number} is {_text(found, other)}, in {first_place} "
                    f"{_text(expected, first)}: {rule}"
                )
        if len(stream.operations) != len(given.operations):
            raise SimnetError(
                f"{place}: stream {number} has {len(given.operations)} operations, in {first_place} "
                f"{len(stream.operations)}: {rule}"
            )


def _essence(one: RecordedOperation, layout: RecordedLayout) -> tuple[object, ...]:
    """Return what must be alike; work of the GPU alone may differ."""
    if one.kind == "compute":
        return one.kind, one.after
    group = layout.groups[one.group]
    return one.kind, group.size, group.stride, one.message_bytes, one.after


def _text(one: RecordedOperation, layout: RecordedLayout) -> str:
    waits = f" after {[list(wait) for wait in one.after]}" if one.after else ""
    if one.kind == "compute":
        return f"compute{waits}"
    group = layout.groups[one.group]
    shape = f"{group.size} ranks" + (f", stride {group.stride}" if group.stride > 1 else "")
    return f"{one.kind} of {format_bytes(one.message_bytes)} on {shape}{waits}"
