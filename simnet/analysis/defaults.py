"""What a scenario file means that names no strategy: what advise would use there."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from simnet.analysis import convergence
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise, check_rankable
from simnet.analysis.tune import names_strategy, with_any_strategy
from simnet.core.errors import SimnetError
from simnet.engine.axes import Override
from simnet.engine.scenario import Experiment, settings_of, to_dict

ORIGIN = "strategy that simnet advise would use"
BATCH_KEYS = {"workload.batch_per_rank", "run.grad_accumulation", "run.global_batch"}
"""Keys that give the samples of a step together: where one is swept, all stay as they are."""


def with_strategy(experiment: Experiment, jobs: int = 1, progress: Callable[[int], object] = int) -> Experiment:
    """Return an experiment that names a strategy: as given, or that which advise would use at the file's own values.

    The batch is cut as it is for that strategy, where it is not swept. The question of the experiment says what was
    taken.

    Args:
        experiment: of any file.
        jobs: processes at most.
        progress: called with 1 whenever a system is ranked.

    Raises:
        SimnetError: no system can be ranked there.
    """
    if names_strategy(experiment):
        return experiment
    scenario = with_any_strategy(experiment).at({})
    try:
        check_rankable(scenario)
    except SimnetError as error:
        rule = "missing, and what simnet advise would use cannot be ranked here"
        raise SimnetError(f"{experiment.where}: strategy: {rule}; add strategy = 'binsgdm' ({error})") from error
    advice = advise(scenario, trainings=convergence.shipped(), jobs=jobs, progress=progress)
    chosen = advice.best or advice.baseline_system
    swept = set(experiment.swept_keys)
    if not swept.isdisjoint(BATCH_KEYS):
        swept |= BATCH_KEYS
    changes = chosen.batches.changes(settings_of(scenario))
    kept = {key: value for key, value in changes.items() if key not in swept}
    question = _question(experiment, advice, chosen.batches.text() if kept == changes else _set_text(kept))
    if scenario.run.global_batch is not None:
        kept.pop("run.grad_accumulation", None)
    values = {"strategy": to_dict(chosen.strategy), "question": question, **kept}
    overrides = (Override(key=key, value=value, origin=ORIGIN) for key, value in values.items())
    return replace(experiment, question=question, overrides=(*experiment.overrides, *overrides))


def _set_text(changes: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in changes.items())


def _question(experiment: Experiment, advice: Advice, batches: str) -> str:
    chosen = advice.best or advice.baseline_system
    cut = f", {batches}" if batches and chosen.batches != settings_of(advice.scenario) else ""
    taken = f"{experiment.where} names no strategy: {chosen.label}{cut} is taken, as simnet advise would use."
    return f"{experiment.question} {taken}".strip()
