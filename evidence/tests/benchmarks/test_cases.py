"""What is timed can run on the executor that its table names, and what is written keeps what was timed before."""

import ast
import re

import pytest

from evidence import ROOT
from evidence.benchmarks import __main__ as command
from evidence.benchmarks import cases
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import load

PAGE = ROOT / "docs/evidence/simulator.md"
FILES = {"simulator": "benchmarks.csv", "uneven": "benchmarks-uneven.csv"}


def test_every_row_is_a_scenario_for_the_executor_that_its_table_names():
    for title, of_table in cases.uneven().items():
        expected = "exact" if title == "The exact executor, a slow rank" else "grouped"
        for case in of_table:
            # The settings of the scenario that the case simulates.
            settings = re.search(r"^given = load\('bert_base_10gbit', (.*)\)$", case.arguments[-1], re.M)[1]
            assert PreparedScenario(load("bert_base_10gbit", ast.literal_eval(settings))).fidelity == expected


@pytest.mark.parametrize("name", cases.SETS)
def test_titles_differ_so_that_each_can_be_asked_for_alone(name):
    for group in cases.SETS[name]().values():
        titles = [case.title for case in group]
        assert len(set(titles)) == len(titles)


def test_tables_that_are_not_timed_anew_stay_in_the_file(tmp_path):
    path, titles = tmp_path / "data" / "rows.csv", ["Zero", "One", "Two"]
    first = {"what": "8 ranks", "time": "2 ms", "of the first": "1"}
    slow = {"what": "64, alike", "time": "3 ms", "of the first": "1.5", "before": "9 ms"}
    command.write(path, {"Two": [first], "One": [first, slow], "Gone": [first]}, titles)
    command.write(path, {"Two": [slow, first]}, titles)
    tables = command.read(path)
    assert {title: [row["what"] for row in of] for title, of in tables.items()} == {
        "One": ["8 ranks", "64, alike"],
        "Two": ["64, alike", "8 ranks"],
    }
    assert tables["One"][1] | slow == tables["One"][1]
    assert tables["One"][0]["before"] == ""


@pytest.mark.parametrize("name", FILES)
def test_the_files_have_every_table_and_the_page_leads_to_them(name):
    assert set(cases.SETS[name]()) <= set(command.read(PAGE.parent / "data" / FILES[name]))
    assert f"](data/{FILES[name]})" in PAGE.read_text(encoding="utf-8")
