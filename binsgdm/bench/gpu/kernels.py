"""Time every kernel and every compressing system over sizes, with copies in the same run, and list what is slow."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from binsgdm.bench import choices, one_bit_adam
from binsgdm.bench import kernels as kernel_times
from binsgdm.bench import systems as system_times
from binsgdm.bench.kernel_bytes import bytes_per_element
from binsgdm.bench.record import Bench

MIN_NUMEL, QUICK_NUMEL = 2**16, 2**10
TARGET, TARGET_NUMEL = 1.3, 2**22
"""From so many elements on, a kernel is meant to take at most so many times its bytes over the bandwidth of a copy."""
KERNELS_SHARE = 0.4
KERNEL_REPETITIONS = 20  # on a GPU they cost next to nothing, and the spread is known better
# About 29 calls at 13 sizes; most reach the wanted precision long before.
NUM_KERNEL_SERIES, NUM_SYSTEM_SIZES = 377, 13


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add the series of `simnet measure kernels --system all`, and a note for every kernel that is slow, before others.

    Args:
        bench: where to, who takes part, and when to stop.
        quick: the smallest size only, and one system.
        seconds: for all. Systems that are not begun by then are left out with a note.
    """
    try:
        _measure(bench, quick=quick, seconds=seconds)
    finally:  # also of what there is where the time was up
        bench.record.notes[:0] = slow_notes(bench.record.series)


def _measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    device = bench.ranks.device
    sizes: dict[str, Any] = {"min_numel": QUICK_NUMEL, "max_numel": QUICK_NUMEL} if quick else {"min_numel": MIN_NUMEL}
    # Without Triton the reference runs, and is what a user would get.
    is_bare = device.type == "cuda" and "triton" not in kernel_times.available(device)
    with _failure_noted(bench, "kernels"):
        own = bench.part(0.0, KERNELS_SHARE).within(KERNELS_SHARE * seconds / NUM_KERNEL_SERIES)
        if not quick:
            own = replace(own, stop_rule=replace(own.stop_rule, min_repetitions=KERNEL_REPETITIONS))
        kernel_times.measure(
            own,
            kernels=("reference",) if is_bare else (),
            **sizes,
        )
    systems = [choices.choice(name, "system") for name in choices.names()][: 1 if quick else None]
    for count, system in enumerate(systems):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            names = ", ".join(one.name for one in systems[count:])
            bench.record.note(f"systems: {names}: no time was left: give more with --budget")
            break
        share_s = left_s / (len(systems) - count) / NUM_SYSTEM_SIZES
        first, end = (KERNELS_SHARE + (1 - KERNELS_SHARE) * done / len(systems) for done in (count, count + 1))
        with _failure_noted(bench, system.name):
            system_times.measure(bench.part(first, end).within(share_s), systems=[system], **sizes)


@contextmanager
def _failure_noted(bench: Bench, name: str) -> Iterator[None]:
    """Let one system that fails cost no other its times: it becomes a check that has failed."""
    try:
        yield
    except RuntimeError as error:
        bench.record.check(
            f"{name} runs", passed=False, detail=f"{type(error).__name__}: {' '.join(str(error).split())}"
        )


class SlowKernel(NamedTuple):
    """A kernel beside its bound.

    Attributes:
        ratio: its time over that of its bytes at the bandwidth of a copy.
        seconds: its median.
        num_elements: of all its vectors.
    """

    ratio: float
    name: str
    kernels: str
    num_elements: int
    num_vectors: int
    seconds: float


def slow_notes(series: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the bandwidth of a copy, and each kernel that misses the target, at the size where it does worst.

    The project's own kernels come first, the worst of them before the others; then what plain torch does in systems.
    """
    bandwidth = copy_bytes_per_s(series)
    if bandwidth is None:
        return
    yield f"copy: {bandwidth / 1e9:,.0f} GB/s read and written, the fastest size"
    large = [one for one in ratios(series, bandwidth) if one.num_elements >= TARGET_NUMEL]
    slow = [one for one in large if one.ratio > TARGET]
    worst: dict[tuple[str, str, int], SlowKernel] = {}
    for one in sorted(slow, reverse=True):
        worst.setdefault((one.name, one.kernels, one.num_vectors), one)
    if large and not worst:
        yield f"no kernel takes more than {TARGET} times its bytes / bandwidth from {TARGET_NUMEL:,} elements on"
    for one in sorted(worst.values(), key=lambda one: (not _is_own(one), -one.ratio)):
        vectors = f" in {one.num_vectors} vectors" if one.num_vectors > 1 else ""
        yield (
            f"{one.name} ({one.kernels}): {one.ratio:.2f} times its bytes / bandwidth at {one.num_elements:,} elements"
            f"{vectors}: {one.seconds * 1e6:,.1f} us"
        )


def _is_own(kernel: SlowKernel) -> bool:
    """Tell whether it is a kernel of BinSGDM or of 1-bit Adam."""
    return kernel.kernels != "torch" or kernel.name in one_bit_adam.parts(TARGET_NUMEL, 1)


def copy_bytes_per_s(series: Sequence[dict[str, Any]]) -> float | None:
    """Return the bandwidth of the fastest copy, its reads and its writes; None without a copy."""
    moved = bytes_per_element("copy")
    found = [
        moved * one["labels"]["num_elements"] / median(one["values"])
        for one in series
        if moved and one["kind"] == "kernel" and one["name"] == "copy"
    ]
    return max(found, default=None)


def ratios(series: Sequence[dict[str, Any]], bandwidth: float) -> Iterator[SlowKernel]:
    """Yield every kernel whose bytes are known, with its time over that of its bytes at this bandwidth [B/s]."""
    for one in series:
        labels = one["labels"]
        vectors = labels.get("num_vectors", 1)
        moved = bytes_per_element(one["name"], vectors) if one["kind"] == "kernel" else None
        if moved is not None and labels["dtype"] in {"float32", "uint8"}:
            numel, seconds = labels["num_elements"] * vectors, median(one["values"])
            ratio = seconds * bandwidth / (moved * numel)
            yield SlowKernel(ratio, one["name"], labels["kernels"], numel, vectors, seconds)
