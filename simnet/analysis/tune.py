"""The systems that are compared, each with the variants over which it is tuned."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.cluster.hardware import Calibration
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.registry import tag_of
from simnet.core.units import Size
from simnet.engine.axes import Override
from simnet.engine.scenario import Experiment
from simnet.strategies import STRATEGIES, AnyStrategy, DenseAllReduce, RecordedStep, choices, step_file
from simnet.strategies.calls import effort
from simnet.workload.gpu_memory import GpuMemory
from simnet.workload.workload import Workload

# One system with different options, such as bucket sizes; the fastest stands for the system.
Variants = tuple[AnyStrategy, ...]

# Tried as well as one bucket of all gradients after backward. None is DDP's default: 1 MiB, then 25 MiB.
BUCKET_CAPS = (None, Size.parse("5 MiB"), Size.parse("100 MiB"))
# The usual baseline of papers: gradients in their own precision, default buckets, the all-reduce of the calibration, a
# flat ring where it names none.
PLAIN = DenseAllReduce()
TIE = 1.03
"""Steps, and sizes in memory, are taken as equal below this ratio: predictions of steps were off by 3.8 % on average
(docs/evidence/simulator.md)."""


def systems() -> dict[str, Variants]:
    """Return everything that may stand in the place of DDP, by title, each with all its variants."""
    by_kind = (choices.presets(kind) for kind in STRATEGIES if not issubclass(kind, DenseAllReduce))
    return {title: _tuned(variants) for systems_ in by_kind for title, variants in systems_.items()}


def without_repeats(names: Iterable[str], known: Mapping[str, Variants], dtype: Dtype) -> tuple[str, ...]:
    """Return the names of what does not send gradients of a format again: "FSDP bf16" is FSDP where they are bf16."""
    return tuple(
        name
        for name in names
        if not all(
            strategy.mathematics == "rounding" and BYTES_PER_ELEMENT[dtype] <= _wire_bytes(strategy)
            for strategy in known[name]
        )
    )


def _wire_bytes(strategy: AnyStrategy) -> float:
    """Return the bytes of an element that a cast leaves; 0 where nothing is cast, or a system rounds besides."""
    if getattr(strategy, "replicas", ""):
        return 0
    dtypes = (getattr(strategy, key, None) for key in ("wire_dtype", "gather_dtype", "reduce_dtype"))
    return min((BYTES_PER_ELEMENT[dtype] for dtype in dtypes if dtype is not None), default=0)


def needs_training(strategy: AnyStrategy) -> bool:
    """Tell whether a strategy changes more of training than casts to 16 bits, which everybody's trainings stand for."""
    return strategy.mathematics != "same" and not (strategy.mathematics == "rounding" and _wire_bytes(strategy) >= 2)


def flat_name(dtype: Dtype) -> str:
    """Return what people call `PLAIN`: one ring, default buckets, gradients in their own precision."""
    return f"flat {dtype} DDP"


def dense_systems(dtype: Dtype) -> dict[str, Variants]:
    """Return DDP without compression, by title; for fp32 gradients also cast to bf16."""
    dense = {f"DDP {dtype}": _tuned([DenseAllReduce(algorithm="auto")])}
    if dtype == "fp32":
        dense["DDP bf16"] = _tuned([DenseAllReduce(algorithm="auto", wire_dtype="bf16")])
    return dense


def recorded_systems(paths: Iterable[str]) -> dict[str, Variants]:
    """Return recorded steps by what to call them; their all-reduces are chosen by message as those of DDP are."""
    every = tuple(dict.fromkeys(paths))
    stems = [Path(path).stem for path in every]
    recorded: dict[str, Variants] = {}
    for path, stem in zip(every, stems, strict=True):
        step_file.read(Path(path))
        recorded[f"recorded {stem if stems.count(stem) == 1 else path}"] = (RecordedStep(file=path, algorithm="auto"),)
    return recorded


