"""What share of a roofline published trainings attain: `python -m evidence.studies.roofline [--write]`.

`--write` writes scenarios/published/roofline.toml and the data of docs/evidence/simulator.md; else both are printed.

Each group of rows (one publication, GPU and number format) weighs the same. The middle share is the geometric mean, the
interval that in which another group lies at 90 %, if logarithms of shares are normally distributed.
"""

import argparse
import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Literal

import msgspec

from evidence.studies import page
from simnet.cluster import hardware
from simnet.core.bounded_types import Precision
from simnet.core.files import data_path, read_text, write_file
from simnet.report.table import Table
from simnet.workload import roofline
from simnet.workload.roofline import Attained

PAGE = page.SIMULATOR
ROWS = ("published", "roofline.csv")
KINDS = tuple(roofline.Attainments.__struct_fields__)
MIN_GROUPS = 2  # of one there is no spread
HEAD = """# The share of a roofline that published trainings attain: (FLOPs / peak + bytes / bandwidth) / seconds, 90 %.
# Written by `python -m evidence.studies.roofline --write` from roofline.csv; its test compares.
"""
DATA = page.DATA / "roofline.csv"
HEADS = ("model, GPU, format", "rows", "MFU", "share", "predicted / published", "90 % interval", "inside")


class PublishedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """Samples a second of one GPU in a published training, and the work of one sample.

    Attributes:
        products: what more than half of its FLOPs are.
        precision: number format of the products.
        forward_bytes: that operators without products move for one sample.
        recomputes: forward ran twice, the second time in backward.
        work: the model whose work was counted.
    """

    source: str
    location: str
    model: str
    products: Literal["matrices", "convolutions"]
    gpu: str
    precision: Precision
    samples_per_s: float
    forward_flops: float
    backward_flops: float
    forward_bytes: float
    backward_bytes: float
    recomputes: bool
    work: str

    @property
    def group(self) -> tuple[str, str, str]:
        """Rows of one group weigh as much as those of any other."""
        return self.source, self.gpu, self.precision

    @property
    def model_utilization(self) -> float:
        """MFU: FLOPs of forward and backward, each run once, over the peak."""
        peak = hardware.find_gpu(self.gpu).peak_in(self.precision)
        return (self.forward_flops + self.backward_flops) * self.samples_per_s / peak

    @property
    def ideal_s(self) -> float:
        """Time of a sample at the peaks of the data sheet [s]."""
        forwards = 2 if self.recomputes else 1
        return roofline.ideal_s(
            self.forward_flops * forwards + self.backward_flops,
            self.forward_bytes * forwards + self.backward_bytes,
            hardware.find_gpu(self.gpu),
            self.precision,
        )

    @property
    def share(self) -> float:
        """The share of the roofline that it attains."""
        return self.ideal_s * self.samples_per_s

    def is_of(self, kind: str) -> bool:
        """Tell whether a kind of `Attainments` rests on it."""
        if self.precision == roofline.PLAIN_PRECISION:
            return kind == "plain"
        return kind in ("either", "products" if self.products == "matrices" else "convolutions")


@cache
def rows() -> tuple[PublishedTraining, ...]:
    table = csv.DictReader(io.StringIO(read_text(data_path(*ROWS))))
    return tuple(msgspec.convert(list(table), tuple[PublishedTraining, ...], strict=False))


def attained(trainings: Sequence[PublishedTraining]) -> Attained | None:
    """Return the share that trainings attain; None of fewer than two groups."""
    from scipy.stats import t

    counts = Counter(row.group for row in trainings)
    if len(counts) < MIN_GROUPS:
        return None
    logs = [(math.log(row.share), 1 / counts[row.group] / len(counts)) for row in trainings]
    mean = sum(log * weight for log, weight in logs)
    variance = sum((log - mean) ** 2 * weight for log, weight in logs) * len(counts) / (len(counts) - 1)
    width = float(t.ppf(0.95, len(counts) - 1)) * math.sqrt(variance * (1 + 1 / len(counts)))
    low, middle, high = (round(math.exp(mean + sign * width), 3) for sign in (-1, 0, 1))
    source = f"{len(trainings)} trainings of {len({row.source for row in trainings})} publications"
    return Attained(share=middle, interval=(low, high), source=source)


def of_kind(kind: str, without: str = "") -> Attained | None:
    """Return the share of a kind of `Attainments`, one publication left out."""
    return attained([row for row in rows() if row.is_of(kind) and row.source != without])


def text() -> str:
    """Return the file."""
    parts = []
    for kind in KINDS:
        attainment = of_kind(kind)
        assert attainment is not None
        low, high = attainment.interval
        parts.append(
            f'\n[{kind}]\nshare = {attainment.share}\ninterval = [{low}, {high}]\nsource = "{attainment.source}"\n'
        )
    return HEAD + "".join(parts)


def table() -> Table:
    """Return how far the rule is off for each model, GPU and format when its publication is left out."""
    groups: dict[tuple[str, ...], list[PublishedTraining]] = {}
    for row in rows():
        model = "MPT, 125 M to 30 B" if row.model.startswith("MPT") else row.model
        groups.setdefault((f"{model}, {row.gpu}, {row.precision}", *row.group), []).append(row)
    lines = []
    for (name, *_), trainings in groups.items():
        mfu, share = [row.model_utilization for row in trainings], [row.share for row in trainings]
        kind = next(kind for kind in KINDS if trainings[0].is_of(kind))
        rule = of_kind(kind, without=trainings[0].source)
        judged = ["-", "no other publication", "-"]
        if rule is not None:
            # A time that is predicted by a share is too long by what the training attains beyond it.
            ratios = [attained_share / rule.share for attained_share in share]
            low, high = rule.factors
            inside = sum(low <= 1 / ratio <= high for ratio in ratios)
            is_inside = f"{inside} of {len(trainings)}" if len(trainings) > 1 else ("yes" if inside else "no")
            judged = [_range(ratios), f"{low:.2f} to {high:.2f}", is_inside]
        lines.append([name, f"{len(trainings)}", _range(mfu), _range(share), *judged])
    return Table(HEADS, lines)


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((f"{min(values):.2f}", f"{max(values):.2f}")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args().write:
        write_file(data_path(*roofline.FILE), text().encode())
        write_file(DATA, table().csv().encode())
    else:
        print(text(), table().markdown(), sep="\n")
