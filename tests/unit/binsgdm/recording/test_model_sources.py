"""A text names a model: shipped, of a library, or a function of the user."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_sources import SHIPPED, ModelOptions, find
from binsgdm.recording.step_description import without_memory


def test_a_function_may_take_the_batch_or_nothing(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "def with_batch(batch): return torch.nn.Linear(2, 2), torch.ones(batch, 2)\n"
        "def alone(): return torch.nn.Linear(2, 2), {'input': torch.ones(3, 2)}\n"
        "def reads():\n"
        "    module = torch.nn.Linear(2, 2)\n"
        "    float(module.weight.sum()), bool((module.weight > 0).any()), module.bias.tolist()\n"
        "    return module, torch.ones(1, 2)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    flops = [without_memory(find(f"my_models:{name}", ModelOptions(batch=5)).build)[0].forward.flops
             for name in ("with_batch", "alone", "reads")]  # fmt: skip
    assert flops == [5 * 8, 3 * 8, 8]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("lama_7b", "did you mean 'llama_7b'"),
        ("no_such_module:build", "no module 'no_such_module'"),
        ("json:no_function", "json has no function 'no_function'"),
        ("json:dumps", "returned str|missing"),
        ("config.json", "cannot be read as JSON|transformers: is not installed"),
    ],
)
def test_what_names_no_model_is_refused(source, sentence):
    with pytest.raises((BinsgdmError, TypeError), match=sentence):
        without_memory(find(source, ModelOptions()).build)


@pytest.mark.parametrize(
    ("library", "repair"),
    [
        ("torchvision", "pip install torchvision"),
        ("timm", "pip install timm"),
        ("transformers", r"in the checkout: pip install '\.\[models\]'"),
    ],
)
def test_a_library_that_is_missing_is_named(library, repair, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BinsgdmError, match=f"{library}: is not installed: {repair}"):
        find(f"{library}:x", ModelOptions())


WORKLOADS = Path(__file__).resolve().parents[4] / "scenarios" / "workloads"


def test_there_is_one_for_every_shipped_workload_that_was_measured_somewhere():
    """Others have their compute time from counted work."""
    workloads = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in WORKLOADS.glob("*.toml")}
    assert {model.name for model in SHIPPED} == {name for name, one in workloads.items() if "compute" in one}
    assert all("work" in workload for workload in workloads.values() if "compute" not in workload)


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
