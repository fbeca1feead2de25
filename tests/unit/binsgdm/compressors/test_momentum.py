"""A rank's own momentum: what is compressed in place of gradients, what begins anew, and what a checkpoint keeps."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.momentum import LocalMomentum
from binsgdm.compressors.registry import make
from binsgdm.errors import BinsgdmError

SHAPES = ((30, 10), (20,), ())
NUMEL = 321
RANKS = 2
SYSTEMS: list[tuple[str, dict[str, Any]]] = [
    ("ef_sign_sgd", {}),
    ("one_bit_sgd", {}),
    ("sign_sgd", {}),
    ("marsit", {"sync_period": 3, "residual_decay": 0.5}),
    ("top_k", {"ratio": 0.1}),
    ("ms_top_k", {"ratio": 0.1, "masks_momentum": False, "clip_norm": 1.0}),
    ("random_k", {"ratio": 0.1, "warmup_steps": 3}),
]
by_system = pytest.mark.parametrize(("name", "options"), SYSTEMS, ids=[name for name, _ in SYSTEMS])


def gradients(step: int, numel: int = NUMEL) -> Any:
    return torch.randn(RANKS, numel, generator=torch.Generator().manual_seed(step))


def bucket(values: Any) -> GradientBucket:
    shapes = SHAPES if values.numel() == NUMEL else ((values.numel(),),)
    return GradientBucket(values=values, parameters=tuple(range(len(shapes))), shapes=shapes)


def team(name: str, **options: Any) -> list[Any]:
    return [make(name, rank=rank, world_size=RANKS, **options) for rank in range(RANKS)]


def means(ends: list[Any], values: Any, step: int) -> list[Any]:
    contexts = [RankContext(rank=rank, world_size=RANKS, ranks_per_node=1, seed=3, step=step) for rank in range(RANKS)]
    protocols = [end.mean(bucket(row), at) for end, row, at in zip(ends, values, contexts, strict=True)]
    return run_in_lockstep(protocols, 1)


@pytest.mark.parametrize("name", ["top_k", "random_k"])
def test_where_all_is_sent_unmasked_it_is_momentum_of_the_mean_gradient(name: str) -> None:
    ends, momentum = team(name, ratio=1.0, momentum=0.9, masks_momentum=False), torch.zeros(NUMEL)
    for step in range(1, 6):
        momentum = 0.9 * momentum + gradients(step).mean(dim=0)
        torch.testing.assert_close(means(ends, gradients(step), step)[0], momentum, rtol=1e-5, atol=1e-6)


def test_signs_are_those_of_the_momentum() -> None:
    ends = team("sign_sgd", momentum=0.9)
    assert means(ends, torch.tensor([[5.0, -1.0]] * RANKS), 1)[0].tolist() == [1.0, -1.0]
    assert means(ends, torch.tensor([[-2.0, 0.5]] * RANKS), 2)[0].tolist() == [1.0, -1.0]
    assert means(team("sign_sgd"), torch.tensor([[-2.0, 0.5]] * RANKS), 2)[0].tolist() == [-1.0, 1.0]


def test_a_rank_clips_its_gradients_to_its_share_of_the_norm_before_they_join_the_momentum() -> None:
    momentum = LocalMomentum(0.5, clip_norm=2.0, rank=0, world_size=4)
    small, large = torch.tensor([0.6, 0.0]), torch.tensor([30.0, 40.0])
    one = momentum.added(bucket(small))
    assert torch.equal(one.values, small)
    momentum.store(one, one.values, mean=small)
    torch.testing.assert_close(momentum.added(bucket(large)).values, torch.tensor([0.6 + 0.3, 0.8]))
    for bad in (torch.inf, torch.nan):
        assert not momentum.added(bucket(torch.tensor([bad, 1.0]))).values.isfinite().all()


@by_system
def test_a_gradient_that_is_not_finite_on_one_rank_leaves_the_momenta_of_all(name: str, options: Any) -> None:
    ends = team(name, momentum=0.9, **options)
    means(ends, gradients(1), 1)
    before = [end.state_dict()["momenta"]["residuals"] for end in ends]
    bad = gradients(2)
    bad[1, 7] = torch.nan
    assert not means(ends, bad, 2)[0].isfinite().all()
    for old, end in zip(before, ends, strict=True):
        kept = end.state_dict()["momenta"]["residuals"]
        assert all(torch.equal(old[parameter], kept[parameter]) for parameter in old)


@by_system
def test_a_loaded_state_goes_on_bit_for_bit(name: str, options: Any) -> None:
    straight, resumed = team(name, momentum=0.9, **options), team(name, momentum=0.9, **options)
    for step in range(1, 4):
        means(straight, gradients(step), step)
    for old, new in zip(straight, resumed, strict=True):
        new.load_state_dict(pickle.loads(pickle.dumps(old.state_dict())))
    for step in range(4, 8):
        ours, theirs = (means(ends, gradients(step), step)[0] for ends in (straight, resumed))
        assert torch.equal(ours, theirs)
    forgetful = team(name, momentum=0.9, **options)
    assert not torch.equal(means(forgetful, gradients(7), 7)[0], theirs)


@by_system
def test_a_state_without_momenta_is_refused_and_one_with_them_where_there_is_none(name: str, options: Any) -> None:
    plain = {key: value for key, value in options.items() if key != "clip_norm"}
    (with_momentum, *_), (without, *_) = team(name, momentum=0.9, **options), team(name, **plain)
    with pytest.raises(BinsgdmError, match="must have momenta"):
        with_momentum.load_state_dict(without.state_dict())
    with pytest.raises(BinsgdmError, match="state"):
        without.load_state_dict(with_momentum.state_dict())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clip_norm": 0.0}, "clip_norm: 0.0: must be above 0"),
        ({"masks_momentum": 2}, "masks_momentum: 2: must be one of"),
        ({"warmup_steps": -1}, "warmup_steps: -1: must be a whole number"),
        ({"ratio": None, "k": 3, "warmup_steps": 2}, "warmup_steps: 2: needs ratio"),
        ({"unbiased": True, "momentum": 0.9}, "have no effect with unbiased=True"),
    ],
)
def test_a_remedy_out_of_range_is_refused_in_a_sentence(options: Any, sentence: str) -> None:
    with pytest.raises(BinsgdmError, match=f"random_k: .*{sentence}"):
        make("random_k", rank=0, world_size=1, **{"ratio": 0.1, **options})


def test_a_warm_up_falls_to_the_ratio_by_equal_factors() -> None:
    ends = team("top_k", ratio=1 / 16, warmup_steps=3)
    counts = [int(ends[0].compressor.at_step(step).num_kept(((1024,),))) for step in range(1, 6)]
    assert counts == [512, 256, 128, 64, 64]
    values = replace(bucket(torch.ones(NUMEL)), values=gradients(1)[0]).values
    assert means(ends, torch.stack([values, values]), 2)[0].count_nonzero() == round(NUMEL / 4)
