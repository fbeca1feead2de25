"""The knobs of the explorer: what each may be, and the scenario that their places mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simnet.analysis.tune import systems
from simnet.core.errors import SimnetError, shown
from simnet.core.units import Bandwidth
from simnet.engine.scenario import Scenario, to_dict
from simnet.strategies import AnyStrategy, DenseAllReduce

NODES = "cluster.num_nodes"
RATE = "cluster.inter_node.bandwidth"
BATCH = "workload.batch_per_rank"
CODEC = "calibration.codec_efficiency"
MOST_NODES, MOST_BATCH = 1024, 1024
RATES = (1, 2, 5, 10, 16, 25, 40, 50, 100, 200, 400, 800)
"""Of a NIC [Gbit/s]."""
CODEC_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""On the time of kernels that compress."""
DIGITS = 6


@dataclass(frozen=True)
class Places:
    """Where the knobs stand.

    Attributes:
        nodes: number of nodes.
        gbit_per_s: bandwidth of a NIC [Gbit/s].
        batch: samples of a rank.
        codec: factor on the time of kernels that compress.
        strategy: title of a strategy.
        baseline: title of what it is compared with.
    """

    nodes: int
    gbit_per_s: float
    batch: int
    codec: float
    strategy: str
    baseline: str


@dataclass(frozen=True)
class Knobs:
    """What may be explored around a scenario.

    Attributes:
        base: the scenario.
        source: how a command names it.
        settings: `KEY=VALUE` texts that a command has set already.
    """

    base: Scenario
    source: str
    settings: tuple[str, ...] = ()

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of nodes: powers of two, and the scenario's own."""
        powers = {2**power for power in range(MOST_NODES.bit_length())}
        return tuple(sorted({*powers, self.base.cluster.num_nodes}))

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Bandwidths [Gbit/s], the scenario's own among them."""
        return tuple(sorted({*map(float, RATES), _gbit(self.base)}))

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Samples of a rank: powers of two, and the scenario's own."""
        powers = {2**power for power in range(MOST_BATCH.bit_length())}
        return tuple(sorted({*powers, self.base.workload.batch_per_rank}))

    @cached_property
    def codecs(self) -> tuple[float, ...]:
        """Factors on the time of estimated kernels; 1 alone where none is estimated."""
        calibration = self.base.calibration
        if calibration.memory_bytes_per_s is None:
            return (1.0,)
        return tuple(factor for factor in CODEC_FACTORS if calibration.codec_efficiency / factor <= 1)

    @cached_property
    def strategies(self) -> dict[str, AnyStrategy]:
        """Every strategy by title, that of the scenario first."""
        found: dict[str, AnyStrategy] = {OWN.format(self.base.strategy.title): self.base.strategy}
        found |= {title: variants[0] for title, variants in systems().items()}
        return found | self._dense

    @cached_property
    def baselines(self) -> dict[str, AnyStrategy]:
        """What may be compared with, that of the scenario first."""
        own = self.base.baseline or DenseAllReduce()
        found: dict[str, AnyStrategy] = {OWN.format(own.title): own}
        others = {title: variants[0] for title, variants in systems().items()}
        return found | self._dense | {title: one for title, one in others.items() if one.mathematics == "same"}

    @property
    def _dense(self) -> dict[str, AnyStrategy]:
        return {
            "DDP": DenseAllReduce(algorithm="auto"),
            "DDP bf16": DenseAllReduce(algorithm="auto", wire_dtype="bf16"),
        }

    @property
    def start(self) -> Places:
        """Where the knobs stand at first: at the scenario."""
        return Places(
            nodes=self.base.cluster.num_nodes,
            gbit_per_s=_gbit(self.base),
            batch=self.base.workload.batch_per_rank,
            codec=1.0,
            strategy=next(iter(self.strategies)),
            baseline=next(iter(self.baselines)),
        )

    def settings_at(self, places: Places) -> dict[str, object]:
        """Return what differs from the scenario, by dotted key, as a file or `--set` gives it."""
        start = self.start
        found: dict[str, object] = {}
        if places.nodes != start.nodes:
            found[NODES] = places.nodes
        if places.gbit_per_s != start.gbit_per_s:
            found[RATE] = Bandwidth(places.gbit_per_s * 1e9 / 8).text()
        if places.batch != start.batch:
            found[BATCH] = places.batch
        if places.codec != 1:
            found[CODEC] = float(f"{self.base.calibration.codec_efficiency / places.codec:.{DIGITS}g}")
        if places.strategy != start.strategy:
            found["strategy"] = table_of(_known(self.strategies, places.strategy))
        if places.baseline != start.baseline or self.base.baseline is None:
            found["baseline"] = table_of(_known(self.baselines, places.baseline))
        return found

    def scenario_at(self, places: Places) -> Scenario:
        """Return the scenario that the knobs mean."""
        return self.base.without_global_batch().replace(**self.settings_at(places))

    def command_at(self, places: Places) -> str:
        """Return the command that prints the same numbers."""
        import shlex

        given = [*self.settings, *(f"{key}={written(value)}" for key, value in self.settings_at(places).items())]
        return shlex.join(["simnet", "simulate", self.source, *(text for one in given for text in ("--set", one))])

    @cached_property
    def speedups(self) -> dict[Places, float | None]:
        """Those that curves have shown so far, None where there is none: a knob that moves leaves its own curve."""
        return {}


