"""Compare every kernel with the reference, to the bit: sizes, starts, dtypes, addresses, devices, 2^31 elements."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import memcheck
from binsgdm.bench.gpu.comparisons import Comparisons
from binsgdm.bench.gpu.kernel_cases import KEY, KernelCase, foreach_outcomes, inputs, outcomes
from binsgdm.bench.gpu.large_cases import check_large
from binsgdm.bench.kernels import available
from binsgdm.bench.record import Record
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import NAMES, Kernels, reference, select
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.random import draws, thresholds

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Around a byte, a group of 32 draws, a Triton block of 1,024 and several of them, and an odd million.
SIZES = (1, 7, 8, 9, 31, 32, 33, 1023, 1024, 1025, 4095, 4096, 4097, 65_537, 1_000_003)
STARTS = (0, 8, 24, 32, 2**31 - 8, 2**33)
OFFSETS = (0, 1, 3)
VECTORS = (1, 2, 3, 7, 8, 64, 256, 300)
QUICK_SIZES, QUICK_DTYPES = (33,), (torch.bfloat16,)
MANY = (5, 1024, 1, 33, 70_001, 8, 4096, 257) * 12
QUICK_MANY = (5, 33)
LEAST_MEMCHECK_S = 10.0  # less is not worth its start


class NoTimeError(Exception):
    """The time of the part is up: what was compared counts."""


@dataclass(frozen=True, kw_only=True)
class _Checker:
    """Compares one implementation with the reference on the CPU; none of its comparisons begins after `end_s`."""

    kernels: Kernels
    device: torch.device
    comparisons: Comparisons
    end_s: float

    @property
    def title(self) -> str:
        """What is compared, before the kernel's name."""
        return f"{self.kernels.name} on {self.device}"

    def case(self, case: KernelCase, seed: int = 0, title: str = "") -> None:
        """Compare everything that every kernel writes.

        Raises:
            NoTimeError: it is too late to begin.
        """
        self._check_time()
        given = inputs(case, seed)
        wanted = outcomes(reference, replace(case, offset=0), given, CPU)
        got = outcomes(self.kernels, case, given, self.device)
        self._compare(wanted, got, case.text(), title)

    def foreach(self, cases: Sequence[KernelCase]) -> None:
        """Compare the kernels for many tensors."""
        self._check_time()
        wanted = foreach_outcomes(reference, [replace(case, offset=0) for case in cases], CPU)
        self._compare(
            wanted,
            foreach_outcomes(self.kernels, cases, self.device),
            f"{len(cases)} tensors, offset {cases[0].offset}",
            "",
        )

    def _check_time(self) -> None:
        if time.monotonic() > self.end_s:
            raise NoTimeError

    def _compare(self, wanted: dict[str, torch.Tensor], got: dict[str, torch.Tensor], where: str, title: str) -> None:
        for name, tensor in wanted.items():
            kernel, _, what = name.partition(": ")
            self.comparisons.compare(
                f"{title or self.title}: {kernel}", tensor, got[name], f"{what or 'memory'}, {where}"
            )


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add a check for every kernel, implementation and device; what there was no time for is noted.

    The reference runs on the CPU, so that it is judged on the card as well.
    """
    device, comparisons = bench.ranks.device, Comparisons()
    end_s = time.monotonic() + seconds
    if device.type == "cuda":
        bench.record.note(f"compute capability {'.'.join(map(str, torch.cuda.get_device_capability(device)))}")
    families = [
        (f"{checker.title}: {name}", family)
        for checker in _checkers(device, comparisons, end_s, bench.record)
        for name, family in _families(checker, quick=quick).items()
    ]
    if not quick:
        families.append((f"{device}: large sizes", lambda: check_large(device, comparisons, bench.record, end_s)))
        families.append((f"{device}: memcheck", lambda: _memcheck(device, comparisons, bench.record, end_s)))
    for count, (name, family) in enumerate(families, 1):
        if time.monotonic() > end_s:
            bench.record.note(f"{name}: no time was left: give more with --budget")
            continue
        try:
            family()
        except NoTimeError:
            bench.record.note(f"{name}: no time was left for all of it: give more with --budget")
        bench.progress(count / len(families))
    comparisons.write(bench.record)


def _checkers(device: torch.device, comparisons: Comparisons, end_s: float, record: Record) -> Iterator[_Checker]:
    """Yield every implementation that works on a device; the reference on a GPU alone."""
    for name in NAMES:
        if name == "reference" and device.type == "cpu":
            continue
        if name == "triton" and device.type == "cpu" and (reason := _fault_of_interpreter()):
            record.note(f"triton on cpu: its interpreter cannot run here ({reason}): its kernels are not compared")
            continue
        with suppress(BinsgdmError):  # what is missing here is not compared
            yield _Checker(kernels=select(name, device), device=device, comparisons=comparisons, end_s=end_s)


def _fault_of_interpreter() -> str:
    """Say why Triton's interpreter cannot run the shortest program there is, or return an empty string.

    That of Triton 3.6 fails with numpy 2.5 in every loop.
    """
    try:
        select("triton", CPU)
    except BinsgdmError:
        return ""  # which is no fault: nothing is compared then
    from binsgdm.kernels import triton_signs

    try:
        triton_signs.pack(torch.ones(8, dtype=torch.bool), torch.empty(1, dtype=torch.uint8))
    except Exception as error:  # whatever it raises
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return ""


def _families(checker: _Checker, *, quick: bool) -> dict[str, Callable[[], None]]:
    """Return the comparisons by what they vary; the most telling first."""
    sizes, dtypes, many = (QUICK_SIZES, QUICK_DTYPES, QUICK_MANY) if quick else (SIZES, DTYPES, MANY)

    def run(cases: Sequence[KernelCase]) -> Callable[[], None]:
        def compare() -> None:
            for seed, case in enumerate(cases):
                checker.case(case, seed)

        return compare

    pairs = list(itertools.product(sizes, dtypes))
    found = {
        "sizes": run([KernelCase(numel=numel, dtype=dtype) for numel, dtype in pairs]),
        "not finite": run([KernelCase(numel=sizes[-1], dtype=dtype, is_finite=False) for dtype in dtypes]),
        "many tensors": lambda: checker.foreach(_many(many)),
    }
    if quick:
        return found
    return found | {
        "starts and addresses": run(
            [
                KernelCase(numel=numel, dtype=dtype, start=start, offset=offset)
                for numel, dtype, start, offset in itertools.product((9, 1025, 4097), DTYPES, STARTS, OFFSETS)
            ]
        ),
        "vectors": run([KernelCase(numel=numel, num_vectors=count) for numel in (33, 5000) for count in VECTORS]),
        "many tensors at odd addresses": lambda: checker.foreach(_many(many, offset=1)),
        "draws and signs": lambda: _draws_and_signs(checker),
        "another stream": lambda: _on_another_stream(checker),
        "another card": lambda: _on_another_card(checker),
    }


def _many(sizes: Sequence[int], offset: int = 0) -> list[KernelCase]:
    """Return cases of one rank's tensors, one after another in the global index, in turns of every dtype."""
    cases, start = [], 0
    for numel, dtype in zip(sizes, itertools.cycle(DTYPES), strict=False):
        cases.append(KernelCase(numel=numel, dtype=dtype, start=start, offset=offset))
        start += -(-numel // 8) * 8
    return cases


def _draws_and_signs(checker: _Checker, sizes: Sequence[int] = (1, 33, 1025, 70_001)) -> None:
    """Compare draws, thresholds and packed signs of the whole project, which begin at any element."""
    device, compare = checker.device, checker.comparisons.compare
    for numel, start in itertools.product(sizes, (0, 1, 31, 1023, 2**31 - 5, 2**34 - 70_001)):
        where = f"{numel} elements, start {start}"
        for function in (draws, thresholds):
            wanted, got = (function(KEY, start=start, numel=numel, device=place) for place in (CPU, device))
            compare(f"{function.__name__} on {device}", wanted, got, where)
        positive = draws(KEY, start=start, numel=numel) % 2 == 1
        packed = pack_signs(positive)
        compare(f"pack_signs on {device}", packed, pack_signs(positive.to(device)), where)
        compare(f"unpack_signs on {device}", unpack_signs(packed, numel), unpack_signs(packed.to(device), numel), where)


def _memcheck(device: torch.device, comparisons: Comparisons, record: Record, end_s: float) -> None:
    """Let NVIDIA's sanitizer look for accesses outside of tensors, where it is installed."""
    if device.type != "cuda" or "triton" not in available(device):
        return
    if not memcheck.tool():
        record.note("memcheck: compute-sanitizer is not installed: reads outside of tensors are not looked for")
        return
    left_s = end_s - time.monotonic()
    if left_s < LEAST_MEMCHECK_S:
        record.note("memcheck: no time was left: give more with --budget")
        return
    passed, found = memcheck.watched(str(device), left_s)
    if passed is None:
        record.note(f"memcheck: {found}: reads outside of tensors are not looked for")
    else:
        comparisons.count(f"triton on {device}: memory accesses, compute-sanitizer", found, "memcheck")


def _on_another_stream(checker: _Checker) -> None:
    if checker.device.type != "cuda":
        return
    stream = torch.cuda.Stream(checker.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        checker.case(KernelCase(numel=70_001), title=f"{checker.title}, another stream")
    stream.synchronize()


def _on_another_card(checker: _Checker) -> None:
    """Compare on the last card while the first one is current: as a process with several cards would."""
    if checker.device.type == "cuda" and torch.cuda.device_count() > 1:
        last = torch.device("cuda", torch.cuda.device_count() - 1)
        replace(checker, device=last).case(KernelCase(numel=70_001, dtype=torch.bfloat16))
