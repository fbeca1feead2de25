"""Read a sweep's results and check that they are whole."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from simnet import files, schema
from simnet.errors import SimnetError
from simnet.parsing import parse_json
from simnet.result import Breakdown
from simnet.show.metrics import nic_gbit_per_s, part_name
from simnet.show.text import called_apart, printable, value_text

FORMAT = 1
RESULTS_NAME = "results.json"
# What the figures and matrices have an axis for; every other swept key makes panels.
WORKLOAD_KEYS = ("workload", "workload.name")
BANDWIDTH_KEYS = ("cluster.inter_node.bandwidth", "cluster.nics_per_node")
NODES_KEYS = ("cluster.num_nodes",)
# The widest range of numbers that axes can be drawn for.
SMALLEST, LARGEST = 1e-30, 1e30
Positive = Annotated[float, Meta(ge=SMALLEST, le=LARGEST)]
MAX_NODES = 10**9
_REPAIR = "name the results.json of a sweep, or its folder"
MAX_DEPTH = 50
ROUNDING = 1e-9


class Metrics(Struct, frozen=True, kw_only=True):
    """What one strategy takes, as `metrics.to_object` writes it."""

    strategy: str
    iteration_s: Positive
    samples_per_s: Positive
    breakdown: Breakdown
    total_s: Positive | None = None

    def __post_init__(self) -> None:
        """Check that the parts of the iteration can be stacked."""
        for key in self.breakdown.__struct_fields__:
            part_s = getattr(self.breakdown, key)
            if not -ROUNDING * self.iteration_s <= part_s <= 1e30:
                raise ValueError(f"breakdown: {key} {part_s!r}: must be a time of zero or more")


class _Link(Struct):
    bandwidth: str


class _Cluster(Struct):
    num_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    inter_node: _Link
    nics_per_node: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 1


class _Part(Struct):
    name: str = ""
    title: str = ""
    kind: str = ""


class _Scenario(Struct):
    """What the reports read of a resolved scenario."""

    cluster: _Cluster
    workload: _Part = msgspec.field(default_factory=_Part)
    calibration: _Part = msgspec.field(default_factory=_Part)
    strategy: dict[str, Any] = {}
    baseline: dict[str, Any] | None = None
    name: str = ""


class Point(Metrics, frozen=True, kw_only=True):
    """One simulated point of a sweep: what was set, and what came out."""

    set: dict[str, Any]
    scenario: dict[str, Any]
    world_size: Annotated[int, Meta(ge=1, le=10**12)]
    fidelity: str = ""
    version: str = ""
    notes: list[str] = []
    baseline: Metrics | None = None
    speedup: Positive | None = None
    intervals: dict[str, tuple[Positive, Positive]] = {}

    def __post_init__(self) -> None:
        """Check that what the reports ask for is there."""
        super().__post_init__()
        try:
            schema.convert(_Scenario, self.scenario, "scenario")
            rate = self.nic_gbit_per_s
        except (SimnetError, ValueError) as error:
            raise ValueError(str(error).replace(": ", ".", 1)) from error
        if not SMALLEST <= rate <= LARGEST:
            raise ValueError(f"scenario.cluster: {rate} Gbit/s a node: must be at least {SMALLEST}, at most {LARGEST}")
        if self.world_size < self.num_nodes:
            raise ValueError(f"world_size: {self.world_size}: must be at least the number of nodes, {self.num_nodes}")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.scenario["cluster"]["num_nodes"])

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks, one GPU each, of a node."""
        return self.world_size // self.num_nodes

    @property
    def nic_gbit_per_s(self) -> float:
        """Nominal rate of all NICs of a node together [Gbit/s]."""
        return nic_gbit_per_s(self.scenario["cluster"])

    @property
    def workload(self) -> str:
        """Name of the workload for people: its title, or else its name."""
        return self.scenario.get("workload", {}).get("title") or part_name(self.scenario, "workload")

    @property
    def calibration(self) -> str:
        """Name of the calibration with the kind of its numbers, such as "a100_2023 (estimate)"."""
        kind = self.scenario.get("calibration", {}).get("kind", "ideal")
        return f"{part_name(self.scenario, 'calibration')} ({kind})"

    @property
    def panel(self) -> str:
        """The workload and everything else that the sweep set, apart from nodes and bandwidth."""
        drawn = (*WORKLOAD_KEYS, *BANDWIDTH_KEYS, *NODES_KEYS)
        others = [
            f"{key.rpartition('.')[2]} {value_text(value)}" for key, value in self.set.items() if key not in drawn
        ]
        return ", ".join([self.workload, *others])


