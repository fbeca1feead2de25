"""Draw where the faster of two strategies changes."""

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from simnet.analysis.crossover import Crossover
from simnet.report.figure import current, label, plain_numbers, thin
from simnet.report.labels import ROLES
from simnet.report.text import key_text
from simnet.strategies import STRATEGIES

UNITS = {"bandwidth": (1e9 / 8, " [Gbit/s]"), "latency": (1e-6, " [us]")}
"""Of quantities by how their keys end, each with its size in the unit that the simulator counts in."""


def draw_crossover(axes: Axes, found: Crossover) -> None:
    """Draw the speedup over the key, with its interval and the values at which both take the same time."""
    own, crossed = current().colours[:2]
    scale, unit = next((look for end, look in UNITS.items() if found.key.endswith(end)), (1.0, ""))
    values = [trial.value / scale for trial in found.trials]
    ends = [trial.speedup.interval for trial in found.trials if trial.speedup.interval]
    if len(ends) == len(values):
        axes.fill_between(values, [low for low, _ in ends], [high for _, high in ends], color=own, alpha=0.15, lw=0)
    axes.plot(values, [trial.speedup.value for trial in found.trials], color=own, marker="o")
    axes.axhline(1.0, color=current().ink, linewidth=thin())
    crossings = [crossing.high.value / scale for crossing in found.crossings]
    axes.plot(crossings, [1.0] * len(crossings), color=crossed, marker="X", linestyle="none", label="same time")
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
        axis.set_minor_formatter(NullFormatter())
    strategy, baseline = _titles(found)
    axes.set_xlabel(f"{label(key_text(found.key))}{unit}")
    axes.set_ylabel(f"speedup of {strategy} over {baseline}")
    if crossings:
        axes.legend()


def _titles(found: Crossover) -> tuple[str, str]:
    """Return what people call strategy and baseline, by their roles where that is the same."""
    titles = [label(STRATEGIES.find(kind).title) for kind in (found.strategy, found.baseline)]
    return (titles[0], titles[1]) if titles[0] != titles[1] else ROLES
