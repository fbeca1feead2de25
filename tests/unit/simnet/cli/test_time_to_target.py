"""`simnet advise --time-to-target` by its former name on the command line."""

import json
import re

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
    result = run("time-to-target", "resnet50_10gbit", file)
    assert result.exit_code == 0, result.output
    for rate in ("10 Gbit/s", "25 Gbit/s", "40 Gbit/s", "100 Gbit/s"):
        assert f"{rate} a NIC: " in result.stdout


def test_json_and_a_figure_are_written(file, tmp_path):
    out, figure = tmp_path / "times.json", tmp_path / "times.png"
    options = ("--at", "10 Gbit/s", "--format", "json", "-o", out, "--plot", figure)
    assert run("time-to-target", "resnet50_10gbit", file, *options).exit_code == 0
    assert len(json.loads(out.read_text())["bandwidths"]) == 1
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_same_times_draw_the_same_bytes(file, tmp_path):
    figures = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for figure in figures:
        assert (
            run(
                "time-to-target", "resnet50_10gbit", file, "--at", "10 Gbit/s,25 Gbit/s,1 Gbit/s", "--plot", figure
            ).exit_code
            == 0
        )
    assert figures[0].read_bytes() == figures[1].read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at", "25"), "--at: '25': write a number and a unit"),
        (("--at", ","), "--at: ',': must hold a bandwidth"),
        (("--at", "0 bit/s"), "must be"),
        (("--plot", "times.txt"), "times.txt: '.txt': a figure is a .png, .pdf or .svg file"),
        (("--plot", "no/where.png"), "no such directory"),
        (("--plot", "same.svg", "-o", "same.svg"), "same.svg: is named by -o and by --plot"),
        (("--ranks", "5"), "--ranks: 5: must be one of 4"),
        (("--target", "nan"), "--target: nan: must be finite"),
        (("--steps", "0"), "--steps"),
        (("--set", "cluster.num_node=3"), "num_node"),
        (("--price-per-gpu-hour", "two"), "--price-per-gpu-hour': 'two' is not a valid"),
        (("--price-per-gpu-hour", "-2"), "--price-per-gpu-hour"),
        (("--price-per-gpu-hour", "0"), "--price-per-gpu-hour"),
        (("--price-per-gpu-hour", "nan"), "--price-per-gpu-hour"),
        (("--price-per-gpu-hour", "inf"), "--price-per-gpu-hour"),
        (("--price-per-gpu-hour", "2 €"), "--price-per-gpu-hour"),
        (("--price-per-gpu-hour", ""), "--price-per-gpu-hour"),
        (("--metric", "loss"), "--metric: has no effect with the convergence of"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(file, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(run("time-to-target", "resnet50_10gbit", file, *options), said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainings.json"]


def test_an_unknown_task_is_refused(tmp_path):
    assert_refused(run("time-to-target", "resnet50_10gbit", "nothing"), "'nothing': unknown convergence.")
    assert_refused(run("time-to-target", "resnet50_10gbit", str(tmp_path)), "no event file of TensorBoard in it")
    assert_refused(run("time-to-target", "nothing", "characters"), "'nothing': unknown experiment.")


def test_check_and_show_know_such_a_file(file):
    assert "ok: convergence" in run("check", file).stdout
    assert 'task = "a made-up task"' in run("show", file).stdout
    assert "--time-to-target" in run("advise", "--help").stdout


def test_the_strategy_and_the_steps_of_the_experiment_do_not_matter(file):
    found = run("time-to-target", "one_bit_adam_end_to_end", file, "--at", "10 Gbit/s", "--same-task")
    assert found.exit_code == 0, found.output


def test_the_axes_of_an_experiment_are_said_not_to_matter(file):
    at = ("--at", "10 Gbit/s", "--same-task")
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


def test_the_former_name_of_the_command_works_and_is_not_listed(file):
    present, former = (run(name, "resnet50_10gbit", file, "--at", "10 Gbit/s") for name in ("time-to-target", "race"))
    assert present.exit_code == 0
    assert present.stdout == former.stdout
    assert not re.search(r"^ +race\b", run("--help").stdout, re.MULTILINE)


def test_curves_of_another_model_are_refused_unless_told(tmp_path):
    given = ("time-to-target", "bert_base_10gbit", "characters", "--at", "10 Gbit/s")
    refused = run(*given)
    assert_refused(refused, "110,106,428")
    assert "add --same-task" in refused.stderr
    told = run(*given, "--same-task")
    assert told.exit_code == 0, told.output
    assert "10 Gbit/s a NIC, if bert_base trained as Characters does: " in told.stdout
    unknown = write_trainings(tmp_path / "t.json", num_parameters=None)
    assert_refused(run("time-to-target", "resnet50_10gbit", unknown), "num_parameters: missing")


def test_a_price_gives_what_each_system_costs(file):
    options = ("--at", "10 Gbit/s", "--price-per-gpu-hour", "2.5")
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


def test_a_convergence_file_stands_alone(file, tmp_path):
    (tmp_path / "a.csv").write_text("step,loss\n1,2\n")
    given = ("time-to-target", "resnet50_10gbit", file, tmp_path / "a.csv")
    assert_refused(run(*given), "among other curves: no log of a training")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.csv", b"", "x.csv: is empty"),
        ("x.csv", b"epoch,accuracy\n1,0.5\n", "none of steps; needs 'step' or 'samples'"),
        ("x.csv", b"step,loss\n1,3\n2,nan\n3,2\n", "x.csv:3: 'loss' is nan"),
        ("x.csv", b"step,loss\n2,3\n1,2\n", "x.csv:3: 1 steps after 2: must increase"),
        ("x.csv", "step,loss\n1,три\n".encode(), "x.csv:2: 'loss': 'три': must be a number"),
        ("events.out.tfevents.1", losses(3.0, 2.0)[:-3], "(step 10); copy the file again"),
        ("events.out.tfevents.1", b"a graph of a network", "no event file of TensorBoard"),
        ("λ.json", b"[3]", "λ.json: no table"),
    ],
)
def test_a_log_of_another_kind_is_refused_in_one_line(name, data, said, tmp_path):
    (tmp_path / name).write_bytes(data)
    given = ("time-to-target", "resnet50_10gbit", tmp_path / name, "--target", "3", "--same-task")
    assert_refused(run(*given, "-o", tmp_path / "out.txt"), said)
    assert not (tmp_path / "out.txt").exists()


def test_a_scenario_needs_no_strategy(file, tmp_path):
    given = {key: value for key, value in pod().items() if key not in {"strategy", "baseline"}}
    path = write(tmp_path / "pod.toml", given)
    told = run("time-to-target", str(path), file, "--same-task", "--at", "10 Gbit/s", "--draws", "0")
    assert told.exit_code == 0, told.output
