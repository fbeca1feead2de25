"""What ranks do when one is lost: the page says what its file says."""

from tests.helpers.needs import needs

needs("torch")

from benchmarks.regions import filled
from studies.chaos import table
from studies.chaos.__main__ import RESULTS
from studies.ledger import Ledger
from studies.page import data_differs


def test_the_page_says_what_the_file_says() -> None:
    rows = Ledger(RESULTS, order=lambda row: row["seed"]).rows
    text = table.PAGE.read_text(encoding="utf-8")
    assert filled(text, table.regions(rows)) == text
    assert data_differs(table.data(rows)) == []
