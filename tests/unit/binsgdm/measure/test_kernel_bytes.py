"""The bytes of measured kernels are those that simnet counts."""

import pytest

from binsgdm.measure.kernel_bytes import NAMES, bytes_per_element
from simnet.calibrate.kernel_fit import COPY, COPY_BYTES, SIMULATED_NAMES
from simnet.strategies.kernel_table import every
from simnet.workload.kernel_cost import OPTIMIZER_BYTES

VECTORS = {"mean": 8}  # simnet counts the write of a mean for a node of 8


@pytest.mark.parametrize("name", sorted({*every(), *SIMULATED_NAMES}))
def test_a_kernel_moves_the_bytes_that_are_simulated(name):
    cost = every().get(SIMULATED_NAMES.get(name, name))
    if cost is None or name in SIMULATED_NAMES.values():
        return
    expected = cost.bytes_per_element if cost.is_estimable else None
    assert bytes_per_element(name, VECTORS.get(cost.name, 1)) == expected


def test_no_kernel_is_only_here():
    known = {*every(), *SIMULATED_NAMES, COPY, "adamw", "cast_bf16_fp32"}
    assert set(NAMES) <= known
    assert bytes_per_element(COPY) == COPY_BYTES
    assert bytes_per_element("adamw") == OPTIMIZER_BYTES["adam"]
    assert bytes_per_element("nothing") is None
