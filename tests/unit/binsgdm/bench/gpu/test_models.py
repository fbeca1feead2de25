"""Shipped models are timed in every precision, and what cannot be is left out with a reason."""

from dataclasses import replace

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import models
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule
from binsgdm.recording import shipped_models

CPU = torch.device("cpu")
ALONE = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)


@pytest.fixture
def bench():
    return Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule(min_repetitions=1, max_repetitions=1))


def one(**changes):
    """Return a model of 200 thousand parameters at batches 1, 2 and 4."""
    model = models.small_models()[0]
    return replace(model, definition=replace(model.definition, **changes))


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


def test_fp32_is_measured_at_one_batch_where_there_is_tf32(bench, monkeypatch):
    monkeypatch.setattr(models, "refusal", lambda precision, device: "" if precision in {"tf32", "fp32"} else "none")
    models.measure_models(bench, [one()], seconds=60.0)
    assert passes(bench) == [("tf32", 1), ("tf32", 2), ("tf32", 4), ("fp32", 2)]


def test_a_forward_in_bf16_runs_under_autocast_and_its_gradients_stay_fp32(bench):
    seen = set()

    def task(module, samples):
        made = models.small_models()[0].definition.task(module, samples)
        return replace(made, loss=lambda output: seen.add(output.dtype) or made.loss(output))

    models.measure_models(bench, [one(task=task)], seconds=60.0)
    assert seen == {torch.bfloat16, torch.float32}


def test_a_convolutional_model_is_measured_with_channels_last_as_well(bench, monkeypatch):
    monkeypatch.setattr(models, "_layouts", lambda model, device: ("", "channels_last"))
    seen = []

    def task(module, samples):
        made = models.small_models()[1].definition.task(module, samples)
        module.register_forward_pre_hook(
            lambda module, given: seen.append(
                [one.is_contiguous(memory_format=torch.channels_last) for one in (given[0], module[0].weight)]
            )
        )
        return made

    model = models.small_models()[1]
    model = replace(model, definition=replace(model.definition, task=task), batches=(2,))
    models.measure_models(bench, [model], seconds=60.0)
    assert passes(bench) == [("bf16", 2), ("fp32", 2)] * 2
    layouts = [one["labels"].get("layout", "") for one in bench.record.series if one["name"] == "backward"]
    assert layouts == ["", "", "channels_last", "channels_last"]
    assert seen[0] == [False, False]
    assert seen[-1] == [True, True]


def test_a_batch_that_does_not_fit_is_left_out_with_a_reason_and_the_others_are_measured(bench):
    def task(module, samples):
        if samples == 4:
            raise torch.cuda.OutOfMemoryError
        return models.small_models()[0].definition.task(module, samples)

    models.measure_models(bench, [one(task=task)], seconds=60.0)
    assert passes(bench) == [("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2)]
    assert bench.record.notes[-1] == "mlp_200k: out of memory: bf16 at 4, fp32 at 4 samples: left out"


def test_what_no_time_is_left_for_is_left_out_with_a_reason(bench):
    models.measure_models(bench, [one()], seconds=0.0)
    assert passes(bench) == []
    assert "mlp_200k: no time was left: bf16 at 1, bf16 at 2" in bench.record.notes[-1]


def test_a_model_that_fails_is_a_failed_check_and_the_others_are_measured(bench):
    def make(attention):
        raise ValueError("a new version")

    models.measure_models(bench, [one(make=make), one()], seconds=60.0)
    assert [(check["passed"], check["detail"]) for check in bench.record.checks] == [
        (False, "ValueError: a new version")
    ]
    assert len(passes(bench)) == 6


def test_a_missing_library_is_named_with_what_installs_it(bench):
    models.measure_models(bench, [one(library="no_such_library")], seconds=60.0)
    assert bench.record.notes[-1] == "mlp_200k: no_such_library is missing: pip install no_such_library"
    assert not bench.record.series


def test_torchvision_is_asked_for_in_the_version_of_this_torch_and_without_its_dependencies(monkeypatch):
    monkeypatch.setattr(shipped_models.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shipped_models.importlib.metadata, "version", lambda name: "2.11.0+cu130")
    (definition,) = [model.definition for model in shipped_models.SHIPPED if model.workload == "resnet50"]
    assert shipped_models.what_is_missing(definition).endswith("pip install --no-deps torchvision==0.26.*")


@pytest.mark.parametrize("precision", models.PRECISIONS)
def test_tf32_is_allowed_in_its_own_measurement_alone(precision):
    places = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [place.allow_tf32 for place in places]
    with models.matrix_products(precision):
        assert [place.allow_tf32 for place in places] == [precision == "tf32"] * 2
    assert [place.allow_tf32 for place in places] == before


@pytest.mark.parametrize(
    ("capability", "refused"), [((7, 0), {"tf32", "bf16"}), ((8, 0), set()), ((9, 0), set()), ((10, 0), set())]
)
def test_cards_before_a100_have_neither_tf32_nor_bf16(capability, refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = {name for name in models.PRECISIONS if models.refusal(name, torch.device("cuda"))}
    assert found == refused
