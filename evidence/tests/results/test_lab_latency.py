"""All-reduces over latency in the lab: the page says what the files say, and they were predicted before they ran."""

import json
from datetime import datetime

import pytest

from evidence.studies import latency
from evidence.studies.in_lab.campaign import read
from evidence.studies.latency import RESULTS
from simnet.calibration.comparison import mean_error


def test_the_simulator_still_predicts_what_was_predicted_before_the_runs() -> None:
    before, now = read(RESULTS, "predictions")["rows"], latency.predict()
    assert len(now) == len(before) == 24
    for mine, theirs in zip(now, before, strict=True):
        assert mine == {key: pytest.approx(value, rel=1e-6) for key, value in theirs.items()}


def test_every_launch_was_made_after_the_predictions_over_the_link_that_was_asked_for() -> None:
    written_s = read(RESULTS, "predictions")["written_s"]
    made = [launch for launch in latency.launches() if launch.path(RESULTS).exists()]
    assert len({(one.layout, one.bandwidth, one.latency) for one in made}) == 12
    for launch in made:
        whole = json.loads(launch.path(RESULTS).read_text(encoding="utf-8"))
        (setup,) = whole["setups"]
        assert datetime.fromisoformat(whole["created"]).timestamp() > written_s
        assert (setup["num_nodes"], setup["nic_bytes_per_s"], setup["nic_latency_s"]) == pytest.approx(
            (launch.layout.num_nodes, launch.bandwidth, launch.latency)
        )


def test_the_window_explains_them_better_than_one_latency_a_round_does() -> None:
    found, without = (latency.points(RESULTS, form) for form in latency.FORMS)
    assert mean_error(found) < mean_error(without) / 1.5
