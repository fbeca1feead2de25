"""What a result rests on: each part with its source, and whether it was measured."""

import pytest

import simnet
from simnet.engine.intervals import ModelError
from simnet.engine.result import RunResult
from simnet.report import assumptions

BERT = "bert_base_10gbit"


def rows(result: RunResult) -> dict[str, tuple[str, ...]]:
    return {row[0]: tuple(row) for row in assumptions.parts_table(result).rows}


def test_every_part_says_where_it_comes_from_and_whether_it_was_measured() -> None:
    result = simnet.simulate(BERT, draws=0)
    found = rows(result)
    for part in ("cluster", "workload", "calibration", "links inside nodes", "links between nodes"):
        assert found[part][3], part
        assert found[part][2], part
    assert found["calibration"][2] == "no, an estimate"
    assert found["links between nodes"][1:3] == ("91.9 % of the nominal rate", "yes, by others, on 10 Gbit/s")
    assert found["links between nodes"][3] == result.scenario.calibration.inter_node.source
    timed = {f"compute, {one.gpu} {one.precision}" for one in result.scenario.workload.compute}
    assert {name for name in found if name.startswith("compute,")} == {
        "compute, A100-80GB tf32",
        "compute, A100-80GB amp",
    }
    assert len(timed) > 2  # those of other GPUs say nothing here


def test_every_value_with_an_interval_is_named() -> None:
    result = simnet.simulate(BERT, draws=20)
    table = assumptions.uncertain_table(result)
    named = [row[0] for row in table.rows]
    assert {"encode and decode", "links between nodes", "compute", "the model itself, of a time"} <= set(named)
    assert dict(table.rows)["the GPU's memory"] == "up to 1.3 times slower"  # [0.75, 1]
    assert dict(table.rows)["compute during communication"] == "up to 1.4 times as long"  # [1, 1.4]


def test_the_models_own_error_goes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    result = simnet.simulate(BERT, draws=0)
    monkeypatch.setattr(assumptions.intervals, "model_error", lambda _: ModelError(time=2.0, speedup=4.0, source=""))
    shown = dict(assumptions.uncertain_table(result).rows)
    assert shown["the model itself, of a time"] == "0.5 to 2 times as long"
    assert shown["the model itself, of a speedup"] == "0.25 to 4 times as large"
