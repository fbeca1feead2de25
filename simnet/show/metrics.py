"""Turn one run result into a JSON object, and that object into a flat row of a CSV file."""

from typing import Any

import msgspec

from simnet.result import Breakdown, RunResult, StrategyResult
from simnet.show.text import INLINE, part_title
from simnet.units import Bandwidth

BREAKDOWN_KEYS = Breakdown.__struct_fields__
METRIC_KEYS = (
    "iteration_s",
    "samples_per_s",
    "comm_s",
    "overlap",
    "nic_bytes_per_node",
    "compression_ratio",
    "num_buckets",
    "algorithm",
    "fidelity",
    "dense_iteration_s",
    "total_s",
)


def to_object(run_result: RunResult) -> dict[str, Any]:
    """Return the object of `simulate --format json`: the scenario and the strategy's metrics, flat at the top.

    `baseline` holds the same metrics of the baseline strategy, or None. Units stand in the keys; `overlap`,
    `compression_ratio` and `speedup` are plain ratios, `nic_bytes_per_node` leave one node in one iteration, and
    `gradient_bytes` are those of all gradients of one rank before compression. `intervals`, if draws were asked for,
    holds low and high end of 90 % intervals by key.
    """
    from simnet.scenario import to_dict

    baseline = run_result.baseline
    return {
        "scenario": to_dict(run_result.scenario),
        "question": run_result.scenario.question,
        "world_size": run_result.world_size,
        "gradient_bytes": run_result.gradient_bytes,
        **_strategy_object(run_result.result),
        "baseline": None if baseline is None else _strategy_object(baseline),
        "speedup": run_result.speedup,
        "end_to_end_speedup": run_result.end_to_end_speedup,
        "notes": list(run_result.notes),
        **({"intervals": msgspec.to_builtins(run_result.intervals)} if run_result.intervals else {}),
        "version": run_result.version,
    }


def _interval_columns(intervals: dict[str, Any]) -> dict[str, Any]:
    """Return both ends of every interval as columns, such as `speedup_low` and `speedup_high`."""
    return {
        f"{key}_{end}": value
        for key, ends in intervals.items()
        for end, value in zip(("low", "high"), ends, strict=True)
    }


def _strategy_object(result: StrategyResult) -> dict[str, Any]:
    """Return every metric of one strategy; its spans belong in a trace."""
    metrics: dict[str, Any] = msgspec.to_builtins(result)
    del metrics["spans"]
    return metrics


def to_row(point_set: dict[str, Any], obj: dict[str, Any]) -> dict[str, Any]:
    """Return one flat row: what the sweep set, then what was simulated, then every metric; units in the names.

    Args:
        point_set: The keys and values that the sweep set at this point; they come first.
        obj: The object that `to_object` returns.
    """
    baseline = obj["baseline"]
    return {
        **point_set,
        **_scenario_columns(obj["scenario"]),
        "strategy": obj["strategy"],
        "baseline": None if baseline is None else baseline["strategy"],
        "world_size": obj["world_size"],
        "gradient_bytes": obj.get("gradient_bytes"),
        "speedup": obj["speedup"],
        "end_to_end_speedup": obj["end_to_end_speedup"],
        **_metric_columns("", obj),
        **_metric_columns("baseline_", baseline),
        **_interval_columns(obj.get("intervals", {})),
        "notes": "; ".join(obj["notes"]),
        "version": obj["version"],
    }


def _scenario_columns(scenario: dict[str, Any]) -> dict[str, Any]:
    cluster = scenario["cluster"]
    return {
        "cluster": part_name(scenario, "cluster"),
        "workload": part_name(scenario, "workload"),
        "calibration": part_name(scenario, "calibration"),
        "num_nodes": cluster["num_nodes"],
        "ranks_per_node": cluster["ranks_per_node"],
        "nic_gbit_per_s": nic_gbit_per_s(cluster),
    }


def _metric_columns(prefix: str, metrics: dict[str, Any] | None) -> dict[str, Any]:
    """Return the metrics of one strategy as columns, empty ones for a strategy that there is not."""
    given: dict[str, Any] = metrics or {}
    breakdown = given.get("breakdown", {})
    return {f"{prefix}{key}": given.get(key) for key in METRIC_KEYS} | {
        f"{prefix}breakdown_{key}": breakdown.get(key) for key in BREAKDOWN_KEYS
    }


def part_name(scenario: dict[str, Any], part: str) -> str:
    """Return the name of a part of a resolved scenario, the scenario's own if the part was written in its file."""
    return part_title(scenario.get(part, {}).get("name", INLINE), str(scenario.get("name", INLINE)))


def nic_gbit_per_s(cluster: dict[str, Any]) -> float:
    """Return the nominal rate of all NICs of one node together [Gbit/s], from a resolved scenario's cluster."""
    bytes_per_s = Bandwidth.parse(cluster["inter_node"]["bandwidth"])
    nics: int = cluster.get("nics_per_node", 1)
    return bytes_per_s * nics * 8 / 1e9
