"""What people read of a result: its numbers, and the names of its points, of their parts and their strategies."""

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simnet.cluster.hardware import INLINE
from simnet.collectives.algorithms import ANY, AUTO, NCCL, default_name
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration, Quantity, Size
from simnet.engine.result import PointResult, RunResult, StrategyResult, SweepResult
from simnet.engine.scenario import Scenario, to_dict
from simnet.strategies import AnyStrategy, DenseAllReduce

if TYPE_CHECKING:
    from simnet.workload.workload import Workload


WIDTH = 100
DAY_S = 86_400.0
SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
MAX_NOTE, GIST_WORDS = 200, 4
"""Characters of a note of many points; first words by which notes are of one kind."""
IN_FULL = "notes in full: the column 'notes' of simnet sweep --format csv, or simnet simulate at one point"
KEY_WORDS = {
    "cluster.num_nodes": "nodes",
    "cluster.nics_per_node": "NICs of a node",
    "cluster.ranks_per_node": "GPUs of a node",
    "cluster.inter_node.bandwidth": "NIC bandwidth",
    "cluster.inter_node.latency": "latency between nodes",
    "cluster.intra_node.bandwidth": "bandwidth inside a node",
    "cluster.intra_node.latency": "latency inside a node",
    "run.grad_accumulation": "micro-batches of a step",
}
"""Keys in figures, whose last word says too little."""


def part_title(name: str, otherwise: str) -> str:
    """Return the name of a part, or something else if it was written without one."""
    return name if name != INLINE else "unnamed" if otherwise == INLINE else otherwise


def workload_title(scenario: "Scenario") -> str:
    """Return a name for the workload of a scenario: its name, or else its title, or else its size."""
    workload = scenario.workload
    return part_title(workload.name, workload.title or size_title(workload))


def calibration_title(scenario: "Scenario") -> str:
    """Return a name for the calibration of a scenario."""
    return part_title(scenario.calibration.name, scenario.name)


def size_title(workload: "Workload") -> str:
    """Return what a model without a name is called: "110 M parameters"."""
    from simnet.workload import training_step

    try:
        count = training_step.num_elements(workload)
    except SimnetError:  # a file of gradients that is elsewhere, as results are read
        return "unnamed model"
    return f"{short_text(count)} parameters" if count >= SIZES[-1][0] else count_text(round(count), "parameter")


def short_text(number: float) -> str:
    """Return a number of at least 1 with three digits and a letter: "2.70 B", "110 M"."""
    size, letter = next((step for step in SIZES if number >= step[0]), (1.0, ""))
    return f"{_three_digits(number / size)} {letter}".rstrip()


def _three_digits(number: float) -> str:
    """Return a number of at least 1 with three digits, or with all those before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def throughput_text(samples_per_s: float) -> str:
    """Return a throughput: "13,760 samples/s"."""
    number = f"{samples_per_s:,.0f}" if samples_per_s >= 1000 else f"{samples_per_s:.4g}"
    return f"{number} samples/s"


def tokens_text(samples_per_s: float, tokens_per_sample: int) -> str:
    """Return a throughput in tokens: "1.76 M tokens/s, 152 B a day"."""
    tokens_per_s = samples_per_s * tokens_per_sample
    return f"{short_text(tokens_per_s)} tokens/s, {short_text(tokens_per_s * DAY_S)} a day"


def bandwidth_text(gbit_per_s: float) -> str:
    """Return a NIC's rate: "25 Gbit/s"."""
    return f"{gbit_per_s:g} Gbit/s"


def nics_text(result: "RunResult") -> str:
    """Return the NICs of a node: "25 Gbit/s", or "2 x 200 Gbit/s" where it has several."""
    count = result.scenario.cluster.nics_per_node
    rate = bandwidth_text(float(f"{result.nic_gbit_per_s / count:.6g}"))
    return rate if count == 1 else f"{count} x {rate}"


def rate_label(points: "Iterable[RunResult]") -> str:
    """Return what an axis of bandwidths of nodes is called, which several NICs may make up."""
    has_one = all(point.scenario.cluster.nics_per_node == 1 for point in points)
    return "NIC bandwidth [Gbit/s]" if has_one else "bandwidth of all NICs of a node [Gbit/s]"


