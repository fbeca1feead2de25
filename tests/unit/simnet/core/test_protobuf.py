"""Fields of protobuf messages are read as they were written, and damaged ones are found."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.core import protobuf
from simnet.core.protobuf import DamagedMessageError


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (2**64 - 1, "ff" * 9 + "01"),
        (-1, "ff" * 9 + "01"),
    ],
)
def test_a_varint_has_the_bytes_of_the_specification(number: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert protobuf.encoded_varint(number) == data
    assert protobuf.varint(data, 0) == (number % 2**64, len(data))


@given(st.lists(st.integers(0, 2**64 - 1) | st.binary(max_size=300)))
def test_fields_come_back(values: list[int | bytes]) -> None:
    message = b"".join(protobuf.encoded(number, value) for number, value in enumerate(values, start=1))
    assert list(protobuf.fields(message)) == list(enumerate(values, start=1))


@given(st.lists(st.binary(max_size=200)))
def test_messages_of_a_file_come_back_with_their_places(messages: list[bytes]) -> None:
    data = b"".join(map(protobuf.behind_length, messages))
    messages_read = list(protobuf.delimited(data))
    assert [message for _, message in messages_read] == messages
    assert all(protobuf.varint(data, start)[0] == len(message) for start, message in messages_read)


def test_numbers_below_zero_text_floats_and_lists_come_back() -> None:
    message = protobuf.encoded(1, -5) + protobuf.encoded(2, "Bär") + protobuf.encoded(3, 1.5)
    (_, number), (_, text), (_, real) = protobuf.fields(message)
    assert (protobuf.as_int(number), protobuf.as_text(text), real) == (-5, "Bär", struct.pack("<d", 1.5))
    for message in (protobuf.encoded(4, b"\x01\xac\x02"), protobuf.encoded(4, 1) + protobuf.encoded(4, 300)):
        assert [item for _, value in protobuf.fields(message) for item in protobuf.numbers(value)] == [1, 300]


@pytest.mark.parametrize(
    "encoded",
    ["0a05616263", "08", "0b", "08" + "ff" * 9 + "02", "08" + "80" * 20 + "01", "09ff", "0dff"],
    ids=["short text", "no number", "a group", "65 bits", "endless", "short double", "short float"],
)
def test_a_damaged_message_is_refused(encoded: str) -> None:
    with pytest.raises(DamagedMessageError):
        list(protobuf.fields(bytes.fromhex(encoded)))


def test_a_file_that_ends_within_a_message_is_refused_with_the_place_of_that() -> None:
    data = protobuf.behind_length(b"abc") + protobuf.behind_length(b"defgh")
    with pytest.raises(DamagedMessageError) as caught:
        list(protobuf.delimited(data[:-1]))
    assert caught.value.start == 4
    with pytest.raises(DamagedMessageError):
        list(protobuf.delimited(b"\x80" * 20))
