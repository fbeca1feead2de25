"""Lay what was measured over another calibration, which gives all else with its own intervals.

Bandwidths between nodes that were measured on some numbers of nodes say nothing of others. There the base's stay, moved
as far as the measured ones are from it: m of them tell m / (m + 1) of their mean move, as if the base were one more.
Beyond the largest measured number there is one of these points at least. On the rows of 1-bit Adam's Table 1, with its
Fig 5a as the base, 8 to 64 GPUs are predicted from two nodes within 31 % in place of 48 %, from two and four nodes
within 21 % in place of 16 % (tests/validation/test_moved_points.py).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from simnet.calibration.calibration_file import as_calibration
from simnet.cluster.hardware import Calibration
from simnet.cluster.network_costs import KEYS, Cost, NodesPoint, costs_at, fraction_at
from simnet.core import files
from simnet.core.schema import build

LINKS = ("intra_node", "inter_node")
NCCL, ALL_REDUCE, LIBRARIES = "nccl", "all_reduce", "libraries"
HEAD = ("name", "title", "kind", "gpu", "source", "fitted_to", "intervals")
"""Keys that say what a calibration is; the others are its values."""
OF_A_GPU = ("kernels", "memory_bandwidth", "codec_efficiency", "kernel_launch")
"""Values that belong to a GPU."""
LESS_SURE = ("measured", "published", "derived", "estimate", "ideal")
"""Kinds of a calibration, the surest first."""
NOT_VALUES = ("source", "measured_on")
FROM_DAY_TO_DAY = ((8, 1.25), (math.inf, 1.03))
"""How far the bandwidth of one fabric may be from what it was on another day, either way, up to so many nodes: 1-bit
Adam's Table 1 and Fig 5a, of one cluster."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A calibration to lay a fit over: its name, its file form, and itself."""

    name: str
    table: Mapping[str, Any]
    calibration: Calibration


def read(name: str) -> Base:
    """Read a calibration by name or path."""
    path = files.locate("calibrations", name)
    table = files.read("calibrations", name)
    return Base(name=name, table=table, calibration=build(Calibration, {"name": path.stem, **table}, files.label(path)))


