"""What ranks do over a backend that keeps to NCCL's rules: all that works, and every way to fail."""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.comm import AllGather, AllReduceMax, AllReduceSum, AllToAll, RankContext, SendRecv
from binsgdm.comm import groups as grouping
from binsgdm.comm.transport import Transport
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.kernels import streams
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from tests.distributed import ranks
from tests.helpers import fake_nccl
from tests.helpers.launch import outcome
from tests.helpers.pretend_device import pretended_device

WORLD_SIZE, RANKS_PER_NODE = 4, 2
SHAPES = ((6, 8), (16,))
NUMEL = 64
CPU = torch.device("cpu")
DTYPES = [torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64]
GROUPS = ("world", "intra_node", "inter_node")
BINSGDM = [
    ranks.Case(ranks.HIERARCHICAL, is_shaped=True),
    ranks.Case(ranks.ONE_BIT, overlap=True),
    ranks.Case(ranks.FLAT, overlap=True),
]
OPTIONS: dict[str, dict[str, Any]] = {"top_k": {"ratio": 0.5}, "ms_top_k": {"ratio": 0.5}, "random_k": {"ratio": 0.5}}


def work(rank: int, folder: str) -> None:
    """Do all that ranks exchange; each leaves what it got in a file."""
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS_PER_NODE)
    with fake_nccl.ranks(rank, WORLD_SIZE, f"file://{folder}/store"):
        results: dict[Any, Any] = {("messages", name): messages(rank, name) for name in GROUPS}
        results |= {case: ranks.train(rank, case) for case in BINSGDM}
        results["mesh"] = ranks.train(rank, BINSGDM[0], mesh=init_device_mesh("cpu", (2, 2)))
        results["1-bit Adam"] = one_bit_adam(rank)
        transport = Transport(grouping.make(RANKS_PER_NODE, device=CPU))
        results |= {name: transport.run(protocol_of(name, rank)) for name in SYSTEMS}
        results["in backward"] = in_backward(rank)
        results |= {"calls": fake_nccl.calls, "made in": fake_nccl.made_in}
        torch.save(results, Path(folder) / f"{rank}.pt")
        dist.barrier()


def messages(rank: int, name: Any) -> list[torch.Tensor]:
    """Return the answers to every kind of message, in every dtype that goes over the wire."""
    transport = Transport(grouping.make(RANKS_PER_NODE, device=CPU))
    sent = [torch.full((4, 6), rank).to(dtype) for dtype in DTYPES]
    asked = [kind(group=name, sent=one) for kind in (AllGather, SendRecv) for one in sent]
    size = dist.get_world_size(getattr(transport._groups, name))
    asked += [AllToAll(group=name, sent=one.view(size, -1)) for one in sent]
    asked += [AllReduceSum(group=name, sent=one) for one in sent[-2:]]
    asked += [AllReduceMax(sent=sent[0])]

    def protocol() -> Any:
        answers = []
        for message in asked:
            answer = yield message
            answers.append(answer.to(torch.float64).view(-1).clone())
        return answers

    found: Any = transport.run(protocol())
    return list(found)


def one_bit_adam(rank: int) -> torch.Tensor:
    """Return the parameters after dense steps and compressed ones."""
    value = nn.Parameter(torch.zeros(5, 7))
    optimizer = OneBitAdam([value], dense_steps=2)
    attach_one_bit_adam(optimizer)
    for step in range(4):
        value.grad = torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * rank + step))
        optimizer.step()
    return value.detach()


