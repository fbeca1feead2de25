"""Exchanges among a part of all ranks: {0, 1} and {2, 3} of four, each with results of its own."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.parallel.fsdp import attach_fsdp
from tests.distributed import ranks
from tests.helpers.launch import heard, of_all, rank_of_gloo

pytestmark = pytest.mark.slow

WORLD_SIZE = 4
HALVES, PAIRS = ((0, 1), (2, 3)), ((0, 2), (1, 3))
CASE, OVERLAPPED = ranks.Case(ranks.HIERARCHICAL, is_shaped=True), ranks.Case(ranks.FLAT, overlap=True, is_shaped=True)
TIMEOUT = timedelta(seconds=20)


def work(rank: int, folder: str) -> None:
    """Do all cases; rank 0 leaves in a file what all ranks had."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, timeout=TIMEOUT) as results:
        halves, pairs = _group_of(rank, HALVES), _group_of(rank, PAIRS)
        results |= {name: of_all(mine) for name, mine in trainings(rank, halves, pairs).items()}
        cases = mistakes(rank, halves)
        results["told"] = {name: of_all(heard(case)) for name, case in cases.items()}


def _group_of(rank: int, layout: Sequence[Sequence[int]]) -> Any:
    return [dist.new_group(list(members)) for members in layout][[rank in members for members in layout].index(True)]


def trainings(rank: int, halves: Any, pairs: Any) -> dict[str, Any]:
    """Return by name what this rank has after it has trained in its groups."""
    results: dict[str, Any] = {}
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    results["nodes of torchrun"] = ranks.train(rank, CASE, group=halves)
    results["one of each node"] = ranks.train(rank, CASE, group=pairs)
    del os.environ["LOCAL_WORLD_SIZE"]
    # Groups that not all ranks are in make torch's own counts of groups differ between the ranks of a later one.
    alone = dist.new_group([0])
    results["after others"] = ranks.train(rank, CASE, group=halves, ranks_per_node=2)
    is_second = rank in HALVES[1]
    results["a part alone"] = is_second and ranks.train(rank, OVERLAPPED, group=halves, ranks_per_node=2)
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("stage", "node", "local"))
    results["mesh without a group"] = _with_mesh_alone(rank, mesh["node", "local"])
    results["fsdp"] = in_fsdp(rank, mesh["stage", "node"], halves=pairs)
    results["systems"] = systems(rank, halves)
    results["one part refuses"] = one_part_refuses(rank, halves)
    results["two at once"] = two_models_at_once(rank, halves, pairs)
    results["ddp"] = in_ddp(rank, halves)
    if rank == 0:
        dist.destroy_process_group(alone)
    return results


def _with_mesh_alone(rank: int, mesh: Any) -> list[torch.Tensor]:
    values = ranks.parameters()
    optimizer = ranks.attached(values, CASE, mesh=mesh)
    for step in range(ranks.STEPS):
        _set_gradients(values, rank, step)
        optimizer.step()
    return [value.detach() for value in values]


def _set_gradients(values: Sequence[nn.Parameter], rank: int, step: int) -> None:
    for value, gradient in zip(values, ranks.gradients(rank, step), strict=True):
        value.grad = gradient


def in_fsdp(rank: int, mesh: Any, halves: Any) -> dict[str, Any]:
    """Return the parameters that FSDP2 and a plain model end with, which hold the same among a part of all ranks."""
    sharded: Any = _layers()
    fully_shard(sharded, mesh=mesh["node"])
    plain, steps = _layers(), range(ranks.STEPS)
    optimizers = {name: binsgdm.BinSGDM(one.parameters()) for name, one in (("fsdp", sharded), ("plain", plain))}
    attach_fsdp(optimizers["fsdp"], mesh)
    binsgdm.attach(optimizers["plain"], topology="flat", group=halves)
    for one, optimizer in ((sharded, optimizers["fsdp"]), (plain, optimizers["plain"])):
        for step in steps:
            optimizer.zero_grad()
            samples = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
            one(samples).square().mean().backward()
            optimizer.step()
    binsgdm.check_replicas(sharded, mesh.get_group(0))
    found = {"fsdp": [p.full_tensor().detach().clone() for p in sharded.parameters()]}
    found["plain"] = [p.detach().clone() for p in plain.parameters()]
    found["replicas"] = heard(lambda: binsgdm.check_replicas(sharded))
    another, unrelated = torch.optim.AdamW(sharded.parameters()), torch.optim.AdamW(plain.parameters())
    found["another optimizer"] = heard(another.step)
    found["an unrelated one"] = heard(unrelated.step)
    binsgdm.detach(optimizers["fsdp"])
    found["after detach"] = heard(another.step)
    binsgdm.attach_fsdp(optimizers["fsdp"], mesh)
    del optimizers["fsdp"], optimizer
    found["after del"] = heard(another.step)
    return found


def systems(rank: int, group: Any) -> tuple[list[str], torch.Tensor]:
    """Return the gradients that every system gives in its topologies; both halves have the same samples."""
    names, gradients = [], []
    for name, system in SYSTEMS.items():
        for topology in system.topologies:
            model = DistributedDataParallel(_layers(), process_group=group, bucket_cap_mb=0.0002)
            options = {"ratio": 0.5} if name in ("top_k", "ms_top_k", "random_k") else {}
            compress_gradients(model, name, topology=topology, ranks_per_node=1, **options)
            for step in range(2):
                model.zero_grad()
                samples = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank % 2))
                model(samples).square().mean().backward()
            names.append(f"{name}, {topology}")
            gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    return names, torch.stack(gradients)


