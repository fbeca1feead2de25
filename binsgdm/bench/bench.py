"""The ranks, the record and the stop rule that every measurement is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import Key, Progress, StopRule, Trial, interleave


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where samples go, who takes part, and when to stop.

    Attributes:
        record: where to.
        ranks: who takes part.
        stop_rule: when to stop, for each thing that is measured.
        progress: called with the part that is done, from 0 to 1.
        probe: called now and then, at the same places on all ranks, between what is timed.
    """

    record: Record
    ranks: Ranks
    stop_rule: StopRule
    progress: Progress = lambda _: None
    probe: Callable[[], None] = lambda: None

    def part(self, first: float, end: float) -> "Bench":
        """Return the same for one of several things, which begins and ends at these parts of all."""
        return replace(self, progress=lambda part: self.progress(first + part * (end - first)))

    def interleave(self, trials: Mapping[Key, Trial], pause_s: float = 0.0) -> dict[Key, list[list[float]]]:
        """Let trials take turns, and tell how far they are; see `interleave`."""

        def progress(part: float) -> None:
            self.progress(part)
            self.probe()

        self.probe()
        return interleave(trials, self.stop_rule, self.ranks, pause_s=pause_s, progress=progress)
