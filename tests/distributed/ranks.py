"""What a gloo rank of the tests does, and the one-process control that it is compared with."""

import io
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import binsgdm
from binsgdm.comm import Member, run_in_lockstep
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Rounding, Scheme
from tests.helpers.launch import rank_of_gloo

WORLD_SIZE, RANKS_PER_NODE = 4, 2
SHAPES = [(5, 3), (7,), (0,), (33, 9), (1,), (64,)]
STEPS = 3
BUCKET_ELEMENTS = 100
LR, WEIGHT_DECAY, SEED = 0.01, 0.1, 7
HIERARCHICAL, FLAT, ONE_BIT = Scheme(), Scheme(topology="flat"), Scheme(intra_node_dtype="one_bit")
BF16, GRADIENTS = Scheme(intra_node_dtype="bf16"), Scheme(average="gradients")
GRADIENTS_BF16 = Scheme(average="gradients", intra_node_dtype="bf16")
ROUNDINGS: tuple[Rounding, ...] = ("random", "shaped")


class Case(NamedTuple):
    scheme: Scheme
    overlap: bool = False
    is_shaped: bool = False
    """With residuals, a gain, and groups of parameters whose averages have decays of their own."""


CASES = [
    Case(HIERARCHICAL),
    Case(BF16, overlap=True),
    Case(ONE_BIT, overlap=True),
    Case(FLAT),
    Case(GRADIENTS),
    Case(HIERARCHICAL, is_shaped=True),
    Case(ONE_BIT, is_shaped=True),
    Case(GRADIENTS_BF16, overlap=True, is_shaped=True),
    Case(FLAT, overlap=True, is_shaped=True),
]
RESUMED = [Case(BF16, overlap=True), Case(ONE_BIT, is_shaped=True), Case(GRADIENTS_BF16, overlap=True, is_shaped=True)]


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients(rank: int, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step + 1)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def groups_of(values: list[torch.nn.Parameter], case: Case) -> list[dict[str, Any]]:
    """Return the parameters with their own settings."""
    if not case.is_shaped:
        return [{"params": values}]
    return [
        {"params": values[:3], "beta_b": 0.99, "nesterov": True},
        {"params": values[3:], "beta": 0.5, "beta_b": 0.8},
    ]


def settings_of(case: Case) -> dict[str, Any]:
    """Return the settings that all groups have alike."""
    settings = {"lr": LR, "weight_decay": WEIGHT_DECAY, "seed": SEED, "beta": 0.95} | binsgdm.PAPER
    return settings | ({"rounding": "shaped", "gain": 1.5} if case.is_shaped else {})


def train(rank: int, case: Case, *, resumes: bool = False, **options: Any) -> list[torch.Tensor]:
    """Return the parameters after a few steps of one rank.

    Args:
        rank: of this process.
        case: how.
        resumes: after the first step a new optimizer goes on from the saved state of the old one.
        options: of `attach`.
    """
    values = parameters()
    optimizer = attached(values, case, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum((v * g).sum() for v, g in zip(values, gradients(rank, step), strict=True)).backward()
        optimizer.step()
        if resumes and step == 0:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            state = torch.load(io.BytesIO(file.getvalue()))
            values = [torch.nn.Parameter(value.detach().clone()) for value in values]
            optimizer = attached(values, case, **options)
            optimizer.load_state_dict(state)
    binsgdm.check_replicas(torch.nn.ParameterList(values), options.get("group"))
    return [value.detach() for value in values]


def attached(values: list[torch.nn.Parameter], case: Case, **options: Any) -> binsgdm.BinSGDM:
    scheme = case.scheme
    optimizer = binsgdm.BinSGDM(groups_of(values, case), **settings_of(case))
    how = {"topology": scheme.topology, "intra_node_dtype": scheme.intra_node_dtype, "average": scheme.average}
    cap_mb = BUCKET_ELEMENTS * 4 / 2**20
    binsgdm.attach(optimizer, overlap=case.overlap, bucket_cap_mb=cap_mb, **how | options)
    return optimizer


def work(rank: int, folder: str) -> None:
    """Train every case as one rank; rank 0 leaves the results in a file."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, node=RANKS_PER_NODE) as results:
        results |= {str(case): train(rank, case) for case in CASES}
        results["resumed"] = {case: train(rank, case, resumes=True) for case in RESUMED}
        results |= {("non_finite", rounding): _one_rank_overflows(rank, rounding) for rounding in ROUNDINGS}


def _one_rank_overflows(rank: int, rounding: Rounding) -> dict[str, Any]:
    """Return what a step does in which only rank 1 has an infinite gradient, and one in which all are finite."""
    value = torch.nn.Parameter(torch.zeros(9))
    optimizer = binsgdm.BinSGDM([value], lr=1.0, rounding=rounding)
    binsgdm.attach(optimizer)
    value.grad = torch.full((9,), torch.inf if rank == 1 else 1.0)
    optimizer.step()
    averages = [torch.empty(9) for _ in range(dist.get_world_size())]
    dist.all_gather(averages, optimizer.state[value]["b"])
    after_overflow = value.detach().clone(), optimizer.param_groups[0]["step"], averages
    value.grad = torch.ones(9)
    optimizer.step()
    return {"overflow": after_overflow, "next": (value.detach().clone(), optimizer.param_groups[0]["step"])}


def control(world_size: int, ranks_per_node: int, case: Case, members: Sequence[int] = ()) -> list[torch.Tensor]:
    """Return the parameters after the same steps, of all ranks in this process.

    Args:
        world_size: how many exchange.
        ranks_per_node: of them.
        case: how.
        members: whose gradients they have; default those of the first ranks.
    """
    values = [parameters() for _ in range(world_size)]
    optimizers = []
    for rank, mine in enumerate(values):
        optimizer = binsgdm.BinSGDM(groups_of(mine, case), kernels="reference", **settings_of(case))
        member = Member(rank=rank, world_size=world_size, ranks_per_node=ranks_per_node)
        optimizer.join(Session(member, case.scheme, BUCKET_ELEMENTS))
        optimizers.append(optimizer)
    for step in range(STEPS):
        for member, mine in zip(members or range(world_size), values, strict=True):
            for value, gradient in zip(mine, gradients(member, step), strict=True):
                value.grad = gradient
        run_in_lockstep([optimizer.step_protocol() for optimizer in optimizers], ranks_per_node)
    return [value.detach() for value in values[0]]


def lose_a_rank(rank: int, folder: str, how: str) -> None:
    """Take a step that rank 1 does not take, since it has gone or hangs; rank 0 leaves what it was told in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    value = torch.nn.Parameter(torch.zeros(9))
    optimizer = binsgdm.BinSGDM([value])
    binsgdm.attach(optimizer, ranks_per_node=1, overlap=how == "overlap", timeout=timedelta(seconds=2))
    if rank == 1:
        if how == "hang":
            time.sleep(6)
        os._exit(0)
    try:
        if how == "check":
            binsgdm.check_replicas(torch.nn.ParameterList([value]))
        value.sum().backward()
        optimizer.step()
    except binsgdm.BinsgdmError as error:
        (Path(folder) / "told.txt").write_text(str(error))
    os._exit(0)
