"""Which backend carries what, and how long ranks wait over NCCL."""

from datetime import timedelta

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm.comm import groups as grouping
from binsgdm.errors import BinsgdmError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 3)


@pytest.mark.parametrize(
    ("config", "of_cpu", "of_cuda"),
    [
        ("cpu:gloo,cuda:gloo", "gloo", "gloo"),
        ("cuda:nccl", "", "nccl"),
        ("cpu:gloo,cuda:nccl", "gloo", "nccl"),
    ],
)
def test_the_backend_follows_from_the_device_of_the_tensors(monkeypatch, config, of_cpu, of_cuda) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda _group=None: config)
    assert (grouping.backend_of(None, CPU), grouping.backend_of(None, CUDA)) == (of_cpu, of_cuda)
    assert not grouping.is_nccl(None, CPU)
    assert grouping.is_nccl(None, CUDA) == (of_cuda == "nccl")


@pytest.mark.parametrize(("config", "device"), [("cuda:nccl", CPU), ("cpu:gloo,cuda:gloo", CUDA), ("cpu:gloo", CUDA)])
def test_tensors_that_no_backend_carries_are_refused_before_a_group_is_made_for_them(
    monkeypatch, config, device
) -> None:
    """gloo carries some collectives of a GPU, but no all-to-all."""
    monkeypatch.setattr(dist, "get_backend_config", lambda _group=None: config)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda _group=None: 2)
    monkeypatch.setattr(grouping, "_made", lambda *_: pytest.fail("groups were made"))
    for call in (grouping.check_backend, lambda device: grouping.make(1, device=device)):
        with pytest.raises(
            BinsgdmError, match=f"tensors on {device.type}: the process group '{config}' must carry them; move the"
        ):
            call(device)


@pytest.mark.parametrize(
    ("config", "given", "of_torch"),
    [
        ("cpu:gloo", None, None),
        ("cpu:gloo", timedelta(seconds=5), timedelta(seconds=5)),
        ("cpu:nccl", None, timedelta(seconds=660)),
        ("cpu:nccl", timedelta(seconds=5), timedelta(seconds=65)),
    ],
)
def test_over_nccl_the_watchdog_of_pytorch_waits_longer_than_we_do(monkeypatch, config, given, of_torch) -> None:
    seen = []
    group = object()
    monkeypatch.setattr(dist, "get_backend_config", lambda _group=None: config)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda _group=None: 1)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(
        dist, "new_subgroups_by_enumeration", lambda _ranks, timeout: (seen.append(timeout) or group, [])
    )
    made = grouping.make(1, given, CPU)
    assert seen == [of_torch] * 3
    assert made.uses_nccl == ("nccl" in config)
    assert made.timeout == (given or grouping.NCCL_TIMEOUT)


@pytest.mark.usefixtures("alone")
def test_groups_of_a_part_have_names_of_their_own_that_never_come_again() -> None:
    """torch names them by how many groups a process has, which differs between ranks and comes again."""
    part = dist.new_group([0], use_local_synchronization=True)
    seen = set()
    for _ in range(3):
        made = grouping.make(1, device=CPU, group=part)
        seen |= {group.group_name for group in made.made}
        grouping.release(made)
    assert len(seen) == 9
    assert all(name.startswith("binsgdm/") for name in seen)
    assert not dist.new_group([0], use_local_synchronization=True).group_name.startswith("binsgdm/")


@pytest.mark.usefixtures("alone")
def test_a_group_of_a_part_is_not_split_from_the_communicator_of_all_ranks() -> None:
    """All ranks would have to come for that, and those of other parts do not."""
    world = dist.group.WORLD
    world.bound_device_id = CUDA
    with grouping._named("ours"):
        assert world.bound_device_id is None
    assert world.bound_device_id == CUDA
    world.bound_device_id = None


@pytest.mark.usefixtures("alone")
def test_after_a_restart_by_torchrun_groups_of_all_ranks_have_new_names_too(monkeypatch) -> None:
    assert not grouping.make(1, device=CPU).world.group_name.startswith("binsgdm/")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert grouping.make(1, device=CPU).world.group_name.startswith("binsgdm/")
    assert grouping.store_key("refused", "g") == "binsgdm/1/refused/g"


@pytest.mark.parametrize(
    ("ranks", "local_world_size", "found"),
    [([0, 1], 2, 2), ([0, 1], 8, 2), ([0, 2], 2, 1), ([1, 2, 5, 6], 4, 2), ([3, 7, 11], 4, 1)],
)
def test_nodes_of_a_part_follow_from_global_ranks(monkeypatch, ranks, local_world_size, found) -> None:
    monkeypatch.setattr(grouping, "ranks_of", lambda _group: ranks)
    monkeypatch.setattr(dist, "get_world_size", lambda _group=None: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_world_size))
    assert grouping.node_size(None) == found


@pytest.mark.parametrize(("ranks", "counts"), [([0, 1, 2], [2, 1]), ([0, 4, 5], [1, 2])])
def test_a_part_with_unequal_numbers_of_ranks_on_its_nodes_is_refused_with_the_repair(monkeypatch, ranks, counts):
    monkeypatch.setattr(grouping, "ranks_of", lambda _group: ranks)
    monkeypatch.setattr(dist, "get_world_size", lambda _group=None: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(BinsgdmError, match="must be as many on each; give ranks_per_node=1, or a group with") as error:
        grouping.node_size(None)
    assert f"ranks {ranks} are {counts} on their nodes" in str(error.value)
