"""Names of the points of a sweep, of their parts and of their strategies, for people."""

from collections.abc import Iterable, Sequence
from typing import Any

from simnet.collectives.algorithms import ANY, AUTO, NCCL, default_name
from simnet.core.units import Bandwidth, Duration, Quantity, Size
from simnet.engine.result import PointResult, RunResult, StrategyResult, SweepResult
from simnet.engine.scenario import Scenario, to_dict
from simnet.report.text import (
    bandwidth_text,
    calibration_title,
    key_text,
    nodes_text,
    printable,
    speedup_text,
    value_text,
    workload_title,
)
from simnet.strategies import AnyStrategy, DenseAllReduce

# What the figures and matrices have an axis for; every other swept key makes panels.
WORKLOAD_KEYS = ("workload", "workload.name")
BANDWIDTH_KEYS = ("cluster.inter_node.bandwidth", "cluster.nics_per_node")
NODES_KEYS = ("cluster.num_nodes",)
# Keys whose values need no name: "BERT-Base" is a workload.
PART_KEYS = ("cluster", "calibration", "strategy", "baseline")
# Beyond this, matplotlib cannot draw an axis.
MOST = 1e30
MOST_ALTERNATIVES = 3
# Names of strategy and baseline where no name fits all points.
ROLES = ("strategy", "baseline")
# Of algorithms whose name says little.
IN_WORDS = {NCCL: "NCCL's choice", AUTO: "NCCL's fastest", ANY: "the fastest of all"}
QUANTITIES: tuple[type[Quantity], ...] = (Bandwidth, Size, Duration)
Panels = dict[str, list[PointResult]]


def workload_name(point: RunResult) -> str:
    """Return the workload's title, or else its name, or else its size."""
    return printable(point.scenario.workload.title or workload_title(point.scenario))


def calibration_name(point: RunResult) -> str:
    """Return the name of the calibration with the kind of its numbers, such as "a100_2023 (estimate)"."""
    return printable(f"{calibration_title(point.scenario)} ({point.scenario.calibration.kind})")


def sides(result: RunResult) -> list[StrategyResult]:
    """Return the result of the strategy and, if there is one, that of the baseline."""
    return [result.result, *([result.baseline] if result.baseline is not None else [])]


def varies(result: RunResult) -> bool:
    """Return whether iterations of a side differ."""
    return any(side.varies for side in sides(result))


def panels(points: Iterable[PointResult]) -> Panels:
    """Return the points by workload and everything else that the sweep set, apart from nodes and bandwidth."""
    by_label: Panels = {}
    for point in points:
        by_label.setdefault(_panel(point), []).append(point)
    return by_label


def _panel(point: PointResult) -> str:
    drawn = (*WORKLOAD_KEYS, *BANDWIDTH_KEYS, *NODES_KEYS)
    others = [f"{short_key(point, key)} {value_text(value)}" for key, value in point.set.items() if key not in drawn]
    return printable(", ".join([workload_name(point), *others]))


def short_key(point: PointResult, key: str) -> str:
    """Return the last part of a dotted key, or all of it where another swept key ends alike."""
    last = key.rpartition(".")[2]
    return key if any(other != key and other.rpartition(".")[2] == last for other in point.set) else last


def names(points: Sequence[RunResult]) -> list[str]:
    """Return a name for the strategy of these points and, if there is one, for what it is compared with."""
    strategy = _only((point.result.strategy for point in points), ROLES[0])
    if tuned := tuned_title(points):
        return [strategy, tuned]
    baselines = [point.baseline.strategy for point in points if point.baseline is not None]
    if not baselines:
        return [strategy]
    baseline = _only(baselines, ROLES[1])
    if strategy != baseline:
        return [strategy, baseline]
    settings = {(point.scenario.strategy, point.scenario.baseline) for point in points}
    pairs = {_called_apart(strategy, to_dict(first), to_dict(second) if second else {}) for first, second in settings}
    return list(next(iter(pairs))) if len(pairs) == 1 else list(ROLES)


def tuned_title(points: Sequence[RunResult]) -> str:
    """Return what people call the tuned references of points, such as "tuned DDP"; "" where one of them has none."""
    known = [point.references for point in points if point.references is not None and point.baseline is not None]
    if not known or len(known) < len(points):
        return ""
    titles_ = {references.strategy.title for references in known}
    return f"tuned {titles_.pop()}" if len(titles_) == 1 else "the tuned reference"


def titles(points: Sequence[RunResult]) -> list[str]:
    """Return what figures call a strategy and what it is compared with: "BinSGDM" and "tuned DDP".

    As `names`, where the points have several strategies or baselines, or where the words would be the same.
    """
    called = names(points)
    tuned = tuned_title(points)
    pairs = [(point.scenario, (point.scenario.strategy, point.scenario.baseline)) for point in points]
    words = [
        name
        if name in {*ROLES, tuned}
        else _joined(_words(scenario, pair[role] or scenario.strategy) for scenario, pair in pairs)
        for role, name in enumerate(called)
    ]
    return words if len(set(words)) == len(words) else called


