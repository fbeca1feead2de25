"""Time the steps of BinSGDM and of 1-bit Adam against fused AdamW on the parameters of real models, and take memory."""

import gc
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from binsgdm.bench.kernels import free_bytes
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import trial_of
from binsgdm.kernels import tables
from binsgdm.optimizers.agreement import BYTES_PER_ELEMENT as GRADIENT_BYTES
from binsgdm.optimizers.agreement import MIB
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import PAPER

Shape = tuple[int, ...]
Layout = tuple[Shape, ...]


def bert(*, width: int, layers: int, vocabulary: int = 30522, positions: int = 512) -> Layout:
    """Return the parameters of BERT with both pre-training heads, in the order of the model."""
    wide = 4 * width
    norm: Layout = ((width,), (width,))
    square: Layout = ((width, width), (width,))
    layer: Layout = (*square * 4, *norm, (wide, width), (wide,), (width, wide), (width,), *norm)
    heads: Layout = ((vocabulary,), *square, *norm, (2, width), (2,))
    return ((vocabulary, width), (positions, width), (2, width), *norm, *layer * layers, *square, *heads)


def resnet50() -> Layout:
    """Return the parameters of ResNet-50, in the order of the model."""
    return (*_convolution(3, 64, 7), *_bottlenecks(), (1000, 2048), (1000,))


def _bottlenecks() -> Iterator[Shape]:
    given = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from _convolution(given, width, 1)
            yield from _convolution(width, width, 3)
            yield from _convolution(width, 4 * width, 1)
            if block == 0:
                yield from _convolution(given, 4 * width, 1)
            given = 4 * width


def _convolution(given: int, made: int, side: int) -> Layout:
    """Return a convolution without a bias, and the batch normalization behind it."""
    return ((made, given, side, side), (made,), (made,))


LAYOUTS: dict[str, Layout] = {
    "resnet50": resnet50(),
    "bert_base": bert(width=768, layers=12),
    "bert_large": bert(width=1024, layers=24),
}
"""25, 110 and 336 million parameters, by the name of a shipped workload."""


REQUESTS = "allocation.all.allocated"  # of torch.cuda.memory_stats: blocks handed out so far


class CallCost(NamedTuple):
    """How often a call waits for the GPU, and asks PyTorch's allocator for memory."""

    waits: int
    requests: int


def host_cost(call: Callable[[], object]) -> CallCost:
    """Make a call, and count. PyTorch warns of every operation of its own for which the host waits."""
    before = torch.cuda.memory_stats().get(REQUESTS, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    requests = torch.cuda.memory_stats().get(REQUESTS, 0) - before
    return CallCost(sum("synchronizing CUDA operation" in str(one.message) for one in caught), requests)


LR = 1e-6
MOST_WAITS = 1
SETTLING_STEPS = 3  # the first makes the state, and is the whole dense stage of 1-bit Adam
BUCKET_MIB = 25  # of `binsgdm.attach`, as of DDP
# Upper bound of what those need that take turns: a parameter, its gradient, state and temporaries of each optimizer.
BYTES_PER_ELEMENT = 94
QUICK = {"bert_tiny": bert(width=64, layers=2, vocabulary=1000)}

Make = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]


