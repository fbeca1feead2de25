"""The models that are measured are those of the shipped workloads."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.recording.model_sources import SHIPPED

WORKLOADS = Path(__file__).resolve().parents[4] / "scenarios" / "workloads"


def test_there_is_one_for_every_shipped_workload_that_was_measured_somewhere():
    """Others have their compute time from counted work."""
    workloads = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in WORKLOADS.glob("*.toml")}
    assert {model.name for model in SHIPPED} == {name for name, one in workloads.items() if "compute" in one}
    assert all("work" in one for one in workloads.values() if "compute" not in one)


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_the_batch_of_the_workload_is_among_three_that_are_measured(model):
    workload = tomllib.loads((WORKLOADS / f"{model.name}.toml").read_text())
    assert workload["batch_per_rank"] in model.batches
    assert len(model.batches) == 3
    assert list(model.batches) == sorted(model.batches)


@pytest.mark.slow
@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
@pytest.mark.filterwarnings("ignore")  # those of the libraries
def test_gradients_become_ready_in_the_shipped_order_with_fused_attention(model):
    needs(model.library)
    task = model.build(1)
    ready = []
    for name, parameter in task.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, name=name: ready.append([name, list(parameter.shape)])
        )
    task.loss_of(task.module).backward()
    gradients = tomllib.loads((WORKLOADS / f"{model.name}.toml").read_text())["gradients"]
    shipped = [row[:2] for row in json.loads((WORKLOADS / "gradients" / f"{gradients}.json").read_text())["tensors"]]
    if model.name == "bert_base_squad":  # one head instead of the two of pre-training, and no pooler
        heads = ("cls.", "bert.pooler.", "qa_outputs.")
        ready, shipped = ([row for row in rows if not row[0].startswith(heads)] for rows in (ready, shipped))
    assert ready == shipped
