"""`simnet sweep --break-even` by its former name: the crossing as sentence and as data, and what has none."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers.cli import BANDWIDTH, assert_refused, run


def test_the_value_has_three_digits_and_the_range_that_pays_follows(file: str) -> None:
    result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "400 Gbit/s")
    pattern = rf"{BANDWIDTH}: binsgdm is faster than all_reduce up to ([\d.]+) Gbit/s, all_reduce is at least as fast"
    (value,) = re.match(pattern, result.stdout).groups()
    assert len(value.replace(".", "").lstrip("0")) <= 3
    second = result.stdout.splitlines()[1]
    found = re.match(rf"{BANDWIDTH}: of the values tried, binsgdm pays from 1 Gbit/s to ([\d.]+) Gbit/s.$", second)
    assert float(found[1]) < float(value)


def test_an_integer_is_told_as_its_two_neighbours(file: str) -> None:
    result = run("crossover", file, "--over", "cluster.num_nodes", "--from", "1", "--to", "8")
    sentence = "cluster.num_nodes: all_reduce is at least as fast up to 1, binsgdm is faster than all_reduce from 2 on."
    assert result.stdout.startswith(sentence)


def test_json_holds_both_sides_of_the_crossing(file: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ends = ["--from", "1", "--to", "8"]
    run("crossover", file, "--over", "cluster.num_nodes", *ends, "--format", "json", "-o", str(out))
    found = json.loads(out.read_text())
    (crossing,) = found["crossings"]
    assert (crossing["low"]["value"], crossing["high"]["value"]) == (1, 2)
    assert crossing["strategy_is_faster"] == "above"
    assert crossing["low"]["speedup"] < 1 < crossing["high"]["speedup"]


def test_without_a_crossing_the_winner_is_named_with_both_ends(file: str) -> None:
    result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s")
    assert "no crossing: binsgdm is faster than all_reduce at all 9 values tried from 1 Gbit/s to 2 G" in result.stdout
    assert result.stdout.splitlines()[11].lstrip().startswith("2 Gbit/s ")


def test_the_notes_of_the_results_stand_below(file: str) -> None:
    ends = ["--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s"]
    note = "calibration is ideal (nominal rates, no other cost), not measured on this cluster"
    assert run("crossover", file, *ends).stdout.endswith(f"\n\nnote: {note}\n")
    assert json.loads(run("crossover", file, *ends, "--format", "json").stdout)["notes"] == [note]


def test_a_key_without_effect_is_refused(file: str) -> None:
    ends = ["--over", "workload.batch_per_rank", "--from", "1", "--to", "100"]
    assert_refused(
        run("crossover", file, *ends), "--break-even: workload.batch_per_rank: has no effect here: all 9 val"
    )


@pytest.mark.usefixtures("never_simulated")
def test_a_missing_directory_is_refused_before_simulating(file: str, tmp_path: Path) -> None:
    ends = ["--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s"]
    assert_refused(run("crossover", file, *ends, "-o", str(tmp_path / "new" / "x")), "no such directory; make it")


def test_a_strategy_against_itself_is_told_apart(file: str) -> None:
    same = ["--set", "strategy=all_reduce", "--set", "strategy.wire_dtype=fp16"]
    result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s", *same)
    assert "strategy is faster than baseline" in result.stdout


def test_a_tolerance_that_is_no_number_is_refused(file: str) -> None:
    ends = ["--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s"]
    assert_refused(run("crossover", file, *ends, "--tolerance", "nan"), "--tolerance: nan: must be from 1e-09 to 0.5")


def test_a_wrong_end_is_refused(file: str) -> None:
    assert_refused(run("crossover", file, "--over", BANDWIDTH, "--from", "1", "--to", "2"), f"--from: {BANDWIDTH}: 1: ")
