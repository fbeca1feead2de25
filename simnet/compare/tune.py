"""The systems that are compared, each with the settings that it is tuned over."""

from collections.abc import Iterable

from simnet.errors import SimnetError, nearest
from simnet.strategies import STRATEGIES, AllReduce, AnyStrategy
from simnet.units import Size
from simnet.values import Dtype

Settings = tuple[AnyStrategy, ...]

BUCKET_CAPS = (None, Size.parse("5 MiB"), Size.parse("100 MiB"))
"""Tried beside one bucket of all after backward; None is DDP's default, 1 MiB and then 25 MiB."""
PLAIN = AllReduce()
"""DDP as papers compare with: gradients as they are, default buckets, a flat ring."""


def systems() -> dict[str, Settings]:
    """Return all that compress, by what to call them, with every setting that each is tried with."""
    known = (kind.settings() for kind in STRATEGIES if kind.compresses)
    return {name: _tuned(variants) for found in known for name, variants in found.items()}


def dense_systems(dtype: Dtype) -> dict[str, Settings]:
    """Return DDP without compression, all-reduces by the fastest algorithm: gradients as they are, and cast to bf16."""
    found = {f"DDP {dtype}": _tuned([AllReduce(algorithm="auto")])}
    if dtype == "fp32":
        found["DDP bf16"] = _tuned([AllReduce(algorithm="auto", wire_dtype="bf16")])
    return found


def _tuned(variants: Iterable[AnyStrategy]) -> Settings:
    return tuple(setting for variant in variants for setting in variant.tuned(BUCKET_CAPS))


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the systems of these names or kinds, such as "PowerSGD rank 4" or "power_sgd"; without any, all.

    Raises:
        SimnetError: there is none of such a name or kind.
    """
    known = systems()
    kinds: dict[str, list[str]] = {}
    for system, settings in known.items():
        kinds.setdefault(settings[0].kind, []).append(system)
    found: list[str] = []
    for name in names:
        if name not in known and name not in kinds:
            near = nearest(name, [*known, *kinds]) or f" Known: {', '.join(known)}."
            raise SimnetError(f"--systems: {name!r}: unknown system.{near}")
        found += kinds.get(name, [name])
    return tuple(dict.fromkeys(found)) or tuple(known)
