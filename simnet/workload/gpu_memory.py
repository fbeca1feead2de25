"""Memory of one GPU during a training step: what a rank holds by strategy, and the moment at which that is most."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec import Struct

from simnet.cluster.hardware import Cluster
from simnet.workload.training_step import Step
from simnet.workload.workload import Optimizer, Workload

STATE_COPIES: dict[Optimizer, int] = {"adam": 2, "sgd_momentum": 1}
"""What an optimizer keeps of each element, in the number format of the parameters, as torch's do."""
UPDATE_COPIES: dict[Optimizer, int] = {"adam": 1, "sgd_momentum": 0}
"""What torch's optimizers over lists of tensors, the default on GPUs, hold of each element while they step."""
EIGHT_BIT_STATE = 2 * (1 + 4 / 256)
"""Bytes of AdamW8bit's state of an element: two of 8 bit, each block of 256 with a scale in fp32, as `init_state` of
`Optimizer2State` makes them in bitsandbytes 0.50; Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR
2022. Differs: tensors of less than 4096 elements keep a state of fp32 there."""
RESERVE = 0.06
"""Part of a GPU's memory that no step takes: CUDA's context, NCCL's buffers, fragments between allocations. MindSpeed's
guide caps torch's allocator at 0.94, so that collectives keep theirs (set_per_process_memory_fraction)."""
PIECES = 100
"""Into which a total without tensors is cut."""
Moment = Literal["backward", "optimizer"]


class ModelMemory(Struct, frozen=True, kw_only=True):
    """What a whole model takes, on a GPU that holds all of it [B].

    Attributes:
        parameters: of all parameters.
        gradients: of all gradients.
        optimizer: of the optimizer's state; None where it is not known.
        update: what the optimizer holds besides while it steps.
        activations: kept from forward for the backward of one micro-batch; None where they are not counted.
        gradient_as_bucket_view: whether gradients are views of DDP's buckets, and no copies.
    """

    parameters: float
    gradients: float
    optimizer: float | None
    update: float
    activations: float | None
    gradient_as_bucket_view: bool = False


class RankMemory(Struct, frozen=True, kw_only=True):
    """What one rank holds under a strategy, without activations [B].

    Attributes:
        parameters: that stay.
        optimizer: state of the optimizer that stays; None where it is not known.
        gradients: apart from those in buckets, once backward has made all; the optimizer's step then frees them.
        residuals: what a system keeps from step to step: what it lost, momenta of its own.
        buckets: in which gradients or updates travel, which stay.
        gathered: for each tensor in the order of backward, the parameters and gradients that a sharded step holds
            whole besides its shards when the gradient of this tensor is ready; empty where it never does.
        update: what the optimizer holds besides while it steps.
    """

    parameters: float
    optimizer: float | None
    gradients: float
    residuals: float = 0.0
    buckets: float = 0.0
    gathered: tuple[float, ...] = ()
    update: float = 0.0


