"""Axes of the figures of studies and benchmarks that write their numbers as people do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis


def plain_numbers(axis: "Axis") -> None:
    """Write the numbers of an axis as people do, also on a logarithmic one: "0.5", "20"."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_numbers(axis: "Axis", subs: tuple[float, ...] = (1.0,)) -> None:
    """Put plain numbers on a logarithmic axis, at these multiples of the powers of ten and nowhere between."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=subs))
    plain_numbers(axis)
    axis.set_minor_formatter(NullFormatter())
