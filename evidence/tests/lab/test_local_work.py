"""Steps predicted from their own work and the speed of the machine, on a campaign whose truth is known."""

import json
from pathlib import Path

import pytest

from evidence.lab import campaign, local_work, prediction
from evidence.lab import page as campaign_page
from evidence.lab.local_work import Repeated
from evidence.lab.prediction import ADDED_UP, CampaignResult
from evidence.tests import campaign_samples
from evidence.tests.campaign_samples import OWN_S
from tests.helpers.refusals import refused


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> CampaignResult:
    return evaluate(campaign_samples.write(tmp_path_factory.mktemp("campaign")))


def evaluate(folder: Path) -> CampaignResult:
    return prediction.evaluate(campaign.load(folder / "campaign.toml"), folder, draws=20)


def predicted(found: CampaignResult, form: int = 0) -> dict[str, float]:
    return {point.series.split()[0]: point.predicted for point in list(found.alternatives.values())[form]}


def test_work_follows_the_probes_as_in_the_launches_that_calibrate(found: CampaignResult) -> None:
    assert found.speeds is not None
    assert found.speeds.launches.elasticity == pytest.approx(0.5, abs=0.01)
    assert found.speeds.own_work.spread < 0.01
    assert found.speeds.own_work.freedom == 2, "steps of two strategies, each in two launches"
    assert found.points[0].slowness == pytest.approx(4 / 2**0.5)


def test_cpu_times_of_messages_are_brought_to_the_speed_of_the_launch(tmp_path: Path) -> None:
    other = evaluate(campaign_samples.write(tmp_path, message_s=1.0))
    # Two buckets, whose CPU times exceed their wire's.
    assert predicted(other)["all_reduce"] == pytest.approx(2 * (OWN_S["all_reduce"] + 2 * 1.0), rel=0.005)


def test_a_launch_without_probes_is_refused(tmp_path: Path) -> None:
    folder = campaign_samples.write(tmp_path)
    path = folder / "training_4x1_200mbit.json"
    whole = json.loads(path.read_text())
    whole["series"] = [one for one in whole["series"] if one["kind"] != "speed"]
    path.write_text(json.dumps(whole))
    with refused("no series of kind speed: measure again with --speed"):
        evaluate(folder)


@pytest.mark.slow
def test_each_topology_of_a_system_has_its_own_kernels_and_calibration(tmp_path: Path) -> None:
    seconds = {"gather": 1e-8, "scatter_reduce": 4e-8}
    folder = tmp_path / "measured"
    folder.mkdir()
    other = evaluate(campaign_samples.write(folder, kernels_s=seconds))
    # Launches of two speeds, by whose square root kernels follow.
    slow = (1 + 2**0.5) / 2
    calibrations = [one.calibration for one in other.fits[0].by_strategies]
    for calibration, each_s in zip(calibrations, seconds.values(), strict=True):
        assert calibration.kernels["qsgd_encode"].s_per_element == pytest.approx(each_s * slow, rel=0.2)
        assert calibration.host == calibrations[0].host
    added_up = {point.series: point.predicted for point in other.alternatives[ADDED_UP]}
    assert added_up["qsgd topology=scatter_reduce bits=4"] > 1.2 * added_up["qsgd topology=gather bits=4"]
    names = {path.name for path in campaign_page.write(other, tmp_path / "report")}
    assert {"calibration_4x1.toml", "calibration_4x1_2.toml"} <= names


def test_a_poor_kernel_is_told_and_changes_no_step_whose_own_work_is_measured(
    found: CampaignResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = campaign_samples.write(tmp_path)
    for path in folder.glob("kernels_*.json"):
        whole = json.loads(path.read_text())
        copies = [one for one in whole["series"] if one["name"] == "copy"]
        scattered = [
            one | {"name": "unpack_apply_", "values": [value * factor for value in one["values"]]}
            for one, factor in zip(copies, (1.0, 9.0, 2.0), strict=True)
        ]
        path.write_text(json.dumps(whole | {"series": [*whole["series"], *scattered]}))
    other = evaluate(folder)
    for point, before in zip(other.points, found.points, strict=True):
        assert (point.predicted, *(point.interval or ())) == pytest.approx((before.predicted, *(before.interval or ())))
    assert set(other.fits[0].poor_kernels) == {"kernel binsgdm_apply"}
    assert "(4 x 1, kernel binsgdm_apply 4" in campaign_page.page(other)
    assert "(4 x 1, kernel" not in campaign_page.page(found)
    monkeypatch.setattr(prediction._Measured, "speeds", lambda *_: None)
    with refused("kernel binsgdm_apply: a mean error of"):
        evaluate(folder)


@pytest.mark.parametrize(("power", "elasticity"), [(0.5, 0.5), (1.7, 1.0), (-0.3, 0.0)])
def test_an_elasticity_is_that_of_the_launches_within_reason(power: float, elasticity: float) -> None:
    slow = (1.0, 3.0, 10.0)
    repeated = Repeated(slowness_s=slow, times_s=(tuple(5 * one**power for one in slow),))
    assert local_work.fit([repeated]).elasticity == pytest.approx(elasticity, abs=0.002)
    with refused("needs two launches of the same: give starts = 2 or more"):
        local_work.fit([Repeated(slowness_s=(1.0,), times_s=((1.0,),))])
