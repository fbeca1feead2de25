"""A ledger keeps every row, whoever else writes, and a reader never sees half a file."""

import json
from pathlib import Path

from tests.helpers.needs import needs

needs("torch", "sklearn")

from evidence.studies.study import Ledger, having


def test_a_row_is_added_once_and_replaced_by_its_key(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "rows.json")
    ledger.put({"seed": 0}, {"loss": 1.0})
    ledger.put({"seed": 1}, {"loss": 2.0})
    ledger.put({"seed": 0}, {"loss": 3.0})
    assert ledger.rows == [{"seed": 1, "loss": 2.0}, {"seed": 0, "loss": 3.0}]
    assert Ledger(tmp_path / "rows.json").rows == ledger.rows


def test_rows_of_another_process_are_kept(tmp_path: Path) -> None:
    first, other = (Ledger(tmp_path / "rows.json") for _ in range(2))
    assert first.rows == []
    other.put({"seed": 1}, {})
    first.put({"seed": 0}, {})
    assert first.rows == [{"seed": 1}, {"seed": 0}]


def test_a_file_is_one_row_a_line_below_its_head(tmp_path: Path) -> None:
    ledger = Ledger(
        tmp_path / "rows.json", "curves", head=lambda rows: {"num_rows": len(rows)}, order=lambda row: row["seed"]
    )
    ledger.put({"seed": 1}, {})
    ledger.put({"seed": 0}, {})
    assert ledger.path.read_text() == '{\n"num_rows": 2,\n"curves": [\n{"seed": 0},\n{"seed": 1}\n]\n}\n'
    ledger.write(ledger.rows, {"target": 1})
    assert json.loads(ledger.path.read_text()) == {"target": 1, "curves": [{"seed": 0}, {"seed": 1}]}


def test_none_stands_for_a_value_that_a_row_does_not_name() -> None:
    rows = [{"lr": 1, "draw": False}, {"lr": 1}]
    assert having(rows, {"lr": 1, "draw": None}) == [{"lr": 1}]
