"""`simnet advise --time-to-target` by its former name on the command line."""

import json

import pytest

from tests.helpers.cli import assert_refused, run
from tests.helpers.event_files import losses
from tests.helpers.scenario_samples import pod, write
from tests.helpers.time_to_target_samples import trainings, write_trainings

RESNET50 = 25_557_032
"""Parameters of the workload of resnet50_10gbit."""


@pytest.fixture
def file(tmp_path):
    return str(write_trainings(tmp_path / "trainings.json", num_parameters=RESNET50))


def test_a_table_has_a_column_for_each_bandwidth(file):
    result = run("time-to-target", "resnet50_10gbit", file, "--draws", "0")
    assert result.exit_code == 0, result.output
    for rate in ("10 Gbit/s", "25 Gbit/s", "40 Gbit/s", "100 Gbit/s"):
        assert f"{rate} a NIC: " in result.stdout


def test_json_and_a_figure_are_written(file, tmp_path):
    out, figure = tmp_path / "times.json", tmp_path / "times.png"
    options = ("--at", "10 Gbit/s", "--draws", "0", "--format", "json", "-o", out, "--plot", figure)
    assert run("time-to-target", "resnet50_10gbit", file, *options).exit_code == 0
    assert len(json.loads(out.read_text())["bandwidths"]) == 1
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_check_and_show_know_such_a_file(file):
    assert "ok: convergence" in run("check", file).stdout
    assert 'task = "a made-up task"' in run("show", file).stdout
    assert "--time-to-target" in run("advise", "--help").stdout


def test_the_strategy_and_the_steps_of_the_experiment_do_not_matter_and_may_be_missing(file, tmp_path):
    bare = {key: value for key, value in pod().items() if key not in {"strategy", "baseline"}}
    for given in ("one_bit_adam_end_to_end", write(tmp_path / "pod.toml", bare)):
        found = run("time-to-target", given, file, "--at", "10 Gbit/s", "--same-task", "--draws", "0")
        assert found.exit_code == 0, found.output


def test_the_axes_of_an_experiment_are_said_not_to_matter(file):
    at = ("--at", "10 Gbit/s", "--same-task", "--draws", "0")
    note = "note: this is one point, without the sweep over cluster.slow_nodes; choose another with --set"
    assert note in run("time-to-target", "straggler", file, *at).stderr
    assert "note: this is one point" not in run("time-to-target", "bert_base_10gbit", file, *at).stderr


def test_a_baseline_whose_first_values_are_no_numbers_is_drawn(tmp_path):
    values = [None, 3.0, 2.0, 1.0]
    curves = [{**one, "values": values} for one in trainings()["curves"] if one["seed"] == 0]
    file = write_trainings(tmp_path / "t.json", curves=curves, num_parameters=RESNET50)
    found = run("time-to-target", "resnet50_10gbit", file, "--at", "10 Gbit/s", "--plot", tmp_path / "times.svg")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "times.svg").stat().st_size > 0


def test_a_price_gives_what_each_system_costs(file):
    options = ("--at", "10 Gbit/s", "--draws", "0", "--price-per-gpu-hour", "2.5")
    page = run("time-to-target", "resnet50_10gbit", file, *options).stdout
    assert "up to the target, at 2.5 a GPU-hour:" in page
    found = json.loads(run("time-to-target", "resnet50_10gbit", file, *options, "--format", "json").stdout)
    for system in found["bandwidths"][0]["systems"]:
        if system["time_to_target_s"] is not None:
            assert system["price_to_target"] == pytest.approx(
                system["time_to_target_s"] / 3600 * 2.5 * found["num_gpus"]
            )
    assert found["price_per_gpu_hour"] == 2.5


def test_logs_of_trainers_are_read(tmp_path):
    (tmp_path / "adam.csv").write_text("step,loss,seed\n100,4,0\n200,3,0\n100,4.2,1\n200,2.9,1\n")
    (run_ := tmp_path / "runs" / "qsgd").mkdir(parents=True)
    (run_ / "events.out.tfevents.1").write_bytes(losses(4.1, 3.2, 2.8, every=100, first=100))
    logs = (f"all_reduce={tmp_path / 'adam.csv'}", f"qsgd={run_}")
    given = ("time-to-target", "resnet50_10gbit", *logs, "--at", "10 Gbit/s", "--target", "3")
    assert_refused(run(*given), "num_parameters: missing")
    found = run(*given, "--same-task", "--price-per-gpu-hour", "2")
    assert found.exit_code == 0, found.output
    assert "2 of 2" in found.stdout
    assert "logs do not say on how many ranks" in found.stdout