def _words(scenario: Scenario, strategy: AnyStrategy) -> tuple[str, ...]:
    """Return a strategy in words: its title, and of DDP what an all-reduce sends and by which algorithm."""
    if not isinstance(strategy, DenseAllReduce):
        return (strategy.title,)
    calibration, num_nodes = scenario.calibration, scenario.cluster.num_nodes
    algorithm = strategy.algorithm or default_name(calibration.nccl, num_nodes, fitted_with=calibration.all_reduce)
    return strategy.title, strategy.wire_dtype or scenario.workload.dtype, IN_WORDS.get(algorithm, algorithm)


def _joined(words: Iterable[tuple[str, ...]]) -> str:
    """Return the words of several points as one name: "DDP (fp32, nccl or ring)"."""
    title, *details = map(_alternatives, zip(*words, strict=True))
    return printable(f"{title} ({', '.join(details)})" if details else title)


def _alternatives(texts: Iterable[str]) -> str:
    known = list(dict.fromkeys(texts))
    return " or ".join(known) if len(known) <= MOST_ALTERNATIVES else f"{len(known)} kinds"


def _only(texts: Iterable[str], other: str) -> str:
    """Return the text if all are the same, and else the other."""
    kinds = set(texts)
    return printable(kinds.pop()) if len(kinds) == 1 else other


def _called_apart(kind: str, strategy: dict[str, Any], baseline: dict[str, Any]) -> tuple[str, str]:
    """Return names for strategy and baseline of one kind: the kind with the settings in which they differ."""
    keys = [key for key in {**strategy, **baseline} if strategy.get(key) != baseline.get(key)]
    first, second = (
        ", ".join([kind, *(f"{key} {value_text(settings[key])}" for key in keys if key in settings)])
        for settings in (strategy, baseline)
    )
    return (first, second) if first != second else ROLES


def main_key(sweep: SweepResult) -> str:
    """Return the key to draw along: the last one that varies and has numbers as values, or else the last one."""
    numeric = [key for key in sweep.varied if numbers(sweep.points, key) is not None]
    return (numeric or sweep.varied)[-1]


def numbers(points: Sequence[PointResult], key: str) -> list[float] | None:
    """Return the value of a key at each point, as SI numbers; None if a value is no number."""
    values: list[Any] = [point.set.get(key) for point in points]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values] if all(abs(value) <= MOST for value in values) else None
    for quantity in QUANTITIES:
        try:
            return [quantity.parse(value) for value in values]
        except ValueError:
            continue
    return None


def value_label(point: PointResult, key: str) -> str:
    """Return the value of a key at a point, for people."""
    value: Any = point.set.get(key)
    if key not in WORKLOAD_KEYS:
        return value_text(value)
    changes = {name: changed for name, changed in value.items() if name != "use"} if isinstance(value, dict) else {}
    return ", ".join(filter(None, [workload_name(point), value_text(changes)]))


def label(point: PointResult, keys: Sequence[str]) -> str:
    """Return the values of several keys at a point, each with the name of its key unless the value is a name itself."""
    named = (*WORKLOAD_KEYS, *PART_KEYS)
    return ", ".join(
        value_label(point, key) if key in named else f"{key_text(key)} {value_label(point, key)}" for key in keys
    )


def grouped(points: Sequence[PointResult], keys: Sequence[str]) -> Panels:
    """Return the points by what these keys are set to, in file order."""
    groups: Panels = {}
    for point in points:
        groups.setdefault(label(point, keys), []).append(point)
    return groups


def context(points: Sequence[PointResult]) -> str:
    """Return the workload and the network, each if all points share it."""
    workloads = {workload_name(point) for point in points}
    networks = {f"{nodes_text(point.num_nodes)} at {bandwidth_text(point.nic_gbit_per_s)}" for point in points}
    return ", ".join(next(iter(texts)) for texts in (workloads, networks) if len(texts) == 1)


def against_flat(points: Sequence[RunResult]) -> str:
    """Return the least and the largest speedup over flat DDP, in a sentence; "" where it is not known or does not fit.

    The name of the tuned reference stands beside it, where it is the same at all points.
    """
    values = [value for point in points if (value := point.speedup_over_flat) is not None]
    known = [point.references for point in points if point.references is not None]
    if len(values) < len(points) or not known:
        return ""
    between = " to ".join(dict.fromkeys(map(speedup_text, (min(values), max(values)))))
    tuned = {references.tuned for references in known}
    what = f" Compared with {printable(tuned.pop())}." if len(tuned) == 1 else ""
    return f"Over {printable(known[0].flat)}: {between}.{what}"
