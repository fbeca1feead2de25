"""Which all-reduce explains dense steps best: the one under which two numbers of nodes give one bandwidth.

Libraries do not say what they run, and algorithms differ most in the bytes that leave a node on two nodes and on more.
Published rows chosen so are predicted better on larger clusters (docs/evidence/validation.md).
"""

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from simnet.calibration import step_fit
from simnet.calibration.step_fit import StepFit
from simnet.calibration.step_model import Trained
from simnet.calibration.step_rows import TimedStep
from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario
from simnet.strategies import DenseAllReduce, Strategy

ALGORITHMS = ("ring", "hierarchical", "tree")
LARGE = 1.15
"""A ratio of the two bandwidths from which on another algorithm is worth a word."""


def note(
    found: StepFit,
    rows: Sequence[TimedStep],
    trained: Trained,
    start: Calibration,
    known_links: Collection[str] = (),
) -> tuple[str, ...]:
    """Return a sentence that names a better algorithm than the fitted one; nothing where none is clearly better.

    Args:
        found: the fit of these rows.
        rows: all that were fitted.
        trained: what was trained.
        start: the calibration that was fitted further.
        known_links: links that other files measure.
    """
    own = _ratio(found)
    dense = [row for row in rows if not found.model.strategy(row).compresses]
    if own is None or own < LARGE or any(":" in row.strategy for row in dense):
        return ()
    ratios = dict(_ratios(dense, trained, start, known_links))
    best = min(ratios, key=lambda algorithm: ratios[algorithm], default="")
    if not best or ratios[best] > own / LARGE:
        return ()
    first, second = sorted(found.by_nodes)[:2]
    return (
        f"the bandwidths on {first} and {second} nodes differ {own:.2f} times; under algorithm = '{best}' they differ "
        f"{ratios[best]:.2f} times: if it is not known what ran, name that in the experiment and calibrate again",
    )


def _ratio(found: StepFit) -> float | None:
    """Return the ratio of the bandwidths on the two smallest numbers of nodes, at least 1."""
    rates = [found.by_nodes[nodes].value for nodes in sorted(found.by_nodes)[:2]]
    return max(rates) / min(rates) if len(rates) == 2 else None


def _ratios(
    rows: Sequence[TimedStep], trained: Trained, start: Calibration, known_links: Collection[str]
) -> Iterator[tuple[str, float]]:
    for algorithm in ALGORITHMS:
        other = Trained(_Changed(trained, algorithm), trained.simulate_s)
        try:
            ratio = _ratio(step_fit.fit(rows, other, start, known_links))
        except SimnetError:
            continue  # steps too short for this algorithm's bytes were not made by it
        if ratio is not None:
            yield algorithm, ratio


class _Changed:
    """The scenarios of what was trained, with another algorithm of the dense all-reduce."""

    def __init__(self, trained: Trained, algorithm: str) -> None:
        self._trained, self._algorithm = trained, algorithm

    def __call__(self, workload: str) -> Scenario:
        given = self._trained.scenario(workload)
        strategy, baseline = self._changed(given.strategy), self._changed(given.baseline)
        if not any(isinstance(one, DenseAllReduce) for one in (strategy, baseline)):
            baseline = DenseAllReduce(algorithm=self._algorithm)
        return replace(given, strategy=strategy, baseline=baseline)

    def _changed(self, given: Strategy | None) -> Strategy | None:
        return replace(given, algorithm=self._algorithm) if isinstance(given, DenseAllReduce) else given
