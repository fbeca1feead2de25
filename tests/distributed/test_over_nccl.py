"""All that crosses ranks keeps to NCCL's rules, and a rank that fails there ends the others with its sentence."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import AllReduceSum, run_in_lockstep
from binsgdm.compressors.registry import SYSTEMS
from tests.distributed import over_nccl, ranks
from tests.helpers.launch import launch, once

pytestmark = pytest.mark.slow

SECONDS = 90
"""Far above what a case takes, far below the two minutes after which a rank would give up."""


def left_by(tmp_path_factory, work, nprocs):
    """Return what each of the ranks that do some work has left."""
    folder = once(tmp_path_factory, f"over_nccl_{work.__name__}", lambda path: launch(work, str(path), nprocs=nprocs))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(nprocs)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return left_by(tmp_path_factory, over_nccl.work, over_nccl.WORLD_SIZE)


@pytest.fixture(scope="module")
def of_cards(tmp_path_factory):
    return left_by(tmp_path_factory, over_nccl.on_cards, over_nccl.CARDS)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return left_by(tmp_path_factory, over_nccl.fail, over_nccl.FAILING)


@pytest.mark.parametrize("name", over_nccl.GROUPS)
def test_every_message_arrives_in_every_dtype(results, name):
    members = {"world": [0, 1, 2, 3], "intra_node": [2, 3], "inter_node": [1, 3]}[name]
    before, numel = members[members.index(3) - 1], 24
    rows = [rank for rank in members for _ in range(numel)]
    thirds = [rank for rank in members for _ in range(numel // len(members))]
    count = len(over_nccl.DTYPES)
    wanted = (
        [rows] * count + [[before] * numel] * count + [thirds] * count + [[sum(members)] * numel] * 2 + [[3] * numel]
    )
    assert [answer.tolist() for answer in results[3]["messages", name]] == wanted


@pytest.mark.parametrize("case", [*over_nccl.BINSGDM, "mesh"], ids=str)
def test_binsgdm_gets_to_the_bit_what_one_process_gets_for_all_ranks(results, case):
    trained = over_nccl.BINSGDM[0] if case == "mesh" else case
    wanted = ranks.control(over_nccl.WORLD_SIZE, over_nccl.RANKS_PER_NODE, trained)
    for of_rank in results:
        assert all(torch.equal(*pair) for pair in zip(of_rank[case], wanted, strict=True))


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("where", ["results", "of_cards"])
def test_every_system_gets_what_one_process_gets_for_all_ranks(request, where, system):
    """On GPUs, too, nothing of any system is sent from another device."""
    found = request.getfixturevalue(where)
    kinds = set()
    protocols = [over_nccl.protocol_of(system, rank, len(found)) for rank in range(len(found))]
    wanted = run_in_lockstep(protocols, len(found) // 2, lambda _, message: kinds.add(type(message)))
    for of_rank in found:
        if AllReduceSum in kinds:  # whose order is the backend's
            torch.testing.assert_close(of_rank[system], wanted[0], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(of_rank[system], wanted[0])


def test_one_bit_adam_and_a_system_in_backward_leave_the_same_on_all_ranks(results):
    first = results[0]
    for other in results[1:]:
        assert torch.equal(first["1-bit Adam"], other["1-bit Adam"])
        assert all(torch.equal(*pair) for pair in zip(first["in backward"], other["in backward"], strict=True))
    assert first["1-bit Adam"].count_nonzero() == first["1-bit Adam"].numel()


@pytest.mark.parametrize("optimizer", ["BinSGDM", "OneBitAdam"])
def test_optimizers_attach_and_step_on_gpus_that_are_not_the_current_ones(of_cards, optimizer):
    one, two = (of_rank[optimizer][0] for of_rank in of_cards)
    assert torch.equal(one, two)
    assert one.count_nonzero() == one.numel()


def test_replicas_on_gpus_are_compared_with_two_waits_however_many_parameters_there_are(of_cards):
    assert [of_rank["BinSGDM"][1] for of_rank in of_cards] == [2, 2]


def test_all_ranks_use_their_communicators_in_the_same_order(results):
    """Two communicators that a GPU uses in another order than another GPU may wait for each other for ever."""
    assert len(results[0]["calls"]) > 100
    assert all(of_rank["calls"] == results[0]["calls"] for of_rank in results)


def test_communicators_are_made_when_ranks_attach_and_by_no_other_thread(results):
    assert {thread for of_rank in results for thread in of_rank["made in"]} == {"MainThread"}


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("overlapped", "BinSGDM: a sparse gradient of shape (40,): must be dense"),
        ("out of memory", "CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("hook", "svd did not converge"),
    ],
)
def test_what_one_rank_cannot_exchange_is_told_to_all(told, case, sentence):
    for rank, of_rank in enumerate(told):
        kind, text, seconds = of_rank[case]
        assert sentence in text
        assert (f"rank {over_nccl.WRONG} refused: " in text) == (rank != over_nccl.WRONG)
        assert kind == "BinsgdmError" or rank == over_nccl.WRONG
        assert kind == "OutOfMemoryError" or (case, rank) != ("out of memory", over_nccl.WRONG)
        assert seconds < SECONDS


@pytest.mark.parametrize("name", over_nccl.LOST)
def test_a_rank_that_is_gone_is_named_to_the_others_after_the_timeout(told, name):
    for rank, of_rank in enumerate(told):
        if rank != over_nccl.WRONG:
            kind, text, seconds = of_rank[name]
            assert kind == "BinsgdmError"
            assert f"no answer for 3 s, rank {over_nccl.WRONG} not among those that wait" in text
            assert text.startswith(f"{name}: ")
            assert "a rank is gone or did not take this step; start all ranks again" in text
            assert seconds < SECONDS
