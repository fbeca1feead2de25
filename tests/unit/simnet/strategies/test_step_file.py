"""A recorded step is read whole, or refused in one sentence."""

import copy
import json

import pytest

from simnet.core.errors import SimnetError
from simnet.strategies import step_file
from tests.helpers import step_files

GOOD = step_files.step(step_files.layout(step_files.ddp()))


def refused(data: object) -> str:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(SimnetError) as caught:
        step_file.decode(text, "step.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    said = refused(changed(change, value))
    assert said.startswith("step.json: ")
    assert rule in said


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = step_files.write(tmp_path / "step.json", GOOD)
    before = step_file.content_hash(path)
    assert len(step_file.read(path).recordings) == 1
    step_files.write(path, step_files.step(*GOOD["recordings"], step_files.layout(step_files.ddp(), 4)))
    assert len(step_file.read(path).recordings) == 2
    assert step_file.content_hash(path) != before
