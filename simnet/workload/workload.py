"""The workload as a scenario names it: gradients, and what one rank computes."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr, replace

from simnet.cluster.hardware import FittedTo, NamedPart, full_gpu_name
from simnet.cluster.network_costs import check_intervals
from simnet.core.bounded_types import (
    MAX_SPREAD,
    Count,
    Dtype,
    Elements,
    Intervals,
    Kind,
    Precision,
    Shape,
    Share,
    Spread,
)
from simnet.core.units import Duration, Size

Optimizer = Literal["adam", "sgd_momentum"]
Adam = Literal["foreach", "fused", "8bit"]
Amount = Annotated[float, Meta(ge=0.0, le=1e24)]


class Gradient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors whose gradients become ready one after the other, in backward order.

    The size is given once, as `num_elements`, `bytes` or `shape`.

    Attributes:
        num_elements: elements of each.
        num_bytes: of each, at least 1 B.
        shape: dimensions of each, which low-rank systems and those with a scale a tensor or column need.
        count: how many such tensors follow each other.
        backward_share: part of backward between the previous gradient and this one, of each, in any unit.
        name: of the parameter, such as "layers.0.up.weight", by which sharding finds blocks.
    """

    num_elements: Elements | None = None
    num_bytes: Size | None = field(name="bytes", default=None)
    shape: Shape | None = None
    count: Count = 1
    backward_share: Annotated[float, Meta(ge=0.0)] = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        sizes = [self.num_elements, self.num_bytes, self.shape]
        if sum(size is not None for size in sizes) != 1:
            raise ValueError("num_elements: must be given once; give one of num_elements, bytes and shape")
        if self.num_bytes is not None and self.num_bytes < 1:
            raise ValueError(f"bytes: {self.num_bytes.text()!r}: must be at least 1 B")


class ComputeTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole training step of one GPU without communication, at one batch size.

    The time is given once, as `step` or `samples_per_s`.

    Attributes:
        gpu: as in `cluster.gpu`.
        precision: such as "fp16", as in `workload.precision`.
        batch: samples of the step.
        step_s: time of the step.
        samples_per_s: the step takes `batch / samples_per_s`.
        optimizer: its time is estimated by the bytes that it moves.
        includes_optimizer: whether the step includes the optimizer, whose time is then taken off.
        interval: 90 % interval of the time on another machine with this GPU, as factors.
        kind: where the number comes from.
        source: the paper, data sheet or measurement.
    """

    gpu: str
    precision: str
    batch: Count
    step_s: Duration | None = field(name="step", default=None)
    samples_per_s: Annotated[float, Meta(gt=0.0)] | None = None
    optimizer: Optimizer
    includes_optimizer: bool = True
    interval: tuple[Spread, Spread] | None = None
    kind: Kind = "published"
    source: str

    def __post_init__(self) -> None:
        # Rows are matched by name, and people write "A100" for "A100-80GB".
        force_setattr(self, "gpu", full_gpu_name(self.gpu))
        if (self.step_s is None) == (self.samples_per_s is None):
            raise ValueError("step: must be given once; give step or samples_per_s")
        if self.interval is not None:
            low, high = self.interval
            if not low <= 1 <= high:
                raise ValueError(f"interval: [{low:g}, {high:g}]: must be two factors with 1 between them")

    def slower_by(self, factor: float) -> "ComputeTime":
        """Return the row with a step so many times as long."""
        if self.samples_per_s is not None:
            return replace(self, samples_per_s=self.samples_per_s / factor)
        assert self.step_s is not None
        return replace(self, step_s=Duration(self.step_s * factor))


class Work(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What forward and backward compute and move for one sample, from which a roofline estimates their time.

    Attributes:
        forward_flops: FLOPs of matrix products, convolutions and attention in forward.
        backward_flops: the same in backward.
        forward_bytes: that all other operators read and write in forward.
        backward_bytes: the same in backward.
        optimizer: its time is estimated by the bytes that it moves.
        precision: number format of the products, which the GPU must have; bytes are those of a step in it.
    """

    forward_flops: Amount
    backward_flops: Amount
    forward_bytes: Amount
    backward_bytes: Amount
    optimizer: Optimizer
    precision: Precision

    def __post_init__(self) -> None:
        for key in ("forward", "backward"):
            if getattr(self, f"{key}_flops") + getattr(self, f"{key}_bytes") == 0:
                raise ValueError(f"{key}_flops: 0, with no {key}_bytes: must be above 0; give what {key} computes")

    def slower_by(self, factor: float) -> "Work":
        """Return the work that takes so many times as long."""
        amounts = ("forward_flops", "backward_flops", "forward_bytes", "backward_bytes")
        return replace(self, **{key: getattr(self, key) * factor for key in amounts})


