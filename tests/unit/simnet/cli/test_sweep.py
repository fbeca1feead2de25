"""`simnet sweep`: files, table, axes, points and refused ones, Parquet, and where two strategies cross."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simnet.analysis.journal import NAME
from simnet.report.frame import read_frame
from tests.helpers.cli import ROOT, assert_refused, run
from tests.helpers.journals import rows
from tests.helpers.needs import needs
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import pod, write

NODES, BATCH = "cluster.num_nodes", "workload.batch_per_rank"
HEAD = f"{NODES},{BATCH}"
HALF_FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from simnet.analysis import journal, sweeps
sweeps.PART_S = journal.COMMIT_S = 0
from simnet.cli.main import main
main()
"""
"""The command, which writes down every point, on a disk that takes no more than some bytes of a file."""
MANY = {NODES: [1, 2, 3, 4, 5, 6, 7, 8], BATCH: [8, 16, 32]}


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


class TestFiles:
    def test_table_csv_and_json_are_written_and_what_was_there_before_is_told(self, file: str, tmp_path: Path) -> None:
        out = tmp_path / "out"
        result = run("sweep", file, "-o", out)
        assert result.exit_code == 0
        assert "speedup of binsgdm over tuned DDP" in result.stdout
        assert re.fullmatch(rf"6 points in \S+ s; wrote {out}/results.csv and {out}/results.json\n", result.stderr)
        document = json.loads((out / "results.json").read_text())
        assert [point["world_size"] for point in document["points"]] == [8, 16, 32, 8, 16, 32]
        assert [row["world_size"] for row in table((out / "results.csv").read_text())] == ["8", "16", "32"] * 2
        assert ", 6 of them finished before; wrote" in run("sweep", file, "-o", out).stderr

    def test_the_same_point_twice_was_not_there_before_and_csv_needs_no_directory(self, file: str) -> None:
        twice = run("sweep", file, "--set", f"{NODES}=2,2", "--format", "csv")
        assert re.fullmatch(r"4 points in \S+ s\n", twice.stderr)
        assert len(table(twice.stdout)) == 4


class TestPoints:
    @pytest.fixture
    def plain(self, tmp_path: Path) -> str:
        return str(write(tmp_path / "pod.toml", pod()))

    @pytest.fixture
    def dividing(self, plain: str) -> tuple[str, ...]:
        """A sweep of which 3 nodes do not divide the global batch."""
        return ("sweep", plain, "--set", "run.global_batch=64", "--set", f"{NODES}=1,2,3,4", "--draws", "0")

    @pytest.mark.parametrize("form", ["csv", "json"])
    def test_other_formats_tell_them_on_stderr(self, dividing: tuple[str, ...], form: str) -> None:
        result = run(*dividing, "--format", form)
        assert "refused: 1 of 4 points" in result.stderr
        assert "refused: 1" not in result.stdout
        if form == "csv":
            assert [row["grad_accumulation"] for row in table(result.stdout)] == ["8", "4", "2"]
            assert all(float(row["baseline_iteration_s"]) > 0 for row in table(result.stdout))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "points.csv: no points: write keys in the head"),
            (HEAD, "points.csv: no points: write keys in the head"),
            (f"{HEAD}\n2,", "points.csv:2: 1 values: the head has 2 keys; give a value for each"),
            (f"{HEAD}\n2,3,4", "points.csv:2: 3 values: the head has 2 keys"),
            (f"{HEAD},\n2,3,4", "points.csv: '': is no key; write keys in the head"),
            (f"{NODES},{NODES}\n2,3", "points.csv: 'cluster.num_nodes': two columns; drop one"),
            ("nodes\n2\n4", "points.csv: unknown key 'nodes'"),
            (f"{HEAD}\n{'9' * 5000},1", "a whole number of more than 300 digits"),
        ],
    )
    def test_a_file_that_holds_no_points_is_refused(self, plain: str, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "points.csv").write_text(text)
        assert_refused(run("sweep", plain, "--points", tmp_path / "points.csv"), message)

    def test_a_single_point_tells_that_its_file_lists_more(self, tmp_path: Path) -> None:
        file = str(write(tmp_path / "pod.toml", pod(sweep={"points": [{NODES: 1}, {NODES: 2}]})))
        assert "note: this is one point; the whole sweep: simnet sweep" in run("simulate", file).stderr
        assert run("check", file).stdout == f"{file}: ok: experiment, 2 points\n"
        assert '[sweep]\npoints = [\n    { "cluster.num_nodes" = 1 },\n' in run("show", file).stdout


