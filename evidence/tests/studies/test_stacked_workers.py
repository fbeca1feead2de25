"""Workers that take steps alone: alike after an exchange and not before, and always where gradients are averaged."""

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

import torch

from evidence.studies.run import Run, training_steps
from tests.helpers.stacked import Workers


@pytest.mark.parametrize(("inner_steps", "alike_after"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3])])
def test_workers_are_alike_after_an_exchange_alone(inner_steps: int, alike_after: list[int]) -> None:
    options = {"inner_steps": inner_steps, "outer": None}
    run = Run(
        study="systems", task="digits", system="local_steps", options=options, trial={"lr": 0.01}, ranks=2, steps=4
    )
    alike = []
    for step, _, workers in training_steps(run):
        assert isinstance(workers, Workers)
        first, other = workers._parameters
        if all(torch.equal(left, theirs) for left, theirs in zip(first, other, strict=True)):
            alike.append(step)
    assert alike == alike_after
