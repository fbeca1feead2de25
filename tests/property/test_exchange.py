"""The 1-bit all-reduce as a whole: unbiased, the same on all ranks, and really lossy."""

import math

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import comm as exchange
from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.comm.flat_buckets import FlatBucket
from binsgdm.kernels import select
from binsgdm.kernels.keys import RandomStream

NUMEL = 8 * 6 * 2000
SIGMAS = 5
"""A correct exchange fails a check by chance with a probability below 1e-6."""
UPDATES = [
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    [1.0, -1.0, 0.5, -0.5, 0.0, 0.0],
    [0.9, 0.8, -0.3, 0.1, 0.2, 0.4],
    [-1.0, -1.0, -0.9, -1.0, -1.0, -1.0],
]


def signs_of_all(scheme: str, updates: list[float], ranks_per_node: int, step: int = 1) -> list[torch.Tensor]:
    """Return the signs (+-1) that each rank applies if rank r has the update updates[r] everywhere."""
    kernels = select("reference")
    bucket = FlatBucket(index=0, start=0, numel=NUMEL, segments=())
    talks = []
    for rank, value in enumerate(updates):
        context = RankContext(rank=rank, world_size=len(updates), ranks_per_node=ranks_per_node, seed=11, step=step)
        u = torch.full((NUMEL,), value)
        packed = torch.empty(NUMEL // 8, dtype=torch.uint8)
        stream = RandomStream.INTRA_NODE if scheme == "one_bit" else RandomStream.LOCAL
        kernels.quantize_pack(u, key=context.key(stream), start=0, out=packed)
        talks.append(
            {
                "fp32": lambda u=u, context=context: exchange.hierarchical(u, bucket, context, kernels),
                "one_bit": lambda p=packed, context=context: exchange.hierarchical_one_bit(p, bucket, context, kernels),
                "flat": lambda p=packed, context=context: exchange.flat(p, bucket, context, kernels),
            }[scheme]()
        )
    from binsgdm.kernels.bits import unpack_signs

    return [unpack_signs(packed, NUMEL) for packed in run_in_lockstep(talks, ranks_per_node)]


@pytest.mark.parametrize("scheme", ["fp32", "one_bit", "flat"])
@pytest.mark.parametrize("updates", UPDATES, ids=str)
@pytest.mark.parametrize("ranks_per_node", [1, 2, 3, 6])
def test_the_mean_sign_is_the_mean_update_and_all_ranks_agree(scheme, updates, ranks_per_node):
    signs = signs_of_all(scheme, updates, ranks_per_node)
    assert all(torch.equal(signs[0], other) for other in signs)
    mean = sum(updates) / len(updates)
    deviation = math.sqrt(max(1 - mean**2, 0.0) / NUMEL)
    assert abs(signs[0].mean().item() - mean) <= SIGMAS * deviation + 1e-6


@pytest.mark.parametrize("scheme", ["fp32", "one_bit", "flat"])
def test_the_exchange_loses_what_one_bit_must_lose(scheme):
    """Signs of two steps agree on (1 + mean^2) / 2 of the elements: not more, so draws are new, and not less."""
    first, second = (signs_of_all(scheme, UPDATES[2], 2, step)[0] for step in (1, 2))
    mean = sum(UPDATES[2]) / len(UPDATES[2])
    expected = (1 + mean**2) / 2
    deviation = math.sqrt(expected * (1 - expected) / NUMEL)
    assert abs((first == second).to(torch.float32).mean().item() - expected) <= SIGMAS * deviation
