"""`python -m evidence.benchmarks.kernels`: BinSGDM's local work of a step against a fused AdamW on the same parameters.

First whole `optimizer.step()` calls with both roundings, on tensors of equal size and on those of real models; then
kernel by kernel. On a machine that others use, `--threads 1 --clock cpu` counts only what this process has had.

All contestants take turns in one run, as `binsgdm.bench.timing.interleave` has them. So a call finds the caches full of
what others did; "in a row" are five calls without a pause, of which the first is not kept. A ratio compares best with
best and median with median.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from unittest import mock

import torch

from binsgdm.bench import kernels as bench
from binsgdm.bench.kernel_bytes import bytes_per_element
from binsgdm.bench.ranks import Ranks, joined
from binsgdm.bench.timing import PAUSE_S, StopRule, Trial, interleave
from binsgdm.kernels import select
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.settings import PAPER
from evidence import ROOT
from simnet.report.table import Column, Table

NUM_PARTS = 4
USUAL = "the same, momenta of torch.zeros"
STATE_BYTES = 8
IN_A_ROW = 5
MODELS = {"25 M in 1": [25_000_000], "1 M in 8": [125_000] * 8, "25 M in 160": [156_250] * 160}
MODELS["100 M in 160"] = [625_000] * 160
"""Elements of each tensor."""
STEPS = {
    "one-pass step": ("update_quantize_pack_", "unpack_apply_"),
    "one-pass step, shaped": ("update_shape_pack_", "unpack_apply_"),
    "one-pass step, momenta of torch.zeros": (USUAL, "unpack_apply_"),
    "split step": ("update_", "quantize_pack", "unpack_apply_"),
}
Call = Callable[[], object]
Times = dict[str, list[float]]


def contestants(numel: int) -> dict[str, Call]:
    device, kernels = torch.device("cpu"), select(None, "cpu")
    with mock.patch.object(bench, "zeros", lambda count, device: torch.zeros(count, device=device)):
        usual = bench._binsgdm(kernels, numel, device, torch.float32)["update_quantize_pack_", 0]
    parts = f"{NUM_PARTS} vectors"
    calls = {
        name: call
        for (name, vectors), call in bench._binsgdm(kernels, numel, device, torch.float32).items()
        if not vectors
    }
    return {
        "AdamW": bench._baselines(numel, device)["adamw"],
        **calls,
        USUAL: usual,
        f"merge, {parts}": bench._merge(kernels, NUM_PARTS * numel, NUM_PARTS, device),
        f"merge_shaped_, {parts}": bench._merge(kernels, NUM_PARTS * numel, NUM_PARTS, device, shaped=True),
        f"mean_, {parts}": bench._mean(kernels, numel, NUM_PARTS, device),
    }


def moved(name: str) -> float:
    """Return the bytes that have to move per fp32 parameter, of which a merge has `NUM_PARTS`, a mean one."""
    if name == USUAL:
        return moved("update_quantize_pack_")
    kernel, _, vectors = name.partition(", ")
    each = NUM_PARTS if kernel.startswith("merge") else 1
    return each * (bytes_per_element(kernel.lower() if kernel == "AdamW" else kernel, NUM_PARTS if vectors else 1) or 0)


def measure(calls: dict[str, Call], repeat: int, clock: Callable[[], float], ranks: Ranks, in_a_row: int = 1) -> Times:

    def trial_of(call: Call) -> Trial:
        def trial() -> Sequence[float]:
            times = []
            for _ in range(in_a_row):
                start = clock()
                call()
                times.append(clock() - start)
            return times[1:] or times

        return trial

    rule = StopRule(min_repetitions=repeat, max_repetitions=repeat, max_seconds=math.inf)
    found = interleave({name: trial_of(call) for name, call in calls.items()}, rule, ranks, pause_s=PAUSE_S)
    return {name: [time_s for row in rows for time_s in row] for name, rows in found.items()}


def ends(times: Times, names: Sequence[str]) -> list[float]:
    """Return best and median of some calls together [ms]."""
    return [1e3 * sum(of(times[name]) for name in names) for of in (min, statistics.median)]


def ratios(times: Times, *names: str) -> str:
    """Return the time of some calls together over that of AdamW: "best / median"."""
    return " / ".join(
        f"{own / other:.2f}" for own, other in zip(ends(times, names), ends(times, ["AdamW"]), strict=True)
    )


def rows(times: Times, numel: int) -> list[list[str]]:
    table = []
    for title, names in {**{name: (name,) for name in times}, **STEPS}.items():
        best, median = ends(times, names)
        traffic = sum(map(moved, names))
        rate = f"{traffic * numel / best / 1e6:.1f}" if title in times else ""
        table.append([title, f"{best:.2f}", f"{median:.2f}", ratios(times, *names), f"{traffic:.2f}", rate])
    return table


def steps(repeat: int, clock: Callable[[], float], ranks: Ranks) -> Table:
    """Return a table of whole steps on one rank: update, quantize, pack, unpack, apply, and all Python around."""
    models = dict(MODELS)
    for name in ("resnet50", "bert_base"):
        path = ROOT / "scenarios" / "workloads" / "gradients" / f"{name}.json"
        models[name] = [math.prod(shape) for _, shape, *_ in json.loads(path.read_text())["tensors"]]
    lines = []
    for name, numels in models.items():
        for in_a_row in (1, IN_A_ROW) if sum(numels) < 10**7 else (1,):
            times = measure(contest(numels), repeat, clock, ranks, in_a_row)
            title = f"{name}, {in_a_row} in a row" if in_a_row > 1 else name
            adamw = " / ".join(f"{value:.2f}" for value in ends(times, ["AdamW"]))
            lines.append((title, adamw, ratios(times, "random"), ratios(times, "shaped")))
    heads = ("optimizer.step()", "AdamW [ms], best / median", "random, of AdamW", "shaped, of AdamW")
    return Table(heads, lines)


def contest(numels: list[int]) -> dict[str, Call]:
    """Return a step of AdamW, and of BinSGDM with each rounding, on parameters of its own, with weight decay."""

    def parameters() -> list[torch.nn.Parameter]:
        made = [torch.nn.Parameter(torch.randn(numel)) for numel in numels]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return made

    settings = {"random": PAPER, "shaped": {}}
    ours = {name: BinSGDM(parameters(), weight_decay=0.01, **some).step for name, some in settings.items()}
    return {"AdamW": torch.optim.AdamW(parameters(), fused=True).step, **ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: of all threads of the process")
    given = parser.parse_args()
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    with joined(device="cpu", threads=given.threads) as ranks:
        print(
            f"{given.numel:,} parameters, kernels {select(None, 'cpu').name!r}, {platform.machine()}, "
            f"{os.cpu_count()} cores, torch {torch.__version__}, {given.threads} threads."
        )
        print(
            f"State: {STATE_BYTES} bytes a parameter, as Adam; 2 more where rounding is shaped. Clock: {given.clock}.\n"
        )
        print(steps(given.repeat, clock, ranks).markdown(), "\n")
        times = measure(contestants(given.numel), given.repeat, clock, ranks)
    heads = ("best [ms]", "median [ms]", "of AdamW, best / median", "bytes a parameter (float32)", "GB/s")
    print(Table(["kernel", *(Column(head, "right") for head in heads)], rows(times, given.numel)).markdown())


if __name__ == "__main__":
    main()
