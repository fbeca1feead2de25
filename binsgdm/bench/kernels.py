"""Time each step of BinSGDM on one tensor, and the kernels of its baselines, over sizes; on a card systems as well."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from binsgdm.bench import choices, systems
from binsgdm.bench.kernel_bytes import slow_notes
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench
from binsgdm.bench.timing import LAUNCH, SHARED_S, Call, CudaQueue, interleave, interleave_on_stream, pause_s, trial_of
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import NAMES, Kernels, select, zeros
from binsgdm.kernels.keys import Key

MIN_NUMEL, MAX_NUMEL, MAX_GPU_NUMEL = 2**10, 2**27, 2**28
MAX_REFERENCE_NUMEL = 2**16  # the reference kernels are slow: larger sizes would take most of the time
NUM_PIECES = 16  # tensors that are gathered into a bucket
MIN_THREADED_NUMEL = 2**15  # from here on torch works on several threads
NUM_VECTORS = (2, 8)
# Upper bounds of memory [bytes an element]: tensors of the baselines, of one implementation, temporaries of the
# reference.
BASELINE_BYTES, KERNELS_BYTES, REFERENCE_BYTES = 32, 36, 128
DTYPES = dict.fromkeys(("merge", "merge_shaped_"), "uint8") | dict.fromkeys(
    ("adamw", "copy", "gather", "cast_fp32_bf16", "cast_bf16_fp32", "quantize_pack", "shape_pack_", "mean_"), "float32"
)
"""Of kernels that do not take gradients or parameters of any type."""
DRAWS = Key(seed=1, step=1)
GAIN = 2.0  # of the shaped kernels, which multiply by any

LAUNCHED = "launch_"
Name = tuple[str, str, int]  # kernel, implementation, number of vectors (0 for kernels of one vector)
Timings = list[tuple[Name, dict[str, str], list[float]]]  # with the label that says what the times hold


def measure(
    bench: Bench, *, kernels: tuple[str, ...] = (), dtype: str = "float32", min_numel: int = MIN_NUMEL,
    max_numel: int | None = None,
) -> None:  # fmt: skip
    """Add the series of every kernel and every power of two of elements.

    All ranks measure at the same time. On a CPU, a tensor that fits into a cache may still lie in it, as far as the
    other trials of its size have left it there. On a GPU the caches are emptied, and launches by the host are no part
    of a kernel's time (`timing`); for the smallest size, series `launch_NAME` from an idle queue hold them.

    Args:
        bench: where to, who takes part, and when to stop, for each.
        kernels: implementations; default all that work on the device.
        dtype: of gradients and parameters.
        min_numel: the smallest size.
        max_numel: default what a quarter of the free memory holds, at most 2**27; on a GPU what fits, at most 2**28,
            with a note if that is less.
    """
    ranks, stop_rule = bench.ranks, bench.stop_rule
    implementations = {name: select(name, ranks.device) for name in kernels or available(ranks.device)}
    there = [name for name in implementations if kernels or name != "reference"]  # at the largest size
    needed = BASELINE_BYTES + KERNELS_BYTES * len(there) + REFERENCE_BYTES * ("reference" in there)
    numels = sizes(ranks, min_numel, max_numel, bytes_per_element=needed)
    min_s = SHARED_S if ranks.ranks_on_machine > 1 and ranks.device.type == "cpu" else 0.0
    if min_s:
        # Each repetition takes at least min_s: more of them than fit would exceed max_seconds.
        stop_rule = replace(
            stop_rule, max_repetitions=max(stop_rule.min_repetitions, int(stop_rule.max_seconds / min_s))
        )
    if ranks.device.type == "cuda" and max_numel is None and numels[-1] < MAX_GPU_NUMEL:
        bench.record.note(f"kernels: more than {numels[-1]:,} elements do not fit into the memory: left out")
    for count, numel in enumerate(numels, 1):
        chosen = {
            name: made
            for name, made in implementations.items()
            if name != "reference" or kernels or numel <= MAX_REFERENCE_NUMEL
        }
        try:
            timings = _times(
                # With its tensors gone before those of the next size are made.
                _calls(chosen, numel, ranks.device, getattr(torch, dtype)),
                replace(bench, stop_rule=stop_rule),
                pause_s=pause_s(ranks.device) if numel >= MIN_THREADED_NUMEL else 0.0,
                min_s=min_s,
                with_launches=count == 1,
            )
        except torch.cuda.OutOfMemoryError:
            bench.record.note(f"kernels: {numel:,} elements and more do not fit into the memory: left out")
            break
        for (name, implementation, vectors), timing, values in timings:
            kernel = name.removeprefix(LAUNCHED)
            labels: dict[str, str | int] = {"num_elements": numel // max(1, vectors)}
            labels |= {"dtype": DTYPES.get(kernel, dtype), "kernels": implementation, **timing}
            labels |= {"num_vectors": vectors} if vectors else {}
            bench.record.add("kernel", name, values, **labels)
        bench.progress(count / len(numels))
        bench.probe()


def _times(calls: dict[Name, Call], bench: Bench, *, pause_s: float, min_s: float, with_launches: bool) -> Timings:
    """Return the times of calls with the label that says what they hold; once more from an idle queue if asked to."""
    ranks, rule = bench.ranks, bench.stop_rule
    trials = {name: trial_of(call, ranks.device, min_s) for name, call in calls.items()}
    if ranks.device.type != "cuda":
        rows = interleave(trials, rule, ranks, pause_s=pause_s)
        return [(name, {}, [row[0] for row in of_name]) for name, of_name in rows.items()]
    on_stream = interleave_on_stream(CudaQueue(ranks.device), calls, rule, ranks)
    timings: Timings = [(name, {"timing": timing}, values) for name, (timing, values) in on_stream.items()]
    if with_launches:
        for (name, made_with, vectors), launched in interleave(trials, rule, ranks).items():
            timings.append(((LAUNCHED + name, made_with, vectors), {"timing": LAUNCH}, [row[0] for row in launched]))
    return timings


def available(device: torch.device) -> tuple[str, ...]:
    """Return the implementations that work on a device, Triton's interpreter left out."""

    def works(name: str) -> bool:
        try:
            select(name, device)
        except BinsgdmError:
            return False
        return name != "triton" or device.type == "cuda"  # the interpreter would take hours

    return tuple(filter(works, NAMES))


