"""Two-sided error feedback: nothing is lost, every rank gets the same, and an element takes a bit."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.optimizers.one_bit_adam_plain import MomentumResiduals, decode, encode, one_bit_momentum, padded_numel

both = pytest.mark.parametrize("topology", ["flat", "hierarchical"])


def context(rank: int, world_size: int = 4, ranks_per_node: int = 2) -> RankContext:
    return RankContext(rank=rank, world_size=world_size, ranks_per_node=ranks_per_node, seed=0, step=1)


def randn(*shape: int, seed: int = 0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fresh(numel: int, topology: str, world_size: int = 4, ranks_per_node: int = 2) -> list[MomentumResiduals]:
    return [MomentumResiduals.zeros(numel, context(r, world_size, ranks_per_node), topology) for r in range(world_size)]


def exchange(values, residuals, topology, valid=None, ranks_per_node=2, on_sent=None):
    size = len(values)
    valid = torch.ones_like(values[0], dtype=torch.bool) if valid is None else valid
    contexts = [context(rank, size, ranks_per_node) for rank in range(size)]
    talks = [one_bit_momentum(*one, valid, topology) for one in zip(values, residuals, contexts, strict=True)]
    return run_in_lockstep(talks, ranks_per_node, on_sent)


def owed(residuals: list[MomentumResiduals], topology: str):
    """Return what the average still owes: the mean of the workers' residuals and the servers', in the flat order."""
    workers, servers = (torch.stack([getattr(r, name) for r in residuals]) for name in ("worker", "server"))
    if topology == "flat":
        return workers.mean(dim=0) + servers.reshape(-1)
    lanes = workers.view(2, 2, -1).mean(dim=0)
    return lanes.reshape(-1) + servers.view(2, 2, -1).transpose(0, 1).reshape(-1)


@both
@pytest.mark.parametrize("numel", [1, 7, 8193])
def test_all_ranks_agree_to_the_bit_and_nothing_is_lost(topology: str, numel: int) -> None:
    padded = padded_numel(numel, 4)
    values = torch.nn.functional.pad(randn(4, numel), (0, padded - numel))
    valid = torch.arange(padded) < numel
    residuals = fresh(padded, topology)
    delivered = torch.zeros(padded)
    for _ in range(3):
        averages = exchange(values, residuals, topology, valid)
        assert all(torch.equal(averages[0], other) for other in averages)
        delivered += averages[0]
    torch.testing.assert_close(delivered + owed(residuals, topology), 3 * values.mean(dim=0), rtol=0, atol=1e-5)
    assert not averages[0][numel:].any()
    assert not owed(residuals, topology)[numel:].any()
    if numel > 7:
        assert (delivered - 3 * values.mean(dim=0)).abs().max() > 0.5


@both
def test_a_rank_sends_a_scale_a_chunk_and_a_bit_an_element(topology: str) -> None:
    sent = [{} for _ in range(4)]

    def count(rank, message):
        num_bytes = message.sent.numel() * message.sent.element_size()
        sent[rank][message.group] = sent[rank].get(message.group, 0) + num_bytes

    exchange(randn(4, 320), fresh(320, topology), topology, on_sent=count)
    row = 4 + 80 // 8
    expected = {"flat": {"world": 5 * row}, "hierarchical": {"intra_node": 320 * 4 + 2 * row, "inter_node": 3 * row}}
    assert sent == [expected[topology]] * 4


@pytest.mark.parametrize("power", [1, 3, 9])
def test_the_compressor_contracts_by_exactly_what_the_theory_says(power: int) -> None:
    chunk = randn(1, 4096).double().pow(power).float()
    lost = (chunk - decode(encode(chunk, torch.ones_like(chunk, dtype=torch.bool)))).double().square().sum()
    squared = chunk.double().square().sum()
    delta = chunk.double().abs().sum() ** 2 / (4096 * squared)
    assert 1 / 4096 <= delta < 1
    torch.testing.assert_close(lost, (1 - delta) * squared, rtol=1e-5, atol=0)


@both
def test_elements_that_take_no_part_are_zero_and_keep_their_residuals(topology: str) -> None:
    values = randn(4, 64)
    valid = torch.arange(64) % 3 != 0
    residuals = fresh(64, topology)
    exchange(values, residuals, topology)
    before = owed(residuals, topology)
    without = exchange(values.masked_fill(~valid, 0.0), residuals, topology, valid)[0]
    assert not without[~valid].any()
    assert without[valid].all()
    assert torch.equal(owed(residuals, topology)[~valid], before[~valid])
    assert not torch.equal(owed(residuals, topology)[valid], before[valid])


@both
def test_zeros_stay_zeros_and_huge_values_stay_finite(topology: str) -> None:
    residuals = fresh(64, topology)
    assert not exchange(torch.zeros(4, 64), residuals, topology)[0].any()
    assert not owed(residuals, topology).any()
    average = exchange(randn(4, 64).sign() * 1e30, residuals, topology)[0]
    assert average.isfinite().all()
    assert average.abs().max() > 1e29
    assert owed(residuals, topology).isfinite().all()


def test_a_nan_reaches_every_rank_alike() -> None:
    values = randn(4, 64)
    values[2, 20] = torch.nan
    averages = exchange(values, fresh(64, "flat"), "flat")
    for average in averages:
        assert average.isnan().tolist() == [16 <= element < 32 for element in range(64)]
