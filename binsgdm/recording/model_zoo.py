"""Real models that need nothing but torch, by name, and those of the user by `module:function`."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.errors import BinsgdmError

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model with a batch of synthetic data.

    Attributes:
        module: the model.
        inputs: what it is called with.
        loss: of what it returns, a scalar.
        keywords: what it is called with by name.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[Any], Tensor]
    keywords: Mapping[str, Tensor] = field(default_factory=dict)

    def loss_of(self, module: nn.Module) -> Tensor:
        """Run forward of the module, or of what wraps it, and return the loss."""
        return self.loss(module(*self.inputs, **self.keywords))

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters that are trained."""
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)


Builder = Callable[[int], Any]  # from the batch size to (module, inputs, loss) as in `Task`


def build(name: str, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Task:
    """Build a model with its batch, from a fixed seed and therefore the same on all ranks.

    Args:
        name: one of `NAMES`, or `module:function` for a function of the type `Builder`.
        batch: samples.
        device: where to.
        dtype: of the parameters and of inputs that are floats.

    Raises:
        BinsgdmError: an unknown name, or a function that cannot be called so.
    """
    builder = _builder(name)
    torch.manual_seed(SEED)
    with torch.device(device):
        made = builder(batch)
    try:
        module, inputs, loss = made
    except (TypeError, ValueError) as error:
        raise BinsgdmError(
            f"--model {name}: returned {type(made).__name__}: must return (module, inputs, loss)"
        ) from error
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if dtype != torch.float32:
        inputs = tuple(given.to(dtype) if given.is_floating_point() else given for given in inputs)
    return Task(module=module.to(device, dtype), inputs=inputs, loss=loss)


def _builder(name: str) -> Builder:
    if name in NAMES:
        return NAMES[name]
    home, _, function = name.partition(":")
    if not home or not function:
        near = get_close_matches(name, NAMES, n=1) or sorted(NAMES)
        raise BinsgdmError(f"--model {name!r}: unknown; write module:function, or one of {', '.join(near)}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Builder = getattr(importlib.import_module(home), function)
    except (ImportError, AttributeError) as error:
        raise BinsgdmError(
            f"--model {name!r}: cannot be imported ({error}); run where {home} can be imported"
        ) from error
    finally:
        sys.path.pop(0)
    return found


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

    def block(given: int, made: int) -> list[nn.Module]:
        return [nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]

    def build_it(batch: int) -> Any:
        widths = [3, channels, 2 * channels, 4 * channels, 8 * channels]
        blocks = [part for given, made in pairwise(widths) for part in block(given, made)]
        module = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * widths[-1], 10))
        return module, torch.randn(batch, 3, 32, 32), _classes(batch, 10)

    return build_it


class _Transformer(nn.Module):
    """A causal language model: embeddings that are shared with the output, pre-norm layers."""

    def __init__(self, *, width: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
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


def _transformer(*, width: int, layers: int, vocabulary: int = 8192, length: int = 64) -> Builder:
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
