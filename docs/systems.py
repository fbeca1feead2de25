"""The list of systems in docs/reference/python.md, from both registries and docstrings; needs torch."""

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from binsgdm import SYSTEMS, BinSGDM, OneBitAdam, attach
from binsgdm.comm import AllGather, AllReduceSum, AllToAll, Message, Protocol, RankContext
from binsgdm.compressors.base import GradientBucket, Shapes, numel_of
from binsgdm.compressors.registry import make
from binsgdm.optimizers.one_bit_adam_plain import MomentumResiduals, one_bit_momentum, padded_numel

AUTHORS: dict[str, tuple[str, str]] = {
    "dense": ("all ranks alike, by NCCL's choice of algorithm", "torch's DDP"),
    "one_bit_sgd": ("all ranks alike; each sums a part and quantizes the sum again", "paper *"),
    "sign_sgd": ("all ranks alike; a server counts", "paper *"),
    "ef_sign_sgd": ("all ranks alike", "paper *"),
    "terngrad": ("all ranks alike; a parameter server averages", "wenwei202/terngrad, README"),
    "qsgd": ("all ranks alike; each sends to all", "paper, algorithm 1 *"),
    "qsgd_inf": ("as `qsgd`", "paper *"),
    "nuqsgd": ("as `qsgd`", "paper *"),
    "byte_grad": (
        "averages in the node, then 8 bits between nodes",
        "BaguaSys/bagua, torch_api/algorithms/bytegrad.py: `hierarchical=True`",
    ),
    "marsit": ("all ranks alike round a ring, or a torus of two rings (`torus=True`)", "paper *"),
    "power_sgd": ("all ranks alike", "torch's `powerSGD_hook`"),
    "grad_zip": ("all ranks alike", "paper *"),
    "atomo": ("all ranks alike; a parameter server averages", "paper *"),
    "top_k": ("all ranks alike; a parameter server averages", "paper *"),
    "ms_top_k": ("averages in the node, then k values of each rank's piece between nodes", "paper, HiTopKComm *"),
    "random_k": ("all ranks alike", "Vogels et al., NeurIPS 2019 *"),
    "binsgdm": ("averages in the node, then one bit between nodes", "paper, hierarchical 1-bit all-reduce *"),
    "one_bit_adam": ("all ranks alike, as 1-bit LAMB and 0/1 Adam", "DeepSpeed, `compressed_allreduce` *"),
}
"""By system: what its authors run where nodes have several ranks, and where that stands."""
SEVERAL = 8
"""Ranks of a node."""
LAYOUT: Shapes = ((1024, 256), (1024,), (256, 1024), (256,))
"""The two linear layers of a transformer block of width 256, with their biases."""
WORLD_SIZE = 16


def context() -> RankContext:
    """Return the first of 16 ranks."""
    return RankContext(rank=0, world_size=WORLD_SIZE, ranks_per_node=WORLD_SIZE, seed=0, step=1)


def bucket() -> GradientBucket:
    """Return normal numbers as the gradients of `LAYOUT`."""
    values = torch.randn(numel_of(LAYOUT), generator=torch.Generator().manual_seed(0))
    return GradientBucket(values=values, parameters=tuple(range(len(LAYOUT))), shapes=LAYOUT)


def leaving_bytes(protocol: Protocol) -> float:
    """Return the bytes that leave one of 16 ranks, if all send the same and an all-reduce is a ring."""
    answer, total = None, 0.0
    while True:
        try:
            message = protocol.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            return total
        size, num_bytes = WORLD_SIZE, message.sent.numel() * message.sent.element_size()
        shares = {AllGather: size - 1, AllReduceSum: 2 * (size - 1) / size, AllToAll: (size - 1) / size}
        total += shares.get(type(message), 1) * num_bytes
        answer = _echo(message)


def _echo(message: Message) -> torch.Tensor:
    if isinstance(message, AllGather):
        return torch.stack([message.sent] * WORLD_SIZE)
    return message.sent * WORLD_SIZE if isinstance(message, AllReduceSum) else message.sent


