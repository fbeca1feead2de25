"""Ways of training in the lab: the pages say what their files say, and all was predicted before it ran."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.needs import needs

needs("torch")

from docs.regions import filled
from evidence.studies.in_lab import alternatives, recorded, recordings
from evidence.studies.in_lab.campaign import STARTS, mbit, read
from evidence.studies.in_lab.recordings import BANDWIDTHS, LINK_BANDWIDTHS, RUN_WARM_UP, WORLD_SIZE, RecordedCampaign
from evidence.studies.page import data_differs


@pytest.fixture(params=[recorded, alternatives], ids=lambda module: module.CAMPAIGN.name)
def module(request: pytest.FixtureRequest) -> ModuleType:
    study: ModuleType = request.param
    return study


@pytest.fixture
def campaign(module: ModuleType) -> RecordedCampaign:
    campaign: RecordedCampaign = module.CAMPAIGN
    return campaign


@pytest.fixture
def page(module: ModuleType) -> str:
    return str(module.PAGE.read_text(encoding="utf-8"))


def test_the_page_tells_another_measurement_apart(
    module: ModuleType, campaign: RecordedCampaign, page: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(campaign.golden, tmp_path / "measured"))
    runs = read(folder, "runs")
    runs[0]["step_ends_s"] = [1.01 * end for end in runs[0]["step_ends_s"]]
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    assert filled(page, module.regions(folder)) != page
    assert data_differs(module.data(folder)) == [f"lab-{campaign.name}"]


def test_the_simulator_still_predicts_what_was_predicted_before_the_runs(campaign: RecordedCampaign) -> None:
    before, now = read(campaign.golden, "predictions")["rows"], campaign.predict(campaign.golden)
    assert [row.keys() for row in now] == [row.keys() for row in before]
    for row, theirs in zip(now, before, strict=True):
        assert (row["way"], row["mbit_per_s"]) == (theirs["way"], theirs["mbit_per_s"])
        assert row["predicted_s"] == pytest.approx(theirs["predicted_s"], rel=1e-3)


def test_predictions_were_written_before_anything_ran(campaign: RecordedCampaign) -> None:
    written_s = read(campaign.golden, "predictions")["written_s"]
    assert all(run["begun_s"] > written_s for run in read(campaign.golden, "runs"))


def test_every_way_ran_at_every_bandwidth_and_none_was_calibrated_on(campaign: RecordedCampaign) -> None:
    places = {(way.name, mbit(rate)) for way in campaign.ways for rate in BANDWIDTHS}
    assert {(run["way"], run["mbit_per_s"]) for run in read(campaign.golden, "runs")} == places
    assert not set(BANDWIDTHS) & set(LINK_BANDWIDTHS)
    fitted = [json.loads(path.read_text(encoding="utf-8")) for path in campaign.golden.glob("links_*.json")]
    assert {setup["nic_bytes_per_s"] for whole in fitted for setup in whole["setups"]} == set(
        map(float, LINK_BANDWIDTHS)
    )


def test_the_step_that_predicts_is_the_mean_of_what_every_rank_recorded(campaign: RecordedCampaign) -> None:
    for way in campaign.ways:
        launches = read(campaign.golden, f"recordings_{way.name}")
        assert [len(launch) for launch in launches] == [WORLD_SIZE] * STARTS
        every = [of_rank for launch in launches for of_rank in launch]
        assert recordings.mean_recording(every) == read(campaign.golden, f"step_{way.name}")


def test_the_first_periods_warm_up_and_a_period_counts_per_step() -> None:
    local = next(way for way in recorded.CAMPAIGN.ways if way.period == 4)
    ends_s = [0.5 * number for number in range(4 * (RUN_WARM_UP + 2) + 1)]
    assert recordings.period_times_s(ends_s, local) == [0.5, 0.5]


def test_of_a_recording_the_seconds_of_compute_alone_count_for_an_alternative() -> None:
    (recording,) = read(alternatives.CAMPAIGN.golden, "step_fsdp")["recordings"]
    before = alternatives.workload(recording, WORLD_SIZE)
    for stream in recording["streams"]:
        for operation in stream["operations"]:
            if operation["kind"] != "compute":
                operation["message_bytes"] *= 2
    assert alternatives.workload(recording, WORLD_SIZE) == before
