"""Random orders of calls end in replicas that are equal to the bit, or in a sentence on every rank."""

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from tests.helpers.launch import of_all, rank_of_gloo

WORLD_SIZE, ORDERS, CALLS = 2, 6, 8
LIMIT = timedelta(seconds=30)


class Run:
    """A training of one rank, which calls change.

    Args:
        kind: of the optimizer.
        rank: this one.
    """

    def __init__(self, kind: str, rank: int) -> None:
        torch.manual_seed(0)
        self.kind, self.rank, self.step = kind, rank, 0
        self.module = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        self.model: nn.Module = self.module
        if kind not in ("LocalSGD", "DiLoCo"):
            self.model = DistributedDataParallel(self.module)
        self.begin()
        self.saved = self.state()

    def begin(self) -> None:
        """Make the optimizer, and let it join the other ranks."""
        parameters = list(self.module.parameters())
        if self.kind == "OneBitAdam":
            self.optimizer: Any = OneBitAdam(parameters, dense_steps=2)
            attach_one_bit_adam(self.optimizer, self.model, ranks_per_node=1, timeout=LIMIT)
        elif self.kind.startswith("BinSGDM"):
            self.optimizer = binsgdm.BinSGDM(parameters)
            overlap = self.kind.endswith("overlap")
            binsgdm.attach(self.optimizer, self.model, overlap=overlap, ranks_per_node=1, timeout=LIMIT)
        else:
            inner = torch.optim.AdamW(parameters, lr=0.01)
            self.optimizer = getattr(binsgdm, self.kind)(inner, 2, timeout=LIMIT)

    def state(self) -> tuple[Any, Any, int]:
        return copy.deepcopy(self.module.state_dict()), copy.deepcopy(self.optimizer.state_dict()), self.step

    def train(self, change: Callable[[], object] = lambda: None, steps: int = 1) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            generator = torch.Generator().manual_seed(100 * self.rank + self.step)
            self.model(torch.randn(5, 6, generator=generator)).square().mean().backward()
            change()
            self.optimizer.step()
            self.step += 1

    def clip(self) -> None:
        self.train(lambda: nn.utils.clip_grad_norm_(self.module.parameters(), 0.01))

    def mask(self) -> None:
        def zero() -> None:
            self.module[0].weight.grad[2:] = 0

        self.train(zero)

    def forget_gradient(self) -> None:
        self.train(lambda: setattr(self.module[0].weight, "grad", None))

    def save(self) -> None:
        self.saved = self.state()

    def load(self) -> None:
        model, optimizer, self.step = copy.deepcopy(self.saved)
        self.module.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def load_model(self) -> None:
        self.module.load_state_dict(copy.deepcopy(self.saved[0]))

    def load_optimizer(self) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))

    def add_group(self) -> None:
        group = {"params": [nn.Parameter(torch.ones(3))]}
        getattr(self.optimizer, "inner", self.optimizer).add_param_group(group)

    def change_lr(self) -> None:
        self.optimizer.param_groups[0]["lr"] *= 0.5

    def copy_optimizer(self) -> None:
        copy.deepcopy(self.optimizer)

    def clear(self) -> None:
        self.optimizer.state.clear()

    def unscale(self) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(5, 6) * (1 + self.rank)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(self.optimizer)
        scaler.step(self.optimizer)
        scaler.update()
        self.step += 1

    def attach_again(self) -> None:
        if self.kind in ("LocalSGD", "DiLoCo"):
            self.optimizer.close()
        else:
            binsgdm.detach(self.optimizer)
        self.begin()


KINDS = ("BinSGDM", "BinSGDM, overlap", "OneBitAdam", "LocalSGD", "DiLoCo")
TOGETHER = ("train", "save", "attach_again")
"""Calls that exchange, or that mean nothing on one rank alone."""
CALLS_OF_ONE = (
    "clip", "mask", "forget_gradient", "load", "load_model", "load_optimizer", "add_group", "change_lr",
    "copy_optimizer", "clear", "unscale",
)  # fmt: skip
REFUSED_AT_ONCE = ("add_group", "copy_optimizer")
"""Calls that may raise on a rank alone, which goes on as it was."""
STEPS_INSIDE = ("clip", "mask", "forget_gradient", "unscale")


def work(rank: int, folder: str) -> None:
    """Make every order; rank 0 leaves in a file what came of each."""
    with rank_of_gloo(rank, WORLD_SIZE, folder) as results:
        results |= {(kind, seed): ordered(kind, rank, seed) for kind in KINDS for seed in range(ORDERS)}


def ordered(kind: str, rank: int, seed: int) -> tuple[list[str], list[str], list[bool]]:
    """Return the calls, what each rank heard in the end, and whether each holds what the first does."""
    draws = random.Random(f"{kind} {seed}")
    run, calls, sentence = Run(kind, rank), ["train"], ""
    run.train(steps=2)
    try:
        for _ in range(CALLS):
            name = draws.choice(TOGETHER + CALLS_OF_ONE)
            is_of_one = name in CALLS_OF_ONE and draws.random() < 0.5
            calls.append(f"{name} on rank 1" * is_of_one or name)
            if not is_of_one or rank == 1:
                with suppress(binsgdm.BinsgdmError) if name in REFUSED_AT_ONCE else nullcontext():
                    getattr(run, name)()
            elif name in STEPS_INSIDE:
                run.train()
        run.train(steps=2)
        while getattr(run.optimizer, "num_steps", 0) % 2:  # workers are alike after an exchange
            run.train()
    except binsgdm.BinsgdmError as error:
        sentence = str(error)
    first = [parameter.detach().clone() for parameter in run.module.parameters()]
    for one in first:
        dist.broadcast(one, src=0)
    is_same = all(torch.equal(*pair) for pair in zip(first, run.module.parameters(), strict=True))
    return calls, of_all(sentence), of_all(is_same)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_end_alike_or_all_hear_why_not(results, kind):
    for seed in range(ORDERS):
        calls, sentences, are_same = results[kind, seed]
        assert all(are_same) or all(sentences), calls


def test_some_orders_end_alike_and_some_in_a_sentence(results):
    ends = {all(sentences) for _, sentences, _ in results.values()}
    assert ends == {False, True}
