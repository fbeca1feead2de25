"""llm-foundry: MPT models under FSDP on A100, from the fewest nodes of a model and batch to sixteen."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct, structs

from simnet.cluster.hardware import Calibration
from simnet.core.units import Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import FullShard
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter, compute_parameter
from simnet.validation.published_rows import PublishedRow
from simnet.validation.study import Study
from simnet.workload.workload import Gradient, Workload

SOURCE = "mosaicml/llm-foundry"
CALIBRATION = "azure_nd_a100_v4"
"""Other nodes of eight A100 with 200 Gbit/s a GPU, and NCCL's costs fitted there."""
SEQUENCE, VOCABULARY, EXPANSION = 2048, 50368, 4
MOST_STEPS, SAME_TIME = 50, 1e-9
TARGET = Limit(mean=0.015, worst=0.03)


class ModelShape(NamedTuple):
    """Width and blocks of a model."""

    width: int
    blocks: int


SHAPES = {
    "MPT-125m": ModelShape(768, 12),
    "MPT-350m": ModelShape(1024, 24),
    "MPT-760m": ModelShape(1536, 24),
    "MPT-1b": ModelShape(2048, 24),
    "MPT-3b": ModelShape(2560, 32),
    "MPT-7b": ModelShape(4096, 32),
    "MPT-13b": ModelShape(5120, 40),
}
"""Source: scripts/train/yamls/pretrain of llm-foundry."""


class Known(Struct, frozen=True):
    """What is known before rows are predicted: the calibration, and the form of the step.

    Attributes:
        calibration: NCCL's costs, and how ranks wait for each other.
        overlap: whether messages hide behind compute.
    """

    calibration: Calibration
    overlap: bool = True


def evaluate() -> Outcome:
    """Take compute from the fewest GPUs of each model and batch, predict the others."""
    study = _study()
    return Outcome(
        title="MPT: FSDP on more nodes",
        unit="s",
        target=TARGET,
        bound=TARGET,
        parameters=tuple(map(_parameter, (group[0] for group in _groups()))),
        predictions=study.predictions,
        make_alternatives=_alternatives,
    )


def _study(known: Known | None = None) -> Study:
    return Study(
        initial=known or Known(shipped_parts.calibration(CALIBRATION)),
        predict=_step_s,
        measured=_measured_s,
        series=lambda row: row.model,
        label=lambda row: f"{row.model}, batch {row.batch_per_gpu}, {row.gpus} GPUs",
        held_out=tuple(row for group in _groups() for row in group[1:]),
    )


def _groups() -> list[tuple[PublishedRow, ...]]:
    """Return the rows of each model and batch, the fewest GPUs first."""

    def of_one(row: PublishedRow) -> tuple[str, str]:
        return row.model, row.batch_per_gpu

    rows = sorted(published_rows.load().select(SOURCE), key=lambda row: (of_one(row), row.gpus))
    return [tuple(group) for _, group in groupby(rows, of_one)]


def _fewest(row: PublishedRow) -> PublishedRow:
    return next(group[0] for group in _groups() if row in group)


def _parameter(row: PublishedRow) -> Parameter:
    known = Known(shipped_parts.calibration(CALIBRATION))
    key = f"forward + backward, {row.model}, batch {row.batch_per_gpu}"
    return compute_parameter(key, _compute_s(known, row), "meets the row", (row,))


def _measured_s(row: PublishedRow) -> float:
    return int(row.batch_per_gpu) * SEQUENCE / row.value


def _step_s(known: Known, row: PublishedRow) -> float:
    """Return the step of a row [s], with compute as in the row of the fewest GPUs."""
    return _simulated_s(known, row, _compute_s(known, _fewest(row)))


def _compute_s(known: Known, row: PublishedRow) -> float:
    """Return forward and backward with which a row comes out as measured [s]."""
    compute_s = wanted_s = _measured_s(row)
    for _ in range(MOST_STEPS):
        off_s = wanted_s - _simulated_s(known, row, compute_s)
        if abs(off_s) < SAME_TIME * wanted_s:
            break
        compute_s += off_s  # a step takes as much longer as its compute
    return compute_s


def _simulated_s(known: Known, row: PublishedRow, compute_s: float) -> float:
    # With activation checkpointing backward computes forward once more.
    forward = 1 / 4 if "ckpt=True" in row.location else 1 / 3
    workload = Workload(
        tensors=_tensors(row.model),
        forward_s=Duration(forward * compute_s),
        backward_s=Duration((1 - forward) * compute_s),
    )
    scenario = Scenario(
        cluster=shipped_parts.cluster(CALIBRATION, row.nodes),
        workload=workload,
        calibration=known.calibration,
        strategy=FullShard(gather_dtype="bf16", reduce_dtype="bf16", overlap=known.overlap),
    )
    return simulate(scenario).result.iteration_s


@cache
def _tensors(model: str) -> tuple[Gradient, ...]:
    """Return the tensors of a model in the order of backward, which spends its time on matrices; the head is tied."""
    width, blocks = SHAPES[model]
    inner = ((EXPANSION * width, width), (width, EXPANSION * width), (width, width), (width, 3 * width))
    in_blocks = tuple(
        Gradient(name=f"blocks.{block}.weight", shape=shape, backward_share=float(shape[0] * shape[1]))
        for block in reversed(range(blocks))
        for shape in inner
    )
    tied = Gradient(name="wte.weight", shape=(VOCABULARY, width), backward_share=float(VOCABULARY * width))
    return (tied, *in_blocks, Gradient(name="wpe.weight", shape=(SEQUENCE, width), backward_share=0.0))


def _alternatives() -> Iterator[Alternative]:
    known = Known(shipped_parts.calibration(CALIBRATION))
    alike = structs.replace(known.calibration, compute_spread=0.0, host_pause_s=Duration(0))
    for variant, other in (
        ("no rank waits for a slower one", Known(alike)),
        ("that, and every message blocks", Known(alike, overlap=False)),
    ):
        yield Alternative(variant, "the fewest GPUs of each", replace(_study(), initial=other).predictions)
