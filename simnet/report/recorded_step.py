"""What a recorded step holds, as a page, as rows and as an object: layouts, streams, collectives, compute and waits."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs

from simnet.core.units import format_bytes, format_seconds
from simnet.report.page import Page
from simnet.report.table import Column, Table
from simnet.report.text import count_text, hanging, printable
from simnet.strategies.step_file import RecordedLayout, RecordedOperation, StepFile

NO_NUMBER = "-"
Row = dict[str, Any]
COMPUTED = {"flops": "flops", "memory_bytes": "num_bytes", "seconds": "seconds"}
"""Columns of what is computed, each with the field of an operation that they add up."""
Place = tuple[int, int]
"""Of an operation: the number of its stream, and its place there."""


def step_page(step: StepFile) -> Page:
    """Return what `simnet show` prints of a recorded step."""
    source = step.source
    known = filter(None, (source.command, source.torch and f"torch {source.torch}", source.gpu or source.device))
    lines = hanging("source   ", printable(f"{source.how}, compute {source.compute}: {', '.join(known)}"))
    for layout in step.recordings:
        lines += hanging("layout   ", _summary(layout))
    notes = dict.fromkeys(note for layout in step.recordings for note in layout.notes)
    lines += ["", *(line for note in notes for line in hanging("note: ", printable(note)))] if notes else []
    return Page([*lines, "", Table.of(COLUMNS, rows(step))])


def csv_table(step: StepFile) -> Table:
    """Return the rows with plain numbers."""
    cells = list(rows(step))
    return Table(list(cells[0]), [["" if cell is None else str(cell) for cell in row.values()] for row in cells])


def to_object(step: StepFile) -> dict[str, object]:
    """Return the same as plain data."""
    layouts = [
        {
            "num_nodes": layout.num_nodes,
            "ranks_per_node": layout.ranks_per_node,
            "num_steps": layout.num_steps,
            "micro_batches": layout.micro_batches,
            "gradient_bytes": layout.gradient_bytes,
            "num_buckets": len(_buckets(layout)),
            "notes": list(layout.notes),
            "operations": [{key: cell for key, cell in row.items() if key != "layout"} for row in _rows(layout)],
        }
        for layout in step.recordings
    ]
    return {"source": structs.asdict(step.source), "layouts": layouts}


def rows(step: StepFile) -> Iterator[Row]:
    """Yield a row for each kind of operation of each stream of each layout."""
    for layout in step.recordings:
        yield from _rows(layout)


def communication_text(step: StepFile) -> list[str]:
    """Return what is communicated, a sentence for each kind of collective; a warning where there is none.

    Example: "2 all_reduce on world (4 ranks), 12 MB; compute waits for 2 of them, 1 with nothing to do meanwhile".
    """
    sentences = []
    for layout in step.recordings:
        sent = [row for row in _rows(layout) if row["group"] is not None]
        for row in sent:
            idle = f", {row['exposed_waits']} with nothing to do meanwhile" if row["waits"] else ""
            sentences.append(
                f"{row['number']} {row['operations']} on {row['group']}, {format_bytes(row['message_bytes'])}; compute "
                f"waits for {row['waits'] or 'none'} of them{idle}"
            )
        if not sent and layout.world_size > 1:
            sentences.append(
                f"warning: {layout.text} that never communicate: no collective is in the trace; profile whole steps of "
                "training on several ranks, and look whether their collectives have names of a known library"
            )
    return sentences


def _rows(layout: RecordedLayout) -> Iterator[Row]:
    waited, exposed = _waits(layout)
    for number, stream in enumerate(layout.streams):
        by_kind: dict[tuple[str, int | None], dict[Place, RecordedOperation]] = defaultdict(dict)
        for position, operation in enumerate(stream.operations):
            is_compute = operation.kind == "compute"
            kind = (str(operation.part), None) if is_compute else (operation.kind, operation.group)
            by_kind[kind][number, position] = operation
        for (kind_text, group), places in by_kind.items():
            operations = places.values()
            row: Row = {"layout": layout.text, "stream": _stream_name(layout, number), "operations": kind_text}
            row |= {"group": None if group is None else _group_name(layout, group), "number": len(operations)}
            # Operations of a group say what they send, others what they compute.
            if group is not None:
                sent = [operation.message_bytes for operation in operations]
                row |= {"message_bytes": sum(sent), "largest_bytes": max(sent)} | dict.fromkeys(COMPUTED)
                waits: Row = {"waits": len(places.keys() & waited), "exposed_waits": len(places.keys() & exposed)}
            else:
                row |= dict.fromkeys(("message_bytes", "largest_bytes"))
                row |= {key: sum(getattr(each, field) for each in operations) for key, field in COMPUTED.items()}
                waits = dict.fromkeys(("waits", "exposed_waits"))
            yield row | waits


def _number(title: str, key: str, written: Callable[[float], str]) -> Column:
    """Return a column of numbers, of which those that are not known or zero are not written."""
    return Column(title, "right", cell=lambda row: written(row[key]) if row[key] else NO_NUMBER)


COLUMNS = (
    Column("layout", cell=lambda row: row["layout"]),
    Column("stream", cell=lambda row: row["stream"]),
    Column("operations", cell=lambda row: row["operations"]),
    Column("group", cell=lambda row: row["group"] or NO_NUMBER),
    Column("number", "right", cell=lambda row: str(row["number"])),
    _number("messages", "message_bytes", format_bytes),
    _number("largest", "largest_bytes", format_bytes),
    _number("FLOPs", "flops", lambda flops: f"{flops:.3g}"),
    _number("memory", "memory_bytes", format_bytes),
    _number("time", "seconds", format_seconds),
    Column(
        "exposed waits",
        "right",
        cell=lambda row: NO_NUMBER if row["waits"] is None else f"{row['exposed_waits']} of {row['waits']}",
    ),
)


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
