"""A page whose sliders and pickers change a scenario, as one file: a grid of steps, simulated beforehand."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.analysis.tune import references, systems
from simnet.core import templates, version
from simnet.core.errors import SimnetError
from simnet.engine.axes import Override
from simnet.engine.scenario import Scenario, to_dict
from simnet.engine.simulation import simulate
from simnet.report.figure import STEP_PARTS
from simnet.report.report_page import plotly_js
from simnet.report.text import clipped, printable
from simnet.strategies import AnyStrategy, DenseAllReduce

NODES = (1, 2, 4, 8, 16, 32, 64)
RATES = (1, 5, 10, 25, 50, 100, 200, 400)
"""Of a NIC [Gbit/s]."""
CODECS = (0.5, 1.0, 2.0, 4.0)
"""Factors on the time of kernels that compress."""
SYSTEMS = ("BinSGDM", "1-bit Adam", "PowerSGD rank 4", "QSGD 4 bit", "int8 all-reduce", "local SGD 8", "FSDP", "ZeRO-1")
"""Beside the scenario's own strategies and DDP: one of each kind."""
OF_SCENARIO, TUNED = "{} (as in the scenario)", "tuned DDP, or what fits"
STEP_DIGITS, RATE_DIGITS = 5, 6
TITLE_CHARACTERS = 200


def num_places(base: Scenario) -> int:
    """Return how many steps `explorer_page` simulates."""
    nodes, rates, codecs = _axes(base)
    return len(nodes) * len(rates) * len(codecs) * (len(_strategies(base)) + 1)


def explorer_page(base: Scenario, source: str, tick: Callable[[int], object] = lambda _: None) -> str:
    """Return the page of a scenario, which `named_by` names; `tick` is called for every simulated step.

    Raises:
        SimnetError: plotly is missing, or no place of the grid holds together.
    """
    from markupsafe import Markup

    grid = _grid(base, source, tick)
    values = {
        "title": clipped(printable(base.question or base.name), TITLE_CHARACTERS),
        "version": version.text(),
        "plotly": Markup(plotly_js()),
        "grid": Markup(json.dumps(grid, allow_nan=False).replace("<", "\\u003c")),
        "grid_axes": {key: grid[key] for key in ("nodes", "rates", "codecs", "strategies")},
    }
    return templates.html("explorer.html", values)


def named_by(source: str, overrides: Iterable[Override]) -> str:
    """Return the arguments of a command that name a scenario with its settings, chosen ones among them."""
    settings = {
        override.key: _toml(override.value) if isinstance(override.value, bool | dict) else str(override.value)
        for override in overrides
        if override.key != "question"
    }
    return shlex.join([source, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))])


def _grid(base: Scenario, source: str, tick: Callable[[int], object]) -> dict[str, Any]:
    """Return the seconds of every part of a step, of every strategy at every place."""
    alone = replace(base, run=replace(base.run, draws=0)).without_global_batch()
    nodes, rates, codecs = _axes(base)
    strategies = _strategies(base)

    def parts(strategy: AnyStrategy, *place: float) -> list[float] | None:
        tick(1)
        return _parts(alone, strategy, *place)

    steps = {
        title: [[[parts(strategy, count, rate, codec) for codec in codecs] for rate in rates] for count in nodes]
        for title, strategy in strategies.items()
    }
    steps[TUNED] = _tuned_parts(alone, nodes, rates, codecs, tick)
    if not any(parts for system in steps.values() for row in system for cell in row for parts in cell):
        raise SimnetError(f"{base.name}: no place of the grid holds together")
    named = {OF_SCENARIO.format(strategy.title) for strategy in (base.strategy, base.baseline) if strategy is not None}
    return {
        "source": source,
        "parts": [{"title": title, "colour": colour} for title, colour in STEP_PARTS.values()],
        "nodes": nodes,
        "rates": rates,
        "codecs": codecs,
        "strategies": list(steps),
        "baseline": TUNED,
        "given": {title: _setting(strategy) for title, strategy in strategies.items() if title not in named},
        "codec_efficiency": base.calibration.codec_efficiency,
        "start": {"nodes": nodes.index(base.cluster.num_nodes), "rate": rates.index(_gbit_per_s(base))},
        "steps": steps,
    }


