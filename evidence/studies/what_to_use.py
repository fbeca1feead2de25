"""What to use for two models over bandwidth, nodes and accumulation, for docs/how-to/choose.md: what `advise` finds."""

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

from evidence import RESULTS, ROOT
from evidence.axes import plain_numbers
from evidence.studies.page import FIGURES
from simnet.analysis import convergence
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise
from simnet.analysis.tune import chosen
from simnet.analysis.verdict import PAYS
from simnet.engine.scenario import load_experiment
from simnet.report import figure as figures
from simnet.strategies.base import Mathematics

EXPERIMENT = "what_to_use"
MODELS = {"llama_1b": "1.3 B", "llama_7b": "6.7 B"}
NODES, MICRO_BATCHES = (4, 16, 64), (1, 4, 16)
NAMES = (
    "FSDP", "HSDP", "ZeRO-2", "ByteGrad", "HSDP + int8", "BinSGDM", "HSDP + BinSGDM", "DiLoCo 50",
    "streaming DiLoCo 100", "local SGD 8",
)  # fmt: skip
"""What teams weigh: of compression the systems of this project, which are the fastest of those that reached targets."""
GROUPS: tuple[Mathematics, ...] = get_args(Mathematics)
FILE = RESULTS / "what_to_use.json"
PAGE = ROOT / "docs" / "how-to" / "choose.md"
BY_BANDWIDTH, BY_SIZE = FIGURES / "what_to_use_bandwidth.png", FIGURES / "what_to_use_limits.png"
SHOWN_NODES = 16
LOOKS: dict[Mathematics, dict[str, Any]] = {
    "rounding": {"color": "#E69F00", "marker": "D", "label": "8 bits"},
    "compression": {"color": "#0072B2", "marker": "o", "label": "compression (BinSGDM)"},
    "local_steps": {"color": "#009E73", "marker": "^", "label": "local steps (DiLoCo)"},
}
HIGHEST = 800.0
"""Gbit/s that were tried at most."""


def run(_options: Namespace) -> None:
    """Ask for every model, number of nodes and micro-batches; write what was found."""
    rows = []
    for model, nodes, micro_batches in product(MODELS, NODES, MICRO_BATCHES):
        print(f"{model} on {nodes} nodes, {micro_batches} micro-batches a step", flush=True)
        rows.append(row(model, nodes, micro_batches))
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def row(model: str, nodes: int, micro_batches: int, **settings: Any) -> dict[str, Any]:
    """Return the best of each group over the bandwidth of a NIC, and how sure that is at the cluster's own."""
    settings |= {"workload": model, "cluster.num_nodes": nodes, "run.grad_accumulation": micro_batches}
    asked = load_experiment(EXPERIMENT, settings).at({})
    advice = advise(asked, names=chosen(NAMES), trainings=convergence.shipped())
    rates = next([rate for rate, _ in system.curve] for system in advice.others if system.curve)
    return {
        "model": model,
        "nodes": nodes,
        "micro_batches": micro_batches,
        "baseline": advice.baseline,
        "baseline_s": advice.baseline_system.iteration_s,
        "gbit_per_s": [rate * 8 / 1e9 for rate in rates],
        "best": {group: _best(advice, group, len(rates)) for group in GROUPS},
        "choices": {
            choice.mathematics: {
                "label": choice.system.label,
                "step_s": choice.system.iteration_s,
                "speedup": choice.system.speedup.value,
                "interval": choice.system.speedup.interval,
                "verdict": choice.system.verdict,
                "memory_bytes": choice.system.memory.total_bytes if choice.system.memory else None,
            }
            for choice in advice.choices
        },
    }


def _best(advice: Advice, group: Mathematics, count: int) -> list[dict[str, Any]]:
    """Return the fastest of a group at each bandwidth that fits the GPU, with its speedup over the baseline there."""
    rows = [system for system in advice.others if system.mathematics == group and system.may_fit]
    best: list[dict[str, Any]] = []
    for place in range(count):
        fastest = max(rows, key=lambda system, place=place: system.curve[place][1], default=None)  # type: ignore[misc]
        name, speedup = (fastest.name, fastest.curve[place][1]) if fastest else ("", 0.0)
        # The baseline stands at 1 at every bandwidth.
        is_baseline = group == advice.baseline_system.mathematics and speedup < 1
        best.append({"name": advice.baseline, "speedup": 1.0} if is_baseline else {"name": name, "speedup": speedup})
    return best


def read() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return rows


