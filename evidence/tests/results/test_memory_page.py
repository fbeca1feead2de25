"""Memory of a GPU: predictions made now are within the bounds that the page names."""

from tests.helpers.needs import needs

needs("torch")

from evidence.studies import memory
from evidence.studies.memory import CASES, predict

MOST_ERROR = 0.1


def test_every_case_was_measured_and_is_predicted_within_10_percent() -> None:
    measured = memory.read()
    assert set(measured) == {case.title for case in CASES}
    errors = {case.title: memory.error(predict(case), measured[case.title]) for case in CASES}
    assert {title: error for title, error in errors.items() if abs(error) > MOST_ERROR} == {}
