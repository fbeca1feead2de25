"""Measured convergence: a metric by step for several systems on one task, read from a file; and what is published."""

import statistics
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from simnet.core import files, schema
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.engine.scenario import RawScenario, Scenario
from simnet.strategies import AnyStrategy
from simnet.workload.training_step import num_elements

VERSION = 2
"""The version of files that is read."""

# Beyond this, matplotlib fails on a metric.
MAX_METRIC = 1e100
Value = Annotated[float, Meta(ge=-MAX_METRIC, le=MAX_METRIC)]

SAME_TASK_TOLERANCE = 0.05
"""Largest relative difference of two counts of one model: people write "1.3 B", and heads differ by a percent
(BERT-Base with and without the heads of its pre-training: 0.6 %). BERT-Base and GPT-2 small differ by 13 %."""
PUBLISHED = ("published", "convergence.toml")


class TrainedSystem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system that was trained.

    Attributes:
        title: name in tables and figures; no two systems share one.
        strategy: as a scenario names it.
        optimizer: name of the optimizer, for people.
        settings: learning rate and the like, for people; a rounding must be the strategy's.
    """

    title: str
    strategy: AnyStrategy
    optimizer: str = ""
    settings: dict[str, Any] = {}


class TrainingCurve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metric after some steps of one training; None from where the training had diverged.

    Attributes:
        system: short name of the system.
        ranks: ranks that trained.
        seed: seed of the training.
        steps: after which the metric was evaluated, ascending.
        values: the metric after these steps; null from where the training had diverged.
        accuracy: after these steps, for people.
    """

    system: str
    ranks: Count
    seed: Annotated[int, Meta(ge=0)]
    steps: tuple[Count, ...]
    values: tuple[Value | None, ...]
    accuracy: tuple[Value | None, ...] | None = None

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.values):
            raise ValueError(
                f"steps: {len(self.steps)} for {len(self.values)} values: must be as many, at least one; add them"
            )
        if self.accuracy is not None and len(self.accuracy) != len(self.steps):
            raise ValueError(
                f"accuracy: {len(self.accuracy)} for {len(self.steps)} steps: must be as many, or none; add them"
            )
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("steps: must ascend; sort the curve")

    def step_at(self, target: float, *, is_lower_better: bool) -> int | None:
        """Return the first evaluated step at which the metric is as good as a target; None if there is none."""
        sign = 1.0 if is_lower_better else -1.0
        pairs = zip(self.steps, self.values, strict=True)
        return next((step for step, value in pairs if value is not None and sign * value <= sign * target), None)


