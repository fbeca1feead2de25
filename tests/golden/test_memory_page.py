"""Memory of a GPU: the page says what the file says, and predictions made now are within the bounds that it names."""

from tests.helpers.needs import needs

needs("torch")

from benchmarks.regions import filled
from studies import memory
from studies.memory import CASES, predict
from studies.page import data_differs

MOST_ERROR = 0.1


def test_the_page_says_what_the_file_and_todays_predictions_say() -> None:
    text = memory.PAGE.read_text(encoding="utf-8")
    assert filled(text, memory.regions(memory.read())) == text
    assert data_differs(memory.data(memory.read())) == []


def test_every_case_was_measured_and_is_predicted_within_10_percent() -> None:
    measured = memory.read()
    assert set(measured) == {case.title for case in CASES}
    errors = {case.title: memory.error(predict(case), measured[case.title]) for case in CASES}
    assert {title: error for title, error in errors.items() if abs(error) > MOST_ERROR} == {}
