"""Real models that need nothing but torch, by name.

The language models have sizes of Llama and Llama 2, and none of their weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model with a batch of synthetic data, that it is called with, and the loss of what it returns, a scalar."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[Any], Tensor]
    keywords: Mapping[str, Tensor] = field(default_factory=dict)

    def loss_of(self, module: nn.Module) -> Tensor:
        """Run forward of the module, or of what wraps it, and return the loss."""
        return self.loss(module(*self.inputs, **self.keywords))

    @property
    def tensors(self) -> list[Tensor]:
        """What of the batch is a tensor: a user's function may return other things, too."""
        return [value for value in (*self.inputs, *self.keywords.values()) if isinstance(value, Tensor)]


def in_dtype(task: Task, dtype: torch.dtype) -> Task:
    """Return the task with parameters, buffers and inputs of floating point in a dtype; whole numbers stay.

    Parameters are replaced one by one, since `Module.to` cannot do it with fake ones; shared ones stay shared.
    """
    # By identity, so that parameters which two modules share stay one.
    made: dict[int, Any] = {}

    def cast(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dtype == dtype:
            return tensor
        if id(tensor) not in made:
            converted = tensor.detach().to(dtype)
            made[id(tensor)] = (
                nn.Parameter(converted, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else converted
            )
        return made[id(tensor)]

    for module in task.module.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                held[name] = cast(tensor)
    keywords = {name: cast(tensor) for name, tensor in task.keywords.items()}
    return replace(task, inputs=tuple(map(cast, task.inputs)), keywords=keywords)


Builder = Callable[[int], Any]  # from the batch size to (module, inputs, loss) as in `Task`


def _classes(batch: int, num_classes: int) -> Callable[[Tensor], Tensor]:
    """Return the loss against fixed random classes."""
    targets = torch.randint(num_classes, (batch,))
    return lambda output: functional.cross_entropy(output.float(), targets)


def _mlp(width: int, layers: int) -> Builder:
    def build_it(batch: int) -> Any:
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10)), torch.randn(batch, width), _classes(batch, 10)

    return build_it


def _cnn(channels: int) -> Builder:
    """Return a small residual-free network of 3 x 32 x 32 images, as VGG."""

    def block(channels: int, made: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]

    def build_it(batch: int) -> Any:
        widths = [3, channels, 2 * channels, 4 * channels, 8 * channels]
        blocks = [part for channels, made in pairwise(widths) for part in block(channels, made)]
        module = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * widths[-1], 10))
        return module, torch.randn(batch, 3, 32, 32), _classes(batch, 10)

    return build_it


