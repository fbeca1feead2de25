"""`python -m benchmarks.kernels`: BinSGDM's local work of a step against a fused AdamW on the same parameters.

First whole `optimizer.step()` calls, on one tensor and on the tensors of real models; then kernel by kernel.

All contestants take turns in one run, in an order that is shuffled for every turn and with a pause before each: torch's
threads spin for a while after their work, which costs whoever comes next up to 2 ms. A ratio compares best with best
and median with median.
"""

import argparse
import json
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
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.random import Key

NUM_PARTS = 4
PAUSE_S = 0.02
KEY = Key(seed=1, step=1)
# Bytes that have to move per fp32 parameter: each array once for a read, once more for a write.
ADAMW_BYTES = 28.0
BYTES = {
    "update_quantize_pack_": 4 + 8 + 8 + 1 / 8,
    "the same, momenta of torch.zeros": 4 + 8 + 8 + 1 / 8,
    "unpack_apply_": 8 + 1 / 8,
    "update_": 4 + 8 + 8 + 4,
    "quantize_pack": 4 + 1 / 8,
    f"merge, {NUM_PARTS} vectors": (NUM_PARTS + 1) / 8,
    f"mean_, {NUM_PARTS} vectors": 4 * (NUM_PARTS + 1) / NUM_PARTS,  # of vectors that are a quarter as long
}
STATE_BYTES = 8


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
    out = packed[0].clone()
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
        "update_": lambda: kernels.update_(grad, m, b, beta=0.95, beta_b=0.95, out_u=u),
        "quantize_pack": lambda: kernels.quantize_pack(u, key=KEY, start=0, out=out),
        f"merge, {NUM_PARTS} vectors": lambda: kernels.merge(packed, numel=numel, key=KEY, start=0, out=out),
        f"mean_, {NUM_PARTS} vectors": lambda: kernels.mean_(parts, mean),
    }
    return calls


def timed(call: Callable[[], object], device: str) -> float:
    """Return what one call takes [s]."""
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(calls: dict[str, Callable[[], object]], repeat: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of every run by kernel, all kernels in turn; the first two turns compile and are not kept."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for _ in range(repeat + 2):
        for name in shuffled.sample(list(calls), len(calls)):
            time.sleep(PAUSE_S)
            times[name].append(timed(calls[name], device))
    return {name: samples[2:] for name, samples in times.items()}


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
        "one-pass step, momenta of torch.zeros": ("the same, momenta of torch.zeros", "unpack_apply_"),
        "split step": ("update_", "quantize_pack", "unpack_apply_"),
    }.items():
        best, median = (sum(f(times[name]) for name in names) for f in (min, statistics.median))
        traffic = sum(BYTES[name] for name in names)
        cells = (f"{best * 1e3:.2f}", f"{median * 1e3:.2f}", ratios(times, names), f"{traffic:.2f}", "")
        table.append((f"**{label}**", *cells))
    return table


def pair(numels: list[int], device: str) -> dict[str, Callable[[], object]]:
    """Return a step of both optimizers, each on parameters of its own, with weight decay."""

    def parameters() -> list[torch.nn.Parameter]:
        made = [torch.nn.Parameter(torch.randn(numel, device=device)) for numel in numels]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return made

    return {
        "AdamW": torch.optim.AdamW(parameters(), fused=True).step,
        "BinSGDM": BinSGDM(parameters(), weight_decay=0.01).step,
    }


def steps(repeat: int, device: str) -> str:
    """Return a table of whole steps on one rank: update, quantize, pack, unpack, apply, and all Python around."""
    models = {"one tensor": [25_000_000]}
    for name in ("resnet50", "bert_base"):
        path = Path(__file__).parents[1] / "scenarios" / "workloads" / "gradients" / f"{name}.json"
        models[name] = [numel for _, numel, _ in json.loads(path.read_text())["tensors"]]
    lines = [
        "| optimizer.step() | tensors | parameters | AdamW [ms], best / median | BinSGDM [ms] | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for name, numels in models.items():
        times = measure(pair(numels, device), repeat, device)
        shown = [f"{min(s) * 1e3:.1f} / {statistics.median(s) * 1e3:.1f}" for s in times.values()]
        ratio = ratios(times, ("BinSGDM",))
        lines.append(f"| {name} | {len(numels)} | {sum(numels):,} | {shown[0]} | {shown[1]} | **{ratio}** |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--kernels", choices=NAMES, help="default: the fastest for the device")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    options: Any = parser.parse_args()
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
    print(f"State: {STATE_BYTES} bytes a parameter, as Adam.\n")
    print(steps(options.repeat, options.device))
    print(
        "| | best [ms] | median [ms] | of AdamW, best / median | bytes a parameter (float32) | GB/s |\n"
        "|---|---|---|---|---|---|"
    )
    for row in rows(times, options.numel):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
