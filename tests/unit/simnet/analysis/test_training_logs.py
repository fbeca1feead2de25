"""Logs of any kind from a path: told by their content, refused where they are something else."""

import gzip
from pathlib import Path

import pytest

from simnet.analysis.training_logs import read_curves
from simnet.core.errors import SimnetError
from tests.helpers.event_files import begin, losses, simple
from tests.helpers.refusals import refused


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def values(path: Path, metric: str | None = None) -> tuple:
    (curve,) = read_curves(path, metric)
    return curve.values


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
    assert values(write(tmp_path / "log", data)) == (3.0, 2.0)


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


def test_a_tag_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "events.out.tfevents.1", losses(3.0, tag="train/loss"))
    assert values(path) == (3.0,)
    with pytest.raises(SimnetError, match="no tag 'loss'; name one with --metric: 'train/loss'"):
        read_curves(path, "loss")


def test_a_folder_without_events_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match="no event file of TensorBoard in it"):
        read_curves(tmp_path, None)
    write(tmp_path / "a" / "events.out.tfevents.1", losses(3.0))
    with pytest.raises(SimnetError, match="holds several runs: 'a'; name the folder of one run"):
        read_curves(tmp_path, None)
    with pytest.raises(SimnetError, match="cannot be read: No such file"):
        read_curves(tmp_path / "none", None)
