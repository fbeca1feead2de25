"""A campaign as data: the measurements that calibrate, the trainings to predict, and the launches of both."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from evidence.lab.plan import check_latency
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.files import read_file
from simnet.core.schema import build
from simnet.core.units import Bandwidth, Duration, Size
from simnet.strategies import AnyStrategy
from simnet.validation.strategy_spec import MIB, StrategySpec

DEFAULT_CAP = Size(25 * MIB)  # DDP's
MODULE = ("binsgdm", "measure")
OVERLAPPED_BACKWARDS = 40
"""Repetitions of backward overlapped with each collective."""
PARTS = ("links", "model", "kernels", "messages", "beside", "own_work", "training")
"""Kinds of launches. They begin the names of files: "messages" are collectives in place, "beside" is
interference: backward overlapped with a collective, "own_work" is training without messages. Folders of finished
campaigns hold these names."""
_MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.]+)?")
Seconds = Annotated[float, Meta(gt=0.0, le=3600.0)]
NO_LATENCY = Duration(0)


class Layout(NamedTuple):
    """Nodes, and ranks per node."""

    num_nodes: int
    ranks_per_node: int

    def text(self) -> str:
        """Return the layout as in a campaign file: "4x2"."""
        return f"{self.num_nodes}x{self.ranks_per_node}"

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read a layout such as "4x2".

        Raises:
            ValueError: the text has another form.
        """
        match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d?)", text)
        if match is None:
            raise ValueError(f"layouts: {text!r}: write nodes x ranks on each, such as '4x2'")
        return cls(int(match[1]), int(match[2]))


