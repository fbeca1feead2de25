"""The explorer as one file: a grid of places, simulated beforehand, and the same knobs."""

import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.core import templates, version
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.report.explorer_knobs import CODEC, Knobs, table_of, written
from simnet.report.figure import STEP_PARTS
from simnet.report.report_page import plotly_js
from simnet.report.text import clipped, printable
from simnet.strategies import AnyStrategy

NODES = (1, 2, 4, 8, 16, 32, 64)
RATES = (1, 5, 10, 25, 50, 100, 200, 400)
CODECS = (0.5, 1.0, 2.0, 4.0)
SYSTEMS = ("BinSGDM", "1-bit Adam", "PowerSGD rank 4", "QSGD 4 bit", "int8 all-reduce", "local SGD 8", "FSDP", "ZeRO-1")
"""Beside the scenario's own strategies and DDP: one of each kind."""
DIGITS = 5
TITLE_CHARACTERS = 200


def num_places(knobs: Knobs) -> int:
    """Return how many steps `static_page` simulates."""
    nodes, rates, codecs = _axes(knobs)
    return len(nodes) * len(rates) * len(codecs) * len(_strategies(knobs))


def static_page(knobs: Knobs, tick: Callable[[int], object] = lambda _: None) -> str:
    """Return the page; `tick` is called for every step that was simulated.

    Raises:
        SimnetError: plotly is missing, or no place of the grid holds together.
    """
    from markupsafe import Markup

    grid = grid_of(knobs, tick)
    given = {
        "title": clipped(printable(knobs.base.question or knobs.base.name), TITLE_CHARACTERS),
        "version": version.text(),
        "style": Markup(templates.page("explorer.css", {})),
        "plotly": Markup(plotly_js()),
        "grid": Markup(json.dumps(grid, allow_nan=False).replace("<", "\\u003c")),
        "grid_axes": {key: grid[key] for key in ("nodes", "rates", "codecs", "strategies")},
    }
    return templates.html("explorer.html", given)


def grid_of(knobs: Knobs, tick: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """Return the seconds of every part of a step, of every strategy at every place."""
    base = replace(knobs.base, run=replace(knobs.base.run, draws=0)).without_global_batch()
    nodes, rates, codecs = _axes(knobs)
    strategies = _strategies(knobs)

    def parts(strategy: AnyStrategy, *place: float) -> list[float] | None:
        tick(1)
        return _parts(base, strategy, *place)

    steps = {
        title: [[[parts(strategy, count, rate, codec) for codec in codecs] for rate in rates] for count in nodes]
        for title, strategy in strategies.items()
    }
    if not any(parts for one in steps.values() for row in one for cell in row for parts in cell):
        raise SimnetError(f"{base.name}: no place of the grid holds together")
    return {
        "source": knobs.source,
        "parts": [{"title": title, "colour": colour} for title, colour in STEP_PARTS.values()],
        "nodes": nodes,
        "rates": rates,
        "codecs": codecs,
        "strategies": list(strategies),
        "baseline": next(iter(knobs.baselines)),
        "given": _given(knobs, strategies),
        "codec_efficiency": base.calibration.codec_efficiency,
        "start": {"nodes": nodes.index(base.cluster.num_nodes), "rate": rates.index(knobs.start.gbit_per_s)},
        "steps": steps,
    }


def _given(knobs: Knobs, strategies: dict[str, AnyStrategy]) -> dict[str, str]:
    """Return what `--set strategy=` takes, of all strategies but those that the scenario has."""
    own = (knobs.start.strategy, knobs.start.baseline)
    return {title: written(table_of(strategy)) for title, strategy in strategies.items() if title not in own}


def _strategies(knobs: Knobs) -> dict[str, AnyStrategy]:
    own = [knobs.start.strategy, knobs.start.baseline, *SYSTEMS, "DDP", "DDP bf16"]
    known = {**knobs.baselines, **knobs.strategies}
    return {title: known[title] for title in own if title in known}


def _axes(knobs: Knobs) -> tuple[list[int], list[float], list[float]]:
    """Return nodes, bandwidths [Gbit/s] and factors on the time of kernels."""
    nodes = sorted({*NODES, knobs.base.cluster.num_nodes})
    rates = sorted({*map(float, RATES), knobs.start.gbit_per_s})
    return nodes, rates, [factor for factor in CODECS if factor in knobs.codecs] or [1.0]


def _at(base: Scenario, strategy: AnyStrategy, nodes: float, gbit_per_s: float, codec: float) -> Scenario:
    cluster = replace(base.cluster, num_nodes=int(nodes))
    there = whatif.at_bandwidth(replace(base, cluster=cluster, strategy=strategy, baseline=None), gbit_per_s * 1e9 / 8)
    return there if codec == 1 else there.replace(**{CODEC: base.calibration.codec_efficiency / codec})


def _parts(base: Scenario, strategy: AnyStrategy, *place: float) -> list[float] | None:
    """Return the parts of a step [s]; None where the scenario does not hold together."""
    try:
        found = simulate(_at(base, strategy, *place)).result.breakdown
    except SimnetError:
        return None
    return [float(f"{getattr(found, key):.{DIGITS}g}") for key in STEP_PARTS]
