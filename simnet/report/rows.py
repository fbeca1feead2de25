"""The fields of a result, listed once: columns of CSV, Parquet, data frames and tables, keys of JSON, the reference."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simnet.core.units import format_bytes, format_seconds
from simnet.engine.result import Breakdown, RunResult
from simnet.report.figure import STEP_PARTS
from simnet.report.table import Column, Table
from simnet.report.text import (
    bandwidth_text,
    calibration_title,
    part_title,
    percent,
    speedup_text,
    throughput_text,
    workload_title,
)

if TYPE_CHECKING:
    from pandas import Series

Row = dict[str, object]
UNITS: dict[str, Callable[[Any], str]] = {
    "s": format_seconds,
    "B": format_bytes,
    "Gbit/s": bandwidth_text,
    "samples/s": throughput_text,
    "speedup": speedup_text,
    "ratio": lambda ratio: f"{ratio:.4g}x",
    "fraction": percent,
    "days": lambda days: f"{days:,.4g}",
    "money": lambda money: f"{money:,.4g}",
}
"""How people read a number of a unit; any other value stands as it is."""


class Field(Struct, frozen=True):
    """One fact of a result.

    Attributes:
        name: its column, which ends in the unit.
        unit: of its numbers, which says how people read them.
        kind: of its values; any may be missing.
        text: what people call it.
        line: its place among the lines of a run's page; 0 for what stands elsewhere, or nowhere.
        of: where a result has it: attributes, with dots between them; by default the one of its name.
        parts: fields of what it holds, one thing or several, which are objects for programs.
    """

    name: str
    unit: str
    kind: type
    text: str
    line: int = 0
    of: str | Callable[[Any], object] = ""
    parts: "tuple[Field, ...]" = ()

    def value(self, result: Any) -> Any:
        """Return the field of a result; None where it, or what holds it, is missing."""
        value = result
        if isinstance(self.of, str):
            for name in (self.of or self.name).split("."):
                value = None if value is None else getattr(value, name)
        else:
            value = self.of(result)
        if not self.parts or value is None:
            return value
        return [row_of(self.parts, part) for part in value] if isinstance(value, tuple) else row_of(self.parts, value)

    def cell(self, result: Any, missing: str = "") -> str:
        """Return the field of a result as people read it."""
        value = self.value(result)
        return missing if value is None else UNITS.get(self.unit, str)(value)

    @property
    def column(self) -> Column:
        """Its column in a table for people."""
        return Column(self.text, cell=lambda result: self.cell(result, missing="-"))


# Programs read columns by place, too: a new one stands at the end, and `line` puts it where people look for it.
METRICS = (
    Field("iteration_s", "s", float, "step time"),
    Field("samples_per_s", "samples/s", float, "throughput", 1),
    Field("comm_s", "s", float, "communication time", 2),
    Field("overlap", "fraction", float, "  hidden behind compute", 3),
    Field("nic_bytes_per_node", "B", float, "NIC bytes out of a node", 4),
    Field("compression_ratio", "ratio", float, "compression ratio", 5),
    Field("num_buckets", "", int, "buckets", 7),
    Field("algorithm", "", str, "algorithm", 6),
    Field("fidelity", "", str, "executor"),
    Field("memory_bytes", "B", float, "memory of a GPU"),
    Field("longest_pause_s", "s", float, "longest wait", 8),
    Field("dense_iteration_s", "s", float, "dense step time", 11),
    Field("total_s", "s", float, "end-to-end time", 12),
    Field("num_iterations", "", int, "simulated iterations"),
    Field("p50_s", "s", float, "p50"),
    Field("p95_s", "s", float, "p95"),
    Field("p99_s", "s", float, "p99"),
    Field("longest_s", "s", float, "longest"),
    Field("wait_s", "s", float, "wait for others (mean rank)", 9),
    Field("trained_fraction", "fraction", float, "part of a day that trains", 10),
    Field("approximation", "fraction", float, "distance from the exact executor, about"),
    *(
        Field(f"breakdown_{key}", "s", float, STEP_PARTS[key][0], of=f"breakdown.{key}")
        for key in Breakdown.__struct_fields__
    ),
)
"""Of one strategy."""
OF_RUN = (
    Field("cluster", "", str, "cluster", of=lambda run: part_title(run.scenario.cluster.name, run.scenario.name)),
    Field("workload", "", str, "workload", of=lambda run: workload_title(run.scenario)),
    Field("calibration", "", str, "calibration", of=lambda run: calibration_title(run.scenario)),
    Field("num_nodes", "", int, "nodes"),
    Field("ranks_per_node", "", int, "GPUs of a node"),
    Field("grad_accumulation", "", int, "micro-batches of a step", of="scenario.grad_accumulation"),
    Field("nic_gbit_per_s", "Gbit/s", float, "bandwidth of all NICs of a node"),
    Field("strategy", "", str, "strategy", of="result.strategy"),
    Field("baseline", "", str, "what it is compared with", of="baseline.strategy"),
    Field("world_size", "", int, "ranks"),
    Field("gradient_bytes", "B", float, "gradients of a rank"),
    Field("speedup", "speedup", float, "speedup"),
    Field("end_to_end_speedup", "speedup", float, "speedup end to end"),
    Field("speedup_over_flat", "speedup", float, "speedup over flat DDP"),
    Field("speedup_over_named", "speedup", float, "speedup over the scenario's baseline"),
    Field("flat_iteration_s", "s", float, "step of flat DDP", of="references.flat_s"),
    Field("tuned_iteration_s", "s", float, "step of tuned DDP", of="references.tuned_s"),
    Field("tuned_reference", "", str, "tuned DDP in words", of="references.tuned"),
)
"""Of a run beside what its strategies take."""
FIELDS = (
    *OF_RUN,
    *(replace(field, of=f"result.{field.of or field.name}") for field in METRICS),
    *(replace(field, name=f"baseline_{field.name}", of=f"baseline.{field.of or field.name}") for field in METRICS),
)
"""Of a run, in the order of the columns; behind the keys of a sweep."""
LAST = (
    Field("notes", "", str, "what to know to trust the numbers", of=lambda run: "; ".join(run.notes)),
    Field("version", "", str, "version of simnet"),
)
"""Columns behind those of the intervals."""
COMPARISON = (
    Field("series", "", str, "series"),
    Field("label", "", str, "row"),
    Field("role", "", str, "whether a fit saw it"),
    Field("measured", "", float, "measured"),
    Field("predicted", "", float, "predicted"),
    Field("predicted_low", "", float, "low", of=lambda row: row.interval and row.interval[0]),
    Field("predicted_high", "", float, "high", of=lambda row: row.interval and row.interval[1]),
    Field("error", "fraction", float, "error"),
    Field("is_inside", "", bool, "inside"),
)
"""Of a measured value beside the predicted one, seconds or ratios."""
BY_NAME = {field.name: field for field in (*FIELDS, *LAST)}


def row(result: RunResult, values: Mapping[str, object] | None = None) -> Row:
    """Return one flat row: the swept keys, the fields, and the ends of every interval as "NAME_low", "NAME_high"."""
    ends = {
        f"{key}_{end}": value
        for key, interval in result.intervals.items()
        for end, value in zip(("low", "high"), interval, strict=True)
    }
    return {**(values or {}), **row_of(FIELDS, result), **ends, **row_of(LAST, result)}


def row_of(fields: Iterable[Field], result: Any) -> Row:
    """Return fields of a result by name: a row of a data frame, or an object of JSON."""
    return {field.name: field.value(result) for field in fields}


def table(rows: Iterable[Row]) -> Table:
    """Return rows as a table with the columns of all of them."""
    kept = list(rows)
    columns = list(dict.fromkeys(column for row in kept for column in row))
    return Table(columns, [[cell(row.get(column)) for column in columns] for row in kept])


def json_text(answer: object, indent: int = 2) -> str:
    """Return what programs read of an answer as JSON, its quantities as numbers."""
    return msgspec.json.format(msgspec.json.encode(answer, enc_hook=float), indent=indent).decode()


def cell(value: object) -> str:
    """Return a value as programs read it: tables and lists as JSON, nothing for what there is not."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return "" if value is None else str(value)


def parquet_column(name: str, values: "Series[Any]") -> "Series[Any]":
    """Return a column of objects as Parquet holds it: of its field's kind even where all are missing, else as text."""
    kind = BY_NAME[name].kind if name in BY_NAME else str
    if kind is str:
        return values.map(cell, na_action="ignore").astype("string")
    return values.astype("Int64" if kind is int else "float64")
