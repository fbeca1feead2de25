"""`average="gradients"`: a node behaves as one rank that had its mean gradient, and momenta are cut into slices."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.kernels import functional, select
from binsgdm.kernels.bits import unpack_signs
from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.kernels.random import thresholds
from binsgdm.optimizers.base import ParamState
from binsgdm.optimizers.settings import Scheme
from binsgdm.optimizers.worker import Worker

SHAPES = [(50,), (3, 40), (7,), (129,)]
BETAS = (0.5, 0.5, 0.9, 0.9)
SEED = 5


def node(ranks: int) -> list[Worker]:
    """Return the workers of one node; every bucket is larger than any parameter, and slices cut parameters."""
    made = []
    for rank in range(ranks):
        groups = {beta: {"lr": 0.1, "weight_decay": 0.0, "beta": beta, "maximize": False} for beta in set(BETAS)}
        param_states = [
            ParamState(
                parameter=torch.nn.Parameter(torch.zeros(shape)),
                group=groups[beta],
                state={name: torch.zeros(shape) for name in "mb"},
            )
            for shape, beta in zip(SHAPES, BETAS, strict=True)
        ]
        context = RankContext(rank=rank, world_size=ranks, ranks_per_node=ranks, seed=SEED, step=0)
        made.append(
            Worker(
                param_states,
                context=context,
                scheme=Scheme(average="gradients"),
                bucket_elements=150,
                kernels=select("reference"),
            )
        )
    return made


def momenta_of_the_mean(gradients, whole):
    """Return the next (m, b) of every parameter, by the mean gradient, summed in the order of ranks."""
    made = []
    for number, (m, b) in enumerate(whole):
        total = gradients[0][number].clone()
        for own in gradients[1:]:
            total += own[number]
        made.append(functional.momenta(total / len(gradients), m, b, beta=BETAS[number])[:2])
    return made


def draw(rank: int, step: int, element: int) -> torch.Tensor:
    """Return one threshold of a rank, counted in the flat order."""
    key = Key(seed=SEED, step=step, rank=rank, stream=RandomStream.LOCAL)
    return thresholds(key, start=element // 32 * 32, numel=32, device="cpu")[element % 32]


def exchange_in_node(workers: list[Worker], bucket) -> torch.Tensor:
    """Return the signs of a bucket, which are the same on all ranks."""
    with torch.no_grad():
        talks = [worker.signs(bucket) for worker in workers]
        signs = [unpack_signs(packed, bucket.numel) for packed in run_in_lockstep(talks, len(workers))]
    assert all(torch.equal(signs[0], other) for other in signs)
    return signs[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_signs_are_those_of_the_mean_gradient_and_each_rank_keeps_the_momenta_of_its_slice(ranks):
    source = torch.Generator().manual_seed(1)
    workers = node(ranks)
    whole = [(torch.zeros(shape), torch.zeros(shape)) for shape in SHAPES]
    for step in (1, 2):
        gradients = [[torch.randn(shape, generator=source) for shape in SHAPES] for _ in workers]
        begin(workers, gradients, step)
        whole = momenta_of_the_mean(gradients, whole)
        for bucket in workers[0].buckets:
            signs = exchange_in_node(workers, bucket)
            for segment in bucket.segments:
                check_segment(workers, bucket, segment, signs, whole[segment.index], step)


def check_segment(workers, bucket, segment, signs, momenta, step) -> None:
    u, b = functional.ratio(*momenta).view(-1), momenta[1].view(-1)
    for index in range(segment.numel):
        owner = (segment.offset + index) // (bucket.numel // len(workers))
        assert (signs[segment.offset + index] > 0) == (draw(owner, step, segment.start + index) < u[index])
        kept = [worker._param_states[segment.index].state["b"].view(-1)[index] for worker in workers]
        assert kept == [b[index] if rank == owner else 0.0 for rank in range(len(workers))]


def begin(workers: list[Worker], gradients, step: int) -> None:
    for worker, own in zip(workers, gradients, strict=True):
        for param_state, gradient in zip(worker._param_states, own, strict=True):
            param_state.parameter.grad = gradient
        worker.begin_step(step)


def test_a_parameter_without_a_gradient_on_one_rank_counts_as_zero_there():
    workers = node(2)
    ones = [torch.ones(shape) for shape in SHAPES]
    begin(workers, [ones, [*ones[:3], None]], step=1)
    for bucket in workers[0].buckets:
        exchange_in_node(workers, bucket)
    b = sum(worker._param_states[3].state["b"] for worker in workers)
    assert torch.allclose(b, torch.full((129,), 0.1 * 0.5))
    assert [worker.finite_check_flags().tolist() for worker in workers] == [[0, 1, 1, 1, 1], [0, 1, 1, 1, 0]]


def test_a_gradient_that_is_not_finite_on_one_rank_is_told_by_the_rank_whose_slice_it_is_in():
    workers = node(2)
    gradients = [[torch.ones(shape) for shape in SHAPES] for _ in workers]
    gradients[1][3][0] = torch.inf
    begin(workers, gradients, step=1)
    for bucket in workers[0].buckets:
        exchange_in_node(workers, bucket)
    assert max(worker.finite_check_flags()[0].item() for worker in workers) == 1
    b = sum(worker._param_states[3].state["b"] for worker in workers)
    assert b[0] == 0
    assert (b[1:] > 0).all()
