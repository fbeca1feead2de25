"""Shipped models are timed in every precision, and what cannot be is left out with a reason."""

from dataclasses import replace

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import model as models


def one(**changes):
    """Return a model of 200 thousand parameters at batches 1, 2 and 4."""
    return replace(models.small_models()[0], **changes)


def passes(bench):
    return [
        (series["labels"]["precision"], series["labels"]["batch"])
        for series in bench.record.series
        if series["name"] == "backward"
    ]


def test_every_precision_of_a_cpu_is_measured_at_three_batches(bench):
    models.measure_models(bench, [one()], seconds=60.0)
    assert passes(bench) == [(precision, batch) for precision in ("bf16", "fp32") for batch in (1, 2, 4)]
    names = [series["name"] for series in bench.record.series if series["labels"]["precision"] == "fp32"]
    assert names == ["forward", "backward", *["gradient_ready"] * 8] * 3
    assert [s["labels"]["optimizer"] for s in bench.record.series if s["name"] == "optimizer"] == ["adamw"]
    assert bench.record.notes == [
        "tf32 is a mode of NVIDIA's tensor cores: left out on a CPU",
        "fp16 is slow on a CPU: left out on a CPU",
    ]


def test_a_batch_that_does_not_fit_is_left_out_with_a_reason_and_the_others_are_measured(bench):
    seen = set()

    def task(module, samples):
        if samples == 4:
            raise torch.cuda.OutOfMemoryError
        made = models.small_models()[0].task(module, samples)
        return replace(made, loss=lambda output: seen.add(output.dtype) or made.loss(output))

    models.measure_models(bench, [one(task=task)], seconds=60.0)
    assert passes(bench) == [("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2)]
    assert bench.record.notes[-1] == "mlp_200k: out of memory: bf16 at 4, fp32 at 4 samples: left out"
    assert seen == {torch.bfloat16, torch.float32}, "bf16 runs under autocast"


@pytest.mark.parametrize("precision", models.PRECISIONS)
def test_tf32_is_allowed_in_its_own_measurement_alone(precision):
    places = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [place.allow_tf32 for place in places]
    with models.matrix_products(precision):
        assert [place.allow_tf32 for place in places] == [precision == "tf32"] * 2
    assert [place.allow_tf32 for place in places] == before
