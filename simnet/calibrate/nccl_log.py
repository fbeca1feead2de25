"""Read the output of nccl-tests, in both of its column layouts."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simnet.errors import SimnetError
from simnet.files import label, read_text

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "unknown"]
_PREFIX = re.compile(r"^(?:\[\d+,\d+\](?:<\w+>)?:|\s*\d+:\s)")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_NAMED = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast)_perf\b")
_DATA = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
MAX_DIGITS = 18
MIN_US, MAX_US = 1e-6, 1e15
MEASURES = ("time", "algbw", "busbw", "wrong")
_FACTOR_TOLERANCE = 0.03
"""Relative error of the printed ratio of bus to algorithm bandwidth, since both have two decimals."""


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """A line of a log: message [B] (the whole array), and times out of place and in place [us] (None: not measured)."""

    line: int
    message_bytes: int
    times_us: tuple[float | None, float | None]

    @property
    def times_s(self) -> tuple[float | None, float | None]:
        """The times [s]."""
        out_of_place, in_place = (None if time_us is None else time_us / 1e6 for time_us in self.times_us)
        return out_of_place, in_place


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """One log: its name, the collective, the GPUs and nodes, and a row for each size."""

    name: str
    collective: Collective
    gpu: str
    num_nodes: int
    ranks_per_node: int
    rows: tuple[LogRow, ...]

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.num_nodes * self.ranks_per_node

    @property
    def layout_text(self) -> str:
        """GPUs and nodes as text: "16 GPUs on 2 nodes"."""
        return f"{self.world_size} GPUs on {self.num_nodes} {'node' if self.num_nodes == 1 else 'nodes'}"


def looks_like(text: str) -> bool:
    """Return whether a text is the output of nccl-tests."""
    return "busbw" in text and "algbw" in text


def read(path: Path) -> NcclLog:
    """Read a log.

    Raises:
        SimnetError: the file cannot be read, or is no complete log; see `parse`.
    """
    return parse(read_text(path, errors="replace"), label(path))


def parse(text: str, name: str) -> NcclLog:
    """Read the text of a log: lines with or without a rank in front, columns `#wrong` or `error`, `root` or none.

    Args:
        text: output of nccl-tests.
        name: file, for messages.

    Raises:
        SimnetError: the text has no ranks or no results, nodes have unequal numbers of ranks, a row has another form,
            or results were wrong.
    """
    lines = [_PREFIX.sub("", line).rstrip() for line in text.splitlines()]
    nodes, per_node, gpu = _shape(lines, name)
    rows = tuple(_rows(lines, name))
    if not rows:
        raise SimnetError(f"{name}: no line with a time; give the whole output of nccl-tests")
    return NcclLog(
        name=name,
        collective=_collective(lines, nodes * per_node),
        gpu=gpu,
        num_nodes=nodes,
        ranks_per_node=per_node,
        rows=rows,
    )


def _shape(lines: Sequence[str], name: str) -> tuple[int, int, str]:
    """Return nodes, ranks a node and the GPU, from the list of devices at the top."""
    ranks = {int(found[1]): (found[2], found[3].strip()) for line in lines if (found := _RANK.match(line))}
    if not ranks:
        raise SimnetError(
            f"{name}: no line '# Rank 0 Pid ... on HOST device ...'; give the whole output with its header"
        )
    hosts = [host for host, _ in ranks.values()]
    counts = {hosts.count(host) for host in hosts}
    if len(counts) > 1:
        raise SimnetError(
            f"{name}: nodes with {sorted(counts)} ranks: all nodes must have the same number; drop this log"
        )
    return len(set(hosts)), counts.pop(), next(iter(ranks.values()))[1]


def _rows(lines: Sequence[str], name: str) -> Iterator[LogRow]:
    counts_wrong = any("#wrong" in line for line in lines)
    named = _named_columns(lines)
    for number, line in enumerate(lines, start=1):
        if _DATA.match(line):
            yield _row(line.split(), named, f"{name}:{number}", number, counts_wrong=counts_wrong)


def _named_columns(lines: Sequence[str]) -> int:
    """Return the number of columns before the first time: size, count, type, and redop and root if printed."""
    head = next((line for line in lines if line.startswith("#") and "busbw" in line and "size" in line), "")
    words = head.strip("# ").split()
    return words.index("time") if "time" in words else 0


def _row(words: list[str], named: int, where: str, number: int, *, counts_wrong: bool) -> LogRow:
    """Read the message and one or two sets of `MEASURES`."""
    # redop and root may be blank: then a line has fewer words than the header has columns.
    sets = [len(MEASURES), 2 * len(MEASURES)]
    names = next((names for names in (named, 3) for num in sets if len(words) == names + num), 0)
    measures = words[names:]
    if not names or not all(_is_measure(word) for word in measures):
        raise SimnetError(
            f"{where}: {' '.join(words)!r}: must have the columns of nccl-tests; restore the line or drop it"
        )
    halves = [measures[:4], measures[4:]]
    for half in halves:
        if counts_wrong and half and half[3] not in {"0", "N/A"}:
            raise SimnetError(f"{where}: {half[3]} wrong values: results must be right; run nccl-tests again")
    if len(words[0]) > MAX_DIGITS:
        raise SimnetError(
            f"{where}: a size of {len(words[0])} digits: must have at most {MAX_DIGITS}; restore the line or drop it"
        )
    return LogRow(
        line=number, message_bytes=int(words[0]), times_us=(_time_us(halves[0], where), _time_us(halves[1], where))
    )


def _time_us(half: Sequence[str], where: str) -> float | None:
    """Return the time of a set of measures [us]."""
    if not half or half[0] == "N/A":
        return None
    time_us = float(half[0])
    if not MIN_US <= time_us <= MAX_US:
        raise SimnetError(f"{where}: {half[0]} us: a time must be above 0; restore the line or drop it")
    return time_us


def _is_measure(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "N/A"
    return True


def _collective(lines: Sequence[str], ranks: int) -> Collective:
    """Return the collective that the log names, or else that its ratio of bus to algorithm bandwidth implies."""
    for line in lines:
        if found := _NAMED.search(line):
            return {"alltoall": "all_to_all"}.get(found[1], found[1])  # type: ignore[return-value]
    # Some versions do not print the name of the program. The largest size has the most digits of both bandwidths.
    best = max((line.split() for line in lines if _DATA.match(line)), key=lambda words: int(words[0]))
    algorithm_bw, bus_bw = float(best[-3]) if best[-3] != "N/A" else 0.0, float(best[-2]) if best[-2] != "N/A" else 0.0
    ratio = bus_bw / algorithm_bw if algorithm_bw else 0.0
    if ranks > 1 and abs(ratio / (2 * (ranks - 1) / ranks) - 1) < _FACTOR_TOLERANCE:
        return "all_reduce"
    return "unknown"
