"""Whether a system pays: one rule for every speedup, wherever two systems are compared, and one for all of a system."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

PAYS = 1.05
"""The least speedup that counts: predictions of steps were off by 3.8 % on average (docs/evidence/lab-campaign.md)."""
Verdict = Literal[
    "pays",
    "pays, but missed a target",
    "may pay: no sooner at a target",
    "may pay: measure kernels first",
    "may pay: within its uncertainty",
    "may pay: by fewer steps",
    "may pay: nobody trained it",
    "does not pay: missed its target",
    "does not pay",
    "does not fit",
]
MISSED: Verdict = "pays, but missed a target"
MISSED_ALL: Verdict = "does not pay: missed its target"
NO_SOONER: Verdict = "may pay: no sooner at a target"
MEASURE_FIRST: Verdict = "may pay: measure kernels first"
UNCERTAIN: Verdict = "may pay: within its uncertainty"
FEWER_STEPS: Verdict = "may pay: by fewer steps"
NO_FIT: Verdict = "does not fit"
"""The GPU has less memory than a step takes."""
UNTRAINED: Verdict = "may pay: nobody trained it"
"""Of workers that train apart: one of their steps is no step of DDP."""


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
            return MEASURE_FIRST
        return "pays" if self.least >= PAYS else UNCERTAIN

    @property
    def pays(self) -> bool:
        """Whether it surely pays."""
        return self.verdict == "pays"


def verdict_of(step: Speedup, to_targets: Sequence[Speedup | None]) -> Verdict:
    """Return the verdict on a system: that of its step, unless its trainings say otherwise.

    Args:
        step: speedup of a step.
        to_targets: speedup of the time to each target that it was trained to; None where it missed the target.
    """
    found = [speedup.verdict for speedup in to_targets if speedup is not None]
    has_missed = len(found) < len(to_targets)
    if step.verdict == "does not pay":
        return FEWER_STEPS if "pays" in found and not has_missed else step.verdict
    if has_missed and not found:
        return MISSED_ALL
    if "does not pay" in found:
        return NO_SOONER
    doubts: tuple[Verdict, ...] = (MEASURE_FIRST, UNCERTAIN)
    return next((doubt for doubt in doubts if doubt in (step.verdict, *found)), MISSED if has_missed else "pays")
