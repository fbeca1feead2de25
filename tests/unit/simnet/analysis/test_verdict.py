"""Whether a system pays: one rule, and everything that applies it."""

import pytest
from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.analysis.verdict import (
    NO_SOONER,
    NOT_TIMED,
    PAYS,
    UNCERTAIN,
    UNKNOWN,
    Speedup,
    Verdict,
    verdict_of,
)
from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Bandwidth, Duration
from simnet.strategies import DenseAllReduce, OneBitAdam, TopK
from tests.helpers.advise_samples import scenario


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [
        (Speedup(value=PAYS), "pays"),
        (Speedup(value=1.04, interval=(1.0, 9.0)), "does not pay"),
        (Speedup(value=1.15, interval=(0.97, 1.36)), UNCERTAIN),
        (Speedup(value=1.25, interval=(1.06, 1.48)), "pays"),
        (Speedup(value=2.0, interval=(1.01, 3.0)), UNCERTAIN),
        (Speedup(value=2.0, if_kernels_slow=1.01), NOT_TIMED),
        (Speedup(value=1.15, interval=(0.97, 1.36), if_kernels_slow=1.01), NOT_TIMED),
        (Speedup(value=1.15, interval=(0.97, 1.36), if_kernels_slow=1.10), UNCERTAIN),
        (Speedup(value=9.0, unmeasured=("top_k_encode",)), NOT_TIMED),
        (Speedup(value=1.0, unmeasured=("top_k_encode",)), "does not pay"),
    ],
)
def test_it_pays_if_nothing_that_is_unsure_undoes_it(speedup: Speedup, verdict: Verdict) -> None:
    assert speedup.verdict == verdict
    assert speedup.pays is (verdict == "pays")


PAYING, FASTER, SLOWER = Speedup(value=2.0), Speedup(value=1.5), Speedup(value=0.9)
UNSURE = Speedup(value=1.5, interval=(0.9, 2.0))


@pytest.mark.parametrize(
    ("step", "to_targets", "verdict"),
    [
        (PAYING, [], UNKNOWN),
        (UNSURE, [], UNKNOWN),
        (PAYING, [FASTER, PAYING], "pays"),
        (PAYING, [FASTER, None], NO_SOONER),
        (PAYING, [None], NO_SOONER),
        (PAYING, [SLOWER, None], NO_SOONER),
        (PAYING, [SLOWER, FASTER], NO_SOONER),
        (PAYING, [UNSURE, FASTER], UNCERTAIN),
        (UNSURE, [FASTER], UNCERTAIN),
        (UNSURE, [None, FASTER], NO_SOONER),
        (SLOWER, [FASTER], UNKNOWN),
        (SLOWER, [], "does not pay"),
        (SLOWER, [FASTER, None], "does not pay"),
        (SLOWER, [FASTER, UNSURE], "does not pay"),
        (SLOWER, [SLOWER], "does not pay"),
    ],
)
def test_a_system_is_judged_by_its_step_and_by_its_trainings(
    step: Speedup, to_targets: list[Speedup | None], verdict: Verdict
) -> None:
    assert verdict_of(step, to_targets, needs_training=True, are_of_user=False) == verdict


def test_what_changes_nothing_needs_no_training() -> None:
    assert verdict_of(PAYING, [], needs_training=False, are_of_user=False) == "pays"
    assert verdict_of(UNSURE, [], needs_training=False, are_of_user=False) == UNCERTAIN


def test_fewer_steps_pay_where_the_trainings_are_of_the_workload() -> None:
    assert verdict_of(SLOWER, [FASTER, PAYING], needs_training=True, are_of_user=True) == "pays"


def test_the_least_counts_each_limit_alone() -> None:
    speedup = Speedup(value=2.0, interval=(1.8, 2.2), if_kernels_slow=1.7)
    assert speedup.least == 1.7
    assert replace(speedup, if_kernels_slow=None).least == 1.8
    assert replace(speedup, interval=(1.6, 2.5)).least == 1.6


class TestKernels:
    TIME = KernelTime(s_per_element=Duration(1e-12))

    def test_a_kernel_that_another_stands_for_is_timed_with_it(self) -> None:
        """Of 1-bit Adam the mean of all signs takes the time of `merge`."""
        names = ("momentum", "compress", "server_residual", "decompress", "adam_update")
        calibration = Calibration(kernels=dict.fromkeys([*names, "merge"], self.TIME))
        found = whatif.kernel_coverage(OneBitAdam(), scenario(calibration=calibration))
        assert found == whatif.KernelCoverage(are_estimated=False, unmeasured=())
        without = Calibration(kernels=dict.fromkeys(names, self.TIME))
        assert whatif.kernel_coverage(OneBitAdam(), scenario(calibration=without)).unmeasured == ("server_mean",)

    def test_casts_of_ddp_are_no_estimates(self) -> None:
        given = scenario(calibration=Calibration(memory_bytes_per_s=Bandwidth(1e12)))
        assert not whatif.kernel_coverage(DenseAllReduce(wire_dtype="bf16"), given).are_estimated
        found = whatif.kernel_coverage(TopK(ratio=0.1), given)
        assert (found.are_estimated, found.unmeasured) == (True, ("top_k_encode",))
