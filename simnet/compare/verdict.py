"""Whether a system pays: one rule for every speedup, wherever two systems are compared."""

from typing import Literal

from msgspec import Struct

PAYS = 1.05
"""The least speedup that counts: predictions of steps were off by 4.4 % on average (docs/evidence/lab-campaign.md)."""
Verdict = Literal["pays", "may pay: measure kernels first", "may pay: within its uncertainty", "does not pay"]
MEASURE_FIRST: Verdict = "may pay: measure kernels first"
UNCERTAIN: Verdict = "may pay: within its uncertainty"


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
