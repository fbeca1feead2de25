"""Output of nccl-tests that no machine has printed: a ring of 40 GB/s and 50 us, in the layouts of the suite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HEADER = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  1 on a device  0 [0000:07:00] NVIDIA H100
#  Rank  1 Group  0 Pid  1 on a device  1 [0000:0f:00] NVIDIA H100
"""
NEW = f"""{HEADER}\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576        262144     float     sum      -1    10.00  104.86  104.86       0    11.00   95.33   95.33     N/A
# Out of bounds values : 0 OK
"""
OLD = f"""{HEADER}\
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576        262144     float     sum    10.00  104.86  104.86  0e+00    11.00   95.33   95.33    N/A
"""
MEASURES = ["time", "algbw", "busbw", "#wrong"]
COLUMNS = ["size", "count", "type", "redop", "root", *MEASURES, *MEASURES]
SIZES = 28


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: its ranks, its program (not printed if empty), its times, and bus over algorithm bandwidth."""

    num_nodes: int = 1
    ranks_per_node: int = 2
    program: str = ""
    operator: str = "sum"
    root: str = "-1"
    host: str = "n"
    pid: int = 1000
    latency_us: float = 50.0
    bytes_per_us: float = 40e3
    ratio: float | None = None

    @property
    def ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def bus_ratio(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks if self.ratio is None else self.ratio

    def time_us(self, size: int, place: int) -> float:
        return (1 - 0.01 * place) * (self.latency_us + self.bus_ratio * size / self.bytes_per_us)

    def host_of(self, rank: int) -> str:
        return f"{self.host}{rank // self.ranks_per_node}" if self.host == "n" else self.host

    def text(self, columns: Sequence[str] = COLUMNS, *, sizes: int = SIZES, groups: int = 1, ends: bool = True) -> str:
        """Return the run as printed, with these columns."""
        lines = [f"# Collective test starting: {self.program}"] if self.program else []
        lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20", "#"]
        lines += ["# Using devices"]
        lines += [
            f"#  Rank {rank:2} Group {rank % groups:2} Pid {self.pid + rank} on {self.host_of(rank):>10} device "
            f"{rank % self.ranks_per_node:2} [0000:{rank:02x}:00] NVIDIA H100 80GB HBM3"
            for rank in range(self.ranks)
        ]
        lines += ["#", "#       " + "  ".join(columns), "#        (B)    (elements)    (us)  (GB/s)  (GB/s)"]
        lines += [self._row(2**power, columns) for power in range(3, 3 + sizes)]
        return "\n".join([*lines, *(["# Out of bounds values : 0 OK", "#"] if ends else []), ""])

    def _row(self, size: int, columns: Sequence[str]) -> str:
        cells = []
        seen: dict[str, int] = {}
        for name in columns:
            place = seen[name] = seen.get(name, -1) + 1
            # Bandwidths go with the time as it is printed.
            time_us = float(f"{self.time_us(size, place):.4g}")
            known = {
                "size": str(size), "count": str(size // 4), "type": "float", "redop": self.operator, "root": self.root,
                "time": f"{time_us:.6g}", "cputime": f"{time_us:.6g}", "algbw": f"{size / time_us / 1e3:.2f}",
                "busbw": f"{self.bus_ratio * size / time_us / 1e3:.2f}", "#wrong": "0",
                "timestamp": "2026-01-01 10:00:01", "iters": "20",
            }  # fmt: skip
            cells.append(known.get(name, "1.25"))
        return "   ".join(filter(None, ["    ", *cells]))

    def as_json(self) -> dict[str, Any]:
        """Return the run as `-J` writes it."""
        devices = [
            {
                "rank": rank, "group": 0, "pid": self.pid + rank, "hostname": self.host_of(rank), "device": 0,
                "device_info": "NVIDIA H100 80GB HBM3",
            }
            for rank in range(self.ranks)
        ]  # fmt: skip
        return {
            "version": 2, "args": ["./build/all_reduce_perf", "-J", "x.json"], "nccl_version": 22703,
            "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
            "results": [
                {
                    "size": size, "experiment_name": "AllReduce",
                    "out_of_place": self._half(size, 0), "in_place": self._half(size, 1),
                }
                for size in (2**power for power in range(3, 3 + SIZES))
            ],
            "end_time": "2026-01-01 10:01:00",
        }  # fmt: skip

    def _half(self, size: int, place: int) -> dict[str, float]:
        time_us = self.time_us(size, place)
        algbw = size / time_us / 1e3
        return {"time": time_us, "alg_bw": algbw, "bus_bw": self.bus_ratio * algbw, "nwrong": 0.0}


def mixed(*runs: Run) -> str:
    """Return the outputs of runs line by line in turn, as where several jobs print to one terminal."""
    lines = zip(*(run.text().splitlines() for run in runs), strict=True)
    return "\n".join(line for together in lines for line in together) + "\n"
