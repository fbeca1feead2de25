"""TensorBoard's event files: scalars of both forms, and what is damaged, cut short or something else."""

from pathlib import Path

import pytest

from simnet.analysis import tensorboard_file as event_file
from simnet.analysis.tensorboard_file import Scalar, parse
from simnet.core.errors import SimnetError
from tests.helpers.event_files import as_tensor, begin, crc32c, event, framed, losses, message, simple

REAL = Path(__file__).parents[3] / "golden" / "training_logs" / "adam" / "events.out.tfevents.tensorboard"


def scalars(*events: bytes) -> tuple[Scalar, ...]:
    return parse(begin() + b"".join(events), "f").scalars


def test_what_is_no_scalar_is_skipped() -> None:
    histogram = event(1, message(1, b"weights") + message(5, b"\0" * 30))
    assert scalars(histogram, as_tensor("text", 1, 1.0, plugin="text"), simple("loss", 1, 2.0)) == (
        Scalar("loss", 1, 2.0),
    )


def test_checksums_are_those_of_the_definition() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # of the catalogue of parametrised CRC algorithms
    assert event_file.looks_like(losses(1.0))
    assert not event_file.looks_like(b"step,loss\n1,2\n")
    assert not event_file.looks_like(b"short")


def test_a_file_of_tensorboards_own_writer_is_read() -> None:
    found = parse(REAL.read_bytes(), "f")
    by_tag = {tag: [(one.step, one.value) for one in found.scalars if one.tag == tag] for tag in ("loss", "eval/loss")}
    assert by_tag["loss"] == [(step, pytest.approx(4 - step / 100, abs=1e-6)) for step in range(10, 201, 10)]
    assert by_tag["eval/loss"] == [(step, pytest.approx(4.5 - step / 100, abs=1e-6)) for step in range(50, 201, 50)]
    assert {one.tag for one in found.scalars} == {"loss", "eval/loss", "lr"}
    assert found.started_s > 1.7e9


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "f: is empty"),
        (b"step,loss\n1,2.5\n3,4\n", "f: no event file of TensorBoard"),
        (begin()[:20], "f: cut short within its first record"),
        (b"\x18\0\0", "f: cut short within its first record"),
        (framed(b"\x0a\x03abc"), "f: holds records, but not TensorBoard's events"),
        (framed(b"\xff"), "f: byte 0: no event of TensorBoard"),
        (begin() + framed(b"\x2a\x7fab"), "f: byte 40: no event of TensorBoard"),
    ],
)
def test_what_is_no_event_file_is_refused_in_a_sentence(data: bytes, said: str) -> None:
    with pytest.raises(SimnetError) as caught:
        parse(data, "f")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_every_damaged_byte_is_found() -> None:
    data = losses(3.0, 2.0)
    for place in range(len(data)):
        with pytest.raises(SimnetError):
            parse(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], "f")
