"""What the systems lose and their bits, against theory.

    python -m evidence.benchmarks.quantizers [--docs docs/evidence]

Three gradients: independent normal numbers (512 x 512), and those of the digits network of examples/train_digits.py on
one batch of 64 images, before training and after 100 steps of Adam. Without --docs the tables are printed; with it
they go to docs/evidence/data, and the figures are drawn.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from binsgdm.compressors.levels import unpack_codes
from binsgdm.compressors.quantizers import NUQSGD, QSGD, LevelQuantizer, QSGDInf
from binsgdm.kernels.random import Key
from evidence.benchmarks import bounds, other_systems
from evidence.benchmarks.other_systems import Gradient, relative_errors
from evidence.studies import page
from simnet.report import figure
from simnet.report.table import Table

BLOCKS = (8192, 512)
TRAINED_STEPS, BATCH = 100, 64
LOOKS = {
    "QSGD": (figure.BLUE, "o"),
    "QSGDinf": (figure.GREEN, "s"),
    "NUQSGD": (figure.VERMILION, "^"),
    "NUQSGD without 0": (figure.PURPLE, "v"),
}
CODED = ("QSGD", "QSGDinf", "NUQSGD")
"""Those whose levels have a zero, which Elias codes leave out."""
PANELS = [("normal", 8192), ("normal", 512), ("digits, trained", 8192)]
THIN: dict[str, Any] = {"linewidth": 1}


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
    """Return normal numbers, and the gradient of the digits network at the start and after training."""
    from examples import train_digits

    normal = torch.randn(512 * 512, generator=torch.Generator().manual_seed(0))
    found = {"normal": Gradient(normal, ((512, 512),))}
    torch.manual_seed(0)
    network = train_digits.convolutions()
    images, labels = train_digits.load("train")
    optimizer = torch.optim.Adam(network.parameters(), lr=7e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(TRAINED_STEPS + 1):
        batch = torch.randperm(len(images), generator=generator)[:BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        if step in (0, TRAINED_STEPS):
            given = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
            flat = torch.cat([one.reshape(-1) for one in given])
            name = "digits, start" if step == 0 else "digits, trained"
            found[name] = Gradient(flat, tuple(tuple(one.shape) for one in given))
        optimizer.step()
    return found


def quantizers(bits: int, block: int) -> dict[str, LevelQuantizer]:
    """Return the quantizers of the QSGD family with this number of bits an element, by the name in tables."""
    given: dict[str, Any] = {"bits": bits, "block_size": block}
    found: dict[str, LevelQuantizer] = {"QSGD": QSGD(**given), "QSGDinf": QSGDInf(**given)}
    if bits <= NUQSGD.max_bits:
        found |= {"NUQSGD": NUQSGD(**given), "NUQSGD without 0": NUQSGD(**given, with_zero=False)}
    return found


def largest_bound(quantizer: LevelQuantizer, gradient: Gradient) -> float:
    """Return the bound on the relative variance of a gradient: the mean over its blocks, weighted by squared norms."""
    total = bound = 0.0
    for block in gradient.values.double().split(quantizer.block_size):
        energy = block.square().sum().item()
        if energy:
            peak = block.abs().max().item() / math.sqrt(energy)
            bound += energy * bounds.variance_bound(quantizer, block.numel(), peak)
            total += energy
    return bound / total


def coded(quantizer: LevelQuantizer, gradient: Gradient) -> tuple[float | None, float]:
    """Return bits per element of the Elias code (None without a level of zero), and the entropy of the levels."""
    values, shapes = gradient
    key = Key(seed=1)
    payload = quantizer.compress(values, shapes, key)
    codes = unpack_codes(payload.tensors[1], quantizer.bits, values.numel())
    shares = codes.unique(return_counts=True)[1].double() / values.numel()
    entropy = -(shares * shares.log2()).sum().item()
    if isinstance(quantizer, NUQSGD) and not quantizer.with_zero:
        return None, entropy
    other = type(quantizer)(bits=quantizer.bits, block_size=quantizer.block_size, coding="elias")
    return 8 * other.compress(values, shapes, key).num_bytes / values.numel(), entropy


def measure(given: dict[str, Gradient]) -> list[Row]:
    """Return a row for every quantizer, number of bits, block size and gradient."""
    rows = []
    for name, gradient in given.items():
        for block in BLOCKS:
            for bits in range(2, 9):
                for title, quantizer in quantizers(bits, block).items():
                    variance = statistics.fmean(relative_errors(quantizer, gradient))
                    elias_bits, entropy = coded(quantizer, gradient)
                    bound = largest_bound(quantizer, gradient)
                    most = bounds.coded_bits_bound(quantizer, block) if elias_bits is not None else None
                    rows.append(Row(name, block, title, bits, variance, bound, elias_bits, most, entropy))
    return rows


def variance_cell(row: Row) -> str:
    return f"{row.variance:.3g} (<= {row.bound:.3g})"


def bits_cell(row: Row) -> str:
    """Return Elias-coded bits per element with the entropy of the levels and the bound."""
    most = "" if row.elias_bound is None else f", <= {row.elias_bound:.2f}"
    return f"{row.elias_bits:.2f} (entropy {row.entropy:.2f}{most})"


def table_of(rows: Sequence[Row], names: Sequence[str], bits: str, cell: Callable[[Row], str]) -> Table:
    """Return a column for each quantizer, a row for each gradient, block size and number of bits."""
    found = {(row.gradient, row.block, row.bits, row.name): row for row in rows}
    lines = [
        (*map(str, place), *(cell(found[*place, name]) if (*place, name) in found else "" for name in names))
        for place in dict.fromkeys(key[:3] for key in found)
    ]
    return Table(("gradient", "block", bits, *names), lines)


def draw(rows: Sequence[Row], path: Path, drawn: Callable[[Any, Sequence[Row]], None], label: str) -> None:
    with figure.styled():
        made = figure.new(figure.PAGE_IN, 3.1)
        axes = made.subplots(1, len(PANELS), sharey=True)
        for one, (gradient, block) in zip(axes, PANELS, strict=True):
            drawn(one, [row for row in rows if (row.gradient, row.block) == (gradient, block)])
            one.set_title(f"{gradient}, block {block}")
            one.set_xlabel("bits per code")
            one.set_yscale("log")
            one.set_xticks(range(2, 9))
            one.grid(visible=True, which="major", alpha=0.3)
        axes[0].set_ylabel(label)
        figure.plain_numbers(axes[0].yaxis)
        made.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
        made.savefig(path, dpi=200)


def draw_variances(axes: Any, rows: Sequence[Row]) -> None:
    for name, (color, mark) in LOOKS.items():
        some = [row for row in rows if row.name == name]
        bits = [row.bits for row in some]
        axes.plot(bits, [row.variance for row in some], color=color, marker=mark, markersize=4, label=name)
        axes.plot(bits, [row.bound for row in some], color=color, linestyle="--", **THIN)
    axes.plot([], [], color="gray", linestyle="--", label="bound", **THIN)


def draw_bits(axes: Any, rows: Sequence[Row]) -> None:
    for name in CODED:
        color, mark = LOOKS[name]
        some = [row for row in rows if row.name == name]
        bits = [row.bits for row in some]
        axes.plot(bits, [row.elias_bits for row in some], color=color, marker=mark, markersize=4, label=name)
        axes.plot(bits, [row.entropy for row in some], color=color, linestyle=":", **THIN)
        if some[0].elias_bound is not None:
            axes.plot(bits, [row.elias_bound for row in some], color=color, linestyle="--", **THIN)
    axes.plot([], [], color="gray", linestyle=":", label="entropy of the levels", **THIN)
    axes.plot([], [], color="gray", linestyle="--", label="bound", **THIN)
    axes.plot(range(2, 9), range(2, 9), color="black", linewidth=0.8, label="packed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="the folder of data/ and figures/")
    docs = parser.parse_args().docs
    torch.set_num_threads(1)
    given = gradients()
    rows = measure(given)
    tables = {
        "systems-variance": table_of(rows, tuple(LOOKS), "bits", variance_cell),
        "systems-bits": table_of(rows, CODED, "packed", bits_cell),
        "systems-others": other_systems.table(given),
    }
    if docs is None:
        print("\n\n".join(one.markdown() for one in tables.values()))
        return
    page.write_data(tables, docs / "data")
    draw(rows, docs / "figures" / "quantizer_variance.png", draw_variances, "E|Q(v) - v|² / |v|²")
    draw(rows, docs / "figures" / "coded_bits.png", draw_bits, "Elias-coded bits per element")


if __name__ == "__main__":
    main()
