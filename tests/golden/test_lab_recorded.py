"""The recorded steps that ran in the lab: the page says what its files say, and they were predicted before they ran."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from benchmarks.regions import filled, region
from simnet.calibration.comparison import mean_error, worst_error
from studies.recorded import forecast, recorded_page
from studies.recorded.rows import (
    BANDWIDTHS,
    GOLDEN,
    LINK_BANDWIDTHS,
    RUN_WARM_UP,
    STARTS,
    WAYS,
    WORLD_SIZE,
)

PAGE = recorded_page.PAGE.read_text(encoding="utf-8")


def document(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_says_what_the_files_say() -> None:
    assert filled(PAGE, recorded_page.regions(GOLDEN)) == PAGE


def test_the_page_tells_another_measurement_apart(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "measured"))
    runs = document("runs")
    runs[0]["step_ends_s"] = [1.01 * end for end in runs[0]["step_ends_s"]]
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    assert filled(PAGE, recorded_page.regions(folder)) != PAGE


def test_the_simulator_still_predicts_what_was_predicted_before_the_runs() -> None:
    before = document("predictions")["rows"]
    now = forecast.predict(GOLDEN, BANDWIDTHS)
    assert [one["way"] for one in now] == [one["way"] for one in before]
    for mine, theirs in zip(now, before, strict=True):
        assert mine["predicted_s"] == pytest.approx(theirs["predicted_s"], rel=1e-3)


def test_predictions_were_written_before_anything_ran() -> None:
    written_s = document("predictions")["written_s"]
    assert all(one["begun_s"] > written_s for one in document("runs"))


def test_every_way_ran_at_every_bandwidth_and_none_was_calibrated_on() -> None:
    places = {(way.name, round(rate * 8 / 1e6)) for way in WAYS for rate in BANDWIDTHS}
    assert {(one["way"], one["mbit_per_s"]) for one in document("runs")} == places
    assert not set(BANDWIDTHS) & set(LINK_BANDWIDTHS)
    fitted = [json.loads(path.read_text(encoding="utf-8")) for path in GOLDEN.glob("links_*.json")]
    assert {setup["nic_bytes_per_s"] for one in fitted for setup in one["setups"]} == set(map(float, LINK_BANDWIDTHS))


def test_the_step_that_predicts_is_the_mean_of_what_every_rank_recorded() -> None:
    for way in WAYS:
        launches = document(f"recordings_{way.name}")
        assert [len(launch) for launch in launches] == [WORLD_SIZE] * STARTS
        every = [one for launch in launches for one in launch]
        assert forecast.mean_recording(every) == document(f"step_{way.name}")


def test_the_errors_are_those_that_the_page_tells() -> None:
    found = recorded_page.points(GOLDEN)
    told = region(PAGE, "outcome")
    assert f"| 8 % | {100 * mean_error(found):.1f} % |" in told
    assert f"| 15 % | {100 * worst_error(found):.1f} % |" in told


def test_the_first_periods_warm_up_and_a_period_counts_per_step() -> None:
    local = next(way for way in WAYS if way.period == 4)
    ends_s = [0.5 * number for number in range(4 * (RUN_WARM_UP + 2) + 1)]
    assert recorded_page.period_times_s(ends_s, local) == [0.5, 0.5]