def gains(row: dict[str, Any], group: Mathematics) -> list[float]:
    """Return the speedup of a group's best over the best that changes nothing in training, at each bandwidth."""
    plain = row["best"]["same"]
    return [best["speedup"] / same["speedup"] for best, same in zip(row["best"][group], plain, strict=True)]


def pays_up_to(rates: Sequence[float], gains_: Sequence[float], least: float) -> float | None:
    """Return the bandwidth up to which a gain is at least so large, between two by a line over the logarithm.

    Returns:
        None where it never is; infinity where it is at the highest bandwidth.

    Example:
        >>> [pays_up_to([10, 1000], found, 1.1) for found in ([1.4, 0.9], [1.4, 1.2], [1, 1])]
        [158.48931924611117, inf, None]
    """
    last = max((place for place, gain in enumerate(gains_) if gain >= least), default=None)
    if last is None:
        return None
    if last == len(rates) - 1:
        return float("inf")
    part = (gains_[last] - least) / (gains_[last] - gains_[last + 1])
    return float(rates[last] * (rates[last + 1] / rates[last]) ** part)


def regions(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the best of each group at the cluster's own bandwidth."""
    parts = []
    for row in _shown(rows):
        best = [f"{choice['label'].partition(',')[0]} {choice['speedup']:.2f}x" for choice in row["choices"].values()]
        parts.append(f"with {MODELS[row['model']]} parameters {', '.join(best)}")
    where = f"{SHOWN_NODES} nodes of 8 A100-80GB, 25 Gbit/s"
    return {"choices": f"Best of each group over tuned DDP (or what fits), {where}: {'; '.join(parts)}."}


def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if (row["nodes"], row["micro_batches"]) == (SHOWN_NODES, 1)]


def draw(rows: Sequence[dict[str, Any]]) -> None:
    with figures.styled():
        figures.write(_over_bandwidth(rows), BY_BANDWIDTH)
        figures.write(_limits(rows), BY_SIZE)


def _ticks(axis: Any, places: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator

    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(FixedLocator(()))
    plain_numbers(axis)


def _over_bandwidth(answers: Sequence[dict[str, Any]]) -> Any:
    """Draw how much faster each group is than what changes nothing, over the bandwidth; a panel for each model."""
    figure = figures.new(figures.PAGE_IN, 3.4)
    panels = figure.subplots(1, len(MODELS), sharey=True)
    for axes, row in zip(panels, _shown(answers), strict=True):
        axes.axhline(1.0, color="#000000", linewidth=1.2, label="the best that changes nothing")
        for group, look in LOOKS.items():
            axes.plot(row["gbit_per_s"], gains(row, group), **look)
        axes.set_xscale("log")
        _ticks(axes.xaxis, (1, 2.5, 5, 10, 25, 50, 100, 200, 400, 800))
        axes.set_xlabel("NIC of a node [Gbit/s]")
        axes.set_yscale("log", base=2)
        plain_numbers(axes.yaxis)
        axes.set_title(f"{MODELS[row['model']]} parameters")
    panels[0].set_ylabel("speedup over the best that\nchanges nothing in training")
    panels[0].legend()
    figure.suptitle(f"{SHOWN_NODES} nodes of 8 A100-80GB, one micro-batch a step", x=0.01, ha="left")
    return figure


def _limits(answers: Sequence[dict[str, Any]]) -> Any:
    """Draw the bandwidth up to which each group pays over micro-batches; a panel for each model and number of nodes."""
    figure = figures.new(figures.PAGE_IN, 4.6)
    panels = figure.subplots(len(MODELS), len(NODES), sharex=True, sharey=True, squeeze=False)
    for axes, (model, nodes) in zip(panels.flat, product(MODELS, NODES), strict=True):
        rows = [row for row in answers if (row["model"], row["nodes"]) == (model, nodes)]
        for group, look in LOOKS.items():
            limits = (pays_up_to(row["gbit_per_s"], gains(row, group), PAYS) for row in rows)
            axes.plot(MICRO_BATCHES, [min(limit or math.nan, HIGHEST) for limit in limits], **look)
        axes.set_xscale("log", base=4)
        _ticks(axes.xaxis, MICRO_BATCHES)
        axes.set_yscale("log")
        axes.set_ylim(9, 250)
        _ticks(axes.yaxis, (10, 25, 50, 100, 200))
        axes.set_title(f"{MODELS[model]} parameters, {nodes} nodes")
    for axes in panels[-1]:
        axes.set_xlabel("micro-batches a step")
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{PAYS:g} times as fast\nup to NICs of [Gbit/s]")
    panels[0][0].legend()
    return figure
