"""A recorded step is read whole, or refused; on other ranks groups follow the mesh and messages a law."""

import copy
import json

import pytest

from simnet.strategies import step_file
from simnet.strategies.step_layouts import at_layout
from tests.helpers import step_files
from tests.helpers.refusals import refused
from tests.helpers.step_files import collective, compute

GOOD = step_files.step(step_files.layout(step_files.ddp()))


def changed(change, value):
    data = copy.deepcopy(GOOD)
    *tables, last = change
    place = data
    for key in tables:
        place = place[key]
    place[last] = value
    return data


FIRST = ("recordings", 0)
SENT = (*FIRST, "streams", 1, "operations", 0)


@pytest.mark.parametrize(
    ("change", "value", "rule"),
    [
        (("format",), "simnet-results", "no format 'simnet-step': not a recorded step"),
        (("version",), 2, "version: 2: this version of simnet reads 1"),
        (("recordings",), [], "recordings: []: must not be empty"),
        (("recordings",), [GOOD["recordings"][0]] * 2, "recordings.1: 2 x 8 ranks: is recorded twice"),
        ((*FIRST, "num_nodes"), 0, "num_nodes: 0: must be a whole number of at least 1"),
        ((*FIRST, "num_nodes"), 10**9, "at most 1000000 ranks"),
        ((*FIRST, "streams"), [], "streams: no operation"),
        ((*FIRST, "streams"), [{}] * 1001, "streams: 1001 streams: at most 1000"),
        ((*FIRST, "streams"), [{"operations": []}], "streams: no operation"),
        ((*FIRST, "groups", 0, "size"), 3, "groups.0: size 3, stride 1: must tile 2 x 8 ranks"),
        ((*FIRST, "groups", 0, "stride"), 2, "groups.0: size 16, stride 2: must tile 2 x 8 ranks"),
        ((*SENT, "kind"), "all_redcue", "kind: 'all_redcue': unknown. Did you mean 'all_reduce'?"),
        ((*SENT, "group"), 1, "group: 1: there are 1 groups"),
        ((*SENT, "after"), [[0, 9]], "after: [0, 9]: there is no such operation"),
        ((*SENT, "after"), [[7, 0]], "after: [7, 0]: there is no such operation"),
        ((*SENT, "after"), [[0, 4]], "streams.0.operations.4: after: waits for an operation that waits for this one"),
        ((*SENT, "message_bytes"), -1.0, "message_bytes: -1.0: must be a number of at least 0"),
        ((*SENT, "message_bytes"), float("nan"), "message_bytes: nan: must be finite"),
        ((*SENT, "message_bytes"), float("inf"), "message_bytes: inf: must be finite"),
        ((*SENT, "bytes_sent"), 1.0, "unknown key 'bytes_sent'"),
        ((*FIRST, "streams", 0, "operations", 0, "part"), None, "operations.0: part: missing"),
        (("source", "compute"), "guessed", "source.compute: 'guessed': unknown"),
    ],
)
def test_what_does_not_hold_together_is_refused_in_one_sentence(change, value, rule):
    with refused(rule, start="step.json: "):
        step_file.decode(json.dumps(changed(change, value)).encode(), "step.json")


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = step_files.write(tmp_path / "step.json", GOOD)
    before = step_file.content_hash(path)
    assert len(step_file.read(path).recordings) == 1
    step_files.write(path, step_files.step(*GOOD["recordings"], step_files.layout(step_files.ddp(), 4)))
    assert len(step_file.read(path).recordings) == 2
    assert step_file.content_hash(path) != before


def resized(num_nodes, ranks_per_node, *recordings):
    step = step_file.decode(json.dumps(step_files.step(*recordings)).encode(), "step.json")
    return at_layout(step, num_nodes, ranks_per_node, "step.json")


def groups(layout):
    return [(group.size, group.stride) for group in layout.groups]


def sent(layout):
    return [operation.message_bytes for operation in layout.operations if operation.kind != "compute"]


def one_collective(kind, message_bytes, *, num_nodes=2, ranks_per_node=8, mesh=None, group=0, **more):
    ops = [[compute("forward")], [collective(kind, message_bytes, group, **more)]]
    return step_files.layout(ops, num_nodes, ranks_per_node, mesh)


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
        with refused("group 'group 0': size 2, stride 1 on 2 x 8 ranks: does not tile 3 x 3 ranks"):
            resized(3, 3, recording)


class TestOneRecording:
    @pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier"])
    def test_what_a_rank_has_keeps_its_size_and_a_note_says_so(self, kind):
        layout = resized(8, 8, one_collective(kind, 16e6))
        assert sent(layout) == [16e6]
        assert any(
            f"assumed from one recording to be the same on 8 x 8 ranks: 1 {kind}" in n for n in layout.notes
        ) is (kind != "barrier")

    def test_an_all_gather_whose_group_grows_is_refused(self):
        with refused("streams.1.operations.0: all_gather in group 'group 0' of 16 ranks", "simnet record --nodes 2,8"):
            resized(8, 8, one_collective("all_gather", 16e6))
        with refused("record a step with simnet record --ranks-per-node 4"):
            resized(2, 4, one_collective("all_gather", 16e6, mesh=[(8, 1), (2, 8)]))


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
        with refused("no law fits its messages on all recordings"):
            resized(16, 8, *recordings)

    def test_recordings_with_other_operations_are_refused_by_the_first_that_differs(self):
        ops = [[compute("forward")], [collective("broadcast", 1e6), collective("broadcast", 1e6)]]
        more = [ops[0], [*ops[1], collective("broadcast", 1e6)]]
        with refused("streams.1.operations.2: nothing on 2 x 8 ranks, broadcast in group 'group 0' on 4 x 8 ranks"):
            resized(8, 8, step_files.layout(ops, 2), step_files.layout(more, 4))
        meshes = [(2, [(2, 1), (8, 2)]), (4, [(4, 1), (8, 4)])]
        with refused("groups: size 2, stride 1 and size 8, stride 2 on 2 x 8 ranks"):
            resized(8, 8, *(step_files.layout(step_files.ddp(), nodes, 8, mesh) for nodes, mesh in meshes))

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

        amounts = [operation.num_bytes / 1e9 for operation in resized(8, 8, recording(2), recording(4)).operations]
        assert amounts == pytest.approx([1, 64, 66, 3])
        assert [operation.seconds for operation in resized(8, 8, recording(2), recording(4)).operations][3] == 0.4
