"""Train workers alone for some steps, then let them exchange: DiLoCo or local SGD around any optimizer.

torchrun --nproc-per-node 4 examples/train_diloco.py                       # DiLoCo, an exchange of 1 bit a parameter
torchrun --nproc-per-node 4 examples/train_diloco.py --exchange fp32
torchrun --nproc-per-node 4 examples/train_diloco.py --local-sgd --inner-steps 4
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import binsgdm

FEATURES, CLASSES = 64, 10


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", choices=["fp32", "bf16", "int8", "one_bit"], default="one_bit")
    parser.add_argument("--local-sgd", action="store_true", help="average parameters in place of an outer step")
    parser.add_argument("--inner-steps", type=int, default=10, help="from one exchange to the next")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples of each rank")
    return parser.parse_args()


def batches(seed: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels that a matrix, the same for every seed, tells apart; put your data loader here."""
    matrix = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(seed))
    return inputs.to(device), (inputs @ matrix).argmax(1).to(device)


def main() -> None:
    """Train, and print the accuracy on samples that were not trained on."""
    options = parse()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: torchrun --nproc-per-node 4 examples/train_diloco.py")
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # all ranks start from the same parameters; DDP is not needed
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)).to(device)
    inner = torch.optim.AdamW(model.parameters(), lr=options.lr)
    optimizer: binsgdm.LocalSGD | binsgdm.DiLoCo
    if options.local_sgd:
        optimizer = binsgdm.LocalSGD(inner, options.inner_steps)
    else:
        optimizer = binsgdm.DiLoCo(inner, options.inner_steps, outer_momentum=0.5, exchange=options.exchange)
    # The period is at an end when training is: from the last exchange on, each worker has parameters of its own.
    steps = -(-options.steps // options.inner_steps) * options.inner_steps
    for step in range(steps):
        inputs, labels = batches(1 + step * world_size + rank, options.batch, device)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    binsgdm.check_replicas(model)

    if rank == 0:
        inputs, labels = batches(10**6, 2000, device)
        with torch.no_grad():
            accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
        name = "local SGD" if options.local_sgd else f"DiLoCo, {options.exchange},"
        print(f"{name} on {world_size} ranks: test accuracy {accuracy:.4f} after {steps} steps")
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
