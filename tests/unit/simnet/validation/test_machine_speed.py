"""How times of the CPU follow the probes of a machine's speed, and how wide what is left makes an interval."""

import math

import pytest

from simnet.calibration.measurement_file import Series
from simnet.core.errors import SimnetError
from simnet.validation import machine_speed
from simnet.validation.machine_speed import PRIOR, Repeated, SpeedFit
from tests.helpers.measurement_samples import measurements, setup


def series(kind: str, name: str, *values: float, **labels: str | int) -> Series:
    return Series(kind=kind, name=name, setup=0, unit="s", labels={**labels}, values=values)  # type: ignore[arg-type]


def test_the_slowness_is_the_geometric_mean_of_the_probes_medians() -> None:
    probes = (series("speed", "multiply", 1.0, 2.0, 90.0), series("speed", "stream", 8.0))
    assert machine_speed.slowness_s(measurements(probes, (setup(2, 1, None),))) == pytest.approx(4.0)
    with pytest.raises(SimnetError, match="no series of kind speed: measure again with --speed"):
        machine_speed.slowness_s(
            measurements(
                (series("interference", "backward_alone", 1.0, model="m", batch=1, collective="c"),),
                (setup(2, 1, None),),
            )
        )


@pytest.mark.parametrize(("power", "elasticity"), [(0.5, 0.5), (1.7, 1.0), (-0.3, 0.0)])
def test_an_elasticity_is_that_of_the_launches_within_reason(power: float, elasticity: float) -> None:
    slow = (1.0, 3.0, 10.0)
    repeated = Repeated(slowness_s=slow, times_s=(tuple(5 * one**power for one in slow),))
    assert machine_speed.fit([repeated]).elasticity == pytest.approx(elasticity, abs=0.002)


def test_launches_of_one_speed_leave_the_prior_and_give_the_spread() -> None:
    times_s = (math.exp(0.1), math.exp(-0.1))
    fit = machine_speed.fit([Repeated(slowness_s=(2.0, 2.0), times_s=(times_s, times_s))])
    assert fit.elasticity == pytest.approx(PRIOR)
    assert fit.spread == pytest.approx(0.1 * math.sqrt(2))
    assert fit.freedom == 2
    one = machine_speed.fit([Repeated(slowness_s=(2.0, 2.0), times_s=(times_s, times_s)).together])
    assert one.freedom == 1


def test_what_was_measured_once_has_no_spread() -> None:
    with pytest.raises(SimnetError, match="needs two launches of the same: give starts = 2 or more"):
        machine_speed.fit([Repeated(slowness_s=(1.0,), times_s=((1.0,),))])


def test_an_interval_reaches_further_from_fewer_launches_and_to_other_speeds() -> None:
    fit = SpeedFit(elasticity=0.7, doubt=0.2, spread=0.05, freedom=10**6)
    assert fit.reach(1, 1.0, 1.0) == pytest.approx(math.exp(1.645 * 0.05 * math.sqrt(2)), rel=1e-4)
    assert fit.reach(4, 1.0, 1.0) < fit.reach(1, 1.0, 1.0) < fit.reach(1, 1.0, 2.0)
    few = SpeedFit(elasticity=0.7, doubt=0.2, spread=0.05, freedom=10)
    assert math.log(few.reach(1, 1.0, 1.0)) / (0.05 * math.sqrt(2)) == pytest.approx(1.812, abs=0.02), "Student's t"
