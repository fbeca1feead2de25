"""Read what nccl-tests, rccl-tests and their forks print or write: a log for each run, by the names of its columns.

Text of any version, with what launchers put before each line (mpirun, srun, kubectl, timestamps, Markdown), `-J` of
nccl-tests, and `-x` of rccl-tests as JSON or CSV. A line that is torn, as where the output of ranks mixed, is left out
and counted; a rank whose line is torn leaves a gap in the numbers, and one at the end shows in the bandwidths.

Source: NVIDIA/nccl-tests, src/util.cu @0fdb00a and src/common.cu; ROCm/rccl-tests, README.md @07e3a21.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from simnet.core.errors import SimnetError, cut
from simnet.core.files import label, read_text
from simnet.core.parsing import csv_rows, parse_json
from simnet.core.schema import build

PROGRAMS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "broadcast": "broadcast", "reduce": "reduce",
    "sendrecv": "send",
}  # fmt: skip
"""Collectives by the names of their programs, without `_perf`; any other program is called by its own name."""
_NO_UNDERSCORES = {name.replace("_", ""): name for name in PROGRAMS}
UNKNOWN = "unknown"
MEASURES = ("time", "algbw", "busbw", "#wrong")
_COLUMNS = ("size", "count", "type", "redop", "root", *MEASURES, *MEASURES)
"""Where the line with the names is lost."""
_BLANK = ((), ("root",), ("redop", "root"), ("redop",))
"""Columns that some programs leave empty."""
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TYPES = r"u?int\d+|half|float|double|bfloat16|b?f(?:loat|p)?\d+\w*"
_ROW = re.compile(rf"(?:^|(?<=[\s:>\]]))(?:\d+\s+\d+\s+[a-z]\w*|\d+\s+(?:{_TYPES}))\s")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)")
_PROGRAM = re.compile(r"\b(?:nccl_|rccl_)?([a-z]+(?:_[a-z]+)*?\d*)_perf(?:_mpi)?\b")
_STARTING = re.compile(r"Collective test starting: *(?:nccl_|rccl_)?(\w+?)(?:_perf)?(?:_mpi)?\s*$")
_HEAD = re.compile(r"nThreads?:? +\d+ +nGpus|Collective test starting|(?:nccl|rccl)-tests:? [vV]ersion|Using devices")
_RANK = re.compile(
    r"Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+(\d+)\s+on\s+([^\s<>]+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_FAILED = re.compile(
    r"Test (?:NCCL |CUDA |HIP )?failure|NCCL failure|slurmstepd: error|CANCELLED AT|exited on signal|DUE TO TIME LIMIT"
)
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*([1-9]\d*)")
MAX_DIGITS = 18
MIN_US, MAX_US = 1e-6, 1e15
_DECIMALS_GB_PER_S = 0.005
"""Rounding of printed bandwidths."""
_TORN_TOLERANCE, _CHECKED_GB_PER_S = 0.1, 1.0
"""A printed bandwidth further from size over time than this, if it is so large that its two decimals say it, belongs to
another line."""
MAX_TORN_SHARE = 0.5
"""Of the lines with times; where more are torn, the rest is not to be trusted either."""
MAX_LOST, MAX_LOST_SHARE = 2, 0.5
"""Ranks that may have been lost: after the last whole line, and of all."""
RATIO_TOLERANCE = 1e-4
"""Relative, of a ratio of bandwidths beyond the rounding of both."""
MANY_NODES = 3
"""Nodes from which on one that is short of ranks is taken as a lost line, even where the ratio cannot tell."""
_SHOWN_LENGTH = 60


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
    """One run: its name, the collective, the GPUs and nodes, and a row for each size.

    Attributes:
        name: of the file, with the number of the run where it holds several.
        collective: as in `PROGRAMS`; the name of another program; or `UNKNOWN` where nothing names one.
        gpu: name of the GPU; empty where the log has none.
        num_nodes: hosts.
        ranks_per_node: GPUs on each.
        rows: in the order of the log.
        num_torn: lines that were left out.
        failure: the line with which the run failed; empty where it did not.
    """

    name: str
    collective: str
    gpu: str
    num_nodes: int
    ranks_per_node: int
    rows: tuple[LogRow, ...]
    num_torn: int = 0
    failure: str = ""

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.num_nodes * self.ranks_per_node

    @property
    def layout_text(self) -> str:
        """GPUs and nodes as text: "16 GPUs on 2 nodes"."""
        return f"{self.world_size} GPUs on {self.num_nodes} {'node' if self.num_nodes == 1 else 'nodes'}"

    def times(self, least_bytes: int = 0) -> list[tuple[int, float]]:
        """Return messages from a size on [B], each with its time [s]: out of place and in place."""
        return [
            (row.message_bytes, time_s)
            for row in self.rows
            for time_s in row.times_s
            if time_s is not None and row.message_bytes >= least_bytes
        ]


def read(path: Path) -> NcclLog:
    """Read the text of one run.

    Raises:
        SimnetError: the file cannot be read, or is no complete log of one run; see `parse`.
    """
    found = parse(read_text(path, errors="replace"), label(path))
    if len(found) > 1:
        raise SimnetError(f"{label(path)}: {len(found)} runs: must be one; split the file at '# nThread'")
    return found[0]


def looks_like(text: str) -> bool:
    """Return whether a text is the output of nccl-tests, or a table of rccl-tests."""
    return all(name in text for name in ("busbw", "algbw")) or all(name in text for name in ("busBw", "algBw"))


def parse(text: str, name: str) -> list[NcclLog]:
    """Read the text of one run or of several.

    Args:
        text: output of nccl-tests, or `-x` of rccl-tests.
        name: file, for messages.

    Raises:
        SimnetError: a run has no ranks or no results, ranks twice, CPU times, unequal nodes, too many torn rows, or
            wrong results.
    """
    if "busBw" in text and "algBw" in text:
        return _of_records(_records(text, name), name)
    lines = [_COLOR.sub("", line).replace("|", " ").replace("`", " ").rstrip() for line in text.splitlines()]
    runs = list(_runs(lines))
    return [run.log(name if len(runs) == 1 else f"{name}, run {number}") for number, run in enumerate(runs, start=1)]


@dataclass(kw_only=True)
class _RunLines:
    """The lines of one run, sorted by what they say."""

    names: list[str] = field(default_factory=list)
    ranks: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    columns: tuple[str, ...] = _COLUMNS
    rows: list[LogRow] = field(default_factory=list)
    printed: list[tuple[float, float]] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    failure: str = ""
    wrong: str = ""
    twice: str = ""
    is_reduced: bool = True

    @property
    def has_begun(self) -> bool:
        """Whether its rows have begun, so that a further head is that of another run."""
        return bool(self.rows or self.torn)

    def add(self, number: int, line: str) -> None:
        """Take a line."""
        if found := _RANK.search(line):
            self._add_rank(int(found[1]), (found[4], found[3], found[5].strip()), found[2] or "")
        elif columns := _columns(line):
            self.columns = columns
        elif (row := _ROW.search(line)) and _is_prefix(line[: row.start()]):
            self._add_row(number, line[row.start() :])
        elif _is_rest_of_row(line.split()):
            self.torn.append(line)
        else:
            bounds = _OUT_OF_BOUNDS.search(line)
            self.wrong = self.wrong or (f"{bounds[1]} results are out of bounds" if bounds else "")
            self.failure = self.failure or (line.strip() if _FAILED.search(line) else "")

    def log(self, name: str) -> NcclLog:
        """Return what the lines say together."""
        if "cputime" in self.columns:
            raise SimnetError(
                f"{name}: cputime: times of the CPU (-C 1) say nothing of the network; run nccl-tests without -C"
            )
        if self.wrong:
            raise SimnetError(f"{name}: {self.wrong}: results must be right; run nccl-tests again")
        if self.twice:
            raise SimnetError(f"{name}: {self.twice}")
        if len(self.groups) > 1:
            raise SimnetError(
                f"{name}: the ranks form {len(self.groups)} groups that work at one time (NCCL_TESTS_SPLIT): must be "
                "one; run nccl-tests without it"
            )
        if len(self.torn) > MAX_TORN_SHARE * (len(self.rows) + len(self.torn)):
            raise SimnetError(
                f"{name}: {len(self.torn)} torn lines and {len(self.rows)} whole ones, such as "
                f"{cut(self.torn[0].strip(), _SHOWN_LENGTH)!r}: run nccl-tests again"
            )
        if not self.rows:
            failed = f" before it failed ({cut(self.failure, _SHOWN_LENGTH)})" if self.failure else ""
            raise SimnetError(f"{name}: no line with a time{failed}; give the whole output of nccl-tests")
        named = _collective(self.names[-1]) if self.names else None
        ratio = _bus_ratio(self.printed) if named in {None, "all_reduce"} else None
        hosts = {rank: host for rank, (host, _, _) in self.ranks.items()}
        num_nodes, ranks_per_node = _shape(hosts, name, ratio, must_fit=named is not None)
        # Some versions do not print the name of the program: then an operator without a root, and the ratio, tell an
        # all-reduce. On two ranks the ratio alone is that of most programs.
        is_all_reduce = self.is_reduced and ratio is not None and ratio.fits(num_nodes * ranks_per_node)
        return NcclLog(
            name=name,
            collective=named or ("all_reduce" if is_all_reduce else UNKNOWN),
            gpu=next(iter(self.ranks.values()))[2],
            num_nodes=num_nodes,
            ranks_per_node=ranks_per_node,
            rows=tuple(self.rows),
            num_torn=len(self.torn),
            failure=self.failure,
        )

    def _add_rank(self, rank: int, given: tuple[str, str, str], group: str) -> None:
        before = self.ranks.setdefault(rank, given)
        if before[:2] != given[:2] and not self.twice:
            hosts = " and ".join(dict.fromkeys((before[0], given[0])))
            self.twice = (
                f"rank {rank} is listed twice, on {hosts}: two jobs in one output; build nccl-tests with MPI=1, so "
                "that one job takes all nodes"
            )
        self.groups |= {group} if group else set()

    def _add_row(self, number: int, text: str) -> None:
        cells = _cells(_STAMP.sub(r"\1T\2", text).split(), self.columns)
        if cells is None:
            self.torn.append(text)
            return
        size, halves, is_reduced = cells
        self.is_reduced &= is_reduced
        for half in halves:
            wrong = half.get("#wrong", "0")
            if wrong != "N/A" and float(wrong) != 0 and not self.wrong:
                self.wrong = f"line {number}: {wrong} wrong values"
            if "N/A" not in {half["algbw"], half["busbw"]}:
                self.printed.append((float(half["algbw"]), float(half["busbw"])))
        times = [_time_us(half) for half in halves]
        self.rows.append(LogRow(line=number, message_bytes=size, times_us=(times[0], times[1] if times[1:] else None)))


def _runs(lines: Sequence[str]) -> Iterator[_RunLines]:
    """Yield the runs; what stands between the rows of one and the head of the next may name the next one's program."""
    run = _RunLines()
    between: list[str] = []
    for number, line in enumerate(lines, start=1):
        if run.has_begun and (_HEAD.search(line) or _RANK.search(line)):
            yield run
            run, between = _RunLines(names=between), []
        run.add(number, line)
        if found := _STARTING.search(line) or ("concluded" not in line and _PROGRAM.search(line)):
            (between if run.has_begun else run.names).append(found[1])
    yield run


