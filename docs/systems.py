"""The tables of docs/reference/systems.md: what the systems are, from both registries and docstrings; needs torch."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from binsgdm import SYSTEMS, BinSGDM, OneBitAdam, attach
from binsgdm.comm import AllGather, AllReduceSum, AllToAll, Message, Protocol, RankContext
from binsgdm.compressors.base import GradientBucket, Shapes, numel_of
from binsgdm.compressors.registry import make
from binsgdm.optimizers.one_bit_momentum import MomentumResiduals, one_bit_momentum, padded_numel
from docs.keys import own_keys
from simnet.strategies import STRATEGIES, Strategy

AUTHORS: dict[str, tuple[str, str]] = {
    "dense": ("all ranks alike, by NCCL's choice of algorithm", "torch's DDP"),
    "one_bit_sgd": ("all ranks alike; each sums a part and quantizes the sum again", "paper (*)"),
    "sign_sgd": ("all ranks alike; a server counts", "paper (*)"),
    "ef_sign_sgd": ("all ranks alike", "paper (*)"),
    "terngrad": ("all ranks alike; a parameter server averages", "wenwei202/terngrad, README"),
    "qsgd": ("all ranks alike; each sends to all", "paper, algorithm 1 (*)"),
    "qsgd_inf": ("as `qsgd`", "paper (*)"),
    "nuqsgd": ("as `qsgd`", "paper (*)"),
    "byte_grad": (
        "averages in the node, then 8 bits between nodes",
        "BaguaSys/bagua, torch_api/algorithms/bytegrad.py: `hierarchical=True`",
    ),
    "marsit": ("all ranks alike round a ring, or a torus of two rings (`torus=True`)", "paper (*)"),
    "power_sgd": ("all ranks alike", "torch's `powerSGD_hook`"),
    "grad_zip": ("all ranks alike", "paper (*)"),
    "atomo": ("all ranks alike; a parameter server averages", "paper (*)"),
    "top_k": ("all ranks alike; a parameter server averages", "paper (*)"),
    "ms_top_k": ("averages in the node, then k values of each rank's piece between nodes", "paper, HiTopKComm (*)"),
    "random_k": ("all ranks alike", "Vogels et al., NeurIPS 2019 (*)"),
    "binsgdm": ("averages in the node, then one bit between nodes", "paper, hierarchical 1-bit all-reduce (*)"),
    "one_bit_adam": ("all ranks alike, as 1-bit LAMB and 0/1 Adam", "DeepSpeed, `compressed_allreduce` (*)"),
    "int8": (
        "all replica groups alike, which are single ranks under its DDP; of several ranks: `hsdp` with `replicas`",
        "torchft, collectives.py and ddp.py",
    ),
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
        return "-"
    num_bytes = counted.num_bytes(LAYOUT)
    return "depends on the draws" if num_bytes is None else f"{num_bytes / numel_of(LAYOUT):.4f}"


def overview() -> str:
    """Return a table of all systems: what each is, what travels, and by which collective."""
    rows = [
        (
            f"`{name}`",
            entry.title,
            entry.source,
            entry.wire_format,
            entry.aggregation,
            ", ".join(f"`{one}`" for one in entry.topologies),
            "yes" if entry.has_feedback else "no",
        )
        for name, entry in SYSTEMS.items()
    ]
    rows += [
        ("`binsgdm`", BinSGDM.title, BinSGDM.source, BinSGDM.wire_format, "all_to_all + all_gather", "-", "no"),
        (
            "`one_bit_adam`",
            OneBitAdam.title,
            OneBitAdam.source,
            OneBitAdam.wire_format,
            "all_to_all + all_gather",
            "-",
            "yes",
        ),
    ]
    return _table(
        ("name", "system", "paper", "what travels", "own collectives", "`topology`, its own first", "error feedback"),
        rows,
    )


def authors_forms() -> str:
    """Return a table of what the authors of all systems run on nodes of several ranks, and the defaults here."""
    defaults: dict[str, str] = {name: entry.default_topology(SEVERAL) for name, entry in SYSTEMS.items()} | {
        "binsgdm": _given(attach, ("topology",))["topology"],
        "one_bit_adam": _given(OneBitAdam, ("topology",))["topology"],
        "int8": STRATEGIES.find("int8")().topology_on(SEVERAL),
    }
    names = {"int8": "`int8`, `fp8` (simulator)"}
    rows = [(names.get(name, f"`{name}`"), *AUTHORS[name], f"`{default}`") for name, default in defaults.items()]
    return _table(("name", "what its authors run", "where that stands", "default here"), rows)


@cache
def bytes_sent() -> str:
    """Return a table of the bytes of all systems but BinSGDM, whose bytes depend on the ranks of a node."""
    rows = []
    for name, entry in SYSTEMS.items():
        system = make(name, rank=0, world_size=WORLD_SIZE, **entry.usual_options)
        leaves = leaving_bytes(system.mean(bucket(), context())) / numel_of(LAYOUT)
        rows.append((f"`{name}`", payload(system), f"{leaves:.4f}"))
    numel = padded_numel(numel_of(LAYOUT), WORLD_SIZE)
    values, residuals = torch.ones(numel), MomentumResiduals.zeros(numel, context(), "flat")
    leaves = leaving_bytes(one_bit_momentum(values, residuals, context())) / numel_of(LAYOUT)
    rows.append(("`one_bit_adam`", "-", f"{leaves:.4f}"))
    return _table(("name", "payload, bytes an element", "leaves a rank of 16, bytes an element"), rows)


def options() -> str:
    """Return a table of the options of all systems: those of the real ones, and those that only the simulator has."""
    real = {name: entry.options for name, entry in SYSTEMS.items()} | {
        "binsgdm": _given(attach, ("topology", "intra_node_dtype", "average", "overlap"))
        | _given(BinSGDM, ("rounding",)),
        "one_bit_adam": _given(OneBitAdam, ("dense_steps", "topology")),
    }
    rows = []
    for name, taken in real.items():
        simulated = STRATEGIES.find("all_reduce" if name == "dense" else name)
        more = [key for key in own_keys(simulated, Strategy) if key not in taken]
        shown = ", ".join(f"`{key}={value!r}`" for key, value in taken.items())
        rows.append((f"`{name}`", shown or "-", ", ".join(f"`{key}`" for key in more) or "-"))
    return _table(("name", "options of `binsgdm`, with defaults", "further keys of the simulator"), rows)


def _given(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the defaults of some parameters of a function."""
    parameters = inspect.signature(function).parameters
    return {name: parameters[name].default for name in names}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join([next(lines), "|---" * len(head) + "|", *lines])


def differences() -> str:
    """Return for every system what its docstring says that differs from its paper."""
    classes: dict[str, type] = {**SYSTEMS, "binsgdm": BinSGDM, "one_bit_adam": OneBitAdam}
    pairs = [(name, *_source(kind)) for name, kind in classes.items() if name != "dense"]
    return "\n".join(f"- **`{name}`** {source} *Differs:* {differs}" for name, source, differs in pairs)


def _source(kind: type) -> tuple[str, str]:
    """Return what follows "Source:" and "Differs:" in the docstring of a class, or of its module."""
    for text in (kind.__doc__, sys.modules[kind.__module__].__doc__):
        found = re.search(r"Source:\s+(.*?)\s+Differs:\s+(.*?)(?:\n\n|\Z)", inspect.cleandoc(text or ""), re.DOTALL)
        if found:
            return " ".join(found[1].split()), " ".join(found[2].split())
    raise AssertionError(f"{kind.__name__} does not say what differs from its source")
