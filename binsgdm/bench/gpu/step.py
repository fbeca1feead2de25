"""Time the steps of BinSGDM and of 1-bit Adam against fused AdamW on the parameters of real models, and take memory."""

import gc
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from binsgdm.bench.kernels import free_bytes
from binsgdm.bench.model import LR
from binsgdm.bench.record import Bench, Record
from binsgdm.kernels import tables
from binsgdm.optimizers.agreement import BYTES_PER_ELEMENT as GRADIENT_BYTES
from binsgdm.optimizers.agreement import MIB
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import PAPER

Layout = tuple[tuple[int, ...], ...]
"""Shapes of parameters, in the order of the model."""


def bert(*, width: int, layers: int, vocabulary: int = 30522) -> Layout:
    """Return the parameters of BERT with both pre-training heads."""
    wide = 4 * width
    norm: Layout = ((width,), (width,))
    square: Layout = ((width, width), (width,))
    layer: Layout = (*square * 4, *norm, (wide, width), (wide,), (width, wide), (width,), *norm)
    heads: Layout = ((vocabulary,), *square, *norm, (2, width), (2,))
    return ((vocabulary, width), (512, width), (2, width), *norm, *layer * layers, *square, *heads)


def resnet50() -> Layout:
    """Return the parameters of ResNet-50."""

    def convolution(channels: int, made: int, side: int) -> Layout:  # without a bias, the batch normalization behind it
        return ((made, channels, side, side), (made,), (made,))

    layout, channels = convolution(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layout += convolution(channels, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            layout += convolution(channels, 4 * width, 1) if block == 0 else ()
            channels = 4 * width
    return (*layout, (1000, 2048), (1000,))


LAYOUTS: dict[str, Layout] = {
    "resnet50": resnet50(),
    "bert_base": bert(width=768, layers=12),
    "bert_large": bert(width=1024, layers=24),
}
"""25, 110 and 336 million parameters, by the name of a shipped workload."""
REQUESTS = "allocation.all.allocated"  # of torch.cuda.memory_stats: blocks handed out so far
MOST_WAITS = 1
SETTLING_STEPS = 3  # the first makes the state, and is the whole dense stage of 1-bit Adam
BUCKET_MIB = 25  # of `binsgdm.attach`, as of DDP
# Upper bound of what those need that take turns: a parameter, its gradient, state and temporaries of each optimizer.
BYTES_PER_ELEMENT = 94
QUICK = {"bert_tiny": bert(width=64, layers=2, vocabulary=1000)}

Parameters = Sequence[torch.nn.Parameter]


def _in_buckets(parameters: Parameters) -> BinSGDM:
    """Return BinSGDM that works bucket by bucket, as beside other ranks, where a rank alone has one bucket."""
    optimizer = BinSGDM(parameters, lr=LR)
    optimizer.join(Session(bucket_elements=BUCKET_MIB * MIB // GRADIENT_BYTES))
    return optimizer


OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
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
        numel = sum(map(math.prod, layout))
        needed, free = numel * BYTES_PER_ELEMENT, free_bytes(bench.ranks)
        if needed > free:
            bench.record.note(f"{name}: needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: left out")
        else:
            labels: dict[str, Any] = {"num_elements": numel, "num_tensors": len(layout), "layout": name}
            _measure_layout(part, name, _parameters(layout, bench.ranks.device), labels)


def _measure_layout(bench: Bench, name: str, parameters: Parameters, labels: dict[str, Any]) -> None:
    if bench.ranks.device.type == "cuda":
        _check_host_cost(bench.record, name, parameters)
        for optimizer in OPTIMIZERS:
            peak, state = _memory(optimizer, parameters)
            bench.record.add("memory", "peak", [peak], unit="B", optimizer=optimizer, **labels)
            bench.record.add("memory", "state", [state], unit="B", optimizer=optimizer, **labels)
    for of_turn, names in bench.each(TURNS):
        for optimizer, values in of_turn.times({name: OPTIMIZERS[name](parameters).step for name in names}).items():
            bench.record.add("optimizer_step", "step", values, optimizer=optimizer, **labels)
        gc.collect()  # the state of these, before that of the next


def _parameters(layout: Layout, device: torch.device) -> list[torch.nn.Parameter]:
    """Return fp32 parameters, each with a gradient in memory of its own, as backward makes them."""
    torch.manual_seed(0)
    parameters = []
    for shape in layout:
        parameter = torch.nn.Parameter(torch.randn(shape, device=device))
        parameter.grad = torch.randn(shape, device=device)
        parameters.append(parameter)
    return parameters


def _settled(name: str, parameters: Parameters) -> torch.optim.Optimizer:
    """Return an optimizer whose steps are all alike from now on."""
    optimizer = OPTIMIZERS[name](parameters)
    for _ in range(SETTLING_STEPS):
        optimizer.step()
    return optimizer


def _check_host_cost(record: Record, layout: str, parameters: Parameters) -> None:
    """Check that the host waits for the GPU no more than once a step, and makes no table of tensors anew.

    PyTorch warns of every operation of its own for which the host waits. Requests for memory are noted.
    """
    requests = []
    for name in OPTIMIZERS:
        optimizer = _settled(name, parameters)
        tables_before, before = tables.num_made(), torch.cuda.memory_stats().get(REQUESTS, 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        requests.append(f"{name} {torch.cuda.memory_stats().get(REQUESTS, 0) - before}")
        if isinstance(optimizer, BinSGDM):
            made = tables.num_made() - tables_before
            detail = f"{made} for {len(optimizer.session.worker.buckets)} buckets"
            record.check(f"no table anew in a step of {name}, {layout}", passed=not made, detail=detail)
        waits = sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)
        detail = f"{waits} waits; at most {MOST_WAITS}: the finite check"
        record.check(f"waits for the GPU in a step of {name}, {layout}", passed=waits <= MOST_WAITS, detail=detail)
    record.note(f"{layout}: requests for memory in a step: {', '.join(requests)}")


def _memory(name: str, parameters: Parameters) -> tuple[int, int]:
    """Return what an optimizer takes at its peak and keeps between steps, beside parameters and gradients [bytes].

    As PyTorch's allocator hands it out; what the state takes is in the peak.
    """
    gc.collect()
    before = torch.cuda.memory_allocated()
    optimizer = _settled(name, parameters)
    torch.cuda.synchronize()
    state = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, state
