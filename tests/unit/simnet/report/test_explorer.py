"""The page with sliders: its numbers are those of the command that it shows, and it follows its knobs in Chromium."""

import json
import shlex
from pathlib import Path

import pytest

import simnet
from simnet.cli.options import read_settings
from simnet.engine.scenario import load, load_experiment
from simnet.report import explorer
from simnet.report.explorer import explorer_page, num_places
from tests.helpers.browser import Watched, chromium, num_colours
from tests.helpers.cli import assert_refused, run
from tests.helpers.needs import needs

BERT = "bert_base_10gbit"


@pytest.mark.slow
def test_every_strategy_of_the_page_takes_as_long_as_its_command_says(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("plotly")
    for axis in ("NODES", "RATES", "CODECS"):
        monkeypatch.setattr(explorer, axis, (2,))
    base, ticks = load(BERT, {"question": "</script>?"}), []
    page = explorer_page(base, BERT, ticks.append)
    assert sum(ticks) == num_places(base)
    grid = json.loads(page.partition('id="grid">')[2].partition("</script>")[0])
    axes = [grid["nodes"].index(2), grid["rates"].index(2), grid["codecs"].index(2)]
    place = ["cluster.num_nodes=2", "cluster.inter_node.bandwidth=2 Gbit/s"]
    place += [f"calibration.codec_efficiency={grid['codec_efficiency'] / 2}", "run.draws=0"]
    of_scenario = "DDP (as in the scenario)"
    for title in {*grid["strategies"]} - {grid["baseline"], of_scenario}:
        given = grid["given"].get(title)
        settings = [*place, *([f"strategy={given}"] if given else [])]
        words = [word for setting in settings for word in ("--set", setting)]
        printed = run("simulate", BERT, *words, "--format", "json")
        assert printed.exit_code == 0, printed.stderr
        parts = grid["steps"][title][axes[0]][axes[1]][axes[2]]
        tuned = grid["steps"][grid["baseline"]][axes[0]][axes[1]][axes[2]]
        assert json.loads(printed.stdout)["speedup"] == pytest.approx(sum(tuned) / sum(parts), rel=1e-4), title


def test_a_scenario_whose_nodes_differ_is_refused(tmp_path: Path) -> None:
    slow = ("--set", "cluster.slow_nodes=[{ node = 0, nic_slowdown = 2 }]")
    page = tmp_path / "page.html"
    assert_refused(run("report", BERT, *slow, "--static", page), "drop slow_nodes, faults and run.fidelity")
    assert not page.exists()


@pytest.mark.nightly
def test_the_page_follows_its_knobs_without_a_server(tmp_path: Path) -> None:
    needs("plotly")
    page = tmp_path / "page.html"
    page.write_text(explorer_page(load(BERT, {"question": "</script><b>?"}), BERT), encoding="utf-8")
    assert page.stat().st_size < 6_000_000
    with chromium() as browser:
        watched = Watched(browser)
        shown = watched.open(page)
        assert shown.inner_text("h1") == "</script><b>?"
        before = shown.inner_text("#verdict")
        shown.locator("#rate").focus()
        shown.keyboard.press("ArrowRight")
        assert shown.inner_text("#verdict") != before
        shown.select_option("#strategy", "FSDP")
        assert "with FSDP and" in shown.inner_text("#verdict")
        assert "strategy={ kind = " in shown.inner_text("#command")
        for plot in shown.locator(".plot").all():
            assert num_colours(plot.screenshot()) > 10
        assert watched.errors == []


def test_the_command_of_the_page_names_what_was_set_and_what_was_chosen() -> None:
    experiment = load_experiment(BERT, {"strategy": {"kind": "binsgdm", "overlap": True}, "cluster.num_nodes": 4})
    words = shlex.split(explorer.named_by(BERT, experiment.overrides))
    assert words == [BERT, "--set", 'strategy={ kind = "binsgdm", overlap = true }', "--set", "cluster.num_nodes=4"]
    assert simnet.load(BERT, read_settings(words[2::2])) == experiment.at({})
