"""Four questions of a sceptic on clusters as they are: sweeps of shipped experiments, kept as one file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from simnet.analysis import sweeps
from simnet.engine.result import RunResult, StrategyResult
from simnet.engine.scenario import load_experiment

EXPERIMENTS = ("slow_rank", "neighbour", "jitter", "flapping_nic")
RESULTS = Path(__file__).parent / "results" / "uneven_questions.json"
NODES, BANDWIDTH = "cluster.num_nodes", "cluster.inter_node.bandwidth"


class Times(Struct, frozen=True, kw_only=True):
    """Times of an iteration of one strategy [s]."""

    mean_s: float
    p50_s: float
    p95_s: float
    longest_s: float


class Row(Struct, frozen=True, kw_only=True):
    """One point of an experiment.

    Attributes:
        experiment: its name.
        nodes: number of nodes.
        gbit_per_s: rate of a node's NIC [Gbit/s].
        amount: the swept number of the fault: a slowdown, a share, a coefficient of variation, a rate.
        binsgdm: the strategy.
        ddp: the baseline, DDP in bf16 by NCCL's fastest algorithm.
    """

    experiment: str
    nodes: int
    gbit_per_s: float
    amount: float
    binsgdm: Times
    ddp: Times

    def speedup(self, name: str = "p50_s") -> float:
        """Return how many times as long DDP takes, of medians or of another time by its name."""
        return float(getattr(self.ddp, name) / getattr(self.binsgdm, name))


def write(path: Path = RESULTS) -> None:
    """Sweep every experiment, and write what was found."""
    found = [row for name in EXPERIMENTS for row in sweep(name)]
    plain = [{key: _plain(getattr(row, key)) for key in Row.__struct_fields__} for row in found]
    lines = ",\n".join(json.dumps(row) for row in plain)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _plain(value: object) -> object:
    if isinstance(value, Times):
        return {key: float(f"{getattr(value, key):.6g}") for key in Times.__struct_fields__}
    return value


def sweep(name: str, axes: Mapping[str, Sequence[object]] | None = None) -> list[Row]:
    """Return the points of an experiment, with other values for some of its axes."""
    points = sweeps.expand(load_experiment(name, axes=axes))
    found = zip(points, sweeps.run(points), strict=True)
    return [_row(name, point.values, result) for point, result in found if isinstance(result, RunResult)]


def _row(name: str, values: Mapping[str, Any], point: RunResult) -> Row:
    (amount,) = (value for key, value in values.items() if key not in (NODES, BANDWIDTH))
    assert point.baseline is not None
    return Row(
        experiment=name,
        nodes=point.num_nodes,
        gbit_per_s=point.nic_gbit_per_s,
        amount=float(amount),
        binsgdm=_times(point.result),
        ddp=_times(point.baseline),
    )


def _times(result: StrategyResult) -> Times:
    return Times(mean_s=result.iteration_s, p50_s=result.p50_s, p95_s=result.p95_s, longest_s=result.longest_s)


def read(path: Path = RESULTS) -> list[Row]:
    """Return what was found."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row])


def line(rows: Sequence[Row], experiment: str, gbit_per_s: float, nodes: int | None = None) -> list[Row]:
    """Return the points of an experiment at one bandwidth and, if given, one number of nodes, by their amount."""
    mine = [row for row in rows if row.experiment == experiment and row.gbit_per_s == gbit_per_s]
    return sorted((row for row in mine if nodes in (None, row.nodes)), key=lambda row: row.amount)
