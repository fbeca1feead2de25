"""Lay what was measured over another calibration, which gives all else with its own intervals."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from simnet.calibration.calibration_file import as_calibration
from simnet.cluster.hardware import Calibration
from simnet.cluster.network_costs import KEYS
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


@dataclass(frozen=True, kw_only=True)
class Base:
    """A calibration to lay a fit over: its name, its file form, and itself."""

    name: str
    table: Mapping[str, Any]
    calibration: Calibration


def read(name: str) -> Base:
    """Read a calibration by name or path.

    Raises:
        SimnetError: there is none, or something in it does not fit.
    """
    path = files.locate("calibrations", name)
    table = files.read("calibrations", name)
    return Base(name=name, table=table, calibration=build(Calibration, {"name": path.stem, **table}, files.label(path)))


def lay_over(measured: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measured values with the rest of another calibration; intervals of replaced values are dropped.

    A kernel, the host and whatever else is one fit is replaced as a whole, a link value by value.

    Args:
        measured: in file form.
        given: in file form.
    """
    replaced = replaced_keys(measured)
    found = {key: value for key, value in given.items() if key not in (*HEAD, *replaced)}
    for link in LINKS:
        if link in found:
            found[link] = {key: value for key, value in found[link].items() if f"{link}.{key}" not in replaced}
    for key, value in measured.items():
        is_joined = key in (*LINKS, "kernels") and isinstance(found.get(key), Mapping)
        found[key] = {**found[key], **value} if is_joined else value
    if "by_nodes" in found and "by_nodes" not in measured:
        found["by_nodes"] = _points_left(given["by_nodes"], replaced)
        if not found["by_nodes"]:
            del found["by_nodes"]
    if LIBRARIES in measured:
        found[LIBRARIES] = {**_libraries_left(given.get(LIBRARIES, {}), measured[LIBRARIES]), **measured[LIBRARIES]}
    kept = {key: factors for key, factors in given.get("intervals", {}).items() if not _is_part_of(key, replaced)}
    intervals = {**kept, **measured.get("intervals", {})}
    # The keys of the head stay where the file begins, and the intervals where it ends.
    head = {key: measured[key] for key in HEAD if key in measured and key != "intervals"}
    return head | {key: value for key, value in found.items() if key not in HEAD} | {"intervals": intervals}


def fitted_over(measured: Mapping[str, Any], base: Base) -> dict[str, Any]:
    """Return a fit over a base as a calibration whose head says which value is whose.

    Args:
        measured: the fit in file form, with its head.
        base: gives what was not measured.

    Raises:
        SimnetError: the result is no valid calibration.
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
        kept = [one.partition(".")[2] for one in rest if one.startswith(f"{link}.")]
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
    found = [f"not measured, from {base.name} ({base.calibration.kind}): {', '.join(rest)}"] if rest else []
    gpu = measured.get("gpu")
    if gpu and base.calibration.gpu and gpu != base.calibration.gpu and not _is_gpu_measured(measured):
        found.append(f"kernels are those of {base.calibration.gpu} ({base.name}); the files were measured on {gpu}")
    return tuple(found)


def values_left(measured: Mapping[str, Any], base: Base) -> tuple[str, ...]:
    """Return the dotted keys that a base gives: its values and ranges that the fit does not replace."""
    replaced = replaced_keys(measured)
    given = dict.fromkeys([*values_of(base.table), *base.table.get("intervals", {})])
    return tuple(key for key in given if not _is_part_of(key, replaced))


def replaced_keys(measured: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dotted keys of a base that a fit replaces."""
    points = measured.get("by_nodes", ())
    found = [*values_of(measured), *(KEYS[key].key for point in points for key in point if key in KEYS)]
    if any(f"{link}.efficiency" in found for link in LINKS):
        # What NCCL reached, and the all-reduce that explained it, belong to other links than those that were measured.
        found += [NCCL, ALL_REDUCE]
    return tuple(dict.fromkeys(found))


def values_of(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dotted keys of the values of a calibration, those of links and kernels one by one."""
    found: list[str] = []
    for key, value in table.items():
        if key in (*LINKS, "kernels", LIBRARIES) and isinstance(value, Mapping):
            found += [f"{key}.{name}" for name in value if name not in NOT_VALUES]
        elif key not in HEAD:
            found.append(key)
    return tuple(found)


def _points_left(points: Any, replaced: Collection[str]) -> list[dict[str, Any]]:
    """Return the points by nodes of a base without what was measured for all numbers of nodes."""
    names = {key.removeprefix("inter_node.") for key in replaced}
    found = []
    for point in points if isinstance(points, list) else ():
        left = {key: value for key, value in point.items() if key not in names}
        left["intervals"] = {key: one for key, one in point.get("intervals", {}).items() if key not in names}
        if set(left) - {"nodes", "intervals", "source"}:
            found.append(left)
    return found


def _libraries_left(libraries: Any, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the libraries of a base for the strategies that the measured ones do not carry."""
    carried = {strategy for one in measured.values() for strategy in one["carries"]}
    left = {
        name: {**one, "carries": [strategy for strategy in one["carries"] if strategy not in carried]}
        for name, one in libraries.items()
        if name not in measured
    }
    return {name: one for name, one in left.items() if one["carries"]}


def _is_part_of(key: str, keys: Collection[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def _is_gpu_measured(measured: Mapping[str, Any]) -> bool:
    return any(key in measured for key in OF_A_GPU)


def _least_sure(kind: str, other: str) -> str:
    # Neutral values are no measurement either: with some of them the whole is an estimate.
    worst = max(kind, other, key=LESS_SURE.index)
    return "estimate" if worst == "ideal" else worst
