"""llm-foundry: MPT models under FSDP on A100, from the fewest nodes of a model and batch to sixteen."""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

from msgspec import structs

from simnet.cluster.hardware import Calibration
from simnet.core.units import Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import FullShard
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published_rows import PublishedRow
from simnet.validation.study import FreeNumber, Study
from simnet.workload.workload import Gradient, Workload

SOURCE = "mosaicml/llm-foundry"
CALIBRATION = "azure_nd_a100_v4"
"""Other nodes of eight A100 with 200 Gbit/s a GPU, and NCCL's costs fitted there."""
SEQUENCE, VOCABULARY, EXPANSION = 2048, 50368, 4
SHARES = (0.1, 1.0)
"""Bounds of compute, as parts of a step."""
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


def evaluate() -> Outcome:
    """Take compute from the fewest GPUs of each model and batch, predict the others."""
    study = _study()
    return Outcome(
        title="MPT: FSDP on more nodes",
        unit="s",
        target=TARGET,
        bound=TARGET,
        parameters=study.parameters,
        predictions=study.predictions,
        make_alternatives=_alternatives,
    )


def _study(changes: Mapping[str, object] | None = None, *, overlap: bool = True) -> Study:
    """Return the study; messages hide behind compute, and the calibration has these changes."""
    groups = _groups()
    calibration = structs.replace(shipped_parts.calibration(CALIBRATION), **(changes or {}))
    return Study(
        initial={},
        fits=tuple(
            FreeNumber(
                key=_key(fewest),
                rows=(fewest,),
                bounds=(SHARES[0] * _measured_s(fewest), SHARES[1] * _measured_s(fewest)),
                part="workload",
                name=f"forward + backward, {_key(fewest)}",
                text=lambda seconds: f"{1e3 * seconds:.1f} ms",
            )
            for fewest, *_ in groups
        ),
        predict=partial(_step_s, calibration, overlap),
        measured=_measured_s,
        series=lambda row: row.model,
        label=lambda row: f"{_key(row)}, {row.gpus} GPUs",
        held_out=tuple(row for group in groups for row in group[1:]),
    )


def _key(row: PublishedRow) -> str:
    return f"{row.model}, batch {row.batch_per_gpu}"


def _groups() -> list[tuple[PublishedRow, ...]]:
    """Return the rows of each model and batch, the fewest GPUs first."""

    def model_and_batch(row: PublishedRow) -> tuple[str, str]:
        return row.model, row.batch_per_gpu

    rows = sorted(published_rows.load().select(SOURCE), key=lambda row: (model_and_batch(row), row.gpus))
    return [tuple(group) for _, group in groupby(rows, model_and_batch)]


def _measured_s(row: PublishedRow) -> float:
    return int(row.batch_per_gpu) * SEQUENCE / row.value


def _step_s(calibration: Calibration, overlap: bool, compute_s: Mapping[str, float], row: PublishedRow) -> float:
    """Return the step of a row [s], with compute as in the row of the fewest GPUs."""
    # With activation checkpointing backward computes forward once more.
    forward = 1 / 4 if "ckpt=True" in row.location else 1 / 3
    workload = Workload(
        tensors=_tensors(row.model),
        forward_s=Duration(forward * compute_s[_key(row)]),
        backward_s=Duration((1 - forward) * compute_s[_key(row)]),
    )
    scenario = Scenario(
        cluster=shipped_parts.cluster(CALIBRATION, row.nodes),
        workload=workload,
        calibration=calibration,
        strategy=FullShard(gather_dtype="bf16", reduce_dtype="bf16", overlap=overlap),
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
    alike = {"compute_spread": 0.0, "host_pause_s": Duration(0)}
    yield Alternative("no rank waits for a slower one", "the fewest GPUs of each", _study(alike).predictions)
    blocking = _study(alike, overlap=False)
    yield Alternative("that, and every message blocks", "the fewest GPUs of each", blocking.predictions)
