"""Let PyTorch's CUDA sanitizer judge exchanges beside backward: `python -m binsgdm.bench.gpu.sanitized DEVICE`.

What it finds is printed, in one line; nothing if that is nothing.
"""

import sys

import torch
import torch.distributed as dist

from binsgdm.bench.gpu.overlap import QUICK_SIDE, LateTraining
from binsgdm.bench.gpu.sanitizer import found_by_sanitizer
from binsgdm.bench.gpu.worker import end_with_parent
from binsgdm.comm import groups
from binsgdm.optimizers.sign_exchange import SCHEMES


def main(device_name: str) -> None:
    """Train with exchanges in BinSGDM and in DDP's hook, as one rank."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    training = LateTraining(groups=groups.make(1), device=device, side=QUICK_SIDE)

    def work() -> None:
        for scheme in SCHEMES:
            # The sanitizer does not see kernels of Triton.
            training.with_binsgdm(scheme, overlap=True, kernels="reference")
        training.with_system("dense")

    sys.stdout.write(found_by_sanitizer(work) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
