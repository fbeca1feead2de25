"""Real ZeRO steps and 8-bit all-reduces are the simulated ones: messages, groups, bytes, order, waits.

torch has ZeRO as `ZeroRedundancyOptimizer`, which all-reduces and broadcasts. That which scatters gradients and gathers
parameters, as DeepSpeed and Megatron do, is a short script on torch.distributed, `ShardedSgd`, which is checked to
train as plain SGD does; those two themselves are not run.
"""

import json
import math
import warnings
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import CAP_MB, LAYOUTS, Layout
from tests.helpers.launch import join, launch

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of what torch itself does
    from torch.distributed.optim import ZeroRedundancyOptimizer

CAP = f"{steps.CAP_BYTES} B"
NARROW_CAP_BYTES = 300  # closes the first of two buckets of `narrow_model`
BROADCAST = {"update": "broadcast", "bucket_cap": f"{NARROW_CAP_BYTES} B"}


def narrow_model() -> nn.Module:
    """Return layers of which a vector is larger than a matrix, so that parameter groups change who has what."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 60), nn.Linear(60, 1), nn.Linear(1, 30))


def grouped(module: nn.Module, param_groups: str) -> list:
    """Return the parameters of a module, or first its matrices and then its vectors."""
    if param_groups == "one":
        return list(module.parameters())
    return [
        {"params": [parameter for parameter in module.parameters() if (parameter.ndim > 1) == wide]}
        for wide in (True, False)
    ]


def of_zero_redundancy(
    layout: Layout, *, param_groups: str = "one", parameters_as_bucket_view: bool = False, micro_batches: int = 1
) -> dict:
    """Return a recorded step of torch's sharded optimizer over DDP."""

    def script() -> None:
        module = DistributedDataParallel(narrow_model(), bucket_cap_mb=NARROW_CAP_BYTES / 2**20)
        optimizer = ZeroRedundancyOptimizer(
            grouped(module, param_groups), torch.optim.Adam, parameters_as_bucket_view=parameters_as_bucket_view
        )
        steps.train(module, optimizer, 2, micro_batches)

    return steps.record(script, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("param_groups", ["one", "by_dimensions"])
@pytest.mark.parametrize("parameters_as_bucket_view", [False, True])
def test_torchs_sharded_optimizer_does_what_is_simulated(parameters_as_bucket_view, param_groups, layout):
    options = {"param_groups": param_groups, "parameters_as_bucket_view": parameters_as_bucket_view}
    real, simulated = steps.forms(
        steps.strategy("zero1", **BROADCAST, **options), of_zero_redundancy(layout, **options)
    )
    assert real == simulated
    assert [message.kind for message in real.sent].count("broadcast") == (
        math.prod(layout) if parameters_as_bucket_view else 6
    )


@pytest.mark.parametrize("parameters_as_bucket_view", [False, True])
def test_a_recorded_step_is_sent_by_the_same_schedules(parameters_as_bucket_view, tmp_path):
    """So that messages take the same time."""
    recording = of_zero_redundancy((2, 2), parameters_as_bucket_view=parameters_as_bucket_view)
    source = {"how": "record", "compute": "counted"}
    data = {"format": "simnet-step", "version": 1, "source": source, "recordings": [recording]}
    (tmp_path / "step.json").write_text(json.dumps(data))
    strategies = (
        steps.strategy("recorded", file=str(tmp_path / "step.json")),
        steps.strategy("zero1", **BROADCAST, parameters_as_bucket_view=parameters_as_bucket_view),
    )
    recorded, built_in = (steps.program(strategy, recording).collectives for strategy in strategies)
    assert [one.schedule for one in recorded] == [one.schedule for one in built_in]
    assert [one.message_bytes for one in recorded] == [one.message_bytes for one in built_in]


def test_micro_batches_but_the_last_are_not_reduced():
    recording = of_zero_redundancy((2, 2), micro_batches=3)
    real, simulated = steps.forms(steps.strategy("zero1", **BROADCAST), recording)
    assert (real, recording["micro_batches"]) == (simulated, 3)


def inputs(rank: int, micro_batch: int) -> torch.Tensor:
    """Return samples of one rank."""
    return torch.randn(2, 64, generator=torch.Generator().manual_seed(100 * rank + micro_batch))


def train_sharded(kind: str, *, rank: int = 0, micro_batches: int = 1, in_forward: bool = False) -> nn.Module:
    """Train by hand: ZeRO-1 accumulates whole gradients, ZeRO-2 scatters those of every micro-batch."""
    module = DistributedDataParallel(steps.small_model(), bucket_cap_mb=CAP_MB)
    optimizer = ShardedSgd(module, lr=0.1, in_forward=in_forward)
    module(inputs(rank, 0)).square().mean().backward()
    optimizer.forget()
    for _ in range(3):
        optimizer.zero_grad()
        for index in range(micro_batches):
            module.require_backward_grad_sync = kind == "zero2" or index == micro_batches - 1
            module(inputs(rank, index)).square().mean().backward()
            if kind == "zero2":
                optimizer.zero_grad()
        optimizer.step()
    optimizer.finish()
    return module.module


def train_alone(world_size: int, micro_batches: int) -> nn.Module:
    """Train by SGD on the samples of all ranks."""
    model = steps.small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for rank in range(world_size):
            for index in range(micro_batches):
                (model(inputs(rank, index)).square().mean() / world_size).backward()
        optimizer.step()
    return model


FORMS = [(kind, micro_batches, early) for kind in ("zero1", "zero2") for micro_batches in (1, 3) for early in (0, 1)]


def check_training(rank: int, folder: str) -> None:
    join(rank, 3, folder)
    for kind, micro_batches, in_forward in FORMS:
        found = train_sharded(kind, rank=rank, micro_batches=micro_batches, in_forward=bool(in_forward))
        for one, other in zip(found.parameters(), train_alone(3, micro_batches).parameters(), strict=True):
            torch.testing.assert_close(one, other)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_step_by_hand_trains_as_sgd_does(tmp_path):
    launch(check_training, str(tmp_path), nprocs=3)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("kind", "micro_batches", "in_forward"), FORMS)
