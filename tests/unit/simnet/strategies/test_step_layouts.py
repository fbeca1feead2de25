"""A recorded step on other ranks: groups follow the mesh, messages a law, and what is open is refused."""

import json

import pytest

from simnet.core.errors import SimnetError
from simnet.strategies import step_file
from simnet.strategies.step_layouts import at_layout
from tests.helpers import step_files
from tests.helpers.step_files import collective, compute


def resized(num_nodes, ranks_per_node, *recordings):
    found = step_file.decode(json.dumps(step_files.step(*recordings)).encode(), "step.json")
    return at_layout(found, num_nodes, ranks_per_node, "step.json")


def groups(layout):
    return [(group.size, group.stride) for group in layout.groups]


def sent(layout):
    return [one.message_bytes for one in layout.operations if one.kind != "compute"]


def one_collective(kind, message_bytes, *, num_nodes=2, ranks_per_node=8, mesh=None, group=0, **more):
    ops = [[compute("forward")], [collective(kind, message_bytes, group, **more)]]
    return step_files.layout(ops, num_nodes, ranks_per_node, mesh)


def refused(num_nodes, ranks_per_node, *recordings):
    with pytest.raises(SimnetError) as caught:
        resized(num_nodes, ranks_per_node, *recordings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestGroups:
    MESH = ((16, 1), (8, 1), (2, 8), (4, 1), (2, 4))

    @pytest.mark.parametrize(
        ("layout", "expected"),
        [
            ((2, 8), [(16, 1), (8, 1), (2, 8), (4, 1), (2, 4)]),  # as recorded
            ((4, 8), [(32, 1), (8, 1), (4, 8), (4, 1), (2, 4)]),
            ((4, 4), [(16, 1), (4, 1), (4, 4), (4, 1), (2, 4)]),
            ((1, 8), [(8, 1), (8, 1), (1, 8), (4, 1), (2, 4)]),
        ],
    )
    def test_world_node_and_rails_stay_what_they_are_and_inner_sizes_stay(self, layout, expected):
        recording = step_files.layout(step_files.ddp(), 2, 8, self.MESH)
        assert groups(resized(*layout, recording)) == expected

    def test_the_outermost_group_takes_the_rest(self):
        # Tensor parallel in pairs, data parallel among the others.
        recording = step_files.layout(step_files.ddp(), 2, 8, [(2, 1), (8, 2)])
        assert groups(resized(8, 8, recording)) == [(2, 1), (32, 2)]

    def test_a_group_that_does_not_tile_the_new_ranks_is_refused(self):
        recording = step_files.layout(step_files.ddp(), 2, 8, [(2, 1), (8, 2)])
        assert "group 'group 0': size 2, stride 1 on 2 x 8 ranks: does not tile 3 x 3 ranks" in refused(3, 3, recording)


class TestOneRecording:
    @pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier"])
    def test_what_a_rank_has_keeps_its_size_and_a_note_says_so(self, kind):
        layout = resized(8, 8, one_collective(kind, 16e6))
        assert sent(layout) == [16e6]
        assert any(
            f"assumed from one recording to be the same on 8 x 8 ranks: 1 {kind}" in n for n in layout.notes
        ) is (kind != "barrier")

    def test_an_all_gather_whose_group_grows_is_refused(self):
        said = refused(8, 8, one_collective("all_gather", 16e6))
        assert "streams.1.operations.0: all_gather in group 'group 0' of 16 ranks" in said
        assert "simnet record --nodes 2,8" in said

    def test_other_ranks_of_a_node_are_to_be_recorded(self):
        said = refused(2, 4, one_collective("all_gather", 16e6, mesh=[(8, 1), (2, 8)]))
        assert said.endswith("record a step with simnet record --ranks-per-node 4")


class TestTwoRecordings:
    @pytest.mark.parametrize(
        ("two", "four", "on_eight"),
        [
            (16e6, 16e6, 16e6),  # sharded parameters: the whole stays
            (16e6, 32e6, 64e6),  # compressed gradients: a part of each rank
            (16e6, 8e6, 4e6),  # the slice that a rank keeps
            (16000064.0, 16000128.0, 16000064.0),  # padded to 4 elements of every rank
            (128.0, 256.0, 512.0),  # lengths of payloads, which are no padding
        ],
    )
    def test_the_law_of_an_all_gather_is_read_off(self, two, four, on_eight):
        recordings = [one_collective("all_gather", size, num_nodes=nodes) for nodes, size in ((2, two), (4, four))]
        assert sent(resized(8, 8, *recordings)) == pytest.approx([on_eight], rel=1e-9)

    def test_a_third_recording_is_checked(self):
        sizes = ((2, 16e6), (4, 32e6), (8, 48e6))
        recordings = [one_collective("all_gather", size, num_nodes=nodes) for nodes, size in sizes]
        assert "no law fits its messages on all recordings" in refused(16, 8, *recordings)

    def test_recordings_with_other_operations_are_refused_by_the_first_that_differs(self):
        ops = [[compute("forward")], [collective("broadcast", 1e6), collective("broadcast", 1e6)]]
        more = [ops[0], [*ops[1], collective("broadcast", 1e6)]]
        said = refused(8, 8, step_files.layout(ops, 2), step_files.layout(more, 4))
        assert "streams.1.operations.2: nothing on 2 x 8 ranks, broadcast in group 'group 0' on 4 x 8 ranks" in said

    def test_recordings_of_other_meshes_are_refused(self):
        meshes = [(2, [(2, 1), (8, 2)]), (4, [(4, 1), (8, 4)])]
        said = refused(8, 8, *(step_files.layout(step_files.ddp(), nodes, 8, mesh) for nodes, mesh in meshes))
        assert "groups: size 2, stride 1 and size 8, stride 2 on 2 x 8 ranks" in said

    def test_compute_follows_its_law(self):
        def recording(nodes):
            ranks = 8 * nodes
            ops = [
                compute("optimizer", gbytes=64 / ranks),
                compute("decode", gbytes=ranks),
                compute("encode", gbytes=2 + ranks),
                compute("forward", gbytes=3, seconds=0.1 * nodes),
            ]
            return step_files.layout([ops], nodes)

        amounts = [one.num_bytes / 1e9 for one in resized(8, 8, recording(2), recording(4)).operations]
        assert amounts == pytest.approx([1, 64, 66, 3])
        assert [one.seconds for one in resized(8, 8, recording(2), recording(4)).operations][3] == 0.4
