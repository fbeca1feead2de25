"""All-reduces over latency in the lab: the page says what the files say, and they were predicted before they ran."""

import json
from datetime import datetime

import pytest

from evidence.studies.in_lab import latency
from evidence.studies.in_lab.campaign import mbit, read
from evidence.studies.in_lab.latency import RESULTS
from simnet.calibration.comparison import mean_error


def test_the_simulator_still_predicts_what_was_predicted_before_the_runs() -> None:
    before, now = read(RESULTS, "predictions")["rows"], latency.predict()
    assert len(now) == len(before) == 24
    for row, written in zip(now, before, strict=True):
        assert row == {key: pytest.approx(value, rel=1e-6) for key, value in written.items()}


def test_every_launch_was_made_after_the_predictions_over_the_link_that_was_asked_for() -> None:
    predictions = read(RESULTS, "predictions")
    asked = {(row["ranks"], row["mbit_per_s"], row["latency_ms"]) for row in predictions["rows"]}
    ran = set()
    for path in RESULTS.glob("*ms_*.json"):
        whole = json.loads(path.read_text(encoding="utf-8"))
        (setup,) = whole["setups"]
        assert datetime.fromisoformat(whole["created"]).timestamp() > predictions["written_s"]
        ran.add((setup["num_nodes"], mbit(setup["nic_bytes_per_s"]), round(setup["nic_latency_s"] * 1e3)))
    assert ran == asked
    assert len(ran) == 12


def test_the_window_explains_them_better_than_one_latency_a_round_does() -> None:
    windowed, without = (latency.points(RESULTS, form) for form in latency.FORMS)
    assert mean_error(windowed) < mean_error(without) / 1.5
