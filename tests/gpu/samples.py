"""Parameters and gradients, the same on every rank and every device, and comparisons of what becomes of them."""

from collections.abc import Iterable, Sequence
from itertools import cycle

import torch
from torch import Tensor, nn

from binsgdm.bench.ranks import Ranks
from binsgdm.comm.consistency import check_same_tensors
from binsgdm.errors import BinsgdmError
from tests.helpers.kernel_samples import same_bits

SHAPES = ((64, 33), (7,), (0,), (96, 65), (1,), (1024,))
STEPS, SEED = 4, 7
# Two summands have one order; with more, the backend's order of a sum is its own.
MOST_WITH_ONE_ORDER = 2
CPU = torch.device("cpu")

Shapes = Sequence[tuple[int, ...]]
Dtypes = tuple[torch.dtype, ...]  # of the parameters, in turns
FP32: Dtypes = (torch.float32,)
BF16: Dtypes = (torch.bfloat16,)
MIXED: Dtypes = (torch.bfloat16, torch.float32, torch.float16)


def parameters(device: torch.device, dtypes: Dtypes = FP32, shapes: Shapes = SHAPES) -> list[nn.Parameter]:
    """Return parameters, the same on every rank and device."""
    return [nn.Parameter(values) for values in _random(SEED, device, dtypes, shapes)]


def gradients(
    rank: int, step: int, device: torch.device, dtypes: Dtypes = FP32, shapes: Shapes = SHAPES
) -> list[Tensor]:
    """Return the gradients of a rank in a step, the same on every device."""
    return _random(1000 * rank + step, device, dtypes, shapes)


def _random(seed: int, device: torch.device, dtypes: Dtypes, shapes: Shapes) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape, dtype in zip(shapes, cycle(dtypes))]


class ParametersWithGradients(nn.Module):
    """A module whose gradients are what it is called with."""

    def __init__(self, values: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.values = nn.ParameterList(values)

    def forward(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return a loss with these gradients."""
        products = [(value * gradient).sum() for value, gradient in zip(self.values, gradients, strict=True)]
        return torch.stack(products).sum()


def num_different(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> int:
    """Return how many tensors differ in any bit."""
    return sum(not same_bits(one.detach(), other.detach()) for one, other in zip(wanted, found, strict=True))


def num_wrong(ranks: Ranks, found: Sequence[Tensor], wanted: Sequence[Tensor]) -> int:
    """Return how many tensors of this rank differ from the control, or 1 at least if ranks differ."""
    wrong = num_different(wanted, found)
    return wrong if are_alike(ranks, found) else max(1, wrong)


def are_alike(ranks: Ranks, found: Sequence[Tensor]) -> bool:
    """Tell whether all ranks have the same bits."""
    if ranks.world_size > 1:
        try:
            check_same_tensors("replicas", [(str(number), one) for number, one in enumerate(found)], "")
        except BinsgdmError:
            return False
    return True


def num_far(wanted: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> int:
    """Return how many tensors are further from what is wanted than a part of its norm; a NaN is far from anything."""
    pairs = [
        (one.detach().cpu().double(), other.detach().cpu().double()) for one, other in zip(wanted, found, strict=True)
    ]
    return sum(not bool((other - one).norm() <= tolerance * one.norm()) for one, other in pairs)
