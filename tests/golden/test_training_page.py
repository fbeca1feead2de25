"""BinSGDM against Adam in training: the page says what the files say, and the files hold every run of the study."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.regions import filled
from studies import training_page
from studies.training_study import RESULTS, TrainingStudy


@pytest.fixture(scope="module")
def study() -> TrainingStudy:
    return TrainingStudy()


def test_the_page_says_what_the_files_say(study: TrainingStudy) -> None:
    text = training_page.PAGE.read_text(encoding="utf-8")
    assert filled(text, training_page.regions(study)) == text


def test_nothing_is_left_to_run(study: TrainingStudy) -> None:
    assert list(study.study.jobs_left()) == []


def test_files_of_an_earlier_version_are_read_with_every_number(study: TrainingStudy) -> None:
    """They hold evaluations as a list, and the mean of a search's losses; every committed file is of that version."""
    for name, ledger in study.results.items():
        former = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for old, new in zip(former, ledger.rows, strict=True):
            assert [point["step"] for point in old["curve"]] == new["steps"]
            assert [point["loss"] for point in old["curve"]] == new["values"]
            assert [point.get("accuracy") for point in old["curve"]] == new.get("accuracy", [None] * len(new["steps"]))
            assert new["intra_node_dtype"] == old["intra"] if "intra" in old else "intra_node_dtype" not in new
    for (task, optimizer), search in study.searches.items():
        former = json.loads((RESULTS / f"search_{task}.json").read_text(encoding="utf-8"))
        wanted = [(row["lr"], row["loss"]) for row in former if row["optimizer"] == optimizer]
        means = [sum(row["losses"]) / len(row["losses"]) for row in search.rows]
        assert [(row["trial"]["lr"], mean) for row, mean in zip(search.rows, means, strict=True)] == wanted
