"""What a scenario file means that names no strategy: what advise would use there."""

from collections.abc import Callable

from msgspec.structs import replace

from simnet.analysis import convergence
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise, check_rankable
from simnet.analysis.tune import names_strategy, with_any_strategy
from simnet.core.errors import SimnetError
from simnet.engine.axes import Override
from simnet.engine.batch_settings import settings_of
from simnet.engine.scenario import Experiment, to_dict

ORIGIN = "strategy that simnet advise would use"


def with_strategy(experiment: Experiment, jobs: int = 1, progress: Callable[[int], object] = int) -> Experiment:
    """Return an experiment that names a strategy: as given, or that which advise would use at the file's own values.

    The batch is cut as it is for that strategy. The question of the experiment says what was taken.

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
    values: dict[str, object] = {"strategy": to_dict(chosen.strategy), "question": _question(experiment, advice)}
    values |= chosen.batches.changes(settings_of(scenario))
    if scenario.run.global_batch is not None:
        values.pop("run.grad_accumulation", None)
    given = {*experiment.swept_keys, *(override.key for override in experiment.overrides)}
    overrides = (Override(key=key, value=value, origin=ORIGIN) for key, value in values.items() if key not in given)
    return replace(experiment, question=str(values["question"]), overrides=(*experiment.overrides, *overrides))


def _question(experiment: Experiment, advice: Advice) -> str:
    chosen = advice.best or advice.baseline_system
    cut = "" if chosen.batches == settings_of(advice.scenario) else f", {chosen.batches.text()}"
    taken = f"{experiment.where} names no strategy: {chosen.label}{cut} is taken, as simnet advise would use."
    return f"{experiment.question} {taken}".strip()
