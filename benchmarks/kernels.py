"""`python -m benchmarks.kernels`: BinSGDM's local work of a step against a fused AdamW on the same parameters.

First whole `optimizer.step()` calls with both roundings, on tensors of equal size and on those of real models; then
kernel by kernel. On a machine that others use, `--threads 1 --clock cpu` counts only what this process has had.

All contestants take turns in one run, in an order that is shuffled for every turn and with a pause before each: torch's
threads spin for a while after their work, which costs whoever comes next up to 2 ms. So a call finds the caches full of
what others did; "in a row" are five calls without a pause, of which the first is not kept. A ratio compares best with
best and median with median.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from binsgdm.kernels import NAMES, Kernels, select, zeros
from binsgdm.kernels.random import Key
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.settings import PAPER

NUM_PARTS = 4
PAUSE_S = 0.02
KEY = Key(seed=1, step=1)
# Bytes that have to move per fp32 parameter: each array once for a read, once more for a write.
ADAMW_BYTES = 28.0
BYTES = {
    "update_quantize_pack_": 4 + 8 + 8 + 1 / 8,
    "the same, momenta of torch.zeros": 4 + 8 + 8 + 1 / 8,
    "unpack_apply_": 8 + 1 / 8,
    "update_shape_pack_": 4 + 8 + 8 + 4 + 1 / 8,
    "update_": 4 + 8 + 8 + 4,
    "quantize_pack": 4 + 1 / 8,
    "shape_pack_": 4 + 4 + 1 / 8,
    f"merge, {NUM_PARTS} vectors": (NUM_PARTS + 1) / 8,
    f"merge_shaped_, {NUM_PARTS} vectors": (NUM_PARTS + 1) / 8 + 4,
    f"mean_, {NUM_PARTS} vectors": 4 * (NUM_PARTS + 1) / NUM_PARTS,  # of vectors that are a quarter as long
}
STATE_BYTES = 8
IN_A_ROW = 5
MODELS = {"1 M in 8": [125_000] * 8, "25 M in 160": [156_250] * 160, "100 M in 160": [625_000] * 160}
"""Elements of each tensor."""
_clock: Callable[[], float] = time.perf_counter


def adamw(numel: int, device: str) -> Callable[[], object]:
    """Return a step of the baseline."""
    parameter = torch.nn.Parameter(torch.randn(numel, device=device))
    parameter.grad = torch.randn(numel, device=device)
    return torch.optim.AdamW([parameter], fused=True).step


def contestants(kernels: Kernels, numel: int, device: str, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Return every kernel as a call on tensors of its own."""
    x, grad = (torch.randn(numel, device=device).to(dtype) for _ in range(2))
    m, b, u = (zeros(numel, device) for _ in range(3))
    usual_m, usual_b = (torch.zeros(numel, device=device) for _ in range(2))
    packed = torch.zeros(NUM_PARTS, -(-numel // 8), dtype=torch.uint8, device=device)
    out, residual, merge_residual = packed[0].clone(), *torch.zeros(2, numel, dtype=torch.int16, device=device)
    parts = torch.randn(NUM_PARTS, numel // NUM_PARTS, device=device)
    mean = torch.empty(parts.shape[1], device=device)
    calls: dict[str, Callable[[], object]] = {
        "update_quantize_pack_": lambda: kernels.update_quantize_pack_(
            grad, m, b, beta=0.95, beta_b=0.95, key=KEY, start=0, out=out
        ),
        "the same, momenta of torch.zeros": lambda: kernels.update_quantize_pack_(
            grad, usual_m, usual_b, beta=0.95, beta_b=0.95, key=KEY, start=0, out=out
        ),
        "unpack_apply_": lambda: kernels.unpack_apply_(x, out, lr=1e-3, weight_decay=0.01),
        "update_shape_pack_": lambda: kernels.update_shape_pack_(
            grad, m, b, residual, beta=0.95, beta_b=0.95, gain=2.0, out=out
        ),
        "update_": lambda: kernels.update_(grad, m, b, beta=0.95, beta_b=0.95, out_u=u),
        "quantize_pack": lambda: kernels.quantize_pack(u, key=KEY, start=0, out=out),
        "shape_pack_": lambda: kernels.shape_pack_(u, residual, gain=2.0, out=out),
        f"merge, {NUM_PARTS} vectors": lambda: kernels.merge(packed, numel=numel, key=KEY, start=0, out=out),
        f"merge_shaped_, {NUM_PARTS} vectors": lambda: kernels.merge_shaped_(
            packed, merge_residual, numel=numel, out=out
        ),
        f"mean_, {NUM_PARTS} vectors": lambda: kernels.mean_(parts, mean),
    }
    return calls


def timed(call: Callable[[], object], device: str) -> float:
    """Return what one call takes [s]."""
    start = _clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return _clock() - start


def measure(
    calls: dict[str, Callable[[], object]], repeat: int, device: str, in_a_row: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of every run by kernel, all kernels in turn; the first two turns compile and are not kept."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for _ in range(repeat + 2):
        for name in shuffled.sample(list(calls), len(calls)):
            time.sleep(PAUSE_S)
            samples = [timed(calls[name], device) for _ in range(in_a_row)]
            times[name].extend(samples[-max(1, in_a_row - 1) :])
    return {name: samples[2 * max(1, in_a_row - 1) :] for name, samples in times.items()}


def ratios(times: dict[str, list[float]], names: tuple[str, ...]) -> str:
    """Return the time of some kernels together over that of AdamW: "best / median"."""
    best = sum(min(times[name]) for name in names) / min(times["AdamW"])
    median = sum(statistics.median(times[name]) for name in names) / statistics.median(times["AdamW"])
    return f"{best:.2f} / {median:.2f}"


def rows(times: dict[str, list[float]], numel: int) -> list[tuple[str, ...]]:
    """Return the table."""
    table: list[tuple[str, ...]] = []
    moved = {"AdamW": ADAMW_BYTES, **BYTES}
    for name, samples in times.items():
        best, median = min(samples), statistics.median(samples)
        rate = moved[name] * numel / best / 1e9
        table.append(
            (
                name,
                f"{best * 1e3:.2f}",
                f"{median * 1e3:.2f}",
                ratios(times, (name,)),
                f"{moved[name]:.2f}",
                f"{rate:.1f}",
            )
        )
    for label, names in {
        "one-pass step": ("update_quantize_pack_", "unpack_apply_"),
        "one-pass step, shaped": ("update_shape_pack_", "unpack_apply_"),
        "one-pass step, momenta of torch.zeros": ("the same, momenta of torch.zeros", "unpack_apply_"),
        "split step": ("update_", "quantize_pack", "unpack_apply_"),
    }.items():
        best, median = (sum(f(times[name]) for name in names) for f in (min, statistics.median))
        traffic = sum(BYTES[name] for name in names)
        cells = (f"{best * 1e3:.2f}", f"{median * 1e3:.2f}", ratios(times, names), f"{traffic:.2f}", "")
        table.append((f"**{label}**", *cells))
    return table


def contest(numels: list[int], device: str) -> dict[str, Callable[[], object]]:
    """Return a step of AdamW, and of BinSGDM with each rounding, on parameters of its own, with weight decay."""

    def parameters() -> list[torch.nn.Parameter]:
        made = [torch.nn.Parameter(torch.randn(numel, device=device)) for numel in numels]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return made

    return {
        "AdamW": torch.optim.AdamW(parameters(), fused=True).step,
        **{
            name: BinSGDM(parameters(), weight_decay=0.01, **settings).step
            for name, settings in {"random": PAPER, "shaped": {}}.items()
        },
    }


def steps(repeat: int, device: str) -> str:
    """Return a table of whole steps on one rank: update, quantize, pack, unpack, apply, and all Python around."""
    models: dict[str, list[int]] = {"25 M in 1": [25_000_000], **MODELS}
    for name in ("resnet50", "bert_base"):
        path = Path(__file__).parents[1] / "scenarios" / "workloads" / "gradients" / f"{name}.json"
        models[name] = [math.prod(shape) for _, shape, *_ in json.loads(path.read_text())["tensors"]]
    lines = [
        "| optimizer.step() | AdamW [ms], best / median | random, of AdamW | shaped, of AdamW |",
        "|---|---|---|---|",
    ]
    for name, numels in models.items():
        for in_a_row in (1, IN_A_ROW) if sum(numels) < 10**7 else (1,):
            times = measure(contest(numels, device), repeat, device, in_a_row)
            best, median = (f(times["AdamW"]) * 1e3 for f in (min, statistics.median))
            title = f"{name}, {in_a_row} in a row" if in_a_row > 1 else name
            cells = [ratios(times, (rounding,)) for rounding in ("random", "shaped")]
            lines.append(f"| {title} | {best:.2f} / {median:.2f} | {cells[0]} | **{cells[1]}** |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--kernels", choices=NAMES, help="default: the fastest for the device")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: of all threads of the process")
    options: Any = parser.parse_args()
    global _clock  # noqa: PLW0603 - of the whole program
    _clock = time.process_time if options.clock == "cpu" else time.perf_counter
    torch.set_num_threads(options.threads)
    kernels = select(options.kernels, options.device)
    calls = contestants(kernels, options.numel, options.device, getattr(torch, options.dtype))
    started = os.getloadavg()[0]
    times = measure({"AdamW": adamw(options.numel, options.device), **calls}, options.repeat, options.device)
    print(
        f"{options.numel:,} parameters ({options.dtype}; AdamW float32), kernels {kernels.name!r}, "
        f"{platform.machine()}, {os.cpu_count()} cores,"
    )
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; load {started:.1f} -> {os.getloadavg()[0]:.1f}."
    )
    print(
        f"State: {STATE_BYTES} bytes a parameter, as Adam; 2 more where rounding is shaped. Clock: {options.clock}.\n"
    )
    print(steps(options.repeat, options.device))
    print(
        "| | best [ms] | median [ms] | of AdamW, best / median | bytes a parameter (float32) | GB/s |\n"
        "|---|---|---|---|---|---|"
    )
    for row in rows(times, options.numel):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
