"""Steps predicted from their own work and the speed of the machine, on a campaign whose truth is known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from simnet.calibration.measurement_file import Series
from simnet.core.errors import SimnetError
from simnet.report import campaign_page
from simnet.validation import campaign_prediction, local_work
from simnet.validation.campaign_prediction import ADDED_UP, ALTERNATIVES, CampaignResult
from simnet.validation.lab import campaign
from simnet.validation.local_work import PRIOR, Repeated, SpeedFit
from tests.helpers import campaign_samples
from tests.helpers.campaign_samples import EFFICIENCY, ELEMENTS, OWN_S
from tests.helpers.measurement_samples import measurements, setup

WIRE_S = 2 * 3 / 4 * ELEMENTS * 4 / (EFFICIENCY * 25e6)
"""A ring of four on 200 Mbit/s."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> CampaignResult:
    return evaluate(campaign_samples.write(tmp_path_factory.mktemp("campaign")))


def evaluate(folder: Path) -> CampaignResult:
    return campaign_prediction.evaluate(campaign.load(folder / "campaign.toml"), folder, draws=20)


def predicted(found: CampaignResult, form: int = 0) -> dict[str, float]:
    return {point.series.split()[0]: point.predicted for point in list(found.alternatives.values())[form]}


def test_work_follows_the_probes_as_in_the_launches_that_calibrate(found: CampaignResult) -> None:
    assert found.speeds is not None
    assert found.speeds.launches.elasticity == pytest.approx(0.5, abs=0.01)
    assert found.speeds.own_work.spread < 0.01
    assert found.speeds.own_work.freedom == 2, "steps of two strategies, each in two launches"
    assert found.points[0].slowness == pytest.approx(4 / 2**0.5)


def test_a_step_is_its_own_work_at_the_speed_of_its_launch_and_its_messages(found: CampaignResult) -> None:
    chosen = {point.series.split()[0]: point for point in found.points}
    assert chosen["all_reduce"].predicted == pytest.approx(2 * OWN_S["all_reduce"] + WIRE_S, rel=0.01)
    assert chosen["all_reduce"].without_network_s == pytest.approx(2 * OWN_S["all_reduce"], rel=0.01)
    assert chosen["binsgdm"].predicted == pytest.approx(2 * OWN_S["binsgdm"] + WIRE_S / 32, rel=0.01)
    assert predicted(found) == {name: point.predicted for name, point in chosen.items()}
    assert all(point.interval and point.interval[0] <= point.predicted <= point.interval[1] for point in found.points)


def test_cpu_times_of_messages_are_brought_to_the_speed_of_the_launch(tmp_path: Path) -> None:
    other = evaluate(campaign_samples.write(tmp_path, message_s=1.0))
    # Two buckets, whose CPU times exceed their wire's.
    assert predicted(other)["all_reduce"] == pytest.approx(2 * (OWN_S["all_reduce"] + 2 * 1.0), rel=0.005)


def test_other_forms_leave_out_what_they_say(found: CampaignResult) -> None:
    hides, without_speed, added_up = (predicted(found, form) for form in (1, 2, 3))
    assert hides["all_reduce"] < predicted(found)["all_reduce"] - 0.01
    assert without_speed["all_reduce"] == pytest.approx(2**0.25 * OWN_S["all_reduce"] + WIRE_S, rel=0.01)
    assert added_up["binsgdm"] < OWN_S["binsgdm"]


def test_trained_steps_have_no_part_in_their_prediction(found: CampaignResult, tmp_path: Path) -> None:
    other = evaluate(campaign_samples.write(tmp_path, step_s=0.5))
    assert [point.measured for point in other.points] == [0.5, 0.5]
    assert [point.predicted for point in other.points] == [point.predicted for point in found.points]


