"""A rank's own momentum: what is compressed in place of gradients, what begins anew."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.error_feedback import LocalMomentum
from binsgdm.compressors.registry import make
from binsgdm.errors import BinsgdmError
from tests.helpers.gradient_buckets import NUMEL, bucket, means_of

RANKS = 2


def gradients(step: int) -> Any:
    return torch.randn(RANKS, NUMEL, generator=torch.Generator().manual_seed(step))


def team(name: str, **options: Any) -> list[Any]:
    return [make(name, rank=rank, world_size=RANKS, **options) for rank in range(RANKS)]


@pytest.mark.parametrize("name", ["top_k", "random_k"])
def test_where_all_is_sent_unmasked_it_is_momentum_of_the_mean_gradient(name: str) -> None:
    ends, momentum = team(name, ratio=1.0, momentum=0.9, masks_momentum=False), torch.zeros(NUMEL)
    for step in range(1, 6):
        momentum = 0.9 * momentum + gradients(step).mean(dim=0)
        torch.testing.assert_close(means_of(ends, gradients(step), step)[0], momentum, rtol=1e-5, atol=1e-6)


def test_signs_are_those_of_the_momentum() -> None:
    ends = team("sign_sgd", momentum=0.9)
    assert means_of(ends, torch.tensor([[5.0, -1.0]] * RANKS), 1, ((2,),))[0].tolist() == [1.0, -1.0]
    assert means_of(ends, torch.tensor([[-2.0, 0.5]] * RANKS), 2, ((2,),))[0].tolist() == [1.0, -1.0]
    assert means_of(team("sign_sgd"), torch.tensor([[-2.0, 0.5]] * RANKS), 2, ((2,),))[0].tolist() == [-1.0, 1.0]


def test_a_rank_clips_its_gradients_to_its_share_of_the_norm_before_they_join_the_momentum() -> None:
    momentum = LocalMomentum(0.5, clip_norm=2.0, rank=0, world_size=4)
    small, large = torch.tensor([0.6, 0.0]), torch.tensor([30.0, 40.0])
    one = momentum.added(bucket(small, ((2,),)))
    assert torch.equal(one.values, small)
    momentum.store(one.values, one, mean=small)
    torch.testing.assert_close(momentum.added(bucket(large, ((2,),))).values, torch.tensor([0.6 + 0.3, 0.8]))
    for bad in (torch.inf, torch.nan):
        assert not momentum.added(bucket(torch.tensor([bad, 1.0]), ((2,),))).values.isfinite().all()


@pytest.mark.parametrize("name", ["ef_sign_sgd", "one_bit_sgd", "sign_sgd", "marsit", "top_k", "ms_top_k", "random_k"])
def test_a_state_without_momenta_is_refused_and_one_with_them_where_there_is_none(name: str) -> None:
    options = {"ratio": 0.1} if name.endswith("_k") else {}
    (with_momentum, *_), (without, *_) = team(name, momentum=0.9, **options), team(name, **options)
    with pytest.raises(BinsgdmError, match="must have momenta"):
        with_momentum.load_state_dict(without.state_dict())
    with pytest.raises(BinsgdmError, match="state"):
        without.load_state_dict(with_momentum.state_dict())


def test_a_warm_up_falls_to_the_ratio_by_equal_factors() -> None:
    ends = team("top_k", ratio=1 / 16, warmup_steps=3)
    counts = [int(ends[0].compressor.at_step(step).num_sent(((1024,),))) for step in range(1, 6)]
    assert counts == [512, 256, 128, 64, 64]
    assert means_of(ends, gradients(1)[:1].expand(2, -1), 2)[0].count_nonzero() == round(NUMEL / 4)
