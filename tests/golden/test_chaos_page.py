"""What ranks do when one is lost: the page says what its file says."""

from tests.helpers.needs import needs

needs("torch")

from benchmarks.regions import filled
from studies.chaos import study
from studies.page import data_differs


def test_the_page_says_what_the_file_says() -> None:
    rows = study.read()
    text = study.PAGE.read_text(encoding="utf-8")
    assert filled(text, study.regions(rows)) == text
    assert data_differs(study.data(rows)) == []
