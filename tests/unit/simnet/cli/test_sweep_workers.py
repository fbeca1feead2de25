"""`simnet sweep` on workers of Dask, and to a Parquet file: options that do not go together, and what is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simnet.analysis.journal import NAME
from tests.helpers.cli import ROOT, assert_refused, run
from tests.helpers.journals import rows
from tests.helpers.needs import needs
from tests.helpers.scenario_samples import pod, write

HALF_FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from simnet.analysis import journal, sweeps
sweeps.PART_S = journal.COMMIT_S = 0
from simnet.cli.main import main
main()
"""
"""The command, which writes down every point, on a disk that takes no more than some bytes of a file."""
MANY = {"cluster.num_nodes": [1, 2, 3, 4, 5, 6, 7, 8], "workload.batch_per_rank": [8, 16, 32]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheduler", "tcp://10.0.0.1:1", "--dask-local", "2"], "tcp://10.0.0.1:1: has no effect with --dask-local"),
        (["--jobs", "2", "--dask-local", "2"], "--jobs: 2: has no effect with --dask-local; drop one of the two"),
        (["--jobs", "2", "--scheduler", "x"], "--jobs: 2: has no effect with --scheduler; drop one of the two"),
        (["--dask-local", "0"], "Invalid value for '--dask-local': 0 is not in the range 1<=x<=1024"),
        (["--dask-local", "1" + "0" * 30], "is not in the range 1<=x<=1024"),
        (["--dask-local", "two"], "'two' is not a valid integer range"),
        (["--format", "parquet"], "--format: 'parquet': needs a directory for its file; add -o DIR"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("never_simulated")
def test_options_that_do_not_hold_together_are_refused(file: str, options: list[str], message: str) -> None:
    assert_refused(run("sweep", file, *options), message)


@pytest.mark.usefixtures("never_simulated")
def test_a_scheduler_that_has_no_address_is_refused(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("distributed")
    from simnet.analysis import workers

    monkeypatch.setattr(workers, "ANSWER_S", 0.3)
    assert_refused(run("sweep", file, "--scheduler", "größer:1"), "--scheduler: 'größer:1': ")


def test_parquet_is_written_beside_the_csv_and_its_name_is_printed(file: str, tmp_path: Path) -> None:
    needs("pyarrow")
    out = tmp_path / "out"
    run("sweep", file, "-o", str(out))
    done = run("sweep", file, "-o", str(out), "--format", "parquet")
    assert done.stdout == f"{out}/results.parquet\n"
    assert ", 6 of them finished before; wrote " in done.stderr
    assert {path.name for path in out.iterdir()} == {"results.csv", "results.json", "results.parquet", NAME}


def test_figures_are_drawn_of_a_parquet_file(file: str, tmp_path: Path) -> None:
    needs("pyarrow")
    out = tmp_path / "out"
    run("sweep", file, "-o", str(out), "--format", "parquet")
    drawn = run("plot", str(out / "results.parquet"), "-o", str(tmp_path / "figures"))
    assert drawn.exit_code == 0, drawn.output
    assert any((tmp_path / "figures").iterdir())


def test_refused_points_are_told_with_parquet_too(tmp_path: Path) -> None:
    needs("pyarrow")
    scenario = write(tmp_path / "pod.toml", pod(sweep={"cluster.num_nodes": [0, 2]}))
    done = run("sweep", str(scenario), "-o", str(tmp_path / "out"), "--format", "parquet", "--strict")
    assert done.exit_code == 1
    assert "refused: 1 of 2 points, which are left out:" in done.stderr
    assert "cluster.num_nodes = 0:" in done.stderr


@pytest.mark.parametrize("name", ["results.parquet"])
@pytest.mark.usefixtures("never_simulated")
def test_a_pipe_in_the_place_of_the_parquet_file_is_refused_before_simulating(
    file: str, tmp_path: Path, name: str
) -> None:
    needs("pyarrow")
    os.mkfifo(tmp_path / name)
    refused = run("sweep", file, "-o", str(tmp_path), "--format", "parquet")
    assert_refused(refused, "results.parquet: not a regular file; remove it")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_full_disk_in_mid_sweep_is_told_and_the_sweep_goes_on_when_there_is_room(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        needs("pyarrow")
    scenario = str(write(tmp_path / "pod.toml", pod(sweep=MANY)))
    words = ("sweep", scenario, "--format", form, "--jobs", "1", "-o")
    whole = run(*words, str(tmp_path / "whole"))
    assert whole.exit_code == 0
    half = (tmp_path / "whole" / NAME).stat().st_size // 2
    out = tmp_path / "out"
    command = [sys.executable, "-c", HALF_FULL, str(half), *words, str(out)]
    full = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rule = "make room: the same sweep resumes from the finished points; or name another directory with -o"
    assert re.fullmatch(rf"simnet: {out / NAME}: cannot be written \([\w /]+\); {rule}\n", full.stderr)
    assert (full.returncode, full.stdout) == (2, "")
    finished = len(rows(out))
    assert 0 < finished < 24
    assert [path.name for path in out.iterdir()] == [NAME]
    resumed = run(*words, str(out))
    assert "24 points in " in resumed.stderr
    assert f", {finished} of them finished before" in resumed.stderr
    assert sorted(rows(out)) == sorted(rows(tmp_path / "whole"))
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
    for path in (tmp_path / "whole").glob("results.*"):
        assert (out / path.name).read_bytes() == path.read_bytes()
