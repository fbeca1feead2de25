"""A step recorded without memory is the one recorded with it."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard

from binsgdm.errors import BinsgdmError
from binsgdm.recording.recording import RecordingSettings
from tests.helpers.recorded_steps import (
    LAYER_BYTES,
    LAYERS,
    accumulated,
    collectives,
    data_parallel,
    model,
    power_sgd,
    recorded,
    sharded,
    stream_of,
    tensor_parallel,
)


def scaled() -> None:
    """Scale the loss: the scaler sums over the ranks whether a gradient is infinite."""
    module = model()
    fully_shard(module)
    optimizer, scaler = torch.optim.SGD(module.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(6):
        scaler.scale(module(torch.ones(2, 64)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def redistributed() -> None:
    """Use each functional collective of DTensor beside a step."""
    module = torch.nn.parallel.DistributedDataParallel(model())
    group, optimizer = dist.group.WORLD, torch.optim.SGD(module.parameters())
    for _ in range(6):
        module(torch.ones(2, 64)).mean().backward()
        found = [
            functional_collectives.all_reduce(torch.ones(16), "avg", group),
            functional_collectives.all_gather_tensor(torch.ones(4), 0, group),
            functional_collectives.reduce_scatter_tensor(torch.ones(32), "sum", 0, group),
            functional_collectives.all_to_all_single(torch.ones(16), [2] * 8, [2] * 8, group),
            functional_collectives.broadcast(torch.ones(3), 0, group),
            *functional_collectives.all_reduce_coalesced([torch.ones(3), torch.ones(4)], "sum", group),
            *functional_collectives.all_gather_into_tensor_coalesced([torch.ones(3), torch.ones(4)], group),
            *functional_collectives.reduce_scatter_tensor_coalesced([torch.ones(8)] * 2, "sum", [0, 0], group),
        ]
        assert len([one + 1 for one in found]) == 11
        optimizer.step()


SCRIPTS = {
    "ddp": data_parallel,
    "fp16 hook": lambda: data_parallel(default_hooks.fp16_compress_hook),
    "PowerSGD hook": power_sgd,
    "accumulated": accumulated,
    "fsdp": sharded,
    "hybrid": lambda: sharded(hybrid=True),
    "clipped fsdp": lambda: sharded(clips=True),
    "clipped hybrid": lambda: sharded(hybrid=True, clips=True),
    "scaled": scaled,
    "tensor parallel": tensor_parallel,
    "functional": redistributed,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.distributed._functional_collectives:FutureWarning")
@pytest.mark.parametrize("name", SCRIPTS)
def test_without_memory_the_same_is_recorded(name):
    fake, real = recorded(SCRIPTS[name], fake=True), recorded(SCRIPTS[name])
    assert collectives(fake) == collectives(real)
    assert (fake["num_steps"], fake["micro_batches"]) == (real["num_steps"], real["micro_batches"])
    assert fake["gradient_bytes"] == real["gradient_bytes"]
    assert fake["groups"] == real["groups"]
    for part in ("forward", "backward", "optimizer"):
        assert flops_of(fake, part) == flops_of(real, part)
    assert waits_of(fake) == waits_of(real)


def flops_of(recording: dict, part: str) -> float:
    operations = [operation for stream in recording["streams"] for operation in stream["operations"]]
    return sum(one.get("flops", 0.0) for one in operations if one.get("part") == part)


def waits_of(recording: dict) -> list[bool]:
    """Return, collective by collective, whether it waits for something."""
    operations = [operation for stream in recording["streams"] for operation in stream["operations"]]
    return [bool(one.get("after")) for one in operations if one["kind"] != "compute"]


def test_a_script_may_convert_its_model_and_log_its_loss():
    def script() -> None:
        module = model().to(torch.bfloat16)
        assert next(module.parameters()).dtype == torch.bfloat16
        module = torch.nn.parallel.DistributedDataParallel(module)
        optimizer = torch.optim.SGD(module.parameters())
        for _ in range(6):
            loss = module(torch.ones(2, 64, dtype=torch.bfloat16)).mean()
            loss.backward()
            optimizer.step()
            assert loss.item() == float(loss) == 0.0

    assert {size for _, _, size in collectives(recorded(script, fake=True))} == {LAYERS * LAYER_BYTES / 2}


def test_tied_weights_stay_tied_when_a_model_is_converted():
    def script() -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        module[1].weight = module[0].weight
        module.double()
        assert module[1].weight is module[0].weight
        data_parallel()

    recorded(script, fake=True)


@pytest.mark.slow
def test_a_clipped_step_of_fsdp2_holds_the_all_reduce_of_its_norm():
    recording = recorded(lambda: sharded(clips=True), fake=True)
    # A norm of every weight and every bias: their sum over the ranks is one message.
    assert [collective for collective in collectives(recording) if collective[0] == "all_reduce"] == [
        ("all_reduce", (8, 1), 2 * LAYERS * 4)
    ]
    compute = stream_of(recording, "compute")
    assert any(
        operation["part"] == "forward" and operation.get("after") for operation in compute[-3:-1]
    )  # clipping waits for the norm


def test_a_collective_that_stands_on_the_ranks_data_is_refused_without_memory():
    def script() -> None:
        sizes = [1, 3, 2, 2, 2, 2, 2, 2]
        functional_collectives.all_to_all_single(torch.ones(16), sizes, sizes, dist.group.WORLD)

    with pytest.raises(BinsgdmError, match="parts of 1 to 3 elements hang on the data"):
        recorded(script, fake=True)


def test_a_hop_of_tensor_parallelism_is_refused_by_its_name_without_memory():
    def script() -> None:
        torch.ops._c10d_functional.isend(torch.ones(4), 1, 0, dist.group.WORLD.group_name)

    with pytest.raises(BinsgdmError, match=r"--fake: _c10d_functional\.isend.*: record without --fake"):
        recorded(script, fake=True)


def test_time_of_what_has_no_memory_is_refused():
    with pytest.raises(BinsgdmError, match="--fake: tensors without memory take no time"):
        RecordingSettings(fake=True, compute="timed")
