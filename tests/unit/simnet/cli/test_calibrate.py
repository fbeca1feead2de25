"""`simnet calibrate`: what it writes, what it refuses, and that a refusal writes nothing."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simnet.cli.main import cli
from simnet.core import files
from simnet.engine.raw_scenario import check_part
from tests.helpers.golden import GLOO, GOLDEN, IPERF3

LOGS = [str(files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")) for gpus in (2, 4, 8)]
HELD_OUT = str(files.data_path("published", "nccl-tests", "a100_azure_nd_v4_32gpus.log"))
ON_16 = str(files.data_path("published", "nccl-tests", "a100_azure_nd_v4_16gpus.log"))


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["calibrate", *args], prog_name="simnet")


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_calibration_of_logs_is_written_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "fitted.toml"
    done = run(*LOGS, ON_16, "--hold-out", HELD_OUT, "--cluster", "azure_nd_a100_v4", "--draws", "20", "-o", str(path))
    assert done.exit_code == 0, done.output
    assert "all_reduce, 32 GPUs on 4 nodes, from 16 MiB on (held out)" in done.stdout
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    assert written["kind"] == "measured"
    assert written["gpu"] == "A100-SXM4-40GB"
    assert written["inter_node"]["measured_on"] == "200 Gbit/s"
    assert [point["nodes"] for point in written["by_nodes"]] == [2]
    assert set(written["intervals"]) >= {
        "nccl.intra_node_efficiency",
        "nccl.inter_node_efficiency",
        "collective_launch",
    }
    check_part("calibrations", str(path))


def test_the_same_files_give_the_same_calibration(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        assert run(*LOGS, "--draws", "20", "-o", str(tmp_path / name)).exit_code == 0
    assert (tmp_path / "a.toml").read_text() == (tmp_path / "b.toml").read_text()


def test_a_poor_fit_writes_nothing_unless_accepted(tmp_path: Path) -> None:
    path = tmp_path / "fitted.toml"
    options = (*LOGS, "--draws", "20", "--bound", "2", "-o", str(path))
    poor = run(*options)
    assert_refused(poor, "a mean error of")
    assert "residuals" in poor.stdout
    assert not path.exists()
    assert run(*options, "--accept-poor-fit").exit_code == 0
    assert path.exists()


def test_a_name_that_steers_a_terminal_is_written_so_that_it_is_read_back(tmp_path: Path) -> None:
    odd = tmp_path / "\x1b.log"
    odd.write_bytes(Path(LOGS[0]).read_bytes())
    path = tmp_path / "mine.toml"
    assert run(str(odd), *LOGS[1:], "--draws", "20", "--accept-poor-fit", "-o", str(path)).exit_code == 0
    assert "\x1b.log" in tomllib.loads(path.read_text())["title"]


def test_every_residual_is_shown_if_asked_for() -> None:
    assert "1.049 MB, ring LL128" in run(*LOGS, "--draws", "20", "--all-rows").stdout


def test_logs_that_do_not_help_and_torn_lines_are_skipped_and_said(tmp_path: Path) -> None:
    other, torn = tmp_path / "gather.log", tmp_path / "torn.log"
    text = Path(LOGS[2]).read_text()
    other.write_text("# all_gather_perf\n" + text)
    torn.write_text("\n".join(line[:-20] if " 1048576 " in line else line for line in text.splitlines()))
    alone = str(GOLDEN / "a100_azure_nd_v4_1gpus.log")
    done = run(alone, *LOGS[:2], str(torn), str(other), "--draws", "20", "--hold-out", ON_16, "--format", "json")
    assert done.exit_code == 0, done.output
    notes = " | ".join(json.loads(done.stdout)["notes"])
    assert f"{alone}: one GPU sends nothing: skipped" in notes
    assert f"{other}: all_gather: only logs of all_reduce can be fitted: skipped" in notes
    assert f"{torn}: 26 rows of 8 GPUs on 1 node; 2 torn lines skipped" in notes
    assert f"{LOGS[0]}: 28 rows of 2 GPUs on 1 node" in notes


def test_a_trace_is_shown_and_written_as_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "traced.toml"
    done = run(str(GLOO), "--workload", str(path), "--batch", "32")
    assert done.exit_code == 0, done.output
    assert "communication" in done.stdout
    assert tomllib.loads(path.read_text())["batch_per_rank"] == 32
    check_part("workloads", str(path))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((LOGS[0], LOGS[0]), "is given twice"),
        ((*LOGS, "--bound", "nan"), "Invalid value for '--bound': 'nan' is no number"),
        ((*LOGS, "--hold-out", LOGS[0]), "is also a file to fit"),
        ((*LOGS, "--hold-out", str(IPERF3)), "the fitted files predict nothing"),
        ((str(GLOO), "-o", "x.toml"), "the files tell neither links nor kernels"),
        ((*LOGS, "--workload", "x.toml"), "0 traces, 0 files of simnet measure model and 0 tables"),
        ((*LOGS, "--cluster", "azure"), "'azure': unknown cluster"),
        ((*LOGS, "-o", "none/x.toml"), "no such directory"),
        ((str(GOLDEN / "a100_azure_nd_v4_1gpus.log"),), "one GPU sends nothing: no log is left"),
        (
            (str(GLOO), "--workload", "x.toml"),
            "a trace does not say its batch; give the samples of a rank with --batch",
        ),
        ((str(IPERF3), ON_16, "--draws", "20", "-o", "x.toml"), "inter_node: two files give a value"),
    ],
)
def test_mistakes_are_told_in_one_line_and_write_nothing(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*args, "--draws", "20"), message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ("[1.1, 1.2]", "must be two factors with 1 between them"),
        ("[-0.5, 1.2]", "above 0"),
        ("[0.5]", "write a list of 2 values"),
    ],
)
def test_intervals_that_do_not_hold_their_value_are_refused(interval: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(f'[intervals]\n"inter_node.latency" = {interval}\n', encoding="utf-8")
    with pytest.raises(Exception, match=message):
        check_part("calibrations", str(path))
