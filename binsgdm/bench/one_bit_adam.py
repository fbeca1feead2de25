"""Time what a rank computes in 1-bit Adam's compression stage, kernel by kernel, without messages."""

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch

from binsgdm.bench.kernel_bytes import bytes_per_element
from binsgdm.bench.timing import Stopwatch, Trial, phases
from binsgdm.comm import RankContext
from binsgdm.comm.messages import fake_received
from binsgdm.optimizers.one_bit_adam import OneBitAdam, finite_check_flags
from binsgdm.optimizers.one_bit_adam_cpu import CpuPasses, is_used_on
from binsgdm.optimizers.one_bit_adam_plain import (
    FlatSlice,
    MomentumResiduals,
    PlainPasses,
    apply_average,
    decode,
    encode_and_keep,
    local_momenta,
    padded_numel,
)

LR = 1e-6
LEAST_SHARE = 0.01
"""Of a pass: what a kernel in it takes at least, where the difference of two times leaves nothing of it."""


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
    slices = optimizer.slices()
    context = RankContext(rank=0, world_size=world_size, ranks_per_node=1, seed=0, step=2)
    residuals = MomentumResiduals.zeros(padded_numel(numel, world_size), context, "flat", device)
    watch = Stopwatch(device)
    if is_used_on(device):
        return _trial_of_passes(slices, residuals, context, watch)

    @torch.no_grad()
    def step() -> Sequence[float]:
        marks = [watch.stamp()]
        passes = PlainPasses(slices, world_size)
        passes.read_gradients([parameter.grad], None, is_sent=False)
        finite_check_flags([True], passes.are_small, False, device)
        momenta, valid = local_momenta(slices, passes.gradient)
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
        apply_average(slices, delivered)
        marks.append(watch.stamp())
        found = phases(watch, marks)
        del found[4]  # copying the gathered rows stands for receiving them, which is no kernel
        return [sum(found), *found]

    return step


def _trial_of_passes(
    slices: Sequence[FlatSlice], residuals: MomentumResiduals, context: RankContext, watch: Stopwatch
) -> Trial:
    """Return a trial of a CPU's compiled passes, each of which does the work of two kernels, and shares its time out.

    The second server kernel is timed by itself, what is left of its pass is the first; others go by the bytes moved.
    """
    from binsgdm.kernels import cpu_adam  # which needs numba

    passes, gradients = CpuPasses(slices, context.world_size), [one.parameter.grad for one in slices]
    mean, residual = torch.randn_like(residuals.server), torch.zeros_like(residuals.server)
    bits, counts = torch.full((mean.numel() // 8,), 255, dtype=torch.uint8), np.array([mean.numel()])

    @torch.no_grad()
    def step() -> Sequence[float]:
        marks = [watch.stamp()]
        passes.read_gradients(gradients, None, is_sent=False)
        finite_check_flags([True], passes.are_small, False, mean.device)
        marks.append(watch.stamp())
        exchange = passes.compressed_step(slices, residuals, context, "flat")
        sent = next(exchange).sent
        marks.append(watch.stamp())
        row = exchange.send(sent)
        marks.append(watch.stamp())
        gathered = fake_received(row, context)
        marks.append(watch.stamp())
        with suppress(StopIteration):
            exchange.send(gathered)
        marks.append(watch.stamp())
        cpu_adam.encode_values(mean, residual, bits, counts)
        marks.append(watch.stamp())
        gather_s, encode_s, server_s, _, update_s, residual_s = phases(watch, marks)
        momentum_s, compress_s = _shared_out(encode_s, ("momentum", "compress"))
        mean_s = max(server_s - residual_s, LEAST_SHARE * server_s)
        found = [gather_s + momentum_s, compress_s, mean_s, server_s - mean_s]
        found += _shared_out(update_s, ("decompress", "adam_update"))
        return [sum(found), *found]

    return step


def _shared_out(pass_s: float, kernels: Sequence[str]) -> list[float]:
    """Return the seconds of each kernel of a pass over the same elements, by the bytes that it moves."""
    moved = [bytes_per_element(name) or 0.0 for name in kernels]
    return [pass_s * one / sum(moved) for one in moved]
