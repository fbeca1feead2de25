"""What is run in both checkouts."""

from pathlib import Path

import pytest

from evidence import ROOT
from evidence.benchmarks import compare_checkouts
from evidence.benchmarks.compare_checkouts import Job, drawing, simnet
from evidence.benchmarks.timing import Checkout


def test_every_command_that_takes_draws_and_says_none_gets_them() -> None:
    jobs = [drawing(job, 0) for job in (*compare_checkouts.quick_jobs(ROOT), *compare_checkouts.long_jobs(ROOT))]
    drawn = {job.title for job in jobs if job.arguments[-2:] == ("--draws", "0")}
    assert drawn >= {
        "simulate bert_base_10gbit",
        "sweep speedup",
        "crossover resnet50_10gbit",
        "advise bert_base_10gbit",
    }
    assert not any("20" in title or title.startswith(("validate", "calibrate", "training")) for title in drawn)


def test_without_a_number_of_draws_a_command_is_as_it_was() -> None:
    job = simnet("simulate x", "csv", "simulate", "x")
    assert drawing(job, None) == job
    other = Job("a program", "prose", ("-m", "studies"))
    assert drawing(other, 0) == other


def test_a_folder_without_simnet_is_refused_where_the_installed_one_would_be_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare_checkouts", str(tmp_path), str(ROOT), "--quick"])
    with pytest.raises(SystemExit, match="2"):
        compare_checkouts.main()
    assert f"{tmp_path}: is no checkout" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="is no checkout"):
        Checkout(tmp_path, tmp_path)
