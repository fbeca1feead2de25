"""Lists of ranks become groups of a size and a stride, or are refused."""

import json
from pathlib import Path

import pytest

from simnet.core.errors import SimnetError
from simnet.traces import process_groups
from simnet.traces.process_groups import WorldShape

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
    group = process_groups.shape_of(ranks, "g", WORLD, "t")
    assert (group.size, group.stride) == shape
    assert process_groups.members(group, min(ranks)) == tuple(sorted(ranks))


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
    with pytest.raises(SimnetError, match=rule):
        process_groups.shape_of(ranks, "g", WORLD, "t")


@pytest.mark.parametrize(
    ("involved", "ranks"),
    [
        ([True], range(8)),
        ([True, True], range(8)),
        ([True] * 5, range(8)),
        ([True, False], range(4)),
        ([False, True], (0, 4)),
    ],
)
def test_dimensions_are_the_ranks_of_a_node_and_then_the_nodes(involved: list[bool], ranks: range) -> None:
    assert process_groups.of_dimensions(involved, WORLD, "t") == tuple(ranks)


@pytest.mark.parametrize("involved", [[True, False, True], [False, False], [False]])
def test_other_dimensions_are_refused(involved: list[bool]) -> None:
    with pytest.raises(SimnetError, match="involved_dim"):
        process_groups.of_dimensions(involved, WORLD, "t")


@pytest.mark.parametrize(
    ("given", "found"),
    [((2, 4, None, None), (2, 4)), ((2, None, 8, None), (2, 4)), ((None, 4, 8, None), (2, 4)),
     ((None, None, 8, 4), (2, 4)), ((None, None, 2, 4), (1, 2)), ((1, None, 8, 4), (1, 8))],
)  # fmt: skip
def test_the_world_is_what_options_and_trace_say(given: tuple, found: tuple[int, int]) -> None:
    shape = process_groups.world_shape(*given, "t")
    assert (shape.num_nodes, shape.ranks_per_node) == found


@pytest.mark.parametrize(
    ("given", "rule"),
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
def test_a_world_that_is_unknown_or_contradicted_is_refused(given: tuple, rule: str) -> None:
    with pytest.raises(SimnetError, match=rule):
        process_groups.world_shape(*given, "t")


def test_groups_of_astra_sim_are_read(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text('{"1": [0, 4], "2": [1, 5]}')
    assert process_groups.read_comm_groups(path) == {"1": (0, 4), "2": (1, 5)}


@pytest.mark.parametrize("data", [[], {"1": 5}, {"1": []}, {"1": ["a"]}, {"1": [0, 0]}, {"1": [-1]}, {"1": [True]}])
def test_other_groups_are_refused(data: object, tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SimnetError, match=r"groups\.json"):
        process_groups.read_comm_groups(path)