def _collective(program: str) -> str:
    """Return the collective of a program, however it is spelled: "AllReduce", "all_reduce"."""
    plain = program.lower().replace("_", "")
    return PROGRAMS[_NO_UNDERSCORES[plain]] if plain in _NO_UNDERSCORES else program


def _columns(line: str) -> tuple[str, ...]:
    """Return the names of the columns; none where a line does not hold them."""
    words = line.split()
    if not {"size", "busbw", "algbw"} <= set(words):
        return ()
    return tuple(words[words.index("size") :] if words.index("size") < words.index("algbw") else words)


def _is_prefix(text: str) -> bool:
    """Tell whether text before a row is what a launcher puts there, and not the end of a torn row."""
    return not text.strip() or bool(re.search(r"[A-Za-z:>\]]", text))


def _cells(words: Sequence[str], columns: Sequence[str]) -> tuple[int, list[dict[str, str]], bool] | None:
    """Return the message [B], the cells of its measures, out of place and in place, and whether all ranks get a sum.

    None if the row is torn.
    """
    for names in _layouts(columns):
        if len(names) != len(words) or len(words[0]) > MAX_DIGITS:
            continue
        found: dict[str, list[str]] = {}
        for name, word in zip(names, words, strict=True):
            found.setdefault("#wrong" if name == "wrong" else name, []).append(word)
        if not {"size", "time", "algbw", "busbw"} <= found.keys():
            continue
        size = found["size"][0]
        measures = {name: found[name] for name in (*MEASURES, "error") if name in found}
        if len(set(map(len, measures.values()))) > 1:  # the line with the names is torn
            continue
        if not size.isdigit() or not all(map(_is_measure, chain.from_iterable(measures.values()))):
            continue
        halves = [dict(zip(measures, half, strict=True)) for half in zip(*measures.values(), strict=True)]
        if all(_agrees(int(size), half) for half in halves):
            operator, root = found.get("redop", ["none"])[0], found.get("root", ["-1"])[0]
            return int(size), halves, operator != "none" and root == "-1"
    return None


