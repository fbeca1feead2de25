"""Results as flat rows with a unit in each column's name: the CSV of a run or a sweep, and the rows of a data frame."""

import json
from collections.abc import Iterable, Mapping

from simnet.engine.result import Breakdown, RunResult, StrategyResult
from simnet.report.table import Table
from simnet.report.text import part_title, workload_title

Row = dict[str, object]
METRICS = (
    "iteration_s",
    "samples_per_s",
    "comm_s",
    "overlap",
    "nic_bytes_per_node",
    "compression_ratio",
    "num_buckets",
    "algorithm",
    "fidelity",
    "memory_bytes",
    "longest_pause_s",
    "dense_iteration_s",
    "total_s",
    "num_iterations",
    "p50_s",
    "p95_s",
    "p99_s",
    "longest_s",
    "wait_s",
    "trained_fraction",
    "approximation",
)
_ENDS = ("low", "high")


def row(result: RunResult, values: Mapping[str, object] | None = None) -> Row:
    """Return one flat row: the swept keys, then the scenario, then every metric."""
    scenario = result.scenario
    return {
        **(values or {}),
        "cluster": part_title(scenario.cluster.name, scenario.name),
        "workload": workload_title(scenario),
        "calibration": part_title(scenario.calibration.name, scenario.name),
        "num_nodes": scenario.cluster.num_nodes,
        "ranks_per_node": scenario.cluster.ranks_per_node,
        "grad_accumulation": scenario.grad_accumulation,
        "nic_gbit_per_s": result.nic_gbit_per_s,
        "strategy": result.result.strategy,
        "baseline": result.baseline and result.baseline.strategy,
        "world_size": result.world_size,
        "gradient_bytes": result.gradient_bytes,
        "speedup": result.speedup,
        "end_to_end_speedup": result.end_to_end_speedup,
        "speedup_over_flat": result.speedup_over_flat,
        "speedup_over_named": result.speedup_over_named,
        "flat_iteration_s": result.references and result.references.flat_s,
        "tuned_iteration_s": result.references and result.references.tuned_s,
        "tuned_reference": result.references and result.references.tuned,
        **_metrics("", result.result),
        **_metrics("baseline_", result.baseline),
        **{f"{key}_{end}": ends[i] for key, ends in result.intervals.items() for i, end in enumerate(_ENDS)},
        "notes": "; ".join(result.notes),
        "version": result.version,
    }


def _metrics(prefix: str, result: StrategyResult | None) -> Row:
    """Return the metrics of one strategy as columns, empty ones for a strategy that there is not."""
    parts = result and result.breakdown
    return {f"{prefix}{key}": result and getattr(result, key) for key in METRICS} | {
        f"{prefix}breakdown_{key}": parts and getattr(parts, key) for key in Breakdown.__struct_fields__
    }


def table(rows: Iterable[Row]) -> Table:
    """Return rows as a table with the columns of all of them."""
    kept = list(rows)
    columns = list(dict.fromkeys(column for row in kept for column in row))
    return Table(columns, [[cell(row.get(column)) for column in columns] for row in kept])


def cell(value: object) -> str:
    """Return a value as programs read it: tables and lists as JSON, nothing for what there is not."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return "" if value is None else str(value)