def test_launches_that_differ_widen_the_intervals(
    found: CampaignResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All launches of equal speed by their probes, and yet of other times.
    folder = campaign_samples.write(tmp_path, {"1": 1.0, "2": 1.5, "training": 1.0}, message_s=1.0)
    for path in folder.glob("*_2_4x1.json"):
        path.write_text(path.read_text().replace("0.0015", "0.001"))
    other = evaluate(folder)
    assert other.speeds is not None
    assert other.speeds.launches.elasticity == pytest.approx(0.7), "the prior, where probes do not differ"
    assert width(other, "binsgdm") > 5 * width(found, "binsgdm")
    monkeypatch.setattr(SpeedFit, "reach", lambda *_: 1.0)
    assert width(other, "all_reduce") > 1.15 * width(evaluate(folder), "all_reduce"), "messages are in the launch, too"


def width(found: CampaignResult, strategy: str) -> float:
    interval = next(point.interval for point in found.points if point.series.startswith(strategy))
    assert interval is not None
    return interval[1] / interval[0] - 1


def test_where_ranks_have_cores_of_their_own_messages_hide(found: CampaignResult, tmp_path: Path) -> None:
    folder = campaign_samples.write(tmp_path)
    for path in folder.glob("own_work_*.json"):
        path.write_text(path.read_text().replace('"cores": 2', '"cores": 4'))
    roomy = evaluate(folder)
    assert predicted(roomy)["all_reduce"] == pytest.approx(predicted(found, 1)["all_reduce"])


def test_the_page_tells_the_speed_and_every_form(found: CampaignResult) -> None:
    page = campaign_page.page(found)
    assert "an elasticity of 0.50 (" in page
    assert "took 2.83 to 2.83 of what" in page
    assert all(f"| {form} |" in page for form in ALTERNATIVES)
    assert "elasticity" not in campaign_page.page(replace(found, speeds=None, alternatives={}))


def test_a_launch_without_probes_is_refused(tmp_path: Path) -> None:
    folder = campaign_samples.write(tmp_path)
    path = folder / "training_4x1_200mbit.json"
    whole = json.loads(path.read_text())
    whole["series"] = [one for one in whole["series"] if one["kind"] != "speed"]
    path.write_text(json.dumps(whole))
    with pytest.raises(SimnetError, match="no series of kind speed: measure again with --speed"):
        evaluate(folder)


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
    monkeypatch.setattr(campaign_prediction._Measured, "speeds", lambda *_: None)
    with pytest.raises(SimnetError, match="kernel binsgdm_apply: a mean error of"):
        evaluate(folder)


def series(kind: str, name: str, *values: float, **labels: str | int) -> Series:
    return Series(kind=kind, name=name, setup=0, unit="s", labels={**labels}, values=values)  # type: ignore[arg-type]


def test_the_slowness_is_the_geometric_mean_of_the_probes_medians() -> None:
    probes = (series("speed", "multiply", 1.0, 2.0, 90.0), series("speed", "stream", 8.0))
    assert local_work.probed_slowness_s(measurements(probes, (setup(2, 1, None),))) == pytest.approx(4.0)
    with pytest.raises(SimnetError, match="no series of kind speed: measure again with --speed"):
        local_work.probed_slowness_s(
            measurements(
                (series("interference", "backward_alone", 1.0, model="m", batch=1, collective="c"),),
                (setup(2, 1, None),),
            )
        )


@pytest.mark.parametrize(("power", "elasticity"), [(0.5, 0.5), (1.7, 1.0), (-0.3, 0.0)])
def test_an_elasticity_is_that_of_the_launches_within_reason(power: float, elasticity: float) -> None:
    slow = (1.0, 3.0, 10.0)
    repeated = Repeated(slowness_s=slow, times_s=(tuple(5 * one**power for one in slow),))
    assert local_work.fit([repeated]).elasticity == pytest.approx(elasticity, abs=0.002)


def test_launches_of_one_speed_leave_the_prior_and_give_the_spread() -> None:
    times_s = (math.exp(0.1), math.exp(-0.1))
    fit = local_work.fit([Repeated(slowness_s=(2.0, 2.0), times_s=(times_s, times_s))])
    assert fit.elasticity == pytest.approx(PRIOR)
    assert fit.spread == pytest.approx(0.1 * math.sqrt(2))
    assert fit.freedom == 2
    one = local_work.fit([Repeated(slowness_s=(2.0, 2.0), times_s=(times_s, times_s)).together])
    assert one.freedom == 1


def test_what_was_measured_once_has_no_spread() -> None:
    with pytest.raises(SimnetError, match="needs two launches of the same: give starts = 2 or more"):
        local_work.fit([Repeated(slowness_s=(1.0,), times_s=((1.0,),))])


def test_an_interval_reaches_further_from_fewer_launches_and_to_other_speeds() -> None:
    fit = SpeedFit(elasticity=0.7, doubt=0.2, spread=0.05, freedom=10**6)
    assert fit.reach(1, 1.0, 1.0) == pytest.approx(math.exp(1.645 * 0.05 * math.sqrt(2)), rel=1e-4)
    assert fit.reach(4, 1.0, 1.0) < fit.reach(1, 1.0, 1.0) < fit.reach(1, 1.0, 2.0)
    few = SpeedFit(elasticity=0.7, doubt=0.2, spread=0.05, freedom=10)
    assert math.log(few.reach(1, 1.0, 1.0)) / (0.05 * math.sqrt(2)) == pytest.approx(1.812, abs=0.02), "Student's t"
