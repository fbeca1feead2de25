"""The tables of docs/evidence/systems.md that say what the systems are, made from the registry and its docstrings."""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

from binsgdm.exchange import AllGather, AllReduceSum, AllToAll, Message, Protocol, RankContext
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.one_bit_momentum import MomentumResiduals, one_bit_momentum, padded_numel
from binsgdm.systems.base import GradientBucket, Shapes, numel_of
from binsgdm.systems.registry import SYSTEMS, make

LAYOUT: Shapes = ((1024, 256), (1024,), (256, 1024), (256,))
"""The two linear layers of a transformer block of width 256, with their biases."""
WORLD_SIZE = 16


def context() -> RankContext:
    return RankContext(rank=0, world_size=WORLD_SIZE, ranks_per_node=WORLD_SIZE, seed=0, step=1)


def bucket() -> GradientBucket:
    values = torch.randn(numel_of(LAYOUT), generator=torch.Generator().manual_seed(0))
    return GradientBucket(values=values, parameters=tuple(range(len(LAYOUT))), shapes=LAYOUT)


def leaving_bytes(protocol: Protocol) -> float:
    """Return the bytes that leave a rank of 16, all of which send the same; an all-reduce as a ring does it."""
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


def shown_options(name: str) -> str:
    """Return the options with their defaults."""
    return ", ".join(f"{key}={value!r}" for key, value in SYSTEMS[name].options.items()) or "none"


def overview() -> str:
    """Return the overview of all systems, 1-bit Adam included."""
    lines = [
        "| name | system | source | what travels | aggregation | error feedback | options and defaults "
        "| payload, bytes an element | leaves a rank of 16, bytes an element |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in SYSTEMS.items():
        system = make(name, rank=0, world_size=WORLD_SIZE, **entry.usual_options)
        leaves = leaving_bytes(system.mean(bucket(), context())) / numel_of(LAYOUT)
        feedback = "yes" if entry.has_feedback else "no"
        cells = [
            f"`{name}`",
            entry.title,
            entry.source,
            entry.wire_format,
            entry.aggregation,
            feedback,
            shown_options(name),
        ]
        lines.append("| " + " | ".join([*cells, payload(system), f"{leaves:.4f}"]) + " |")
    return "\n".join([*lines, one_bit_adam_row()])


def one_bit_adam_row() -> str:
    """Return the row of 1-bit Adam, flat, after its dense stage."""
    numel = padded_numel(numel_of(LAYOUT), WORLD_SIZE)
    values, residuals = torch.ones(numel), MomentumResiduals.zeros(numel, context(), "flat")
    leaves = leaving_bytes(one_bit_momentum(values, residuals, context())) / numel_of(LAYOUT)
    names = ("dense_steps", "topology")
    given = inspect.signature(OneBitAdam).parameters
    options = ", ".join(f"{name}={given[name].default!r}" for name in names)
    cells = ["`OneBitAdam`", f"{OneBitAdam.title} (an optimizer)", OneBitAdam.source, OneBitAdam.wire_format]
    return (
        "| " + " | ".join([*cells, "all_to_all + all_gather", "yes, two-sided", options, "-", f"{leaves:.4f}"]) + " |"
    )


def differences() -> str:
    """Return for every system what its docstring says that differs from its paper."""
    classes: dict[str, type] = {**SYSTEMS, "OneBitAdam": OneBitAdam}
    pairs = [(name, *_source(kind)) for name, kind in classes.items() if name != "dense"]
    return "\n".join(f"- **`{name}`** {source} *Differs:* {differs}" for name, source, differs in pairs)


def _source(kind: type) -> tuple[str, str]:
    """Return what follows "Source:" and "Differs:" in the docstring of a class, or of its module."""
    for text in (kind.__doc__, sys.modules[kind.__module__].__doc__):
        found = re.search(r"Source:\s+(.*?)\s+Differs:\s+(.*?)(?:\n\n|\Z)", inspect.cleandoc(text or ""), re.DOTALL)
        if found:
            return " ".join(found[1].split()), " ".join(found[2].split())
    raise AssertionError(f"{kind.__name__} does not say what differs from its source")


def filled(page: str, regions: Mapping[str, str]) -> str:
    """Return a page with its regions between <!-- name --> and <!-- end of name --> replaced."""
    for name, text in regions.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise AssertionError(f"the page has no region {name!r}")
        page = before + begin + text + end + after
    return page


def region(page: str, name: str) -> str:
    """Return what is between the marks of a region."""
    return page.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]
