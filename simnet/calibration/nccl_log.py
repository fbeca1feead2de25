"""Read what nccl-tests, rccl-tests and their forks print, or `-J` of nccl-tests: a log for each run.

Columns go by their names, whatever a launcher puts before each line (`mpirun --tag-output`, `srun -l`). A row that does
not fit its columns, as where the output of ranks mixed, is refused with its line.

Source: NVIDIA/nccl-tests, src/util.cu @0fdb00a and src/common.cu; ROCm/rccl-tests, README.md @07e3a21.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from simnet.core.errors import SimnetError, cut
from simnet.core.files import label, read_text
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
_BLANK = ((), ("root",), ("redop", "root"), ("redop",))
"""Columns that some programs leave empty."""
_ROW = re.compile(r"(?:^|(?<=[\s:>\]]))\d+\s+\d+\s+[a-z]\w*\s.*")
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
MAX_BYTES = 10**18
MIN_US, MAX_US = 1e-6, 1e15
_DECIMALS_GB_PER_S = 0.005
"""Rounding of printed bandwidths."""
_BANDWIDTH_TOLERANCE, _CHECKED_GB_PER_S = 0.1, 1.0
"""A printed bandwidth further from size over time than this, if it is so large that its two decimals say it, belongs to
another row."""
RATIO_TOLERANCE = 1e-4
"""Relative, of a ratio of bandwidths beyond the rounding of both."""
MIN_LISTED_SHARE = 0.5
"""Of the ranks; where fewer are listed, the largest number of a rank is not to be trusted either."""
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
        failure: the line with which the run failed; empty where it did not.
    """

    name: str
    collective: str
    gpu: str
    num_nodes: int
    ranks_per_node: int
    rows: tuple[LogRow, ...]
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
    logs = parse(read_text(path, errors="replace"), label(path))
    if len(logs) > 1:
        raise SimnetError(f"{label(path)}: {len(logs)} runs: must be one; split the file at '# nThread'")
    return logs[0]


def looks_like(text: str) -> bool:
    """Return whether a text is the output of nccl-tests, or a table of rccl-tests."""
    return all(name in text for name in ("busbw", "algbw")) or all(name in text for name in ("busBw", "algBw"))


def parse(text: str, name: str) -> list[NcclLog]:
    """Read the text of one run or of several.

    Args:
        text: output of nccl-tests.
        name: file, for messages.

    Raises:
        SimnetError: a run has no ranks or no results, ranks twice, CPU times, unequal nodes, torn rows, or wrong
            results.
    """
    if "busBw" in text:
        raise SimnetError(f"{name}: -x of rccl-tests: is not read; give what rccl-tests prints")
    runs = list(_runs(text.splitlines()))
    return [run.log(name if len(runs) == 1 else f"{name}, run {number}") for number, run in enumerate(runs, start=1)]


