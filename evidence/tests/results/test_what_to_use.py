"""What to use over bandwidth, nodes and micro-batches: all was asked, and the same is found today."""

import pytest

from evidence.studies import what_to_use

ROWS = what_to_use.read()


def test_every_model_number_of_nodes_and_of_micro_batches_is_there_once() -> None:
    places = [(row["model"], row["nodes"], row["micro_batches"]) for row in ROWS]
    wanted = [
        (model, nodes, micro_batches)
        for model in what_to_use.MODELS
        for nodes in what_to_use.NODES
        for micro_batches in what_to_use.MICRO_BATCHES
    ]
    assert places == wanted


@pytest.mark.slow
@pytest.mark.parametrize("model", what_to_use.MODELS)
def test_today_s_answer_is_that_of_the_file(model: str) -> None:
    before = next(row for row in ROWS if (row["model"], row["nodes"], row["micro_batches"]) == (model, 4, 1))
    now = what_to_use.row(model, 4, 1, **{"run.draws": 0})
    for group, best in before["best"].items():
        assert [best["speedup"] for best in now["best"][group]] == pytest.approx(
            [kept["speedup"] for kept in best], rel=0.01
        )
