"""`simnet time-to-target` on the command line."""

import json

import pytest

from tests.helpers.cli import assert_refused, run
from tests.helpers.time_to_target_samples import trainings, write_trainings


@pytest.fixture
def file(tmp_path):
    return str(write_trainings(tmp_path / "trainings.json"))


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
    ],
)
def test_a_wrong_option_is_refused_in_one_line(file, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(run("time-to-target", "resnet50_10gbit", file, *options), said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainings.json"]


def test_an_unknown_task_is_refused(tmp_path):
    assert_refused(run("time-to-target", "resnet50_10gbit", "nothing"), "'nothing': unknown convergence.")
    assert_refused(run("time-to-target", "nothing", str(tmp_path)), "not a regular file")


def test_check_and_show_know_such_a_file(file):
    assert "ok: convergence" in run("check", file).stdout
    assert 'task = "a made-up task"' in run("show", file).stdout
    assert "time-to-target" in run("--help").stdout


def test_the_strategy_and_the_steps_of_the_experiment_do_not_matter(file):
    found = run("time-to-target", "one_bit_adam_end_to_end", file, "--at", "10 Gbit/s")
    assert found.exit_code == 0, found.output


def test_the_axes_of_an_experiment_are_said_not_to_matter(file):
    note = "note: this is one point, without the sweep over cluster.slow_nodes; choose another with --set"
    assert note in run("time-to-target", "straggler", file, "--at", "10 Gbit/s").stderr
    assert "note: this is one point" not in run("time-to-target", "bert_base_10gbit", file, "--at", "10 Gbit/s").stderr


def test_a_baseline_whose_first_values_are_no_numbers_is_drawn(tmp_path):
    values = [None, 3.0, 2.0, 1.0]
    curves = [{**one, "values": values} for one in trainings()["curves"] if one["seed"] == 0]
    file = write_trainings(tmp_path / "t.json", curves=curves)
    found = run("time-to-target", "resnet50_10gbit", file, "--at", "10 Gbit/s", "--plot", tmp_path / "times.svg")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "times.svg").stat().st_size > 0


def test_the_former_name_of_the_command_works_and_is_not_listed(file):
    present, former = (run(name, "resnet50_10gbit", file, "--at", "10 Gbit/s") for name in ("time-to-target", "race"))
    assert present.exit_code == 0
    assert present.stdout == former.stdout
    assert "race" not in run("--help").stdout