class TestParquet:
    def test_it_is_written_beside_the_csv_and_its_name_is_printed(self, file: str, tmp_path: Path) -> None:
        needs("pyarrow")
        out = tmp_path / "out"
        run("sweep", file, "-o", out)
        done = run("sweep", file, "-o", out, "--format", "parquet")
        assert done.stdout == f"{out}/results.parquet\n"
        assert ", 6 of them finished before; wrote " in done.stderr
        assert {path.name for path in out.iterdir()} == {"results.csv", "results.json", "results.parquet", NAME}

    def test_its_rows_are_those_of_the_json(self, tmp_path: Path) -> None:
        needs("pyarrow")
        from pandas.testing import assert_frame_equal

        swept = {NODES: [1, 0, 2], "strategy": ["all_reduce", {"kind": "binsgdm", "topology": "flat"}]}
        scenario, out = write(tmp_path / "pod.toml", pod(run__draws=20, sweep=swept)), tmp_path / "out"
        for form in ("json", "parquet"):
            assert run("sweep", scenario, "-o", out, "--format", form).exit_code == 0
        flat, plain = read_frame(out), read_frame(out / "results.json")
        plain["strategy"] = [value if isinstance(value, str) else json.dumps(value) for value in plain["strategy"]]
        # A column in which all is missing has no type in JSON, and that of its field in Parquet.
        assert_frame_equal(flat, plain.astype(flat.dtypes))
        assert len(flat) == 4

    def test_it_gives_no_figures_and_says_what_does(self, file: str, tmp_path: Path) -> None:
        needs("pyarrow")
        run("sweep", file, "-o", tmp_path, "--format", "parquet")
        rule = "results.parquet: holds rows alone, for simnet.read_frame; for pages and figures sweep again without"
        assert_refused(run("plot", tmp_path, "-o", tmp_path), rule)

    def test_a_damaged_file_a_missing_one_and_missing_pyarrow_are_told(
        self, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needs("pyarrow")
        path = tmp_path / "results.parquet"
        run("sweep", file, "-o", tmp_path, "--format", "parquet")
        for content in (path.read_bytes()[:-30], b"", b"a,b\n1,2\n"):
            path.write_bytes(content)
            with refused(f"{path}: the file is damaged (", "); run the sweep again"):
                read_frame(path)
        with refused("no.parquet: no such file: name the results.parquet of a sweep, or its folder"):
            read_frame(tmp_path / "no.parquet")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with refused(
            "results.parquet: pyarrow is missing: a Parquet file needs it; in the checkout: pip install '.[dask]'"
        ):
            read_frame(path)
        missing = run("sweep", file, "-o", tmp_path / "out", "--format", "parquet")
        assert_refused(missing, "--format: pyarrow is missing")
        assert not (tmp_path / "out").exists()

    def test_refused_points_are_told_with_it_too(self, tmp_path: Path) -> None:
        needs("pyarrow")
        scenario = write(tmp_path / "pod.toml", pod(sweep={NODES: [0, 2]}))
        done = run("sweep", scenario, "-o", tmp_path / "out", "--format", "parquet", "--strict")
        assert done.exit_code == 1
        assert "refused: 1 of 2 points, which are left out:" in done.stderr
        assert "cluster.num_nodes = 0:" in done.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["csv", "parquet"])
    def test_a_full_disk_is_told_and_the_sweep_goes_on_when_there_is_room(self, tmp_path: Path, form: str) -> None:
        if form == "parquet":
            needs("pyarrow")
        scenario = str(write(tmp_path / "pod.toml", pod(sweep=MANY)))
        words = ("sweep", scenario, "--format", form, "--jobs", "1", "-o")
        whole = run(*words, tmp_path / "whole")
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
        resumed = run(*words, out)
        assert "24 points in " in resumed.stderr
        assert f", {finished} of them finished before" in resumed.stderr
        assert sorted(rows(out)) == sorted(rows(tmp_path / "whole"))
        assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
        for path in (tmp_path / "whole").glob("results.*"):
            assert (out / path.name).read_bytes() == path.read_bytes()
