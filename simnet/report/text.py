"""Write the numbers of a result for people."""

import re
import textwrap
import unicodedata
from typing import TYPE_CHECKING

from simnet.cluster.hardware import INLINE
from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simnet.engine.result import RunResult
    from simnet.engine.scenario import Scenario
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