def trained_variants(strategy: AnyStrategy, dtype: Dtype) -> Variants:
    """Return the settings of a strategy whose training goes as its own; of DDP all that stand for the baseline."""
    if isinstance(strategy, DenseAllReduce):
        return tuple(variant for variants in dense_systems(dtype).values() for variant in variants)
    return tuple(variant for variant in _tuned([strategy]) if choices.train_alike(variant, strategy))


def with_known_kernels(
    variants: Variants, kernels_of: Callable[[AnyStrategy], frozenset[str]], calibration: Calibration
) -> Variants:
    """Return the variants whose kernels all have a time or a usable estimate, or all variants if none has.

    A kernel without either costs nothing, so that a variant with it would win against those that are known.
    """
    known = (variant for variant in variants if not whatif.coverage(kernels_of(variant), calibration).unmeasured)
    return tuple(known) or variants


class Contender(NamedTuple):
    """What decides between systems whose steps take about as long.

    Attributes:
        step_s: time of a step [s].
        effort: as `calls.effort` counts it.
        held_bytes: what a GPU holds; infinite where that is not known.
    """

    step_s: float
    effort: int
    held_bytes: float

    @classmethod
    def of(cls, strategy: AnyStrategy, step_s: float, memory: GpuMemory | None, workload: Workload) -> "Contender":
        """Return a strategy with the time of its step [s] and what a GPU then holds."""
        return cls(step_s, effort(strategy, workload), math.inf if memory is None else memory.total_bytes)


def first_of_ties(contenders: Sequence[Contender]) -> int:
    """Return the place of the one to take: the fastest, unless `TIE` makes others as fast.

    Of those the lines that can be pasted into a PyTorch script win over flags of another framework, then what leaves
    clearly more memory, then the fastest.
    """
    fastest_s = min(contender.step_s for contender in contenders)
    tied = [contender for contender in contenders if contender.step_s < TIE * fastest_s]
    easiest = [contender for contender in tied if contender.effort == min(contender.effort for contender in tied)]
    least_bytes = min(contender.held_bytes for contender in easiest)
    return contenders.index(min(contender for contender in easiest if contender.held_bytes <= TIE * least_bytes))


def _tuned(variants: Iterable[AnyStrategy]) -> Variants:
    return tuple(dict.fromkeys(variant for setting in variants for variant in choices.variants(setting, BUCKET_CAPS)))


def names_strategy(experiment: Experiment) -> bool:
    """Tell whether an experiment says with what it trains."""
    return "strategy" in experiment.resolved or "strategy" in experiment.swept_keys


def with_any_strategy(experiment: Experiment) -> Experiment:
    """Return an experiment whose strategy does not matter, so that its file need not name one."""
    if names_strategy(experiment):
        return experiment
    return replace(experiment, overrides=(*experiment.overrides, Override(key="strategy", value=PLAIN.kind)))


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the systems of these names or kinds, such as "PowerSGD rank 4" or "power_sgd"; without any, all.

    DDP is no such system, since others are compared with it: asked for alone, it leaves none.
    """
    known = systems()
    kinds: dict[str, list[str]] = {PLAIN.kind: []}
    for system, variants in known.items():
        kinds.setdefault(variants[0].kind, []).append(system)
    titles: list[str] = []
    asked = tuple(names)
    for name in asked:
        if name.partition(":")[0] == tag_of(RecordedStep):
            raise SimnetError(f"--systems: {name!r}: a recorded step is a file; give it by --step FILE")
        kind = STRATEGIES.tag(name)
        if name not in known and kind not in kinds:
            near = did_you_mean(name, [*known, *kinds]) or f" Known: {', '.join(known)}."
            raise SimnetError(f"--systems: {name!r}: unknown system.{near}")
        titles += kinds.get(kind, [name])
    return tuple(dict.fromkeys(titles)) if asked else tuple(known)
