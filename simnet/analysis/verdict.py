"""Whether a system pays: one rule for every speedup, wherever two systems are compared, and one for all of a system."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

PAYS = 1.05
"""The least speedup that counts: predictions of steps were off by 3.8 % on average (docs/evidence/simulator.md)."""
Verdict = Literal[
    "pays",
    "within uncertainty",
    "kernels not timed",
    "convergence unknown",
    "misses or is no sooner at its target",
    "does not pay",
]
UNCERTAIN: Verdict = "within uncertainty"
NOT_TIMED: Verdict = "kernels not timed"
"""It may pay, once its kernels have a time: they have none, no usable estimate, or one that decides."""
UNKNOWN: Verdict = "convergence unknown"
"""It may pay, once somebody has trained with it."""
NO_SOONER: Verdict = "misses or is no sooner at its target"
"""Its step is faster; its trainings missed a target, or took no less time to it."""


class Speedup(Struct, frozen=True, kw_only=True):
    """Baseline time / time, and how far it may be off.

    Attributes:
        value: as predicted (or measured).
        interval: 90 %, the model's own error in it; None of a measured one, and where nobody asks for it.
        if_kernels_slow: with estimated kernels at their slowest; None if all are timed, or there are none.
        unmeasured: kernels that have neither a time nor an estimate that is worth the name: the value is then a bound
            from above.
    """

    value: float
    interval: tuple[float, float] | None = None
    if_kernels_slow: float | None = None
    unmeasured: tuple[str, ...] = ()

    @property
    def least(self) -> float:
        """The least that it may be: the low end of its interval, or with slow kernels, each taken alone."""
        low = self.interval[0] if self.interval else self.value
        slow = self.value if self.if_kernels_slow is None else self.if_kernels_slow
        return min(low, slow)

    @property
    def verdict(self) -> Verdict:
        """Whether it is `PAYS` or more; where it only may be, the first reason for the doubt.

        Kernels come first: they can be measured alone, and until they are the other limits say little.
        """
        if self.value < PAYS:
            return "does not pay"
        if self.unmeasured or (self.if_kernels_slow is not None and self.if_kernels_slow < PAYS):
            return NOT_TIMED
        return "pays" if self.least >= PAYS else UNCERTAIN

    @property
    def pays(self) -> bool:
        """Whether it surely pays."""
        return self.verdict == "pays"


def verdict_of(
    step: Speedup, to_targets: Sequence[Speedup | None], *, needs_training: bool, are_of_user: bool
) -> Verdict:
    """Return the verdict on a system: that of its step, unless its trainings, or that there are none, say otherwise.

    Args:
        step: speedup of a step.
        to_targets: speedup of the time to each target that it was trained to; None where it missed the target.
        needs_training: it changes more of training than the baseline does.
        are_of_user: the trainings are of the workload itself. Those of other models do not show that a system whose
            step is no faster pays by fewer steps.
    """
    verdicts = [speedup.verdict for speedup in to_targets if speedup is not None]
    has_missed = len(verdicts) < len(to_targets)
    if step.verdict == "does not pay":
        if verdicts.count("pays") < max(len(to_targets), 1):
            return step.verdict
        return "pays" if are_of_user else UNKNOWN
    if has_missed or "does not pay" in verdicts:
        return NO_SOONER
    if needs_training and not verdicts:
        return UNKNOWN
    doubts: tuple[Verdict, ...] = (NOT_TIMED, UNCERTAIN)
    return next((doubt for doubt in doubts if doubt in (step.verdict, *verdicts)), "pays")
