"""Questions on uneven clusters: every point is there, the same is found today, and what the page tells holds."""

import pytest

from evidence.studies import uneven_questions
from evidence.studies.uneven_questions import BANDWIDTH, NODES
from simnet.engine.scenario import load_experiment

PAGE = uneven_questions.PAGE.read_text(encoding="utf-8")
ROWS = uneven_questions.read()


@pytest.mark.parametrize("name", uneven_questions.EXPERIMENTS)
def test_every_point_of_an_experiment_is_there_once(name: str) -> None:
    axes = {axis.key: axis.values for axis in load_experiment(name).axes}
    wanted = 1
    for values in axes.values():
        wanted *= len(values)
    places = [(row.nodes, row.gbit_per_s, row.amount) for row in ROWS if row.experiment == name]
    assert len(set(places)) == len(places) == wanted
    assert f"{name}`" in PAGE


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("slow_rank", {"cluster.faults.0.compute_slowdown": [1.0, 2.0]}),
        ("neighbour", {"cluster.faults.0.share": [0.25, 0.9]}),
        pytest.param(
            "jitter",
            {NODES: [8], BANDWIDTH: ["25 Gbit/s"], "cluster.faults.0.cv": [0.05]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_today_s_answer_is_that_of_the_file(name: str, axes: dict[str, list[object]]) -> None:
    before = {(row.nodes, row.gbit_per_s, row.amount): row for row in ROWS if row.experiment == name}
    now = uneven_questions.sweep(name, axes)
    assert now
    for row in now:
        kept = before[row.nodes, row.gbit_per_s, row.amount]
        for system in ("binsgdm", "ddp"):
            for field in ("mean_s", "p95_s"):
                # The grouped executor may be off by 1 % here; changes of that size are no news.
                assert getattr(getattr(row, system), field) == pytest.approx(
                    getattr(getattr(kept, system), field), rel=0.01
                )