def lay_over(measured: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measured values with the rest of another calibration; intervals of replaced values are dropped.

    A kernel, the host and whatever else is one fit is replaced as a whole, a link value by value.
    """
    replaced = replaced_keys(measured)
    merged = {key: value for key, value in base.items() if key not in (*HEAD, *replaced)}
    for link in LINKS:
        if link in merged:
            merged[link] = {key: value for key, value in merged[link].items() if f"{link}.{key}" not in replaced}
    for key, value in measured.items():
        # Kernels and values of a link are measured one by one: what was not measured stays beside them.
        is_joined = key in (*LINKS, "kernels") and isinstance(merged.get(key), Mapping)
        merged[key] = {**merged[key], **value} if is_joined else value
    if "by_nodes" in measured:
        points = [*measured["by_nodes"], *moved_points(measured, base)]
        merged["by_nodes"] = sorted(points, key=lambda point: point["nodes"])
    elif "by_nodes" in merged:
        merged["by_nodes"] = _points_left(base["by_nodes"], replaced)
        if not merged["by_nodes"]:
            del merged["by_nodes"]
    if LIBRARIES in measured:
        merged[LIBRARIES] = {**_libraries_left(base.get(LIBRARIES, {}), measured[LIBRARIES]), **measured[LIBRARIES]}
    kept = {key: factors for key, factors in base.get("intervals", {}).items() if not _is_part_of(key, replaced)}
    intervals = {**kept, **measured.get("intervals", {})}
    # The keys of the head stay where the file begins, and the intervals where it ends.
    head = {key: measured[key] for key in HEAD if key in measured and key != "intervals"}
    return head | {key: value for key, value in merged.items() if key not in HEAD} | {"intervals": intervals}


def moved_points(measured: Mapping[str, Any], over: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bandwidths by nodes of a base on other numbers of nodes than the measured ones, moved with these.

    There are none where the base's go with another all-reduce, whose bytes are others, and none beside logs of
    nccl-tests, whose costs hold for every number of nodes.
    """
    base, fitted = (_bandwidths(table.get("by_nodes", ())) for table in (over, measured))
    if not base or not fitted or NCCL in measured or measured.get(ALL_REDUCE) != over.get(ALL_REDUCE):
        return []
    # The base counts as one measurement more: of one point half of its move is believed.
    part = len(fitted) / (len(fitted) + 1)
    factor = math.exp(part * fmean(_move(point, _bandwidth_at(base, point.nodes).value) for point in fitted))
    numbers = {point.nodes for point in base} - {point.nodes for point in fitted}
    largest = max(point.nodes for point in fitted)
    if not any(nodes > largest for nodes in numbers):
        numbers.add(2 * largest)
    return [_moved(_bandwidth_at(base, nodes), nodes, factor) for nodes in sorted(numbers)]


def _bandwidths(points: Any) -> list[NodesPoint]:
    points_of_nodes = [build(NodesPoint, dict(point), "by_nodes") for point in points if isinstance(point, Mapping)]
    return [point for point in points_of_nodes if point.efficiency is not None]


def _bandwidth_at(points: Sequence[NodesPoint], num_nodes: int) -> Cost:
    return next(cost for cost in costs_at(points, num_nodes) if cost.key == "efficiency")


def _move(point: NodesPoint, of_base: object) -> float:
    """Return the mean logarithm of a measured bandwidth over another, at the sizes of sends that either has."""
    curves = [curve for curve in (point.efficiency, of_base) if isinstance(curve, tuple)]
    # Two plain numbers have no sizes of their own: any one compares them.
    sizes = {float(size) for curve in curves for size, _ in curve} or {1.0}
    return fmean(math.log(fraction_at(point.efficiency, size) / fraction_at(of_base, size)) for size in sizes)


def _moved(cost: Cost, num_nodes: int, factor: float) -> dict[str, Any]:
    day = next(day for most, day in FROM_DAY_TO_DAY if num_nodes <= most)
    # The base was measured on another day: its own doubt and that from day to day add up in squares.
    widths = [math.hypot(math.log(end), math.log(day)) for end in cost.interval or (1.0, 1.0)]
    curve = cost.value if isinstance(cost.value, tuple) else ((None, cost.value),)
    # A calibration holds fractions: a rate above the nominal one counts as 1.
    points = [(size, min(float(f"{float(value) * factor:.4g}"), 1.0)) for size, value in curve]
    return {
        "nodes": num_nodes,
        "efficiency": [[size.text(), value] for size, value in points] if len(points) > 1 else points[0][1],
        "intervals": {"efficiency": [round(math.exp(-widths[0]), 4), round(math.exp(widths[1]), 4)]},
        "source": f"of the base, times {factor:.4g}",
    }


def fitted_over(measured: Mapping[str, Any], base: Base) -> dict[str, Any]:
    """Return a fit over a base as a calibration whose head says which value is whose.

    Args:
        measured: the fit in file form, with its head.
        base: gives what was not measured.
    """
    whole = lay_over(measured, base.table)
    rest = values_left(measured, base)
    if not rest:
        return whole
    whole["title"] = f"{measured['title']}, all else as {base.name}"
    whole["kind"] = _least_sure(str(measured["kind"]), base.calibration.kind)
    whole["source"] = (
        f"{measured['source']}: {', '.join(values_of(measured))}. Not measured, from {base.name} "
        f"({base.calibration.kind}) with its intervals: {', '.join(rest)}. {base.name}: {base.calibration.source}"
    )
    for link in LINKS:
        kept = [key.partition(".")[2] for key in rest if key.startswith(f"{link}.")]
        if kept and link in measured:
            whole[link]["source"] = f"{measured[link].get('source', '')}; {', '.join(kept)}: {base.name}".lstrip("; ")
    if not _is_gpu_measured(measured) and base.calibration.gpu:
        whole["gpu"] = base.calibration.gpu
    if base.calibration.fitted_to:
        whole["fitted_to"] = [*measured.get("fitted_to", []), *base.table["fitted_to"]]
    as_calibration(whole)
    return whole


def notes(measured: Mapping[str, Any], base: Base | None) -> tuple[str, ...]:
    """Return what a reader must know of the values that were not measured."""
    if base is None:
        if any(key in measured for key in OF_A_GPU):
            return ()
        near = "v100_tcp_estimate" if "V100" in str(measured.get("gpu", "")) else "a100_tcp_estimate"
        return (
            "no kernel was measured: encode and decode cost nothing with this calibration, so that speedups come out "
            f"too large; lay it over an estimate with --base, such as --base {near}",
        )
    rest = values_left(measured, base)
    sentences = [f"not measured, from {base.name} ({base.calibration.kind}): {', '.join(rest)}"] if rest else []
    if kept := moved_points(measured, base.table):
        numbers = ", ".join(str(point["nodes"]) for point in kept)
        sentences.append(
            f"bandwidths on {numbers} nodes are those of {base.name}, {kept[0]['source'].partition(', ')[2]}"
        )
    gpu = measured.get("gpu")
    if gpu and base.calibration.gpu and gpu != base.calibration.gpu and not _is_gpu_measured(measured):
        sentences.append(f"kernels are those of {base.calibration.gpu} ({base.name}); the files were measured on {gpu}")
    return tuple(sentences)


def values_left(measured: Mapping[str, Any], base: Base) -> tuple[str, ...]:
    """Return the dotted keys that a base gives: its values and ranges that the fit does not replace."""
    replaced = replaced_keys(measured)
    base_keys = dict.fromkeys([*values_of(base.table), *base.table.get("intervals", {})])
    return tuple(key for key in base_keys if not _is_part_of(key, replaced))


def replaced_keys(measured: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dotted keys of a base that a fit replaces."""
    points = measured.get("by_nodes", ())
    keys = [*values_of(measured), *(KEYS[key].key for point in points for key in point if key in KEYS)]
    if any(f"{link}.efficiency" in keys for link in LINKS):
        # What NCCL reached, and the all-reduce that explained it, belong to other links than those that were measured.
        keys += [NCCL, ALL_REDUCE]
    return tuple(dict.fromkeys(keys))


def values_of(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dotted keys of the values of a calibration, those of links and kernels one by one."""
    keys: list[str] = []
    for key, value in table.items():
        if key in (*LINKS, "kernels", LIBRARIES) and isinstance(value, Mapping):
            keys += [f"{key}.{name}" for name in value if name not in NOT_VALUES]
        elif key not in HEAD:
            keys.append(key)
    return tuple(keys)


def _points_left(points: Any, replaced: Collection[str]) -> list[dict[str, Any]]:
    """Return the points by nodes of a base without what was measured for all numbers of nodes."""
    names = {key.removeprefix("inter_node.") for key in replaced}
    kept_points = []
    for point in points if isinstance(points, list) else ():
        left = {key: value for key, value in point.items() if key not in names}
        left["intervals"] = {key: factors for key, factors in point.get("intervals", {}).items() if key not in names}
        if set(left) - {"nodes", "intervals", "source"}:
            kept_points.append(left)
    return kept_points


def _libraries_left(libraries: Any, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the libraries of a base for the strategies that the measured ones do not carry."""
    carried = {strategy for library in measured.values() for strategy in library["carries"]}
    left = {
        name: {**library, "carries": [strategy for strategy in library["carries"] if strategy not in carried]}
        for name, library in libraries.items()
        if name not in measured
    }
    return {name: library for name, library in left.items() if library["carries"]}


def _is_part_of(key: str, keys: Collection[str]) -> bool:
    return any(key == whole or key.startswith(f"{whole}.") for whole in keys)


def _is_gpu_measured(measured: Mapping[str, Any]) -> bool:
    return any(key in measured for key in OF_A_GPU)


def _least_sure(kind: str, other: str) -> str:
    # Neutral values are no measurement either: with some of them the whole is an estimate.
    worst = max(kind, other, key=LESS_SURE.index)
    return "estimate" if worst == "ideal" else worst
