"""A step is described as it is computed, whatever the number format, with checkpoints or without."""

import gc

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_sources import ModelOptions, find
from binsgdm.recording.model_zoo import Task, in_dtype
from binsgdm.recording.step_description import StepOptions, describe, describe_step, repeated_blocks, without_memory

BATCH = 8


def described(name: str, **options):
    return describe_step(name, StepOptions(batch=BATCH, **options))


def allocated_by_forward(name: str) -> int:
    """Return the bytes that a real forward on the CPU has allocated and not freed."""
    task = find(name, ModelOptions(batch=BATCH)).build()
    task.loss_of(task.module.train())
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        loss = task.loss_of(task.module)
    assert loss.requires_grad
    return sum(event.self_cpu_memory_usage for event in profiled.key_averages())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn_400k", "transformer_1m"])
def test_activations_are_what_a_real_forward_allocates(name):
    counted = BATCH * described(name)["memory"]["activations_per_sample"]
    # The inputs are there before; the loss and statistics of batch norm are allocated, and not saved.
    assert counted == pytest.approx(allocated_by_forward(name), rel=0.03)


def test_half_the_bits_take_half_the_memory():
    whole, half = described("mlp_2m")["memory"], described("mlp_2m", number_format="bf16")["memory"]
    for key in ("parameters", "gradients", "optimizer"):
        assert half[key] * 2 == whole[key]
    # The loss is of fp32 in both.
    assert half["activations_per_sample"] == pytest.approx(whole["activations_per_sample"] / 2, rel=0.02)


def test_autocast_keeps_parameters_and_computes_in_half():
    plain, cast = described("mlp_200k"), described("mlp_200k", number_format="bf16", autocast=True)
    assert cast["dtype"] == "fp32"
    assert cast["work"]["precision"] == "bf16"
    assert cast["memory"]["parameters"] == plain["memory"]["parameters"]
    # Casts of parameters and of their gradients are moved bytes.
    assert cast["work"]["forward_bytes"] > plain["work"]["forward_bytes"]
    assert cast["work"]["forward_flops"] == plain["work"]["forward_flops"]


@pytest.mark.slow
def test_checkpoints_trade_activations_for_another_forward():
    plain, again = described("transformer_10m"), described("transformer_10m", checkpoint=True)
    assert again["memory"]["activations_per_sample"] < 0.6 * plain["memory"]["activations_per_sample"]
    assert again["work"]["forward_flops"] == plain["work"]["forward_flops"]
    more = again["work"]["backward_flops"] - plain["work"]["backward_flops"]
    assert 0.2 * plain["work"]["forward_flops"] < more <= plain["work"]["forward_flops"]
    assert [row[:2] for row in again["tensors"]] == [row[:2] for row in plain["tensors"]]


def test_a_checkpointed_block_keeps_its_input_alone():
    def blocks() -> Task:
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8)) for _ in range(4)]
        return Task(module=nn.Sequential(*layers), inputs=(torch.ones(5, 8),), loss=torch.sum)

    # Of 5 x 8 numbers: the inputs of three blocks, since that of the first is the model's; else both products' inputs.
    assert describe(blocks(), checkpoint=True).activation_bytes == 4 * 5 * 8 * 3
    assert describe(blocks()).activation_bytes == 4 * 5 * 8 * (3 + 4)


def test_a_model_without_repeated_blocks_has_none_to_checkpoint():
    with pytest.raises(BinsgdmError, match="--checkpoint: the model has no list of modules of one class"):
        described("mlp_200k", checkpoint=True)


def test_blocks_are_the_outermost_of_one_class():
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(nn.ModuleList(nn.TransformerEncoderLayer(4, 1) for _ in range(3)), block)
    assert [type(block).__name__ for block in repeated_blocks(model)] == ["TransformerEncoderLayer"] * 3


def test_shared_parameters_stay_shared_in_another_format():
    module = nn.ModuleList([nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)])
    module[1].weight = module[0].weight
    cast = in_dtype(
        Task(module=module, inputs=(torch.ones(2), torch.ones(2, dtype=torch.long)), loss=sum), torch.bfloat16
    )
    assert module[1].weight is module[0].weight
    assert module[0].weight.dtype == torch.bfloat16
    assert isinstance(module[0].weight, nn.Parameter)
    assert [tensor.dtype for tensor in cast.inputs] == [torch.bfloat16, torch.long]


def test_dropout_in_attention_changes_neither_work_nor_memory_of_scores():
    def attention(dropout: float):
        layer = nn.MultiheadAttention(64, 4, dropout=dropout, batch_first=True)
        given = torch.randn(2, 128, 64)
        return Task(
            module=layer, inputs=(given, given, given), keywords={"need_weights": False}, loss=lambda out: out[0].sum()
        )

    without, _ = without_memory(lambda: attention(0.0))
    with_dropout, _ = without_memory(lambda: attention(0.1))
    assert with_dropout == without


@pytest.mark.slow
def test_what_causal_attention_and_frozen_parameters_leave_out_is_noted():
    counted = {
        name: describe_step("llama_1b", StepOptions(batch=1, length=256, attention=name)) for name in ("causal", "full")
    }
    notes = {name: one["notes"][0] for name, one in counted.items()}
    assert all(note.startswith("attention is causal: ") for note in notes.values())
    assert notes["causal"].removesuffix("causal") == notes["full"].removesuffix("full")
    assert counted["causal"]["work"]["forward_flops"] < counted["full"]["work"]["forward_flops"]