def test_scattered_gradients_and_gathered_parameters_are_the_simulated_ones(kind, micro_batches, in_forward, layout):
    options = {"micro_batches": micro_batches, "in_forward": bool(in_forward)}
    recording = steps.record(lambda: train_sharded(kind, **options), layout)
    simulated = steps.strategy(kind, bucket_cap=CAP, overlap_param_gather=bool(in_forward))
    real, wanted = steps.forms(simulated, recording)
    assert real == wanted
    reduced = micro_batches if kind == "zero2" else 1
    assert [message.kind for message in real.sent].count("reduce_scatter") == 2 * reduced
    assert [one.kind for one in real.sent].count("all_gather") == 2


BYTES = [("int8", {}, {}), ("fp8", {}, {"dtype": "fp8_e4m3"}), ("fp8", {"dtype": "fp8_e5m2"}, {"dtype": "fp8_e5m2"})]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("kind", "options", "of_system"), BYTES)
def test_an_all_reduce_of_bytes_is_the_systems_scatter_reduce(kind, options, of_system, layout):
    recording = steps.of_system("byte_grad", {"topology": "scatter_reduce", **of_system}, layout)
    real, simulated = steps.forms(steps.strategy(kind, bucket_cap=CAP, **options), recording)
    assert real == simulated
    assert [message.kind for message in real.sent] == ["all_to_all", "all_gather"] * 2


class ShardedSgd(torch.optim.Optimizer):
    """SGD on a shard of every bucket of DDP, scattered to it during backward; parameters are gathered after it.

    As in ZeRO-1 where a step has one backward that is not under `no_sync`, as in ZeRO-2 where every micro-batch has one
    and its gradients are dropped after it.
    """

    def __init__(self, module: DistributedDataParallel, lr: float, *, in_forward: bool = False) -> None:
        """Take the gradients of a module from DDP.

        Args:
            module: with its parameters in no other optimizer.
            lr: of the step.
            in_forward: whether parameters are gathered in the next forward, one bucket ahead.
        """
        super().__init__(module.parameters(), {"lr": lr})
        self._rank, self._world_size, self._in_forward = dist.get_rank(), dist.get_world_size(), in_forward
        self._gradients: dict[int, Tensor] = {}
        self._parameters: dict[int, list[nn.Parameter]] = {}
        self._updated: dict[int, Tensor] = {}
        self._gathers: dict[int, tuple[Any, Tensor]] = {}
        module.register_comm_hook(None, self._scatter)
        for layer in module.module.modules():
            if in_forward and list(layer.parameters(recurse=False)):
                layer.register_forward_pre_hook(self._before_forward)

    def _scatter(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        number, flat = bucket.index(), self._padded(bucket.buffer())
        shard = flat.new_empty(flat.numel() // self._world_size)
        self._parameters[number] = bucket.parameters()
        work = dist.reduce_scatter_single(shard, flat, async_op=True)

        def keep(_: object) -> Tensor:
            self._gradients[number] = self._gradients.get(number, 0) + shard / self._world_size
            return bucket.buffer()

        return _future(work).then(keep)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update this rank's shards, and gather those of all unless the next forward does."""
        assert closure is None
        for number, parameters in sorted(self._parameters.items()):
            flat = self._padded(torch.cat([parameter.flatten() for parameter in parameters]))
            own = flat.chunk(self._world_size)[self._rank].clone()
            self._updated[number] = own.sub_(self._gradients.pop(number), alpha=self.defaults["lr"])
        if not self._in_forward:
            for number in self._updated:
                self._gather(number)
            for number in list(self._updated):
                self._take(number)

    def forget(self) -> None:
        """Drop what the first backward has scattered: DDP cuts its buckets anew after it."""
        self._gradients.clear()
        self._parameters.clear()

    def finish(self) -> None:
        """Gather what no forward has asked for."""
        for number in list(self._updated):
            self._gather(number)
            self._take(number)

    def _before_forward(self, layer: nn.Module, _: object) -> None:
        own = next(layer.parameters(recurse=False))
        number = next((n for n, found in self._parameters.items() if any(one is own for one in found)), -1)
        if number in self._updated:
            self._gather(number)
            self._take(number)
            self._gather(number - 1)

    def _gather(self, number: int) -> None:
        if number in self._updated and number not in self._gathers:
            own = self._updated[number]
            whole = own.new_empty(own.numel() * self._world_size)
            self._gathers[number] = dist.all_gather_single(whole, own, async_op=True), whole

    @torch.no_grad()
    def _take(self, number: int) -> None:
        work, whole = self._gathers.pop(number)
        work.wait()
        del self._updated[number]
        begin = 0
        for one in self._parameters[number]:
            one.copy_(whole[begin : begin + one.numel()].view_as(one))
            begin += one.numel()

    def _padded(self, flat: Tensor) -> Tensor:
        return functional.pad(flat, (0, -flat.numel() % self._world_size))


def _future(work: Any) -> torch.futures.Future[Any]:
    """Return the future of a collective; gloo has none of a reduce-scatter, which is waited for."""
    try:
        return work.get_future()
    except RuntimeError:
        work.wait()
        ended: torch.futures.Future[Any] = torch.futures.Future()
        ended.set_result(None)
        return ended
