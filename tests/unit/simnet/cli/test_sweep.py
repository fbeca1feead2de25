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
from tests.helpers.cli import BANDWIDTH, ROOT, assert_refused, run
from tests.helpers.journals import rows
from tests.helpers.needs import needs
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
        assert "speedup of binsgdm over all_reduce" in result.stdout
        assert re.fullmatch(rf"6 points in \S+ s; wrote {out}/results.csv and {out}/results.json\n", result.stderr)
        document = json.loads((out / "results.json").read_text())
        assert [point["world_size"] for point in document["points"]] == [8, 16, 32, 8, 16, 32]
        assert [row["world_size"] for row in table((out / "results.csv").read_text())] == ["8", "16", "32"] * 2
        assert ", 6 of them finished before; wrote" in run("sweep", file, "-o", out).stderr

    def test_several_values_make_an_axis_and_one_ends_it(self, file: str) -> None:
        several, one = "strategy=binsgdm,one_bit_adam", f"{NODES}=4"
        document = json.loads(run("sweep", file, "--set", several, "--set", one, "--format", "json").stdout)
        assert [axis["key"] for axis in document["axes"]] == [BANDWIDTH, "strategy"]
        assert {point["world_size"] for point in document["points"]} == {32}

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

    def test_refused_points_are_counted_and_told_and_the_others_written(
        self, dividing: tuple[str, ...], plain: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        result = run(*dividing, "-o", out)
        assert result.exit_code == 0
        assert re.match(r"4 points in \S+ s, 1 of them refused; wrote ", result.stderr)
        told = " ".join(result.stdout.split())
        assert "refused: 1 of 4 points, which are left out: cluster.num_nodes = 3: " in told
        assert "run.global_batch: 64: must be a multiple of 24 ranks x 1 samples = 24; change it" in told
        assert "note: run.global_batch = 64: gradients are accumulated over 2 to 8 micro-batches" in told
        document = json.loads((out / "results.json").read_text())
        assert [point["set"] for point in document["refused"]] == [{NODES: 3}]
        assert [row[NODES] for row in table((out / "results.csv").read_text())] == ["1", "2", "4"]
        again = run(*dividing, "--strict", "-o", out)
        assert again.exit_code == 1
        assert ", 1 of them refused, 4 of them finished before; wrote" in again.stderr
        assert again.stdout == result.stdout
        assert run("sweep", plain, "--set", f"{NODES}=1,2", "--strict").exit_code == 0

    @pytest.mark.parametrize("form", ["csv", "json"])
    def test_other_formats_tell_them_on_stderr(self, dividing: tuple[str, ...], form: str) -> None:
        result = run(*dividing, "--format", form)
        assert "refused: 1 of 4 points" in result.stderr
        assert "refused: 1" not in result.stdout
        if form == "csv":
            assert [row["grad_accumulation"] for row in table(result.stdout)] == ["8", "4", "2"]
            assert all(float(row["baseline_iteration_s"]) > 0 for row in table(result.stdout))

    def test_points_are_given_one_by_one(self, plain: str) -> None:
        points = ("--point", f"{NODES}=2, {BATCH}=64", "--point", f"{BATCH}=32,{NODES}=4")
        found = table(run("sweep", plain, *points, "--set", "strategy=binsgdm,qsgd", "--format", "csv").stdout)
        assert [(row[NODES], row[BATCH], row["strategy"]) for row in found] == [
            ("2", "64", "binsgdm"), ("2", "64", "qsgd"), ("4", "32", "binsgdm"), ("4", "32", "qsgd")
        ]  # fmt: skip

    def test_points_come_from_a_csv_file(self, plain: str, tmp_path: Path) -> None:
        (tmp_path / "points.csv").write_text(f"{NODES};{BANDWIDTH}\n# ours\n2;10 Gbit/s\n\n4;25 Gbit/s\n")
        document = json.loads(run("sweep", plain, "--points", tmp_path / "points.csv", "--format", "json").stdout)
        assert [point["set"] for point in document["points"]] == [
            {NODES: 2, BANDWIDTH: "10 Gbit/s"}, {NODES: 4, BANDWIDTH: "25 Gbit/s"}
        ]  # fmt: skip

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
    def test_it_is_written_beside_the_csv_its_name_is_printed_and_it_is_drawn(self, file: str, tmp_path: Path) -> None:
        needs("pyarrow")
        out = tmp_path / "out"
        run("sweep", file, "-o", out)
        done = run("sweep", file, "-o", out, "--format", "parquet")
        assert done.stdout == f"{out}/results.parquet\n"
        assert ", 6 of them finished before; wrote " in done.stderr
        assert {path.name for path in out.iterdir()} == {"results.csv", "results.json", "results.parquet", NAME}
        drawn = run("plot", out / "results.parquet", "-o", tmp_path / "figures")
        assert drawn.exit_code == 0, drawn.output
        assert any((tmp_path / "figures").iterdir())

    def test_refused_points_are_told_with_it_too(self, tmp_path: Path) -> None:
        needs("pyarrow")
        scenario = write(tmp_path / "pod.toml", pod(sweep={NODES: [0, 2]}))
        done = run("sweep", scenario, "-o", tmp_path / "out", "--format", "parquet", "--strict")
        assert done.exit_code == 1
        assert "refused: 1 of 2 points, which are left out:" in done.stderr
        assert "cluster.num_nodes = 0:" in done.stderr

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


class TestCrossover:
    """By its former name."""

    NEAR = ("--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s")

    def test_the_value_has_three_digits_and_the_range_that_pays_follows(self, file: str) -> None:
        result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "400 Gbit/s")
        pattern = rf"{BANDWIDTH}: binsgdm is faster than all_reduce up to ([\d.]+) Gbit/s, all_reduce is at least as "
        (value,) = re.match(pattern, result.stdout).groups()
        assert len(value.replace(".", "").lstrip("0")) <= 3
        second = result.stdout.splitlines()[1]
        found = re.match(rf"{BANDWIDTH}: of the values tried, binsgdm pays from 1 Gbit/s to ([\d.]+) Gbit/s.$", second)
        assert float(found[1]) < float(value)

    def test_an_integer_is_told_as_its_two_neighbours_and_json_holds_both(self, file: str, tmp_path: Path) -> None:
        given = ("crossover", file, "--over", NODES, "--from", "1", "--to", "8")
        sentence = f"{NODES}: all_reduce is at least as fast up to 1, binsgdm is faster than all_reduce from 2 on."
        assert run(*given).stdout.startswith(sentence)
        run(*given, "--format", "json", "-o", tmp_path / "found.json")
        (crossing,) = json.loads((tmp_path / "found.json").read_text())["crossings"]
        assert (crossing["low"]["value"], crossing["high"]["value"]) == (1, 2)
        assert crossing["strategy_is_faster"] == "above"
        assert crossing["low"]["speedup"] < 1 < crossing["high"]["speedup"]

    def test_without_a_crossing_the_winner_is_named_with_both_ends_and_notes_stand_below(self, file: str) -> None:
        result = run("crossover", file, *self.NEAR).stdout
        assert "no crossing: binsgdm is faster than all_reduce at all 9 values tried from 1 Gbit/s to 2 G" in result
        assert result.splitlines()[11].lstrip().startswith("2 Gbit/s ")
        note = "calibration is ideal (nominal rates, no other cost), not measured on this cluster"
        assert result.endswith(f"\n\nnote: {note}\n")
        assert json.loads(run("crossover", file, *self.NEAR, "--format", "json").stdout)["notes"] == [note]

    def test_a_strategy_against_itself_is_told_apart(self, file: str) -> None:
        same = ("--set", "strategy=all_reduce", "--set", "strategy.wire_dtype=fp16")
        assert "strategy is faster than baseline" in run("crossover", file, *self.NEAR, *same).stdout