def _layouts(columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the columns that a row may have: without those left empty, and with one set of measures alone."""
    for given in dict.fromkeys((tuple(columns), _COLUMNS)):
        for blank in _BLANK:
            names = [name for name in given if name not in blank]
            yield names
            if names.count("time") == 2:
                second, apart = names.index("time", names.index("time") + 1), names.index("time")
                yield names[:second] + names[2 * second - apart :]


def _is_rest_of_row(words: Sequence[str]) -> bool:
    """Return whether a line looks like the end of a torn one: `MEASURES` once at least, and hardly a word beside."""
    is_comment = not words or words[0].startswith("#") or "NCCL" in words
    return not is_comment and len(words) >= len(MEASURES) and sum(map(_is_measure, words)) >= len(words) - 1


def _is_measure(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "N/A"
    return True


def _agrees(message_bytes: int, half: Mapping[str, str]) -> bool:
    """Return whether a time is one, and the bandwidth beside it is that of the message."""
    time_us = _time_us(half)
    if time_us is None:
        return True
    if not MIN_US <= time_us <= MAX_US or not message_bytes:
        return False
    gb_per_s = message_bytes / time_us / 1e3
    printed = half["algbw"]
    if printed == "N/A" or max(gb_per_s, float(printed)) < _CHECKED_GB_PER_S:
        return True
    return abs(float(printed) - gb_per_s) <= _TORN_TOLERANCE * gb_per_s


def _time_us(half: Mapping[str, str]) -> float | None:
    """Return the time of a set of measures [us]."""
    return None if half["time"] == "N/A" else float(half["time"])


class _BusRatio(NamedTuple):
    """Bus over algorithm bandwidth of an all-reduce, as printed: 2(n - 1)/n on n ranks; and its relative rounding."""

    value: float
    rounding: float

    def fits(self, ranks: int) -> bool:
        """Tell whether so many ranks have this ratio."""
        expected = 2 * (ranks - 1) / ranks
        return abs(self.value - expected) <= (RATIO_TOLERANCE + self.rounding) * max(expected, self.value)

    def tells_apart(self, ranks: int, others: int) -> bool:
        """Tell whether the digits suffice to tell two numbers of ranks apart."""
        return abs(2 / ranks - 2 / others) > 2 * (RATIO_TOLERANCE + self.rounding) * self.value


def _bus_ratio(printed: Iterable[tuple[float, float]]) -> _BusRatio | None:
    """Return the ratio of bus to algorithm bandwidth where these have most digits; None if it tells nothing."""
    algorithm_bw, bus_bw = max(printed, default=(0.0, 0.0))
    if not (algorithm_bw > 0 and bus_bw > 0):
        return None
    return _BusRatio(bus_bw / algorithm_bw, _DECIMALS_GB_PER_S * (1 / algorithm_bw + 1 / bus_bw))


def _shape(hosts: Mapping[int, str], name: str, ratio: _BusRatio | None, *, must_fit: bool) -> tuple[int, int]:
    """Return the number of nodes and the ranks on each.

    Args:
        hosts: of the ranks, without those whose line is torn.
        name: of the log, for messages.
        ratio: of bandwidths, if the log tells one.
        must_fit: whether the ratio is that of an all-reduce for sure; else it may be of another collective.

    Raises:
        SimnetError: no rank is listed, nodes have unequal numbers of ranks, or the list does not go with the ratio.
    """
    if not hosts:
        raise SimnetError(
            f"{name}: no line '# Rank 0 Pid ... on HOST device ...'; give the whole output with its header"
        )
    counts = Counter(hosts.values())
    listed = max(hosts) + 1
    totals = [one for one in range(listed, listed + MAX_LOST + 1) if _is_even(one, counts)]
    likely = [total for total in totals if _is_told(total, listed, len(counts), ratio)]
    if not likely and not must_fit and listed in totals:
        likely = [listed]
    if likely:
        return len(counts), likely[0] // len(counts)
    if listed not in totals:
        raise SimnetError(
            f"{name}: nodes with {sorted(set(counts.values()))} ranks: all nodes must have the same number; drop this "
            "log"
        )
    raise SimnetError(f"{name}: {listed} ranks are listed: the bandwidths are of another number; run nccl-tests again")


def _is_even(total: int, counts: Counter[str]) -> bool:
    per_node, rest = divmod(total, len(counts))
    return not rest and max(counts.values()) <= per_node and counts.total() >= (1 - MAX_LOST_SHARE) * total


def _is_told(total: int, listed: int, num_nodes: int, ratio: _BusRatio | None) -> bool:
    """Tell whether a ratio of bandwidths speaks for a number of ranks; without one, the list is believed."""
    if total == listed:
        return ratio is None or ratio.fits(total)
    is_clear = num_nodes >= MANY_NODES or (ratio is not None and ratio.tells_apart(total, listed))
    return ratio is not None and ratio.fits(total) and is_clear


Microseconds = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_US)]


class _ListedDevice(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=0)]
    hostname: str
    group: int = 0
    pid: int = 0
    device_info: str = ""


class _Config(msgspec.Struct):
    devices: tuple[_ListedDevice, ...]
    nthreads: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    ngpus: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1


class _Half(msgspec.Struct):
    # No number is written as the text "nan".
    time: Microseconds | str | None = None
    cpu_time: Microseconds | str | None = None
    alg_bw: float | str | None = None
    bus_bw: float | str | None = None
    nwrong: float | str | None = None


class _Result(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=0, le=10**MAX_DIGITS)]
    out_of_place: _Half | None = None
    in_place: _Half | None = None
    experiment_name: str = ""


class _NcclJson(msgspec.Struct):
    """What `-J` of nccl-tests writes, as far as it is read."""

    config: _Config
    results: tuple[_Result, ...]
    args: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    end_time: str = ""


def looks_like_json(data: object) -> bool:
    """Return whether JSON is `-J` of nccl-tests or `-x` of rccl-tests."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], dict) and "busBw" in data[0]
    return isinstance(data, dict) and ({"config", "results", "nccl_version"} <= data.keys() or "busBw" in data)


def of_json(data: Any, name: str) -> list[NcclLog]:
    """Return the runs in JSON that `looks_like_json`."""
    if isinstance(data, list) or "busBw" in data:
        return _of_records(data if isinstance(data, list) else [data], name)
    whole = build(_NcclJson, data, name)
    devices = whole.config.devices
    run = _RunLines(names=[*map(_program_of, whole.args[:1]), *(one.experiment_name for one in whole.results[:1])])
    run.names = [one for one in run.names if one]
    for one in devices:
        run._add_rank(one.rank, (one.hostname, str(one.pid), one.device_info), str(one.group))
    # Without MPI the file names the first device alone.
    if len(devices) == 1:
        for rank in range(1, whole.config.nthreads * whole.config.ngpus):
            run.ranks[rank] = run.ranks[devices[0].rank]
    for number, result in enumerate(whole.results, start=1):
        _add_result(run, number, result)
    run.failure = whole.errors[0] if any(whole.errors[:1]) else "" if whole.end_time else "the file has no end_time"
    return [run.log(name)]


def _program_of(argument: str) -> str:
    found = _PROGRAM.search(argument)
    return found[1] if found else ""


def _add_result(run: _RunLines, number: int, result: _Result) -> None:
    """Add a result of `-J` as a row; a time that is no number was not measured."""
    times: list[float | None] = []
    for half in (result.out_of_place or _Half(), result.in_place or _Half()):
        if half.cpu_time is not None:
            run.columns = ("cputime",)
        if isinstance(half.nwrong, int | float) and half.nwrong and not run.wrong:
            run.wrong = f"result {number}: {half.nwrong:g} wrong values"
        if isinstance(half.alg_bw, int | float) and isinstance(half.bus_bw, int | float):
            run.printed.append((half.alg_bw, half.bus_bw))
        is_time = isinstance(half.time, int | float) and half.time >= MIN_US
        times.append(float(half.time) if is_time else None)  # type: ignore[arg-type]
    if result.size and any(time is not None for time in times):
        run.rows.append(LogRow(line=number, message_bytes=result.size, times_us=(times[0], times[1])))


class _RcclRecord(msgspec.Struct):
    """One time as `-x` of rccl-tests writes it."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0, le=10**MAX_DIGITS)]
    time: Microseconds
    alg_bw: Annotated[float, msgspec.Meta(ge=0.0)] = msgspec.field(name="algBw")
    bus_bw: Annotated[float, msgspec.Meta(ge=0.0)] = msgspec.field(name="busBw")
    in_place: Annotated[int, msgspec.Meta(ge=0, le=1)] = msgspec.field(name="inPlace")
    nodes: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1
    ranks: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1
    gpus: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1
    wrong: str | int | float | None = None
    num_wrong: str | int | float | None = msgspec.field(name="#wrong", default=None)


_RECORD_NUMBERS = {"size": int, "time": float, "algBw": float, "busBw": float, "inPlace": int, "nodes": int,
                   "ranks": int, "gpus": int}  # fmt: skip


def _records(text: str, name: str) -> list[Any]:
    """Return the records of rccl-tests: a JSON list, JSON objects by lines, or CSV."""
    begin = text.lstrip("\ufeff \r\n\t")
    if begin.startswith("["):
        found = parse_json(text.encode(), name, unique=False)
        return found if isinstance(found, list) else []
    if begin.startswith("{"):
        lines = [(number, line.strip().rstrip(",")) for number, line in enumerate(text.splitlines(), start=1)]
        return [parse_json(line.encode(), f"{name}:{number}", unique=False) for number, line in lines if line]
    table = csv_rows(text)
    head = [cell.strip().strip("'\"") for cell in next(table, (1, []))[1]]
    return [_record_of(head, cells, f"{name}:{number}") for number, cells in table]


def _record_of(head: Sequence[str], cells: Sequence[str], where: str) -> dict[str, object]:
    if len(cells) != len(head):
        raise SimnetError(f"{where}: {len(cells)} cells: the head has {len(head)} columns; restore the line or drop it")
    found: dict[str, object] = dict(zip(head, (cell.strip("'\"") for cell in cells), strict=True))
    for key, number in _RECORD_NUMBERS.items():
        if key in found:
            try:
                found[key] = number(str(found[key]))
            except ValueError as error:
                raise SimnetError(f"{where}: {key}: {str(found[key])!r}: must be a number") from error
    return found


def _of_records(records: Sequence[Any], name: str) -> list[NcclLog]:
    """Return the runs in records of rccl-tests: one for each collective on one number of nodes and ranks."""
    found: dict[tuple[str, int, int], list[_RcclRecord]] = {}
    for number, data in enumerate(records, start=1):
        one = build(_RcclRecord, data, f"{name}: record {number}")
        wrong = str(one.wrong if one.wrong is not None else one.num_wrong or 0)
        if wrong not in {"N/A", "-1"} and wrong.strip("0.") != "":
            raise SimnetError(
                f"{name}: record {number}: {wrong} wrong values: results must be right; run rccl-tests again"
            )
        if not one.size or one.time < MIN_US:
            continue
        found.setdefault((one.name, one.nodes, max(one.ranks, one.gpus)), []).append(one)
    if not found:
        raise SimnetError(f"{name}: no record with a time; give the whole file of rccl-tests")
    return [
        _of_one_shape(rows, collective, nodes, ranks, name if len(found) == 1 else f"{name}, run {number}")
        for number, ((collective, nodes, ranks), rows) in enumerate(found.items(), start=1)
    ]


def _of_one_shape(rows: Sequence[_RcclRecord], program: str, nodes: int, ranks: int, name: str) -> NcclLog:
    collective = _collective(program)
    ratio = _bus_ratio((row.alg_bw, row.bus_bw) for row in rows)
    if ranks % nodes:
        raise SimnetError(
            f"{name}: {ranks} ranks on {nodes} nodes: all nodes must have the same number; drop this file"
        )
    if collective == "all_reduce" and ratio is not None and not ratio.fits(ranks):
        raise SimnetError(f"{name}: {ranks} ranks: the bandwidths are of another number; run rccl-tests again")
    return NcclLog(
        name=name,
        collective=collective,
        gpu="",
        num_nodes=nodes,
        ranks_per_node=ranks // nodes,
        rows=tuple(
            LogRow(line=number, message_bytes=one.size, times_us=(None, one.time) if one.in_place else (one.time, None))
            for number, one in enumerate(rows, start=1)
        ),
    )


def elasticity(log: NcclLog) -> float:
    """Return how the time grows with the message at the end of a log: 1 where bytes take all of it, 0 where none.

    The slope of log(time) over log(size) between the largest size and the next one, at most 1; 1 where there is no
    other size within a factor of 16.
    """
    by_size: dict[int, list[float]] = {}
    for size, time_s in log.times():
        by_size.setdefault(size, []).append(time_s)
    largest = max(by_size)
    others = [size for size in by_size if largest / 16 <= size < largest]
    if not others:
        return 1.0
    at = max(size for size in others if size <= largest / 2) if min(others) <= largest / 2 else min(others)
    grown = math.log(min(by_size[largest]) / min(by_size[at]))
    return min(grown / math.log(largest / at), 1.0)
