"""Train under DistributedDataParallel with compressed gradients: any optimizer, any system of binsgdm.

torchrun --nproc-per-node 4 examples/compress_gradients.py                       # PowerSGD
torchrun --nproc-per-node 4 examples/compress_gradients.py --system top_k        # 1 % of the elements
python examples/compress_gradients.py --help                                     # all systems
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm

FEATURES, CLASSES = 64, 10


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=list(binsgdm.SYSTEMS), default="power_sgd")
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
        raise SystemExit("start it with torchrun: torchrun --nproc-per-node 4 examples/compress_gradients.py")
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)).to(device)
    model = DistributedDataParallel(network)
    # The one line more than plain DDP. The state_dict() of what it returns belongs in the checkpoint of each rank:
    # the residuals, what compression has lost so far, differ between ranks.
    binsgdm.compress_gradients(model, options.system)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for step in range(options.steps):
        inputs, labels = batches(1 + step * world_size + rank, options.batch, device)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    if rank == 0:
        inputs, labels = batches(10**6, 2000, device)
        with torch.no_grad():
            accuracy = (network(inputs).argmax(1) == labels).float().mean().item()
        print(f"{options.system} on {world_size} ranks: test accuracy {accuracy:.4f} after {options.steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
