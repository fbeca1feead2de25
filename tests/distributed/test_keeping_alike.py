"""No order of calls lets replicas end apart in silence: all ranks raise a sentence, or hold the same."""

import copy
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from tests.distributed.sharded import LOCAL, NODES, shard
from tests.distributed.small_model import RANKS_PER_NODE, WORLD_SIZE, loss, model
from tests.helpers.launch import heard, of_all, rank_of_gloo

WRONG = 1
LIMIT = timedelta(seconds=20)
"""Of the collectives: far below what a launch may take."""
Change = Callable[[nn.Module], object]


def work(rank: int, folder: str) -> None:
    """Do every case; rank 0 leaves what all ranks heard in a file."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, node=RANKS_PER_NODE) as results:
        cases = {**changed_gradients(rank), **changed(rank), **sharded(rank)}
        results |= {name: of_all(heard(case)) for name, case in cases.items()}
        results["unscaled"] = of_all([scaled(rank, of_inner=one) for one in (False, True)])
        results["warned"] = of_all(averaged_anyway(rank))


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).clone()


def changed_gradients(rank: int) -> dict[str, Callable[[], object]]:  # noqa: C901 - a function a case
    """Return by name steps of BinSGDM with overlap whose gradients change after backward."""

    def rows(module: nn.Module) -> None:
        gradient = module[2].weight.grad
        gradient[3:] *= 0.5

    def forget(module: nn.Module) -> None:
        module[2].weight.grad = None

    def replace(module: nn.Module) -> None:
        module[2].weight.grad = module[2].weight.grad.clone()

    def halve_data(module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.grad.data.mul_(0.5)

    def step(change: Change, *, late: Change | None = None) -> None:
        module = model()
        optimizer = binsgdm.BinSGDM(module.parameters())
        ddp = DistributedDataParallel(module)
        binsgdm.attach(optimizer, ddp, overlap=True, timeout=LIMIT)
        for number in range(2):
            optimizer.zero_grad()
            loss(ddp, rank, number).backward()
            optimizer.step()
        if late is not None:
            late(module)
        before = flat(module)
        optimizer.zero_grad()
        loss(ddp, rank, 2).backward()
        change(module)
        try:
            optimizer.step()
        finally:
            assert torch.equal(flat(module), before)

    def halve(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(0.5)

    def hook_later(module: nn.Module) -> None:
        module[2].weight.register_post_accumulate_grad_hook(halve)

    return {
        "gradients, rows on one rank": lambda: step(rows if rank == WRONG else lambda _: None),
        "gradients, forgotten": lambda: step(forget),
        "gradients, replaced": lambda: step(replace),
        "gradients, data": lambda: step(halve_data),
        "gradients, a later hook": lambda: step(lambda _: None, late=hook_later),
    }


def trained(
    optimizer: torch.optim.Optimizer, module: nn.Module, rank: int, steps: range, trained: nn.Module | None = None
) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss(trained or module, rank, step).backward()
        optimizer.step()


Make = Callable[[nn.Module], Any]
"""Returns an optimizer that exchanges."""


def attached(kind: Any, attach: Callable[..., Any], **settings: Any) -> Make:
    def make(module: nn.Module) -> Any:
        optimizer = kind(module.parameters(), **settings)
        attach(optimizer, timeout=LIMIT)
        return optimizer

    return make


def wrapping(kind: Any, inner: Any = torch.optim.SGD, **settings: Any) -> Make:
    return lambda module: kind(inner(module.parameters(), lr=0.05), 2, timeout=LIMIT, **settings)


BIN_SGDM, ONE_BIT = attached(binsgdm.BinSGDM, binsgdm.attach), attached(OneBitAdam, attach_one_bit_adam)
DILOCO, LOCAL_SGD = wrapping(binsgdm.DiLoCo), wrapping(binsgdm.LocalSGD)
ADAM = torch.optim.Adam
OF_ADAM = wrapping(binsgdm.DiLoCo, ADAM, exchange="one_bit")


def changed(rank: int) -> dict[str, Callable[[], object]]:  # noqa: C901 - a function a change
    """Return by name trainings amid which something is changed, loaded or done behind a wrapper, on one rank or all."""

    def case(
        make: Make, change: Callable[[Any, nn.Module], object], first: int = 2, then: range = range(2)
    ) -> Callable[[], object]:
        def run() -> None:
            module = model()
            optimizer = make(module)
            trained(optimizer, module, rank, range(first))
            change(optimizer, module)
            trained(optimizer, module, rank, then)

        return run

    def on_one(change: Callable[[Any, nn.Module], object]) -> Callable[[Any, nn.Module], object]:
        return change if rank == WRONG else nothing

    def nothing(_: Any, __: nn.Module) -> None: ...

    def double(_: Any, module: nn.Module) -> None:
        module.load_state_dict({name: one * 2 for name, one in module.state_dict().items()})

    def same(_: Any, module: nn.Module) -> None:
        module.load_state_dict(module.state_dict())

    def clear(optimizer: Any, _: nn.Module) -> None:
        optimizer.state.clear()

    def double_momentum(optimizer: Any, _: nn.Module) -> None:
        state = optimizer.state_dict()
        state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"] * 2
        optimizer.load_state_dict(state)

    def add_group(optimizer: Any, _: nn.Module) -> None:
        optimizer.inner.add_param_group({"params": [nn.Parameter(torch.ones(3))]})

    def go_back(*, only: bool) -> Callable[[Any, nn.Module], object]:
        def change(optimizer: Any, module: nn.Module) -> None:
            state, parameters = optimizer.state_dict(), flat(module)
            trained(optimizer, module, rank, range(3, 5))
            if rank == WRONG or not only:
                optimizer.load_state_dict(state)
                nn.utils.vector_to_parameters(parameters, module.parameters())

        return change

    def load(damage: Callable[[dict[str, Any]], object]) -> Callable[[Any, nn.Module], object]:
        def change(optimizer: Any, _: nn.Module) -> None:
            state = optimizer.state_dict()
            if rank == WRONG:
                damage(state)
            optimizer.load_state_dict(state)

        return change

    def spoil_outer(state: dict[str, Any]) -> None:
        state["outer"]["fragments"][0]["outer"][0] = torch.nan

    def change_momentum(state: dict[str, Any]) -> None:
        state["outer"]["fragments"][0]["momentum"][0] += 1.0

    def empty(state: dict[str, Any]) -> None:
        state["inner"]["state"] = {}

    of_nodes = wrapping(binsgdm.DiLoCo, workers="node", ranks_per_worker=RANKS_PER_NODE)
    behind = {"first": 1, "then": range(1, 4)}
    return {
        "LocalSGD, one loads an older state": case(wrapping(binsgdm.LocalSGD, ADAM), go_back(only=True), 3, range(4)),
        "DiLoCo, all load": case(wrapping(binsgdm.DiLoCo, ADAM), go_back(only=False), 3, range(4)),
        "DiLoCo, one loads a state of the same step": case(OF_ADAM, load(change_momentum)),
        "DiLoCo, NaN": case(OF_ADAM, load(spoil_outer)),
        "DiLoCo, no inner state": case(OF_ADAM, load(empty)),
        "1-bit Adam, momentum": case(attached(OneBitAdam, attach_one_bit_adam, dense_steps=2), on_one(double_momentum)),
        "BinSGDM, weights": case(BIN_SGDM, on_one(double)),
        "1-bit Adam, weights": case(ONE_BIT, on_one(double)),
        "BinSGDM, cleared": case(BIN_SGDM, on_one(clear), 1, range(1)),
        "DiLoCo, weights": case(DILOCO, double, **behind),
        "DiLoCo, weights before the first step": case(DILOCO, double, 0),
        "DiLoCo, the same weights": case(DILOCO, same, 0),
        "LocalSGD, weights": case(LOCAL_SGD, double, **behind),
        "LocalSGD, a group": case(LOCAL_SGD, add_group, **behind),
        "DiLoCo, a step of the inner optimizer": case(DILOCO, lambda one, _: one.inner.step(), **behind),
        "DiLoCo, a copy": case(DILOCO, lambda one, _: copy.deepcopy(one), **behind),
        "DiLoCo, nodes without DDP": case(of_nodes, nothing, 0),
    }


def scaled(rank: int, *, of_inner: bool) -> torch.Tensor:
    """Return parameters after steps whose gradients a GradScaler unscales, by the wrapper or by the inner optimizer."""
    module = model()
    optimizer = binsgdm.LocalSGD(torch.optim.SGD(module.parameters(), lr=0.05), 2, timeout=LIMIT)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(loss(module, rank, step)).backward()
        scaler.unscale_(optimizer.inner if of_inner else optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return flat(module)


def averaged_anyway(rank: int) -> list[str]:
    """Return the warnings of local SGD around a model whose gradients DDP averages over all ranks."""
    module = model()
    optimizer = binsgdm.LocalSGD(torch.optim.SGD(module.parameters(), lr=0.05), 2, timeout=LIMIT)
    ddp = DistributedDataParallel(module)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trained(optimizer, module, rank, range(4), ddp)
    return [str(one.message) for one in found if "LocalSGD" in str(one.message)]


def sharded(rank: int) -> dict[str, Callable[[], object]]:  # noqa: C901 - a function a case
    """Return by name what is done to copies of a model that FSDP2 shards."""
    mesh = init_device_mesh("cpu", (NODES, LOCAL), mesh_dim_names=("node", "local"))
    is_first_node = rank < LOCAL

    def made() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        module = shard(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), mesh["local"])
        return module, torch.optim.SGD(module.parameters(), lr=0.1)

    def step(module: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        loss(module, rank, 0).backward()
        optimizer.step()

    def replicas(between: Callable[[nn.Module, Any, Any], object], *, steps: int = 2) -> None:
        module, optimizer = made()
        exchange = binsgdm.compress_replicas(optimizer, mesh, "qsgd", timeout=LIMIT)
        step(module, optimizer)
        between(module, optimizer, exchange)
        for _ in range(steps):
            step(module, optimizer)

    def change_lr(_: nn.Module, optimizer: Any, __: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 if is_first_node else 0.2

    def add(_: nn.Module, optimizer: Any, __: Any) -> None:
        if rank == WRONG:
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})

    def another_steps(module: nn.Module, _: Any, __: Any) -> None:
        torch.optim.SGD(module.parameters(), lr=0.1).step()

    def older(_: nn.Module, __: Any, exchange: Any) -> None:
        if rank == WRONG:
            exchange.load_state_dict(exchange.state_dict() | {"step": 1})

    def weights(module: nn.Module, _: Any, exchange: Any) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.to_local().mul_(1.0 if is_first_node else 2.0)
        exchange.load_state_dict(exchange.state_dict())

    def attached() -> None:
        module, _ = made()
        optimizer = binsgdm.BinSGDM(module.parameters())
        binsgdm.attach_fsdp(optimizer, mesh, timeout=LIMIT)
        step(module, optimizer)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.to_local().mul_(1.0 if is_first_node else 2.0)
        optimizer.load_state_dict(optimizer.state_dict())
        step(module, optimizer)

    def stopped() -> None:
        module, _ = made()
        optimizer = binsgdm.BinSGDM(module.parameters())
        binsgdm.attach_fsdp(optimizer, mesh, timeout=timedelta(seconds=8))
        loss(module, rank, 0).backward()
        if rank != WRONG:
            optimizer.step()

    return {
        "attach_fsdp, a rank stops": stopped,
        "replicas, lr": lambda: replicas(change_lr),
        "replicas, a group": lambda: replicas(add),
        "replicas, another optimizer": lambda: replicas(another_steps),
        "replicas, a step": lambda: replicas(older),
        "replicas, weights": lambda: replicas(weights),
        "replicas, nothing": lambda: replicas(lambda *_: None),
        "attach_fsdp, weights": attached,
    }


assert WORLD_SIZE == NODES * LOCAL

pytestmark = pytest.mark.slow


CHANGED = "BinSGDM: a gradient has changed since backward, with overlap=True"
BEHIND = ": parameters have changed since the last step, and in no step of this optimizer"
ALL = {
    "gradients, forgotten": CHANGED,
    "gradients, replaced": CHANGED,
    "gradients, data": CHANGED,
    "gradients, a later hook": "BinSGDM: parameter 2: a hook that was registered after attach",
    "LocalSGD, one loads an older state": "step of rank 1: 4: must equal 6 of rank 0",
    "DiLoCo, one loads a state of the same step": "outer parameters and momentum of rank 1: must equal that of rank 0",
    "DiLoCo, all load": "",
    "1-bit Adam, momentum": "OneBitAdam: step 3: exp_avg of parameter 0 of rank 1: must equal that of rank 0",
    "BinSGDM, weights": "BinSGDM: step 3: parameter 0 of rank 1: must equal that of rank 0",
    "1-bit Adam, weights": "OneBitAdam: step 3: values of parameter 0 of rank 1: must equal that of rank 0",
    "DiLoCo, weights": "DiLoCo" + BEHIND,
    "DiLoCo, weights before the first step": "DiLoCo" + BEHIND,
    "DiLoCo, the same weights": "",
    "LocalSGD, weights": "LocalSGD" + BEHIND,
    "LocalSGD, a group": "LocalSGD: parameters of the inner optimizer have changed",
    "DiLoCo, a step of the inner optimizer": "DiLoCo: a step of the inner optimizer by itself",
    "DiLoCo, a copy": "DiLoCo: cannot be copied",
    "DiLoCo, nodes without DDP": "DiLoCo: step 2: parameters of rank 1: must equal that of rank 0",
    "replicas, lr": "compress_replicas: lr of group 0 of rank 2: 0.2: must equal rank 0's 0.1",
    "replicas, another optimizer": "compress_replicas: step() of a SGD on parameters that are exchanged",
    "replicas, a step": "compress_replicas: step of rank 1: 1: must equal rank 0's 2",
    "replicas, weights": "compress_replicas: step 2: shards of rank 2: must equal that of rank 0",
    "replicas, nothing": "",
    "attach_fsdp, weights": "BinSGDM: step 2: parameter 0 of rank 2: must equal that of rank 0",
}
"""By case, what every rank hears."""
ONE = {
    "gradients, rows on one rank": CHANGED,
    "DiLoCo, NaN": "DiLoCo: outer of the state: values that are not finite",
    "DiLoCo, no inner state": "DiLoCo: load_state_dict: an inner state of other than 6 parameters",
    "BinSGDM, cleared": "BinSGDM: parameter 0: a state that was emptied or replaced",
    "replicas, a group": "compress_replicas: parameters of the optimizer have changed",
}
"""By case, what the rank hears that alone does something wrong; the others hear that it does."""


@pytest.mark.parametrize("case", ALL)
def test_all_ranks_hear_the_same_sentence_or_none(results, case):
    for text in results[case]:
        assert (ALL[case] in text) if ALL[case] else (text == "")


@pytest.mark.parametrize("case", ONE)
def test_the_others_hear_what_one_rank_alone_does_wrong(results, case):
    for rank, text in enumerate(results[case]):
        assert text.startswith(ONE[case]) if rank == WRONG else text


def test_a_rank_that_takes_no_step_is_noticed_after_the_timeout_that_was_given(results):
    for rank, text in enumerate(results["attach_fsdp, a rank stops"]):
        assert ("rank 1 is gone, or did not take this step" in text) == (rank != WRONG)


def test_gradients_that_the_inner_optimizer_has_unscaled_are_divided_once(results):
    for by_wrapper, by_inner in results["unscaled"]:
        assert torch.equal(by_wrapper, by_inner)


def test_local_sgd_around_a_model_that_ddp_averages_anyway_is_warned_of_once(results):
    for found in results["warned"]:
        assert len(found) == 1
        assert "all workers have the same parameters before an exchange" in found[0]
