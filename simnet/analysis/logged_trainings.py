"""Measured convergence from the logs of trainers: which system each log is of, its seeds, and its steps."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from simnet.analysis.convergence import VERSION, Convergence, TrainedSystem, TrainingCurve
from simnet.analysis.loss_curve import LoggedCurve
from simnet.analysis.training_logs import EVENTS, TABLES, is_folder, is_there, read_curves
from simnet.core import files
from simnet.core.errors import SimnetError, cut, shown
from simnet.engine.scenario import Scenario
from simnet.strategies import STRATEGIES, Strategy
from simnet.strategies.base import strategy_from_text

# "SYSTEM=LOG" or "SYSTEM:KEY=VALUE,...=LOG"; no other "=" is meant, and a path may hold some.
_WITH_SYSTEM = re.compile(r"(\w+(?::\w+=[^,=/]+(?:,\w+=[^,=/]+)*)?)=(.+)", re.DOTALL)
DENSE = "all_reduce"


class LogReference(NamedTuple):
    """A log as the command line names it: `[SYSTEM=]LOG`."""

    system: str
    path: Path


class _NamedLog(NamedTuple):
    """A training of a log, and how the command line named the log."""

    reference: LogReference
    curve: LoggedCurve

    @property
    def is_named(self) -> bool:
        """Whether anything says of which system it is."""
        return bool(self.reference.system or self.curve.system)

    @property
    def name(self) -> str:
        """The strategy with its options."""
        kind, *options = (self.reference.system or self.curve.system or DENSE).split(":", 1)
        return ":".join([STRATEGIES.tag(kind), *options])


class LoggedTrainings(Struct, frozen=True, kw_only=True):
    """The trainings of some logs, and what a reader should know of how they were read."""

    convergence: Convergence
    notes: tuple[str, ...]


def names_a_log(text: str) -> bool:
    """Tell whether an argument names a log; else it is a shipped name, or the path of a convergence file."""
    system, path = _reference(text)
    if system or is_folder(path) or EVENTS in path.name or path.suffix in TABLES:
        return True
    return path.suffix not in {".json", ".toml"} and text not in files.names("convergence") and is_there(path)


def load_logs(
    texts: Sequence[str], scenario: Scenario, *, metric: str | None = None, ranks: int | None = None
) -> LoggedTrainings:
    """Read the logs of trainings.

    A log names its system in front of "=" or in a column, as a strategy and its options; a bare name stands for the
    scenario's own strategy or baseline of that kind. One log of one training without a system is of DDP.

    Args:
        texts: arguments of the command line.
        scenario: whose strategies bare names stand for; its ranks and batch are those of logs that do not say.
        metric: column or tag to take.
        ranks: on which the trainings ran, where a log does not say; default those of the scenario.

    Raises:
        SimnetError: a log cannot be read, does not hold together, or does not say of which system it is.
    """
    references = map(_reference, texts)
    found = [_NamedLog(log, curve) for log in references for curve in read_curves(log.path, metric)]
    _check_names(found, texts)
    ranks = ranks or scenario.cluster.world_size
    batch = scenario.workload.batch_per_rank * scenario.grad_accumulation * ranks
    systems = {one.name: _system(one, scenario) for one in found}
    if all(system.strategy.compresses for system in systems.values()):
        raise SimnetError(
            f"{texts[0]}: {', '.join(systems)}: none without compression, with which others are compared; add the log "
            f"of such a training as {DENSE}=LOG"
        )
    return LoggedTrainings(
        convergence=Convergence(
            format="simnet-convergence",
            version=VERSION,
            task=cut(", ".join(dict.fromkeys(str(one.reference.path) for one in found)), 80),
            metric=_metric([one.curve for one in found]),
            better="lower",
            batch=batch,
            source="logs of trainings",
            systems=systems,
            curves=_curves(found, ranks, batch),
        ),
        notes=(
            *dict.fromkeys(note for one in found for note in one.curve.notes),
            *_assumed(found, systems, ranks, batch),
        ),
    )


def _check_names(found: Sequence[_NamedLog], texts: Sequence[str]) -> None:
    """Check that no log comes twice, and that each has a system; one training alone is DDP, with all its seeds."""
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise SimnetError(f"{twice}: named twice: a training counts once; drop one")
    nameless = [one for one in found if not one.is_named]
    if nameless and (len(texts) > 1 or len(nameless) < len(found)):
        where, path = nameless[0].curve.where, nameless[0].reference.path
        raise SimnetError(
            f"{where}: one of {len(found)} trainings, without a system: name it in front, such as {DENSE}={path}, or "
            "in a column 'system'"
        )


def _curves(found: Sequence[_NamedLog], ranks: int, batch: int) -> tuple[TrainingCurve, ...]:
    """Return the curves over steps; trainings without a seed are numbered."""
    curves: dict[tuple[str, int, int], TrainingCurve] = {}
    number: Counter[tuple[str, int]] = Counter()
    for name, curve in ((one.name, one.curve) for one in found):
        on = curve.ranks or ranks
        seed = number[name, on] if curve.seed is None else curve.seed
        number[name, on] += 1
        if (name, on, seed) in curves:
            raise SimnetError(
                f"{curve.where}: {name}: seed {seed} on {on} ranks: two trainings; give each a seed of its own"
            )
        steps, values = _by_step(curve, batch)
        curves[name, on, seed] = TrainingCurve(system=name, ranks=on, seed=seed, steps=steps, values=values)
    return tuple(curves.values())


def _reference(text: str) -> LogReference:
    match = _WITH_SYSTEM.fullmatch(text)
    # A file may have a name with "=" in it.
    if match and not is_there(Path(text)):
        return LogReference(match[1], Path(match[2]))
    return LogReference("", Path(text))


def _system(one: _NamedLog, scenario: Scenario) -> TrainedSystem:
    where = f"{one.curve.where}: system {shown(one.name)}"
    strategy: Strategy = strategy_from_text(one.name, where, (scenario.strategy, scenario.baseline))
    title = ", ".join(filter(None, [strategy.title, one.name.partition(":")[2].replace(",", ", ")]))
    return TrainedSystem(title=title, strategy=strategy)


def _by_step(curve: LoggedCurve, batch: int) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return a curve over steps; of several numbers of samples within one step the last counts."""
    if curve.counted == "steps":
        return curve.positions, curve.values
    values = {math.ceil(at / batch): value for at, value in zip(curve.positions, curve.values, strict=True)}
    return tuple(values), tuple(values.values())


