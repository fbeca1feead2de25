"""A model that FSDP2 shards, and the simulated step of it."""

import torch
from torch import nn

from simnet.workload.training_step import Step, Tensor

WIDTH, BLOCKS = 33, 4


class ShardedModel(nn.Module):
    """Blocks whose sizes no number of ranks divides, between two layers of the root."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
            for _ in range(BLOCKS)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Go through all layers."""
        values = self.first(inputs)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def simulated_step(micro_batches: int) -> Step:
    """Return the model's tensors in the order of backward."""
    model = ShardedModel()
    layers = [("head", model.head), ("blocks", model.blocks), ("first", model.first)]
    named = [
        (f"{prefix}.{name}", one) for prefix, layer in layers for name, one in list(layer.named_parameters())[::-1]
    ]
    tensors = tuple(
        Tensor(num_elements=float(one.numel()), backward_fraction=1 / len(named), shape=tuple(one.shape), name=name)
        for name, one in named
    )
    return Step(
        tensors=tensors,
        num_elements=sum(one.num_elements for one in tensors),
        bytes_per_element=4,
        forward_s=1.0,
        backward_s=1.0,
        optimizer_s=1.0,
        samples=1,
        micro_batches=micro_batches,
    )