def toml_of(scenario: Scenario) -> str:
    """Return a scenario file that gives the same numbers."""
    import tomli_w

    return tomli_w.dumps(to_dict(scenario))


OWN = "{} (as in the scenario)"


def _gbit(scenario: Scenario) -> float:
    return float(f"{scenario.cluster.inter_node.bytes_per_s * 8 / 1e9:.{DIGITS}g}")


def _known(strategies: Mapping[str, AnyStrategy], title: str) -> AnyStrategy:
    if title not in strategies:
        raise SimnetError(f"strategy: {title!r}: unknown; choose one of {', '.join(strategies)}")
    return strategies[title]


def table_of(strategy: AnyStrategy) -> dict[str, Any]:
    """Return a strategy as a file gives it, without the options that are as by default."""
    kind = type(strategy)
    whole, plain = to_dict(strategy), _defaults(kind)
    return {key: value for key, value in whole.items() if key == "kind" or plain.get(key) != value}


def _defaults(kind: type[AnyStrategy]) -> dict[str, object]:
    try:
        return to_dict(kind())
    except (TypeError, ValueError):  # it has options that must be given
        return {}


def written(value: object) -> str:
    """Return a value as `--set` reads it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return str(value)


def _toml(value: object) -> str:
    import json

    return (
        str(value).lower() if isinstance(value, bool) else json.dumps(value) if isinstance(value, str) else str(value)
    )


def places_of(given: Sequence[Any], knobs: Knobs) -> Places:
    """Return the places that a page sends: indices of the four sliders, and two titles.

    Raises:
        SimnetError: they are not six, an index is out of range, or a value of another type.
    """
    if not isinstance(given, list | tuple) or len(given) != 6 or not all(isinstance(one, str) for one in given[4:]):
        raise SimnetError(f"knobs: {shown(given)}: must be places of four sliders and two titles; reload the page")
    values = []
    for name, index, choices in zip(
        ("nodes", "bandwidth", "batch", "codec"),
        given,
        (knobs.nodes, knobs.rates, knobs.batches, knobs.codecs),
        strict=False,  # two titles follow
    ):
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(choices):
            raise SimnetError(f"{name}: {shown(index)}: must be a place of the slider, 0 to {len(choices) - 1}")
        values.append(choices[index])
    strategy, baseline = given[4:]
    return Places(int(values[0]), float(values[1]), int(values[2]), float(values[3]), strategy, baseline)
