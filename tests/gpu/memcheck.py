"""Call every Triton kernel once a case, comparing nothing: `python -m tests.gpu.memcheck cuda:0`, for a sanitizer."""

import sys
from itertools import product

import torch

from binsgdm.kernels import select
from tests.helpers.kernel_samples import GuardedMemory, outcomes, state

NUMELS, OFFSETS, DTYPES = (1, 33, 1025, 5000), (0, 1), (torch.float32, torch.bfloat16)


def main(device_name: str) -> None:
    """Call the kernels with tensors that have memory of their own, which ends where the tensor ends."""
    device = torch.device(device_name)
    kernels = select(None if device.type == "cpu" else "triton", device)
    for numel, offset, dtype in product(NUMELS, OFFSETS, DTYPES):
        grad, m, b = state(numel, seed=numel)
        outcomes(kernels, grad.to(dtype), m, b, 8, GuardedMemory(device, offset, guard_numel=0))
    grads, ms, bs = (list(ones) for ones in zip(*[[t.to(device) for t in state(n, n)] for n in NUMELS], strict=True))
    kernels.update_(grads, ms, bs, beta=0.9, beta_b=0.9, out_u=[torch.zeros_like(one) for one in ms])
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1])
