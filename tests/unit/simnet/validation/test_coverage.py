"""90 % intervals of predicted published rows: their two parts, and that no publication widens its own."""

import math
from dataclasses import replace

import pytest

from simnet.validation import coverage, published_rows
from simnet.validation import published as sets
from simnet.validation.coverage import Evidence, Residual
from simnet.validation.outcome import Limit, Outcome, Prediction
from simnet.workload.training_step import scaling_range

ROW = published_rows.load().rows[0]


def residual(log_error: float, source: str = "one", of: coverage.Quantity = "time", own: float = 0.0) -> Residual:
    return Residual(source=source, quantity=of, log_error=log_error, own_log=(own, own))


def evidence(*residuals: Residual, own: dict[tuple[str, str], tuple[float, float]] | None = None) -> Evidence:
    return Evidence(widths=own or {("set", ROW.key): (0.0, 0.0)}, residuals=residuals)


def outcome(measured: float = 1.0, band: tuple[float, float] | None = None) -> Outcome:
    one = Prediction(series="s", label="l", row=ROW, predicted=1.0, measured=measured, band=band)
    return Outcome(title="t", unit="ms", parameters=(), predictions=(one,), bound=Limit(), name="set")


def test_the_width_is_that_under_which_nine_tenths_of_the_other_rows_are_inside() -> None:
    others = [residual(0.01 * number * (-1) ** number) for number in range(1, 11)]
    found = evidence(*others, residual(9.0, source="mine"), residual(5.0, of="speedup"))
    assert found.width("time", without="mine") == pytest.approx(0.095)
    assert found.width("speedup") == 5.0
    assert found.width("time") == 9.0, "the publication itself counts where it is not left out"


def test_a_publication_that_is_predicted_badly_counts_however_many_rows_others_have() -> None:
    found = evidence(*[residual(0.01)] * 50, *[residual(0.3, source="two")] * 5)
    assert found.width("time") == pytest.approx(0.3)
    assert replace(found, rows_alike=True).width("time") == pytest.approx(0.01)
    assert evidence().width("time") == 0.0
    assert coverage.run_to_run() == pytest.approx(0.021, abs=0.001)


def test_values_inside_are_counted_by_publication() -> None:
    given = evidence(residual(0.1, source="other"))
    found = coverage.with_intervals([outcome(1.05), outcome(0.8)], given)
    assert coverage.share_inside(found) == (1, 2)
    assert coverage.by_source(found) == {ROW.source: (1, 2)}
    assert not coverage.meets_target(found)
    assert coverage.meets_target([*found[:1] * 9, found[1]])
    assert not coverage.meets_target(found[:1]), "intervals that hold everything are too wide"


def test_varied_rows_change_fits_and_are_restored() -> None:
    before = {one.row.key: one.predicted for one in sets.run("one_bit_table1").predictions}
    rows = [row.key for row in sets.run("one_bit_table1").calibration_rows]
    with published_rows.varied(dict.fromkeys(rows, 1.1)):
        inside = {one.row.key: one.predicted for one in sets.run("one_bit_table1").predictions}
    assert inside == pytest.approx({key: 1.1 * value for key, value in before.items()}, rel=1e-3)
    assert {one.row.key: one.predicted for one in sets.run("one_bit_table1").predictions} == before


def test_the_effects_of_rows_with_other_signs_do_not_mix() -> None:
    columns = [
        [coverage._sign(refit, place) for refit in range(coverage.NUM_REFITS)]
        for place in range(coverage.NUM_REFITS - 1)
    ]
    for number, one in enumerate(columns):
        assert sum(one) == 0
        for other in columns[:number]:
            assert sum(a * b for a, b in zip(one, other, strict=True)) == 0


def test_quotients_of_two_methods_are_speedups_unless_a_set_has_them() -> None:
    times = [
        (replace_row(method=method, key=f"f:{number}"), 0.1 * number, (0.0, 0.3)) for number, method in enumerate("ab")
    ]
    (found,) = coverage._speedups(times, ())
    assert found == residual(-0.1, source=ROW.source, of="speedup", own=0.3)
    assert not list(coverage._speedups(times, {"f:1, 0"}))
    other_set_up = [times[0], (replace_row(gpus=99, method="b"), 0.0, (0.0, 0.0))]
    assert not list(coverage._speedups(other_set_up, ()))


def replace_row(**changes: object) -> published_rows.PublishedRow:
    return published_rows.PublishedRow(**{name: getattr(ROW, name) for name in ROW.__struct_fields__} | changes)  # type: ignore[arg-type]


def test_a_step_scaled_to_a_smaller_batch_may_take_longer_than_its_share() -> None:
    assert scaling_range(16, 4) == (1.0, 2.0)
    assert scaling_range(16, 64) == (1.0, 1.0)
    small = replace(outcome().predictions[0], known_range=(1.0, 4.0))
    assert coverage._with_range(0.0, small) == (0.0, pytest.approx(math.log(4)))
