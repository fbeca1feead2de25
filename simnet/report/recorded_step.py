"""What a recorded step holds, as a page, as rows and as an object: layouts, streams, collectives, compute and waits."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct, structs

from simnet.core.units import format_bytes, format_seconds
from simnet.report.rows import Field, cell
from simnet.report.table import Column, Page, Table
from simnet.report.text import count_text, hanging, printable
from simnet.strategies.step_file import RecordedLayout, RecordedOperation, StepFile

NO_NUMBER = "-"
Place = tuple[int, int]
"""Of an operation: the number of its stream, and its place there."""


class Operations(Struct, frozen=True, kw_only=True):
    """The operations of one kind on a stream: a row of the table, of the CSV file and of the JSON.

    Those of a group say what they send and how many of them compute waits for, others what they compute.
    """

    stream: str
    operations: str
    group: str | None = None
    number: int
    message_bytes: float | None = None
    largest_bytes: float | None = None
    flops: float | None = None
    memory_bytes: float | None = None
    seconds: float | None = None
    waits: int | None = None
    exposed_waits: int | None = None


def step_page(step: StepFile) -> Page:
    """Return what `simnet show` prints of a recorded step."""
    source = step.source
    known = filter(None, (source.command, source.torch and f"torch {source.torch}", source.gpu or source.device))
    lines = hanging("source   ", printable(f"{source.how}, compute {source.compute}: {', '.join(known)}"))
    for layout in step.recordings:
        lines += hanging("layout   ", _summary(layout))
    notes = dict.fromkeys(note for layout in step.recordings for note in layout.notes)
    lines += ["", *(line for note in notes for line in hanging("note: ", printable(note)))] if notes else []
    cells = ([layout.text, *(column.cell(row) for column in COLUMNS)] for layout, row in _rows(step))
    return Page([*lines, "", Table(["layout", *COLUMNS], cells)])


def csv_table(step: StepFile) -> Table:
    """Return the rows with plain numbers."""
    cells = ([layout.text, *map(cell, structs.astuple(row))] for layout, row in _rows(step))
    return Table(["layout", *Operations.__struct_fields__], cells)


def _rows(step: StepFile) -> Iterator[tuple[RecordedLayout, Operations]]:
    return ((layout, row) for layout in step.recordings for row in operations_of(layout))


def communication_text(step: StepFile) -> list[str]:
    """Return what is communicated, a sentence for each kind of collective; a warning where there is none.

    Example: "2 all_reduce on world (4 ranks), 12 MB; compute waits for 2 of them, 1 with nothing to do meanwhile".
    """
    sentences = []
    for layout in step.recordings:
        sent = [row for row in operations_of(layout) if row.message_bytes is not None]
        for row in sent:
            idle = f", {row.exposed_waits} with nothing to do meanwhile" if row.waits else ""
            sentences.append(
                f"{row.number} {row.operations} on {row.group}, {format_bytes(row.message_bytes or 0.0)}; compute "
                f"waits for {row.waits or 'none'} of them{idle}"
            )
        if not sent and layout.world_size > 1:
            sentences.append(
                f"warning: {layout.text} that never communicate: no collective is in the trace; profile whole steps of "
                "training on several ranks, and look whether their collectives have names of a known library"
            )
    return sentences


def operations_of(layout: RecordedLayout) -> Iterator[Operations]:
    """Yield each kind of operation of each stream."""
    waited, exposed = _waits(layout)
    for number, stream in enumerate(layout.streams):
        by_kind: dict[tuple[str, int | None], dict[Place, RecordedOperation]] = defaultdict(dict)
        for position, operation in enumerate(stream.operations):
            is_compute = operation.kind == "compute"
            kind = (str(operation.part), None) if is_compute else (operation.kind, operation.group)
            by_kind[kind][number, position] = operation
        for (kind_text, group), places in by_kind.items():
            same = places.values()
            row = partial(Operations, stream=_stream_name(layout, number), operations=kind_text, number=len(same))
            if group is None:
                yield row(
                    flops=sum(operation.flops for operation in same),
                    memory_bytes=sum(operation.num_bytes for operation in same),
                    seconds=sum(operation.seconds for operation in same),
                )
            else:
                yield row(
                    group=_group_name(layout, group),
                    message_bytes=sum(operation.message_bytes for operation in same),
                    largest_bytes=max(operation.message_bytes for operation in same),
                    waits=len(places.keys() & waited),
                    exposed_waits=len(places.keys() & exposed),
                )


def _number(title: str, key: str, text: Callable[[float], str]) -> Column:
    """Return a column of numbers, of which those that are not known or zero are not written."""
    return Column(title, "right", cell=lambda row: text(value) if (value := getattr(row, key)) else NO_NUMBER)


COLUMNS = (
    Column("stream", cell=lambda row: row.stream),
    Column("operations", cell=lambda row: row.operations),
    Column("group", cell=lambda row: row.group or NO_NUMBER),
    Column("number", "right", cell=lambda row: str(row.number)),
    _number("messages", "message_bytes", format_bytes),
    _number("largest", "largest_bytes", format_bytes),
    _number("FLOPs", "flops", lambda flops: f"{flops:.3g}"),
    _number("memory", "memory_bytes", format_bytes),
    _number("time", "seconds", format_seconds),
    Column(
        "exposed waits",
        "right",
        cell=lambda row: NO_NUMBER if row.waits is None else f"{row.exposed_waits} of {row.waits}",
    ),
)
"""Of the table, behind the layout."""


LAYOUT = (
    Field("num_nodes", "", int, "nodes"),
    Field("ranks_per_node", "", int, "ranks of a node"),
    Field("num_steps", "", int, "steps, after which they repeat"),
    Field("micro_batches", "", int, "micro-batches of a step"),
    Field("gradient_bytes", "B", float, "gradients"),
    Field("num_buckets", "", int, "buckets", of=lambda layout: len(_buckets(layout))),
    Field("notes", "", list, "notes"),
    Field("operations", "", list, "operations", of=lambda layout: list(operations_of(layout))),
)
FIELDS = (
    Field("source", "", dict, "where the step comes from"),
    Field("layouts", "", list, "layouts", of="recordings", parts=LAYOUT),
)
"""Of a recorded step, as JSON says it."""


def _summary(layout: RecordedLayout) -> str:
    steps = count_text(layout.num_steps, "step")
    parts = [steps if layout.num_steps == 1 else f"{steps}, after which they repeat"]
    parts.append(count_text(layout.micro_batches, "micro-batch").replace("batchs", "batches"))
    parts.append(f"gradients {format_bytes(layout.gradient_bytes)}")
    parts.append(count_text(len(layout.streams), "stream"))
    if buckets := _buckets(layout):
        parts.append(count_text(len(buckets), "bucket"))
    if all(operation.kind == "compute" for operation in layout.operations):
        parts.append("never communicates")
    return f"{layout.text}: {', '.join(parts)}"


def _buckets(layout: RecordedLayout) -> set[int]:
    return {operation.bucket for operation in layout.operations if operation.bucket is not None}


def _group_name(layout: RecordedLayout, number: int) -> str:
    group = layout.groups[number]
    name = printable(group.name) or f"group {number}"
    return f"{name} ({count_text(group.size, 'rank')}{f', stride {group.stride}' if group.stride > 1 else ''})"


def _stream_name(layout: RecordedLayout, number: int) -> str:
    return printable(layout.streams[number].name) or f"stream {number}"


def _waits(layout: RecordedLayout) -> tuple[set[Place], set[Place]]:
    """Return the collectives that compute waits for, and those of them that nothing computed since can have hidden.

    Who waits for one has waited for all before it on its stream. What is not hidden was made ready by the operation
    before the waiting one.
    """
    latest: dict[int, int] = {}
    exposed: set[Place] = set()
    for number, stream in enumerate(layout.streams):
        for position, operation in enumerate(stream.operations):
            # Collectives wait for each other without a loss: only a wait of compute costs time.
            for other, place in operation.after if operation.kind == "compute" else ():
                sent = layout.streams[other].operations[place]
                if sent.kind == "compute":
                    continue
                # A stream runs in order: what comes before this one is over, too.
                latest[other] = max(place, latest.get(other, 0))
                begun = [before for on, before in sent.after if on == number]
                # Nothing was computed between what made it ready and the wait.
                if begun and max(begun) == position - 1:
                    exposed.add((other, place))
    waited = {(number, at) for number, last in latest.items() for at in range(last + 1)}
    return waited, exposed