class Checkpointed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What activation checkpointing of all repeated blocks does: each keeps its inputs, and runs again in backward.

    Attributes:
        activations_per_sample: kept from forward for the backward of one sample.
        recomputed: part of forward that runs again.
        blocks: repeated blocks; the activations of one are there while it runs again.
    """

    activations_per_sample: Size
    recomputed: Share
    blocks: Count


class StepMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of a GPU that a training step takes where it holds the whole model.

    Attributes:
        parameters: of all parameters.
        gradients: of all gradients.
        optimizer: of the optimizer's state.
        activations_per_sample: kept from forward for backward.
        gradient_as_bucket_view: DDP's argument: gradients are views of its buckets; else it holds them twice.
        adam: how Adam steps: "foreach", torch's default, holds a copy of the gradients meanwhile; "fused" holds none;
            "8bit", bitsandbytes' AdamW8bit, holds none, and its state, rounded, in place of `optimizer`.
        checkpointed: what activation checkpointing does, for `workload.checkpointing`.
    """

    parameters: Size
    gradients: Size
    optimizer: Size
    activations_per_sample: Size
    gradient_as_bucket_view: bool = False
    adam: Adam = "foreach"
    checkpointed: Checkpointed | None = None

    def kept_per_sample(self, checkpointing: float) -> float:
        """Return the most activations of one sample [B] where this part of the blocks, the first ones, is checkpointed.

        Backward begins with the last blocks, whose activations were kept; of the others one at a time runs again.
        """
        checkpointed = self.checkpointed
        if checkpointed is None or checkpointing == 0:
            return float(self.activations_per_sample)
        of_blocks = self.activations_per_sample - checkpointed.activations_per_sample
        kept = self.activations_per_sample - checkpointing * of_blocks
        # However many are kept, one block that runs again needs its activations whole.
        return max(kept, self.activations_per_sample - of_blocks + of_blocks / checkpointed.blocks)


class Workload(NamedPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model with its gradients and the compute time of one micro-batch on one rank.

    Gradients are given once, as `gradients`, `tensors`, `gradient` or `num_elements`. With only a total, backward is
    cut into equal pieces, one a bucket. Compute is given once, as `forward`, `backward` and `optimizer`, or as
    `compute`; where there is neither for the cluster's GPU, `work` is priced by a roofline.

    Attributes:
        gradients: name of a shipped file (`simnet show gradients`) or path of one.
        tensors: gradients in backward order.
        gradient_bytes: bytes of all gradients, at least 1 B.
        num_elements: elements of all gradients.
        dtype: number format of the gradients.
        forward_s: time of forward.
        backward_s: time of backward.
        optimizer_s: 0 if it is left out.
        compute: whole steps, chosen by `precision` and `cluster.gpu`, scaled to `batch_per_rank`.
        compute_factor: on forward, backward and optimizer: 1.4 for a GPU 1.4 times as slow as the measured one; kernels
            that compress keep their times.
        work: FLOPs and bytes of a sample, for GPUs without times.
        memory: what a GPU that holds the whole model takes.
        precision: number format of the rows of `compute`, by default that of the GPU's first row; replaces that of
            `work`: bytes are then four a value in fp32 and tf32, else two.
        batch_per_rank: samples of a micro-batch.
        tokens_per_sample: of a language model, for throughput in tokens.
        checkpointing: part of the repeated blocks whose activations are computed again in backward; needs
            `memory.checkpointed`.
        intervals: 90 % intervals of fitted values by key, as factors; "compute" stands for forward and backward
            together, or for all compute rows and `work`, whose own intervals it replaces; "compute_factor" is that
            factor's.
        fitted_to: measurement files behind the times, written by `simnet calibrate`.
    """

    gradients: str | None = None
    tensors: tuple[Gradient, ...] = ()
    gradient_bytes: Size | None = field(name="gradient", default=None)
    num_elements: Elements | None = None
    dtype: Dtype = "fp32"
    forward_s: Duration | None = field(name="forward", default=None)
    backward_s: Duration | None = field(name="backward", default=None)
    optimizer_s: Duration | None = field(name="optimizer", default=None)
    compute: tuple[ComputeTime, ...] = ()
    compute_factor: Annotated[float, Meta(gt=0.0, le=MAX_SPREAD)] = 1.0
    work: Work | None = None
    memory: StepMemory | None = None
    precision: str = ""
    batch_per_rank: Count = 1
    tokens_per_sample: Count | None = None
    checkpointing: Share = 0.0
    intervals: Intervals = field(default_factory=dict)
    fitted_to: tuple[FittedTo, ...] = ()

    def __post_init__(self) -> None:
        check_intervals(self.intervals)
        if self.checkpointing and (self.memory is None or self.memory.checkpointed is None):
            raise ValueError(
                f"checkpointing: {self.checkpointing:g}: needs memory.checkpointed; count the model with simnet model"
            )
        if self.memory is not None and self.memory.adam != "foreach" and "adam" not in (self.optimizers or {"adam"}):
            raise ValueError(f"memory.adam: {self.memory.adam!r}: no effect on {', '.join(self.optimizers)}; drop it")
        if self.gradient_bytes is not None and self.gradient_bytes < 1:
            raise ValueError(f"gradient: {self.gradient_bytes.text()!r}: must be at least 1 B")

    @property
    def optimizers(self) -> frozenset[Optimizer]:
        """Those that its work and its compute rows name."""
        return frozenset([*([self.work.optimizer] if self.work else []), *(row.optimizer for row in self.compute)])

    def work_on(self, gpu: str) -> Work | None:
        """Return the work whose time on a GPU a roofline estimates; None if there is none, or a time for this GPU."""
        times = self.forward_s, self.backward_s, self.optimizer_s
        has_time = any(value is not None for value in times) or any(row.gpu == gpu for row in self.compute)
        return None if has_time else self.work
