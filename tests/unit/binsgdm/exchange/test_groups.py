"""Which backend carries what, and how long ranks wait over NCCL."""

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import groups as grouping

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
def test_tensors_that_no_backend_carries_are_refused(monkeypatch, config, device) -> None:
    """gloo carries some collectives of a GPU, but no all-to-all."""
    monkeypatch.setattr(dist, "get_backend_config", lambda _group=None: config)
    with pytest.raises(
        BinsgdmError, match=f"tensors on {device.type}: the process group '{config}' must carry them; move the"
    ):
        grouping.check_backend(device)


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
    monkeypatch.setattr(dist, "new_group", lambda timeout: seen.append(timeout) or group)
    monkeypatch.setattr(
        dist, "new_subgroups_by_enumeration", lambda _ranks, timeout: (seen.append(timeout) or group, [])
    )
    made = grouping.make(1, given, CPU)
    assert seen == [of_torch] * 3
    assert made.uses_nccl == ("nccl" in config)
    assert made.timeout == (given or grouping.NCCL_TIMEOUT)
