"""The labels that a series of a measurement file must have, by its kind and name."""

from typing import Annotated, Literal

import msgspec

from simnet.core.system_options import SystemOptions

NAMES: dict[str, tuple[str, ...]] = {
    "model": ("forward", "backward", "optimizer", "gradient_ready"),
    "collective": ("all_reduce", "all_gather", "all_to_all", "broadcast", "send"),
    "training": ("step", "forward", "backward", "optimizer", "rank_step", "rank_compute"),
    "interference": ("backward_alone", "backward_beside"),
    "optimizer_step": ("step",),
    "memory": ("peak", "state"),
    "own_work": ("step", "forward", "backward", "optimizer", "rank_step", "rank_compute"),
    "speed": ("multiply", "stream"),
}

Whole = Annotated[int, msgspec.Meta(ge=1, le=2**60)]


class SeriesLabels(msgspec.Struct, kw_only=True):
    """Labels that a series must have; it may have others, too.

    Attributes:
        options: options of the system that was measured.
    """

    options: SystemOptions = msgspec.field(default_factory=SystemOptions)


class _KernelLabels(SeriesLabels, kw_only=True):
    """Labels of a kernel.

    Attributes:
        num_elements: elements that the kernel works on.
        dtype: number format of gradients and parameters.
        kernels: implementation: "reference", "cpu", "triton" or "torch".
    """

    num_elements: Whole
    dtype: str
    kernels: str


class _VectorKernelLabels(_KernelLabels, kw_only=True):
    """Labels of a kernel that merges vectors.

    Attributes:
        num_vectors: vectors, each of `num_elements`.
    """

    num_vectors: Whole


class _ModelLabels(SeriesLabels, kw_only=True):
    """Labels of a model.

    Attributes:
        model: name of the model.
        batch: samples of a step on each rank.
        dtype: number format of the parameters.
    """

    model: str
    batch: Whole
    dtype: str


class _GradientLabels(_ModelLabels, kw_only=True):
    """Labels of a gradient that became ready; the time is counted from the begin of backward.

    Attributes:
        tensor: name of the parameter.
        num_elements: its elements.
        order: position in the order in which gradients became ready, from 0.
    """

    tensor: str
    num_elements: Whole
    order: Annotated[int, msgspec.Meta(ge=0)]


class _OptimizerLabels(_ModelLabels, kw_only=True):
    """Labels of an optimizer.

    Attributes:
        optimizer: name of the optimizer.
    """

    optimizer: str


class _CollectiveLabels(SeriesLabels, kw_only=True):
    """Labels of a collective.

    Attributes:
        group: which ranks form a process group.
        group_size: ranks of the group.
        message_bytes: bytes of the whole array, as nccl-tests counts them.
        dtype: type of the elements.
        num_groups: groups of the kind that are at work at one time.
    """

    group: Literal["world", "intra_node", "inter_node"]
    group_size: Whole
    message_bytes: Whole
    dtype: str
    num_groups: Whole


class _TrainingLabels(SeriesLabels, kw_only=True):
    """Labels of training.

    Attributes:
        model: name of the model.
        batch: samples of a step on each rank.
        strategy: "all_reduce", "binsgdm", "one_bit_adam" or a system.
        topology: of BinSGDM; else empty.
        intra_node_dtype: of BinSGDM; else empty.
        average: of BinSGDM; else empty.
        rounding: of BinSGDM; else empty.
        overlap: 1 if buckets were exchanged during backward.
        bucket_cap_mb: MiB of fp32 in a bucket.
    """

    model: str
    batch: Whole
    strategy: str
    topology: str
    intra_node_dtype: str
    average: str
    rounding: str
    overlap: Annotated[int, msgspec.Meta(ge=0, le=1)]
    bucket_cap_mb: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]


class _RankTrainingLabels(_TrainingLabels, kw_only=True):
    """Labels of training on one rank.

    Attributes:
        rank: its number, from 0.
    """

    rank: Annotated[int, msgspec.Meta(ge=0)]


class _InterferenceLabels(SeriesLabels, kw_only=True):
    """Labels of backward, alone or overlapped with a collective.

    Attributes:
        model: name of the model.
        batch: samples of a step on each rank.
        collective: the collective that ran during backward.
    """

    model: str
    batch: Whole
    collective: str


class _OptimizerStepLabels(SeriesLabels, kw_only=True):
    """Labels of an optimizer's step or memory without a model.

    Attributes:
        optimizer: name of the optimizer.
        num_elements: elements of all parameters.
        num_tensors: tensors that hold them.
    """

    optimizer: str
    num_elements: Whole
    num_tensors: Whole


LABELS: dict[str, type[SeriesLabels]] = {
    "kernel": _KernelLabels,
    "kernel merge": _VectorKernelLabels,
    "kernel merge_shaped_": _VectorKernelLabels,
    "kernel mean_": _VectorKernelLabels,
    "model": _ModelLabels,
    "model gradient_ready": _GradientLabels,
    "model optimizer": _OptimizerLabels,
    "collective": _CollectiveLabels,
    "training": _TrainingLabels,
    "training rank_step": _RankTrainingLabels,
    "training rank_compute": _RankTrainingLabels,
    "own_work": _TrainingLabels,
    "own_work rank_step": _RankTrainingLabels,
    "own_work rank_compute": _RankTrainingLabels,
    "speed": SeriesLabels,
    "interference": _InterferenceLabels,
    "optimizer_step": _OptimizerStepLabels,
    "memory": _OptimizerStepLabels,
}
"""Required labels by kind, or by "kind name" where a name requires more."""
