"""Two texts compared number by number: what differs is found, and what only moved is not."""

import math

import pytest

from evidence.benchmarks.compare_checkouts import compare

TABLE = "name,time_s,notes,version\na,0.25,short,1\nb,1e-3,,1\n"


def test_equal_tables_have_no_difference_and_every_number_is_counted() -> None:
    finding = compare(TABLE, TABLE.replace(",1\n", ",2\n"), "csv")
    assert (finding.numbers, finding.largest, finding.differing, finding.texts) == (2, 0.0, [], [])


def test_the_last_digit_of_a_number_is_a_difference() -> None:
    finding = compare(TABLE, TABLE.replace("0.25", "0.25000000000000006"), "csv")
    assert finding.differing == ["row 1, time_s: 0.25 -> 0.25000000000000006"]
    assert finding.largest == pytest.approx(2.2e-16, rel=0.1)


@pytest.mark.parametrize("form", ["csv", "prose"])
def test_a_number_within_the_tolerance_counts_as_none_and_the_largest_is_kept(form: str) -> None:
    after = TABLE.replace("0.25", "0.2500001")
    finding = compare(TABLE, after, form, tolerance=1e-6)
    assert (finding.differing, finding.texts) == ([], [])
    assert finding.largest == pytest.approx(4e-7)
    assert len(compare(TABLE, after, form, tolerance=1e-7).differing) == 1
    assert compare(TABLE, TABLE.replace("0.25", "nan"), "csv", tolerance=1.0).largest == math.inf


def test_a_number_that_is_gone_is_a_difference_and_another_word_is_a_text() -> None:
    finding = compare(TABLE, TABLE.replace("1e-3", "").replace("short", "long"), "csv")
    assert (finding.largest, len(finding.differing)) == (math.inf, 1)
    assert finding.texts == ["row 1, notes: 'short' -> 'long'"]


def test_columns_and_rows_of_one_side_are_listed() -> None:
    finding = compare(TABLE, "name,time_s,notes,kind,version\na,0.25,short,x,1\n", "csv")
    assert "row 1, kind: only after" in finding.texts
    assert "row 2, time_s: only before" in finding.texts


def test_items_with_names_are_compared_in_any_order() -> None:
    before = '{"systems": [{"name": "x", "s": 1.5}, {"name": "y", "s": 2.5}], "version": "1"}'
    after = '{"systems": [{"name": "y", "s": 2.5}, {"name": "x", "s": 1.75}]}'
    finding = compare(before, after, "json")
    assert finding.differing == ["systems.x.s: 1.5 -> 1.75"]


def test_lines_of_a_page_are_matched_by_their_words() -> None:
    before = "# Page\n\n| ring | 5.53x |\n| tree | 1,606 GB |\n"
    after = "# Page\nOne line more.\n\n| ring | 5.54x  |\n| tree | 1,606 GB |\n"
    finding = compare(before, after, "prose")
    assert finding.differing == ["line 3: 5.53 -> 5.54"]
    assert (finding.numbers, len(finding.texts)) == (2, 1)


def test_the_layout_of_a_toml_file_and_of_a_ruler_is_no_difference() -> None:
    finding = compare('a = [1.5, 2]\nb = {c = "x"}\n', 'a = [\n    1.5,\n    3,\n]\n[b]\nc = "x"\n', "toml")
    assert (finding.numbers, finding.differing, finding.texts) == (2, ["a.1: 2.0 -> 3.0"], [])
    assert compare("| a | b |\n| --- | --- |\n", "| a | b |\n|---|---|\n", "prose").texts == []