@dataclass(kw_only=True)
class _LoggedRun:
    """What the lines of one run say.

    Attributes:
        programs: names that stand before its rows.
        ranks: host, process and GPU of each.
        groups: of ranks that work at one time.
        columns: names of the columns; empty before their line.
        rows: with a time.
        printed: algorithm and bus bandwidths [GB/s].
        failure: the line with which it failed.
        flaw: why it is to be refused.
        is_reduced: whether each row has an operator, and all ranks its sum.
    """

    programs: list[str] = field(default_factory=list)
    ranks: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    columns: tuple[str, ...] = ()
    rows: list[LogRow] = field(default_factory=list)
    printed: list[tuple[float, float]] = field(default_factory=list)
    failure: str = ""
    flaw: str = ""
    is_reduced: bool = True

    def add(self, number: int, line: str) -> None:
        """Take a line."""
        if rank := _RANK.search(line):
            self.add_rank(int(rank[1]), (rank[4], rank[3], rank[5].strip()), rank[2] or "")
        elif columns := _columns(line):
            self.columns = columns
        # Only below the head: NCCL's own lines before it may look like rows.
        elif self.columns and (row := _ROW.search(line)):
            self._add_row(number, row[0])
        elif bounds := _OUT_OF_BOUNDS.search(line):
            self.flaw = (
                self.flaw or f"{bounds[1]} results are out of bounds: results must be right; run nccl-tests again"
            )
        elif _FAILED.search(line):
            self.failure = self.failure or line.strip()

    def add_rank(self, rank: int, process: tuple[str, str, str], group: str) -> None:
        """Take a rank: host, process and GPU."""
        # Every rank may print the list; another process of the same number is another job.
        before = self.ranks.setdefault(rank, process)
        if before[:2] != process[:2]:
            hosts = " and ".join(dict.fromkeys((before[0], process[0])))
            self.flaw = self.flaw or (
                f"rank {rank} is listed twice, on {hosts}: two jobs in one output; build nccl-tests with MPI=1, so "
                "that one job takes all nodes"
            )
        self.groups |= {group} if group else set()

    def _add_row(self, number: int, text: str) -> None:
        cells = _cells(_STAMP.sub(r"\1T\2", text).split(), self.columns)
        halves = _halves(cells)
        size = int(cells["size"][0]) if halves else -1
        if size == 0:  # what is less than an element a rank
            return
        if not 0 < size <= MAX_BYTES or not all(_agrees(size, half) for half in halves):
            self.flaw = self.flaw or (
                f"line {number}: {cut(text.strip(), _SHOWN_LENGTH)!r}: must have the columns of its head, and times "
                "that are those of its bandwidths; drop the line, or run nccl-tests again"
            )
            return
        self.is_reduced &= cells.get("redop", ["none"])[0] != "none" and cells.get("root", ["-1"])[0] == "-1"
        self.add_halves(number, size, halves)

    def add_halves(self, number: int, message_bytes: int, halves: Sequence[Mapping[str, float | None]]) -> None:
        """Take a row: `MEASURES` out of place and in place, None where one was not measured."""
        for half in halves:
            if wrong := half.get("#wrong"):
                self.flaw = self.flaw or (
                    f"line {number}: {wrong:g} wrong values: results must be right; run nccl-tests again"
                )
            algbw, busbw = half.get("algbw"), half.get("busbw")
            if algbw is not None and busbw is not None:
                self.printed.append((algbw, busbw))
        out_of_place, in_place = (half.get("time") for half in halves)
        self.rows.append(LogRow(line=number, message_bytes=message_bytes, times_us=(out_of_place, in_place)))

    def log(self, name: str) -> NcclLog:
        """Return what the lines say together."""
        if "cputime" in self.columns:
            raise SimnetError(
                f"{name}: cputime: times of the CPU (-C 1) say nothing of the network; run nccl-tests without -C"
            )
        if self.flaw:
            raise SimnetError(f"{name}: {self.flaw}")
        if len(self.groups) > 1:
            raise SimnetError(
                f"{name}: the ranks form {len(self.groups)} groups that work at one time (NCCL_TESTS_SPLIT): must be "
                "one; run nccl-tests without it"
            )
        if not self.rows:
            failed = f" before it failed ({cut(self.failure, _SHOWN_LENGTH)})" if self.failure else ""
            raise SimnetError(f"{name}: no line with a time{failed}; give the whole output of nccl-tests")
        collective = _collective(self.programs[-1]) if self.programs else None
        num_nodes, ranks_per_node = _shape({rank: host for rank, (host, _, _) in self.ranks.items()}, name)
        has_ratio = _has_ratio(self.printed, num_nodes * ranks_per_node)
        if collective == "all_reduce" and has_ratio is False:
            raise SimnetError(
                f"{name}: {max(self.ranks) + 1} ranks are listed: the bandwidths are of another number; run nccl-tests "
                "again"
            )
        return NcclLog(
            name=name,
            # Some versions do not print the name of the program: then an operator without a root, and the ratio of
            # bandwidths, tell an all-reduce. On two ranks the ratio alone is that of most programs.
            collective=collective or ("all_reduce" if self.is_reduced and has_ratio else UNKNOWN),
            gpu=next(iter(self.ranks.values()))[2],
            num_nodes=num_nodes,
            ranks_per_node=ranks_per_node,
            rows=tuple(self.rows),
            failure=self.failure,
        )


def _runs(lines: Sequence[str]) -> Iterator[_LoggedRun]:
    """Yield the runs; what stands between the rows of one and the head of the next may name the next one's program."""
    run = _LoggedRun()
    between: list[str] = []
    for number, line in enumerate(lines, start=1):
        # A head comes in several lines, of which only the first after rows begins another run.
        if run.rows and (_HEAD.search(line) or _RANK.search(line)):
            yield run
            run, between = _LoggedRun(programs=between), []
        run.add(number, line)
        if program := _STARTING.search(line) or ("concluded" not in line and _PROGRAM.search(line)):
            (between if run.rows else run.programs).append(program[1])
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
    return tuple("#wrong" if name == "wrong" else name for name in words[words.index("size") :])


