"""What the knobs mean: a command and a file that give the shown numbers."""

import json
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from simnet.engine.scenario import load
from simnet.engine.simulation import simulate
from simnet.report import explorer_live
from simnet.report.explorer_knobs import Knobs, Places, places_of, toml_of
from simnet.report.explorer_live import interval_text, view
from simnet.report.text import speedup_text
from tests.helpers.cli import run
from tests.helpers.refusals import refused

BERT = "bert_base_10gbit"
PLACES = [
    Places(8, 10.0, 64, 1.0, "BinSGDM (as in the scenario)", "DDP (as in the scenario)"),
    Places(16, 25.0, 32, 2.0, "BinSGDM", "DDP bf16"),
    Places(4, 100.0, 64, 1.0, "Top-k 1 %", "ZeRO-1"),
    Places(2, 1.0, 64, 0.5, "PowerSGD rank 4", "FSDP"),
]


@pytest.fixture(scope="module")
def knobs() -> Knobs:
    return Knobs(load(BERT), BERT)


@pytest.mark.parametrize("places", PLACES, ids=lambda places: places.strategy)
def test_command_and_file_give_the_shown_numbers(knobs: Knobs, places: Places, tmp_path: Path) -> None:
    shown = simulate(knobs.scenario_at(places))
    _, *arguments = shlex.split(knobs.command_at(places))
    printed = run(*arguments, "--draws", "0", "--format", "json")
    assert printed.exit_code == 0, printed.stderr
    assert json.loads(printed.stdout)["result"]["iterations_s"] == [shown.result.iteration_s]
    assert json.loads(printed.stdout)["speedup"] == shown.speedup
    (tmp_path / "copied.toml").write_text(toml_of(knobs.scenario_at(places)), encoding="utf-8")
    assert simulate(load(str(tmp_path / "copied.toml"))).speedup == shown.speedup


def test_a_place_that_no_slider_has_is_refused(knobs: Knobs) -> None:
    for place in (99, -1, True, "1", 0.5, None):
        with refused("must be a place of the slider"):
            places_of([place, 0, 0, 0, "BinSGDM", "DDP"], knobs)


def test_what_cannot_be_simulated_is_said_in_the_place_of_the_verdict(knobs: Knobs) -> None:
    found = view(knobs, Places(4, 10.0, 64, 1.0, "fp8 all-reduce", "DDP"))
    assert found.is_error
    assert "has no 8-bit floats" in found.verdict
    assert view(knobs, Places(4, 10.0, 64, 1.0, "<script>", "DDP")).is_error


def test_the_interval_is_that_of_the_command(knobs: Knobs) -> None:
    _, *arguments = shlex.split(knobs.command_at(PLACES[1]))
    low, high = json.loads(run(*arguments, "--format", "json").stdout)["intervals"]["speedup"]
    said = interval_text(knobs, PLACES[1])
    assert f": {speedup_text(low)} to {speedup_text(high)}. As written, binsgdm is " in said
    assert "over tuned DDP (" in said
    assert interval_text(knobs, Places(4, 10.0, 64, 1.0, "<script>", "DDP")) == ""


def test_a_bandwidth_that_nics_have_is_known_before_its_knob_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = Knobs(load(BERT), BERT)
    before = view(knobs, PLACES[1]).figures
    timed = Mock(wraps=explorer_live.StepLanes)
    monkeypatch.setattr(explorer_live, "StepLanes", timed)
    moved = view(knobs, replace(PLACES[1], gbit_per_s=50.0)).figures
    assert moved[0]["data"][0] == before[0]["data"][0]
    assert moved[1]["data"][0]["x"] == before[1]["data"][0]["x"]
    assert moved[1]["data"][0]["y"] != before[1]["data"][0]["y"]
    assert timed.call_count == 0
    assert view(knobs, PLACES[1]).figures == before
    anew = view(Knobs(load(BERT), BERT), replace(PLACES[1], gbit_per_s=50.0)).figures
    for one, other in zip(anew, moved, strict=True):
        assert one["data"][0]["y"] == pytest.approx(other["data"][0]["y"])


def test_a_view_holds_three_figures_of_which_two_have_the_own_place(knobs: Knobs) -> None:
    found = view(knobs, PLACES[1])
    over_rate, over_nodes, step = found.figures
    assert over_rate["data"][1]["x"] == [25.0]
    assert over_nodes["data"][1]["x"] == [16]
    shown = simulate(knobs.scenario_at(PLACES[1]))
    assert over_nodes["data"][1]["y"] == [pytest.approx(shown.speedup)]
    assert sum(trace["x"][0] for trace in step["data"]) * 1e-3 == pytest.approx(shown.result.iteration_s)
    assert tomllib.loads(found.toml)["cluster"]["num_nodes"] == 16
