"""Let NVIDIA's compute-sanitizer watch the Triton kernels: a read outside of a tensor changes no bit, and is found.

`python -m binsgdm.bench.gpu.memcheck cuda:0` is what it watches: every kernel once for each case, nothing compared.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from binsgdm.bench.gpu.processes import environments

ERRORS_FOUND = 86
PLACES = (
    "compute-sanitizer",
    "/usr/local/cuda/bin/compute-sanitizer",
    "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
)
# Every tensor with memory of its own, which ends where the tensor ends.
BARE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
NUMELS, OFFSETS = (1, 33, 1025, 5000), (0, 1)
MARK = "========="


def tool() -> str:
    """Return the sanitizer's path, or an empty string where there is none."""
    return next((found for place in PLACES if (found := shutil.which(place))), "")


def watched(device: str, seconds: float) -> tuple[bool | None, str]:
    """Run the kernels under the sanitizer.

    Args:
        device: such as "cuda:0".
        seconds: after which it is ended.

    Returns:
        Whether it found nothing, None if it could not tell; and what it found, or why it could not.
    """
    # Calls of CUDA that fail are no errors of a kernel: torch asks for what a driver may not have.
    command = [tool(), "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(ERRORS_FOUND)]
    command += [sys.executable, "-m", "binsgdm.bench.gpu.memcheck", device]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env={**environments(0)[0], **BARE},
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"compute-sanitizer took more than {seconds:.0f} s"
    if done.returncode == ERRORS_FOUND:
        return False, _found(done.stdout)
    if done.returncode:
        return None, f"compute-sanitizer ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"
    return True, ""


def _found(output: str) -> str:
    lines = [line.removeprefix(MARK).strip() for line in output.splitlines() if line.startswith(MARK)]
    first = next((number for number, line in enumerate(lines) if line.startswith(("Invalid", "Misaligned"))), 0)
    return "; ".join(lines[first : first + 3])


def main(args: Sequence[str]) -> None:
    """Call every kernel of Triton."""
    import torch

    from binsgdm.bench.gpu.kernel_cases import KernelCase, foreach_outcomes, inputs, outcomes
    from binsgdm.kernels import select

    device = torch.device(args[0])
    kernels = select(os.environ.get("BINSGDM_KERNELS") or "triton", device)
    dtypes = (torch.float32, torch.bfloat16)
    cases = [
        KernelCase(numel=numel, dtype=dtype, offset=offset, start=8)
        for numel in NUMELS
        for dtype in dtypes
        for offset in OFFSETS
    ]
    for seed, case in enumerate(cases):
        outcomes(kernels, case, inputs(case, seed), device, guard_numel=0)
    foreach_outcomes(kernels, [KernelCase(numel=numel) for numel in NUMELS], device, guard_numel=0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1:])
