"""Four ranks with local SGD and DiLoCo have what one process computes for all of them."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.comm import Member, run_in_lockstep
from binsgdm.optimizers.outer_steps import OuterSettings, OuterSteps
from tests.distributed.small_model import RANKS_PER_NODE, WORLD_SIZE, loss, model
from tests.helpers.launch import heard, of_all, rank_of_gloo

STEPS, LR = 12, 0.05
CASES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "one_bit_node": {"exchange": "one_bit", "workers": "node"},
    "node": {"workers": "node"},
    "power_sgd": {"exchange": "power_sgd", "matrix_rank": 1},
    "overlapped": {"exchange": "one_bit", "inner_steps": 6, "fragments": 2, "overlap_steps": 2, "local_share": 0.25},
    "overlapped_node": {"exchange": "int8", "inner_steps": 4, "fragments": 2, "overlap_steps": 1, "workers": "node"},
}
RESUMED = ["overlapped", "overlapped_node"]


def settings_of(case: str) -> dict[str, Any]:
    return {"inner_steps": 3, "outer_lr": 0.7} | CASES[case]


def work(rank: int, folder: str) -> None:
    """Train in every way; rank 0 leaves what all ranks have in a file."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, node=RANKS_PER_NODE) as results:
        node, _ = dist.new_subgroups(group_size=RANKS_PER_NODE)
        results |= {case: of_all(trained(rank, case, node)) for case in CASES}
        results["controls"] = {case: control(case) for case in CASES}
        results["resumed"] = {case: of_all(resumed(rank, case, node)) for case in RESUMED}
        results["local_sgd"] = {steps: of_all(averaged(rank, steps)) for steps in (1, 3)}
        results["averaged_gradients"] = averaged_gradients()
        results["refused"] = of_all(refused(rank))
        results["not_finite"] = of_all(not_finite(rank))
        results["scaled"] = of_all(scaled(rank))
        results["scheduled"] = of_all(scheduled(rank))


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).clone()


def wrapped(case: str, node: Any) -> tuple[nn.Module, binsgdm.DiLoCo]:
    module = model()
    trained: nn.Module = module
    if CASES[case].get("workers") == "node":
        trained = DistributedDataParallel(module, process_group=node)
    inner = torch.optim.Adam(module.parameters(), lr=LR)
    return trained, binsgdm.DiLoCo(inner, **settings_of(case))


def steps(trained: nn.Module, optimizer: torch.optim.Optimizer, rank: int, numbers: range) -> list[torch.Tensor]:
    found = []
    for step in numbers:
        optimizer.zero_grad()
        loss(trained, rank, step).backward()
        optimizer.step()
        found.append(flat(trained))
    return found


def trained(rank: int, case: str, node: Any) -> list[torch.Tensor]:
    module, optimizer = wrapped(case, node)
    found = steps(module, optimizer, rank, range(STEPS))
    optimizer.close()
    return found


def resumed(rank: int, case: str, node: Any) -> list[torch.Tensor]:
    """Train, and go on from step 4, amid a period and an exchange, in another model and optimizer."""
    module, optimizer = wrapped(case, node)
    found = steps(module, optimizer, rank, range(4))
    state, parameters = optimizer.state_dict(), flat(module)
    steps(module, optimizer, rank, range(4, 5))  # the state is a copy
    other, continued = wrapped(case, node)
    torch.nn.utils.vector_to_parameters(parameters, other.parameters())
    continued.load_state_dict(state)
    return found + steps(other, continued, rank, range(4, STEPS))


def control(case: str) -> list[list[torch.Tensor]]:
    """Train all ranks in one process."""
    settings = settings_of(case)
    ranks_per_worker = RANKS_PER_NODE if settings.get("workers") == "node" else 1
    options = {name: settings.pop(name) for name in ("matrix_rank",) if name in settings}
    models = [model() for _ in range(WORLD_SIZE)]
    inner = [torch.optim.Adam(one.parameters(), lr=LR) for one in models]
    outer = [
        OuterSteps(
            list(one.parameters()),
            OuterSettings(**settings, options=options),
            Member(rank=rank, world_size=WORLD_SIZE, ranks_per_node=ranks_per_worker),
        )
        for rank, one in enumerate(models)
    ]
    means: list[torch.Tensor] = []
    found: list[list[torch.Tensor]] = [[] for _ in models]
    for step in range(STEPS):
        step_of_workers(models, inner, step, ranks_per_worker)
        parts = [one.starting(step + 1) for one in outer]
        if parts[0] is not None:
            buckets = [part.pseudo_gradient() for part in parts]
            protocols = [one.mean(*pair, step + 1) for one, *pair in zip(outer, parts, buckets, strict=True)]
            with torch.no_grad():
                means = run_in_lockstep(protocols, ranks_per_worker)
        ends = [one.ending(step + 1) for one in outer]
        if ends[0] is not None:
            run_in_lockstep(
                [one.finish(part, mean) for one, part, mean in zip(outer, ends, means, strict=True)], ranks_per_worker
            )
        for one, module in zip(found, models, strict=True):
            one.append(flat(module))
    return found


def step_of_workers(models: list[nn.Module], inner: list[Any], step: int, ranks_per_worker: int) -> None:
    for rank, (module, optimizer) in enumerate(zip(models, inner, strict=True)):
        optimizer.zero_grad()
        loss(module, rank, step).backward()
        if rank % ranks_per_worker == ranks_per_worker - 1:
            worker = models[rank - ranks_per_worker + 1 : rank + 1]
            for parameters in zip(*(one.parameters() for one in worker), strict=True):
                mean = sum(parameter.grad for parameter in parameters) / ranks_per_worker
                for one in parameters:
                    one.grad = mean.clone()
    for optimizer in inner:
        optimizer.step()


