"""What one rank does, as streams of operations, each with the operations that must have ended before it; its file.

The tape knows CUDA's rules and no tensor: operations of one stream run in order; a mark is what a stream has been given
so far (an event); a stream that waits for a mark starts its next operation when the mark is over. Of its steps, the
shortest row that repeats stands for all, and is what a step file (docs/reference/files.md#recorded-steps) holds.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from binsgdm.files import write_file

Part = Literal["forward", "backward", "encode", "decode", "optimizer"]
Mark = frozenset[tuple[int, int]]
"""Operations, each by its stream and its position there, both from 0."""
NOTHING: Mark = frozenset()
COMPUTE = 0
"""The stream of forward, backward and the optimizer."""


@dataclass(kw_only=True)
class Computed:
    """Work between two marks of one stream: FLOPs of products, bytes of all else, or seconds where it is timed."""

    part: Part
    flops: float = 0.0
    num_bytes: float = 0.0
    seconds: float = 0.0
    after: Mark = NOTHING


@dataclass(kw_only=True)
class Collective:
    """A collective of a group, by its number.

    Attributes:
        message_bytes: the whole array, as nccl-tests counts.
        bucket: of DDP; None outside of its hook.
    """

    kind: str
    group: int
    message_bytes: float
    dtype: str
    bucket: int | None = None
    after: Mark = NOTHING


Recorded = Computed | Collective


@dataclass
class _Stream:
    name: str
    operations: list[Recorded] = field(default_factory=list)
    waits: Mark = NOTHING
    is_open: bool = False  # whether the last operation takes on more work


class Tape:
    """Streams, as they are written."""

    def __init__(self) -> None:
        self._streams = [_Stream("compute")]
        self._group_streams: dict[int, int] = {}
        self._lock = threading.RLock()  # a communication thread records beside backward

    def add_stream(self, name: str) -> int:
        """Return the number of a new stream."""
        with self._lock:
            self._streams.append(_Stream(name))
            return len(self._streams) - 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all streams."""
        return tuple(stream.name for stream in self._streams)

    def cut(self) -> tuple[int, ...]:
        """Return the number of operations of every stream; what follows is a new operation."""
        for stream in self._streams:
            stream.is_open = False
        return tuple(len(stream.operations) for stream in self._streams)

    def operations(self, stream: int) -> list[Recorded]:
        """Return the operations of a stream."""
        return self._streams[stream].operations

    def compute(
        self, stream: int, part: Part, *, flops: float = 0.0, num_bytes: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Add work to a stream."""
        if flops or num_bytes or seconds:
            with self._lock:
                work = self.work(stream, part)
                work.flops += flops
                work.num_bytes += num_bytes
                work.seconds += seconds

    def work(self, stream: int, part: Part) -> Computed:
        """Return the work that a stream is at, to be added to."""
        with self._lock:
            on = self._streams[stream]
            last = on.operations[-1] if on.is_open else None
            # A wait stands before an operation: what is computed after it is a new one.
            if isinstance(last, Computed) and last.part == part and not on.waits:
                return last
            work: Computed = self._append(stream, Computed(part=part))
            return work

    def end(self, stream: int, part: Part) -> None:
        """Let what a stream waits for be waited for by the end of its part, where no work follows."""
        with self._lock:
            on = self._streams[stream]
            if on.waits:
                self._append(stream, Computed(part=part))
                on.is_open = False

    def collective(self, stream: int, collective: Collective, group_name: str) -> Mark:
        """Add a collective that a stream starts, and return the mark at which it has ended.

        It runs on the stream of its group, as on a communicator of NCCL, when the starting stream has come to it.
        """
        with self._lock:
            before = self.mark(stream)
            number = self._group_streams.get(collective.group)
            if number is None:
                number = self._group_streams[collective.group] = self.add_stream(group_name)
            on = self._streams[number]
            on.waits |= before
            self._append(number, collective)
            on.is_open = False
            return frozenset({(number, len(on.operations) - 1)})

    def mark(self, stream: int) -> Mark:
        """Return what must have ended when a stream has come so far."""
        with self._lock:
            on = self._streams[stream]
            on.is_open = False
            return on.waits | ({(stream, len(on.operations) - 1)} if on.operations else set())

    def wait(self, stream: int, mark: Mark) -> None:
        """Let the next operation of a stream start when a mark is over."""
        with self._lock:
            self._streams[stream].waits |= {operation for operation in mark if operation[0] != stream}

    def _append(self, stream: int, operation: Any) -> Any:
        on = self._streams[stream]
        # Of every other stream the last position: the earlier ones have ended then.
        operation.after = frozenset({to: at for to, at in sorted(on.waits) if to != stream}.items())
        on.operations.append(operation)
        on.waits, on.is_open = NOTHING, True
        return operation


Streams = list[list[Recorded]]


def period(tape: Tape, cuts: Sequence[tuple[int, ...]], skipped: int) -> tuple[int, list[dict[str, Any]], list[str]]:
    """Return how many steps the shortest row has that repeats throughout, its streams as a file has them, and notes.

    Work is the mean over all times that the row was seen.

    Args:
        tape: of the whole recording.
        cuts: number of operations of every stream at the end of every step; streams that are made later are missing.
        skipped: first steps, which are not looked at.
    """
    ends = [cut + (0,) * (len(tape.names) - len(cut)) for cut in ((), *cuts)][skipped:]
    shapes = [_shape(_cut_out(tape, *pair)[0]) for pair in pairwise(ends)]
    number, notes = len(shapes), []
    lengths = range(1, number // 2 + 1)
    # A row of steps repeats throughout where the steps equal themselves, shifted by its length.
    length = next((count for count in lengths if shapes[count:] == shapes[:-count]), number)
    # From the end: what is left over at the beginning is no whole row.
    rows = [_cut_out(tape, ends[last - length], ends[last]) for last in range(number, length - 1, -length)]
    (streams, num_dropped), times = rows[0], len(rows)
    for stream, operations in enumerate(streams):
        for position, operation in enumerate(operations):
            if isinstance(operation, Computed):
                seen: list[Any] = [row[stream][position] for row, _ in rows]
                operation.flops = sum(work.flops for work in seen) / times
                operation.num_bytes = sum(work.num_bytes for work in seen) / times
                operation.seconds = sum(work.seconds for work in seen) / times
    if length == number > 1:
        notes.append(
            f"its {number} steps do not repeat (sizes or order differ from step to step): all of them stand for the "
            "training"
        )
    if num_dropped:
        notes.append(
            f"{num_dropped} operations wait for some of the steps before, which are taken to have ended: what overlaps "
            "the next step is simulated as if it did not"
        )
    return length, _as_in_a_file(tape.names, streams), notes


def _cut_out(tape: Tape, begin: tuple[int, ...], end: tuple[int, ...]) -> tuple[Streams, int]:
    """Return copies of the operations between two cuts, and how many waits lead out of them."""
    dropped = 0
    streams: Streams = []
    for number, (first, last) in enumerate(zip(begin, end, strict=True)):
        streams.append([])
        for operation in tape.operations(number)[first:last]:
            kept = frozenset((to, at - begin[to]) for to, at in operation.after if at >= begin[to])
            # The first of all starts when the steps before have ended: there a wait says nothing new.
            dropped += len(operation.after) > len(kept) and bool(streams[-1])
            streams[-1].append(replace(operation, after=kept))
    return streams, dropped


def _shape(step: Streams) -> list[list[object]]:
    """Return what makes two steps alike: everything but the work."""
    return [
        [operation if isinstance(operation, Collective) else (operation.part, operation.after) for operation in stream]
        for stream in step
    ]


DTYPES = {
    "float32": "fp32",
    "float64": "fp64",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def _as_in_a_file(names: Sequence[str], streams: Streams) -> list[dict[str, Any]]:
    """Return the streams that hold something, and compute, which is the first."""
    used = [number for number, stream in enumerate(streams) if stream or number == COMPUTE]

    def operation(recorded: Recorded) -> dict[str, Any]:
        after = [[used.index(stream), position] for stream, position in sorted(recorded.after)]
        waits = {"after": after} if after else {}
        if isinstance(recorded, Collective):
            bucket = {} if recorded.bucket is None else {"bucket": recorded.bucket}
            dtype = DTYPES.get(recorded.dtype, recorded.dtype)
            sent = {
                "kind": recorded.kind,
                "group": recorded.group,
                "message_bytes": recorded.message_bytes,
                "dtype": dtype,
            }
            return sent | bucket | waits
        work = {"flops": recorded.flops, "bytes": recorded.num_bytes, "seconds": float(f"{recorded.seconds:.9f}")}
        return {"kind": "compute", "part": recorded.part} | {key: value for key, value in work.items() if value} | waits

    return [
        {"name": names[number], "operations": [operation(recorded) for recorded in streams[number]]} for number in used
    ]


FORMAT, VERSION = "simnet-step", 1


def write(path: Path, worlds: Sequence[dict[str, Any]], command: str) -> None:
    """Write a step file, whole or not at all: of each world its "source" and its "recording"."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "source": {"how": "record", "command": command, **worlds[0]["source"]},
        "recordings": [world["recording"] for world in worlds],
    }
    write_file(path, json.dumps(document, allow_nan=False) + "\n")


def summary(worlds: Sequence[dict[str, Any]]) -> str:
    """Return what was found, in one line."""
    return "; ".join(_of_recording(world["recording"], **world["steps"]) for world in worlds)


def _of_recording(recording: dict[str, Any], asked: int, recorded: int) -> str:
    kinds = [operation["kind"] for stream in recording["streams"] for operation in stream["operations"]]
    ranks, steps = recording["num_nodes"] * recording["ranks_per_node"], recording["num_steps"]
    of_steps = "a step" if steps == 1 else f"{steps} steps"
    num_sent = len(kinds) - kinds.count("compute")
    return f"{of_steps} of {ranks} ranks with {num_sent} collectives ({recorded} of {asked} steps recorded)"
