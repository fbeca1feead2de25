"""`simnet calibrate`, with `--variation` too: what it writes, what it refuses, and that a refusal writes nothing."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import Result

from simnet.calibration import variation, variation_files
from simnet.core import files
from simnet.engine.raw_scenario import check_part
from simnet.report.rank_table import variation_object
from tests.helpers import cli as helpers
from tests.helpers import rank_runs
from tests.helpers.cli import assert_refused
from tests.helpers.golden import GLOO, GOLDEN, IPERF3
from tests.helpers.scenario_samples import pod, write

LOGS = [str(files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")) for gpus in (2, 4, 8)]
HELD_OUT = str(files.data_path("published", "nccl-tests", "a100_azure_nd_v4_32gpus.log"))
ON_16 = str(files.data_path("published", "nccl-tests", "a100_azure_nd_v4_16gpus.log"))
COMPUTE_S = rank_runs.times(ranks=4, steps=40, slow={2: 1.5})


def run(*args: object) -> Result:
    return helpers.run("calibrate", *args)


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
    assert poor.exit_code == 2
    assert "a mean error of" in poor.stderr
    assert poor.stderr.count("\n") == 1
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


def test_what_becomes_of_each_log_and_of_torn_lines_is_said(tmp_path: Path) -> None:
    other, torn = tmp_path / "gather.log", tmp_path / "torn.log"
    text = Path(LOGS[2]).read_text()
    other.write_text("# all_gather_perf\n" + text)
    torn.write_text("\n".join(line[:-20] if " 1048576 " in line else line for line in text.splitlines()))
    alone = str(GOLDEN / "a100_azure_nd_v4_1gpus.log")
    done = run(alone, *LOGS[:2], str(torn), str(other), "--draws", "20", "--hold-out", ON_16, "--format", "json")
    assert done.exit_code == 0, done.output
    notes = " | ".join(json.loads(done.stdout)["notes"])
    assert f"{alone}: one GPU sends nothing: skipped" in notes
    assert f"{other}: 28 rows of all_gather of 8 GPUs on 1 node" in notes
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


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    return rank_runs.measurement(tmp_path / "m.json", COMPUTE_S)


def test_faults_are_printed_below_the_table_or_written(measured: Path, tmp_path: Path) -> None:
    printed, written = run("--variation", measured), tmp_path / "faults.toml"
    assert printed.exit_code == 0, printed.output
    done = run("--variation", measured, "-o", written)
    assert done.exit_code == 0
    assert done.stderr == f"wrote {written}\n"
    faults = tomllib.loads(written.read_text())["cluster"]["faults"]
    assert (faults[0]["kind"], faults[0]["node"], faults[0]["local_rank"]) == ("slow_rank", 1, 0)
    assert faults[0]["compute_slowdown"] == pytest.approx(1.5, rel=0.05)
    assert tomllib.loads(printed.stdout[printed.stdout.index("# Fitted by") :])["cluster"]["faults"] == faults
    assert "[[cluster.faults]]" not in done.stdout


def test_json_is_what_was_fitted(measured: Path) -> None:
    done = run("--variation", measured, "--format", "json")
    whole = variation_object(variation.fit(variation_files.read([measured])))
    assert json.loads(done.stdout) == json.loads(json.dumps(whole))


def test_the_file_is_put_below_a_scenario_as_it_is(measured: Path, tmp_path: Path) -> None:
    written = tmp_path / "faults.toml"
    assert run("--variation", measured, "-o", written).exit_code == 0
    path = write(tmp_path / "pod.toml", pod(cluster__ranks_per_node=2, run={"iterations": 20, "draws": 0}))
    path.write_text(path.read_text() + "\n" + written.read_text())
    done = helpers.run("simulate", path)
    assert done.exit_code == 0, done.output
    assert "slow rank, jitter of compute" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "w.toml"], "--workload: has no effect with --variation; drop it"),
        (["--bound", "5"], "--bound: has no effect with --variation; drop it"),
        (["--draws", "20"], "--draws: has no effect with --variation; drop it"),
        (["--figure", "f.png"], "--figure: has no effect with --variation; drop it"),
        (["--ranks-per-node", "2"], "--ranks-per-node: has no effect on "),
    ],
)
def test_options_without_effect_are_refused(options: list[str], message: str, measured: Path) -> None:
    assert_refused(run("--variation", measured, *options), message)


def test_ranks_per_node_needs_variation(measured: Path) -> None:
    result = run(measured, "--ranks-per-node", "2")
    assert_refused(result, "--ranks-per-node: has no effect without --variation; drop it")


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "two"])
def test_ranks_per_node_is_a_whole_number(number: str, measured: Path) -> None:
    result = run("--variation", measured, "--ranks-per-node", number)
    assert result.exit_code == 2
    assert "--ranks-per-node" in result.stderr


def test_a_file_that_was_read_is_not_replaced(measured: Path) -> None:
    before = measured.read_bytes()
    result = run("--variation", measured, "-o", measured)
    assert result.exit_code == 2, result.output
    assert measured.read_bytes() == before


def test_a_folder_that_is_not_there_is_refused_before_it_is_fitted(measured: Path, tmp_path: Path) -> None:
    result = run("--variation", measured, "-o", tmp_path / "none" / "faults.toml")
    assert result.exit_code == 2
    assert not (tmp_path / "none").exists()
