"""The systems that are compared, and the settings that each is tuned over."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from simnet.errors import SimnetError, nearest
from simnet.strategies import (
    NUQSGD,
    QSGD,
    AllReduce,
    AnyStrategy,
    Atomo,
    BinSGDM,
    EFSignSGD,
    GradZip,
    Marsit,
    MSTopK,
    OneBitAdam,
    OneBitSGD,
    PowerSGD,
    QSGDInf,
    RandomK,
    SignSGD,
    TernGrad,
    TopK,
)
from simnet.units import Size
from simnet.values import Dtype

Variants = tuple[AnyStrategy, ...]
Settings = tuple[AnyStrategy, ...]

BUCKET_CAPS = (None, Size.parse("5 MiB"), Size.parse("100 MiB"))
"""Tried beside one bucket of all after backward; None is DDP's default, 1 MiB and then 25 MiB."""
PLAIN = AllReduce()
"""DDP as papers compare with: gradients as they are, default buckets, a flat ring."""
TRAINING_STEPS, DENSE_STEPS = 152_000, 23_000
"""Of a training, and those without compression of a system that starts with some and does not say how many: BERT-Large
in the tutorial of 1-bit Adam's authors (one_bit_adam_end_to_end)."""

SYSTEMS: dict[str, Variants] = {
    "BinSGDM": (BinSGDM(), BinSGDM(intra="bf16")),
    "BinSGDM flat": (BinSGDM(topology="flat"),),
    "1-bit Adam": (OneBitAdam(dense=AllReduce(algorithm="auto")),),
    "1-bit SGD": (OneBitSGD(),),
    "SignSGD": (SignSGD(),),
    "EF-SignSGD": (EFSignSGD(),),
    "TernGrad": (TernGrad(),),
    "QSGD 4 bit": (QSGD(),),
    "QSGDinf 4 bit": (QSGDInf(),),
    "NUQSGD 4 bit": (NUQSGD(),),
    "Marsit": (Marsit(),),
    "Marsit torus": (Marsit(torus=True),),
    "PowerSGD rank 4": (PowerSGD(algorithm="auto"),),
    "GradZip rank 4": (GradZip(algorithm="auto"),),
    "ATOMO budget 3": (Atomo(),),
    "Top-k 1 %": (TopK(ratio=0.01),),
    "MSTop-k 1 %": (MSTopK(ratio=0.01),),
    "Random-k 1 %": (RandomK(ratio=0.01, algorithm="auto"),),
}
"""All that compress, with the options of their papers or the usual ones."""


def dense_systems(dtype: Dtype) -> dict[str, Variants]:
    """Return DDP without compression, all-reduces by the fastest algorithm: gradients as they are, and cast to bf16."""
    as_they_are: dict[str, Variants] = {f"DDP {dtype}": (AllReduce(algorithm="auto"),)}
    if dtype != "fp32":
        return as_they_are
    return as_they_are | {"DDP bf16": (AllReduce(algorithm="auto", payload="bf16"),)}


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the systems of these names or kinds, such as "PowerSGD rank 4" or "power_sgd"; without any, all.

    Raises:
        SimnetError: there is none of such a name or kind.
    """
    kinds: dict[str, list[str]] = {}
    for system, variants in SYSTEMS.items():
        kinds.setdefault(kind(variants[0]), []).append(system)
    found: list[str] = []
    for name in names:
        if name not in SYSTEMS and name not in kinds:
            near = nearest(name, [*SYSTEMS, *kinds]) or f" Known: {', '.join(SYSTEMS)}."
            raise SimnetError(f"--systems: {name!r}: unknown system.{near}")
        found += kinds.get(name, [name])
    return tuple(dict.fromkeys(found)) or tuple(SYSTEMS)


def kind(strategy: AnyStrategy) -> str:
    """Return what a scenario file calls a strategy."""
    return str(strategy.__struct_config__.tag)


def candidates(variants: Variants) -> Iterator[AnyStrategy]:
    """Yield every setting that a system is tried with."""
    for variant in variants:
        if variant.bucketing == "fused":
            yield variant
            continue
        yield from (replace(variant, bucket_cap=cap) for cap in BUCKET_CAPS)
        yield replace(variant, bucketing="fused", overlap=False)


def dense_part(strategy: AnyStrategy) -> float:
    """Return the part of a training's steps that a compressing system does without compression."""
    stage = strategy.dense_stage(TRAINING_STEPS)
    return (stage.steps or DENSE_STEPS) / TRAINING_STEPS if stage else 0.0


def is_dense(strategy: AnyStrategy) -> bool:
    """Tell whether gradients travel without compression."""
    return kind(strategy) == kind(PLAIN)
