"""Every kernel that some strategy runs, by name."""

from collections.abc import Mapping

from simnet.cluster.hardware import Calibration
from simnet.collectives import algorithms
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.registry import tag_of
from simnet.strategies.base import STRATEGIES
from simnet.workload.kernel_cost import KernelCost


def every() -> Mapping[str, KernelCost]:
    """Return the cost of every kernel, those of other packages' strategies included."""
    return {cost.name: cost for strategy in STRATEGIES for cost in strategy.kernels}


def costs_of(names: frozenset[str]) -> dict[str, KernelCost]:
    """Return the costs of these kernels; other packages are asked only if one is not built in.

    Raises:
        SimnetError: a program runs a kernel that no strategy declares.
    """
    known = {cost.name: cost for strategy in STRATEGIES.built_in() for cost in strategy.kernels}
    if not names <= known.keys():
        known = dict(every())
    for name in sorted(names - known.keys()):
        raise SimnetError(f"kernel {name!r}: no strategy declares its cost; add it to the kernels of its strategy")
    return {name: known[name] for name in names}


def check(calibration: Calibration) -> None:
    """Refuse unknown kernels, strategies and algorithms, and a time of each result where a kernel has none.

    Raises:
        SimnetError: an unknown name, or such a time.
    """
    _check_libraries(calibration)
    try:
        algorithms.check(calibration.all_reduce)
    except ValueError as error:
        raise SimnetError(f"{calibration.label}: all_reduce: {error}") from error
    for name, timed in calibration.kernels.items():
        if timed.s_per_result is not None and not getattr(every().get(name), "bytes_per_result", True):
            raise SimnetError(
                f"{calibration.label}: kernels.{name}.time_per_result: {timed.s_per_result.text()!r}: has "
                "no effect on this kernel; drop it"
            )
    if calibration.kernels.keys() <= _built_in_names():
        return
    known = every()
    for name in calibration.kernels:
        if name not in known:
            raise SimnetError(f"{calibration.label}: kernels: {name!r}: unknown kernel.{did_you_mean(name, known)}")


def _check_libraries(calibration: Calibration) -> None:
    for name, library in calibration.libraries.items():
        for strategy in library.carries:
            if strategy not in {tag_of(one) for one in STRATEGIES.built_in()} and strategy not in STRATEGIES.names():
                raise SimnetError(
                    f"{calibration.label}: libraries.{name}.carries: {strategy!r}: unknown strategy."
                    f"{did_you_mean(strategy, STRATEGIES.names())}"
                )


def _built_in_names() -> set[str]:
    return {cost.name for strategy in STRATEGIES.built_in() for cost in strategy.kernels}
