"""What a sweep varies, as files and the command line give it: a grid, and a list of points."""

from pathlib import Path
from typing import Any

import pytest

from simnet.engine.axes import PointList, point_list, read_sweep
from tests.helpers.refusals import refused

NODES, BATCH = "cluster.num_nodes", "workload.batch_per_rank"
POINTS = [{NODES: 2, BATCH: 64}, {BATCH: 32, NODES: 4}]


def test_a_list_of_points_stands_beside_the_grid() -> None:
    axes, points = read_sweep({"strategy": ["binsgdm", "qsgd"], "points": POINTS}, "x", Path("here"))
    assert [axis.values for axis in axes.values()] == [("binsgdm", "qsgd")]
    assert points is not None
    assert list(points.points()) == POINTS
    assert [override.directory for override in points.overrides({NODES: 2})] == [Path("here")]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "x: sweep: 3: write a table of keys with lists of values"),
        ({NODES: []}, "x: sweep.cluster.num_nodes: []: write a list of at least one value"),
        ({NODES: 4}, "x: sweep.cluster.num_nodes: 4: write a list of at least one value, such as [1, 2, 4]"),
        ({"cluster": {"num_nodes": [1]}}, 'write dotted keys in quotes, such as "cluster.num_n'),
        ({"points": []}, "x: sweep.points: []: write a list of tables, each a [[sweep.points]]"),
        ({"points": {NODES: 2}}, "x: sweep.points: {'cluster.num_nodes': 2}: write a list of tables"),
        ({"points": [3]}, "x: sweep.points.0: 3: write a list of tables"),
        ({"points": [{}]}, "x: sweep.points.0: no key: write a list of tables"),
        ({"points": [{"run": {"global_batch": 512}}]}, 'write dotted keys in quotes, such as "run.global_batch"'),
        ({"points": [{"cluster": {"num_nodes": 2}}]}, 'such as "cluster.num_nodes", or a whole cluster with a name'),
        ({"points": [*POINTS, {NODES: 8}]}, "x: sweep.points.2: no 'workload.batch_per_rank': every point has the"),
        ({"points": [{NODES: 8}, POINTS[0]]}, "x: sweep.points.1: 'workload.batch_per_rank': x: sweep.points.0 has n"),
        ({NODES: [1], "points": POINTS}, "x: sweep.points: 'cluster.num_nodes': is a key of the points, too; dro"),
    ],
    ids=str,
)
def test_what_is_no_sweep_is_refused(table: Any, message: str) -> None:
    with refused(message, start="x: sweep"):
        read_sweep(table, "x", Path())


def test_points_without_a_key_are_the_same_only_once_and_values_come_in_their_order() -> None:
    rows = ((2, 64), (4, 64), (2, 32))
    listed = PointList(keys=(NODES, BATCH), rows=rows, origin="x: sweep")
    left = listed.without({BATCH})
    assert left is not None
    assert (left.keys, left.rows) == ((NODES,), ((2,), (4,)))
    assert listed.without({"run.steps"}) is listed
    assert listed.without({NODES, BATCH}) is None
    points = point_list(POINTS, ["first", "second"], "x", Path())
    assert (points.values_of(NODES), points.values_of("run.steps")) == ((2, 4), ())
    models = [{"workload": {"title": "A", "gradient": "1 GB"}}, {"workload": {"use": "bert_base", "dtype": "bf16"}}]
    assert read_sweep({"points": models}, "x", Path())[1] is not None, "a point may hold whole parts"
