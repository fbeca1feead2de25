"""The workload as a scenario names it: gradients, and what one rank computes."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from simnet.hardware import FittedTo, Part, check_intervals
from simnet.units import Duration, Size
from simnet.values import Count, Dtype, Intervals, Kind, Shape


class Gradient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors whose gradients become ready one after the other, in backward order.

    The size is `num_elements`, `bytes` or the `shape` of each tensor; low-rank systems and those with a scale a tensor
    or column need the shape. `count` repeats the row. `backward_share` is the part of backward (in any unit, each of
    the `count` tensors) that is done between the previous gradient and this one.
    """

    num_elements: Count | None = None
    num_bytes: Size | None = field(name="bytes", default=None)
    shape: Shape | None = None
    count: Count = 1
    backward_share: Annotated[float, Meta(ge=0.0)] = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        given = [self.num_elements, self.num_bytes, self.shape]
        if sum(one is not None for one in given) != 1:
            raise ValueError("num_elements: give one of num_elements, bytes and shape")
        if self.num_bytes is not None and self.num_bytes < 1:
            raise ValueError(f"bytes: {self.num_bytes.text()!r}: must be at least 1 B")


class ComputeTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole training step of one GPU without communication, at one batch size.

    `samples_per_s` says the same as `step`, which is `batch / samples_per_s`. It includes the `optimizer`, whose time
    is then taken off by the bytes that it moves, unless `includes_optimizer` is false.
    """

    gpu: str
    precision: str
    batch: Count
    step_s: Duration | None = field(name="step", default=None)
    samples_per_s: Annotated[float, Meta(gt=0.0)] | None = None
    optimizer: Literal["adam", "sgd_momentum"]
    includes_optimizer: bool = True
    kind: Kind = "published"
    source: str

    def __post_init__(self) -> None:
        if (self.step_s is None) == (self.samples_per_s is None):
            raise ValueError("step: give either step or samples_per_s")


class Workload(Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model with its gradients and the compute time of one micro-batch on one rank.

    Gradients are given once, as one of: `gradients` (name of a shipped file), `tensors` (in backward order),
    `gradient` (bytes) or `num_elements`. With only a total, backward is cut into equal pieces, one a bucket.
    Compute is given once, as `forward`, `backward` and `optimizer`, or as `compute` rows of which `precision` and the
    cluster's `gpu` choose one, scaled to `batch_per_rank`.

    `intervals` as a calibration's; the key "compute" stands for forward and backward together.
    """

    gradients: str | None = None
    tensors: tuple[Gradient, ...] = ()
    gradient_bytes: Size | None = field(name="gradient", default=None)
    num_elements: Count | None = None
    dtype: Dtype = "fp32"
    forward_s: Duration | None = field(name="forward", default=None)
    backward_s: Duration | None = field(name="backward", default=None)
    optimizer_s: Duration | None = field(name="optimizer", default=None)
    compute: tuple[ComputeTime, ...] = ()
    precision: str = ""
    batch_per_rank: Count = 1
    intervals: Intervals = field(default_factory=dict)
    fitted_to: tuple[FittedTo, ...] = ()

    def __post_init__(self) -> None:
        check_intervals(self.intervals)
        if self.gradient_bytes is not None and self.gradient_bytes < 1:
            raise ValueError(f"gradient: {self.gradient_bytes.text()!r}: must be at least 1 B")
