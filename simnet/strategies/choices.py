"""What `simnet advise` tries of each strategy, and whose trainings stand for whose: a row that a class may bring."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from simnet.core.units import Size

Options = Mapping[str, Any]
"""Options of a setting, or those in which a variant differs from it."""


def as_it_is(*_: object) -> tuple[Options, ...]:
    """Return the only variant of a setting: itself."""
    return ({},)


def capped_or_fused(_: object, caps: Sequence[Size | None]) -> Iterable[Options]:
    """Return buckets closed at each of these caps, and all gradients in one after backward."""
    return [*({"bucket_cap": cap} for cap in caps), {"bucketing": "fused", "overlap": False}]


class Choices(NamedTuple):
    """How a strategy is tuned and compared; functions get a setting of it.

    Attributes:
        presets: settings to compare on a new cluster, by what to call them, "{title}" for the title of the class; each
            is tuned over its variants.
        topologies: variants of a setting, one for each topology that is worth a try.
        bucketings: those for each way to cut buckets that is worth a try; gets caps, too.
        form: which of its topologies a setting has, for people; empty where it has one only.
        training: what two settings have alike if a training with one says how one with the other goes.
    """

    presets: Mapping[str, Sequence[Options]] = {"{title}": ({},)}
    topologies: Callable[[Any], Iterable[Options]] = as_it_is
    bucketings: Callable[[Any, Sequence[Size | None]], Iterable[Options]] = capped_or_fused
    form: Callable[[Any], str] = lambda _: ""
    training: Callable[[Any], object] = type


class Tuned(Protocol):
    """What of a strategy says how it is tuned."""

    title: ClassVar[str]
    choices: ClassVar[Choices]
    stage_key: ClassVar[str]


S = TypeVar("S", bound=Tuned)


def presets(kind: type[S]) -> dict[str, tuple[S, ...]]:
    """Return the settings of a class to compare on a new cluster, by what to call them."""
    made = kind.choices.presets.items()
    return {name.format(title=kind.title): tuple(kind(**options) for options in every) for name, every in made}


def variants(setting: S, caps: Sequence[Size | None]) -> Iterator[S]:
    """Yield a setting in each topology and with each way to cut buckets that is worth a try."""
    for topology in setting.choices.topologies(setting):
        formed = replace(cast("Any", setting), **topology)
        for cut in formed.choices.bucketings(formed, caps):
            yield replace(formed, **cut)


def form(setting: Tuned) -> str:
    """Return which of its topologies a setting has, for people; empty where it has one only."""
    return setting.choices.form(setting)


def train_alike(setting: Tuned, other: Tuned) -> bool:
    """Tell whether a training with one setting says how one with another goes."""
    return setting.choices.training(setting) == other.choices.training(other)


def for_longer_training(setting: S, scale: float) -> S:
    """Return a setting for a training `scale` times as long: a stage at its start grows with it."""
    key, struct = setting.stage_key, cast("Any", setting)
    return replace(struct, **{key: round(getattr(setting, key) * scale)}) if key else setting
