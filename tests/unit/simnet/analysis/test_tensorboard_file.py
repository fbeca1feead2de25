"""TensorBoard's event files: scalars of both forms, and what is damaged, cut short or something else."""

from pathlib import Path

import pytest

from simnet.analysis import tensorboard_file as event_file
from simnet.analysis.tensorboard_file import Scalar, parse
from simnet.core.errors import SimnetError
from tests.helpers.event_files import as_tensor, begin, crc32c, event, framed, losses, message, real, simple

REAL = Path(__file__).parents[3] / "golden" / "training_logs" / "adam" / "events.out.tfevents.tensorboard"


def scalars(*events: bytes) -> tuple[Scalar, ...]:
    return parse(begin() + b"".join(events), "f").scalars


def test_scalars_of_both_forms_are_read() -> None:
    found = scalars(
        simple("train/loss", 1, 0.5),
        as_tensor("new", 2, 0.25),
        as_tensor("double", 3, 0.1, double=True),
        as_tensor("later", 4, 8.0, plugin=""),
    )
    assert found == (
        Scalar("train/loss", 1, 0.5),
        Scalar("new", 2, 0.25),
        Scalar("double", 3, 0.1),
        Scalar("later", 4, 8.0),
    )


def test_what_is_no_scalar_is_skipped() -> None:
    histogram = event(1, message(1, b"weights") + message(5, b"\0" * 30))
    assert scalars(histogram, as_tensor("text", 1, 1.0, plugin="text"), simple("loss", 1, 2.0)) == (
        Scalar("loss", 1, 2.0),
    )


def test_several_scalars_of_one_event_have_its_step() -> None:
    both = message(1, message(1, b"a") + real(2, 1.0)) + message(1, message(1, b"b") + real(2, 2.0))
    # The step may stand behind the values.
    assert scalars(framed(message(5, both) + b"\x10\x07")) == (Scalar("a", 7, 1.0), Scalar("b", 7, 2.0))


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


def test_a_file_cut_short_is_refused_with_what_is_whole() -> None:
    data = losses(3.0, 2.0, 1.0)
    whole = len(losses(3.0, 2.0))
    for end in (whole + 1, whole + 14, len(data) - 1):
        with pytest.raises(SimnetError, match=rf"cut short: whole up to byte {whole} \(step 20\); .* head -c {whole}$"):
            parse(data[:end], "f")
    assert len(parse(data[:whole], "f").scalars) == 2


def test_every_damaged_byte_is_found() -> None:
    data = losses(3.0, 2.0)
    for place in range(len(data)):
        with pytest.raises(SimnetError):
            parse(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], "f")
