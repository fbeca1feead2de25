"""How work follows the probes of a machine; the committed campaigns are predicted by it point for point."""

import pytest

from evidence.lab import local_work
from evidence.lab.local_work import Repeated
from tests.helpers.refusals import refused


@pytest.mark.parametrize(("power", "elasticity"), [(0.5, 0.5), (1.7, 1.0), (-0.3, 0.0)])
def test_an_elasticity_is_that_of_the_launches_within_reason(power: float, elasticity: float) -> None:
    slow = (1.0, 3.0, 10.0)
    repeated = Repeated(slowness_s=slow, times_s=(tuple(5 * slowness**power for slowness in slow),))
    assert local_work.fit([repeated]).elasticity == pytest.approx(elasticity, abs=0.002)
    with refused("needs two launches of the same: give starts = 2 or more"):
        local_work.fit([Repeated(slowness_s=(1.0,), times_s=((1.0,),))])