def printable(text: str) -> str:
    """Return text on one line without characters that steer a terminal: spaces and question marks in their place."""
    if text.isprintable():
        return text
    return "".join(
        " " if character.isspace() else "?" if unicodedata.category(character).startswith("C") else character
        for character in text
    )


def clipped(text: str, characters: int) -> str:
    """Return text cut to a number of characters, which then ends in dots."""
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: "1 rank", "8 ranks"."""
    return f"{count} {noun if count == 1 else f'{noun}s'}"


def gpus_text(*counts: int) -> str:
    """Return different counts of GPUs: "8 GPUs", "4/8 GPUs"."""
    return f"{'/'.join(map(str, sorted(set(counts))))} {'GPU' if set(counts) == {1} else 'GPUs'}"


def key_text(key: str) -> str:
    """Return a dotted key as the axis of a figure calls it: "nodes", "batch per rank"."""
    return KEY_WORDS.get(key) or printable(key.rpartition(".")[2].replace("_", " "))


def hanging(label: str, text: str) -> list[str]:
    """Wrap text under a label, its further lines indented to where the text begins."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False
    ) or [label]


def nodes_text(*counts: int) -> str:
    """Return counts of nodes: "1 node", or "1, 2 and 4 nodes"."""
    *others, last = (str(count) for count in counts)
    joined = f"{', '.join(others)} and {last}" if others else last
    return f"{joined} {'node' if counts == (1,) else 'nodes'}"


def value_text(value: object) -> str:
    """Return a swept value: "8", "true", "all_reduce, algorithm hierarchical", "node 1, nic_slowdown 2.0", "none"."""
    if isinstance(value, dict):
        kind = [printable(str(value["kind"]))] if "kind" in value else []
        return ", ".join([*kind, *(f"{printable(key)} {value_text(v)}" for key, v in value.items() if key != "kind")])
    if isinstance(value, list):
        return "; ".join(value_text(item) for item in value) or "none"
    return str(value).lower() if isinstance(value, bool) else printable(str(value))


def percent(fraction: float, form: str = ".1") -> str:
    """Return a fraction in per cent: "2.0 %", in another form "+2.0 %" or "2 %"."""
    return f"{100 * fraction:{form}f} %"


def speedup_text(speedup: float | None) -> str:
    """Return a speedup to three digits: "4.16x", "13.8x", or "-" where there is none."""
    if speedup is None:
        return "-"
    digits = 2 if speedup < 10 else 1 if speedup < 100 else 0
    return f"{speedup:.{digits}f}x"


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital at its start."""
    return sentence[:1].upper() + sentence[1:]


def notes_lines(notes_by_point: "Sequence[Sequence[str]]") -> list[str]:
    """Return the notes of all points, wrapped; those that differ in numbers or details alone stand as one.

    Args:
        notes_by_point: the notes of each point.

    Example:
        >>> notes_lines([["batch 16 scaled", "an estimate"], ["batch 32 scaled", "an estimate"]])
        ['note: batch 16 scaled (and 1 more like it)', 'note: an estimate', ...]
    """
    groups: dict[str, dict[str, set[int]]] = {}
    for index, notes in enumerate(notes_by_point):
        for note in notes:
            groups.setdefault(_gist(note), {}).setdefault(note, set()).add(index)
    lines = [line for group in groups.values() for line in hanging("note: ", _places_text(group, len(notes_by_point)))]
    shortened = any(len(group) > 1 or len(next(iter(group))) > MAX_NOTE for group in groups.values())
    return [*lines, *(textwrap.wrap(IN_FULL, WIDTH) if shortened else [])]


def _gist(note: str) -> str:
    """Return what notes of one kind share: their first words, without numbers."""
    return " ".join(re.sub(r"\d[\d.,]*", "#", note).split()[:GIST_WORDS])


def _places_text(group: dict[str, set[int]], num_points: int) -> str:
    """Return the first note of a group, shortened, with how many there are and how many points have one."""
    first, *others = group
    num_touched = len(set().union(*group.values()))
    counts = [f"at {num_touched} of {num_points} points"] if num_touched < num_points else []
    counts += [f"and {len(others)} more like it"] if others else []
    return textwrap.shorten(first, MAX_NOTE, placeholder=" ...") + (f" ({', '.join(counts)})" if counts else "")


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
    # Of one kind: only the settings in which they differ tell them apart.
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
