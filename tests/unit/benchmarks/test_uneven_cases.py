from benchmarks import regions, uneven_cases
from simnet.engine import prepared_scenario
from simnet.engine.scenario import load


def test_every_row_is_a_scenario_for_the_executor_that_its_table_names():
    for table in uneven_cases.tables():
        expected = {"The exact executor, a slow rank": "exact", "All ranks alike, folded, a DDP step": "folded"}
        for one in table.rows:
            found = prepared_scenario.PreparedScenario(load("bert_base_10gbit", one.settings))
            assert found.fidelity == expected.get(table.title, "grouped"), one.title


def test_tables_that_are_not_timed_anew_stay_in_the_page():
    text = "## Head\n\n### One\n\n| a |\n\n### Two\n\n| b |"
    page = f"# Page\n\n<!-- uneven ranks -->\n{text}\n<!-- end of uneven ranks -->\n"
    kept = uneven_cases.with_tables(page, "## New head", {"Two": "\n### Two\n\n| c |"}, ["Zero", "One", "Two"])
    assert kept == page.replace("## Head", "## New head").replace("| b |", "| c |")
    assert regions.every_region(page) == page.partition("\n\n")[2]
    assert not regions.every_region("# Page\n")