def payload(system: Any) -> str:
    """Return the exact bytes an element of a payload by `num_bytes`, or what stands for them."""
    counted = getattr(system, "compressor", system)
    if not hasattr(counted, "num_bytes"):
        return ""
    num_bytes = counted.num_bytes(LAYOUT)
    return "depends on the draws" if num_bytes is None else f"{num_bytes / numel_of(LAYOUT):.4f}"


def every() -> str:
    """Return a list of all systems: what travels, by what, bytes, what its authors run, options, differences."""
    return "\n".join(map(_item, (*SYSTEMS, "binsgdm", "one_bit_adam")))


def _item(name: str) -> str:
    kind: Any = {"binsgdm": BinSGDM, "one_bit_adam": OneBitAdam}.get(name) or SYSTEMS[name]
    sent = getattr(kind, "aggregation", "all_to_all + all_gather")
    fed_back = getattr(kind, "has_feedback", name == "one_bit_adam")
    counted = f" ({shown})" if (shown := _bytes_sent(name)) else ""
    runs, where = AUTHORS[name]
    options = ", ".join(f"`{key}={value!r}`" for key, value in _options(name).items())
    parts = (
        f"{kind.title}, {kind.source}: {kind.wire_format}; {sent}{counted}" + ("; error feedback" if fed_back else ""),
        f"Authors: {runs} [{where}]" + ("; so by default" if _default_topology(name) == "hierarchical" else ""),
        f"Options: {options}" if options else "",
        f"Differs: {_differs(kind).rstrip('.')}" if name != "dense" else "",
    )
    return f"- **`{name}`** {'. '.join(filter(None, parts))}."


def _default_topology(name: str) -> str:
    of_optimizers = {"binsgdm": attach, "one_bit_adam": OneBitAdam}
    if name in of_optimizers:
        return str(_defaults(of_optimizers[name], ("topology",))["topology"])
    return str(SYSTEMS[name].default_topology(SEVERAL))


def _bytes_sent(name: str) -> str:
    """Return the bytes of an element: of the payload, and what leaves a rank of 16; BinSGDM's depend on the node."""
    if name == "binsgdm":
        return ""
    if name == "one_bit_adam":
        numel = padded_numel(numel_of(LAYOUT), WORLD_SIZE)
        values, residuals = torch.ones(numel), MomentumResiduals.zeros(numel, context(), "flat")
        exchange = one_bit_momentum(values, residuals, context(), values > 0)
        return f"{leaving_bytes(exchange) / numel_of(LAYOUT):.4f}"
    system = make(name, rank=0, world_size=WORLD_SIZE, **SYSTEMS[name].usual_options)
    leaves = leaving_bytes(system.mean(bucket(), context())) / numel_of(LAYOUT)
    return ", ".join(filter(None, (payload(system), f"{leaves:.4f}")))


def _options(name: str) -> dict[str, Any]:
    """Return the options of a system with their defaults; keys of the simulator have the same names."""
    if name == "binsgdm":
        of_ddp = _defaults(attach, ("topology", "intra_node_dtype", "average", "overlap"))
        return of_ddp | _defaults(BinSGDM, ("rounding",))
    return _defaults(OneBitAdam, ("dense_steps", "topology")) if name == "one_bit_adam" else dict(SYSTEMS[name].options)


def _defaults(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the defaults of some parameters of a function."""
    parameters = inspect.signature(function).parameters
    return {name: parameters[name].default for name in names}


def _differs(kind: type) -> str:
    """Return the first point of what a system's docstring, or its module's, says that differs from its paper."""
    for text in (kind.__doc__, sys.modules[kind.__module__].__doc__):
        difference = re.search(
            r"Source:\s+.*?\s+Differs:\s+(.*?)(?:;|\.\s+(?=[A-Z])|\.?\n\n|\.?\Z)",
            inspect.cleandoc(text or ""),
            re.DOTALL,
        )
        if difference:
            return " ".join(difference[1].split())
    raise AssertionError(f"{kind.__name__} does not say what differs from its source")
