"""The bytes of measured kernels are those that simnet counts."""

import pytest

from binsgdm.bench.kernel_bytes import NAMES, bytes_per_element
from simnet.calibration.kernels import COPY, COPY_BYTES, SIMULATED_NAMES
from simnet.strategies.base import every_kernel
from simnet.strategies.recorded import MEMORY_TRAFFIC
from simnet.workload.kernel_cost import OPTIMIZER_BYTES

VECTORS = {"mean": 8, "merge_shaped": 8}  # simnet counts the write of a mean for a node of 8


@pytest.mark.parametrize("name", sorted({*every_kernel(), *SIMULATED_NAMES}))
def test_a_kernel_moves_the_bytes_that_are_simulated(name):
    cost = every_kernel().get(SIMULATED_NAMES.get(name, name))
    if cost is None or name in SIMULATED_NAMES.values() or cost == MEMORY_TRAFFIC:  # which is bytes, and no kernel
        return
    if cost.is_streaming and name not in NAMES:  # torch's own copies and updates, which no command times
        return
    vectors = VECTORS.get(cost.name, 1)
    expected = cost.bytes_of_each(vectors) if cost.is_estimable else None
    assert bytes_per_element(name, vectors) == expected


@pytest.mark.parametrize(("vectors", "per_result"), [(2, 4 + 3 / 8), (64, 4 + 65 / 8)])
def test_a_shaped_merge_moves_a_bit_of_each_vector_and_one_residual(vectors, per_result):
    for found in (bytes_per_element("merge_shaped_", vectors), every_kernel()["merge_shaped"].bytes_of_each(vectors)):
        assert found == pytest.approx(per_result / vectors)


def test_no_kernel_is_only_here():
    known = {*every_kernel(), *SIMULATED_NAMES, COPY, "adamw", "cast_bf16_fp32"}
    assert set(NAMES) <= known
    assert bytes_per_element(COPY) == COPY_BYTES
    assert bytes_per_element("adamw") == OPTIMIZER_BYTES["adam"]
    assert bytes_per_element("nothing") is None
