"""When a fault is there: for good, from one time to another, or again and again."""

import math
from fractions import Fraction
from typing import Annotated, NamedTuple

from msgspec import Meta, field

from simnet.cluster.faults.places import check_places, is_nic_of
from simnet.cluster.hardware import Cluster, Fault, LinkId
from simnet.core.schema import tag_of
from simnet.core.units import Duration, format_seconds

LEAST_PERIOD_S = 1e-3
# Of a period: a boundary that is computed in two ways is one.
_ROUNDING = 1e-9


class TimedFault(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of links that may come and go.

    Attributes:
        from_s: when it begins.
        to_s: when it ends; by default never.
        every_s: after how long it begins anew, 1 ms or more; by default it comes once.
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
            if self.every_s < LEAST_PERIOD_S:
                rule = "must be at least 1 ms, since every change of a link is followed; give its mean for good"
                raise ValueError(f"every: {self.every_s.text()!r}: {rule}")
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

    def missed_in(self, run_s: float) -> str:
        """Return what a run that lasts so long [s] does not see of it, in a sentence; empty where nothing."""
        if self.from_s >= run_s:
            begins, lasts = self.from_s.text(), format_seconds(run_s)
            return f"{self.title} from {begins} on: only {lasts} are simulated; raise run.iterations"
        if self.every_s is not None and self.from_s + self.every_s > run_s:
            every, lasts = self.every_s.text(), format_seconds(run_s)
            return f"{self.title} every {every}: only {lasts} are simulated, part of a period; raise run.iterations"
        return ""

    def next_change_s(self, after_s: float) -> float:
        """Return when it begins or ends next [s]."""
        first_s = float(self.from_s)
        if self.every_s is not None and after_s > first_s:
            first_s += self._periods(after_s - first_s) * self.every_s
        later = (first_s, first_s + self.lasts_s, first_s + (self.every_s or math.inf))
        return min(
            (change_s for change_s in later if change_s > after_s and not self._is_same(change_s, after_s)),
            default=math.inf,
        )

    def _periods(self, since_s: float) -> int:
        assert self.every_s is not None
        # A moment at which a period begins may lie a rounding before it.
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
        begins = ", ".join(repr(fault.from_s.text()) for fault in (other, self))
        return f"two of kind {tag_of(self)!r} on the same links at one time, from {begins}: let one end before"

    def _overlaps(self, other: "TimedFault") -> bool:
        """Tell whether both are there at some time."""
        this, its = self._exactly(), other._exactly()
        if this.every is None or its.every is None:
            once, again = (this, its) if this.every is None else (its, this)
            return _meets(once, again)
        # The distances of one's beginnings from the other's are, in the long run, all that a common measure allows.
        step = _common_measure(this.every, its.every)
        after = (this.begins - its.begins) % step
        return after < its.lasts or step - after < this.lasts

    def _exactly(self) -> "_Window":
        to_s = None if self.to_s is None else _exact(self.to_s)
        begins = _exact(self.from_s)
        lasts = math.inf if to_s is None else to_s - begins
        return _Window(begins, lasts, None if self.every_s is None else _exact(self.every_s))


class NicFault(TimedFault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of the NICs of some nodes that may come and go.

    Attributes:
        at_nodes: by default all.
    """

    at_nodes: tuple[Annotated[int, Meta(ge=0)], ...] = ()

    def check(self, cluster: Cluster) -> None:
        """Refuse nodes that are not there.

        Raises:
            ValueError: one is not.
        """
        check_places("node", self.at_nodes, cluster.num_nodes)

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Those whose NICs it is about."""
        return self.at_nodes or None

    def acts_on(self, link: LinkId, time_s: float) -> bool:
        """Tell whether it is there, on a link that is a NIC of these nodes."""
        return is_nic_of(link, self.at_nodes) and self.is_on(time_s)


class _Window(NamedTuple):
    """When a fault is there, in numbers that do not round [s]."""

    begins: Fraction
    lasts: Fraction | float
    every: Fraction | None


def _meets(once: _Window, other: _Window) -> bool:
    """Tell whether what is there once, or for good, is there at a time with another."""
    begins = other.begins
    # The first period of the other that has not ended when this one begins.
    if other.every is not None and once.begins >= begins + other.lasts:
        begins += other.every * ((once.begins - begins - Fraction(other.lasts)) // other.every + 1)
    return begins < once.begins + once.lasts and once.begins < begins + other.lasts


def _exact(seconds: Duration) -> Fraction:
    """Return a time as it is written: 0.1 s is a tenth, which no float is."""
    return Fraction(repr(float(seconds)))


def _common_measure(period: Fraction, other: Fraction) -> Fraction:
    """Return the longest time of which both are whole multiples."""
    # Over one denominator both are whole numbers.
    whole = math.gcd(period.numerator * other.denominator, other.numerator * period.denominator)
    return Fraction(whole, period.denominator * other.denominator)
