"""Recorded steps: what one rank of a training script computed and sent in some optimizer steps, as a file holds it."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, field

from simnet.core import files, schema
from simnet.core.bounded_types import MAX_RANKS, Count, Shape
from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import parse_json
from simnet.strategies.program import IterationPart, OperationId, ended_operations

FORMAT: Literal["simnet-step"] = "simnet-step"
VERSION = 1
# A step of a thousand collectives and ten thousand kernels takes some megabytes.
MAX_BYTES = 2**26
# One a process group, and some of the side.
MAX_STREAMS = 1000
REPAIR = "record the step again with simnet record"
Amount = Annotated[float, Meta(ge=0.0, le=1e30)]
Number = Annotated[int, Meta(ge=0)]
OperationKind = Literal[
    "compute", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"
]
TimedBy = Literal["counted", "timed", "none"]


class StepSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a recorded step comes from.

    Attributes:
        how: `simnet record`, or an importer of a trace.
        command: the command that was recorded, for people.
        torch: version of torch.
        device: what tensors were on; "fake" tensors have shapes alone.
        gpu: name of the GPU.
        compute: FLOPs and bytes "counted", seconds "timed", or nothing known.
    """

    how: Literal["record", "chakra", "profiler"]
    command: str = ""
    torch: str = ""
    device: Literal["cpu", "cuda", "fake"] = "cpu"
    gpu: str = ""
    compute: TimedBy = "counted"


class RecordedGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process group of rank 0; groups of this size and stride tile the world, and all do the same at once.

    Attributes:
        name: for people.
        size: its ranks.
        stride: ranks from one of them to the next.
    """

    name: str = ""
    size: Count
    stride: Count


class RecordedOperation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compute, or a collective.

    Attributes:
        kind: "compute", or the collective; a "barrier" has no message.
        part: part of the iteration, of compute.
        flops: of matrix products and convolutions.
        num_bytes: read and written by all other operators.
        seconds: measured, where the source is "timed".
        name: for people.
        group: number of the process group of a collective.
        message_bytes: the whole array of one group, as nccl-tests counts: output of an all_gather, input of a
            reduce_scatter or all_to_all.
        dtype: number format of the message, for people.
        bucket: number of the bucket of gradients.
        after: operations of other streams that must have ended, each as stream and position.
    """

    kind: OperationKind
    part: IterationPart | None = None
    flops: Amount = 0.0
    num_bytes: Amount = field(name="bytes", default=0.0)
    seconds: Amount = 0.0
    name: str = ""
    group: Number = 0
    message_bytes: Amount = 0.0
    dtype: str = ""
    bucket: int | None = None
    after: tuple[tuple[Number, Number], ...] = ()


class RecordedStream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations that run one after the other.

    Attributes:
        name: for people.
        operations: in order.
    """

    name: str = ""
    operations: tuple[RecordedOperation, ...] = ()


class RecordedGradient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gradient of the recorded model.

    Attributes:
        shape: its dimensions.
        backward_share: part of backward between the previous gradient and this one.
    """

    shape: Shape
    backward_share: Annotated[float, Meta(ge=0.0, le=1.0)]


class RecordedLayout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What rank 0 did on one number of nodes and ranks.

    Attributes:
        num_nodes: nodes.
        ranks_per_node: ranks of a node.
        num_steps: optimizer steps of the streams, after which they repeat.
        micro_batches: backward passes of one step.
        gradient_bytes: of all gradients of a step, in their own number format.
        gradients: in backward order; empty where that was not seen.
        groups: process groups of rank 0, by number.
        streams: the first one computes; others communicate, one a process group, or are side streams.
        notes: what the recorder has marked.
    """

    num_nodes: Count
    ranks_per_node: Count
    num_steps: Count = 1
    micro_batches: Count = 1
    gradient_bytes: Amount = 0.0
    gradients: tuple[RecordedGradient, ...] = ()
    groups: tuple[RecordedGroup, ...] = ()
    streams: tuple[RecordedStream, ...]
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def operations(self) -> Iterator[RecordedOperation]:
        """Every operation, stream by stream."""
        return (operation for stream in self.streams for operation in stream.operations)

    @property
    def text(self) -> str:
        """For people: "8 x 4 ranks"."""
        return f"{self.num_nodes} x {self.ranks_per_node} ranks"


class StepFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded step of one script, on one or several layouts of ranks.

    Attributes:
        format: what the file is.
        version: of the format.
        source: where the step comes from.
        recordings: the script on each layout, each layout once.
    """

    format: Literal["simnet-step"]
    version: int
    source: StepSource
    recordings: tuple[RecordedLayout, ...]


class _StepHead(Struct):
    """The keys that tell a recorded step from other files."""

    format: Any = UNSET
    version: Any = UNSET


def holds_step(path: Path) -> bool:
    """Tell whether a file is meant as a recorded step."""
    try:
        head = schema.peek(_StepHead, files.read_bytes(path))
    except SimnetError:
        return False
    return head is not None and head.format == FORMAT


def read(path: Path) -> StepFile:
    """Read a recorded step; a file that has changed since is read again.

    Raises:
        SimnetError: it cannot be read, is no recorded step, or does not hold together.
    """
    return _read(path, files.file_stamp(path))


@lru_cache(maxsize=32)
def _read(path: Path, _stamp: tuple[int, ...]) -> StepFile:
    return decode(files.read_bytes(path, MAX_BYTES), files.label(path))


