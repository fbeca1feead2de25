"""Logs of trainings: told by their content, TensorBoard's events, which system a log is of, and what is refused."""

import gzip
from pathlib import Path

import pytest

from simnet.analysis import tensorboard_file as event_file
from simnet.analysis.tensorboard_file import Scalar, parse
from simnet.analysis.training_logs import read_curves
from simnet.core.errors import SimnetError
from tests.helpers.event_files import as_tensor, begin, crc32c, event, framed, losses, message, simple
from tests.helpers.refusals import refused


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"step,loss\n10,3\n20,2\n",
        b"\xef\xbb\xbfstep,loss\n10,3\n20,2\n",
        b'[{"step": 10, "loss": 3}, {"step": 20, "loss": 2}]',
        b'\n{"step": 10, "loss": 3}\n{"step": 20, "loss": 2}\n',
        losses(3.0, 2.0),
        gzip.compress(b"step,loss\n10,3\n20,2\n"),
    ],
    ids=["csv", "with a byte order mark", "json", "json lines", "events", "gzip"],
)
def test_a_log_is_known_by_its_content(data: bytes, tmp_path: Path) -> None:
    (curve,) = read_curves(write(tmp_path / "log", data), None)
    assert curve.values == (3.0, 2.0)


def test_the_folder_of_a_run_is_one_curve_in_the_order_of_time(tmp_path: Path) -> None:
    run = tmp_path / "λ run"
    write(run / "events.out.tfevents.9.host", losses(3.0, 2.0, started_s=1.0))
    write(run / "events.out.tfevents.10.host", losses(1.5, 1.0, first=30, started_s=2.0))
    write(run / "events.out.tfevents.11.host", begin(3.0) + simple("other", 1, 5.0))
    (curve,) = read_curves(run, "loss")
    assert (curve.positions, curve.values, curve.notes) == ((10, 20, 30, 40), (3.0, 2.0, 1.5, 1.0), ())


def test_a_resumed_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "events.out.tfevents.1", losses(4.0, 3.0, 9.0, 9.0, started_s=1.0))
    write(tmp_path / "events.out.tfevents.2", losses(2.0, 1.0, first=30, started_s=2.0))
    (curve,) = read_curves(tmp_path, None)
    assert (curve.positions, curve.values) == ((10, 20, 30, 40), (4.0, 3.0, 2.0, 1.0))
    assert "begins again at step 30: 2 values of earlier files" in curve.notes[0]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.csv", b"", "x.csv: is empty"),
        ("x.csv", b"step,loss\n1,\xff\n", "x.csv: not UTF-8 text (byte 12)"),
        ("x.csv", b"step\0loss", "x.csv: not text"),
        ("x.parquet", b"PAR1....PAR1", "x.parquet: is parquet, which is not read; save it as CSV"),
        ("x.gz", b"\x1f\x8b\x08rest", "x.gz: damaged or incomplete gzip"),
        ("events.out.tfevents.1", b"step,loss\n1,2\n", "no event file of TensorBoard"),
        ("events.out.tfevents.1", losses(3.0, 2.0)[:-9], "(step 10); copy the file again"),
        ("events.out.tfevents.1", begin(), "no scalars in it"),
        (
            "events.out.tfevents.1",
            begin() + simple("a", 1, 2.0) + simple("b", 1, 2.0),
            "several tags may be the loss: choose one with --metric: 'a', 'b'",
        ),
        ("events.out.tfevents.1", losses(3.0, float("nan"), 2.0), "'loss' is nan and later a number"),
        ("events.out.tfevents.1", losses(3.0, 2.0, every=0), "10 steps after 10: must increase"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    with refused(said):
        read_curves(write(tmp_path / name, data), None)


def test_a_tag_or_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    tagged = write(tmp_path / "events.out.tfevents.1", losses(3.0, tag="train/loss"))
    with refused("no tag 'loss'; name one with --metric: 'train/loss'"):
        read_curves(tagged, "loss")
    tagged.unlink()
    with refused("no event file of TensorBoard in it"):
        read_curves(tmp_path, None)
    write(tmp_path / "a" / "events.out.tfevents.1", losses(3.0))
    with refused("holds several runs: 'a'; name the folder of one run"):
        read_curves(tmp_path, None)
    with refused("no such file"):
        read_curves(tmp_path / "none", None)


REAL = Path(__file__).parents[3] / "golden" / "training_logs" / "adam" / "events.out.tfevents.tensorboard"


def test_checksums_are_those_of_the_definition_and_what_is_no_scalar_is_skipped() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # of the catalogue of parametrised CRC algorithms
    told = [event_file.looks_like(data) for data in (losses(1.0), b"step,loss\n1,2\n", b"short")]
    assert told == [True, False, False]
    histogram = event(1, message(1, b"weights") + message(5, b"\0" * 30))
    text = as_tensor("text", 1, 1.0, plugin="text")
    assert parse(begin() + histogram + text + simple("loss", 1, 2.0), "f").scalars == (Scalar("loss", 1, 2.0),)


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
    with refused(start=said):
        parse(data, "f")


def test_every_damaged_byte_is_found() -> None:
    data = losses(3.0, 2.0)
    for place in range(len(data)):
        with pytest.raises(SimnetError):
            parse(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], "f")
