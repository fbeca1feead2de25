"""A model is described without its memory as it is with it, and as torch's own counter counts."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_sources import ModelOptions, as_task, find
from binsgdm.recording.model_zoo import LlamaSize, Task
from binsgdm.recording.step_description import ModelDescription, describe, fake_tensors, without_memory

SMALL = LlamaSize(
    title="small", width=64, layers=2, heads=4, key_heads=2, hidden=96, length=16, vocabulary=128, source="a test"
)


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8, 6))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bhi,hij->bhj", given, self.weight)


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.left = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.used(given)


def convolution(**settings: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 16, 3, **settings))


def transposed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 4, 2, stride=2))


MODELS = {
    "linear": lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.ones(5, 8)),
    "convolution": lambda: (convolution(), torch.ones(2, 8, 9, 9)),
    "strided": lambda: (convolution(stride=2, padding=1), torch.ones(2, 8, 9, 9)),
    "transposed": lambda: (transposed(), torch.ones(2, 8, 9, 9)),
    "einsum": lambda: (Einsum(), torch.ones(3, 4, 8)),
    "attention": lambda: (nn.MultiheadAttention(16, 2, batch_first=True), (torch.ones(2, 5, 16),) * 3),
    "llama": lambda: (task := SMALL.task(2)).module and (task.module, task.inputs, task.loss),
}


def counted_by_torch(task: Task) -> tuple[int, int]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = task.loss_of(task.module)
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_of_torchs_counter(name):
    description, _ = without_memory(lambda: as_task(MODELS[name]()))
    wanted = counted_by_torch(as_task(MODELS[name]()))
    if name != "llama":  # a fused kernel of attention computes the scores again in backward
        assert (description.forward.flops, description.backward.flops) == wanted
    assert description.forward.flops == wanted[0]
    assert sum(gradient.flops for gradient in description.gradients) == description.backward.flops


def test_backward_of_grouped_convolutions_costs_twice_their_forward():
    def build() -> Task:
        return as_task((convolution(groups=4), torch.ones(2, 8, 9, 9)))

    description, _ = without_memory(build)
    first = 2 * 2 * 7 * 7 * 8 * 8 * 9  # of the first layer, whose input needs no gradient
    assert description.backward.flops == 2 * description.forward.flops - first
    assert counted_by_torch(build())[1] > description.backward.flops  # torch 2.13 takes all groups for one


@pytest.mark.parametrize("name", MODELS)
def test_without_memory_is_as_with_it(name):
    fake, num_bytes = without_memory(lambda: as_task(MODELS[name]()))
    task = as_task(MODELS[name]())
    real = describe(task)
    assert fake.gradients == real.gradients
    assert (fake.forward, fake.backward) == (real.forward, real.backward)
    assert fake.activation_bytes == real.activation_bytes
    assert num_bytes == sum(parameter.numel() * 4 for parameter in task.module.parameters())


def test_gradients_come_in_the_order_of_backward_and_a_tied_one_once():
    def build() -> Task:
        module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
        module[2].weight = module[0].weight
        return as_task((module, torch.ones(2, 4)))

    description, _ = without_memory(build)
    assert [gradient.name for gradient in description.gradients] == ["1.bias", "1.weight", "0.weight"]


def test_activations_are_what_autograd_keeps():
    module = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4))
    description = describe(
        as_task((module, torch.ones(5, 8), lambda output: functional.mse_loss(output, torch.ones(5, 4))))
    )
    # The sigmoid's result, and for the loss its input and its target.
    assert description.activation_bytes == 4 * (5 * 16 + 5 * 4 + 5 * 4)


@pytest.mark.slow
def test_seventy_billion_parameters_are_described():
    description, num_bytes = without_memory(find("llama_70b", ModelOptions()).build)
    assert num_bytes == 4 * 68_976_648_192
    assert len(description.gradients) == 9 * 80 + 3
    # 2 and 4 FLOPs a token and parameter of a product, and attention's.
    tokens, products = 4096, 68_976_648_192 - 32000 * 8192 - (2 * 80 + 1) * 8192
    attention = 80 * 4 * 64 * 128 * tokens * tokens
    assert description.forward.flops == 2 * tokens * products + attention


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (nn.Linear(2, 2), "returned Linear: must return"),
        ((nn.ReLU(), torch.ones(2)), "no parameter requires a gradient"),
        ((nn.Linear(2, 2), torch.ones(1, 2), lambda output: output), "the loss: must be one number"),
        ((HalfUsed(), torch.ones(1, 2)), "2 of 4 parameters get no gradient, such as 'left.weight'"),
    ],
)
def test_what_cannot_be_trained_is_refused(made, sentence):
    with pytest.raises(BinsgdmError, match=sentence):
        describe(as_task(made))


class Experts(nn.Module):
    """Two grouped products, each row of which meets the matrix of one of eight experts."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(8, 32, 48, dtype=dtype))
        self.down = nn.Parameter(torch.randn(8, 48, 32, dtype=dtype))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        ends = torch.arange(1, 9, dtype=torch.int32) * (rows.shape[0] // 8)
        return functional.grouped_mm(functional.grouped_mm(rows, self.up, offs=ends), self.down, offs=ends)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_grouped_products_of_experts_count_by_their_rows_in_every_format(dtype: torch.dtype) -> None:
    description, _ = without_memory(
        lambda: as_task((Experts(dtype), torch.randn(64, 32, dtype=dtype, requires_grad=True)))
    )
    forward = 2 * 2 * 64 * 32 * 48
    assert (description.forward.flops, description.backward.flops) == (forward, 2 * forward)
    assert [gradient.shape for gradient in description.gradients] == [(8, 48, 32), (8, 32, 48)]


class Attention(nn.Module):
    """Attention of 2 heads of 16 over sequences of 64, causal or by a mask."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.rows = nn.Linear(32, 32, bias=False)
        self.settings = settings

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        heads = self.rows(rows).unflatten(-1, (2, 16)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, **self.settings)  # type: ignore[arg-type]


def described(causal: bool, **settings: object) -> ModelDescription:
    with fake_tensors():
        task = as_task((Attention(**settings), torch.randn(3, 64, 32)))
        return describe(task, causal=causal)


def test_causal_attention_counts_what_is_before_the_diagonal() -> None:
    full, half = described(causal=False, is_causal=True), described(causal=True, is_causal=True)
    scores = 3 * 2 * 2 * 2 * 64 * 64 * 16  # of 3 samples and 2 heads: query x key, and that x value
    masked = 1 - 65 / 128
    assert full.forward.flops - half.forward.flops == pytest.approx(scores * masked)
    # Backward has 5 such products for the 2 of forward, with the scores again.
    assert full.backward.flops - half.backward.flops == pytest.approx(2.5 * scores * masked)
    assert full.masked_flops == half.masked_flops == pytest.approx(3.5 * scores * masked)
    assert sum(gradient.flops for gradient in half.gradients) == pytest.approx(half.backward.flops)


def test_attention_that_is_not_causal_or_has_a_tensor_as_its_mask_counts_in_full() -> None:
    for settings in ({}, {"attn_mask": torch.zeros(64, 64)}):
        description = described(causal=True, **settings)
        assert description.masked_flops == 0
        assert description.forward.flops == described(causal=False, is_causal=True).forward.flops
