"""What traces of any program need: the world, groups, and streams that wait for as little as says the same."""

import pytest

from simnet.strategies.step_file import RecordedOperation
from simnet.traces import layouts
from simnet.traces.layouts import TracedWork, WorldShape
from tests.helpers.refusals import refused

WORLD = WorldShape(num_nodes=2, ranks_per_node=4)


@pytest.mark.parametrize(
    ("ranks", "shape"),
    [
        (range(8), (8, 1)),
        ([0, 1, 2, 3], (4, 1)),
        ([4, 5, 6, 7], (4, 1)),
        ([0, 4], (2, 4)),
        ([7, 3], (2, 4)),
        ([0, 2, 4, 6], (4, 2)),
        ([5], (1, 1)),
        ([2, 3], (2, 1)),
    ],
)
def test_a_group_of_ranks_has_a_shape_and_the_shape_has_its_ranks(ranks: list[int], shape: tuple[int, int]) -> None:
    group = layouts.shape_of(ranks, "g", WORLD, "t")
    assert (group.size, group.stride) == shape
    assert layouts.members(group, min(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("ranks", "rule"),
    [
        ([0, 1, 3], "not evenly spaced"),
        ([0, 1, 2], "do not tile 2 x 4 ranks"),
        ([1, 2], "do not tile"),
        ([0, 8], "there are 8 ranks"),
    ],
)
def test_ranks_that_tile_nothing_are_refused(ranks: list[int], rule: str) -> None:
    with refused(rule):
        layouts.shape_of(ranks, "g", WORLD, "t")


@pytest.mark.parametrize(
    ("options", "world"),
    [((2, 4, None, None), (2, 4)), ((2, None, 8, None), (2, 4)), ((None, 4, 8, None), (2, 4)),
     ((None, None, 8, 4), (2, 4)), ((None, None, 2, 4), (1, 2)), ((1, None, 8, 4), (1, 8))],
)  # fmt: skip
def test_the_world_is_what_options_and_trace_say(options: tuple, world: tuple[int, int]) -> None:
    shape = layouts.world_shape(*options, "t")
    assert (shape.num_nodes, shape.ranks_per_node) == world


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ((None, None, None, None), "add --nodes N --ranks-per-node G"),
        ((2, None, None, None), "add --nodes N --ranks-per-node G"),
        (
            (None, None, 8, None),
            "the trace has 8 ranks and does not say on how many nodes they are; add --ranks-per-node G",
        ),
        ((3, None, 8, None), "3 nodes of 2 ranks: the trace has 8 ranks"),
        ((2, 2, 8, None), "2 nodes of 2 ranks: the trace has 8 ranks"),
        ((10**6, 10, None, None), "at most 1000000 ranks"),
    ],
)
def test_a_world_that_is_unknown_or_contradicted_is_refused(options: tuple, rule: str) -> None:
    with refused(rule):
        layouts.world_shape(*options, "t")


def test_a_circle_of_waits_is_refused_and_shown() -> None:
    operation = RecordedOperation(kind="compute", part="forward", seconds=1.0)
    waits = {1: ("a", ()), 2: ("a", (4,)), 3: ("b", (2,)), 4: ("a", (3,)), 5: ("a", (4,))}
    work = [
        TracedWork(key=key, rank_in_time=(key,), after=frozenset(after), stream=stream, operation=operation)
        for key, (stream, after) in waits.items()
    ]
    with refused("t: node 2 waits for 4, for 3, for 2: waits must not form a circle"):
        layouts.in_streams(work, {"a": "compute", "b": "world"}, "t")
