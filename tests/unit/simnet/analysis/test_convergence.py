"""Measured convergence: what a file must hold, and what is read from a curve."""

import pytest

from simnet.analysis.convergence import TrainingCurve, load, median_values
from simnet.core import files
from simnet.core.errors import SimnetError
from tests.helpers.time_to_target_samples import STEPS, SYSTEMS, VALUES, write_trainings

SHAPED = {"rounding": "shaped"}
RANDOM = {"kind": "binsgdm", "rounding": "random"}


def curve(**changes) -> dict:
    return {"system": "dense", "ranks": 4, "seed": 9, "steps": list(STEPS), "values": [4.0, 3.0, 2.0, 1.0], **changes}


def test_a_file_is_read_as_it_stands(tmp_path):
    found = load(str(write_trainings(tmp_path / "t.json")))
    assert found.rank_counts == (4,)
    assert [one.seed for one in found.of("dense", 4)] == [0, 1, 2]
    assert [list(one.values) for one in found.of("adam", 4)] == VALUES["adam"]
    assert found.of("dense", 16) == ()


@pytest.mark.parametrize("name", files.names("convergence"))
def test_every_shipped_file_is_whole(name):
    found = load(name)
    assert found.target is not None
    assert found.source


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "format: 'other': unknown. Known: simnet-convergence"),
        (
            {"version": 1},
            "version: 1: must be 2, in which binsgdm without rounding is of the default one; write 2",
        ),
        ({"better": "greater"}, "better: 'greater': unknown"),
        ({"batch": 0}, "batch: 0: must be"),
        ({"target": float("nan")}, "target: nan: must be finite"),
        ({"metrics": "loss"}, "unknown key 'metrics'. Did you mean 'metric'?"),
        (
            {"systems": {"dense": {"title": "x", "strategy": {"kind": "qsdg"}}}},
            "'qsdg': unknown strategy. Did you mean 'qsgd'",
        ),
        ({"systems": {"dense": {"title": "x", "strategy": {"kind": "qsgd", "bits": 77}}}}, "bits: 77: must be"),
        ({"systems": {"quick": SYSTEMS["quick"]}, "curves": []}, "none without compression"),
        ({"curves": [curve(system="nobody")]}, "curves.0.system: 'nobody': not among systems"),
        ({"curves": [curve(), curve()]}, "curves.1: a second curve of ('dense', 4, 9)"),
        ({"curves": [curve(steps=[10, 20])]}, "steps: 2 for 4 values: must be as many"),
        ({"curves": [curve(steps=[], values=[])]}, "steps: 0 for 0 values"),
        ({"curves": [curve(steps=[10, 20, 20, 30])]}, "steps: must ascend"),
        ({"curves": [curve(values=[4.0, 3.0, 2.0, "x"])]}, "'x': write a number"),
        ({"curves": [curve(values=[4.0, 3.0, 2.0, float("inf")])]}, "must be finite"),
        ({"curves": [curve(), curve(seed=1, steps=[1, 2, 3, 4])]}, "seeds with different steps"),
        ({"curves": 3}, "curves: 3: write a list"),
        ({"target": 10**400}, "t.json: target: a whole number of more than 300 digits"),
        ({"target": 1e300}, "target: 1e+300: must be a number of at least -1e+100, at most 1e+100"),
        ({"batch": 10**300}, "must be a whole number of at least 1, at most 1000000000"),
        ({"curves": [curve(values=[10**400, 3.0, 2.0, 1.0])]}, "curves.0.values.0: a whole number of more"),
        ({"curves": [curve(accuracy=[0.5])]}, "curves.0.accuracy: 1 for 4 steps: must be as many, or none; add them"),
        ({"systems": {**SYSTEMS, "dense": {**SYSTEMS["dense"], "title": " "}}}, "systems.dense.title: ' ': must not"),
        (
            {"systems": {**SYSTEMS, "quick": {**SYSTEMS["quick"], "title": "DDP fp32"}}},
            "systems.quick.title: 'DDP fp32': is also that of 'dense'",
        ),
        (
            {"systems": {**SYSTEMS, "b": {"title": "B", "strategy": RANDOM, "settings": SHAPED}}},
            "systems.b.strategy.rounding: 'random': settings.rounding is 'shaped': must be the same",
        ),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused_in_one_sentence(changes, said, tmp_path):
    path = write_trainings(tmp_path / "t.json", **changes)
    with pytest.raises(SimnetError) as caught:
        load(str(path))
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '{"format": "simnet-convergence"}'])
def test_what_is_no_such_file_is_refused(text, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(SimnetError, match=r"t\.json"):
        load(str(path))
    with pytest.raises(SimnetError, match="no such file"):
        load(str(tmp_path / "none.json"))


def test_the_step_to_a_target_is_the_first_evaluated_one_that_is_good_enough():
    def one(*values: float | None) -> TrainingCurve:
        return TrainingCurve(system="a", ranks=1, seed=0, steps=STEPS, values=values)

    assert one(4.0, 2.0, 3.0, 1.0).step_at(2.0, is_lower_better=True) == 20
    assert one(4.0, 3.0, None, None).step_at(2.0, is_lower_better=True) is None
    assert one(0.1, 0.5, 0.4, 0.9).step_at(0.5, is_lower_better=False) == 20


def test_medians_end_where_the_first_training_has_no_number(tmp_path):
    found = load(str(write_trainings(tmp_path / "t.json")))
    assert median_values(found.of("dense", 4))[1:3] == [(20, 3.0, 2.0, 3.0), (30, 2.0, 1.5, 2.2)]
    assert median_values(found.of("adam", 4)) == [(10, 4.0, 4.0, 4.0)]