def _tuned_parts(
    base: Scenario, nodes: list[int], rates: list[float], codecs: list[float], tick: Callable[[int], object]
) -> list[list[list[list[float] | None]]]:
    """Return the parts of a step of the tuned reference at every place [s]; None where it is not known."""

    def row(count: int) -> list[list[list[float] | None]]:
        there = [_at(base, base.strategy, count, rate, 1.0) for rate in rates]
        known = references(there)
        tick(len(rates) * len(codecs))
        parts = [
            None if made is None else _of(made.scenario_of(scenario))
            for made, scenario in zip(known, there, strict=True)
        ]
        # Kernels that compress are none of its own.
        return [[seconds] * len(codecs) for seconds in parts]

    return [row(count) for count in nodes]


def _strategies(base: Scenario) -> dict[str, AnyStrategy]:
    """Return what the pickers offer, by title: the scenario's strategy and baseline first."""
    shipped: Mapping[str, AnyStrategy] = {
        **{title: variants[0] for title, variants in systems().items()},
        "DDP": DenseAllReduce(algorithm="auto"),
        "DDP bf16": DenseAllReduce(algorithm="auto", wire_dtype="bf16"),
    }
    offered: dict[str, AnyStrategy] = {OF_SCENARIO.format(base.strategy.title): base.strategy}
    if base.baseline is not None:
        offered.setdefault(OF_SCENARIO.format(base.baseline.title), base.baseline)
    return offered | {title: shipped[title] for title in (*SYSTEMS, "DDP", "DDP bf16")}


def _axes(base: Scenario) -> tuple[list[int], list[float], list[float]]:
    """Return nodes, bandwidths [Gbit/s] and factors on the time of kernels, which is 1 where none is estimated."""
    calibration = base.calibration
    nodes = sorted({*NODES, base.cluster.num_nodes})
    rates = sorted({*map(float, RATES), _gbit_per_s(base)})
    is_estimated = calibration.memory_bytes_per_s is not None
    codecs = [factor for factor in CODECS if is_estimated and calibration.codec_efficiency / factor <= 1]
    return nodes, rates, codecs or [1.0]


def _gbit_per_s(base: Scenario) -> float:
    return float(f"{base.cluster.inter_node.bytes_per_s * 8 / 1e9:.{RATE_DIGITS}g}")


def _at(base: Scenario, strategy: AnyStrategy, nodes: float, gbit_per_s: float, codec: float) -> Scenario:
    cluster = replace(base.cluster, num_nodes=int(nodes))
    there = whatif.at_bandwidth(replace(base, cluster=cluster, strategy=strategy, baseline=None), gbit_per_s * 1e9 / 8)
    if codec == 1:
        return there
    return there.replace(**{"calibration.codec_efficiency": base.calibration.codec_efficiency / codec})


def _parts(base: Scenario, strategy: AnyStrategy, *place: float) -> list[float] | None:
    """Return the parts of a step [s]; None where the scenario does not hold together."""
    try:
        return _of(_at(base, strategy, *place))
    except SimnetError:
        return None


def _of(scenario: Scenario) -> list[float]:
    """Return the parts of a step [s], a dense stage counted by its share."""
    result = simulate(scenario).result
    breakdown, share = result.breakdown, result.step_s / result.iteration_s
    return [float(f"{share * getattr(breakdown, key):.{STEP_DIGITS}g}") for key in STEP_PARTS]


def _setting(strategy: AnyStrategy) -> str:
    """Return a strategy as `--set strategy=` takes it, without the options that are as by default."""
    try:
        plain = to_dict(type(strategy)())
    except (TypeError, ValueError):  # it has options that must be given
        plain = {}
    options = {key: value for key, value in to_dict(strategy).items() if key == "kind" or plain.get(key) != value}
    return _toml(options)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(option)}" for key, option in value.items()) + " }"
    return json.dumps(value) if isinstance(value, bool | str) else str(value)