class GpuMemory(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What a GPU holds at the moment of a step at which that is most, part by part [B]; the parts add up.

    Attributes:
        moment: when it is most.
        parameters: of the model, or this rank's shard of them.
        gradients: outside of buckets.
        optimizer: state of the optimizer.
        residuals: what a system keeps: what it lost, momenta of its own.
        buckets: in which gradients or updates travel.
        gathered: what a sharded step holds beyond its shard.
        activations: kept from forward.
        update: what the optimizer holds while it steps.
        unknown: parts that the workload does not say: the sum is too small by them.
        gpu_bytes: of the GPU, where the table has it.
    """

    moment: Moment
    parameters: float
    gradients: float
    optimizer: float
    residuals: float = 0.0
    buckets: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    update: float = 0.0
    unknown: tuple[str, ...] = ()
    gpu_bytes: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """The bytes by part."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def total_bytes(self) -> float:
        """Sum of the parts [B]."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool | None:
        """Whether the GPU has as much beside `RESERVE`; None where that is not known."""
        if self.gpu_bytes is None:
            return None
        if self.total_bytes > (1 - RESERVE) * self.gpu_bytes:
            return False
        # With a part missing it is certain that the rest is too much, and never that all of it fits.
        return None if self.unknown else True


PARTS = ("parameters", "gradients", "optimizer", "residuals", "buckets", "gathered", "activations", "update")
"""The parts of `GpuMemory`, in the order in which tables have them."""


def of_model(workload: Workload, cluster: Cluster, step: Step) -> ModelMemory:
    """Return what the model of a workload takes.

    A workload without `memory` has parameters in the number format of its gradients, and the state of the optimizer
    that its compute rows or its work name; its activations are not known.
    """
    optimizer, measured = _optimizer(workload, cluster), workload.memory
    update = UPDATE_COPIES[optimizer] if optimizer else 0
    if measured is None:
        state = None if optimizer is None else STATE_COPIES[optimizer] * step.gradient_bytes
        return ModelMemory(
            parameters=step.gradient_bytes,
            gradients=step.gradient_bytes,
            optimizer=state,
            update=update * step.gradient_bytes,
            activations=None,
        )
    return ModelMemory(
        parameters=float(measured.parameters),
        gradients=float(measured.gradients),
        optimizer=EIGHT_BIT_STATE * step.num_elements if measured.adam == "8bit" else float(measured.optimizer),
        update=update * measured.gradients if measured.adam == "foreach" else 0.0,
        activations=measured.kept_per_sample(workload.checkpointing) * step.samples,
        gradient_as_bucket_view=measured.gradient_as_bucket_view,
    )


def _optimizer(workload: Workload, cluster: Cluster) -> Optimizer | None:
    """Return the optimizer that a workload names for the cluster's GPU; None if it names none."""
    if workload.work is not None:
        return workload.work.optimizer
    # Without a GPU in the cluster rows of any GPU name the same optimizer, or none is meant.
    named = {row.optimizer for row in workload.compute if row.gpu == (cluster.gpu or row.gpu)}
    return named.pop() if len(named) == 1 else None


def in_buckets(model: ModelMemory) -> RankMemory:
    """Return what a rank holds under DDP: all of the model, and buckets of all gradients beside the gradients."""
    return RankMemory(
        parameters=model.parameters,
        optimizer=model.optimizer,
        gradients=0.0 if model.gradient_as_bucket_view else model.gradients,
        buckets=model.gradients,
        update=model.update,
    )


def at_peak(rank: RankMemory, model: ModelMemory, step: Step, gpu_bytes: float | None = None) -> GpuMemory:
    """Return what a rank holds when that is most, with the activations of the model, beside the memory of its GPU.

    With several micro-batches gradients are there from the first one on; else backward makes them, in the order of the
    step's tensors, while it frees activations.
    """
    most = max(
        _moments(rank, model, step),
        key=lambda moment: moment.gradients + moment.activations + moment.gathered + moment.update,
    )
    unknown = {"optimizer state": rank.optimizer is None, "activations": model.activations is None}
    return GpuMemory(
        parameters=rank.parameters,
        optimizer=rank.optimizer or 0.0,
        residuals=rank.residuals,
        buckets=rank.buckets,
        unknown=tuple(name for name, is_unknown in unknown.items() if is_unknown),
        gpu_bytes=gpu_bytes,
        **most._asdict(),
    )


class _HeldAt(NamedTuple):
    """What a rank holds at one moment, apart from what stays."""

    moment: Moment
    gradients: float
    activations: float
    gathered: float
    update: float


def _moments(rank: RankMemory, model: ModelMemory, step: Step) -> Iterator[_HeldAt]:
    """Yield the moments of a step at which it may hold most: one of the optimizer, one of backward.

    Backward frees activations in proportion to its time, and makes gradients as the tensors say: a gradient is there
    before the activations that it was made of are freed.
    """
    # By then backward has freed all activations, and every part is a shard again.
    yield _HeldAt("optimizer", rank.gradients, 0.0, 0.0, rank.update)
    activations, accumulates = model.activations or 0.0, step.micro_batches > 1
    left, made, most = 1.0, 0.0, -1.0
    # When backward begins no gradient of this micro-batch is there, and every activation.
    held = _HeldAt("backward", 0.0, activations, 0.0, 0.0)
    for number, (elements, fraction) in enumerate(_made_in_backward(step)):
        made += elements / step.num_elements
        # Earlier micro-batches have left gradients of all tensors, to which this one adds.
        gradients = rank.gradients if accumulates else rank.gradients * made
        gathered = rank.gathered[number] if rank.gathered else 0.0
        kept = left * activations
        if (total := gradients + gathered + kept) > most:
            most, held = total, _HeldAt("backward", gradients, kept, gathered, 0.0)
        # Fractions may sum to a little more than 1 by rounding.
        left = max(left - fraction, 0.0)
    yield held


def _made_in_backward(step: Step) -> Iterator[tuple[float, float]]:
    """Yield elements and fraction of backward of each tensor; of a total, of many equal pieces."""
    if step.tensors:
        yield from ((tensor.num_elements, tensor.backward_fraction) for tensor in step.tensors)
    else:
        yield from [(step.num_elements / PIECES, 1 / PIECES)] * PIECES
