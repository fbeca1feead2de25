"""Nodes that are not alike in the lab: the page says what its files say, and predictions came first."""

import json
import shutil
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from docs.regions import filled
from evidence.studies.in_lab import uneven
from evidence.studies.in_lab.campaign import mbit
from evidence.studies.in_lab.uneven import (
    BANDWIDTHS,
    DEGRADED_AFTER,
    FAULTS,
    NUM_NODES,
    STRATEGIES,
    place,
    steps_file,
)
from evidence.studies.page import data_differs
from simnet.calibration import measurement_file

GOLDEN = uneven.RESULTS
PAGE = uneven.PAGE.read_text(encoding="utf-8")
PLACES = [(fault, rate) for rate in BANDWIDTHS for fault in FAULTS]


def document(fault: Any, rate: float) -> Any:
    return json.loads((GOLDEN / f"predicted_{place(fault, mbit(rate))}.json").read_text(encoding="utf-8"))


def test_the_page_tells_another_measurement_apart(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "measured"))
    path = folder / steps_file("trained", "one_bit_adam", "slow NIC", mbit(BANDWIDTHS[0]))
    measured = json.loads(path.read_text(encoding="utf-8"))
    measured["series"][0]["values"] = [1.01 * value for value in measured["series"][0]["values"]]
    path.write_text(json.dumps(measured), encoding="utf-8")
    assert filled(PAGE, uneven.regions(folder)) != PAGE
    assert data_differs(uneven.data(folder)) == [
        "lab-uneven",
        "lab-uneven-cost",
        "lab-uneven-faults",
    ]


def test_every_strategy_was_predicted_and_trained_with_every_fault_at_every_bandwidth() -> None:
    for fault, rate in PLACES:
        rows = document(fault, rate)["rows"]
        assert [row["strategy"] for row in rows] == [trained.argument for trained in STRATEGIES]
        for row in rows:
            series = measurement_file.read(GOLDEN / steps_file("trained", row["strategy"], fault, mbit(rate))).series
            assert {len(each.values) for each in series} == {row["steps"]}
            assert sum(each.name == "rank_step" for each in series) == NUM_NODES


def test_percentiles_were_predicted_before_their_training_began() -> None:
    for fault, rate in PLACES:
        predicted = document(fault, rate)
        for row in predicted["rows"]:
            # Created when its steps had run; in whole seconds.
            measured = measurement_file.read(GOLDEN / steps_file("trained", row["strategy"], fault, mbit(rate)))
            steps_s = sum(uneven.steps_s(GOLDEN, row))
            assert datetime.fromisoformat(measured.created).timestamp() - steps_s > predicted["written_s"] - 1


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_still_predict_what_they_predicted_before_the_trainings(fault: Any) -> None:
    rate = BANDWIDTHS[1]
    for row, theirs in zip(uneven.predict(GOLDEN, rate, fault), document(fault, rate)["rows"], strict=True):
        # Draws may be keyed in another way: percentiles of 400 of them vary by a percent.
        assert row["p50_s"] == pytest.approx(theirs["p50_s"], rel=0.01)
        assert row["p95_s"] == pytest.approx(theirs["p95_s"], rel=0.04)


def test_the_nic_of_ddp_got_slower_in_mid_run() -> None:
    for rate in BANDWIDTHS:
        row = document("degrading NIC", rate)["rows"][0]
        assert row["strategy"] == "all_reduce"
        times_s = uneven.steps_s(GOLDEN, row)
        cut = round(DEGRADED_AFTER * len(times_s))
        assert statistics.median(times_s[cut + 5 :]) > 2 * statistics.median(times_s[: cut - 5])
