"""Write fitted variation as faults of a scenario, checked before they are written."""

import textwrap
from collections.abc import Iterator, Mapping

import simnet.cluster.faults  # noqa: F401 - makes them known
from simnet.calibration.variation_fit import FittedVariation
from simnet.cluster.hardware import Cluster
from simnet.core.schema import build
from simnet.core.units import format_seconds

_WIDTH = 118
# Any will do: no fitted fault looks at links.
_LINK = {"bandwidth": "1 Gbit/s", "latency": "0 s"}


def text(found: FittedVariation) -> str:
    """Return the faults as TOML to put into a scenario, below some lines of comment.

    Raises:
        SimnetError: a fault is none that a scenario takes.
    """
    import tomli_w

    _check(found)
    tables = []
    for fault in found.faults:
        plain = {key: value for key, value in fault.items() if key != "samples"}
        tables.append("\n".join(["[[cluster.faults]]", tomli_w.dumps(plain).rstrip("\n"), *_samples(fault)]))
    return "\n\n".join(["\n".join(_comments(found)), *tables]) + "\n"


def _check(found: FittedVariation) -> None:
    nodes = len(found.ranks) // found.ranks_per_node
    shape = {"num_nodes": nodes, "ranks_per_node": found.ranks_per_node, "intra_node": _LINK, "inter_node": _LINK}
    build(Cluster, {"name": "fitted", **shape, "faults": [dict(fault) for fault in found.faults]}, "the fitted faults")


def _samples(fault: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of measured factors, many to a line."""
    samples = fault.get("samples")
    if isinstance(samples, list):
        yield "samples = ["
        numbers = f"{', '.join(f'{one:g}' for one in samples)},"
        yield textwrap.fill(numbers, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        yield "]"


def _comments(found: FittedVariation) -> list[str]:
    # A line break in a name would end the comment: what does not print becomes "?".
    where = "".join(one if one.isprintable() else "?" for one in found.where)
    return [
        f"# Fitted by simnet calibrate --variation to {where}: {len(found.ranks)} ranks, {found.num_steps} steps",
        f"# Mean compute of a step on ranks that are not slow: {format_seconds(found.compute_s)}",
        *(() if found.faults else ("# Nothing was found: no rank is slow, none pauses, and compute hardly varies",)),
    ]