def _in_buckets(parameters: Sequence[torch.nn.Parameter]) -> BinSGDM:
    """Return BinSGDM that works bucket by bucket, as beside other ranks, where a rank alone has one bucket."""
    optimizer = BinSGDM(parameters, lr=LR)
    optimizer.join(Session(bucket_elements=BUCKET_MIB * MIB // GRADIENT_BYTES))
    return optimizer


OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=LR, fused=True),
    "binsgdm": lambda parameters: BinSGDM(parameters, lr=LR),
    "binsgdm_random": lambda parameters: BinSGDM(parameters, lr=LR, **PAPER),
    "one_bit_adam": lambda parameters: OneBitAdam(parameters, lr=LR, dense_steps=1),
    "binsgdm_25mib": _in_buckets,
}
"""By name; 1-bit Adam is measured after its dense stage. All are alone: nothing is sent."""
TURNS = (("adamw", "binsgdm", "binsgdm_random", "one_bit_adam"), ("binsgdm_25mib",))
"""Those that are timed in turns, so that ratios tell much; what is alone does not need memory beside the others."""


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add steps and memory of every optimizer on every layout; a small layout for a quick look.

    A step begins when the GPU has no more to do, so it holds what the host takes to launch it.
    """
    layouts = QUICK if quick else LAYOUTS
    bench = bench.within(seconds / len(layouts) / (len(OPTIMIZERS) + 1))
    if bench.ranks.device.type != "cuda":
        bench.record.note("memory is counted on a GPU alone: left out")
    for part, (name, layout) in bench.each(layouts.items()):
        _measure_layout(part, name, layout)


def _measure_layout(bench: Bench, name: str, layout: Layout) -> None:
    numel = sum(map(math.prod, layout))
    needed, free = numel * BYTES_PER_ELEMENT, free_bytes(bench.ranks)
    if needed > free:
        bench.record.note(f"{name}: needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: left out")
        return
    labels: dict[str, Any] = {"num_elements": numel, "num_tensors": len(layout), "layout": name}
    parameters = _parameters(layout, bench.ranks.device)
    if bench.ranks.device.type == "cuda":
        _check_host_cost(bench.record, name, parameters)
        for optimizer, (peak, state) in _memory(parameters).items():
            bench.record.add("memory", "peak", [peak], unit="B", optimizer=optimizer, **labels)
            bench.record.add("memory", "state", [state], unit="B", optimizer=optimizer, **labels)
    for of_turn, names in bench.each(TURNS):
        for optimizer, rows in _times(of_turn, parameters, names).items():
            bench.record.add("optimizer_step", "step", [row[0] for row in rows], optimizer=optimizer, **labels)
        gc.collect()  # the state of these, before that of the next


def _times(
    bench: Bench, parameters: Sequence[torch.nn.Parameter], names: Sequence[str]
) -> dict[str, list[list[float]]]:
    """Return the times of the steps of some optimizers, in turns."""
    made = {name: OPTIMIZERS[name](parameters) for name in names}
    return bench.interleave({name: trial_of(one.step, bench.ranks.device) for name, one in made.items()})


def _parameters(layout: Layout, device: torch.device) -> list[torch.nn.Parameter]:
    """Return fp32 parameters, each with a gradient in memory of its own, as backward makes them."""
    torch.manual_seed(0)
    parameters = []
    for shape in layout:
        parameter = torch.nn.Parameter(torch.randn(shape, device=device))
        parameter.grad = torch.randn(shape, device=device)
        parameters.append(parameter)
    return parameters


def _check_host_cost(record: Record, layout: str, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Check that the host waits for the GPU no more than once a step, and makes no table of tensors anew.

    Requests for memory are noted.
    """
    requests = []
    for name, make in OPTIMIZERS.items():
        optimizer = make(parameters)
        for _ in range(SETTLING_STEPS):
            optimizer.step()
        made = tables.num_made()
        cost = host_cost(optimizer.step)
        if isinstance(optimizer, BinSGDM):
            count, detail = tables.num_made() - made, f" for {len(optimizer.session.worker.buckets)} buckets"
            record.check(f"no table anew in a step of {name}, {layout}", passed=not count, detail=f"{count}{detail}")
        requests.append(f"{name} {cost.requests}")
        detail = f"{cost.waits} waits; at most {MOST_WAITS}: the finite check"
        record.check(f"waits for the GPU in a step of {name}, {layout}", passed=cost.waits <= MOST_WAITS, detail=detail)
    record.note(f"{layout}: requests for memory in a step: {', '.join(requests)}")


def _memory(parameters: Sequence[torch.nn.Parameter]) -> dict[str, tuple[int, int]]:
    """Return what each optimizer takes at its peak and keeps between steps, beside parameters and gradients [bytes].

    As PyTorch's allocator hands it out; what the state takes is in the peak.
    """
    found = {}
    for name, make in OPTIMIZERS.items():
        gc.collect()
        before = torch.cuda.memory_allocated()
        optimizer = make(parameters)
        for _ in range(SETTLING_STEPS):
            optimizer.step()
        torch.cuda.synchronize()
        state = torch.cuda.memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        torch.cuda.synchronize()
        found[name] = torch.cuda.max_memory_allocated() - before, state
        del optimizer
    return found
