"""Real training steps and the simulated ones that must equal them: one model, its strategy on both sides."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam as RealOneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from simnet import strategies
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.cluster.topology import Topology
from simnet.cluster.topology import build as build_topology
from simnet.core import schema
from simnet.core.units import Bandwidth, Duration
from simnet.strategies import Strategy
from simnet.strategies.program import Communicate, Program
from simnet.workload.training_step import Step, Tensor
from tests.helpers.recorded_steps import recorded
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording

Layout = tuple[int, int]
"""Nodes, and ranks of each."""
CAP_BYTES = 1000
"""Closes the first of two buckets of `small_model`."""
CAP_MB = CAP_BYTES / 2**20
LAYOUTS = [(3, 2), *(pytest.param(layout, marks=pytest.mark.slow) for layout in ((2, 1), (2, 2), (4, 8)))]
"""Nodes of several ranks, as many as no power of two; the others where all is run."""


def small_model(*, even: bool = False) -> nn.Module:
    """Return layers whose sizes no number of ranks divides, or `even` ones, which 2, 4, 6 and 32 ranks divide.

    Ranks that choose elements of pieces must have equal pieces: what rank 0 sends is decoded as if another had sent it.
    """
    torch.manual_seed(0)
    if even:
        return nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 96))
    return nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 7), nn.Linear(7, 5))


def even_model(world_size: int) -> nn.Module:
    """Return layers that need no padding: optimizers cut all parameters into whole words of signs for each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 32 * world_size), nn.Linear(32 * world_size, 8, bias=False))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, inputs: int, micro_batches: int = 1) -> None:
    """Take three steps; the first two let DDP form its buckets."""
    for _ in range(3):
        optimizer.zero_grad()
        for index in range(micro_batches):
            is_last = index == micro_batches - 1
            if not is_last and isinstance(module, DistributedDataParallel):
                with module.no_sync():
                    module(torch.ones(2, inputs)).square().mean().backward()
            else:
                module(torch.ones(2, inputs)).square().mean().backward()
        optimizer.step()


def record(script: Callable[[], object], layout: Layout) -> dict[str, Any]:
    """Return what a script does in its third step."""
    return recorded(script, *layout, steps=1)


def of_system(
    name: str, options: dict[str, Any], layout: Layout, *, micro_batches: int = 1, even: bool = False
) -> dict[str, Any]:
    """Return a recorded step under DDP whose hook is a system; "dense" has DDP's own all-reduce."""

    def script() -> None:
        module = DistributedDataParallel(small_model(even=even), bucket_cap_mb=CAP_MB)
        if name != "dense":
            compress_gradients(module, name, **options)
        train(module, torch.optim.SGD(module.parameters(), lr=1e-3), 64, micro_batches)

    return record(script, layout)


def of_binsgdm(layout: Layout, **options: Any) -> dict[str, Any]:
    """Return a recorded step of BinSGDM."""

    def script() -> None:
        module = DistributedDataParallel(even_model(math.prod(layout)))
        rounding = {key: options[key] for key in ("rounding",) if key in options}
        optimizer = binsgdm.BinSGDM(module.parameters(), lr=1e-3, **rounding)
        binsgdm.attach(optimizer, module, **{key: one for key, one in options.items() if key != "rounding"})
        train(module, optimizer, 24)

    return record(script, layout)


def of_one_bit_adam(layout: Layout, dense_steps: int, topology: str, **options: Any) -> dict[str, Any]:
    """Return a recorded step of 1-bit Adam, dense if the dense stage has three steps or more."""

    def script() -> None:
        module = DistributedDataParallel(even_model(math.prod(layout)))
        optimizer = RealOneBitAdam(module.parameters(), dense_steps=dense_steps, topology=topology, **options)
        attach_one_bit_adam(optimizer, module)
        train(module, optimizer, 24)

    return record(script, layout)


def strategy(kind: str, **options: Any) -> Strategy:
    """Return a simulated strategy."""
    found: Strategy = schema.build(strategies.STRATEGIES.find(kind), options, kind)
    return found


def program(simulated: Strategy, recording: dict[str, Any]) -> Program:
    """Return the simulated step of the recorded model on the recorded layout."""
    return simulated.program(_step(recording), topology(recording["num_nodes"], recording["ranks_per_node"]))


def _step(recording: dict[str, Any]) -> Step:
    tensors = tuple(
        Tensor(
            num_elements=float(math.prod(gradient["shape"])),
            backward_fraction=gradient["backward_share"],
            shape=tuple(gradient["shape"]),
        )
        for gradient in recording["gradients"]
    )
    return _step_of_tensors(tensors, recording["micro_batches"])


def topology(num_nodes: int, ranks_per_node: int) -> Topology:
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(1e-6))
    cluster = Cluster(num_nodes=num_nodes, ranks_per_node=ranks_per_node, intra_node=link, inter_node=link)
    return build_topology(cluster, Calibration())


def is_hop_of_marsit(topology: str | None, layout: Layout) -> Callable[[Communicate], bool]:
    """Tell rings in which ranks merge what arrives; a hierarchical topology swaps and gathers inside the node."""

    def is_hop(one: Communicate) -> bool:
        group = one.schedule.group
        is_scale = one.schedule.collective == "all_gather" and one.message_bytes == 4 * group.size
        is_in_node = topology == "hierarchical" and (group.size, group.stride) == (layout[1], 1)
        return one.schedule.algorithm == "ring" and not is_scale and not is_in_node

    return is_hop


def forms(
    simulated: Strategy, recording: dict[str, Any], is_hops: Callable[[Communicate], bool] = lambda _: False
) -> tuple[StepForm, StepForm]:
    """Return the recorded and the simulated step in the form in which they are compared."""
    return form_of_recording(recording), form_of_program(program(simulated, recording), is_hops)


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
    return _step_of_tensors(tensors, micro_batches)


def _step_of_tensors(tensors: tuple[Tensor, ...], micro_batches: int) -> Step:
    """Return a step of gradients in fp32 whose times do not matter: each part takes a second."""
    return Step(
        tensors=tensors,
        num_elements=sum(tensor.num_elements for tensor in tensors),
        bytes_per_element=4,
        forward_s=1.0,
        backward_s=1.0,
        optimizer_s=1.0,
        samples=1,
        micro_batches=micro_batches,
    )
