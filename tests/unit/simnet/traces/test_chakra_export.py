"""Traces of a recorded step are those that Chakra's own program has read, and its groups those of ASTRA-sim."""

import pytest

from simnet.core.errors import SimnetError
from simnet.strategies import step_file
from simnet.traces import chakra_export, chakra_protobuf
from tests.helpers import step_files
from tests.helpers.chakra_traces import GOLDEN

STEP = GOLDEN / "step.json"


def test_the_trace_of_a_rank_is_the_file_that_chakras_own_program_has_read() -> None:
    (layout,) = step_file.read(STEP).recordings
    made = dict(chakra_export.traces(layout, "step.json"))
    assert sorted(made) == list(range(8))
    assert chakra_protobuf.encode(made[5]) == (GOLDEN / "exported.5.et").read_bytes()


def test_ranks_are_alike_but_for_the_names_of_their_groups() -> None:
    (layout,) = step_file.read(STEP).recordings
    groups = chakra_export.comm_groups(layout)
    assert groups["1"] == (0, 1, 2, 3)
    assert groups["6"] == (3, 7)
    plain = []
    for rank, trace in chakra_export.traces(layout, "step.json"):
        names = [one.attributes.get("pg_name") for one in trace.nodes]
        assert all(rank in groups[str(name)] for name in names if name is not None)
        assert names.count(None) == 5  # compute, and what all ranks exchange
        plain.append([{k: v for k, v in one.attributes.items() if k != "pg_name"} for one in trace.nodes])
    assert all(one == plain[0] for one in plain)


def test_compute_has_no_amount_of_zero_by_which_a_roofline_divides() -> None:
    data = step_files.step(step_files.layout([[step_files.compute("forward", gbytes=0, flops=5)]]))
    step = step_file.decode(step_files.json.dumps(data).encode(), "t")
    _, trace = next(chakra_export.traces(step.recordings[0], "t"))
    assert [trace.nodes[0].attributes[name] for name in ("num_ops", "tensor_size", "bytes")] == [5, 1, 0.0]


def test_a_world_of_too_many_files_is_refused() -> None:
    data = step_files.step(step_files.layout(step_files.ddp(), 1000, 8))
    step = step_file.decode(step_files.json.dumps(data).encode(), "t")
    with pytest.raises(SimnetError, match="8000 ranks are as many files: at most 4096"):
        next(chakra_export.traces(step.recordings[0], "t"))
