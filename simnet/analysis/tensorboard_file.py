"""Read the scalars of TensorBoard's event files.

The reader is this project's own: the package tensorboard brings grpc, protobuf and a web server for two formats that
are short and have been stable for years, and smaller readers on PyPI are not kept up. Read are the frames of records
(TFRecord) and, of the messages in them, only the fields that lead to a scalar; all others are skipped by their length.

Source: the layouts in tensorflow/core/lib/io/record_writer.h, and in event.proto, summary.proto and tensor.proto of
tensorboard/compat/proto.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from simnet.core.errors import SimnetError
from simnet.core.protobuf import DamagedMessageError, as_bytes, as_int, as_text, fields, unpacked

# A frame: length of the data, checksum of these 8 bytes, the data, checksum of the data.
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")
VERSION = b"brain.Event:"
# Larger records hold images, histograms or graphs; checksums of them would take seconds.
MAX_CHECKED_BYTES = 2**16
# Numbers of fields, by message.
_EVENT_TIME, _EVENT_STEP, _EVENT_VERSION, _EVENT_SUMMARY = 1, 2, 3, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR, _VALUE_METADATA = 1, 2, 8, 9
_METADATA_PLUGIN = _PLUGIN_NAME = 1
_TENSOR_DTYPE, _TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES = 1, 4, 5, 6
_FLOATS = {1: ("<f", _TENSOR_FLOATS), 2: ("<d", _TENSOR_DOUBLES)}
"""Layout of a number, and its field, by the tensor's dtype; writers of scalars use no other."""


class Scalar(NamedTuple):
    """A value that was logged under a tag at a step."""

    tag: str
    step: int
    value: float


class EventFile(NamedTuple):
    """When the file was begun [s since 1970], and its scalars in the order of the file."""

    started_s: float
    scalars: tuple[Scalar, ...]


def looks_like(data: bytes) -> bool:
    """Tell whether data begin with the frame of a record."""
    return len(data) >= _HEAD.size and _masked_crc32c(data[:8]) == _HEAD.unpack_from(data)[1]


def parse(data: bytes, where: str) -> EventFile:
    """Return the scalars of an event file.

    A file cut short is refused, although that of a running training may end in half a record: one that was copied in
    part looks the same, and its curve would end too early. The message says how much is whole.
    """
    if not data:
        raise SimnetError(f"{where}: is empty; give the event file of a training")
    scalars: list[Scalar] = []
    started_s = 0.0
    for number, (start, record) in enumerate(_records(data, where, scalars)):
        try:
            if number == 0:
                started_s = _started_s(record, where)
            scalars += _scalars(record)
        except DamagedMessageError as error:
            raise SimnetError(f"{where}: byte {start}: no event of TensorBoard; copy the file again") from error
    return EventFile(started_s, tuple(scalars))


def _records(data: bytes, where: str, scalars: list[Scalar]) -> Iterator[tuple[int, bytes]]:
    """Yield where each record starts, and its data; `scalars`, those read so far, are for messages."""
    start = 0
    while start < len(data):
        begin, is_whole = start + _HEAD.size, False
        if begin <= len(data):
            length, checksum = _HEAD.unpack_from(data, start)
            if _masked_crc32c(data[start : start + 8]) != checksum:
                raise _damaged(where, start)
            is_whole = begin + length + _FOOT.size <= len(data)
        if not is_whole:
            raise _cut_short(where, start, scalars)
        record = data[begin : begin + length]
        if length <= MAX_CHECKED_BYTES and _masked_crc32c(record) != _FOOT.unpack_from(data, begin + length)[0]:
            raise _damaged(where, start)
        yield start, record
        start = begin + length + _FOOT.size


def _damaged(where: str, start: int) -> SimnetError:
    if not start:
        return SimnetError(f"{where}: no event file of TensorBoard; give a file events.out.tfevents.*, or its folder")
    return SimnetError(f"{where}: damaged at byte {start}: a checksum differs; copy the file again")


def _cut_short(where: str, start: int, scalars: list[Scalar]) -> SimnetError:
    if not start:
        return SimnetError(f"{where}: cut short within its first record; copy the file again")
    step = f" (step {scalars[-1].step})" if scalars else ""
    return SimnetError(
        f"{where}: cut short: whole up to byte {start}{step}; copy the file again, or keep the whole records of a "
        f"training that still runs with head -c {start}"
    )


def _started_s(record: bytes, where: str) -> float:
    """Return the time of the first event, which says what the file is."""
    found = dict(fields(record))
    version = found.get(_EVENT_VERSION, b"")
    if not isinstance(version, bytes) or not version.startswith(VERSION):
        raise SimnetError(f"{where}: holds records, but not TensorBoard's events; give a file events.out.tfevents.*")
    return unpacked("<d", found.get(_EVENT_TIME, b"\0" * 8))


def _scalars(record: bytes) -> Iterator[Scalar]:
    step, summaries = 0, []
    for number, value in fields(record):
        if number == _EVENT_STEP and isinstance(value, int):
            step = as_int(value)
        elif number == _EVENT_SUMMARY:
            summaries.append(as_bytes(value))
    for summary in summaries:
        for number, value in fields(summary):
            if number == _SUMMARY_VALUE and (named := _scalar(as_bytes(value))) is not None:
                yield Scalar(named[0], step, named[1])


def _scalar(message: bytes) -> tuple[str, float] | None:
    """Return tag and value of a summary's value, in the older form or as a tensor; None if it is no scalar."""
    found = dict(fields(message))
    tag = as_text(found.get(_VALUE_TAG, b""))
    if _VALUE_SIMPLE in found:
        return tag, unpacked("<f", found[_VALUE_SIMPLE])
    if _VALUE_TENSOR not in found:
        return None
    plugin = dict(fields(as_bytes(dict(fields(as_bytes(found.get(_VALUE_METADATA, b"")))).get(_METADATA_PLUGIN, b""))))
    value = _single_number(as_bytes(found[_VALUE_TENSOR]))
    # A writer may name the plugin at a tag's first value only.
    is_scalar = value is not None and plugin.get(_PLUGIN_NAME, b"scalars") == b"scalars"
    return (tag, value) if is_scalar and value is not None else None


def _single_number(tensor: bytes) -> float | None:
    """Return the one number of a tensor; None if it holds another dtype, or several."""
    found = dict(fields(tensor))
    dtype = found.get(_TENSOR_DTYPE)
    if not isinstance(dtype, int) or dtype not in _FLOATS:
        return None
    layout, field = _FLOATS[dtype]
    data = as_bytes(found.get(field, found.get(_TENSOR_CONTENT, b"")))
    return unpacked(layout, data) if len(data) == struct.calcsize(layout) else None


@cache
def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901 - Castagnoli's polynomial, reversed
        table.append(byte)
    return tuple(table)


def _masked_crc32c(data: bytes) -> int:
    """Return the checksum of a frame: CRC-32C, rotated by 15 bits, plus a constant."""
    table, crc = _crc32c_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
