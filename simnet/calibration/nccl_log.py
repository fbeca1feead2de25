"""Read the output of nccl-tests, in both of its column layouts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simnet.calibration import nccl_head
from simnet.calibration.nccl_head import BusRatio
from simnet.core.errors import SimnetError
from simnet.core.files import label, read_text

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "unknown"]
_PREFIX = re.compile(r"^(?:\[\d+,\d+\](?:<\w+>)?:|\s*\d+:\s)")
_NAMED = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast)_perf\b")
_DATA = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
MAX_DIGITS = 18
MIN_US, MAX_US = 1e-6, 1e15
MEASURES = ("time", "algbw", "busbw", "wrong")
_DECIMALS_GB_PER_S = 0.005
"""Rounding of printed bandwidths."""
_TORN_TOLERANCE, _CHECKED_GB_PER_S = 0.1, 1.0
"""A printed bandwidth further from size over time than this, if it is so large that its two decimals say it, belongs to
another line."""
MAX_TORN_SHARE = 0.5
"""Of the lines with times; where more are torn, the rest is not to be trusted either."""


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
    """One log: its name, the collective, the GPUs and nodes, a row for each size, and how many lines were torn."""

    name: str
    collective: Collective
    gpu: str
    num_nodes: int
    ranks_per_node: int
    rows: tuple[LogRow, ...]
    num_torn: int = 0

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

    Lines that are torn, as where the output of two ranks mixed, are left out and counted.

    Args:
        text: output of nccl-tests.
        name: file, for messages.

    Raises:
        SimnetError: the text has no ranks or no results, nodes have unequal numbers of ranks, too many rows are torn,
            or results were wrong.
    """
    lines = [_PREFIX.sub("", line).rstrip() for line in text.splitlines()]
    rows, num_torn = _rows(lines, name)
    if num_torn > MAX_TORN_SHARE * (len(rows) + num_torn):
        raise SimnetError(f"{name}: {num_torn} torn lines and {len(rows)} whole ones: run nccl-tests again")
    if not rows:
        raise SimnetError(f"{name}: no line with a time; give the whole output of nccl-tests")
    named = _named_collective(lines)
    ratio = _bus_ratio([lines[row.line - 1].split() for row in rows]) if named in {None, "all_reduce"} else None
    found = nccl_head.shape(lines, name, ratio, must_fit=named is not None)
    # Some versions do not print the name of the program: then the ratio tells an all-reduce.
    is_all_reduce = ratio is not None and ratio.fits(found.num_nodes * found.ranks_per_node)
    return NcclLog(
        name=name,
        collective=named or ("all_reduce" if is_all_reduce else "unknown"),
        gpu=found.gpu,
        num_nodes=found.num_nodes,
        ranks_per_node=found.ranks_per_node,
        rows=rows,
        num_torn=num_torn,
    )


def _rows(lines: Sequence[str], name: str) -> tuple[tuple[LogRow, ...], int]:
    """Return the whole rows, and how many lines with times are torn."""
    counts_wrong = any("#wrong" in line for line in lines)
    named = _named_columns(lines)
    found: list[LogRow] = []
    num_torn = 0
    for number, line in enumerate(lines, start=1):
        words = line.split()
        is_row = bool(_DATA.match(line))
        measures = _measures(words, named) if is_row else ()
        if measures:
            _check_right(measures, f"{name}:{number}", counts_wrong=counts_wrong)
            times_us = tuple(_time_us(measures[at : at + 4]) for at in (0, 4))
            found.append(LogRow(line=number, message_bytes=int(words[0]), times_us=times_us))  # type: ignore[arg-type]
        num_torn += not measures and (is_row or _is_rest_of_row(words))
    return tuple(found), num_torn


def _is_rest_of_row(words: Sequence[str]) -> bool:
    """Return whether a line looks like the end of a torn one: `MEASURES` once at least, and hardly a word beside."""
    is_comment = not words or words[0].startswith("#") or "NCCL" in words
    return not is_comment and len(words) >= len(MEASURES) and sum(map(_is_measure, words)) >= len(words) - 1


def _named_columns(lines: Sequence[str]) -> int:
    """Return the number of columns before the first time: size, count, type, and redop and root if printed."""
    head = next((line for line in lines if line.startswith("#") and "busbw" in line and "size" in line), "")
    words = head.strip("# ").split()
    return words.index("time") if "time" in words else 0


def _measures(words: list[str], named: int) -> tuple[str, ...]:
    """Return one or two sets of `MEASURES` of a row; none if the line is torn."""
    # redop and root may be blank: then a line has fewer words than the header has columns.
    sets = [len(MEASURES), 2 * len(MEASURES)]
    names = next((names for names in (named, 3) for num in sets if len(words) == names + num), 0)
    measures = tuple(words[names:])
    if not names or not all(map(_is_measure, measures)) or len(words[0]) > MAX_DIGITS:
        return ()
    is_whole = all(_agrees(int(words[0]), measures[at : at + 4]) for at in range(0, len(measures), 4))
    return measures if is_whole else ()


def _agrees(message_bytes: int, measures: Sequence[str]) -> bool:
    """Return whether a time is one, and the bandwidth beside it is that of the message."""
    time_us, algorithm_bw, *_ = (None if word == "N/A" else float(word) for word in measures)
    if time_us is None:
        return True
    if not MIN_US <= time_us <= MAX_US or not message_bytes:
        return False
    gb_per_s = message_bytes / time_us / 1e3
    if algorithm_bw is None or max(gb_per_s, algorithm_bw) < _CHECKED_GB_PER_S:
        return True
    return abs(algorithm_bw - gb_per_s) <= _TORN_TOLERANCE * gb_per_s


def _check_right(measures: Sequence[str], where: str, *, counts_wrong: bool) -> None:
    for wrong in measures[3::4]:
        if counts_wrong and wrong not in {"0", "N/A"}:
            raise SimnetError(f"{where}: {wrong} wrong values: results must be right; run nccl-tests again")


def _time_us(half: Sequence[str]) -> float | None:
    """Return the time of a set of measures [us]."""
    return None if not half or half[0] == "N/A" else float(half[0])


def _is_measure(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "N/A"
    return True


def _named_collective(lines: Sequence[str]) -> Collective | None:
    """Return the collective whose program the log names."""
    for line in lines:
        if found := _NAMED.search(line):
            return {"alltoall": "all_to_all"}.get(found[1], found[1])  # type: ignore[return-value]
    return None


def _bus_ratio(rows: Sequence[Sequence[str]]) -> BusRatio | None:
    """Return the ratio of bus to algorithm bandwidth where these have most digits; None if it tells nothing."""
    pairs = [(row[at], row[at + 1]) for row in rows for at in (-7, -3) if len(row) > len(MEASURES) - at]
    printed = [(float(algorithm), float(bus)) for algorithm, bus in pairs if "N/A" not in {algorithm, bus}]
    algorithm_bw, bus_bw = max(printed, default=(0.0, 0.0))
    if not (algorithm_bw > 0 and bus_bw > 0):
        return None
    return BusRatio(value=bus_bw / algorithm_bw, rounding=_DECIMALS_GB_PER_S * (1 / algorithm_bw + 1 / bus_bw))
