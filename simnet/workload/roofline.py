"""The time of work on a GPU of which no time is known: a roofline over the share of it that trainings attain.

    seconds = (FLOPs / peak + bytes / memory bandwidth) / attained

FLOPs are those of products, bytes those of all other operators, which run one after the other on a GPU: hence the sum.
The share is taken over the same sum in published trainings, so that their memory-bound operators, which are part of
every published MFU, count once.
"""

from functools import cache
from typing import Annotated

from msgspec import Meta, Struct

from simnet.cluster.hardware import GpuModel
from simnet.core import files, schema
from simnet.core.bounded_types import Fraction, Precision

FILE = ("published", "roofline.toml")
Share = Annotated[float, Meta(gt=0.0, le=10.0)]
PLAIN_PRECISION: Precision = "fp32"


class Attained(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of the roofline that published trainings of one kind attain.

    Attributes:
        share: the middle one.
        interval: 90 % of them.
        source: how many trainings of how many publications.
    """

    share: Share
    interval: tuple[Share, Share]
    source: str

    @property
    def factors(self) -> tuple[float, float]:
        """The 90 % interval of a time, as factors."""
        low, high = self.interval
        return self.share / high, self.share / low


class Attainments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shares by kind of work.

    Attributes:
        products: more than half of backward is products of matrices, on tensor cores.
        convolutions: more than half of backward is convolutions, on tensor cores.
        either: on tensor cores, where that is not known.
        plain: "fp32", without tensor cores.
    """

    products: Attained
    convolutions: Attained
    either: Attained
    plain: Attained


@cache
def attainments() -> Attainments:
    """Read the shares that published trainings attain."""
    path = files.data_path(*FILE)
    return schema.build(Attainments, files.read_file(path), files.label(path))


def attained(precision: str, convolutions: Fraction | None) -> Attained:
    """Return the share that work attains; `convolutions` is their fraction of its products, None where not known."""
    every = attainments()
    if precision == PLAIN_PRECISION:
        return every.plain
    # Convolutions attain less than products of matrices; without shapes the share of both together counts.
    if convolutions is None:
        return every.either
    return every.convolutions if convolutions > 0.5 else every.products


def ideal_s(flops: float, num_bytes: float, gpu: GpuModel, precision: str) -> float:
    """Return the time at the peaks of the data sheet [s]."""
    return flops / gpu.peak_in(precision) + num_bytes / gpu.memory_bytes_per_s