class Axis(Struct, frozen=True, kw_only=True):
    """One swept key with its values."""

    key: str
    values: list[Any]


class Document(Struct, frozen=True, kw_only=True):
    """A whole sweep."""

    format: int
    name: str = ""
    question: str = ""
    axes: list[Axis]
    points: list[Point]

    @property
    def varied(self) -> list[str]:
        """The swept keys that have more than one value in these points."""
        keys = dict.fromkeys(key for point in self.points for key in point.set)
        return [key for key in keys if len({repr(point.set.get(key)) for point in self.points}) > 1]

    @property
    def panels(self) -> dict[str, list[Point]]:
        """The points by panel, in file order."""
        panels: dict[str, list[Point]] = {}
        for point in self.points:
            panels.setdefault(point.panel, []).append(point)
        return panels


def names(points: Sequence[Point]) -> list[str]:
    """Return what to call the strategy of these points, and the baseline if there is one, so that they differ."""
    kinds = {point.strategy for point in points}
    strategy = next(iter(kinds)) if len(kinds) == 1 else "strategy"
    baselines = {point.baseline.strategy for point in points if point.baseline is not None}
    if not baselines:
        return [strategy]
    baseline = next(iter(baselines)) if len(baselines) == 1 else "baseline"
    if strategy != baseline:
        return [strategy, baseline]
    pairs = {_told_apart(point) for point in points}
    return list(next(iter(pairs))) if len(pairs) == 1 else ["strategy", "baseline"]


def _told_apart(point: Point) -> tuple[str, str]:
    scenario = point.scenario
    return called_apart(point.strategy, scenario.get("strategy", {}), scenario.get("baseline") or {})


def same_times(one: Metrics, other: Metrics) -> bool:
    """Tell whether two results have the same iteration time, and their baselines, but for rounding."""
    first, second = getattr(one, "baseline", None), getattr(other, "baseline", None)
    alike = first is second or (first is not None and second is not None and same_times(first, second))
    return alike and math.isclose(one.iteration_s, other.iteration_s, rel_tol=1e-9)


def read_document(results: Path) -> Document:
    """Read the results of a sweep.

    Args:
        results: The file, or the folder in which a sweep has left its `results.json`.

    Raises:
        SimnetError: there is no such file, or it is damaged, empty, or of another format.
    """
    return to_document(read_raw(results), where=str(results))


def read_raw(results: Path) -> Any:
    """Read the JSON of a sweep's results without a look at what it says.

    Raises:
        SimnetError: there is no such file, or it is damaged or empty.
    """
    path = results
    try:
        path = results / RESULTS_NAME if results.is_dir() else results
        text = files.read_bytes(path)
    except OSError as error:
        raise SimnetError(f"{path}: cannot be read: {error.strerror}: {_REPAIR}") from error
    except SimnetError as error:
        raise SimnetError(f"{error}: {_REPAIR}") from error
    if not text.strip():
        raise SimnetError(f"{path}: is empty: run the sweep again")
    return parse_json(text, str(path))


def to_document(raw: object, *, where: str = "results") -> Document:
    """Check a sweep document.

    Raises:
        SimnetError: it is of another format, has no points, or lacks what the reports need.
    """
    if not isinstance(raw, dict) or "format" not in raw:
        raise SimnetError(f"{where}: no 'format' key: these are not the results of 'simnet sweep'")
    if raw["format"] != FORMAT:
        raise SimnetError(
            f"{where}: format {raw['format']!r}: this version reads format {FORMAT}; run the sweep again with it"
        )
    if raw.get("points") == []:
        raise SimnetError(f"{where}: points: []: no point was simulated; run the sweep again")
    try:
        return schema.convert(Document, _printable(raw), where)
    except SimnetError as error:
        raise SimnetError(f"{error}: is damaged: run the sweep again") from error
    except ValueError as error:
        raise SimnetError(f"{where}: is damaged ({error}): run the sweep again") from error


def _printable(value: object, depth: int = 0) -> object:
    """Return JSON with all its texts fit for a terminal and a figure.

    Raises:
        ValueError: it is nested deeper than any results are.
    """
    if isinstance(value, str):
        return printable(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {printable(key): _printable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item, depth + 1) for item in value]
    return value
