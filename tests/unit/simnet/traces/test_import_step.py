"""Traces of Chakra become the step that they tell, or are refused with the place."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from simnet.strategies import step_file
from simnet.strategies.step_file import RecordedLayout
from simnet.traces.import_step import ImportOptions, step_of
from tests.helpers import chakra_traces
from tests.helpers.chakra_traces import GATHER, GOLDEN, ChakraNode, collective, compute
from tests.helpers.refusals import refused

ON_2 = ImportOptions(num_nodes=1, ranks_per_node=2)
ON_2X4 = ImportOptions(num_nodes=2, ranks_per_node=4)


def imported(*paths: Path, options: ImportOptions = ON_2) -> RecordedLayout:
    step = step_of(paths, options)
    step_file.decode(step_file.encode(step), "step.json")
    return step.recordings[0]


def operations(layout: RecordedLayout) -> list[list[tuple[object, ...]]]:
    return [
        [(operation.kind, operation.part, operation.after) for operation in stream.operations]
        for stream in layout.streams
    ]


@pytest.mark.parametrize("name", ["pytorch.0.et", "pytorch.0.json", "pytorch.0.et.gz"])
def test_a_trace_converted_from_pytorch_keeps_kernels_streams_and_groups(name: str, tmp_path: Path) -> None:
    path = GOLDEN / name
    if name.endswith(".gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress((GOLDEN / path.stem).read_bytes()))
    layout = imported(path, options=ImportOptions(ranks_per_node=4))
    assert (layout.num_nodes, layout.ranks_per_node) == (2, 4)
    assert [stream.name for stream in layout.streams] == ["stream 7", "stream 20", "stream 24"]
    assert operations(layout) == [
        [("compute", "forward", ()), ("compute", "backward", ()), ("compute", "optimizer", ((2, 0),))],
        [("all_reduce", None, ((0, 1),))],
        [("all_gather", None, ((1, 0),))],
    ]
    assert [(group.size, group.stride) for group in layout.groups] == [(2, 4), (8, 1)]
    assert layout.streams[2].operations[0].message_bytes == 8e6
    assert "4 nodes of the CPU of 40 us are left out" in layout.notes[0]
    memory = imported(GOLDEN / "one_remote_mem_load_node.0.et")
    assert [(stream.name, stream.operations[0].num_bytes) for stream in memory.streams] == [("memory", 1024)]


@pytest.mark.parametrize(
    ("name", "kind", "message_bytes", "shape"),
    [
        ("allreduce", "all_reduce", 65536, (8, 1)),
        ("alltoall", "all_to_all", 65536, (8, 1)),
        ("allgather", "all_gather", 4 * 65536, (4, 1)),
        ("reducescatter", "reduce_scatter", 65536, (2, 4)),
    ],
)
def test_collectives_have_the_bytes_of_the_whole_array_and_the_ranks_of_their_dimensions(
    name: str, kind: str, message_bytes: float, shape: tuple[int, int]
) -> None:
    layout = imported(GOLDEN / f"one_comm_coll_node_{name}.0.et", options=ON_2X4)
    assert [stream.operations for stream in layout.streams[:1]] == [()]
    (operation,) = layout.streams[1].operations
    group = layout.groups[operation.group]
    assert (operation.kind, operation.message_bytes, (group.size, group.stride)) == (kind, message_bytes, shape)


@pytest.mark.parametrize(
    ("nodes", "rule"),
    [
        (
            [compute(0), collective(1, 0, comm_size=8192)],
            "operation 0 of stream 1 is all_reduce of 8.192 kB on 2 ranks",
        ),
        ([compute(0), collective(1)], "is all_reduce of 4.096 kB on 2 ranks, in"),
        ([compute(0)], "has 1 streams"),
        ([compute(0), collective(1, 0), collective(2)], "stream 1 has 2 operations, in"),
        ([compute(0), collective(1, 0, comm_type=5)], "is broadcast of 4.096 kB"),
    ],
)
def test_ranks_that_differ_are_refused_with_the_place(nodes: list, rule: str, tmp_path: Path) -> None:
    first = chakra_traces.write(tmp_path / "t.0.et", compute(0), collective(1, 0))
    with refused(rule, "a step file holds symmetric ranks", "t.1.et"):
        imported(first, chakra_traces.write(tmp_path / "t.1.et", *nodes))


VERSIONS = "read are Chakra's schemas 0.0.4 and 1.0.0"


@pytest.mark.parametrize(
    ("nodes", "about", "rule"),
    [
        ([compute(0, 1), compute(1, 0)], {}, "node 0 waits for 1, for 0: waits must not form a circle"),
        ([compute(0, 0)], {}, "node 0 waits for 0"),
        ([compute(0, 9)], {}, "node 0: data_deps: 9: there is no such node"),
        ([compute(0), compute(0)], {}, "node 0: comes twice"),
        ([], {}, "has no node"),
        ([collective(0, comm_type=GATHER)], {}, "node 0: comm_type: 'gather': one rank does more than the others"),
        ([collective(0, comm_type=12)], {}, "comm_type: 12: must be 0 to 9"),
        ([collective(0, comm_size=-1)], {}, "comm_size: -1: must be a number from 0"),
        ([compute(0, tensor_size=2**63 + 1)], {}, "tensor_size: 9223372036854775809: must be a number from 0"),
        ([collective(0, pg_name="dp")], {}, "pg_name: 'dp': its ranks are not in the trace"),
        ([ChakraNode(id=0, type="COMM_SEND_NODE")], {}, "node 0: COMM_SEND_NODE: ranks that send to single"),
        ([ChakraNode(id=0, type="METADATA_NODE")], {}, "holds neither compute nor a collective"),
        ([ChakraNode(id=0, type="COMM_COLL_NODE")], {}, "comm_type: None: must be 0 to 9"),
        ([compute(0)], {"version": "9.9"}, VERSIONS),
        ([compute(0)], {"version": "", "schema": "1.0.2-chakra.7.0.0"}, VERSIONS),
        ([compute(0)], {"version": "", "schema": "2024"}, VERSIONS),
    ],
)
def test_what_is_no_step_of_symmetric_ranks_is_refused(
    nodes: list, about: dict[str, str], rule: str, tmp_path: Path
) -> None:
    with refused(rule):
        imported(chakra_traces.write(tmp_path / "t.0.et", *nodes, **about))


def test_files_that_cannot_be_traces_and_ranks_outside_their_group_are_refused(tmp_path: Path) -> None:
    empty, groups = tmp_path / "t.0.et", tmp_path / "groups.json"
    empty.write_bytes(b"")
    groups.write_text('{"1": [0, 4], "2": [1, 5]}')
    outside = chakra_traces.write(tmp_path / "t.5.et", collective(0, pg_name="1"))
    for path, options, rule in (
        (empty, ON_2, "is empty"),
        (tmp_path / "missing.et", ON_2, "no such file"),
        (GOLDEN / "pytorch.0.et", ImportOptions(step=1, ranks_per_node=4), "--step: has no effect on a Chakra trace"),
        (outside, replace(ON_2X4, comm_groups=groups), "rank 5 is not in its process group '1', [0, 4]"),
    ):
        with refused(rule):
            imported(path, options=options)


def test_collectives_of_which_none_says_its_bytes_are_refused_and_some_are_noted(tmp_path: Path) -> None:
    sent = [collective(at, 0, comm_size=0) for at in (1, 2)]
    with refused("comm_size: 0 in all 2 collectives: a collective must say its bytes"):
        imported(chakra_traces.write(tmp_path / "t.0.et", compute(0), *sent))
    layout = imported(chakra_traces.write(tmp_path / "u.0.et", compute(0), *sent, collective(3, 0)))
    assert any("2 of 3 collectives carry 0 bytes" in note for note in layout.notes)
