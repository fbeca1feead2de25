"""The wire format of protobuf: the fields of a message, read and written.

Own code, and not the package protobuf: Chakra's traces need some twenty fields of a schema that has been stable for
years. The package is one more thing to install, says "Error parsing message" where a
user must learn which byte of a file is wrong, and passes over what is refused here: a known field of another kind, a
number of more than 64 bits.

Source: https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections.abc import Iterator

VARINT, EIGHT_BYTES, LENGTH_DELIMITED, FOUR_BYTES = 0, 1, 2, 5
WireValue = int | bytes
"""A whole number, or the bytes of anything else: text, a message, a list of numbers, a float."""


class DamagedMessageError(Exception):
    """A message does not hold what its fields promise.

    Attributes:
        start: where in the data the message begins [bytes]; 0 for a message that stands alone.
    """

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self.start = start


def fields(message: bytes) -> Iterator[tuple[int, WireValue]]:
    """Yield number and content of each field: whole numbers as such, all else as bytes."""
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        kind = key & 7
        if kind == VARINT:
            number, place = varint(message, place)
            yield key >> 3, number
            continue
        if kind == LENGTH_DELIMITED:
            length, place = varint(message, place)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            length = 8 if kind == EIGHT_BYTES else 4
        else:
            raise DamagedMessageError
        if place + length > len(message):
            raise DamagedMessageError
        yield key >> 3, message[place : place + length]
        place += length


def varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the whole number at a place of a message, and the place after it.

    Raises:
        DamagedMessageError: there is none, or one of more than 64 bits.
    """
    value = shift = 0
    # 64 bits take ten bytes of seven; an eleventh would let damaged data run on.
    while place < len(message) and shift < 70:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            # The tenth byte has room for bits that no number has.
            if value >= 2**64:
                raise DamagedMessageError
            return value, place
    raise DamagedMessageError


def delimited(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where each message of a file begins, and the message: each stands behind its length.

    Raises:
        DamagedMessageError: the data end within a message, or a length is no number.
    """
    place = 0
    while place < len(data):
        start = place
        try:
            length, place = varint(data, place)
        except DamagedMessageError as error:
            raise DamagedMessageError(start) from error
        if place + length > len(data):
            raise DamagedMessageError(start)
        yield start, data[place : place + length]
        place += length


def as_bytes(value: WireValue) -> bytes:
    """Return a field's content that must not be a whole number."""
    if isinstance(value, int):
        raise DamagedMessageError
    return value


def as_text(value: WireValue) -> str:
    """Return a field's content as text; what is no UTF-8 becomes question marks."""
    return as_bytes(value).decode("utf-8", "replace")


def as_int(value: WireValue) -> int:
    """Return a field's content as a number that may be below 0."""
    if not isinstance(value, int):
        raise DamagedMessageError
    return value - 2**64 if value >= 2**63 else value


def numbers(value: WireValue) -> Iterator[int]:
    """Yield the whole numbers of a repeated field, of which one occurrence holds one or, packed, several."""
    if isinstance(value, int):
        yield value
        return
    place = 0
    while place < len(value):
        number, place = varint(value, place)
        yield number


def encoded_varint(value: int) -> bytes:
    """Return a whole number as the format writes it, below 0 as its complement of 64 bits."""
    rest, parts = value % 2**64, bytearray()
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def encoded(number: int, value: float | str | bytes) -> bytes:
    """Return a field: a whole number or truth value as varint, another number as double, all else by its length."""
    if isinstance(value, int):
        return encoded_varint(number << 3 | VARINT) + encoded_varint(value)
    if isinstance(value, float):
        return encoded_varint(number << 3 | EIGHT_BYTES) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return encoded_varint(number << 3 | LENGTH_DELIMITED) + behind_length(data)


def behind_length(message: bytes) -> bytes:
    """Return a message behind its length, as files and fields hold it."""
    return encoded_varint(len(message)) + message