def _cells(words: Sequence[str], columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the cells of a row by column, without those that its program leaves empty; {} where they do not fit."""
    for blank in _BLANK:
        names = [name for name in columns if name not in blank]
        if len(names) == len(words):
            cells: dict[str, list[str]] = {}
            for name, word in zip(names, words, strict=True):
                cells.setdefault(name, []).append(word)
            return cells
    return {}


def _halves(cells: Mapping[str, Sequence[str]]) -> list[dict[str, float | None]]:
    """Return the measures of a row out of place and in place; none where one is no number."""
    # Older versions print the largest error in place of the number of wrong values.
    names = [name for name in (*MEASURES, "error") if name in cells]
    if not {"size", "time", "algbw", "busbw"} <= cells.keys():
        return []
    try:
        return [
            {name: None if cells[name][place] == "N/A" else float(cells[name][place]) for name in names}
            for place in (0, 1)
        ]
    except (IndexError, ValueError):
        return []


def _agrees(message_bytes: int, half: Mapping[str, float | None]) -> bool:
    """Return whether a time is one, and the bandwidth beside it is that of the message."""
    time_us, printed = half["time"], half["algbw"]
    if time_us is None:
        return True
    if not MIN_US <= time_us <= MAX_US:
        return False
    gb_per_s = message_bytes / time_us / 1e3
    # Two decimals of a small bandwidth say too little to judge the time by.
    if printed is None or max(gb_per_s, printed) < _CHECKED_GB_PER_S:
        return True
    return abs(printed - gb_per_s) <= _BANDWIDTH_TOLERANCE * gb_per_s


def _has_ratio(printed: Sequence[tuple[float, float]], ranks: int) -> bool | None:
    """Tell whether bus over algorithm bandwidth is 2(n - 1)/n, as of an all-reduce; None where none are printed."""
    # Where these have most digits.
    algbw, busbw = max(printed, default=(0.0, 0.0))
    if not (algbw > 0 and busbw > 0):
        return None
    ratio, expected = busbw / algbw, 2 * (ranks - 1) / ranks
    rounding = _DECIMALS_GB_PER_S * (1 / algbw + 1 / busbw)
    return abs(ratio - expected) <= (RATIO_TOLERANCE + rounding) * max(expected, ratio)


def _shape(hosts: Mapping[int, str], name: str) -> tuple[int, int]:
    """Return the number of nodes and the ranks on each, by hosts of ranks; a torn line of one leaves a gap."""
    if not hosts:
        raise SimnetError(
            f"{name}: no line '# Rank 0 Pid ... on HOST device ...'; give the whole output with its header"
        )
    counts = Counter(hosts.values())
    # Ranks are numbered without gaps: the largest number tells how many there are.
    per_node, rest = divmod(max(hosts) + 1, len(counts))
    if rest or max(counts.values()) > per_node or len(hosts) < MIN_LISTED_SHARE * per_node * len(counts):
        raise SimnetError(
            f"{name}: nodes with {sorted(set(counts.values()))} ranks: all nodes must have the same number; drop this "
            "log"
        )
    return len(counts), per_node


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


Measure = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_US)] | str | None
"""No number is written as the text "nan"."""


class _Half(msgspec.Struct):
    time: Measure = None
    cpu_time: Measure = None
    alg_bw: Measure = None
    bus_bw: Measure = None
    nwrong: Measure = None

    def measures(self) -> dict[str, float | None]:
        """Return `MEASURES`; None where one is no number, as a time below what a clock resolves."""
        values = zip(MEASURES, (self.time, self.alg_bw, self.bus_bw, self.nwrong), strict=True)
        numbers = {name: value if isinstance(value, float) else None for name, value in values}
        return numbers | ({"time": None} if (numbers["time"] or 0.0) < MIN_US else {})


class _Result(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
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
    """Return whether JSON is `-J` of nccl-tests."""
    return isinstance(data, dict) and {"config", "results", "nccl_version"} <= data.keys()


def of_json(data: Any, name: str) -> list[NcclLog]:
    """Return the run in JSON that `looks_like_json`."""
    whole = build(_NcclJson, data, name)
    devices = whole.config.devices
    programs = [program[1] for program in map(_PROGRAM.search, whole.args[:1]) if program]
    run = _LoggedRun(
        programs=programs + [result.experiment_name for result in whole.results[:1] if result.experiment_name]
    )
    for device in devices:
        run.add_rank(device.rank, (device.hostname, str(device.pid), device.device_info), str(device.group))
    # Without MPI the file names the first device alone.
    if len(devices) == 1:
        for rank in range(1, whole.config.nthreads * whole.config.ngpus):
            run.ranks[rank] = run.ranks[devices[0].rank]
    for number, result in enumerate(whole.results, start=1):
        halves = [result.out_of_place or _Half(), result.in_place or _Half()]
        if any(half.cpu_time is not None for half in halves):
            run.columns = ("cputime",)
        measures = [half.measures() for half in halves]
        if result.size and any(half["time"] is not None for half in measures):
            run.add_halves(number, result.size, measures)
    run.failure = whole.errors[0] if any(whole.errors[:1]) else "" if whole.end_time else "the file has no end_time"
    return [run.log(name)]


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
