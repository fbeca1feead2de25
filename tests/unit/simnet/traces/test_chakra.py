"""Traces of a recorded step are those that Chakra's own program has read, and its groups those of ASTRA-sim."""

import json
from pathlib import Path

import pytest

from simnet.strategies import step_file
from simnet.traces import chakra, chakra_file
from simnet.traces.layouts import WorldShape
from tests.helpers import step_files
from tests.helpers.chakra_traces import GOLDEN
from tests.helpers.refusals import refused

WORLD = WorldShape(num_nodes=2, ranks_per_node=4)
STEP = GOLDEN / "step.json"


def test_the_trace_of_a_rank_is_the_file_that_chakras_own_program_has_read() -> None:
    (layout,) = step_file.read(STEP).recordings
    made = dict(chakra.traces(layout, "step.json"))
    assert sorted(made) == list(range(8))
    assert chakra_file.encode(made[5]) == (GOLDEN / "exported.5.et").read_bytes()


def test_ranks_are_alike_but_for_the_names_of_their_groups() -> None:
    (layout,) = step_file.read(STEP).recordings
    groups = chakra.comm_groups(layout)
    assert groups["1"] == (0, 1, 2, 3)
    assert groups["6"] == (3, 7)
    plain = []
    for rank, trace in chakra.traces(layout, "step.json"):
        names = [node.attributes.get("pg_name") for node in trace.nodes]
        assert all(rank in groups[str(name)] for name in names if name is not None)
        assert names.count(None) == 5  # compute, and what all ranks exchange
        plain.append([{k: v for k, v in node.attributes.items() if k != "pg_name"} for node in trace.nodes])
    assert all(attributes == plain[0] for attributes in plain)


def test_compute_has_no_amount_of_zero_by_which_a_roofline_divides() -> None:
    data = step_files.step(step_files.layout([[step_files.compute("forward", gbytes=0, flops=5)]]))
    step = step_file.decode(json.dumps(data).encode(), "t")
    _, trace = next(chakra.traces(step.recordings[0], "t"))
    assert [trace.nodes[0].attributes[name] for name in ("num_ops", "tensor_size", "bytes")] == [5, 1, 0.0]


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
    assert chakra.of_dimensions(involved, WORLD, "t") == tuple(ranks)


@pytest.mark.parametrize("data", [[], {"1": 5}, {"1": []}, {"1": ["a"]}, {"1": [0, 0]}, {"1": [-1]}, {"1": [True]}])
def test_other_groups_are_refused(data: object, tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(json.dumps(data))
    with refused("groups.json"):
        chakra.read_comm_groups(path)


def test_other_dimensions_and_a_world_of_too_many_files_are_refused() -> None:
    for involved in ([True, False, True], [False, False], [False]):
        with refused("involved_dim"):
            chakra.of_dimensions(involved, WORLD, "t")
    data = step_files.step(step_files.layout(step_files.ddp(), 1000, 8))
    step = step_file.decode(json.dumps(data).encode(), "t")
    with refused("8000 ranks are as many files: at most 4096"):
        next(chakra.traces(step.recordings[0], "t"))
