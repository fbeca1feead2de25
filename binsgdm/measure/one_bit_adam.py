"""Time what a rank computes in 1-bit Adam's compression stage, kernel by kernel, without messages."""

import math
from collections.abc import Sequence

import torch

from binsgdm.exchange import RankContext
from binsgdm.measure.timing import Stopwatch, Trial, phases
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.one_bit_adam_update import (
    apply_average,
    finite_check_flags,
    flat_gradient,
    flat_slices_of,
    local_momenta,
)
from binsgdm.optimizers.one_bit_momentum import MomentumResiduals, decode, encode_and_keep, padded_numel

LR = 1e-6


def parts(numel: int, world_size: int) -> dict[str, dict[str, int]]:
    """Return the kernels in the order in which they are timed, with the elements that each works on."""
    whole, chunk = {"num_elements": numel}, {"num_elements": padded_numel(numel, world_size) // world_size}
    return {
        "momentum": whole,
        "compress": whole,
        "server_mean": chunk | {"num_vectors": world_size},
        "server_residual": chunk,
        "decompress": whole,
        "adam_update": whole,
    }


def trial(numel: int, world_size: int, device: torch.device) -> Trial:
    """Return a trial: all of a step's computation, then its kernels; of one square parameter after a dense step.

    Args:
        numel: of the parameter, a power of two.
        world_size: ranks whose chunks are averaged.
        device: where it works.
    """
    rows = 2 ** (int(math.log2(numel)) // 2)
    parameter = torch.nn.Parameter(torch.randn(rows, numel // rows, device=device))
    parameter.grad = torch.randn_like(parameter)
    optimizer = OneBitAdam([parameter], lr=LR, dense_steps=1)
    optimizer.step()
    flat_slices = list(flat_slices_of(optimizer.param_states()))
    context = RankContext(rank=0, world_size=world_size, ranks_per_node=1, seed=0, step=2)
    residuals = MomentumResiduals.zeros(padded_numel(numel, world_size), context, "flat", device)
    watch = Stopwatch(device)

    @torch.no_grad()
    def step() -> Sequence[float]:
        marks = [watch.stamp()]
        gradient = flat_gradient(flat_slices, world_size)
        finite_check_flags(gradient, flat_slices, stop=False)
        momenta, valid = local_momenta(flat_slices, gradient)
        marks.append(watch.stamp())
        received = encode_and_keep(momenta, residuals.worker, valid, world_size)
        marks.append(watch.stamp())
        mean = decode(received).mean(dim=0)
        marks.append(watch.stamp())
        own = valid.view(world_size, -1)[0]
        row = encode_and_keep(mean.masked_fill_(~own, 0.0), residuals.server, own, 1)
        marks.append(watch.stamp())
        gathered = row.expand(world_size, -1).clone()
        marks.append(watch.stamp())
        delivered = decode(gathered).view(-1).masked_fill_(~valid, 0.0)
        marks.append(watch.stamp())
        apply_average(flat_slices, delivered)
        marks.append(watch.stamp())
        found = phases(watch, marks)
        del found[4]  # copying the gathered rows stands for receiving them, which is no kernel
        return [sum(found), *found]

    return step
