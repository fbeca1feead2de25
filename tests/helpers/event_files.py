"""Write event files of TensorBoard, field by field, for the tests of their reader."""

import struct

WIRE_BYTES, WIRE_DOUBLE, WIRE_FLOAT, WIRE_INT = 2, 1, 5, 0


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def integer(number: int, value: int) -> bytes:
    return varint(number << 3 | WIRE_INT) + varint(value % 2**64)


def real(number: int, value: float, *, double: bool = False) -> bytes:
    wire, layout = (WIRE_DOUBLE, "<d") if double else (WIRE_FLOAT, "<f")
    return varint(number << 3 | wire) + struct.pack(layout, value)


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | WIRE_BYTES) + varint(len(content)) + content


def crc32c(data: bytes) -> int:
    """Return the checksum bit by bit, as its definition has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def begin(started_s: float = 1e9) -> bytes:
    return framed(real(1, started_s, double=True) + message(3, b"brain.Event:2"))


def simple(tag: str, step: int, value: float) -> bytes:
    """Return an event with a scalar in the older form."""
    return event(step, message(1, tag.encode()) + real(2, value))


def as_tensor(tag: str, step: int, value: float, *, double: bool = False, plugin: str = "scalars") -> bytes:
    """Return an event with a scalar as a tensor, a list of one number."""
    numbers = message(6 if double else 5, struct.pack("<d" if double else "<f", value))
    tensor = integer(1, 2 if double else 1) + numbers
    metadata = message(9, message(1, message(1, plugin.encode()))) if plugin else b""
    return event(step, message(1, tag.encode()) + message(8, tensor) + metadata)


def event(step: int, value: bytes) -> bytes:
    return framed(real(1, 1e9, double=True) + integer(2, step) + message(5, message(1, value)))


def losses(*values: float, tag: str = "loss", every: int = 10, first: int = 10, started_s: float = 1e9) -> bytes:
    """Return an event file of a training."""
    return begin(started_s) + b"".join(
        simple(tag, first + every * number, value) for number, value in enumerate(values)
    )