def protocol_of(name: str, rank: int, world_size: int = WORLD_SIZE, device: str = "cpu") -> Any:
    """Return the exchange of one bucket by a system."""
    system = make(name, rank=rank, world_size=world_size, **OPTIONS.get(name, {}))
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank)).to(device)
    context = RankContext(rank=rank, world_size=world_size, ranks_per_node=world_size // 2, seed=3, step=1)
    return system.mean(GradientBucket(values=values, parameters=(0, 1), shapes=SHAPES), context)


def model() -> DistributedDataParallel:
    """Return a model whose own collectives are not the fake's: DDP calls them from C++."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return DistributedDataParallel(module, process_group=dist.new_group(backend="gloo"), bucket_cap_mb=0.0001)


def backward(module: nn.Module, rank: int) -> None:
    module(torch.randn(5, 6, generator=torch.Generator().manual_seed(rank))).square().mean().backward()


def in_backward(rank: int) -> list[torch.Tensor]:
    """Return the gradients that a system has averaged in DDP's backward."""
    module = model()
    compress_gradients(module, "qsgd", coding="elias")
    backward(module, rank)
    return [parameter.grad.clone() for parameter in module.parameters()]  # type: ignore[union-attr]


CARDS = 2


def on_cards(rank: int, folder: str) -> None:
    """Attach and step on pretended GPUs, none of which but the first is the current one; leave the parameters."""
    streams.of = lambda _: streams.CpuStreams()  # type: ignore[assignment]
    with fake_nccl.ranks(rank, CARDS, f"file://{folder}/store", has_card=True), pretended_device() as gpu:
        gpu.current = 0
        found = {}
        for kind, attach in ((binsgdm.BinSGDM, binsgdm.attach), (OneBitAdam, attach_one_bit_adam)):
            value = nn.Parameter(torch.zeros(5, 7, device=f"cuda:{rank}"))
            options: Any = {"kernels": "reference"} if kind is binsgdm.BinSGDM else {"dense_steps": 1}
            optimizer: Any = kind([value], **options)
            attach(optimizer, ranks_per_node=1)
            for step in range(3):
                generator = torch.Generator().manual_seed(10 * rank + step)
                value.grad = torch.randn(5, 7, generator=generator).to(value.device)
                optimizer.step()
            gpu.reset()
            binsgdm.check_replicas(nn.ParameterList([value] * 5))
            num_reads = sum(gpu.reads.values())
            found[kind.__name__] = value.detach().cpu(), num_reads
        transport = Transport(grouping.make(1, device=torch.device(f"cuda:{rank}")))
        for name in SYSTEMS:
            mean = transport.run(protocol_of(name, rank, CARDS, f"cuda:{rank}"))
            found[name] = mean.cpu()
        torch.save(found, Path(folder) / f"{rank}.pt")
        dist.barrier()


FAILING = 3
"""Ranks of the world in which one fails."""
WRONG = 1
TIMEOUT, SHORT_TIMEOUT = timedelta(seconds=120), timedelta(seconds=3)


def fail(rank: int, folder: str) -> None:
    """Let one rank fail in every way, the last of which is to be gone; each other leaves what it was told."""
    fake_nccl.FakeNccl.patience_s = 0.1
    with fake_nccl.ranks(rank, FAILING, f"file://{folder}/store"):
        told = {name: outcome(partial(case, rank == WRONG)) for name, case in CASES.items()}
        if rank == WRONG:
            torch.save(told, Path(folder) / f"{rank}.pt")
        steps = {name: prepare() for name, prepare in LOST.items()}
        if rank == WRONG:
            os._exit(0)
        told |= {name: outcome(step) for name, step in steps.items()}
        torch.save(told, Path(folder) / f"{rank}.pt")
        os._exit(0)  # threads of the fake still wait for the rank that is gone


def _attached(timeout: timedelta = TIMEOUT, **options: Any) -> tuple[nn.Parameter, binsgdm.BinSGDM]:
    value = nn.Parameter(torch.zeros(40))
    optimizer = binsgdm.BinSGDM([value])
    binsgdm.attach(optimizer, ranks_per_node=1, timeout=timeout, **options)
    value.grad = torch.ones(40)
    optimizer.step()
    value.grad = torch.ones(40)
    return value, optimizer


def out_of_memory(is_wrong: bool) -> None:
    _, optimizer = _attached()
    if is_wrong:
        transport: Any = optimizer.member.run.__self__  # type: ignore[union-attr]

        def allocate(_: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        transport._receive_buffer = allocate
    optimizer.step()


def overlapped(is_wrong: bool) -> None:
    value, optimizer = _attached(overlap=True)
    value.grad = None
    value.sum().backward()
    if is_wrong:
        value.grad = torch.ones(40).to_sparse()
    optimizer.step()


def hook(is_wrong: bool) -> None:
    module = model()
    exchange = compress_gradients(module, "atomo", timeout=TIMEOUT)
    mean = exchange.system.mean

    def failing(bucket: Any, context: Any) -> Any:
        if is_wrong and context.step == 2:
            raise torch.linalg.LinAlgError("svd did not converge")
        return mean(bucket, context)

    exchange.system.mean = failing  # type: ignore[method-assign]
    backward(module, 0)
    backward(module, 0)


def attached() -> Callable[[], object]:
    """Return the step of an optimizer that is attached."""
    return _attached(SHORT_TIMEOUT)[1].step


def wrapped(kind: Any) -> Callable[[], object]:
    """Return the step of an optimizer that exchanges parameters."""
    value = nn.Parameter(torch.zeros(40))
    optimizer = kind(torch.optim.SGD([value], lr=0.1), inner_steps=1, timeout=SHORT_TIMEOUT)
    value.grad = torch.ones(40)
    optimizer.step()
    return optimizer.step  # type: ignore[no-any-return]


LOST: dict[str, Callable[[], Callable[[], object]]] = {
    "BinSGDM": attached,
    "LocalSGD": partial(wrapped, binsgdm.LocalSGD),
    "DiLoCo": partial(wrapped, binsgdm.DiLoCo),
}
"""What the others are told by when a rank is lost."""


CASES = {
    "out of memory": out_of_memory,
    "overlapped": overlapped,
    "hook": hook,
}
