"""The fields of a result, and that columns, types, lines and the reference follow from the one list of them."""

import csv
import io
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("pyarrow")

from pyarrow import parquet, types

from docs import generate
from simnet.core.units import format_seconds
from simnet.report import result_page, rows
from simnet.report.frame import write_parquet
from simnet.report.rows import Field, row, table
from simnet.report.table import Table
from tests.helpers.report_samples import run_result

IS_OF_KIND = {float: types.is_floating, int: types.is_integer, str: types.is_large_string}
BUSY = Field("busy_s", "s", float, "busy stream", 4, of="comm_s")


def test_csv_and_parquet_have_the_fields_in_order_whatever_is_missing(tmp_path: Path) -> None:
    whole = row(run_result(num_nodes=4), {"key": 1})
    without_intervals = [name for name in whole if name.removesuffix("_low").removesuffix("_high") == name]
    assert without_intervals == ["key", *rows.BY_NAME]
    (read,) = csv.DictReader(io.StringIO(table([whole]).csv()))
    assert list(read) == list(whole)
    assert (float(read["iteration_s"]), read["dense_iteration_s"]) == (whole["iteration_s"], "")
    with (tmp_path / "results.parquet").open("wb") as file:
        write_parquet([whole], file)
    schema = parquet.read_schema(tmp_path / "results.parquet")
    assert [name for name, field in rows.BY_NAME.items() if not IS_OF_KIND[field.kind](schema.field(name).type)] == []


def test_a_further_field_is_a_column_a_line_and_an_item_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "FIELDS", (*rows.FIELDS, Field("busy_s", "s", float, "busy stream", of="result.comm_s")))
    monkeypatch.setattr(result_page, "METRICS", (*rows.METRICS, BUSY))
    result = run_result(num_nodes=4)
    assert row(result)["busy_s"] == result.result.comm_s
    (line,) = [line for line in str(result_page.result_page(result)).splitlines() if line.startswith("busy stream")]
    assert line.split()[2:4] == rows.UNITS["s"](result.result.comm_s).split()
    assert generate.column_rows([BUSY]) == "`busy_s` (busy stream)"


def test_what_a_field_holds_becomes_an_object_of_its_parts_several_a_list_and_a_missing_one_nothing() -> None:
    whole = run_result(num_nodes=4)
    inner = Field("iteration_s", "s", float, "step"), Field("wait", "s", float, "wait", of="waits.mean_s")
    step = {"iteration_s": whole.result.iteration_s, "wait": None}
    fields = (
        Field("step", "", dict, "step", of="result", parts=inner),
        Field("steps", "", list, "steps", of=lambda run: (run.result, run.result), parts=inner),
        Field("missing", "", dict, "nothing", of=lambda _: None, parts=inner),
    )
    assert rows.row_of(fields, whole) == {"step": step, "steps": [step, step], "missing": None}


def test_a_field_is_a_column_of_a_table_in_its_unit_with_a_dash_for_what_is_missing() -> None:
    step, missing = Field("iteration_s", "s", float, "step"), Field("p50_s", "s", float, "p50", of=lambda _: None)
    result = run_result(num_nodes=4).result
    assert (
        Table.of([step.column, missing.column], [result]).csv() == f"step,p50\n{format_seconds(result.iteration_s)},-\n"
    )


@pytest.mark.slow
def test_the_reference_lists_every_field() -> None:
    listed = generate.rendered("files.md").partition("### columns")[2].partition("### memory")[0]
    assert [one.name for one in (*rows.OF_RUN, *rows.METRICS, *rows.LAST) if f"`{one.name}`" not in listed] == []
