"""What is shown of a recorded step: layouts, collectives by group, compute by part, waits that nothing hides."""

import json

import pytest

from simnet.report import recorded_step
from simnet.report.rows import json_text, row_of
from simnet.strategies import step_file
from tests.helpers import step_files
from tests.helpers.step_files import collective, compute


def step(*recordings, **more):
    return step_file.decode(json.dumps(step_files.step(*recordings, **more)).encode(), "step.json")


def rows(*recordings):
    layouts = step(*recordings).recordings
    return {
        (layout.text, row.stream, row.operations): row
        for layout in layouts
        for row in recorded_step.operations_of(layout)
    }


@pytest.mark.parametrize(
    ("work_between", "exposed"), [([], 1), ([compute("backward")], 0), ([compute("backward"), compute("encode")], 0)]
)
def test_a_wait_is_exposed_where_nothing_is_computed_between(work_between, exposed):
    ops = [compute("forward"), *work_between, compute("optimizer", after=[[1, 0]])]
    by_place = rows(step_files.layout([ops, [collective("all_reduce", 1e6, after=[[0, 0]])]]))
    row = by_place["2 x 8 ranks", "stream 1", "all_reduce"]
    assert (row.waits, row.exposed_waits) == (1, exposed)


def test_what_was_found_of_communication_is_said_and_ranks_that_never_communicate_are_warned_of():
    ops = [compute("forward"), compute("optimizer", after=[[1, 0]])]
    sent = [collective("all_reduce", 1e6, after=[[0, 0]]), collective("all_gather", 2e6)]
    assert recorded_step.communication_text(step(step_files.layout([ops, sent]))) == [
        "1 all_reduce on group 0 (16 ranks), 1 MB; compute waits for 1 of them, 1 with nothing to do meanwhile",
        "1 all_gather on group 0 (16 ranks), 2 MB; compute waits for none of them",
    ]
    ops = [compute("backward"), compute("backward"), compute("optimizer", after=[[1, 1]])]
    sent = [collective("all_reduce", 1e6, after=[[0, at]]) for at in (0, 1)]
    assert recorded_step.communication_text(step(step_files.layout([ops, sent]))) == [
        "2 all_reduce on group 0 (16 ranks), 2 MB; compute waits for 2 of them, 1 with nothing to do meanwhile",
    ]
    alone = step(step_files.layout([ops[:1]]))
    (warning,) = recorded_step.communication_text(alone)
    assert warning.startswith("warning: 2 x 8 ranks that never communicate")
    assert "never communicates" in str(recorded_step.step_page(alone))


def test_the_page_names_layouts_periods_buckets_and_notes_once():
    more = {"num_steps": 4, "micro_batches": 2, "gradient_bytes": 75e6, "notes": ["a\tb"]}
    layouts = [step_files.layout(step_files.ddp(3), nodes, **more) for nodes in (2, 4)]
    page = " ".join(str(recorded_step.step_page(step(*layouts))).split())
    assert "2 x 8 ranks: 4 steps, after which they repeat, 2 micro-batches, gradients 75 MB" in page
    assert "2 streams, 3 buckets" in page
    assert page.count("note: a b") == 1
    assert "train.py" in page


def test_json_and_csv_say_what_the_table_says():
    recorded = step(step_files.layout(step_files.ddp(3)))
    lines = recorded_step.csv_table(recorded).csv().splitlines()
    assert len(lines) == 1 + len(list(recorded_step.operations_of(recorded.recordings[0])))
    assert lines[-1].startswith("2 x 8 ranks,stream 1,all_reduce,group 0 (16 ranks),3,75000000.0,25000000.0,")
    layout = json.loads(json_text(row_of(recorded_step.FIELDS, recorded)))["layouts"][0]
    assert (layout["num_nodes"], layout["num_buckets"], layout["operations"][-1]["number"]) == (2, 3, 3)
