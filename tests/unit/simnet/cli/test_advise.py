"""`simnet advise`: its table, JSON, figure and command."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis.advice import Advice
from simnet.report import comparison_charts
from tests.helpers import cli as helpers
from tests.helpers.advise_samples import GBIT, advised, row
from tests.helpers.scenario_samples import pod, write
from tests.helpers.time_to_target_samples import write_trainings

MARK = " (kernels not measured)"


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advised("binsgdm", "top_k", "qsgd", "terngrad", "marsit", "sign_sgd")


class TestFigure:
    def test_it_names_at_most_six_systems_what_to_use_first_and_with_its_interval(self, advice: Advice) -> None:
        curves = comparison_charts.advised(advice).curves
        used, names = advice.used, [curve.name.removesuffix(MARK) for curve in curves]
        choices = {one.system.name for one in advice.choices}
        paying = {one.name for one in advice.with_verdict("pays")}
        by_speed = [one for one in advice.others if one is not used]
        rows = [one for one in by_speed if one.name in choices]
        rows += [one for one in by_speed if one.name in paying - choices]
        rows += [one for one in by_speed if one.name not in paying | choices]
        assert len(rows) >= 6
        assert names == [f"{used.label} (90 % interval)", *(one.label for one in rows[:5])]
        assert f"{row(advice, 'Top-k 1 %').label}{MARK}" in {curve.name for curve in curves}
        ((place, speedup),) = ((at, one) for at, (rate, one) in enumerate(used.curve) if rate == GBIT)
        assert (curves[0].x[place], curves[0].y[place]) == (1.0, speedup)
        assert used.speedup.interval is not None
        assert curves[0].ends[place] == pytest.approx(used.speedup.interval)
        assert not any(curve.ends for curve in curves[1:])


class TestCommand:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("scenario_", "given"),
        [
            ("bert_base_10gbit", {}),
            ("slow_rank", {"systems": ["binsgdm", "one_bit_adam", "qsgd", "power_sgd", "hsdp", "zero1"]}),
        ],
    )
    def test_the_answer_is_about_one_screen_and_all_has_no_wider_lines(
        self, scenario_: str, given: dict[str, Any]
    ) -> None:
        found = simnet.advise(scenario_, {"cluster.num_nodes": 4}, draws=20, **given)
        for page, most in ((found.page(), 34), (found.ranking(), 1000)):
            lines = str(page).splitlines()
            assert 10 < len(lines) <= most
            assert max(map(len, lines)) <= 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "called"),
    [
        ({"title": "Llama-like, 1.35 B"}, "Llama-like, 1.35 B"),
        ({}, "110 M parameters"),
        ({"name": "mine", "title": "Mine"}, "mine"),
    ],
)
def test_a_workload_without_a_name_is_called_by_its_title_or_by_its_size(
    workload: dict[str, object], called: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "pod.toml", pod() | {"workload": pod()["workload"] | workload})
    assert helpers.run("advise", file, "--systems", "BinSGDM").stdout.startswith(f"{called} on 2 nodes x 8 GPUs")
    trainings = write_trainings(tmp_path / "trainings.json")
    raced = helpers.run("race", file, trainings, "--same-task", "--at", "10 Gbit/s")
    assert f"steps of {called} on 2 nodes" in raced.stdout
    assert f"--same-task: steps of {called} (" in " ".join(raced.stdout.split())


def test_a_time_to_target_is_written_and_the_axes_of_an_experiment_are_said_not_to_matter(tmp_path: Path) -> None:
    out, figure = tmp_path / "times.json", tmp_path / "times.png"
    curves = write_trainings(tmp_path / "trainings.json", num_parameters=25_557_032)  # as resnet50_10gbit has
    at = ("--at", "10 Gbit/s", "--draws", "0")
    options = ("--format", "json", "-o", out, "--plot", figure)
    assert helpers.run("time-to-target", "resnet50_10gbit", curves, *at, *options).exit_code == 0
    assert len(json.loads(out.read_text())["bandwidths"]) == 1
    assert figure.read_bytes().startswith(b"\x89PNG")
    note = "note: this is one point, without the sweep over cluster.slow_nodes; choose another with --set"
    assert note in helpers.run("time-to-target", "straggler", curves, *at, "--same-task").stderr
    of_one = helpers.run("time-to-target", "bert_base_10gbit", curves, *at, "--same-task")
    assert "note: this is one point" not in of_one.stderr


def test_the_speed_of_a_language_model_is_told_in_tokens_too() -> None:
    said = " ".join(helpers.run("advise", "bert_base_10gbit", "--systems", "BinSGDM").stdout.split())
    assert re.search(r"samples/s \([\d.]+ M tokens/s, \d+ B a day\)", said)
