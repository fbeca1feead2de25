"""Exchanges among a part of all ranks: {0, 1} and {2, 3} of four, each with results of its own."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.distributed import parts, ranks

LAUNCHED = parts


def assert_equal_control(of_all, layout, ranks_per_node, case=parts.CASE):
    for members in layout:
        wanted = ranks.control(len(members), ranks_per_node, case, members)
        for rank in members:
            for number, (got, expected) in enumerate(zip(of_all[rank], wanted, strict=True)):
                assert torch.equal(got, expected), (rank, number)


@pytest.mark.parametrize(
    ("name", "layout", "ranks_per_node"),
    [
        ("nodes of torchrun", parts.HALVES, 2),
        ("one of each node", parts.PAIRS, 1),
        ("after others", parts.HALVES, 2),
        ("mesh without a group", parts.HALVES, 2),
    ],
)
def test_each_part_of_the_ranks_ends_with_the_parameters_of_its_own_control_to_the_bit(
    name, layout, ranks_per_node, results
):
    assert_equal_control(results[name], layout, ranks_per_node)


def test_a_part_exchanges_while_the_other_ranks_do_not_call(results):
    assert_equal_control(results["a part alone"], parts.HALVES[1:], 2, parts.OVERLAPPED)


def test_two_models_in_two_groups_exchange_in_one_backward(results):
    for number, layout in enumerate((parts.HALVES, parts.PAIRS)):
        assert_equal_control([of_rank[number] for of_rank in results["two at once"]], layout, 2, parts.OVERLAPPED)


def test_every_system_counts_ranks_by_their_position_in_the_group_in_every_topology(results):
    (names, first), *others = results["systems"]
    assert len(names) > 20
    for _, gradients in others:
        assert [name for name, one, two in zip(names, first, gradients, strict=True) if not torch.equal(one, two)] == []


def test_a_rank_that_refuses_ends_its_own_part_alone_and_is_named_by_its_global_rank(results):
    told = [said for said, _ in results["one part refuses"]]
    assert told[:2] == ["", ""]
    assert "rank 3 refused: CUDA out of memory" in told[2]
    assert told[3].startswith("CUDA out of memory")
    assert_equal_control([values for _, values in results["one part refuses"]], parts.HALVES[:1], 1)


def test_fsdp_between_nodes_that_are_a_part_of_all_ends_where_a_plain_model_of_the_same_ranks_does(results):
    start = list(parts._layers().parameters())
    for found in results["fsdp"]:
        for got, wanted, before in zip(found["fsdp"], found["plain"], start, strict=True):
            assert torch.equal(got, wanted)
            assert not torch.equal(got, before)
        assert found["replicas"].startswith("check_replicas: sharded parameters (DTensor): ranks of a node hold diff")
    assert not torch.equal(results["fsdp"][0]["fsdp"][0], results["fsdp"][1]["fsdp"][0])


def test_another_optimizer_on_what_fsdp_averages_in_the_node_only_is_refused_until_detach(results):
    for found in results["fsdp"]:
        for case in ("another optimizer", "after del"):
            assert found[case].startswith("attach_fsdp: step() of a AdamW on parameters that are exchanged")
        assert not found["an unrelated one"]
        assert not found["after detach"]


def test_the_process_group_of_a_ddp_model_says_who_averages(results):
    for rank, found in enumerate(results["ddp"]):
        assert found["nobody"] == found["compress_gradients"] == (1.5 if rank < 2 else 3.5)
        for name in ("BinSGDM", "1-bit Adam"):
            gradient, value = found[name]
            lr = 0.1 + rank // 2
            assert gradient == 1 + rank
            assert value == pytest.approx(100 + rank // 2 - lr, abs=1e-4), name


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("not in the group", [f"attach: group: this rank, {rank}, is not in it; call it on" for rank in range(4)]),
        (
            "group of other ranks",
            [
                f"attach: group of ranks [0, 1, 2, 3]: must have the ranks of the model's process_group, {half}; give"
                for half in ([0, 1], [2, 3])
                for _ in range(2)
            ],
        ),
        ("settings", ["", "", *["attach: shape of parameter 0 of rank 3: (4,): must equal rank 2's (3,)"] * 2]),
        ("values", ["", "", *["attach: parameter 0: ranks [3] differ from rank 2: parameters must be equal"] * 2]),
        ("node size", ["ranks_per_node: 4: must divide the group size 2; give the ranks of one node"] * 4),
        ("mesh of other ranks", ["mesh: ranks [0, 1, 2, 3]: must be those of the process group, ["] * 4),
        ("replicas", ["", "", *["check_replicas: 0: ranks [3] differ from rank 2: parameters must be equal"] * 2]),
    ],
)
def test_the_ranks_of_a_part_are_told_of_a_mistake_in_one_sentence_that_names_global_ranks(mistake, said, results):
    for told, wanted in zip(results["told"][mistake], said, strict=True):
        assert told.startswith(wanted)
        assert bool(told) == bool(wanted)
        assert "\n" not in told