def _metric(curves: Sequence[LoggedCurve]) -> str:
    """Return the one metric of all curves; a log that does not name its metric has any."""
    names = {curve.metric: curve for curve in curves if curve.metric}
    if len(names) > 1:
        (first, one), (second, other), *_ = names.items()
        raise SimnetError(
            f"{other.where}: {shown(second)}, but {shown(first)} in {one.where}: must be one metric; choose it "
            "with --metric"
        )
    return next(iter(names), "loss")


def _assumed(found: Sequence[_NamedLog], systems: Mapping[str, TrainedSystem], ranks: int, batch: int) -> list[str]:
    """Return what was assumed where logs do not say."""
    texts = []
    if any(one.curve.ranks is None for one in found):
        texts.append(f"logs do not say on how many ranks they were trained: taken as {ranks} (--ranks)")
    for name, system in systems.items():
        if getattr(system.strategy, "dense_steps", None) == 0:
            texts.append(
                f"{name}: no dense steps at its start are counted; name those of the log: {name}:dense_steps=1000"
            )
    if any(one.curve.counted == "samples" for one in found):
        texts.append(f"steps are samples / {batch}, the batch of all ranks")
    if not any(one.is_named for one in found):
        texts.append(f"the log names no system: taken as DDP ({DENSE})")
    return texts