def one_part_refuses(rank: int, group: Any) -> tuple[str, list[torch.Tensor]]:
    """Return what this rank is told, and what it ends with, where rank 3 cannot take its second step."""
    values = ranks.parameters()
    optimizer = ranks.attached(values, CASE, group=group, ranks_per_node=1)

    def steps() -> None:
        for step in range(ranks.STEPS):
            _set_gradients(values, rank, step)
            if rank == 3 and step == 1:
                transport: Any = optimizer.member.run.__self__  # type: ignore[union-attr]
                transport._receive_buffer = _have_no_memory
            optimizer.step()

    return heard(steps, torch.OutOfMemoryError), [value.detach() for value in values]


def _have_no_memory(_: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def two_models_at_once(rank: int, halves: Any, pairs: Any) -> list[list[torch.Tensor]]:
    """Return the parameters of two models whose exchanges overlap one backward, each in a group of its own."""
    models = [ranks.parameters(), ranks.parameters()]
    optimizers = [
        ranks.attached(values, OVERLAPPED, group=group, ranks_per_node=2)
        for values, group in zip(models, (halves, pairs), strict=True)
    ]
    for step in range(ranks.STEPS):
        losses = []
        for values, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            losses += [(v * g).sum() for v, g in zip(values, ranks.gradients(rank, step), strict=True)]
        sum(losses).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [[value.detach() for value in values] for values in models]


def in_ddp(rank: int, group: Any) -> dict[str, Any]:
    """Return what DDP models of a part of all ranks make of a gradient of 1 + rank, by who averages it."""
    found: dict[str, Any] = {}
    for name in ("nobody", "compress_gradients"):
        model = DistributedDataParallel(_weight(), process_group=group)
        if name != "nobody":
            compress_gradients(model, "dense", seed=rank // 2)
        _backward(model, rank)
        found[name] = float(model.module.weight.grad)
    for name, optimizer, attach in (
        ("BinSGDM", binsgdm.BinSGDM, binsgdm.attach),
        ("1-bit Adam", OneBitAdam, attach_one_bit_adam),
    ):
        # Each half starts from values of its own, with settings of its own.
        model = DistributedDataParallel(_weight(100 + rank // 2), process_group=group)
        one = optimizer(model.parameters(), lr=0.1 + rank // 2)  # type: ignore[operator]
        attach(one, model, ranks_per_node=1)
        _backward(model, rank)
        one.step()
        binsgdm.check_replicas(model)
        found[name] = float(model.module.weight.grad), float(model.module.weight.detach())
    return found


def _weight(value: float = 0.0) -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def _backward(model: nn.Module, rank: int) -> None:
    model(torch.ones(1, 1) * (1 + rank)).sum().backward()


def mistakes(rank: int, group: Any) -> dict[str, Callable[[], object]]:
    """Return by name what a user can do wrong, on all ranks alike or on one alone."""

    def attach(model: Any = None, *, width: int = 3, value: float = 0.0, **options: Any) -> None:
        parameter = nn.Parameter(torch.full((width,), value))
        optimizer = binsgdm.BinSGDM([parameter] if model is None else model.parameters())
        binsgdm.attach(optimizer, model, **{"ranks_per_node": 1} | options)

    ddp = DistributedDataParallel(_weight(), process_group=group)
    unequal = nn.ParameterList([torch.full((3,), float(rank == 3))])
    return {
        "not in the group": lambda: attach(group=dist.GroupMember.NON_GROUP_MEMBER),
        "group of other ranks": lambda: attach(ddp, group=dist.group.WORLD),
        "settings": lambda: attach(width=4 if rank == 3 else 3, group=group),
        "values": lambda: attach(value=float(rank == 3), group=group),
        "node size": lambda: attach(ranks_per_node=4, group=group),
        "mesh of other ranks": lambda: attach(group=group, mesh=init_device_mesh("cpu", (2, 2))),
        "replicas": lambda: binsgdm.check_replicas(unequal, group),
    }


def assert_equal_control(of_all, layout, ranks_per_node, case=CASE):
    for members in layout:
        wanted = ranks.control(len(members), ranks_per_node, case, members)
        for rank in members:
            for number, (got, expected) in enumerate(zip(of_all[rank], wanted, strict=True)):
                assert torch.equal(got, expected), (rank, number)


@pytest.mark.parametrize(
    ("name", "layout", "ranks_per_node"),
    [
        ("nodes of torchrun", HALVES, 2),
        ("one of each node", PAIRS, 1),
        ("after others", HALVES, 2),
        ("mesh without a group", HALVES, 2),
    ],
)
def test_each_part_of_the_ranks_ends_with_the_parameters_of_its_own_control_to_the_bit(
    name, layout, ranks_per_node, results
):
    assert_equal_control(results[name], layout, ranks_per_node)


def test_a_part_exchanges_while_the_other_ranks_do_not_call(results):
    assert_equal_control(results["a part alone"], HALVES[1:], 2, OVERLAPPED)


def test_two_models_in_two_groups_exchange_in_one_backward(results):
    for number, layout in enumerate((HALVES, PAIRS)):
        assert_equal_control([of_rank[number] for of_rank in results["two at once"]], layout, 2, OVERLAPPED)


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
    assert_equal_control([values for _, values in results["one part refuses"]], HALVES[:1], 1)


def test_fsdp_between_nodes_that_are_a_part_of_all_ends_where_a_plain_model_of_the_same_ranks_does(results):
    start = list(_layers().parameters())
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
