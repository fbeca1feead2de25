"""A scenario with one cost removed or raised: shows what bounds a step, and how robust a speedup is."""

from typing import NamedTuple

from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, Fault
from simnet.cluster.kernel_times import HostCost, KernelTime
from simnet.core.units import Bandwidth, Duration
from simnet.engine.prepared_scenario import with_numbers
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import kernel_names
from simnet.strategies import AnyStrategy
from simnet.strategies.base import every_kernel, kernel_costs_of

SLOW_KERNEL_FACTOR = 170 / 44
"""Largest kernel time / its estimate: 1-bit Adam's own took 44 ms on one of its two clusters, which
the estimates follow, and 170 ms on the other (arXiv 2102.02888, Fig 5a, one node; docs/explanation/how-it-works.md)."""
# A part this many times as fast costs nothing next to the others; zero would divide by zero in rates.
FREE_FACTOR = 1e6
OF_RANKS = ("compute_factor", "draw_compute", "draw_pauses_s")
"""What a fault says of ranks; all else that it says is of links."""
NO_TIME = KernelTime(s_per_element=Duration(0))


class KernelCoverage(NamedTuple):
    """Which kernels of a strategy have a measured time in a calibration.

    Attributes:
        are_estimated: some kernels have an estimate in place of a time; it may be too short.
        unmeasured: kernels with neither a time nor a usable estimate.
    """

    are_estimated: bool
    unmeasured: tuple[str, ...]


def kernel_coverage(strategy: AnyStrategy, scenario: Scenario) -> KernelCoverage:
    """Return which kernels of a strategy have a measured time in the scenario's calibration."""
    return coverage(kernel_names(replace(scenario, strategy=strategy)), scenario.calibration)


def coverage(names: frozenset[str], calibration: Calibration) -> KernelCoverage:
    """Return which of some kernels have a measured time in a calibration."""
    known = kernel_costs_of(names)
    untimed = {name for name, cost in known.items() if not (cost.is_streaming or cost.timed(calibration))}
    return KernelCoverage(
        are_estimated=calibration.memory_bytes_per_s is not None and bool(untimed),
        unmeasured=tuple(sorted(name for name, cost in known.items() if not cost.is_estimated(calibration))),
    )


def at_bandwidth(scenario: Scenario, bytes_per_s: float) -> Scenario:
    """Return the scenario with NICs of this bandwidth."""
    link = replace(scenario.cluster.inter_node, bytes_per_s=Bandwidth(bytes_per_s))
    return replace(scenario, cluster=replace(scenario.cluster, inter_node=link))


def free_wire(scenario: Scenario, _result: RunResult | None = None) -> Scenario:
    """Return the scenario in which bytes cost nothing, inside a node and between nodes."""
    cluster, calibration = scenario.cluster, scenario.calibration
    links = {
        name: replace(link, bytes_per_s=Bandwidth(link.bytes_per_s * FREE_FACTOR))
        for name, link in (("intra_node", cluster.intra_node), ("inter_node", cluster.inter_node))
    }
    host = replace(calibration.host, s_per_byte=Duration(0))
    return replace(scenario, cluster=replace(cluster, **links), calibration=replace(calibration, host=host))


def free_latency(scenario: Scenario, _result: RunResult | None = None) -> Scenario:
    """Return the scenario in which messages cost their bytes alone."""
    calibration = scenario.calibration
    free = replace(
        calibration,
        collective_launch_s=Duration(0),
        message_s=Duration(0),
        poll_s=Duration(0),
        host=HostCost(s_per_byte=calibration.host.s_per_byte),
        intra_node=replace(calibration.intra_node, alpha_s=Duration(0)),
        inter_node=replace(calibration.inter_node, alpha_s=Duration(0)),
    )
    near = replace(scenario.cluster.inter_node, alpha_s=Duration(0))
    return replace(scenario, calibration=free, cluster=replace(scenario.cluster, inter_node=near))


def free_codec(scenario: Scenario, _result: RunResult | None = None) -> Scenario:
    """Return the scenario in which kernels take no time, but those that update the parameters."""
    free = {name: NO_TIME for name, cost in every_kernel().items() if not cost.updates}
    return _with_kernels(scenario, free)


def free_compute(scenario: Scenario, result: RunResult) -> Scenario:
    """Return the scenario in which forward, backward and the update of the parameters take next to no time."""
    parts = result.result.breakdown
    workload = replace(
        scenario.workload,
        compute=(),
        forward_s=Duration(parts.forward_s / FREE_FACTOR),
        backward_s=Duration(parts.backward_s / FREE_FACTOR),
        optimizer_s=Duration(parts.optimizer_s / FREE_FACTOR),
    )
    updates = {name: NO_TIME for name, cost in every_kernel().items() if cost.updates}
    return _with_kernels(replace(scenario, workload=workload), updates)


def free_communication(scenario: Scenario) -> Scenario:
    """Return the scenario in which bytes, messages and kernels cost nothing; of faults those of ranks stay."""
    # In numbers, since a NIC that a fault names would be too far from one that takes no time.
    cluster = with_numbers(scenario)
    scenario = replace(scenario, cluster=replace(cluster, faults=tuple(filter(_slows_ranks, cluster.faults))))
    for free in (free_wire, free_latency, free_codec):
        scenario = free(scenario)
    return scenario


def _slows_ranks(fault: Fault) -> bool:
    return any(getattr(type(fault), name) is not getattr(Fault, name) for name in OF_RANKS)


def slow_kernels(scenario: Scenario) -> Scenario:
    """Return the scenario with estimated kernels `SLOW_KERNEL_FACTOR` times as slow; timed kernels stay."""
    calibration = scenario.calibration
    efficiency = calibration.codec_efficiency / SLOW_KERNEL_FACTOR
    return replace(scenario, calibration=replace(calibration, codec_efficiency=efficiency))


def _with_kernels(scenario: Scenario, kernels: dict[str, KernelTime]) -> Scenario:
    calibration = scenario.calibration
    return replace(scenario, calibration=replace(calibration, kernels={**calibration.kernels, **kernels}))
