"""Count the work of published trainings anew: `python -m evidence.studies.roofline_work`, which writes roofline.csv.

Models of torchvision and transformers need these libraries. MPT is defined here, as llm-foundry has it. Operators run
one by one, in the format of the row (bf16 for fp8), with fused attention.
"""

import csv
import io
import re
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.recording.model_sources import ModelOptions, find
from binsgdm.recording.model_zoo import Task, in_dtype
from binsgdm.recording.step_description import DTYPES, describe, fake_tensors
from evidence.studies.roofline import ROWS, PublishedTraining, rows
from simnet.core.files import data_path, write_file

BATCH = {"MPT": 2}
"""Samples of a batch whose work is counted; what does not grow with it is little by then."""
USUAL_BATCH = 32
TOKENS, VOCABULARY = 2048, 50368
MPT: Mapping[str, tuple[int, int, int]] = {
    "MPT-125m": (768, 12, 12),
    "MPT-350m": (1024, 24, 16),
    "MPT-760m": (1536, 24, 12),
    "MPT-1b": (2048, 24, 16),
    "MPT-3b": (2560, 32, 20),
    "MPT-7b": (4096, 32, 32),
    "MPT-13b": (5120, 40, 40),
    "MPT-30b": (7168, 48, 56),
}
"""Width, layers and heads. Source: mosaicml/llm-foundry @061f2c7, scripts/train/yamls/pretrain."""


@cache
def counted(model: str, number_format: str) -> dict[str, str]:
    """Return the columns of work of one sample, as text."""
    batch = BATCH.get(model.partition("-")[0], USUAL_BATCH)
    with fake_tensors():
        task = mpt(model, batch) if model in MPT else find(model, ModelOptions(batch=batch)).build()
        description = describe(in_dtype(task, DTYPES[number_format]))
    parts = {"forward": description.forward, "backward": description.backward}
    flops = {f"{part}_flops": f"{work.flops / batch:.6g}" for part, work in parts.items()}
    return flops | {f"{part}_bytes": f"{work.num_bytes / batch:.6g}" for part, work in parts.items()}


class _Block(nn.Module):
    """Attention and a feed-forward layer of four times the width, both without biases, after norms."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.projected, self.made = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the residual stream after the block."""
        parts = self.projected(self.norms[0](hidden)).unflatten(2, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        hidden = hidden + self.made(attended.transpose(1, 2).flatten(2))
        return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))  # type: ignore[no-any-return]


class _Mpt(nn.Module):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        return functional.linear(self.norm(self.blocks(self.token(tokens))), self.token.weight)


def mpt(name: str, batch: int) -> Task:
    """Return one of MPT with a batch, its attention without the linear biases of positions."""
    tokens = torch.randint(VOCABULARY, (batch, TOKENS + 1))

    def loss(scores: Tensor) -> Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

    return Task(module=_Mpt(*MPT[name]), inputs=(tokens[:, :-1],), loss=loss)


def work_of(row: PublishedTraining) -> dict[str, str]:
    model = row.model if row.model in MPT else re.split(" ", row.work)[0]
    return counted(model, "bf16" if row.precision == "fp8" else row.precision)


def text() -> str:
    """Return the file with the work counted anew."""
    table = list(csv.DictReader(io.StringIO(data_path(*ROWS).read_text(encoding="utf-8"))))
    made = io.StringIO()
    writer = csv.DictWriter(made, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain | work_of(row) for plain, row in zip(table, rows(), strict=True))
    return made.getvalue()


if __name__ == "__main__":
    write_file(data_path(*ROWS), text().encode())
