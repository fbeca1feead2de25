import ast
import re
from pathlib import Path

from evidence.benchmarks import __main__ as measured
from evidence.benchmarks import cases
from simnet.engine import prepared_scenario
from simnet.engine.scenario import load

PAGE = Path(__file__).parents[3] / "docs/evidence/simulator.md"


def test_every_row_is_a_scenario_for_the_executor_that_its_table_names():
    for title, of_table in cases.uneven().items():
        expected = {"The exact executor, a slow rank": "exact", "All ranks alike, folded, a DDP step": "folded"}
        for one in of_table:
            found = prepared_scenario.PreparedScenario(load("bert_base_10gbit", settings(one.arguments)))
            assert found.fidelity == expected.get(title, "grouped"), one.title


def settings(arguments: tuple[str, ...]):
    """Return the settings of the scenario that a case simulates."""
    return ast.literal_eval(re.search(r"^given = load\('bert_base_10gbit', (.*)\)$", arguments[-1], re.M)[1])


def test_tables_that_are_not_timed_anew_stay_in_the_file(tmp_path):
    path, titles = tmp_path / "data" / "rows.csv", ["Zero", "One", "Two"]
    first = {"what": "8 ranks", "time": "2 ms", "of the first": "1"}
    slow = {"what": "64, alike", "time": "3 ms", "of the first": "1.5", "before": "9 ms"}
    measured.write(path, {"Two": [first], "One": [first, slow], "Gone": [first]}, titles)
    measured.write(path, {"Two": [slow, first]}, titles)
    found = measured.read(path)
    assert {title: [row["what"] for row in of] for title, of in found.items()} == {
        "One": ["8 ranks", "64, alike"],
        "Two": ["64, alike", "8 ranks"],
    }
    assert found["One"][1] | slow == found["One"][1]
    assert found["One"][0]["before"] == ""


def test_the_files_have_every_table_and_the_page_leads_to_them():
    page = PAGE.read_text(encoding="utf-8")
    titles = list(cases.simulator()), list(cases.uneven())
    for file, wanted in zip(("benchmarks.csv", "benchmarks-uneven.csv"), titles, strict=True):
        found = measured.read(PAGE.parent / "data" / file)
        assert list(found) == wanted
        assert f"](data/{file})" in page
