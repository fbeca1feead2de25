"""Aborting over NCCL: kernels are stopped in every version of PyTorch, and no abort holds up the sentence."""

import threading
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm.comm import failure
from binsgdm.comm.groups import Groups


class Group:
    """A group with the backend of one version of PyTorch."""

    group_name = "g"

    def __init__(self, backend: object) -> None:
        self.backend = backend

    def _get_backend(self, device: torch.device) -> object:
        assert device.type == "cuda"
        return self.backend


@pytest.fixture
def store(monkeypatch):
    made = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    return made


def groups_of(*backends: object) -> Groups:
    made: Any = [Group(backend) for backend in backends]
    return Groups(
        world=made[0], intra_node=made[-1], inter_node=made[-1], rank=2, world_size=3, ranks_per_node=1, uses_nccl=True
    )


def backend_with(**methods: Any) -> object:
    return type("Backend", (), {name: staticmethod(method) for name, method in methods.items()})()


def test_every_group_is_aborted_once_by_the_name_that_its_version_has(store) -> None:
    called: list[str] = []
    old = backend_with(_shutdown=lambda: called.append("_shutdown"))
    new = backend_with(abort=lambda: called.append("abort"), shutdown=lambda: called.append("shutdown"))
    for backends in ((old, old), (new,), (type("Wrapper", (), {"wrapped_pg": new})(),)):
        failure.abort(groups_of(*backends), "no")
    assert called == ["_shutdown", "_shutdown", "abort", "abort"]
    assert failure.abort_reason(groups_of(old)) == "rank 2 refused: no"


def test_the_abort_of_one_communicator_does_not_wait_for_that_of_another(store) -> None:
    """NCCL waits in an abort for the GPU, on which a kernel of a group not yet aborted may spin."""
    both = threading.Barrier(2, timeout=10)
    failure.abort(groups_of(backend_with(abort=both.wait), backend_with(abort=both.wait)), "no")
    assert not both.broken


def test_an_abort_that_hangs_or_fails_does_not_hold_up_the_sentence(store, monkeypatch) -> None:
    monkeypatch.setattr(failure, "ABORT_S", 0.05)
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("NCCL error")

    failure.abort(groups_of(backend_with(abort=lambda: done.wait(30)), backend_with(abort=fail)), "too late", "gave up")
    assert failure.abort_reason(groups_of(None)) == "rank 2 gave up: too late"
    done.set()