def sizes(ranks: Ranks, min_numel: int, max_numel: int | None, *, bytes_per_element: int) -> list[int]:
    """Return the powers of two from `min_numel` to `max_numel`."""
    fits = free_bytes(ranks) // bytes_per_element
    # Nobody else is meant to need a GPU's memory; a CPU's is that of the whole machine.
    most = min(MAX_GPU_NUMEL, fits) if ranks.device.type == "cuda" else min(MAX_NUMEL, fits // 4)
    largest = most if max_numel is None else max_numel  # what is asked for may not fit, and is then refused
    # The smallest of all ranks, by the maximum of negatives: all ranks must measure the same sizes.
    largest = int(min(ranks.slowest([-float(largest)])) * -1)
    if largest > fits:
        raise BinsgdmError(
            f"--max-size {largest}: needs {largest * bytes_per_element:,} bytes of free memory; lower it"
        )
    numels = [2**power for power in range(1, 40) if max(min_numel, *NUM_VECTORS) <= 2**power <= largest]
    if not numels:
        raise BinsgdmError(f"--min-size {min_numel}: no power of two from there to {largest}; lower it")
    return numels


def free_bytes(ranks: Ranks) -> int:
    """Return this rank's share of the free memory of its device."""
    if ranks.device.type == "cuda":
        return int(torch.cuda.mem_get_info(ranks.device)[0])
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (free[0] if free else whole) // ranks.ranks_on_machine


def _calls(
    implementations: dict[str, Kernels], numel: int, device: torch.device, dtype: torch.dtype
) -> dict[Name, Call]:
    calls: dict[Name, Call] = {(name, "torch", 0): call for name, call in _baselines(numel, device).items()}
    for made_with, kernels in implementations.items():
        steps = _binsgdm(kernels, numel, device, dtype)
        calls |= {(name, made_with, vectors): call for (name, vectors), call in steps.items()}
    return calls


def _baselines(numel: int, device: torch.device) -> dict[str, Call]:
    """Return what the baselines do around communication, on fp32 (casts: fp32 and bf16)."""
    parameter = torch.nn.Parameter(torch.randn(numel, device=device))
    parameter.grad = torch.randn(numel, device=device)
    source, target = torch.randn(numel, device=device), torch.empty(numel, device=device)
    half = source.to(torch.bfloat16)
    pieces = list(zip(target.chunk(NUM_PIECES), source.chunk(NUM_PIECES), strict=True))
    return {
        "adamw": torch.optim.AdamW([parameter], fused=True).step,
        "copy": lambda: target.copy_(source),
        "gather": lambda: [bucket.copy_(gradient) for bucket, gradient in pieces],
        "cast_fp32_bf16": lambda: half.copy_(source),
        "cast_bf16_fp32": lambda: target.copy_(half),
    }


def _binsgdm(kernels: Kernels, numel: int, device: torch.device, dtype: torch.dtype) -> dict[tuple[str, int], Call]:
    """Return the steps of BinSGDM."""
    x, grad = (torch.randn(numel, device=device).to(dtype) for _ in range(2))
    m, b, u = (zeros(numel, device) for _ in range(3))
    residual = torch.zeros(numel, dtype=torch.int16, device=device)
    num_bytes = -(-numel // 8)
    out = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    calls: dict[tuple[str, int], Call] = {
        ("update_", 0): lambda: kernels.update_(grad, m, b, beta=0.95, beta_b=0.95, out_u=u),
        ("update_quantize_pack_", 0): lambda: kernels.update_quantize_pack_(
            grad, m, b, beta=0.95, beta_b=0.95, key=DRAWS, start=0, out=out
        ),
        ("quantize_pack", 0): lambda: kernels.quantize_pack(u, key=DRAWS, start=0, out=out),
        ("update_shape_pack_", 0): lambda: kernels.update_shape_pack_(
            grad, m, b, residual, beta=0.95, beta_b=0.95, gain=GAIN, out=out
        ),
        ("shape_pack_", 0): lambda: kernels.shape_pack_(u, residual, gain=GAIN, out=out),
        ("unpack_apply_", 0): lambda: kernels.unpack_apply_(x, out, lr=1e-6, weight_decay=0.0),
    }
    for vectors in NUM_VECTORS:
        calls["merge", vectors] = _merge(kernels, numel, vectors, device)
        calls["merge_shaped_", vectors] = _merge(kernels, numel, vectors, device, shaped=True)
        calls["mean_", vectors] = _mean(kernels, numel, vectors, device)
    return calls


def _merge(kernels: Kernels, numel: int, vectors: int, device: torch.device, *, shaped: bool = False) -> Call:
    """Return a call that merges `vectors` sign vectors, which have `numel` elements together.

    A shaped one has a residual of each element of the result.
    """
    each = numel // vectors
    rows = torch.randint(256, (vectors, -(-each // 8)), dtype=torch.uint8, device=device)
    out = torch.empty_like(rows[0])
    if not shaped:
        return lambda: kernels.merge(rows, numel=each, key=DRAWS, start=0, out=out)
    residual = torch.zeros(each, dtype=torch.int16, device=device)
    return lambda: kernels.merge_shaped_(rows, residual, numel=each, out=out)


def _mean(kernels: Kernels, numel: int, vectors: int, device: torch.device) -> Call:
    """Return a call that averages `vectors` vectors, which have `numel` elements together."""
    parts = torch.randn(vectors, numel // vectors, device=device)
    out = torch.empty_like(parts[0])
    return lambda: kernels.mean_(parts, out)


CARD_NUMEL, QUICK_NUMEL = 2**16, 2**10
KERNELS_SHARE = 0.4
KERNEL_REPETITIONS = 20  # on a GPU they cost next to nothing, and the spread is known better
# About 29 calls at 13 sizes; most reach the wanted precision long before.
NUM_KERNEL_SERIES, NUM_SYSTEM_SIZES = 377, 13


def measure_card(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add the series of `simnet measure kernels --system all`, and a note for every kernel that is slow, before others.

    `quick` is the smallest size only, and one system. Those not begun after `seconds` are left out with a note.
    """
    try:
        _measure_card(bench, quick=quick, end_s=time.monotonic() + seconds)
    finally:  # also of what there is where the time was up
        bench.record.notes[:0] = slow_notes(bench.record.series)


def _measure_card(bench: Bench, *, quick: bool, end_s: float) -> None:
    sizes: dict[str, Any] = {"min_numel": QUICK_NUMEL, "max_numel": QUICK_NUMEL} if quick else {"min_numel": CARD_NUMEL}
    device, seconds = bench.ranks.device, end_s - time.monotonic()
    # Without Triton the reference runs, and is what a user would get.
    is_bare = device.type == "cuda" and "triton" not in available(device)
    with _failure_noted(bench, "kernels"):
        kernels_bench = bench.part(0.0, KERNELS_SHARE).within(KERNELS_SHARE * seconds / NUM_KERNEL_SERIES)
        if not quick:
            kernels_bench = replace(
                kernels_bench, stop_rule=replace(kernels_bench.stop_rule, min_repetitions=KERNEL_REPETITIONS)
            )
        measure(kernels_bench, kernels=("reference",) if is_bare else (), **sizes)
    chosen = [choices.choice(name, "system") for name in choices.names()][: 1 if quick else None]
    for count, (part, system) in enumerate(bench.part(KERNELS_SHARE, 1.0).each(chosen)):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            names = ", ".join(system.name for system in chosen[count:])
            bench.record.note(f"systems: {names}: no time was left: give more with --budget")
            break
        share_s = left_s / (len(chosen) - count) / NUM_SYSTEM_SIZES
        with _failure_noted(bench, system.name):
            systems.measure(part.within(share_s), systems=[system], **sizes)


@contextmanager
def _failure_noted(bench: Bench, name: str) -> Iterator[None]:
    """Let one system that fails cost no other its times: it becomes a check that has failed."""
    try:
        yield
    except RuntimeError as error:
        bench.record.check(
            f"{name} runs", passed=False, detail=f"{type(error).__name__}: {' '.join(str(error).split())}"
        )
