"""Shipped clusters and calibrations as structs, to be varied and fitted by a validation set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, Cluster
from simnet.cluster.kernel_times import KernelTime
from simnet.cluster.network_costs import NodesPoint
from simnet.core import files
from simnet.core.units import Duration
from simnet.engine.scenario import RawScenario
from simnet.workload.workload import Workload

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")
Numbers = TypeVar("Numbers", bound=msgspec.Struct | dict[str, Any])
_CLEAR_FUNCTIONS: list[Callable[[], None]] = []


def cached(function: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Cache the results of a function of shipped files, which do not change while a process runs."""
    with_cache = cache(function)
    _CLEAR_FUNCTIONS.append(with_cache.cache_clear)
    return with_cache  # type: ignore[return-value]  # a cached function takes what it took


def clear_caches() -> None:
    """Clear all results of `cached` functions, so that shipped files are read again and fits made again."""
    for clear in _CLEAR_FUNCTIONS:
        clear()


@dataclass(frozen=True, kw_only=True)
class PublishedNetwork:
    """A network of a publication.

    Attributes:
        label: name in tables and figures.
        column: value of the column `network` of its rows.
        part: name of its shipped cluster and calibration.
        nominal_gbit_per_s: nominal rate of the link that limits it.
        link: "intra_node" or "inter_node", the link that limits it.
    """

    label: str
    column: str
    part: str
    nominal_gbit_per_s: float
    link: str = "inter_node"


@cached
def cluster(name: str, num_nodes: int | None = None) -> Cluster:
    """Return a shipped cluster, with another number of nodes if given."""
    raw = RawScenario(data={"name": name, **files.read("clusters", name)}, origins={(): f"clusters/{name}.toml"})
    whole = raw.converted(Cluster)
    return replace(whole, num_nodes=num_nodes) if num_nodes else whole


@cached
def calibration(name: str) -> Calibration:
    """Return a shipped calibration."""
    raw = RawScenario(
        data={"name": name, **files.read("calibrations", name)}, origins={(): f"calibrations/{name}.toml"}
    )
    return raw.converted(Calibration)


def unfitted(name: str, **neutral: object) -> Calibration:
    """Return a shipped calibration with all links at their nominal rate, and with these attributes replaced."""
    calibration_of_links = replace(calibration(name), by_nodes=(), libraries={}, **neutral)
    for key in ("efficiency", "overlap_efficiency"):
        for link in ("intra_node", "inter_node"):
            calibration_of_links = with_value(calibration_of_links, f"{link}.{key}", 1.0)
    return calibration_of_links


def workload_from_compute_time(gradients: str, compute_s: float, batch: int, optimizer_s: float = 0.0) -> Workload:
    """Return a workload from a published compute time of one GPU.

    What is left of it beside the optimizer is split into one third forward and two thirds backward: backward computes
    two products for each one of forward (gradients of inputs and of weights).
    """
    return Workload(
        gradients=gradients,
        forward_s=Duration((compute_s - optimizer_s) / 3),
        backward_s=Duration(2 * (compute_s - optimizer_s) / 3),
        optimizer_s=Duration(optimizer_s),
        batch_per_rank=batch,
    )


def with_value(whole: Numbers, key: str, value: float) -> Numbers:
    """Return numbers by name, or a struct, with another value under a key: dotted, as a calibration file spells it.

    Under a key such as "kernels.compress" the value is the time per element, under one such as "by_nodes.4.efficiency"
    that of the point of four nodes, which is made if it is missing.
    """
    if isinstance(whole, dict):
        return {**whole, key: value}  # type: ignore[return-value]  # the numbers of a set, by name
    name, _, rest = key.partition(".")
    attribute = _attribute(whole, name)
    old = getattr(whole, attribute)
    item, _, inner = rest.partition(".")
    new: object
    if isinstance(old, tuple):
        points = {point.nodes: point for point in old}
        point = points.get(int(item), NodesPoint(nodes=int(item)))
        new = tuple(
            changed_point
            for _, changed_point in sorted((points | {int(item): with_value(point, inner, value)}).items())
        )
    elif isinstance(old, dict):
        new = old | {item: with_value(old[item], inner, value) if inner else KernelTime(s_per_element=Duration(value))}
    elif rest:
        new = with_value(old, rest, value)
    else:
        new = Duration(value) if isinstance(old, Duration) else value
    return replace(whole, **{attribute: new})


def value_of(whole: msgspec.Struct | Mapping[str, float], key: str) -> float:
    """Return the value under a key, as `with_value`, in SI units."""
    if isinstance(whole, Mapping):
        return whole[key]
    name, _, rest = key.partition(".")
    part = getattr(whole, _attribute(whole, name))
    item, _, inner = rest.partition(".")
    if isinstance(part, tuple):
        return value_of(next(point for point in part if point.nodes == int(item)), inner)
    if isinstance(part, dict):
        return value_of(part[item], inner) if inner else float(part[item].s_per_element)
    return value_of(part, rest) if rest else float(part)


def _attribute(whole: msgspec.Struct, name: str) -> str:
    """Return the attribute of a key in a file.

    Raises:
        KeyError: the struct has no such key.
    """
    # msgspec.structs.fields would evaluate every annotation anew, 25,000 times for the page of published values.
    return dict(zip(whole.__struct_encode_fields__, whole.__struct_fields__, strict=True))[name]
