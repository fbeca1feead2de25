"""Whether measured trainings are of the model that a scenario simulates; those of another model say nothing of it."""

from simnet.analysis.convergence import Convergence
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario
from simnet.workload.training_step import num_elements

TOLERANCE = 0.05
"""Largest relative difference of two counts of one model: people write "1.3 B", and heads differ by a percent
(BERT-Base with and without the heads of its pre-training: 0.6 %). BERT-Base and GPT-2 small differ by 13 %."""


def is_same_task(convergence: Convergence, scenario: Scenario) -> bool:
    """Tell whether the trained model has as many parameters as the simulated one, within `TOLERANCE`."""
    trained = convergence.num_parameters
    simulated = num_elements(scenario.workload)
    return trained is not None and abs(trained - simulated) <= TOLERANCE * max(trained, simulated)


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
