"""Llama-style language models in plain torch, for workloads: sizes of Llama and Llama 2, and none of their weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.recording.model_zoo import Task


@dataclass(frozen=True, kw_only=True)
class LlamaSize:
    """The size of a model.

    Attributes:
        title: for people.
        width: of the residual stream.
        layers: blocks.
        heads: of queries.
        key_heads: of keys and values; fewer where queries share them.
        hidden: width of the gated feed-forward layer.
        length: tokens of a sample.
        vocabulary: tokens in all.
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
        found = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self._heads != self._key_heads
        )
        return self.wo(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    @staticmethod
    def _by_head(given: Tensor, heads: int) -> Tensor:
        return given.reshape(*given.shape[:2], heads, -1).transpose(1, 2)


def _rotated(given: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = given.chunk(2, dim=-1)
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
        places = torch.arange(tokens.shape[1], dtype=torch.float32)
        frequencies = 10000.0 ** (-torch.arange(0, self._head, 2, dtype=torch.float32) / self._head)
        angles = torch.outer(places, frequencies).to(hidden.dtype)
        cosine, sine = angles.cos(), angles.sin()
        for layer in self.layers:
            hidden = layer(hidden, cosine, sine)
        return self.output(self.norm(hidden))  # type: ignore[no-any-return]


_LLAMA = "Touvron et al., LLaMA, 2023, Table 2"
_LLAMA_2 = "Touvron et al., Llama 2, 2023, Table 1; its model's code for the sizes of layers"
LLAMAS: Mapping[str, LlamaSize] = MappingProxyType(
    {
        "llama_1b": LlamaSize(
            title="Llama-style, 1.3 B", width=2048, layers=24, heads=16, key_heads=16, hidden=5504, length=2048,
            source="Xia et al., Sheared LLaMA, 2023, Table 7 (1.3 B)",
        ),
        "llama_3b": LlamaSize(
            title="Llama-style, 2.7 B", width=2560, layers=32, heads=20, key_heads=20, hidden=6912, length=2048,
            source="Xia et al., Sheared LLaMA, 2023, Table 7 (2.7 B)",
        ),
        "llama_7b": LlamaSize(
            title="Llama-style, 7 B", width=4096, layers=32, heads=32, key_heads=32, hidden=11008, length=2048,
            source=_LLAMA,
        ),
        "llama_13b": LlamaSize(
            title="Llama-style, 13 B", width=5120, layers=40, heads=40, key_heads=40, hidden=13824, length=2048,
            source=_LLAMA,
        ),
        "llama_70b": LlamaSize(
            title="Llama-style, 70 B", width=8192, layers=80, heads=64, key_heads=8, hidden=28672, length=4096,
            source=_LLAMA_2,
        ),
    }
)  # fmt: skip
