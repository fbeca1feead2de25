"""What each rank does: comparisons with one process, and steps in which one fails."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.bench.ranks import Ranks, joined
from binsgdm.comm import groups as grouping
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.settings import SCHEMES
from binsgdm.parallel.ddp import attach
from tests.gpu import attached, replicas
from tests.helpers import fake_nccl
from tests.helpers.launch import of_all

Compare = Callable[[Ranks], int]
NODES = ("one a node", "half a node", "all in one node")
GROUPS: dict[str, grouping.Groups] = {}
"""Of this rank; made once: a communicator of NCCL takes hundreds of MB and a part of a second."""
TIMEOUT = timedelta(seconds=4 if torch.cuda.is_available() else 2)


def _in_nodes(node: str, compare: Callable[..., int], *args: Any) -> Compare:
    return lambda ranks: compare(ranks, GROUPS[node], *args)


COMPARISONS: dict[str, Compare] = {
    **{
        f"BinSGDM {' '.join((one.topology, one.intra_node_dtype, one.average))}, {node}, {how}": _in_nodes(
            node, replicas.num_wrong_with_binsgdm, one, how == "overlapped"
        )
        for node in NODES
        for one in SCHEMES
        for how in ("in step()", "overlapped")
    },
    **{
        f"1-bit Adam {topology}, {node}": _in_nodes(node, replicas.num_wrong_with_one_bit_adam, topology)
        for node in NODES
        for topology in ("flat", "hierarchical")
    },
    "an infinite gradient on the last stops all": replicas.num_wrong_after_overflow,
    "attach with DDP in step()": partial(attached.num_wrong_attached, overlap=False),
    "attach with DDP overlapped": partial(attached.num_wrong_attached, overlap=True),
    "attach_fsdp": attached.num_wrong_in_fsdp,
    **{
        f"compress_replicas {name}": partial(attached.num_wrong_in_compressed_replicas, system=name, options=options)
        for name, options in attached.REPLICATED.items()
    },
    **{f"LocalSGD {one}": partial(attached.num_wrong_with_local_sgd, wire_dtype=one) for one in ("fp32", "bf16")},
    **{
        f"DiLoCo {name}": partial(attached.num_wrong_with_diloco, given=given)
        for name, given in attached.LOCAL_STEPS.items()
    },
    **{f"{name} in DDP's hook": _in_nodes(NODES[-1], replicas.num_wrong_with_system, name) for name in SYSTEMS},
    **{
        f"compress_gradients {name}": partial(replicas.num_wrong_with_system, groups=None, name=name, topology=topology)
        for name, topology in (("qsgd", "gather"), ("ef_sign_sgd", "scatter_reduce"))
    },
}


def outcome(ranks: Ranks, compare: Compare) -> str:
    """Return what is wrong on any rank, or an empty string."""
    detail, wrong = "", 1
    try:
        wrong = compare(ranks)
    except Exception as error:  # the other comparisons are still worth making
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    anywhere = int(ranks.slowest([float(wrong)])[0])
    return detail or (f"{anywhere} tensors differ" if anywhere else "")


def refuse(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    """Try a step that cannot be exchanged."""
    parameter.grad = torch.ones_like(parameter).to_sparse()
    optimizer.step()


def stay_away(_optimizer: torch.optim.Optimizer, _parameter: torch.Tensor) -> None:
    """Take no step until the others have given up."""
    time.sleep(TIMEOUT.total_seconds() + 1)


def ending(fail: Callable[[torch.optim.Optimizer, torch.Tensor], None], device: torch.device) -> tuple[str, float]:
    """Take two steps, in the second of which the last rank fails; return what was raised, and after how long [s]."""
    parameter = torch.nn.Parameter(torch.zeros(2**16, device=device))
    optimizer = BinSGDM([parameter])
    attach(optimizer, ranks_per_node=dist.get_world_size(), timeout=TIMEOUT)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    start = time.monotonic()
    try:
        if dist.get_rank() == dist.get_world_size() - 1:
            fail(optimizer, parameter)
        else:
            optimizer.step()
    except BinsgdmError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


def compare(rank: int, where: dict[str, str], world_size: int, device: str, folder: str) -> None:
    """Compare everything; rank 0 leaves the outcomes in a file."""
    torch.set_num_threads(1)
    with _as_rank(rank, where, world_size, device) as ranks:
        half = max(1, world_size // 2) if world_size % 2 == 0 else 1
        made = {size: grouping.make(size, device=ranks.device) for size in sorted({1, half, world_size})}
        GROUPS.update(zip(NODES, (made[1], made[half], made[world_size]), strict=True))
        outcomes = {name: outcome(ranks, comparison) for name, comparison in COMPARISONS.items()}
    if rank == 0:
        (Path(folder) / "outcomes.json").write_text(json.dumps(outcomes))


@contextmanager
def _as_rank(rank: int, where: dict[str, str], world_size: int, device: str) -> Iterator[Ranks]:
    os.environ |= where | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
    }  # fmt: skip
    with joined(device=device) as ranks:
        yield ranks


def fail(rank: int, where: dict[str, str], world_size: int, folder: str) -> None:
    """Take steps in which the last rank fails, over NCCL or without cards over what keeps to its rules."""
    fake_nccl.FakeNccl.patience_s = 0.1
    with (
        _as_rank(rank, where, world_size, "cuda")
        if torch.cuda.is_available()
        else fake_nccl.ranks(rank, world_size, f"file://{folder}/store")
    ):
        device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
        # All wait for each other in the group of all ranks, which nobody has aborted.
        endings = [of_all(ending(one, device)) for one in (refuse, stay_away)]
        if rank == 0:
            (Path(folder) / "endings.json").write_text(json.dumps(endings))
        os._exit(0)  # the kernels of NCCL that were aborted are not waited for
