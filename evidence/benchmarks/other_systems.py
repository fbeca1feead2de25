"""What the systems outside the QSGD family lose of a gradient, against what theory says of that very gradient."""

import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket, Shapes, matrix_shape, numel_of
from binsgdm.compressors.low_rank import Atomo, GradZip, PowerSGD, is_factored, probabilities
from binsgdm.compressors.quantizers import ByteGrad
from binsgdm.compressors.signs import OneBitSGD, ScaledSign, TernGrad
from binsgdm.compressors.sparse import MSTopK, RandomK, TopK
from binsgdm.kernels.random import Key
from simnet.report.table import Table

RATIO = 0.01
DRAWS = 100
MATRIX_RANK = 4
WARM_STEPS = 10


class Gradient(NamedTuple):
    """Flat fp32 values and the shapes of their tensors."""

    values: torch.Tensor
    shapes: Shapes


class Loss(NamedTuple):
    """One system on one gradient: bits per element, the part lost, its standard error, what theory says, how."""

    bits: float
    lost: float
    error: float
    theory: float
    kind: str


def relative_errors(compressor: Any, gradient: Gradient, draws: int = 4) -> list[float]:
    """Return ||C(v) - v||^2 / ||v||^2 of some draws."""
    values, shapes = gradient
    found = []
    for number in range(draws):
        key = Key(seed=1, step=number)
        restored = compressor.decompress(compressor.compress(values, shapes, key), shapes, key)
        found.append(energy(restored.double() - values.double()) / energy(values))
    return found


def energy(values: torch.Tensor) -> float:
    """Return the squared L2 norm in fp64."""
    return values.double().square().sum().item()


def parts(gradient: Gradient) -> list[torch.Tensor]:
    pieces = gradient.values.double().split([numel_of((shape,)) for shape in gradient.shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, gradient.shapes, strict=True)]


def sign_theory(gradient: Gradient) -> float:
    """Return 1 - delta: the mean magnitude of a tensor keeps ||v||_1^2 / n of its squared norm."""
    kept = sum(part.abs().sum().item() ** 2 / part.numel() for part in parts(gradient))
    return 1 - kept / energy(gradient.values)


def one_bit_theory(gradient: Gradient) -> float:
    """Return what the means of both halves of every column leave: the sum of the variances in them."""
    left = 0.0
    for part in parts(gradient):
        rows = part.reshape(part.shape[0] if part.dim() else 1, -1)
        for half in (rows >= 0, rows < 0):
            count = half.sum(dim=0).clamp(min=1)
            mean = (rows * half).sum(dim=0) / count
            left += ((rows - mean) * half).square().sum().item()
    return left / energy(gradient.values)


def terngrad_theory(gradient: Gradient, clip: float | None) -> float:
    """Return the variance |g| (s - |g|) of the clipped values, and what clipping takes away."""
    lost = 0.0
    for part in parts(gradient):
        largest = part.abs().max()
        if clip is not None:
            largest = torch.minimum(largest, clip * part.square().mean().sqrt())
        kept = part.abs().clamp(max=largest)
        lost += (kept * (largest - kept) + (part.abs() - kept).square()).sum().item()
    return lost / energy(gradient.values)


def byte_theory(gradient: Gradient, dtype: str, block_size: int) -> float:
    """Return what the nearest of a block's values in fp64 leaves: equal steps, or those of an 8-bit float."""
    lost = 0.0
    for block in gradient.values.double().split(block_size):
        largest = {"int8": 127, "fp8_e4m3": 448, "fp8_e5m2": 57344}[dtype]
        scale = block.abs().max().clamp(min=1e-300) / largest
        counts = block / scale
        if dtype == "int8":
            step = torch.ones_like(counts)
        else:
            mantissa, smallest = {"fp8_e4m3": (3, -6), "fp8_e5m2": (2, -14)}[dtype]
            # The exponent of the number below, and the smallest one, whose steps subnormal numbers have.
            exponent = (torch.frexp(counts).exponent - 1).clamp(min=smallest)
            step = torch.ldexp(torch.ones_like(counts), exponent - mantissa)
        lost += ((counts - (counts / step).round() * step) * scale).square().sum().item()
    return lost / energy(gradient.values)


def top_k_theory(gradient: Gradient, count: int) -> float:
    """Return the share of the squared norm outside the largest `count` magnitudes."""
    return 1 - energy(gradient.values.abs().topk(count).values) / energy(gradient.values)


def singular_values(gradient: Gradient, matrix_rank: float) -> list[torch.Tensor]:
    pairs = zip(parts(gradient), gradient.shapes, strict=True)
    matrices = [part.reshape(matrix_shape(shape)) for part, shape in pairs if is_factored(shape, matrix_rank)]
    return [torch.linalg.svdvals(matrix) for matrix in matrices]


def best_low_rank(gradient: Gradient, matrix_rank: int) -> float:
    """Return the share of the squared norm outside the best approximation of the matrices by that rank."""
    tails = sum(energy(singular[matrix_rank:]) for singular in singular_values(gradient, matrix_rank))
    return tails / energy(gradient.values)


def atomo_theory(gradient: Gradient, budget: float) -> float:
    """Return ATOMO's relative variance: the sum of s^2 (1 / p - 1), singular value s kept with chance p."""
    lost = 0.0
    for singular in singular_values(gradient, budget):
        chances = probabilities(singular, budget)
        # A singular value of 0 has chance 0, and nothing to lose.
        lost += (singular.square() * (1 / chances - 1))[chances > 0].sum().item()
    return lost / energy(gradient.values)


