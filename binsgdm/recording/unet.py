"""The U-Net of the original paper, in plain torch."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.recording.model_zoo import Task

SIDE = 572
"""Pixels of a side of its input; the output has 388."""
ORIGIN = "Ronneberger, Fischer and Brox, U-Net, 2015, Figure 1"
_WIDTHS = (64, 128, 256, 512, 1024)


def _convolutions(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(given, made, 3), nn.ReLU(), nn.Conv2d(made, made, 3), nn.ReLU())


class UNet(nn.Module):
    """A contracting and an expanding path, joined level by level.

    Source: Ronneberger, Fischer and Brox, U-Net, 2015, Figure 1: unpadded convolutions, one channel in, two classes
    out, 31.0 million parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(_convolutions, (1, *_WIDTHS[:-1]), _WIDTHS))
        widths = _WIDTHS[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, wide // 2, 2, stride=2) for wide in widths[:-1])
        self.joined = nn.ModuleList(_convolutions(wide, wide // 2) for wide in widths[:-1])
        self.classes = nn.Conv2d(_WIDTHS[0], 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of both classes at every pixel."""
        kept = []
        for level, convolutions in enumerate(self.down):
            images = convolutions(functional.max_pool2d(images, 2) if level else images)
            kept.append(images)
        for up, joined, before in zip(self.up, self.joined, kept[-2::-1], strict=True):
            larger = up(images)
            edge = (before.shape[2] - larger.shape[2]) // 2
            cropped = before[:, :, edge : edge + larger.shape[2], edge : edge + larger.shape[3]]
            images = joined(torch.cat((cropped, larger), dim=1))
        return self.classes(images)  # type: ignore[no-any-return]


def task(batch: int, side: int | None = None) -> Task:
    """Return the U-Net with random images, on the current default device."""
    images = torch.randn(batch, 1, side or SIDE, side or SIDE)

    def loss(scores: Tensor) -> Tensor:
        return functional.cross_entropy(scores, torch.zeros(batch, *scores.shape[2:], dtype=torch.long))

    return Task(module=UNet(), inputs=(images,), loss=loss)