def content_hash(path: Path) -> str:
    """Return the first half of the SHA-256 of a file, which tells recordings apart."""
    return _content_hash(path, files.file_stamp(path))


@lru_cache(maxsize=32)
def _content_hash(path: Path, _stamp: tuple[int, ...]) -> str:
    import hashlib

    return hashlib.sha256(files.read_bytes(path, MAX_BYTES)).hexdigest()[:32]


def decode(data: bytes, where: str) -> StepFile:
    """Return the recorded step that JSON holds.

    Raises:
        SimnetError: it is none, of another version, cut short, or does not hold together.
    """
    _check_head(data, where)
    step = schema.decode(StepFile, data, where)
    if not step.recordings:
        raise SimnetError(f"{where}: recordings: []: must not be empty; {REPAIR}")
    seen: set[tuple[int, int]] = set()
    for number, layout in enumerate(step.recordings):
        place = f"{where}: recordings.{number}"
        if (layout.num_nodes, layout.ranks_per_node) in seen:
            raise SimnetError(f"{place}: {layout.text}: is recorded twice; drop one of the two")
        seen.add((layout.num_nodes, layout.ranks_per_node))
        _check_layout(layout, place)
    return step


def encode(step: StepFile) -> bytes:
    """Return a step as its file holds it, without keys that have their default."""
    plain = msgspec.to_builtins(step)
    plain["recordings"] = [
        {key: value for key, value in recording.items() if value} for recording in plain["recordings"]
    ]
    for layout in plain["recordings"]:
        for stream in layout["streams"]:
            stream["operations"] = [_without_defaults(operation) for operation in stream["operations"]]
    return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"


def _without_defaults(operation: dict[str, Any]) -> dict[str, Any]:
    kept = {"compute": ("kind", "part"), "barrier": ("kind", "group")}
    always = kept.get(operation["kind"], ("kind", "group", "message_bytes"))
    empty: tuple[object, ...] = (0, "", None, [], ())
    return {
        key: value
        for key, value in operation.items()
        if key in always or value not in empty or (key == "bucket" and value is not None)
    }


def _check_head(data: bytes, where: str) -> None:
    head = schema.peek(_StepHead, data)
    if head is None:
        plain = parse_json(data, where)  # whose message says where the JSON is wrong
        table = plain if isinstance(plain, dict) else {}
        head = _StepHead(format=table.get("format", UNSET), version=table.get("version", UNSET))
    if head.format != FORMAT:
        raise SimnetError(f"{where}: no format {FORMAT!r}: not a recorded step; name a file that simnet record writes")
    if head.version != VERSION:
        version = "none" if head.version is UNSET else shown(head.version)
        raise SimnetError(f"{where}: version: {version}: this version of simnet reads {VERSION}; {REPAIR}")


def _check_layout(layout: RecordedLayout, where: str) -> None:
    if layout.world_size > MAX_RANKS:
        raise SimnetError(f"{where}: {layout.text}: at most {MAX_RANKS} ranks; {REPAIR} on fewer nodes")
    if len(layout.streams) > MAX_STREAMS:
        raise SimnetError(f"{where}.streams: {len(layout.streams)} streams: at most {MAX_STREAMS}; {REPAIR}")
    if not any(True for _ in layout.operations):
        raise SimnetError(f"{where}.streams: no operation: a step must do something; {REPAIR}")
    for number, group in enumerate(layout.groups):
        if layout.world_size % (group.size * group.stride):
            raise SimnetError(
                f"{where}.groups.{number}: size {group.size}, stride {group.stride}: must tile {layout.text}; {REPAIR}"
            )
    for stream, recorded in enumerate(layout.streams):
        for position, operation in enumerate(recorded.operations):
            _check_operation(operation, layout, f"{where}.streams.{stream}.operations.{position}")
    _check_order(layout, where)


def _check_operation(operation: RecordedOperation, layout: RecordedLayout, where: str) -> None:
    if operation.kind == "compute":
        if operation.part is None:
            raise SimnetError(f"{where}: part: missing; add part = one of forward, backward, encode, decode, optimizer")
    elif operation.group >= len(layout.groups):
        raise SimnetError(f"{where}: group: {operation.group}: there are {len(layout.groups)} groups; {REPAIR}")
    for stream, position in operation.after:
        if stream >= len(layout.streams) or position >= len(layout.streams[stream].operations):
            raise SimnetError(f"{where}: after: [{stream}, {position}]: there is no such operation; {REPAIR}")


def _check_order(layout: RecordedLayout, where: str) -> None:
    """Check that no operation waits for itself, through others."""
    streams = [
        [tuple(OperationId(*awaited) for awaited in op.after) for op in stream.operations] for stream in layout.streams
    ]
    for stream, ended in enumerate(ended_operations(streams)):
        if ended < len(streams[stream]):
            place = f"{where}.streams.{stream}.operations.{ended}"
            raise SimnetError(f"{place}: after: waits for an operation that waits for this one; {REPAIR}")


FLOPS_PER_BYTE = 150.0


def bytes_of_memory(operation: RecordedOperation) -> float:
    """Return the bytes of memory traffic that take as long as compute: a GPU does 150 FLOPs in the time of a byte.

    Source: 312 TFLOP/s in bf16 over 2.0 TB/s of an A100 (data sheet), 989 over 3.35 of an H100 make 156 and 295; half
    of the peak is common.
    """
    return operation.num_bytes + operation.flops / FLOPS_PER_BYTE
