from pathlib import Path

from benchmarks import cases, measured, regions, uneven_cases
from simnet.engine import prepared_scenario
from simnet.engine.scenario import load

PAGE = Path(__file__).parents[3] / "docs/evidence/benchmarks.md"


def test_every_row_is_a_scenario_for_the_executor_that_its_table_names():
    for table in uneven_cases.tables():
        expected = {"The exact executor, a slow rank": "exact", "All ranks alike, folded, a DDP step": "folded"}
        for one in table.rows:
            found = prepared_scenario.PreparedScenario(load("bert_base_10gbit", one.settings))
            assert found.fidelity == expected.get(table.title, "grouped"), one.title


def test_tables_that_are_not_timed_anew_stay_in_the_file(tmp_path):
    path, titles = tmp_path / "data" / "rows.csv", ["Zero", "One", "Two"]
    first = {"what": "8 ranks", "time": "2 ms", "of the first": "1"}
    slow = {"what": "64, alike", "time": "3 ms", "of the first": "1.5", "before": "9 ms"}
    measured.write(path, {"Two": [first], "One": [first, slow], "Gone": [first]}, titles)
    again = measured.write(path, {"Two": [slow, first]}, titles)
    assert again.splitlines()[2:] == [
        "| One | 8 ranks: 2 ms | 64, alike: 3 ms | 1.5 |",
        "| Two | 64, alike: 3 ms | 64, alike: 3 ms | 1.5 |",
    ]
    found = measured.read(path)
    assert list(found) == ["One", "Two"]
    assert found["One"][1] | slow == found["One"][1]
    assert found["One"][0]["before"] == ""


def test_the_page_tells_the_first_and_the_slowest_row_of_its_files():
    page = PAGE.read_text(encoding="utf-8")
    titles = [group.title for group in cases.groups()], [table.title for table in uneven_cases.tables()]
    for file, wanted in zip(("benchmarks.csv", "benchmarks-uneven.csv"), titles, strict=True):
        found = measured.read(PAGE.parent / "data" / file)
        assert list(found) == wanted
        assert measured.summary(found) in page


def test_regions_of_other_programs_are_kept():
    page = "# Page\n\n<!-- one -->\ntext\n<!-- end of one -->\n"
    assert regions.every_region(page) == page.partition("\n\n")[2]
    assert not regions.every_region("# Page\n")
