"""Error feedback: nothing is lost for good, whatever the bucket, the checkpoint or the gradient."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.compressor import CompressorAverager, all_reduce_payloads, gather_payloads
from binsgdm.compressors.error_feedback import LocalMomentum, Residuals
from binsgdm.compressors.registry import make
from binsgdm.compressors.signs import ScaledSign
from binsgdm.compressors.sparse import RandomK, TopK
from binsgdm.errors import BinsgdmError
from tests.helpers.gradient_buckets import NAMES, NUMEL, SHAPES, bucket, context, means_of, normal


def keep(residuals: Residuals, lost: Any) -> None:
    residuals.store(lost, bucket(torch.zeros(NUMEL)), mean=torch.zeros(NUMEL))


def feedbacks(size: int, compressor: Any, aggregate: Any = gather_payloads) -> list[CompressorAverager]:
    kept = [Residuals(rank=rank, world_size=size) for rank in range(size)]
    return [CompressorAverager(compressor, aggregate, residuals=one) for one in kept]


def residual(feedback: CompressorAverager) -> Any:
    return torch.cat([feedback.residuals[name] for name in NAMES])


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_what_was_delivered_and_the_residual_are_the_gradient_to_the_bit(scale: float) -> None:
    (feedback,), grad = feedbacks(1, TopK(ratio=0.1)), normal(NUMEL, 1) * scale
    (delivered,) = means_of([feedback], [grad])
    assert torch.equal(delivered + residual(feedback), grad)
    assert delivered.count_nonzero() == 25
    assert residual(feedback).count_nonzero() == NUMEL - 25


def test_a_residual_is_added_to_the_next_gradient_and_the_gradient_is_left_alone() -> None:
    residuals, grad = Residuals(rank=0, world_size=1), normal(NUMEL, 3)
    keep(residuals, grad)
    after = torch.ones(NUMEL)
    assert torch.equal(residuals.corrected(bucket(after), context()), after + grad)
    assert torch.equal(after, torch.ones(NUMEL))


def test_the_residuals_follow_their_parameters_into_other_buckets() -> None:
    residuals, grad = Residuals(rank=0, world_size=1), normal(NUMEL, 4)
    keep(residuals, grad)
    order = [3, 0]
    names, shapes = [NAMES[number] for number in order], tuple(SHAPES[number] for number in order)
    again = residuals.corrected(bucket(torch.zeros(199), shapes, names), context())
    assert torch.equal(again, torch.cat([grad[193:200], grad[:192]]))


@pytest.mark.parametrize(
    ("compressor", "aggregate"), [(TopK(ratio=0.1), gather_payloads), (RandomK(k=20), all_reduce_payloads)]
)
def test_all_ranks_agree_and_together_lose_what_their_residuals_say(
    compressor: Any, aggregate: Callable[..., Any]
) -> None:
    ranks, grads = feedbacks(3, compressor, aggregate), [normal(NUMEL, 10 + rank) for rank in range(3)]
    for step in range(2):
        before = [torch.zeros(NUMEL) if step == 0 else residual(feedback) for feedback in ranks]
        results = means_of(ranks, grads, step)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
        lost = torch.stack([residual(feedback) for feedback in ranks]).mean(dim=0)
        corrected = torch.stack([grad + old for grad, old in zip(grads, before, strict=True)]).mean(dim=0)
        assert torch.allclose(results[0] + lost, corrected, rtol=0, atol=2e-6)
        assert not torch.equal(residual(ranks[0]), residual(ranks[1]))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_decompresses_its_own_payload_once_and_the_mean_is_the_same_to_the_bit(rank: int) -> None:
    class Counting(ScaledSign):
        def decompress(self, *given: Any) -> torch.Tensor:
            calls.append(given)
            return super().decompress(*given)

    calls: list[Any] = []
    ranks, grads = feedbacks(3, ScaledSign()), [normal(NUMEL, 20 + number) for number in range(3)]
    ranks[rank].compressor = Counting()
    results = means_of(ranks, grads)
    assert len(calls) == 3
    assert torch.equal(results[rank], means_of([CompressorAverager(ScaledSign())] * 3, grads)[0])
    assert torch.equal(results[rank], results[1])
    key = context().common_key
    delivered = ScaledSign().decompress(ScaledSign().compress(grads[rank], SHAPES, key), SHAPES, key)
    assert torch.equal(residual(ranks[rank]), grads[rank] - delivered)


def test_a_wrong_state_and_a_rank_outside_the_world_are_refused() -> None:
    with pytest.raises(BinsgdmError, match="load what state_dict"):
        Residuals(rank=0, world_size=1).load_state_dict({"residuals": {}})
    with pytest.raises(BinsgdmError, match="rank 2 of 2"):
        Residuals(rank=2, world_size=2)


def test_a_parameter_that_changed_its_shape_is_refused() -> None:
    residuals = Residuals(rank=0, world_size=1)
    residuals.store(torch.ones(4), bucket(torch.ones(4), [(4,)], ["w"]), mean=torch.zeros(4))
    with pytest.raises(BinsgdmError, match="'w' of 5 elements: its residual has 4"):
        residuals.corrected(bucket(torch.ones(5), [(5,)], ["w"]), context())


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
