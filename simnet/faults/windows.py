"""When a fault is there: for good, from one time to another, or again and again."""

import math

from msgspec import field

from simnet.hardware import Fault
from simnet.registry import tag_of
from simnet.units import Duration

# Of a period: a boundary that is computed in two ways is one.
_ROUNDING = 1e-9


class TimedFault(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of links that may come and go.

    Attributes:
        from_s: when it begins, from the start of the run.
        to_s: when it ends; by default never.
        every_s: after how long it begins anew; by default it comes once.
    """

    from_s: Duration = field(name="from", default=Duration(0))
    to_s: Duration | None = field(name="to", default=None)
    every_s: Duration | None = field(name="every", default=None)

    def __post_init__(self) -> None:
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"to: {self.to_s.text()!r}: must be later than from, {self.from_s.text()!r}")
        if self.every_s is not None:
            if self.to_s is None:
                raise ValueError(f"every: {self.every_s.text()!r}: needs an end; set to, or drop every")
            if self.every_s <= self.lasts_s:
                rule = f"must be longer than from {self.from_s.text()!r} to {self.to_s.text()!r}"
                raise ValueError(f"every: {self.every_s.text()!r}: {rule}")

    @property
    def lasts_s(self) -> float:
        """How long it is there at a time [s]."""
        return math.inf if self.to_s is None else self.to_s - self.from_s

    def is_on(self, time_s: float) -> bool:
        """Tell whether it is there at a time [s from the start of the run]."""
        since_s = time_s - self.from_s
        if self.every_s is not None and since_s >= 0:
            since_s -= self._periods(since_s) * self.every_s
            slack_s = _ROUNDING * self.every_s
            return since_s < self.lasts_s - slack_s
        return 0 <= since_s < self.lasts_s

    def next_change_s(self, after_s: float) -> float:
        """Return when it begins or ends next [s]."""
        first_s = float(self.from_s)
        if self.every_s is not None and after_s > first_s:
            first_s += self._periods(after_s - first_s) * self.every_s
        later = (first_s, first_s + self.lasts_s, first_s + (self.every_s or math.inf))
        return min((one for one in later if one > after_s and not self._is_same(one, after_s)), default=math.inf)

    def _periods(self, since_s: float) -> int:
        assert self.every_s is not None
        return math.floor(since_s / self.every_s + _ROUNDING)

    def _is_same(self, one_s: float, other_s: float) -> bool:
        return self.every_s is not None and abs(one_s - other_s) < _ROUNDING * self.every_s

    @property
    def target(self) -> object | None:
        """What it acts on, which another of its kind may not act on at the same time; None: it may."""
        return None

    def contradicts(self, other: Fault) -> str:
        """Tell of another that says something else of the same links at the same time."""
        if not isinstance(other, TimedFault) or self.target is None or self.target != other.target:
            return ""
        if not self._overlaps(other):
            return ""
        begins = ", ".join(repr(one.from_s.text()) for one in (other, self))
        return f"two of kind {tag_of(self)!r} on the same links at one time, from {begins}: let one end before"

    def _overlaps(self, other: "TimedFault") -> bool:
        """Tell whether both are there at some time, as far as that is told without going through all periods."""
        if self.every_s is not None or other.every_s is not None:
            return self.is_on(other.from_s) or other.is_on(self.from_s)
        ends_s = [math.inf if one.to_s is None else one.to_s for one in (self, other)]
        return max(self.from_s, other.from_s) < min(ends_s)
