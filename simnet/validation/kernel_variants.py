"""Which timed kernels are those of which strategy, where a campaign trains with several variants of a system."""

from collections.abc import Mapping, Sequence

from msgspec.structs import asdict, replace

from simnet.calibration.measurement_file import MeasurementFile
from simnet.core.system_options import SystemOptions
from simnet.strategies import CompressingStrategy, Strategy
from simnet.validation.lab.strategy_spec import StrategySpec


def group(strategies: Sequence[Strategy]) -> list[list[Strategy]]:
    """Return the strategies whose kernels are timed by variant in sets without two of one system.

    Kernels have the same names in all variants of a system, so a calibration holds those of one variant. There is one
    set at least, which may be empty.
    """
    found: list[list[Strategy]] = [[]]
    for strategy in strategies:
        if not StrategySpec.of_strategy(strategy).kernels_argument:
            continue
        free = (one for one in found if all(other.kind != strategy.kind for other in one))
        if (mine := next(free, None)) is None:
            found.append(mine := [])
        mine.append(strategy)
    return found


def find_ambiguous(files: Sequence[MeasurementFile]) -> set[str]:
    """Return the kernels that were timed with several options."""
    return {name for name, timed in _timed_options(files).items() if len(timed) > 1}


def keep_kernels_of(files: Sequence[MeasurementFile], strategies: Sequence[Strategy]) -> list[MeasurementFile]:
    """Return files without the kernels that were timed for other variants than these strategies.

    Args:
        files: measurement files.
        strategies: no two of one system.
    """
    chosen = {name: _nearest(name, timed, strategies) for name, timed in _timed_options(files).items()}
    return [
        replace(whole, series=tuple(one for one in whole.series
                                    if one.kind != "kernel" or one.options == chosen[one.name]))
        for whole in files
    ]  # fmt: skip


def _timed_options(files: Sequence[MeasurementFile]) -> Mapping[str, list[SystemOptions]]:
    """Return all options that each kernel was timed with, by its name, once each."""
    found: dict[str, list[SystemOptions]] = {}
    for whole in files:
        for one in whole.series:
            if one.kind == "kernel" and one.options not in found.setdefault(one.name, []):
                found[one.name].append(one.options)
    return found


def _nearest(name: str, timed: Sequence[SystemOptions], strategies: Sequence[Strategy]) -> SystemOptions:
    """Return the options of a kernel that contradict the strategy that runs it the least; the first of equal ones."""
    owner = next((one for one in strategies if name in {cost.name for cost in one.kernels}), None)
    return min(timed, key=lambda options: _num_contradictions(options, owner) if owner is not None else 0)


def _num_contradictions(options: SystemOptions, strategy: Strategy) -> int:
    given, there = asdict(strategy), dict(options)
    if isinstance(strategy, CompressingStrategy):
        given["topology"] = strategy.used_topology
        # What was timed before there were topologies, or in a system's own, has no such option.
        there = {"topology": strategy.topologies[0], **there}
    return sum(given.get(key) not in {None, value} for key, value in there.items())