def averaged(rank: int, inner_steps: int) -> list[torch.Tensor]:
    module = model()
    optimizer = binsgdm.LocalSGD(torch.optim.SGD(module.parameters(), lr=LR), inner_steps=inner_steps)
    return steps(module, optimizer, rank, range(STEPS))


def averaged_gradients() -> list[torch.Tensor]:
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(loss(module, rank, step) for rank in range(WORLD_SIZE)) / WORLD_SIZE).backward()
        optimizer.step()
        found.append(flat(module))
    return found


def refused(rank: int) -> dict[str, str]:
    """Return what a rank hears where ranks were given differing or wrong things."""
    module = model()
    inner = torch.optim.SGD(module.parameters(), lr=LR)
    other = model()
    with torch.no_grad():
        next(other.parameters()).add_(float(rank == 2))
    apart = torch.optim.SGD(other.parameters(), lr=LR)
    return {
        "outer_lr": heard(lambda: binsgdm.DiLoCo(inner, 4, outer_lr=0.7 if rank else 0.5)),
        "inner_steps": heard(lambda: binsgdm.LocalSGD(inner, 4 + (rank == 3))),
        "one": heard(lambda: binsgdm.DiLoCo(inner, 4, fragments=3 if rank == 1 else 2)),
        "parameters": heard(lambda: binsgdm.LocalSGD(apart)),
        "optimizer": heard(lambda: binsgdm.LocalSGD(module)),
    }


def not_finite(rank: int) -> tuple[str, bool]:
    """Return what a rank hears when another one's parameters are NaN, and whether its own are as they were."""
    module = model()
    optimizer = binsgdm.DiLoCo(torch.optim.SGD(module.parameters(), lr=LR), 1, exchange="one_bit", workers="node")
    if rank >= 2:  # one worker; in the half of the parameters whose outer state it has
        list(module.parameters())[-1].data.view(-1)[-1] = torch.nan
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = flat(module)
    return heard(optimizer.step), rank >= 2 or torch.equal(flat(module), before)


def scaled(rank: int) -> tuple[torch.Tensor, int]:
    """Train with a GradScaler; rank 1 has a gradient that is not finite in a step that all count."""
    module = model()
    optimizer = binsgdm.LocalSGD(torch.optim.SGD(module.parameters(), lr=LR), inner_steps=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss(module, rank, step)).backward()
        if (rank, step) == (1, 1):
            next(module.parameters()).grad.fill_(torch.inf)
        if step == 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return flat(module), optimizer.num_steps


def scheduled(rank: int) -> tuple[float, float]:
    """Return the lr of the inner optimizer after a schedule of the wrapper, and what a closure gave."""
    module = model()
    inner = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer = binsgdm.LocalSGD(inner, inner_steps=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(module, rank, 0)
        value.backward()
        return value

    given = float(optimizer.step(closure))
    scheduler.step()
    return inner.param_groups[0]["lr"], given


# The backend sums what travels uncompressed, in its own order; with DDP inside a node it sums gradients of two ranks,
# of which the order does not matter.
SUMMED = ("fp32", "power_sgd")


@pytest.mark.parametrize("case", CASES)
def test_four_ranks_get_what_one_process_gets_for_them(results, case):
    for rank, (found, wanted) in enumerate(zip(results[case], results["controls"][case], strict=True)):
        for step, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if case in SUMMED:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
            else:
                assert torch.equal(one, other), (rank, step)


@pytest.mark.parametrize("case", ["fp32", "node", "one_bit_node"])
def test_workers_are_alike_after_an_exchange_and_apart_before(results, case):
    by_rank = results[case]
    assert all(torch.equal(one[2], by_rank[0][2]) for one in by_rank)
    assert not torch.equal(by_rank[0][1], by_rank[2][1])


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_goes_on_from_the_middle_of_a_period_bit_for_bit(results, case):
    for found, wanted in zip(results["resumed"][case], results[case], strict=True):
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_local_sgd_after_every_step_is_the_average_of_gradients(results):
    for found in results["local_sgd"][1]:
        torch.testing.assert_close(torch.stack(found), torch.stack(results["averaged_gradients"]), rtol=0, atol=1e-6)
    apart = results["local_sgd"][3]
    assert not torch.equal(apart[0][0], apart[1][0])
    assert torch.equal(apart[0][2], apart[1][2])


def test_what_differs_is_told_on_all_ranks(results):
    for sentences in results["refused"]:
        assert "outer_lr of rank 1: 0.7: must equal rank 0's 0.5" in sentences["outer_lr"]
        assert "inner_steps of rank 3: 5: must equal rank 0's 4" in sentences["inner_steps"]
        assert "fragments: 3: must divide inner_steps (4)" in sentences["one"]
        assert "parameter 0: ranks [2] differ from rank 0" in sentences["parameters"]
        assert "optimizer: a Sequential: must be an optimizer of torch" in sentences["optimizer"]


def test_an_exchange_that_is_not_finite_is_refused_on_all_ranks_before_anything_changes(results):
    for sentence, is_unchanged in results["not_finite"]:
        assert "not finite" in sentence
        assert is_unchanged


def test_a_step_that_one_workers_grad_scaler_skips_counts(results):
    parameters = [one for one, _ in results["scaled"]]
    assert [steps for _, steps in results["scaled"]] == [4] * 4
    assert all(torch.equal(parameter, parameters[0]) for parameter in parameters)
    assert parameters[0].isfinite().all()


def test_schedulers_and_closures_reach_the_inner_optimizer(results):
    for lr, given in results["scheduled"]:
        assert lr == 0.5
        assert given > 0
