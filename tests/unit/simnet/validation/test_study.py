"""The engine of published sets: fits one after another, rows predicted, alternatives by replacement; and their text."""

from dataclasses import replace

import msgspec
import pytest

from simnet.calibration.fit import Values
from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.cluster.network_costs import DOUBLING_FACTOR, NodesPoint
from simnet.core.units import Duration
from simnet.validation import published_rows
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import value_of, with_value
from simnet.validation.study import FreeNumber, Study, all_predictions

FIRST = published_rows.load().rows[0]


def row(number: int, seconds: float) -> PublishedRow:
    """Return a row of so many GPUs that was measured to take so long."""
    return msgspec.structs.replace(FIRST, key=f"toy.csv:{number}", gpus=number, value=seconds)


def toy_s(calibration: Calibration, of: PublishedRow) -> float:
    """Return a time that falls with the efficiency and grows linearly with two costs, and with both by GPUs."""
    costs_s = of.gpus**2 * calibration.poll_s + 100 * value_of(calibration, "kernels.compress")
    efficiency = calibration.inter_node.efficiency
    assert isinstance(efficiency, float)
    return of.gpus / efficiency + costs_s


START = Calibration(kernels={"compress": KernelTime(s_per_element=Duration(0))})
BANDWIDTH = FreeNumber(key="inter_node.efficiency", how="least squares", rows=(row(2, 4.0), row(4, 8.0)))
POLL = FreeNumber(key="poll_cost", rows=(row(4, 24.0),), bounds=(0.0, 10.0))
STUDY = Study(
    initial=START,
    fits=(BANDWIDTH,),
    predict=toy_s,
    measured=lambda of: of.value,
    series=lambda of: of.model,
    label=lambda of: f"{of.gpus} GPUs",
    held_out=(row(8, 20.0), row(16, 32.0)),
)


def test_a_rate_is_fitted_to_its_rows_and_others_are_predicted() -> None:
    assert STUDY.value("inter_node.efficiency") == pytest.approx(0.5, rel=1e-7)
    assert [one.label for one in STUDY.predictions] == ["8 GPUs", "16 GPUs"]
    assert [one.error for one in STUDY.predictions] == pytest.approx([-0.2, 0.0], abs=1e-7)
    (parameter,) = STUDY.parameters
    assert (parameter.key, parameter.text, parameter.rows) == ("inter_node.efficiency", "0.5000", BANDWIDTH.rows)


def test_the_intervals_of_the_shipped_calibration_say_how_far_a_prediction_may_be_off() -> None:
    known = {"inter_node.efficiency": (0.5, 1.25), "kernels.other.launch": (0.1, 9.0)}
    study = replace(STUDY, initial=msgspec.structs.replace(START, intervals=known))
    assert study.predictions[0].shipped_range() == pytest.approx((0.8, 2.0))
    assert STUDY.predictions[0].shipped_range() == (1.0, 1.0)
    points = (NodesPoint(nodes=1, efficiency=0.5),)
    beyond = replace(STUDY, initial=msgspec.structs.replace(START, by_nodes=points), fits=())
    (one,) = beyond.compare([msgspec.structs.replace(row(8, 20.0), nodes=2)])
    low, high = one.shipped_range()
    assert (low, high) == pytest.approx((1 / DOUBLING_FACTOR, DOUBLING_FACTOR))


def test_the_mean_signed_error_of_rows_that_disagree_is_made_zero() -> None:
    fit = replace(POLL, how="mean signed error zero", rows=(row(4, 24.0), row(8, 20.0)))
    study = replace(STUDY, initial=with_value(START, "inter_node.efficiency", 0.5), fits=(fit,))
    errors = [one.error for one in study.compare(fit.rows)]
    assert sum(errors) == pytest.approx(0, abs=1e-7)
    assert abs(errors[0]) > 0.1


def test_an_alternative_is_a_replacement_and_leaves_the_study_alone() -> None:
    other = STUDY.refitted([row(2, 8.0)])
    assert other.value("inter_node.efficiency") == pytest.approx(0.25, rel=1e-7)
    assert STUDY.value("inter_node.efficiency") == pytest.approx(0.5, rel=1e-7)
    assert len(all_predictions([STUDY, replace(STUDY, held_out=())])) == 2


def test_fits_are_made_once_however_often_they_are_asked_for() -> None:
    calls: list[PublishedRow] = []

    def counted(calibration: Calibration, of: PublishedRow) -> float:
        calls.append(of)
        return toy_s(calibration, of)

    study = replace(STUDY, predict=counted)
    assert study.predictions == study.predictions
    made = len(calls)
    assert study.parameters
    assert study.predictions
    assert len(calls) == made


@pytest.mark.parametrize(
    "key", ["collective_launch", "poll_cost", "backward_slowdown", "intra_node.efficiency", "kernels.compress"]
)
def test_a_value_is_set_and_read_under_its_key_in_a_file(key: str) -> None:
    assert value_of(with_value(START, key, 0.25), key) == 0.25
    assert isinstance(with_value(START, "poll_cost", 0.25).poll_s, Duration)


def test_several_numbers_are_solved_for_at_once() -> None:
    rows = (row(1, 3.0), row(2, 8.0))

    def made(values: Values) -> Calibration:
        return with_value(with_value(START, BANDWIDTH.key, 1 / values["inverse"]), "poll_cost", values["poll_s"])

    found = STUDY.solved(rows, {"inverse": 1.0, "poll_s": 0.5}, made)
    assert found.value(BANDWIDTH.key) == pytest.approx(0.5)
    assert found.value("poll_cost") == pytest.approx(1.0)


def test_rows_beyond_the_fitted_nodes_have_the_range_of_the_bandwidth_between_nodes_alone() -> None:
    intervals = {"inter_node.efficiency": (0.5, 1.25), "poll_cost": (0.1, 9.0)}
    start = with_value(msgspec.structs.replace(START, poll_s=Duration(1e-3), intervals=intervals), BANDWIDTH.key, 0.5)
    (one,) = replace(STUDY, initial=start, fits=(), grows=True).compare([row(8, 20.0)])
    (plain,) = replace(STUDY, initial=start, fits=()).compare([row(8, 20.0)])
    assert plain.known_range == (1.0, 1.0)
    assert one.known_range == pytest.approx((0.8, 2.0), rel=1e-2)
    assert one.shipped_range()[1] > one.known_range[1]