class Convergence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trainings of one task.

    Attributes:
        format: what the file is.
        version: of the format.
        task: what was trained, for people.
        metric: such as "validation loss".
        unit: of the values, empty if they have none.
        better: which values are better.
        batch: samples of all ranks together in a step.
        num_parameters: of the model, which tell whether a workload is the same task; else the command must be told.
        target: value that shows success, stated before the trainings were looked at.
        source: how, where and when it was measured.
        systems: by a short name; at least one without compression.
        curves: one training each; a system has the same seeds and steps at each number of ranks.
    """

    format: Literal["simnet-convergence"]
    version: int
    task: str
    metric: str
    unit: str = ""
    better: Literal["lower", "higher"]
    batch: Count
    num_parameters: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    target: Value | None = None
    source: str
    systems: dict[str, TrainedSystem]
    curves: tuple[TrainingCurve, ...]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(
                f"version: {self.version}: must be {VERSION}, in which binsgdm without rounding is of the default one; "
                f'write {VERSION}, and rounding = "random" where version 1 left it out'
            )
        titles: dict[str, str] = {}
        for name, system in self.systems.items():
            if not system.title.strip():
                raise ValueError(f"systems.{name}.title: {system.title!r}: must not be empty; name the system")
            if (other := titles.setdefault(system.title, name)) != name:
                raise ValueError(
                    f"systems.{name}.title: {system.title!r}: is also that of {other!r}; give each system its own title"
                )
            simulated = getattr(system.strategy, "rounding", None)
            if (trained := system.settings.get("rounding", simulated)) != simulated:
                raise ValueError(
                    f"systems.{name}.strategy.rounding: {simulated!r}: settings.rounding is {trained!r}: must be the "
                    "same; simulate what was trained"
                )
        seen: set[tuple[str, int, int]] = set()
        for index, curve in enumerate(self.curves):
            if curve.system not in self.systems:
                raise ValueError(f"curves.{index}.system: {curve.system!r}: not among systems; add it there")
            if (key := (curve.system, curve.ranks, curve.seed)) in seen:
                raise ValueError(f"curves.{index}: a second curve of {key}; drop one")
            seen.add(key)
        if all(system.strategy.compresses for system in self.systems.values()):
            raise ValueError("systems: none without compression; add one of kind 'all_reduce'")

    @property
    def is_lower_better(self) -> bool:
        """Whether lower values are better."""
        return self.better == "lower"

    @property
    def rank_counts(self) -> tuple[int, ...]:
        """Numbers of ranks that were trained with, ascending."""
        return tuple(sorted({curve.ranks for curve in self.curves}))

    def of(self, system: str, ranks: int) -> tuple[TrainingCurve, ...]:
        """Return the curves of a system at a number of ranks, by seed."""
        curves = [curve for curve in self.curves if curve.system == system and curve.ranks == ranks]
        return tuple(sorted(curves, key=lambda curve: curve.seed))


def load(name_or_path: str) -> Convergence:
    """Read measured convergence, shipped by name or a JSON file by path.

    Raises:
        SimnetError: there is no such file, or it does not hold together.
    """
    path: Path = files.locate("convergence", name_or_path)
    convergence = RawScenario(data=files.read_file(path), origins={(): files.label(path)}).converted(Convergence)
    for system in convergence.systems:
        for ranks in convergence.rank_counts:
            if len({curve.steps for curve in convergence.of(system, ranks)}) > 1:
                where = f"{files.label(path)}: curves of {system!r} on {ranks} ranks"
                raise SimnetError(f"{where}: seeds with different steps; evaluate every seed after the same steps")
    return convergence


def median_values(curves: tuple[TrainingCurve, ...]) -> list[tuple[int, float, float, float]]:
    """Return (step, median, lowest, highest) over seeds, up to the step at which the first of them has diverged.

    Example:
        >>> one = TrainingCurve(system="a", ranks=1, seed=0, steps=(5,), values=(1.0,))
        >>> median_values((one,))
        [(5, 1.0, 1.0, 1.0)]
    """
    by_step = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    rows = []
    for step in sorted(set.intersection(*map(set, by_step))):  # logs of seeds may differ in their steps
        values = [value for values_by_step in by_step if (value := values_by_step[step]) is not None]
        if len(values) < len(curves):
            break
        rows.append((step, statistics.median(values), min(values), max(values)))
    return rows


def shipped() -> dict[str, Convergence]:
    """Return the shipped trainings by name."""
    return {name: load(name) for name in files.names("convergence")}


def is_same_task(convergence: Convergence, scenario: Scenario) -> bool:
    """Tell whether the trained model has as many parameters as the simulated one, within `SAME_TASK_TOLERANCE`."""
    trained = convergence.num_parameters
    simulated = num_elements(scenario.workload)
    return trained is not None and abs(trained - simulated) <= SAME_TASK_TOLERANCE * max(trained, simulated)


def check_same_task(convergence: Convergence, scenario: Scenario) -> None:
    """Refuse trainings of another model than the workload's, and those that do not say of which model they are."""
    if is_same_task(convergence, scenario):
        return
    simulated = f"{num_elements(scenario.workload):,.0f} parameters"
    if convergence.num_parameters is None:
        raise SimnetError(
            f"{convergence.task}: num_parameters: missing: the curves must be of the model that is simulated, of "
            f"{simulated}; add --same-task if they are, or num_parameters to a convergence file"
        )
    raise SimnetError(
        f"{convergence.task}: curves of a model of {convergence.num_parameters:,} parameters: must be of the model "
        f"that is simulated, of {simulated}; bring curves of that model, or add --same-task to see what would follow "
        "if it trained like this one"
    )


class PublishedConvergence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one publication says of the quality of trainings that a strategy changes, where no training here does.

    Attributes:
        kinds: strategies that it is about.
        text: in short.
        carries: how far that carries.
        source: where it is said.
    """

    kinds: tuple[str, ...]
    text: str
    carries: str
    source: str


class PublishedRecords(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them."""

    records: tuple[PublishedConvergence, ...]


@cache
def _published() -> tuple[PublishedConvergence, ...]:
    path = files.data_path(*PUBLISHED)
    return schema.build(PublishedRecords, files.read_file(path), files.label(path)).records


def published_of(kinds: Collection[str]) -> tuple[PublishedConvergence, ...]:
    """Return what is published of any of these strategies."""
    return tuple(record for record in _published() if set(record.kinds) & set(kinds))