class Grid(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every layout at every bandwidth.

    Attributes:
        layouts: nodes x ranks on each, such as "4x2".
        bandwidths: of each node's NIC in each direction.
    """

    layouts: tuple[str, ...]
    bandwidths: tuple[Bandwidth, ...]

    def __post_init__(self) -> None:
        _check_filled(self, "layouts", "bandwidths")
        for text in self.layouts:
            Layout.parse(text)

    @property
    def parsed_layouts(self) -> tuple[Layout, ...]:
        """The layouts as numbers."""
        return tuple(map(Layout.parse, self.layouts))

    @property
    def settings(self) -> tuple[tuple[Layout, Bandwidth], ...]:
        """Layouts and bandwidths, in the order of the file."""
        return tuple(product(self.parsed_layouts, self.bandwidths))


class Points(Grid, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every layout at every bandwidth, over links of one latency.

    Attributes:
        latency: of each NIC, one way, at most 1 s.
    """

    latency: Duration = NO_LATENCY

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            check_latency(self.latency)
        except SimnetError as error:
            raise ValueError(str(error).removeprefix("lab: ")) from error


class Links(Grid, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the network is calibrated on.

    Attributes:
        min_message: smallest message of each collective.
        max_message: largest message of each collective.
        max_seconds: at most, for each collective and size.
    """

    min_message: Size = Size(4 * MIB)
    max_message: Size = Size(16 * MIB)
    max_seconds: Seconds = 4.0

    @property
    def arguments(self) -> tuple[object, ...]:
        """Of `python -m binsgdm measure`."""
        sizes = ("--min-size", round(self.min_message), "--max-size", round(self.max_message))
        return ("collectives", *sizes, "--max-seconds", self.max_seconds)


class Campaign(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A campaign file.

    Attributes:
        title: what it measures, for people.
        page: name of its data, `lab-PAGE.csv`, and of its figures.
        models: as `simnet measure --model` takes them.
        batch: samples of a step on each rank.
        threads: threads of each rank.
        strategies: hierarchical ones are left out on nodes of one rank, where they equal the flat ones.
        points: what is trained and predicted.
        links: what the network is calibrated on, none of the points.
        starts: how often each model is measured, from a new start each time.
        by_layout: measure in place so often before, between and after the trainings of each layout.
        speed: time fixed pieces of work in every launch, which show how fast the machine was.
        model_seconds: at most, for each model and start.
        kernel_seconds: at most, for each kernel and size.
        kernel_starts: how often kernels are timed with `by_layout`; by default as all else.
        min_elements: of the smallest tensor that kernels are timed on.
        max_elements: of the largest.
        message_seconds: at most, for each collective and size, in place.
        own_work_seconds: at most, for each strategy and model without messages, from which predictions then start;
            needs `by_layout`, `speed` and two starts; without it, it is not measured.
        training_seconds: at most, for each strategy and point, after 8 steps.
    """

    title: str = ""
    page: Annotated[str, Meta(pattern="^[a-z][a-z0-9-]*$")] = "campaign"
    models: tuple[str, ...]
    batch: Count = 8
    threads: Count = 1
    strategies: tuple[AnyStrategy, ...]
    points: tuple[Points, ...]
    links: Links
    starts: Count = 2
    by_layout: bool = False
    speed: bool = False
    model_seconds: Seconds = 10.0
    kernel_seconds: Seconds = 0.16
    kernel_starts: Count | None = None
    min_elements: Count = 2**16
    max_elements: Count = 2**23
    message_seconds: Seconds = 1.0
    own_work_seconds: Seconds | None = None
    training_seconds: Seconds = 10.0

    def __post_init__(self) -> None:
        _check_filled(self, "models", "strategies", "points")
        labels = [spec.label for spec in self.specs]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"strategies: {twice[0]!r}: is given twice; give each once")
        _check_models(self.models)
        if self.own_work_seconds is not None and not (self.by_layout and self.speed):
            raise ValueError("own_work_seconds: needs by_layout = true and speed = true")
        if self.own_work_seconds is not None and self.starts == 1:
            raise ValueError("own_work_seconds: needs starts of 2 or more, which show how launches differ")

    @property
    def specs(self) -> tuple[StrategySpec, ...]:
        """How each strategy is run."""
        return tuple(map(StrategySpec.of_strategy, self.strategies))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Every layout that is trained on, once each."""
        return tuple(dict.fromkeys(layout for points in self.points for layout in points.parsed_layouts))

    @property
    def settings(self) -> tuple[tuple[Layout, Bandwidth, Duration], ...]:
        """Layouts, bandwidths and latencies of the points, in the order of the file."""
        return tuple((*setting, points.latency) for points in self.points for setting in points.settings)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a lab, which writes one measurement file.

    Attributes:
        name: of the file, without its ending.
        part: one of `PARTS`.
        bandwidth: of each NIC; None sets no limit.
        latency: of each NIC, one way.
        arguments: of `python -m binsgdm measure`.
        threads: of each rank.
    """

    name: str
    part: str
    layout: Layout
    bandwidth: Bandwidth | None
    latency: Duration = NO_LATENCY
    arguments: tuple[str, ...]
    threads: int = 1

    @classmethod
    def of(  # noqa: PLR0913 - one argument an aspect
        cls,
        part: str,
        layout: Layout,
        arguments: Iterable[object],
        *,
        more: object = "",
        rate: Bandwidth | None = None,
        latency: Duration = NO_LATENCY,
        threads: int = 1,
        speed: bool = False,
    ) -> "Launch":
        """Return the launch of a part; `more` distinguishes launches of one part, layout, bandwidth and latency."""
        link = (_rate_text(rate, "") if rate is not None else "", f"{latency * 1e3:g}ms" if latency else "")
        words = (part, str(more), layout.text(), *link)
        nic: tuple[str, ...] = ("--nic-gbit-per-s", f"{rate * 8 / 1e9:g}") if rate is not None else ()
        nic += ("--nic-latency-ms", f"{latency * 1e3:g}") if latency else ()
        every = (*arguments, "--threads", threads, *nic, *(("--speed",) if speed else ()))
        return cls(
            name="_".join(filter(None, words)),
            part=part,
            layout=layout,
            bandwidth=rate,
            latency=latency,
            arguments=tuple(map(str, every)),
            threads=threads,
        )

    def path(self, folder: Path) -> Path:
        """Return the path of the measurement file."""
        return folder / f"{self.name}.json"

    @property
    def description(self) -> str:
        """Part, layout, bandwidth and latency as text."""
        rate = f" at {_rate_text(self.bandwidth)}" if self.bandwidth is not None else ""
        rate += f" and {self.latency.text()}" if self.latency else ""
        return f"{self.part} on {self.layout.num_nodes} x {self.layout.ranks_per_node} ranks{rate}"


def load(path: Path) -> Campaign:
    """Read a campaign file.

    Raises:
        SimnetError: the file cannot be read, or holds an invalid value.
    """
    campaign = build(Campaign, read_file(path), str(path))
    for layout, rate, _ in campaign.settings:
        if (layout, rate) in campaign.links.settings:
            raise SimnetError(
                f"{path}: points: {layout.text()} at {_rate_text(rate)}: the links are calibrated there; drop one of "
                "the two"
            )
    return campaign


def launches(campaign: Campaign) -> list[Launch]:
    """Return the launches in order: the starts of the models are spread over the campaign.

    A machine drifts over hours. Models measured once at the beginning would miss this drift.
    """
    planned = [
        Launch.of("links", layout, campaign.links.arguments, rate=rate, threads=campaign.threads, speed=campaign.speed)
        for layout, rate in campaign.links.settings
    ]
    if campaign.by_layout:
        return [*planned, *(launch for layout in campaign.layouts for launch in _of_layout(campaign, layout))]
    for layout in campaign.layouts:
        planned += [_launch(campaign, part, layout) for part in ("kernels", "messages", "beside")]
    training = [_launch(campaign, "training", *setting) for setting in campaign.settings]
    # Rounded up, so that no training is left over after the last start.
    step = -(-len(training) // campaign.starts)
    for start in range(campaign.starts):
        planned += [launch for layout in campaign.layouts for launch in _models(campaign, layout, start)]
        planned += training[start * step : (start + 1) * step]
    return planned


def _of_layout(campaign: Campaign, layout: Layout) -> Iterator[Launch]:
    """Yield what is measured in place, before, between and after the trainings."""
    training = [_launch(campaign, "training", *setting) for setting in campaign.settings if setting[0] == layout]
    share = -(-len(training) // max(1, campaign.starts - 1))
    yield _launch(campaign, "beside", layout)
    for start in range(campaign.starts):
        if start < (campaign.kernel_starts or campaign.starts):
            yield _launch(campaign, "kernels", layout, more=start + 1)
        yield _launch(campaign, "messages", layout, more=start + 1)
        if campaign.own_work_seconds is not None:
            yield _launch(campaign, "own_work", layout, more=start + 1)
        yield from _models(campaign, layout, start)
        yield from training[start * share : (start + 1) * share]


def strategies_on(campaign: Campaign, layout: Layout) -> list[AnyStrategy]:
    """Return the strategies to train on a layout: without hierarchical ones where a node has one rank."""
    return [
        strategy
        for strategy in campaign.strategies
        if layout.ranks_per_node > 1 or not StrategySpec.of_strategy(strategy).is_hierarchical
    ]


def _models(campaign: Campaign, layout: Layout, start: int) -> Iterator[Launch]:
    for model in campaign.models:
        what = ("model", "--model", model, "--batch", campaign.batch, "--max-seconds", campaign.model_seconds)
        more = f"{file_stem(model)}_{start + 1}"
        yield Launch.of("model", layout, what, more=more, threads=campaign.threads, speed=campaign.speed)


def _launch(  # noqa: PLR0913, PLR0917 - a setting, and what else names a launch
    campaign: Campaign,
    part: str,
    layout: Layout,
    rate: Bandwidth | None = None,
    latency: Duration = NO_LATENCY,
    more: object = "",
) -> Launch:
    """Return a launch of all models and strategies; campaigns whose launches are not by layout do not number them."""
    chosen = strategies_on(campaign, layout)
    specs = tuple(map(StrategySpec.of_strategy, chosen))
    what: Iterable[object]
    if part == "kernels":
        sizes = ("--kernels", "cpu", "--min-size", campaign.min_elements, "--max-size", campaign.max_elements)
        systems = (word for spec in specs if (text := spec.kernels_argument) for word in ("--system", text))
        what = ("kernels", *sizes, *systems, "--max-seconds", campaign.kernel_seconds)
    elif part == "messages":
        what = ("collectives", "--min-size", "2^10", "--max-size", "2^22", "--max-seconds", campaign.message_seconds)
    elif part == "beside":
        rate = max(campaign.links.bandwidths)
        settings = ("--batch", campaign.batch, "--max-repetitions", OVERLAPPED_BACKWARDS)
        what = ("interference", "--model", campaign.models[0], *settings)
    else:
        seconds = campaign.training_seconds if part == "training" else campaign.own_work_seconds
        models = (word for model in campaign.models for word in ("--model", model))
        trained = (word for spec in specs for word in ("--strategy", spec.argument))
        step = ("--batch", campaign.batch, "--max-seconds", seconds, "--bucket-cap-mb", _bucket_cap_mb(chosen))
        what = ("training", *models, *trained, *step, *(("--without-messages",) if part == "own_work" else ()))
    return Launch.of(
        part, layout, what, more=more, rate=rate, latency=latency, threads=campaign.threads, speed=campaign.speed
    )


def _bucket_cap_mb(strategies: Iterable[AnyStrategy]) -> float:
    caps = {strategy.bucket_cap or DEFAULT_CAP for strategy in strategies if strategy.bucketing == "ddp"}
    if len(caps) > 1:
        raise SimnetError("strategies: bucket_cap: all strategies must have the same; give one")
    return next(iter(caps), DEFAULT_CAP) / MIB


def _rate_text(rate: Bandwidth, space: str = " ") -> str:
    """Return a rate as text, or without a space for a file name: "200 Mbit/s", "200mbit"."""
    mbit = rate * 8 / 1e6
    return f"{mbit:g} Mbit/s" if space else f"{mbit:g}mbit"


def file_stem(name: str) -> str:
    """Return a name as a part of a file name: no character of it can lead into another folder.

    Example:
        >>> file_stem("my.pkg:build"), file_stem("../../x")
        ('my-pkg-build', '-x')
    """
    return re.sub(r"\W+", "-", name)


def _check_filled(struct: Struct, *names: str) -> None:
    """Refuse empty lists.

    Raises:
        ValueError: a list is empty.
    """
    for name in names:
        if not getattr(struct, name):
            raise ValueError(f"{name}: is empty; give at least one")


def _check_models(models: Sequence[str]) -> None:
    """Refuse invalid names of models, and two that would share a file.

    Raises:
        ValueError: a name is invalid, or two share a file.
    """
    for name in models:
        if not _MODEL.fullmatch(name) or ".." in name:
            raise ValueError(f"models: {name!r}: must be letters, digits, '_', '-' and '.', or module:function")
    for first, second in combinations(models, 2):
        if file_stem(first) == file_stem(second):
            raise ValueError(f"models: {first!r} and {second!r} would share their files; rename one, or drop it")
