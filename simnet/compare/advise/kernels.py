"""Which kernels of a strategy have a time, an estimate, or neither."""

from typing import NamedTuple

from msgspec.structs import replace

from simnet.scenario import Scenario
from simnet.simulate import kernel_names
from simnet.strategies import AllReduce, AnyStrategy
from simnet.workload import codec


class Kernels(NamedTuple):
    """What is known of a strategy's kernels.

    Attributes:
        are_estimated: some have no time and an estimate instead, and belong to a system that compresses.
        unmeasured: those that have neither a time nor an estimate that is worth the name.
    """

    are_estimated: bool
    unmeasured: tuple[str, ...]


def known_of(strategy: AnyStrategy, scenario: Scenario) -> Kernels:
    """Return what the calibration of a scenario knows of a strategy's kernels.

    Raises:
        SimnetError: the strategy cannot be simulated there.
    """
    calibration = scenario.calibration
    names = kernel_names(replace(scenario, strategy=strategy))
    has_estimates = calibration.memory_bytes_per_s is not None and bool(names - calibration.kernels.keys())
    return Kernels(
        are_estimated=has_estimates and not isinstance(strategy, AllReduce),
        unmeasured=tuple(sorted(name for name in names if not codec.is_estimated(calibration, name))),
    )
