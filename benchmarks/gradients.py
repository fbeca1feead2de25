"""Gradients to try quantizers on, and the error that a quantizer makes on them."""

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from binsgdm.compressors.base import GradientBucket, Payload, Shapes, numel_of
from binsgdm.kernels.random import Key

DRAWS = 4
TRAINED_STEPS, BATCH = 100, 64


class Gradient(NamedTuple):
    """Flat fp32 values and the shapes of their tensors."""

    values: torch.Tensor
    shapes: Shapes


class Row(NamedTuple):
    """A quantizer on one gradient: variances as parts of the squared norm, bits per element."""

    gradient: str
    block: int
    name: str
    bits: int
    variance: float
    bound: float
    elias_bits: float | None
    elias_bound: float | None
    entropy: float


def gradients() -> dict[str, Gradient]:
    """Return the three gradients."""
    normal = torch.randn(512 * 512, generator=torch.Generator().manual_seed(0))
    return {"normal": Gradient(normal, ((512, 512),)), **digits_gradients()}


def digits_gradients() -> dict[str, Gradient]:
    """Return the gradient of the digits network at the start and after training."""
    from examples import train_digits

    torch.manual_seed(0)
    network = train_digits.convolutions()
    images, labels = train_digits.load("train")
    optimizer = torch.optim.Adam(network.parameters(), lr=7e-3)
    generator = torch.Generator().manual_seed(0)
    found = {}
    for step in range(TRAINED_STEPS + 1):
        batch = torch.randperm(len(images), generator=generator)[:BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        if step in (0, TRAINED_STEPS):
            given = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
            name = "digits, start" if step == 0 else "digits, trained"
            flat = torch.cat([one.reshape(-1) for one in given])
            found[name] = Gradient(flat, tuple(tuple(one.shape) for one in given))
        optimizer.step()
    return found


def relative_errors(compressor: Any, gradient: Gradient, draws: int = DRAWS) -> list[float]:
    """Return ||C(v) - v||^2 / ||v||^2 of some draws."""
    values, shapes = gradient
    found = []
    for number in range(draws):
        key = Key(seed=1, step=number)
        restored = compressor.decompress(compressor.compress(values, shapes, key), shapes, key)
        found.append((restored.double() - values.double()).square().sum().item())
    return [lost / values.double().square().sum().item() for lost in found]


def bucket_of(gradient: Gradient) -> GradientBucket:
    """Return a gradient as a bucket of its own."""
    names = tuple(range(len(gradient.shapes)))
    return GradientBucket(values=gradient.values, parameters=names, shapes=gradient.shapes)


def bits_an_element(payload: Payload, shapes: Shapes) -> float:
    """Return the bits of a payload per element."""
    return 8 * payload.num_bytes / numel_of(shapes)
