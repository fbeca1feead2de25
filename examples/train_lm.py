"""Train a small transformer to predict the next character of Python's standard library, with BinSGDM or Adam.

python examples/train_lm.py                               # one process
torchrun --nproc-per-node 4 examples/train_lm.py          # gloo on CPU, NCCL where every rank has a GPU
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm

NUM_CHARACTERS, CONTEXT, WIDTH = 128, 64, 64  # ASCII; other characters are dropped
# In characters of the text.
PARTS = {"train": (0, 800_000), "validation": (800_000, 900_000), "test": (900_000, 1_000_000)}


def text(part: str) -> torch.Tensor:
    """Return a part of the first million characters of the standard library's top-level modules, by file name."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    characters = b"".join(file.read_text("utf-8").encode("ascii", "ignore") for file in files)
    begin, end = PARTS[part]
    return torch.frombuffer(bytearray(characters[begin:end]), dtype=torch.uint8).long()


class Transformer(nn.Module):
    """Causal layers; by default two of width 64, 121 thousand parameters."""

    def __init__(self, width: int = WIDTH, num_layers: int = 2, num_heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(NUM_CHARACTERS, width)
        self.positions = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, NUM_CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, context, character) of the next character."""
        hidden = self.characters(characters) + self.positions.weight
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Return nats per character over windows (batch, context + 1)."""
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", choices=["binsgdm", "adam"], default="binsgdm")
    parser.add_argument("--lr", type=float, help="at the start; falls to 0 along a cosine (default 6e-3, Adam 9e-3)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="windows of all ranks together")
    parser.add_argument("--ranks-per-node", type=int, help="(default: LOCAL_WORLD_SIZE of torchrun)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.lr = options.lr or (6e-3 if options.optimizer == "binsgdm" else 9e-3)
    return options


def join_ranks() -> tuple[int, int, torch.device]:
    """Join the process group if torchrun started this process; return rank, world size and device."""
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if "RANK" not in os.environ:
        return 0, 1, device
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    return dist.get_rank(), dist.get_world_size(), device


def main() -> None:
    """Train, and print the loss on test text."""
    options = parse()
    rank, world_size, device = join_ranks()
    torch.manual_seed(options.seed)
    network = Transformer().to(device)
    model = DistributedDataParallel(network) if dist.is_initialized() else network
    optimizer: torch.optim.Optimizer
    if options.optimizer == "binsgdm":
        optimizer = binsgdm.BinSGDM(model.parameters(), lr=options.lr, seed=options.seed)
        # From here on DDP leaves the gradients local; the ranks exchange signs in optimizer.step().
        binsgdm.attach(optimizer, model, ranks_per_node=options.ranks_per_node)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / options.steps)
    )
    windows = text("train").to(device).unfold(0, CONTEXT + 1, 1)
    draws = torch.Generator().manual_seed(options.seed)  # on all ranks alike; each takes its share of a batch
    for _ in range(options.steps):
        batch = torch.randint(len(windows), (options.batch,), generator=draws)[rank::world_size]
        optimizer.zero_grad()
        loss(model, windows[batch]).backward()
        optimizer.step()
        schedule.step()
    if dist.is_initialized():
        binsgdm.check_replicas(model)  # raises unless all ranks hold the same bits
    if rank == 0:
        held_out = text("test").to(device).unfold(0, CONTEXT + 1, CONTEXT + 1)[:200]
        with torch.no_grad():
            nats = loss(network, held_out).item()
        print(f"{options.optimizer} on {world_size} ranks: test loss {nats:.4f} nats after {options.steps} steps")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
