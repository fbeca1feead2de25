"""What a GPU holds: parts of the model by strategy, and the moment at which they are most."""

import pytest
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration
from simnet.core.units import Size
from simnet.workload import gpu_memory
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.training_step import Step, Tensor, resolve
from simnet.workload.workload import StepMemory, Work, Workload
from tests.helpers.topologies import cluster

MODEL = ModelMemory(parameters=100.0, gradients=100.0, optimizer=200.0, update=100.0, activations=60.0)
STEP = Step(
    tensors=tuple(Tensor(num_elements=elements, backward_fraction=0.5) for elements in (10.0, 15.0)),
    num_elements=25.0,
    bytes_per_element=4,
    forward_s=1.0,
    backward_s=2.0,
    optimizer_s=0.0,
    samples=1,
)


def held(rank: RankMemory, model: ModelMemory = MODEL, **changes: object) -> gpu_memory.GpuMemory:
    memory = gpu_memory.at_peak(rank, model, replace(STEP, **changes))
    assert memory.total_bytes == pytest.approx(sum(memory.parts.values()))
    return memory


def test_buckets_of_ddp_hold_gradients_a_second_time_unless_these_are_views() -> None:
    twice, once = (gpu_memory.in_buckets(replace(MODEL, gradient_as_bucket_view=is_view)) for is_view in (False, True))
    assert (twice.gradients, twice.buckets) == (100.0, 100.0)
    assert (once.gradients, once.buckets) == (0.0, 100.0)
    assert held(twice).total_bytes == 100 + 200 + 100 + 100 + 100
    assert held(once).total_bytes == 100 + 200 + 100 + 100


def test_backward_frees_activations_while_it_makes_gradients() -> None:
    rank = RankMemory(parameters=100.0, optimizer=0.0, gradients=100.0)
    # All activations with the first gradients; half of them with all gradients.
    assert held(rank).parts | {"parameters": 0.0} == dict.fromkeys(gpu_memory.PARTS, 0.0) | {
        "gradients": 100.0,
        "activations": 30.0,
    }
    larger = held(rank, replace(MODEL, activations=200.0))
    assert (larger.moment, larger.gradients, larger.activations) == ("backward", 40.0, 200.0)
    later = held(rank, micro_batches=2)
    assert (later.gradients, later.activations) == (100.0, 60.0), "gradients of earlier micro-batches stay"
    gathered = held(RankMemory(parameters=10.0, optimizer=0.0, gradients=10.0, gathered=(5.0, 80.0)))
    assert (gathered.gathered, gathered.activations, gathered.gradients) == (80.0, 30.0, 10.0)


def test_a_workload_says_what_its_model_takes() -> None:
    work = Work(
        forward_flops=1e9, backward_flops=2e9, forward_bytes=1e6, backward_bytes=1e6, optimizer="adam", precision="bf16"
    )
    sizes = {"parameters": 8000, "gradients": 4000, "optimizer": 9000, "activations_per_sample": 500}
    memory = StepMemory(**{name: Size(size) for name, size in sizes.items()})
    model, ranks = (
        Workload(num_elements=1000, work=work, batch_per_rank=3, memory=memory),
        cluster(1, 2, gpu="A100-80GB"),
    )
    held = gpu_memory.of_model(model, ranks, resolve(model, ranks, Calibration()))
    assert (held.parameters, held.gradients, held.optimizer) == (8000, 4000, 9000)
    assert (held.activations, held.update) == (1500, 4000)
    for adam, state in (("fused", 9000), ("8bit", 2 * 1000 + 2 * 1000 / 256 * 4)):
        other = replace(model, memory=replace(memory, adam=adam))
        held = gpu_memory.of_model(other, ranks, resolve(other, ranks, Calibration()))
        assert (held.optimizer, held.update) == (state, 0)
    with pytest.raises(ValueError, match="no effect on sgd_momentum; drop it"):
        replace(model, memory=replace(memory, adam="fused"), work=replace(work, optimizer="sgd_momentum"))


def test_it_fits_where_the_gpu_has_as_much() -> None:
    rank = RankMemory(parameters=100.0, optimizer=0.0, gradients=0.0)
    model = replace(MODEL, activations=60.0)
    assert gpu_memory.at_peak(rank, model, STEP).fits is None
    needed = 160.0 / (1 - gpu_memory.RESERVE)
    assert gpu_memory.at_peak(rank, model, STEP, gpu_bytes=needed * 1.001).fits is True
    assert gpu_memory.at_peak(rank, model, STEP, gpu_bytes=needed * 0.999).fits is False
    # What is known does not fit: no more need be known.
    assert gpu_memory.at_peak(rank, replace(model, activations=None), STEP, gpu_bytes=99.0).fits is False