def compressed(compressor: Any, gradient: Gradient, theory: float, kind: str, draws: int = DRAWS) -> Loss:
    """Return the loss of a compressor, the mean over some draws; one draw suffices where none is random."""
    payload = compressor.compress(gradient.values, gradient.shapes, Key(seed=1))
    lost = relative_errors(compressor, gradient, draws)
    error = statistics.stdev(lost) / math.sqrt(draws) if draws > 1 else 0.0
    return Loss(8 * payload.num_bytes / numel_of(gradient.shapes), statistics.fmean(lost), error, theory, kind)


def low_rank(system: Any, gradient: Gradient, steps: int) -> Loss:
    """Return what a low-rank system loses after some steps on the same gradient, without error feedback."""
    values, shapes = gradient
    bucket = GradientBucket(values=values, parameters=tuple(range(len(shapes))), shapes=shapes)
    delivered = values
    for step in range(1, steps + 1):
        context = RankContext(rank=0, world_size=1, ranks_per_node=1, seed=1, step=step)
        delivered = run_in_lockstep([system.mean(bucket, context)], 1)[0]
        system.residuals.reset()
    lost, bits = energy(delivered - values) / energy(values), 8 * system.num_bytes(shapes) / values.numel()
    return Loss(bits, lost, 0.0, best_low_rank(gradient, MATRIX_RANK), "not below: best of that rank")


def losses() -> dict[str, Callable[[Gradient], Loss]]:
    """Return a function that measures the loss of each system outside the QSGD family, by the name in tables."""
    top, ms, ms_few = TopK(ratio=RATIO), MSTopK(ratio=RATIO), MSTopK(ratio=RATIO, num_samplings=12)
    rand, unbiased = RandomK(ratio=RATIO), RandomK(ratio=RATIO, unbiased=True)

    def kept(gradient: Gradient) -> int:
        return top.num_sent(gradient.shapes)

    def share(gradient: Gradient) -> float:
        return kept(gradient) / gradient.values.numel()

    def factored(system: Any, steps: int) -> Callable[[Gradient], Loss]:
        return lambda g: low_rank(system(matrix_rank=MATRIX_RANK, rank=0, world_size=1), g, steps)

    def byte(dtype: Any) -> Callable[[Gradient], Loss]:
        given = ByteGrad(dtype=dtype)
        return lambda g: compressed(given, g, byte_theory(g, dtype, given.block_size), "exact: to the nearest", 1)

    return {
        "EF-SignSGD, a scale a tensor": lambda g: compressed(ScaledSign(), g, sign_theory(g), "exact: 1 - delta", 1),
        "1-bit SGD": lambda g: compressed(OneBitSGD(), g, one_bit_theory(g), "exact: variance in the halves", 1),
        "TernGrad, clipped at 2.5 sigma": lambda g: compressed(
            TernGrad(), g, terngrad_theory(g, 2.5), "mean: variance and clipping"
        ),
        "TernGrad, not clipped": lambda g: compressed(
            TernGrad(clip_sigmas=None), g, terngrad_theory(g, None), "mean: variance"
        ),
        **{f"ByteGrad, {dtype}": byte(dtype) for dtype in ("int8", "fp8_e4m3", "fp8_e5m2")},
        "Top-k, 1 %": lambda g: compressed(top, g, 1 - share(g), "at most: 1 - k/d", 1),
        "MSTop-k, 1 %, 31 samplings": lambda g: compressed(ms, g, top_k_theory(g, kept(g)), "exact: that of Top-k", 1),
        "MSTop-k, 1 %, 12 samplings": lambda g: compressed(
            ms_few, g, top_k_theory(g, kept(g)), "not below: that of Top-k", 1
        ),
        "Random-k, 1 %": lambda g: compressed(rand, g, 1 - share(g), "mean: 1 - k/d"),
        "Random-k, 1 %, times d/k": lambda g: compressed(unbiased, g, 1 / share(g) - 1, "mean: d/k - 1"),
        "PowerSGD, rank 4, first step": factored(PowerSGD, 1),
        f"PowerSGD, rank 4, step {WARM_STEPS} of the same gradient": factored(PowerSGD, WARM_STEPS),
        "GradZip, rank 4, first step": factored(GradZip, 1),
        f"GradZip, rank 4, step {WARM_STEPS} of the same gradient": factored(GradZip, WARM_STEPS),
        "ATOMO, budget 3": lambda g: compressed(Atomo(), g, atomo_theory(g, 3.0), "mean: sum s^2 (1/p - 1)"),
    }


def table(given: dict[str, Gradient]) -> Table:
    """Return bits, loss and theory of every system on every gradient; a standard error where draws matter."""
    rows = []
    for name, loss_of in losses().items():
        found = [loss_of(gradient) for gradient in given.values()]
        lost = [f"{one.lost:.3g} ± {one.error:.2g}" if one.error else f"{one.lost:.4g}" for one in found]
        told = (f"{text}, theory {one.theory:.4g}; {one.bits:.3g} bit" for text, one in zip(lost, found, strict=True))
        rows.append((name, found[0].kind, *told))
    return Table(("system", "theory says", *given), rows)
