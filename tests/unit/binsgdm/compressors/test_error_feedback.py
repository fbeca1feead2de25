"""Error feedback: nothing is lost for good, whatever the bucket, the checkpoint or the gradient."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.aggregation import all_reduce_payloads, gather_payloads
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.error_feedback import ErrorFeedback, WithoutFeedback
from binsgdm.compressors.residuals import Residuals
from binsgdm.compressors.signs import ScaledSign
from binsgdm.compressors.sparse import RandomK, TopK
from binsgdm.errors import BinsgdmError

SHAPES = ((16, 12), (), (0, 3), (7,), (8, 3, 2))
NAMES = ("conv", "scale", "nothing", "bias", "head")
NUMEL = 248


def context(rank: int = 0, world_size: int = 1, step: int = 0) -> RankContext:
    return RankContext(rank=rank, world_size=world_size, ranks_per_node=1, seed=5, step=step)


def gradients(seed: int, numel: int = NUMEL) -> Any:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def bucket(values: Any, names: Any = NAMES, shapes: Any = SHAPES) -> GradientBucket:
    return GradientBucket(values=values, parameters=tuple(names), shapes=tuple(shapes))


def keep(residuals: Residuals, lost: Any) -> None:
    residuals.store(lost, bucket(torch.zeros(NUMEL)), mean=torch.zeros(NUMEL))


def mean_of(feedbacks: list[ErrorFeedback], grads: list[Any], step: int = 0) -> list[Any]:
    size = len(feedbacks)
    protocols = [
        feedback.mean(bucket(grad), context(rank, size, step))
        for rank, (feedback, grad) in enumerate(zip(feedbacks, grads, strict=True))
    ]
    return run_in_lockstep(protocols, 1)


def feedbacks(size: int, compressor: Any, aggregate: Any = gather_payloads) -> list[ErrorFeedback]:
    return [ErrorFeedback(compressor, aggregate, rank=rank, world_size=size) for rank in range(size)]


def residual(feedback: ErrorFeedback) -> Any:
    return torch.cat([feedback.residuals[name] for name in NAMES])


def test_what_was_delivered_and_the_residual_are_the_gradient_to_the_bit() -> None:
    feedback, grad = ErrorFeedback(TopK(ratio=0.1), rank=0, world_size=1), gradients(1)
    (delivered,) = mean_of([feedback], [grad])
    assert torch.equal(delivered + residual(feedback), grad)
    assert delivered.count_nonzero() == 25
    assert residual(feedback).count_nonzero() == NUMEL - 25


def test_a_lossy_delivery_and_the_residual_are_the_gradient_within_a_rounding() -> None:
    feedback, grad = ErrorFeedback(ScaledSign(), rank=0, world_size=1), gradients(2)
    (delivered,) = mean_of([feedback], [grad])
    again = delivered + residual(feedback)
    assert torch.allclose(again, grad, rtol=0, atol=2e-6)


def test_a_residual_is_added_to_the_next_gradient_and_the_gradient_is_left_alone() -> None:
    residuals, grad = Residuals(rank=0, world_size=1), gradients(3)
    keep(residuals, grad)
    after = torch.ones(NUMEL)
    assert torch.equal(residuals.corrected(bucket(after), context()), after + grad)
    assert torch.equal(after, torch.ones(NUMEL))


def test_the_residuals_follow_their_parameters_into_other_buckets() -> None:
    residuals, grad = Residuals(rank=0, world_size=1), gradients(4)
    keep(residuals, grad)
    order = [3, 0]
    names, shapes = [NAMES[number] for number in order], tuple(SHAPES[number] for number in order)
    again = residuals.corrected(bucket(torch.zeros(199), names, shapes), context())
    assert torch.equal(again, torch.cat([grad[193:200], grad[:192]]))


@pytest.mark.parametrize(
    ("compressor", "aggregate"), [(TopK(ratio=0.1), gather_payloads), (RandomK(k=20), all_reduce_payloads)]
)
def test_all_ranks_agree_and_together_lose_what_their_residuals_say(
    compressor: Any, aggregate: Callable[..., Any]
) -> None:
    ranks, grads = feedbacks(3, compressor, aggregate), [gradients(10 + rank) for rank in range(3)]
    for step in range(2):
        before = [torch.zeros(NUMEL) if step == 0 else residual(feedback) for feedback in ranks]
        results = mean_of(ranks, grads, step)
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
    ranks, grads = feedbacks(3, ScaledSign()), [gradients(20 + number) for number in range(3)]
    ranks[rank].compressor = Counting()
    results = mean_of(ranks, grads)
    assert len(calls) == 3
    plain = [WithoutFeedback(ScaledSign()).mean(bucket(grad), context(number, 3)) for number, grad in enumerate(grads)]
    assert torch.equal(results[rank], run_in_lockstep(plain, 1)[0])
    assert torch.equal(results[rank], results[1])
    key = context().common_key
    delivered = ScaledSign().decompress(ScaledSign().compress(grads[rank], SHAPES, key), SHAPES, key)
    assert torch.equal(residual(ranks[rank]), grads[rank] - delivered)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_on_one_rank_leaves_the_residuals_of_all(bad: float) -> None:
    ranks = feedbacks(2, TopK(ratio=0.1))
    mean_of(ranks, [gradients(1), gradients(2)])
    before = [residual(feedback) for feedback in ranks]
    broken = gradients(3)
    broken[5] = bad
    results = mean_of(ranks, [broken, gradients(4)], step=1)
    assert not results[1][5].isfinite()
    assert torch.equal(residual(ranks[0]), before[0])
    assert torch.equal(residual(ranks[1]), before[1])


@pytest.mark.parametrize("scale", [0.0, 1e30])
def test_zeros_and_huge_values_survive(scale: float) -> None:
    feedback, grad = ErrorFeedback(TopK(ratio=0.1), rank=0, world_size=1), gradients(6) * scale
    (delivered,) = mean_of([feedback], [grad])
    assert torch.equal(delivered + residual(feedback), grad)


def test_a_loaded_state_goes_on_bit_for_bit() -> None:
    first, second = (ErrorFeedback(TopK(ratio=0.1), rank=0, world_size=1) for _ in range(2))
    mean_of([first], [gradients(1)])
    state = first.state_dict()
    second.load_state_dict(state)
    assert torch.equal(*(mean_of([one], [gradients(2)], 1)[0] for one in (first, second)))
    assert torch.equal(residual(first), residual(second))


@pytest.mark.parametrize(("rank", "world_size"), [(0, 4), (1, 2)])
def test_the_state_of_another_rank_or_world_starts_from_zero_with_a_warning(rank: int, world_size: int) -> None:
    saved, other = Residuals(rank=0, world_size=2), Residuals(rank=rank, world_size=world_size)
    keep(saved, gradients(1))
    keep(other, gradients(2))
    with pytest.warns(UserWarning, match=f"rank 0 of 2 on rank {rank} of {world_size}: residuals start from zero"):
        other.load_state_dict(saved.state_dict())
    assert len(other) == 0


def test_a_wrong_state_is_refused() -> None:
    with pytest.raises(BinsgdmError, match="load what state_dict"):
        Residuals(rank=0, world_size=1).load_state_dict({"residuals": {}})


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(BinsgdmError, match="rank 2 of 2"):
        Residuals(rank=2, world_size=2)


def test_a_parameter_that_changed_its_shape_is_refused() -> None:
    residuals = Residuals(rank=0, world_size=1)
    residuals.store(torch.ones(4), bucket(torch.ones(4), ["w"], [(4,)]), mean=torch.zeros(4))
    with pytest.raises(BinsgdmError, match="'w' of 5 elements: its residual has 4"):
        residuals.corrected(bucket(torch.ones(5), ["w"], [(5,)]), context())


def test_values_that_do_not_fit_the_shapes_are_refused() -> None:
    with pytest.raises(BinsgdmError, match="flatten the bucket"):
        Residuals(rank=0, world_size=1).corrected(bucket(torch.ones(3), ["a"], [(4,)]), context())