class _Transformer(nn.Module):
    """A causal language model: embeddings that are shared with the output, pre-norm layers."""

    def __init__(self, *, width: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        # Torch draws embeddings with a deviation of 1: shared with the output, they would give far too large scores.
        nn.init.normal_(self.token.weight, std=0.02)
        self.position = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)
        self.register_buffer("places", torch.arange(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        hidden = self.token(tokens) + self.position(self.places)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return functional.linear(self.norm(hidden), self.token.weight)


def _transformer(*, width: int, layers: int, vocabulary: int = 8192) -> Builder:
    length = 64

    def build_it(batch: int) -> Any:
        tokens = torch.randint(vocabulary, (batch, length + 1))

        def loss(scores: Tensor) -> Tensor:
            return functional.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())

        module = _Transformer(width=width, layers=layers, vocabulary=vocabulary, length=length)
        return module, tokens[:, :-1].contiguous(), loss

    return build_it


# The name states the number of parameters.
NAMES: dict[str, Builder] = {
    "mlp_200k": _mlp(256, 3),
    "mlp_2m": _mlp(1024, 2),
    "mlp_4m": _mlp(1024, 4),
    "mlp_25m": _mlp(2048, 6),
    "cnn_400k": _cnn(32),
    "cnn_6m": _cnn(128),
    "transformer_1m": _transformer(width=128, layers=2, vocabulary=4096),
    "transformer_10m": _transformer(width=320, layers=6),
    "transformer_25m": _transformer(width=512, layers=6, vocabulary=12288),
}


@dataclass(frozen=True, kw_only=True)
class LlamaSize:
    """The size of a model.

    Attributes:
        width: of the residual stream.
        heads: of queries.
        key_heads: of keys and values; fewer where queries share them.
        hidden: width of the gated feed-forward layer.
        length: tokens of a sample.
        source: where the size comes from.
    """

    title: str
    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int
    length: int
    vocabulary: int = 32000
    source: str

    def task(self, batch: int, length: int | None = None) -> Task:
        """Return the model with sequences whose next tokens are predicted, on the current default device."""
        tokens = torch.randint(self.vocabulary, (batch, (length or self.length) + 1))

        def loss(scores: Tensor) -> Tensor:
            return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

        return Task(module=_Llama(self), inputs=(tokens[:, :-1],), loss=loss)


class _Attention(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self._heads, self._key_heads = size.heads, size.key_heads
        head = size.width // size.heads
        self.wq = nn.Linear(size.width, size.width, bias=False)
        self.wk = nn.Linear(size.width, size.key_heads * head, bias=False)
        self.wv = nn.Linear(size.width, size.key_heads * head, bias=False)
        self.wo = nn.Linear(size.width, size.width, bias=False)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return what each token takes from those before it."""
        query = _rotated(self._by_head(self.wq(hidden), self._heads), cosine, sine)
        key = _rotated(self._by_head(self.wk(hidden), self._key_heads), cosine, sine)
        value = self._by_head(self.wv(hidden), self._key_heads)
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self._heads != self._key_heads
        )
        return self.wo(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    @staticmethod
    def _by_head(values: Tensor, heads: int) -> Tensor:
        return values.reshape(*values.shape[:2], heads, -1).transpose(1, 2)


def _rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class _Block(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = _Attention(size)
        self.norm = nn.RMSNorm(size.width)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the residual stream after the block."""
        # Norms stand before what they feed, as in Llama, so that the residual stream itself is never scaled.
        hidden = hidden + self.attention(self.attention_norm(hidden), cosine, sine)
        inner = self.norm(hidden)
        return hidden + self.down(functional.silu(self.gate(inner)) * self.up(inner))  # type: ignore[no-any-return]


class _Llama(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self._head = size.width // size.heads
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.output = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        hidden = self.token(tokens)
        # In fp32 whatever the model's format: bf16 tells no two positions above 256 apart.
        places = torch.arange(tokens.shape[1], dtype=torch.float32)
        frequencies = 10000.0 ** (-torch.arange(0, self._head, 2, dtype=torch.float32) / self._head)
        angles = torch.outer(places, frequencies).to(hidden.dtype)
        cosine, sine = angles.cos(), angles.sin()
        for layer in self.layers:
            hidden = layer(hidden, cosine, sine)
        return self.output(self.norm(hidden))  # type: ignore[no-any-return]


_SHEARED = "Xia et al., Sheared LLaMA, 2023, Table 7"
_LLAMA = "Touvron et al., LLaMA, 2023, Table 2"
_LLAMA_2 = "Touvron et al., Llama 2, 2023, Table 1; its model's code for the sizes of layers"
LLAMAS: Mapping[str, LlamaSize] = {
    name: LlamaSize(
        title=f"Llama-style, {title}",
        width=width,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        hidden=hidden,
        length=length,
        source=source,
    )
    for name, title, width, layers, heads, key_heads, hidden, length, source in (
        ("llama_1b", "1.3 B", 2048, 24, 16, 16, 5504, 2048, f"{_SHEARED} (1.3 B)"),
        ("llama_3b", "2.7 B", 2560, 32, 20, 20, 6912, 2048, f"{_SHEARED} (2.7 B)"),
        ("llama_7b", "7 B", 4096, 32, 32, 32, 11008, 2048, _LLAMA),
        ("llama_13b", "13 B", 5120, 40, 40, 40, 13824, 2048, _LLAMA),
        ("llama_70b", "70 B", 8192, 80, 64, 8, 28672, 4096, _LLAMA_2),
    )
}


UNET_SIDE = 572
"""Pixels of a side of its input; the output has 388."""
UNET_ORIGIN = "Ronneberger, Fischer and Brox, U-Net, 2015, Figure 1"
_UNET_WIDTHS = (64, 128, 256, 512, 1024)


def _convolutions(channels: int, made: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, made, 3), nn.ReLU(), nn.Conv2d(made, made, 3), nn.ReLU())


class UNet(nn.Module):
    """A contracting and an expanding path, joined level by level.

    Source: Ronneberger, Fischer and Brox, U-Net, 2015, Figure 1: unpadded convolutions, one channel in, two classes
    out, 31.0 million parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(_convolutions, (1, *_UNET_WIDTHS[:-1]), _UNET_WIDTHS))
        widths = _UNET_WIDTHS[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, wide // 2, 2, stride=2) for wide in widths[:-1])
        self.joined = nn.ModuleList(_convolutions(wide, wide // 2) for wide in widths[:-1])
        self.classes = nn.Conv2d(_UNET_WIDTHS[0], 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of both classes at every pixel."""
        kept = []
        for level, convolutions in enumerate(self.down):
            images = convolutions(functional.max_pool2d(images, 2) if level else images)
            kept.append(images)
        for up, joined, before in zip(self.up, self.joined, kept[-2::-1], strict=True):
            larger = up(images)
            # Convolutions without padding have taken as much off each side.
            edge = (before.shape[2] - larger.shape[2]) // 2
            cropped = before[:, :, edge : edge + larger.shape[2], edge : edge + larger.shape[3]]
            images = joined(torch.cat((cropped, larger), dim=1))
        return self.classes(images)  # type: ignore[no-any-return]


def unet_task(batch: int, side: int | None = None) -> Task:
    """Return the U-Net with random images, on the current default device."""
    images = torch.randn(batch, 1, side or UNET_SIDE, side or UNET_SIDE)

    def loss(scores: Tensor) -> Tensor:
        return functional.cross_entropy(scores, torch.zeros(batch, *scores.shape[2:], dtype=torch.long))

    return Task(module=UNet(), inputs=(images,), loss=loss)
