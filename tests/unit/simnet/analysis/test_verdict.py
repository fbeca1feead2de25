"""Whether a system pays: one rule, and everything that applies it."""

import pytest

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
