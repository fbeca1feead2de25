"""`python -m benchmarks.quantizers [--docs docs/evidence]`: what the systems lose and their bits, against theory.

Three gradients: independent normal numbers (512 x 512), and those of the digits network of examples/train_digits.py on
one batch of 64 images, before training and after 100 steps of Adam. Without --docs the tables are printed; with it
they go to docs/evidence/data, and the figures are drawn.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import bounds, other_systems
from benchmarks.gradients import Gradient, Row, gradients, relative_errors
from binsgdm.compressors.base import Payload
from binsgdm.compressors.levels import unpack_codes
from binsgdm.compressors.qsgd import NUQSGD, QSGD, LevelQuantizer, QSGDInf
from binsgdm.kernels.random import Key
from simnet.report.table import Table

BLOCKS = (8192, 512)


def quantizers(bits: int, block: int) -> dict[str, LevelQuantizer]:
    """Return the quantizers of the QSGD family with this number of bits an element, by the name in tables."""
    found: dict[str, LevelQuantizer] = {
        "QSGD": QSGD(bits=bits, block_size=block),
        "QSGDinf": QSGDInf(bits=bits, block_size=block),
    }
    if bits <= NUQSGD.max_bits:
        found["NUQSGD"] = NUQSGD(bits=bits, block_size=block)
        found["NUQSGD without 0"] = NUQSGD(bits=bits, block_size=block, with_zero=False)
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
    codes = unpacked(quantizer, payload, values.numel())
    shares = codes.unique(return_counts=True)[1].double() / values.numel()
    entropy = -(shares * shares.log2()).sum().item()
    if isinstance(quantizer, NUQSGD) and not quantizer.with_zero:
        return None, entropy
    other = type(quantizer)(bits=quantizer.bits, block_size=quantizer.block_size, coding="elias")
    return 8 * other.compress(values, shapes, key).num_bytes / values.numel(), entropy


def unpacked(quantizer: LevelQuantizer, payload: Payload, numel: int) -> torch.Tensor:
    """Return the numbers of the levels of a packed payload."""
    return unpack_codes(payload.tensors[1], quantizer.bits, numel)


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


def variance_table(rows: Sequence[Row]) -> Table:
    """Return measured variances with their bounds."""
    names = ("QSGD", "QSGDinf", "NUQSGD", "NUQSGD without 0")
    return _table(rows, names, "bits", lambda row: f"{row.variance:.3g} (<= {row.bound:.3g})")


def bits_table(rows: Sequence[Row]) -> Table:
    """Return Elias-coded bits per element with the entropy of the levels and the bound."""

    def cell(row: Row) -> str:
        most = "" if row.elias_bound is None else f", <= {row.elias_bound:.2f}"
        return f"{row.elias_bits:.2f} (entropy {row.entropy:.2f}{most})"

    return _table(rows, ("QSGD", "QSGDinf", "NUQSGD"), "packed", cell)


def _table(rows: Sequence[Row], names: Sequence[str], bits: str, cell: Callable[[Row], str]) -> Table:
    """Return a column for each quantizer, a row for each gradient, block size and number of bits."""
    found = {(row.gradient, row.block, row.bits, row.name): row for row in rows}
    lines = [
        (*map(str, place), *(cell(found[*place, name]) if (*place, name) in found else "" for name in names))
        for place in dict.fromkeys(key[:3] for key in found)
    ]
    return Table(("gradient", "block", bits, *names), lines)


def main() -> None:
    """Print the tables, or put them with the figures into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="the folder of data/ and figures/")
    docs = parser.parse_args().docs
    torch.set_num_threads(1)
    given = gradients()
    rows = measure(given)
    others = other_systems.table(given)
    tables = {"systems-variance": variance_table(rows), "systems-bits": bits_table(rows), "systems-others": others}
    if docs is None:
        print("\n\n".join(one.markdown() for one in tables.values()))
        return
    for name, table in tables.items():
        (docs / "data" / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
    from benchmarks import quantizer_figures

    quantizer_figures.draw(rows, docs / "figures")


if __name__ == "__main__":
    main()
