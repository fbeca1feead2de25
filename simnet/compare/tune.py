"""The systems that are compared, each with the variants over which it is tuned."""

from collections.abc import Iterable

from simnet.errors import SimnetError, did_you_mean
from simnet.strategies import STRATEGIES, AnyStrategy, DenseAllReduce
from simnet.units import Size
from simnet.values import Dtype

# One system with different options, such as bucket sizes; the fastest stands for the system.
Variants = tuple[AnyStrategy, ...]

# Tried as well as one bucket of all gradients after backward. None is DDP's default: 1 MiB, then 25 MiB.
BUCKET_CAPS = (None, Size.parse("5 MiB"), Size.parse("100 MiB"))
# The usual baseline of papers: gradients in their own precision, default buckets, the all-reduce of the calibration, a
# flat ring where it names none.
PLAIN = DenseAllReduce()


def systems() -> dict[str, Variants]:
    """Return the systems that compress, by title, each with all its variants."""
    by_kind = (kind.presets() for kind in STRATEGIES if kind.compresses)
    return {title: _tuned(variants) for systems_ in by_kind for title, variants in systems_.items()}


def dense_systems(dtype: Dtype) -> dict[str, Variants]:
    """Return DDP without compression, by title, with the fastest all-reduce; for fp32 gradients also cast to bf16."""
    found = {f"DDP {dtype}": _tuned([DenseAllReduce(algorithm="auto")])}
    if dtype == "fp32":
        found["DDP bf16"] = _tuned([DenseAllReduce(algorithm="auto", wire_dtype="bf16")])
    return found


def _tuned(variants: Iterable[AnyStrategy]) -> Variants:
    return tuple(bucketed for variant in variants for bucketed in variant.bucketing_variants(BUCKET_CAPS))


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the systems of these names or kinds, such as "PowerSGD rank 4" or "power_sgd"; without any, all.

    Raises:
        SimnetError: there is none of such a name or kind.
    """
    known = systems()
    kinds: dict[str, list[str]] = {}
    for system, variants in known.items():
        kinds.setdefault(variants[0].kind, []).append(system)
    found: list[str] = []
    for name in names:
        if name not in known and name not in kinds:
            near = did_you_mean(name, [*known, *kinds]) or f" Known: {', '.join(known)}."
            raise SimnetError(f"--systems: {name!r}: unknown system.{near}")
        found += kinds.get(name, [name])
    return tuple(dict.fromkeys(found)) or tuple(known)
